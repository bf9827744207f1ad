//! A write budget with a record of every charge, so that what was available at a decision can be replayed.

use policy::endurance::{Bucket, Params};
use policy::thresholds::Thresholds;
use serde::{Deserialize, Serialize};
use units::{Bytes, Millis, UnixMillis};

use crate::controllers::replay::Replay;

/// Charges listed in one record. If there are more, the record carries the resulting bucket instead.
const CHARGES_MAX: usize = 1024;

/// Parameters of a write budget and its bucket at the last recorded decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnduranceStart {
    /// Bytes per day, and the most that may be written at once.
    pub params: Params,
    /// The bucket.
    pub bucket: Bucket,
}

/// What was charged to a budget between two recorded decisions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Charges {
    /// Milliseconds since boot and bytes of each charge.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub charges: Vec<(Millis, Bytes)>,
    /// The bucket after all charges, if they were too many to list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket: Option<Bucket>,
}

impl EnduranceStart {
    /// Applies recorded charges to the bucket.
    pub fn apply(&mut self, charged: &Charges) {
        if let Some(bucket) = charged.bucket {
            self.bucket = bucket;
        }
        for &(at_ms, bytes) in &charged.charges {
            self.bucket.spend(&self.params, Millis(at_ms.0), bytes);
        }
    }

    /// Bytes that may be written at a time since boot.
    #[must_use]
    pub fn available(&self, now_ms: Millis) -> Bytes {
        self.bucket.available(&self.params, now_ms)
    }
}

/// What may be written to the machine's swap devices at a control period: the decision of policy `endurance`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WritesRecord {
    /// Milliseconds since the epoch.
    pub unix_ms: UnixMillis,
    /// Milliseconds since boot.
    pub now_ms: Millis,
    /// What was charged since the previous record.
    #[serde(flatten)]
    pub charged: Charges,
    /// Bytes that may be written now.
    pub available: Bytes,
}

impl Replay for EnduranceStart {
    type Record = WritesRecord;

    fn replay(&mut self, record: &WritesRecord, _: &Thresholds) -> bool {
        self.apply(&record.charged);
        self.available(record.now_ms) == record.available
    }
}

/// A write budget: of the machine, or of one job.
#[derive(Clone, Debug)]
pub struct WriteBudget {
    params: Params,
    /// The bucket at the last recorded decision.
    recorded: Bucket,
    /// The bucket now.
    bucket: Bucket,
    charges: Vec<(Millis, Bytes)>,
    overflowed: bool,
}

impl WriteBudget {
    /// A budget whose bucket is `bucket`, or full if that is unknown.
    #[must_use]
    pub fn new(params: Params, bucket: Option<Bucket>, now_ms: Millis) -> Self {
        let bucket = bucket.unwrap_or_else(|| Bucket::full(&params, now_ms));
        Self { params, recorded: bucket, bucket, charges: Vec::new(), overflowed: false }
    }

    /// Replaces the bucket by that of an earlier agent.
    pub fn restore(&mut self, bucket: Bucket) {
        *self = Self { recorded: bucket, bucket, charges: Vec::new(), overflowed: false, params: self.params };
    }

    /// Replaces the parameters. The caller then records a new start.
    pub fn configure(&mut self, params: Params) {
        if self.params != params {
            *self = Self { params, recorded: self.bucket, bucket: self.bucket, charges: Vec::new(), overflowed: false };
        }
    }

    /// The parameters.
    #[must_use]
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The bucket now, for the history.
    #[must_use]
    pub fn bucket(&self) -> Bucket {
        self.bucket
    }

    /// Bytes that may be written now.
    #[must_use]
    pub fn available(&self, now_ms: Millis) -> Bytes {
        self.bucket.available(&self.params, now_ms)
    }

    /// Charges what was written, even if it was more than available.
    pub fn charge(&mut self, now_ms: Millis, bytes: Bytes) {
        // A charge of nothing does not change what is available at any later time.
        if bytes == Bytes::ZERO {
            return;
        }
        self.bucket.spend(&self.params, now_ms, bytes);
        self.overflowed |= self.charges.len() >= CHARGES_MAX;
        if !self.overflowed {
            self.charges.push((now_ms, bytes));
        }
    }

    /// What a job's or the agent's starting record holds.
    #[must_use]
    pub fn start(&self) -> EnduranceStart {
        EnduranceStart { params: self.params, bucket: self.recorded }
    }

    /// The charges since the last call, to be recorded with a decision.
    pub fn take_charges(&mut self) -> Charges {
        let charges = std::mem::take(&mut self.charges);
        let overflowed = std::mem::take(&mut self.overflowed);
        self.recorded = self.bucket;
        if overflowed { Charges { charges: Vec::new(), bucket: Some(self.bucket) } } else { Charges { charges, bucket: None } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_charges_give_the_same_bucket() {
        let params = Params { bytes_per_day: Bytes::mib(8640), burst: Bytes::mib(10) };
        for count in [0, 1, 7, CHARGES_MAX as u64 + 3] {
            let mut budget = WriteBudget::new(params, None, Millis(0));
            let mut start = budget.start();
            for at in 0..count {
                budget.charge(Millis(at * 700), Bytes(at % 3 * 100_000));
            }
            assert_eq!(budget.start(), start, "the start is that of the last recorded decision");
            let now_ms = count * 700 + 5;
            let (available, charged) = (budget.available(Millis(now_ms)), budget.take_charges());
            let record = WritesRecord { unix_ms: UnixMillis(0), now_ms: Millis(now_ms), charged, available };
            assert!(start.replay(&record, &Thresholds::log_spaced(4).unwrap()), "{count} charges");
            assert_eq!(start.available(Millis(now_ms + 90_000)), budget.available(Millis(now_ms + 90_000)));
            assert!(!start.replay(&WritesRecord { available: Bytes(1), ..record }, &Thresholds::log_spaced(4).unwrap()));
        }
    }
}

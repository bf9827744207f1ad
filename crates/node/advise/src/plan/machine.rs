//! Sums over all jobs at the same time.

use std::collections::HashSet;

use agent::journal::SavingsRecord;

use super::account::Moment;
use super::distribution::{Distribution, Rounding};
use super::spending::Share;
use units::{Bytes, Millis, UnixMillis};

/// Sums over the jobs, one for each control period of the machine.
///
/// The agent steps all its jobs one after the other. A period of the machine therefore ends when a job appears again,
/// or half a control period after it began: one job may have ended, and another may have started.
#[derive(Clone, Debug, Default)]
pub(super) struct Together {
    pub(super) demand: Distribution,
    /// DRAM, without slow memory.
    pub(super) memory: Distribution,
    pub(super) saved: Distribution,
    pub(super) slow: Distribution,
    pub(super) potential: Distribution,
    pub(super) cold: Share,
    pub(super) first_unix_ms: Option<UnixMillis>,
    pub(super) last_unix_ms: UnixMillis,
    /// DRAM of the machine, if it was given or a journal holds it.
    pub(super) dram: Option<Bytes>,
    jobs: HashSet<String>,
    sum: Moment,
    net: Option<Bytes>,
    began_at: UnixMillis,
    control_period_ms: Millis,
}

impl Together {
    /// Adds one job's memory.
    pub(super) fn add(&mut self, job: &str, unix_ms: UnixMillis, elapsed_ms: Millis, moment: &Moment) {
        if elapsed_ms > Millis::ZERO {
            self.control_period_ms = elapsed_ms;
        }
        let apart = self.control_period_ms > Millis::ZERO && unix_ms.0.abs_diff(self.began_at.0) > self.control_period_ms.0 / 2;
        if apart || self.jobs.contains(job) {
            self.close();
        }
        if self.jobs.is_empty() {
            self.began_at = unix_ms;
            self.first_unix_ms.get_or_insert(unix_ms);
        }
        self.last_unix_ms = unix_ms;
        self.jobs.insert(job.to_owned());
        self.sum.demand += moment.demand;
        self.sum.memory += moment.memory;
        self.sum.zram += moment.zram;
        self.sum.slow += moment.slow;
        self.sum.saved += moment.saved;
        self.sum.far += moment.far;
        self.sum.file += moment.file;
        if let Some(potential) = moment.potential {
            *self.sum.potential.get_or_insert(Bytes::ZERO) += potential;
        }
    }

    /// Adds the machine's ledger of the current period, whose net saving includes what saving costs.
    pub(super) fn ledger(&mut self, record: &SavingsRecord) {
        self.dram.get_or_insert(record.dram_bytes);
        self.net = Some(Bytes(u64::try_from(record.ledger.net_bytes).unwrap_or(0)));
    }

    /// Ends the current period.
    pub(super) fn close(&mut self) {
        if self.jobs.is_empty() {
            return;
        }
        self.jobs.clear();
        let mut sum = std::mem::take(&mut self.sum);
        if let Some(dram) = self.dram {
            // DRAM that the jobs use holds no other page cache.
            sum.limit_file(dram - sum.dram());
        }
        sum.saved = sum.saved.min(self.net.take().unwrap_or(sum.saved));
        self.demand.add(sum.demand.0, Rounding::Up);
        self.memory.add(sum.dram().0, Rounding::Up);
        self.slow.add(sum.slow.0, Rounding::Down);
        self.saved.add(sum.saved.0, Rounding::Down);
        self.cold.add(sum.cold(), sum.demand);
        if let Some(potential) = sum.potential {
            self.potential.add(potential.0, Rounding::Down);
        }
    }

    /// Start of the last period: a job whose last record is older has ended.
    pub(super) fn last_began_at(&self) -> UnixMillis {
        self.began_at
    }
}

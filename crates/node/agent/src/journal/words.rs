//! Records of the journal in words, as `thermocline explain` prints them.

use super::{JobRecord, Record};
use crate::controllers::{background, cold_age, page_cache, pressure, slowdown, tiering, writeback};

impl Record {
    /// The decision in words, with the numbers that it is based on; `None` if the record is not a decision about a job. `job` is the
    /// record that the job started with, and `scan_period_seconds` the time that an age stands for.
    #[must_use]
    pub fn explain(&self, job: Option<&JobRecord>, scan_period_seconds: f64) -> Option<String> {
        Some(match self {
            Self::Period(record) => cold_age::record::Period::from(&**record).explain(scan_period_seconds),
            Self::Pressure(record) => pressure::record::Period { step: record.step, lean: record.lean }.explain(),
            Self::PageCache(record) => page_cache::record::explain(&record.step),
            Self::Background(record) => background::record::explain(&record.input, record.decision),
            Self::Slow(record) => slowdown::record::explain(record),
            Self::Writeback(record) => writeback::record::explain(&record.input, &record.step),
            Self::Tier(_) => {
                let (tier, why) = self.tier(job)?;
                format!("tier {}: {why}", tier.as_deref().unwrap_or("none"))
            }
            Self::Writes(_) | Self::Agent(_) | Self::Job(_) | Self::Savings(_) | Self::Event { .. } => return None,
        })
    }

    /// The tier that was chosen, and why; `None` if the record is no choice of a tier. `job` is the record that the job started with.
    #[must_use]
    pub fn tier(&self, job: Option<&JobRecord>) -> Option<(Option<String>, &'static str)> {
        let Self::Tier(record) = self else { return None };
        let by_operator = job.and_then(|job| job.tiering.as_ref()).is_some_and(|start| start.operator.is_some());
        Some(tiering::state::words(record.decision.choice.map(|choice| tiering::state::Placed { choice, by_operator })))
    }
}

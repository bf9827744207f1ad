//! The journal record of one `cold_age` period, its replay, and its words.

use policy::cold_age::{self, Decision, Hold, Reason};
use policy::thresholds::Thresholds;
use serde::{Deserialize, Serialize};
use units::{Age, Millis, Pages, UnixMillis};

use crate::controllers::replay::Replay;
use crate::controllers::words;
use crate::memory::{JobMemory, Outcome};

/// One control period of one job: observed, decided, done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeriodRecord {
    /// Milliseconds since the epoch.
    pub unix_ms: UnixMillis,
    /// The job's cgroup.
    pub job: String,
    /// The kernel's id of that cgroup.
    pub id: u64,
    /// What the controller observed.
    pub input: cold_age::Input,
    /// What it decided.
    pub step: cold_age::Step,
    /// What moved since the previous decision.
    pub outcome: Outcome,
    /// Where the job's memory is.
    pub memory: JobMemory,
    /// The oldest age that its tracker distinguished from older ones. Older journals have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved_to: Option<Age>,
}

/// Parameters and state of a job's `cold_age` controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// The controller's parameters.
    pub params: cold_age::Params,
    /// Its state before the next period.
    pub state: cold_age::State,
}

impl Replay for Start {
    type Record = PeriodRecord;

    fn replay(&mut self, record: &PeriodRecord, thresholds: &Thresholds) -> bool {
        let (state, step) = cold_age::step(&self.params, thresholds, &self.state, &record.input);
        self.state = state;
        step == record.step
    }
}

/// A period without its histograms, which are kept only in the journal: for every job they would be most of the agent's
/// memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// Milliseconds since the epoch.
    pub unix_ms: UnixMillis,
    /// Milliseconds since the job was first observed.
    pub job_age_ms: Millis,
    /// Milliseconds of accesses that the decision is based on.
    pub window_ms: Millis,
    /// What was decided.
    pub step: cold_age::Step,
    /// What moved since the previous decision.
    pub outcome: Outcome,
}

impl From<&PeriodRecord> for Period {
    fn from(record: &PeriodRecord) -> Self {
        Self {
            unix_ms: record.unix_ms,
            job_age_ms: record.input.job_age_ms,
            window_ms: record.input.window_ms,
            step: record.step,
            outcome: record.outcome,
        }
    }
}

impl Period {
    /// The service level indicator: promotions per minute in millionths of the working set; `None` if the working set is
    /// empty or no time has passed.
    #[must_use]
    pub fn promotion_rate_ppm(&self) -> Option<u64> {
        per_minute_ppm(self.outcome.promoted, self.step.working_set, self.outcome.elapsed_ms)
    }

    /// The same for the promotions that the stall target allowed.
    #[must_use]
    pub fn allowed_ppm(&self) -> Option<u64> {
        per_minute_ppm(self.step.promotions_max, self.step.working_set, self.window_ms)
    }

    /// The decision in words, with the numbers that it is based on.
    #[must_use]
    pub fn explain(&self, scan_period_seconds: f64) -> String {
        let page = kernel::page_size();
        let step = &self.step;
        let seconds = |age: Age| format!("{} s", f64::from(age.0) * scan_period_seconds);
        let best = step.best.map_or_else(|| "no threshold".to_owned(), seconds);
        match step.decision {
            Decision::Offload { threshold, pages, reason } => {
                let rule = match reason {
                    Reason::Percentile => "the percentile of past best thresholds",
                    Reason::ShortHistory => "the youngest one that leaves a margin for the short history",
                    Reason::Partial => "a part, because all pages of this age would be promoted more often than the objective allows",
                    Reason::Mean => "the youngest one whose promotions keep the stall target in the mean",
                    Reason::Spike => "the last period's best, above the percentile: promotions spiked",
                };
                let bytes = pages.to_bytes(page);
                format!("offload {bytes} idle for {} or longer: {rule}; this period's best was {best}", seconds(threshold))
            }
            Decision::Hold { reason } => self.explain_hold(reason, &best, &seconds),
        }
    }

    fn explain_hold(&self, reason: Hold, best: &str, seconds: &dyn Fn(Age) -> String) -> String {
        match reason {
            Hold::NoHistory => "hold: no scan has covered this job yet".to_owned(),
            Hold::WarmingUp => format!("hold: warming up, seen for {} s; the best so far is {best}", self.job_age_ms.0 / 1000),
            Hold::NoThresholdQualifies => "hold: even the oldest pages are promoted more often than the objective allows".to_owned(),
            Hold::ShortHistory => {
                format!("hold: the history is too short for a threshold that would meet the objective; this period's best was {best}")
            }
            Hold::NothingCold => {
                format!("hold: nothing resident has been idle for {}", self.step.threshold.map_or_else(String::new, seconds))
            }
            Hold::OutOfReach => {
                let threshold = self.step.threshold.map_or_else(String::new, seconds);
                format!("hold: no generation of the kernel has been idle for {threshold} yet")
            }
            Hold::PartIsFar => {
                "hold: as many pages are in far memory as the objective allows; all cold pages would be promoted too often".to_owned()
            }
            Hold::Owed => "hold: more returned than the stall target permits, and quieter scans have not made up for it yet".to_owned(),
            Hold::Vetoed(veto) => {
                let threshold = self.step.threshold.map_or_else(|| best.to_owned(), seconds);
                format!("hold: {}; the threshold would be {threshold}", words::veto(veto))
            }
        }
    }
}

/// Pages per minute in millionths of a working set; `None` if the working set is empty or no time has passed.
fn per_minute_ppm(pages: Pages, working_set: Pages, time_ms: Millis) -> Option<u64> {
    let per = u128::from(working_set.0) * u128::from(time_ms.0);
    let scaled = u128::from(pages.0) * 60_000 * 1_000_000;
    scaled.checked_div(per).map(|ppm| u64::try_from(ppm).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_promotion_rate_is_per_minute_and_working_set() {
        let step = cold_age::Step {
            decision: Decision::Hold { reason: Hold::NothingCold },
            best: None,
            threshold: None,
            working_set: Pages(0),
            promotions_max: Pages(0),
            pace: None,
        };
        let check = |working_set, promoted, elapsed_ms, expected| {
            let outcome = Outcome { elapsed_ms, promoted: Pages(promoted), ..Outcome::default() };
            let step = cold_age::Step { working_set: Pages(working_set), ..step };
            let period = Period { unix_ms: UnixMillis(0), job_age_ms: Millis(60_000), window_ms: Millis(60_000), step, outcome };
            assert_eq!(period.promotion_rate_ppm(), expected, "{working_set} {promoted} {elapsed_ms:?}");
        };
        check(1_000, 2, Millis(60_000), Some(2_000));
        check(1_000, 2, Millis(120_000), Some(1_000));
        check(1_000, 1, Millis(2_000), Some(30_000));
        check(1_000, 0, Millis(60_000), Some(0));
        check(0, 5, Millis(60_000), None);
        check(1_000, 5, Millis(0), None);
        check(1, u64::MAX, Millis(1), Some(u64::MAX));
    }
}

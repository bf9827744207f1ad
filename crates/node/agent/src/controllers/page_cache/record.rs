//! The journal record of one period of page-cache reclaim, its replay, and its words.

use policy::refaults::{self, Decision, Hold, Step};
use policy::thresholds::Thresholds;
use serde::{Deserialize, Serialize};
use units::{Pages, UnixMillis};

use crate::controllers::replay::Replay;
use crate::controllers::words;

/// One period of one job's page cache under policy `cold_age`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PageCacheRecord {
    /// Milliseconds since the epoch.
    pub unix_ms: UnixMillis,
    /// The job's cgroup.
    pub job: String,
    /// The kernel's id of that cgroup.
    pub id: u64,
    /// What was observed.
    pub input: refaults::Input,
    /// What was decided.
    pub step: Step,
    /// Page cache that was reclaimed since the previous decision.
    pub reclaimed: Pages,
}

/// Parameters and state of a job's controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageCacheStart {
    /// The controller's parameters.
    pub params: refaults::Params,
    /// Its state before the next period.
    pub state: refaults::State,
}

impl Replay for PageCacheStart {
    type Record = PageCacheRecord;

    fn replay(&mut self, record: &PageCacheRecord, _: &Thresholds) -> bool {
        let (state, step) = refaults::step(&self.params, &self.state, &record.input);
        self.state = state;
        step == record.step
    }
}

/// The decision in words, with the numbers that it is based on.
pub(crate) fn explain(step: &Step) -> String {
    let (returned, allowed) = (step.returned.0, step.allowed.0);
    match step.decision {
        Decision::Reclaim { pages } => {
            let bytes = pages.to_bytes(kernel::page_size());
            format!("page cache: reclaim {bytes}: {returned} of {allowed} permitted promotions and refaults")
        }
        Decision::Hold { reason } => match reason {
            Hold::NoHistory => "page cache: hold: no earlier period to compare with".to_owned(),
            Hold::WarmingUp => "page cache: hold: warming up".to_owned(),
            Hold::Refaults if step.returned > step.allowed => {
                format!("page cache: hold: {returned} promotions and refaults, {allowed} permitted")
            }
            Hold::Refaults => "page cache: hold: more returned than permitted in one of the last periods".to_owned(),
            Hold::ReturnsTooSoon => "page cache: hold: what was reclaimed returned too soon to be worth it".to_owned(),
            Hold::Needed => "page cache: hold: as much of it as the job needed when much returned at once".to_owned(),
            Hold::AtFloor => "page cache: hold: the job has hardly any".to_owned(),
            Hold::NothingCold => "page cache: hold: none of it is old".to_owned(),
            Hold::Awaited => "page cache: hold: what went out last may still return".to_owned(),
            Hold::Vetoed(veto) => format!("page cache: hold: {}", words::veto(veto)),
        },
    }
}

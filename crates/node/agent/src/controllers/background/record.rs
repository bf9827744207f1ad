//! The journal record of one period of the `background` controller, its replay, and its words.

use policy::background::{self, Decision, Input, Params, Reason, State};
use policy::thresholds::Thresholds;
use serde::{Deserialize, Serialize};
use units::{Bytes, UnixMillis};

use crate::controllers::replay::Replay;
use crate::controllers::words;
use crate::memory::JobMemory;

/// Memory that a compaction or a prefetch has processed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// Swap-backed memory that the kernel was asked to page out.
    pub asked: Bytes,
    /// Memory that left DRAM, by the kernel's counters.
    pub offloaded: Bytes,
    /// Addresses of file mappings whose pages were deactivated.
    pub deactivated: Bytes,
    /// Addresses whose pages were prefetched.
    pub prefetched: Bytes,
}

impl std::ops::AddAssign for Done {
    fn add_assign(&mut self, other: Self) {
        self.asked += other.asked;
        self.offloaded += other.offloaded;
        self.deactivated += other.deactivated;
        self.prefetched += other.prefetched;
    }
}

/// One period of one job that may go to the background: observed, decided, done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BackgroundRecord {
    /// Milliseconds since the epoch.
    pub unix_ms: UnixMillis,
    /// The job's cgroup.
    pub job: String,
    /// The kernel's id of that cgroup.
    pub id: u64,
    /// What the controller observed.
    pub input: Input,
    /// What it decided.
    pub decision: Decision,
    /// What was done since the previous decision.
    pub done: Done,
    /// Where the job's memory is.
    pub memory: JobMemory,
}

/// Parameters and state of a job's background controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackgroundStart {
    /// The controller's parameters.
    pub params: Params,
    /// Its state before the next period.
    pub state: State,
}

impl Replay for BackgroundStart {
    type Record = BackgroundRecord;

    fn replay(&mut self, record: &BackgroundRecord, _: &Thresholds) -> bool {
        let (state, decision) = background::step(&self.params, &self.state, &record.input);
        self.state = state;
        decision == record.decision
    }
}

/// A decision in words, with the numbers that it is based on.
#[must_use]
pub fn explain(input: &Input, decision: Decision) -> String {
    match decision {
        Decision::Compact => "compact: it has settled in the background".to_owned(),
        Decision::Prefetch => "prefetch: it is back in the foreground".to_owned(),
        Decision::Nothing { reason } => match reason {
            Reason::Foreground => "not compacted: it is in the foreground".to_owned(),
            Reason::Settling => "not compacted yet: it has just gone to the background".to_owned(),
            Reason::MachineUnderPressure => format!(
                "compaction delayed: tasks of the machine waited {} of the time for memory, and {:.1}% of it is available",
                input.machine_stall,
                input.available.as_f64() * 100.0
            ),
            Reason::Done => "in the background, compacted once".to_owned(),
            Reason::Vetoed(veto) => format!("not compacted: {}", words::veto(veto)),
        },
    }
}

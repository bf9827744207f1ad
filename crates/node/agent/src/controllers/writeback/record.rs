//! The journal record of one period of the `writeback` controller, its replay, and its words.

use std::time::Duration;

use policy::thresholds::Thresholds;
use policy::writeback::{self, Decision, Hold, Input, Obstacle, Params, State, Step};
use serde::{Deserialize, Serialize};
use units::{Bytes, UnixMillis};

use crate::controllers::replay::Replay;
use crate::controllers::words;

/// One period of what goes on from zswap to the device, of one job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WritebackRecord {
    /// Milliseconds since the epoch.
    pub unix_ms: UnixMillis,
    /// The job's cgroup.
    pub job: String,
    /// The kernel's id of that cgroup.
    pub id: u64,
    /// What was observed.
    pub input: Input,
    /// What was decided.
    pub step: Step,
    /// Memory that was moved since the previous decision.
    pub written: Bytes,
    /// Far memory that is watched, and what of it the agent has moved to the device.
    pub watched: [Bytes; 2],
    /// Whether the job has more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
}

/// Parameters and state of a job's controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WritebackStart {
    /// The controller's parameters.
    pub params: Params,
    /// Its state before the next period.
    pub state: State,
}

impl Replay for WritebackStart {
    type Record = WritebackRecord;

    fn replay(&mut self, record: &WritebackRecord, _: &Thresholds) -> bool {
        let (state, step) = writeback::step(&self.params, &self.state, &record.input);
        self.state = state;
        step == record.step
    }
}

/// The decision in words, with the numbers that it is based on.
pub(crate) fn explain(input: &Input, step: &Step) -> String {
    let seconds = |ms: Option<units::Millis>| Duration::from_millis(ms.unwrap_or_default().0).as_secs();
    let (after, oldest) = (seconds(step.after_ms), seconds(input.oldest_ms));
    let why = match step.decision {
        Decision::Write { pages } => {
            return format!("zswap to device: {} that was far for {after} s or longer", pages.to_bytes(kernel::page_size()));
        }
        Decision::Hold { reason } => match reason {
            Hold::NoThreshold => "nothing is in zswap, or no age was a threshold yet".to_owned(),
            Hold::NothingOld => format!("the oldest has been far for {oldest} s, the threshold is {after} s"),
            Hold::StallTarget => "what is there may cost as much as the stall target permits".to_owned(),
            Hold::WritesSpent => "the write budget is spent for now".to_owned(),
            Hold::OthersWritten => "the kernel wrote other memory of the job in its place".to_owned(),
            Hold::Obstacle(obstacle) => obstacle_in_words(obstacle).to_owned(),
            Hold::Vetoed(veto) => words::veto(veto).to_owned(),
        },
    };
    format!("zswap to device: hold: {why}")
}

fn obstacle_in_words(obstacle: Obstacle) -> &'static str {
    match obstacle {
        Obstacle::NoZswap => "zswap is off",
        Obstacle::NoCounters => {
            "memory.stat or /proc/vmstat has no zswpwb or zswpout, so that other memory which the kernel writes would not be seen; boot \
             Linux 6.8 or newer, or set writeback.enabled = false"
        }
        Obstacle::NoDevice => "there is no swap device to write to, or a swap area is in memory",
        Obstacle::NoWriteback => "the job's tier or memory.zswap.writeback keeps its memory in zswap",
        Obstacle::OperatorsLimit => "memory.zswap.max of the job is set by another process",
        Obstacle::ShortOfMemory => "the machine is short of memory, or the job is near its memory limit",
    }
}

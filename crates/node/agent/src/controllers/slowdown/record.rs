//! The journal record of one `slowdown` period, its replay, and its words.

use policy::slowdown::{self, Hold};
use policy::thresholds::Thresholds;
use serde::{Deserialize, Serialize};
use units::{AccessRate, Bytes, RatioPpm, UnixMillis};

use crate::controllers::replay::{Replay, Stateless};
use crate::controllers::words;

/// What became of the blocks that were to be moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// Bytes placed in the slow node.
    pub placed: Bytes,
    /// Bytes promoted from it.
    pub home: Bytes,
    /// Bytes that the kernel did not move because the target node is full.
    pub no_room: Bytes,
    /// Bytes that it did not move because they are locked, shared with other processes, or in use by a device.
    pub pinned: Bytes,
    /// Bytes whose pages or process no longer exist.
    pub gone: Bytes,
}

impl std::ops::AddAssign<&Self> for Moved {
    fn add_assign(&mut self, other: &Self) {
        self.placed += other.placed;
        self.home += other.home;
        self.no_room += other.no_room;
        self.pinned += other.pinned;
        self.gone += other.gone;
    }
}

/// One period of one job whose memory may be placed in a slow node: observed, decided, done. The controller has no state:
/// each record is complete in itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlowRecord {
    /// Milliseconds since the epoch.
    pub unix_ms: UnixMillis,
    /// The job's cgroup.
    pub job: String,
    /// The kernel's id of that cgroup.
    pub id: u64,
    /// The controller's parameters.
    pub params: slowdown::Params,
    /// What the controller observed.
    pub input: slowdown::Input,
    /// What it decided.
    pub step: slowdown::Step,
    /// What was moved since the previous decision.
    pub moved: Moved,
    /// The job's memory that can be moved.
    pub memory: Bytes,
    /// Of that, what was in the slow node before the decision.
    pub slow: Bytes,
    /// The pages for which a set accessed bit of a huge page stands ([`policy::slowdown::bursts`]).
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub pages_per_bit: u32,
}

/// What journals before bursts were known mean.
const fn one() -> u32 {
    1
}

const fn is_one(count: &u32) -> bool {
    *count == one()
}

impl Replay for Stateless<SlowRecord> {
    type Record = SlowRecord;

    fn replay(&mut self, record: &SlowRecord, _: &Thresholds) -> bool {
        slowdown::step(&record.params, &record.input) == record.step
    }
}

/// The decision in words, with the numbers that it is based on.
#[must_use]
pub fn explain(record: &SlowRecord) -> String {
    let SlowRecord { step, slow, memory, moved, .. } = record;
    let rate = |rate: AccessRate| format!("{:.0}", rate.as_f64());
    let share = RatioPpm::of(slow.0, memory.0).unwrap_or_default();
    let mut text = format!(
        "{slow} of {memory} in slow memory ({share}), estimated accesses per second: {}, upper bound {}, budget {}",
        rate(step.rate),
        rate(step.upper),
        rate(step.budget)
    );
    if record.pages_per_bit > 1 {
        text += &format!("; a set accessed bit of a huge page stands for {} pages", record.pages_per_bit);
    }
    if step.home > 0 {
        text += &format!("; {} blocks to promote", step.home);
    }
    match step.hold {
        Some(hold) => text += &format!("; no more placed: {}", hold_words(hold)),
        None => text += &format!("; {} more blocks to place", step.place),
    }
    for (bytes, why) in [
        (moved.no_room, "could not be moved because the target node is full"),
        (moved.pinned, "could not be moved: locked, shared or in use by a device"),
    ] {
        if bytes > Bytes::ZERO {
            text += &format!("; {bytes} {why}");
        }
    }
    text
}

fn hold_words(hold: Hold) -> &'static str {
    match hold {
        Hold::NoBudget => "no slowdown is tolerated",
        Hold::NothingSampled => "nothing was sampled",
        Hold::NothingCold => "the coldest sampled block is accessed too often",
        Hold::BudgetSpent => "the placed memory uses up the budget",
        Hold::NoRoom => "the slow node is full",
        Hold::NotTrackable => "the tracker can sample no more memory in the slow node",
        Hold::StepSpent => "the period's limit of moved memory is reached",
        Hold::Vetoed(veto) => words::veto(veto),
    }
}

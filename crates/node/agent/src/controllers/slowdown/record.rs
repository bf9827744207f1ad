//! The journal record of one `slowdown` period, its replay, and its words.

use policy::slowdown::bounds::{Bound, Excess};
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
    /// Whether the latency in the parameters was measured, and not that of the operator or of firmware.
    #[serde(default, skip_serializing_if = "is_no")]
    pub latency_measured: bool,
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

fn is_no(measured: &bool) -> bool {
    !measured
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
    text += &format!(" at {} ns an access", record.params.latency_ns);
    if record.latency_measured {
        text += ", as measured";
    }
    if record.pages_per_bit > 1 {
        text += &format!("; a set accessed bit of a huge page stands for {} pages", record.pages_per_bit);
    }
    if step.home > 0 {
        text += &format!("; {} blocks to promote", step.home);
    }
    if let Some(Excess { bound, bytes, blocks }) = step.excess {
        text += &format!(", {blocks} of them because it has {bytes} more in slow memory than {} permits", bound_words(bound));
    }
    if let Some((most, bound)) = slowdown::allowance(&record.params, &record.input) {
        text += &format!("; may have {most} there by {}", bound_words(bound));
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

fn bound_words(bound: Bound) -> &'static str {
    match bound {
        Bound::FastMin => "its floor of fast memory",
        Bound::SlowMax => "its upper bound (slow_max)",
        Bound::Share => "its share of the slow node, for which jobs compete",
    }
}

fn hold_words(hold: Hold) -> &'static str {
    match hold {
        Hold::NoBudget => "no slowdown is tolerated",
        Hold::NothingSampled => "nothing was sampled",
        Hold::NothingCold => "the coldest sampled block is accessed too often",
        Hold::BudgetSpent => "the placed memory uses up the budget",
        Hold::Bounded(Bound::FastMin) => "its floor of fast memory is reached",
        Hold::Bounded(Bound::SlowMax) => "its upper bound of slow memory (slow_max) is reached",
        Hold::Bounded(Bound::Share) => "its share of the slow node is used up, and other jobs can use the rest",
        Hold::NoRoom => "the slow node is full",
        Hold::NotTrackable => "the tracker can sample no more memory in the slow node",
        Hold::StepSpent => "the period's limit of moved memory is reached",
        Hold::Vetoed(veto) => words::veto(veto),
    }
}

#[cfg(test)]
mod tests {
    use policy::slowdown::bounds::Bounds;
    use policy::slowdown::rate::Estimate;

    use super::*;

    /// The words of a job of 100 MiB, cold but for nothing, with 40 MiB in the slow node.
    fn check(bounds: Bounds, share: Option<Bytes>, expected: &[&str]) {
        let block = |_| (Bytes::mib(2), Estimate { mean: AccessRate(0), upper: Some(AccessRate(1)) });
        let params = slowdown::Params { slowdown: RatioPpm(30_000), latency_ns: 1_000, sample: RatioPpm(50_000), bounds };
        let most = Bytes::gib(1);
        let input = slowdown::Input {
            slow: (0..20).map(block).collect(),
            sampled: (0..5).map(block).collect(),
            room: most,
            trackable: 100,
            step_max: most,
            memory: Bytes::mib(100),
            share,
            ..slowdown::Input::default()
        };
        let (unix_ms, job, moved) = (UnixMillis(0), "/a".to_owned(), Moved::default());
        let step = slowdown::step(&params, &input);
        let (memory, slow) = (input.memory, Bytes::mib(40));
        let record = SlowRecord { unix_ms, job, id: 1, params, input, step, moved, memory, slow, latency_measured: true, pages_per_bit: 1 };
        let text = explain(&record);
        for words in expected {
            assert!(text.contains(words), "{words} in {text}");
        }
        let read: SlowRecord = serde_json::from_str(&serde_json::to_string(&record).unwrap()).unwrap();
        assert_eq!(read, record);
        assert!(Stateless::<SlowRecord>::new().replay(&read, &Thresholds::log_spaced(32).unwrap()));
    }

    #[test]
    fn bounds_are_explained_and_replayed() {
        check(
            Bounds::default(),
            None,
            &["40.0 MiB of 100.0 MiB in slow memory", "budget 30000 at 1000 ns an access, as measured", "5 more blocks to place"],
        );
        let floor = Bounds { fast_min: Bytes::mib(60), ..Bounds::default() };
        check(floor, None, &["may have 40.0 MiB there by its floor", "no more placed: its floor of fast memory is reached"]);
        let most = Bounds { slow_max: Some(Bytes::mib(30)), ..Bounds::default() };
        let excess = "5 blocks to promote, 5 of them because it has 10.0 MiB more in slow memory than its upper bound (slow_max) permits";
        check(most, None, &[excess, "no more placed: its upper bound of slow memory (slow_max) is reached"]);
        check(Bounds::default(), Some(Bytes::mib(40)), &["no more placed: its share of the slow node is used up"]);
    }
}

//! The whole decision where a job's swap-backed memory goes: whether it compresses, what may be written for it, and the tier.
//! Pure: the journal records the input, and a replay repeats it.

use policy::incompressible::{self, Sample, Stored, Verdict};
use policy::thresholds::Thresholds;
use policy::tiering::{self, Choice, Offer, Tier, Why};
use policy::veto::Veto;
use serde::{Deserialize, Serialize};
use units::{Bytes, RatioPpm};

use super::endurance::{Charges, EnduranceStart};
use crate::controllers::replay::Replay;

/// Nothing is written to a device for less than this: the kernel reclaims in batches.
const WRITE_MIN: Bytes = Bytes::mib(1);

/// The compressed share of memory that does not compress.
const INCOMPRESSIBLE: RatioPpm = RatioPpm(1_000_000);

/// Parameters and state of a job's tiering controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TieringStart {
    /// The operator's tier; `None` if policy `tiering` chooses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<Tier>,
    /// Parameters of policy `tiering`.
    pub params: tiering::Params,
    /// Parameters of policy `incompressible`.
    pub incompressible: incompressible::Params,
    /// State of policy `incompressible`.
    pub state: incompressible::State,
    /// The job's write budget.
    pub writes: EnduranceStart,
    /// Compressed share of the job's cold pages, by the last sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compressed: Option<RatioPpm>,
    /// The tier that the job has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<Tier>,
}

/// A test compression of a job's cold pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sampled {
    /// Pages tried, and those that did not shrink.
    pub sample: Sample,
    /// Compressed share of the pages.
    pub ratio: RatioPpm,
}

/// What one decision is based on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// Milliseconds since boot.
    pub now_ms: u64,
    /// Bytes per page.
    pub page_bytes: u64,
    /// Whether the machine has far memory with free space.
    pub far_memory: bool,
    /// Whether only zswap's pool is full.
    pub pool_full: bool,
    /// What zswap stored of the job's last offloads.
    #[serde(default, skip_serializing_if = "is_default")]
    pub stored: Stored,
    /// The sample taken at this decision, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampled: Option<Sampled>,
    /// What was charged to the job's write budget since the previous decision.
    #[serde(flatten)]
    pub charged: Charges,
    /// Bytes that may be written to the machine's swap devices.
    pub machine_writable: Bytes,
    /// zswap is enabled.
    pub zswap: bool,
    /// There is a working swap device that is no compressed RAM disk.
    pub swap: bool,
    /// The kernel can write back from zswap to it, by cgroup.
    pub writeback: bool,
    /// Measured latency of a page from the device, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swap_latency_us: Option<u32>,
    /// Measured latency of a page from zswap, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zswap_latency_us: Option<u32>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// What was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// Whether the job's memory compresses.
    pub verdict: Verdict,
    /// Bytes that may be written for the job.
    pub writable: Bytes,
    /// The tier, or why there is none; `None` if the machine has no far memory.
    pub choice: Option<Choice>,
    /// Why no swap-backed memory may leave DRAM, if none may.
    pub veto: Option<Veto>,
}

/// The journal record of one decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierRecord {
    /// Milliseconds since the epoch.
    pub unix_ms: u64,
    /// The job's cgroup.
    pub job: String,
    /// The kernel's id of that cgroup.
    pub id: u64,
    /// What the decision is based on.
    pub input: Input,
    /// What was decided.
    pub decision: Decision,
}

impl Replay for TieringStart {
    type Record = TierRecord;

    fn replay(&mut self, record: &TierRecord, _: &Thresholds) -> bool {
        step(self, &record.input) == record.decision
    }
}

/// Whether a sample of the job's cold pages is due by policy `incompressible`.
#[must_use]
pub fn sample_due(start: &TieringStart, now_ms: u64, page_bytes: u64, stored: Stored) -> bool {
    incompressible::step(&start.incompressible, start.state, now_ms, page_bytes, stored, None).1 == Verdict::SampleDue
}

/// Decides, and keeps the resulting state in `start`.
pub fn step(start: &mut TieringStart, input: &Input) -> Decision {
    start.writes.apply(&input.charged);
    let writable = start.writes.available(input.now_ms);
    // A full pool concerns only what would stay in it: other memory goes to a device, or zswap writes back to one.
    if !input.far_memory && !input.pool_full {
        start.tier = None;
        let verdict = if start.state == incompressible::State::default() { Verdict::Compressible } else { Verdict::Incompressible };
        return Decision { verdict, writable, choice: None, veto: Some(Veto::NoFarMemory) };
    }
    let verdict = judge(start, input);
    let compressed = if verdict == Verdict::Compressible { start.compressed } else { Some(INCOMPRESSIBLE) };
    let offer = Offer {
        zswap: input.zswap,
        swap: input.swap,
        writeback: input.writeback,
        swap_latency_us: input.swap_latency_us,
        zswap_latency_us: input.zswap_latency_us,
        writes_left: writable.min(input.machine_writable) >= WRITE_MIN,
    };
    let choice = match start.operator {
        Some(tier) => by_operator(tier, &offer),
        None => tiering::choose(&start.params, &tiering::Input { compressed, offer, previous: start.tier }),
    };
    start.tier = tier_of(choice);
    Decision { verdict, writable, choice: Some(choice), veto: veto(choice, input.pool_full) }
}

/// Whether the job's memory compresses, by the kernel's counters and a sample, if there is one.
fn judge(start: &mut TieringStart, input: &Input) -> Verdict {
    let policy = |state, sample| incompressible::step(&start.incompressible, state, input.now_ms, input.page_bytes, input.stored, sample);
    let (mut state, mut verdict) = policy(start.state, None);
    if let Some(sampled) = input.sampled {
        (state, verdict) = policy(state, Some(sampled.sample));
    }
    start.state = state;
    if let Some(sampled) = input.sampled {
        start.compressed = Some(sampled.ratio);
    }
    verdict
}

/// The tier of a choice, if it has one.
#[must_use]
pub fn tier_of(choice: Choice) -> Option<Tier> {
    match choice {
        Choice::Use { tier, .. } => Some(tier),
        Choice::Hold { .. } => None,
    }
}

fn veto(choice: Choice, pool_full: bool) -> Option<Veto> {
    match choice {
        Choice::Use { tier, .. } => (pool_full && tier == Tier::Zswap).then_some(Veto::NoFarMemory),
        Choice::Hold { why: Why::DoesNotCompress } => Some(Veto::Incompressible),
        Choice::Hold { why: Why::WritesSpent } => Some(Veto::WritesSpent),
        Choice::Hold { .. } => Some(Veto::NoFarMemory),
    }
}

/// The operator's tier, as far as the machine has it and may write to it.
fn by_operator(tier: Tier, offer: &Offer) -> Choice {
    let has = match tier {
        Tier::Zswap | Tier::Both => offer.zswap,
        Tier::Swap => offer.swap,
    };
    match tier {
        _ if !has => Choice::Hold { why: Why::NoTier },
        Tier::Swap if !offer.writes_left => Choice::Hold { why: Why::WritesSpent },
        // Warm memory is still compressed; nothing more is written.
        Tier::Both if !offer.swap => Choice::Use { tier: Tier::Zswap, why: Why::NoDevice },
        Tier::Both if !offer.writes_left => Choice::Use { tier: Tier::Zswap, why: Why::WritesSpent },
        Tier::Both if !offer.writeback => Choice::Use { tier, why: Why::NoShrinker },
        tier => Choice::Use { tier, why: Why::OnlyTier },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operators_tier_is_used_as_far_as_the_machine_has_it() {
        let check = |tier, [zswap, swap, writeback, writes_left]: [bool; 4], expected: Choice| {
            let offer = Offer { zswap, swap, writeback, swap_latency_us: None, zswap_latency_us: None, writes_left };
            assert_eq!(by_operator(tier, &offer), expected, "{tier:?} {offer:?}");
        };
        let keep = |tier, why| Choice::Use { tier, why };
        let hold = |why| Choice::Hold { why };
        check(Tier::Zswap, [true; 4], keep(Tier::Zswap, Why::OnlyTier));
        check(Tier::Zswap, [true, false, false, false], keep(Tier::Zswap, Why::OnlyTier));
        check(Tier::Zswap, [false, true, true, true], hold(Why::NoTier));
        check(Tier::Swap, [false, true, false, true], keep(Tier::Swap, Why::OnlyTier));
        check(Tier::Swap, [true, false, false, true], hold(Why::NoTier));
        check(Tier::Swap, [true, true, true, false], hold(Why::WritesSpent));
        check(Tier::Both, [true; 4], keep(Tier::Both, Why::OnlyTier));
        check(Tier::Both, [true, true, false, true], keep(Tier::Both, Why::NoShrinker));
        check(Tier::Both, [true, false, false, true], keep(Tier::Zswap, Why::NoDevice));
        check(Tier::Both, [true, true, true, false], keep(Tier::Zswap, Why::WritesSpent));
        check(Tier::Both, [false, true, false, true], hold(Why::NoTier));
    }
}

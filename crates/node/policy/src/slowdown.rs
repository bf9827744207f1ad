//! Slowdown-bounded placement: the least accessed blocks are placed in slow memory, up to the accesses that a job's permitted slowdown
//! allows (Thermostat section 3).
//!
//! # Problem
//! Accesses to slow memory are loads and stores: they cause neither page faults nor PSI stalls, so the cost of a placement must be derived
//! from the access rate of its memory. `A` accesses per second of latency `t_s` take a share `A t_s` of the time; a permitted slowdown `x`
//! therefore allows `x / t_s` accesses per second (Thermostat section 3.4): the *budget*. At 3 % and 1 us it is 30,000.
//!
//! # Algorithm
//! In each period, with the upper 95 % bound of what is in the slow node *together* ([`sum`]), so that uncertainty costs savings and not
//! slowdown:
//! 1. *Promote.* The most accessed blocks of the slow node are moved back until the rest fit the budget (Thermostat section 3.5). A block
//!    whose rate cannot be determined counts as more than any budget.
//! 2. *Place.* The coldest sampled blocks are moved to the slow node while their own bound is within the sampled share of the budget
//!    (Thermostat section 3.4), that of all blocks of the slow node is within the budget, and the slow node has free space.
//!
//! Placement moves what promotion leaves of `step_max`. Promotion has no limit of its own: hot memory in the slow node slows the job down
//! until it is moved. The order is strict: if the next block does not fit, no later one replaces it, so that a decision is two counts and
//! a replay needs no addresses.
//!
//! A veto holds placement, never promotion: memory that is too hot for the slow node slows the job down.
//!
//! # Properties
//! Each is a test of this name: the bound of what is slow never exceeds the budget; a block that turns hot is promoted within one period;
//! the order of blocks does not matter; nothing of a uniformly hot job is placed; a budget of zero promotes everything; a veto never holds
//! promotion; any input is answered; and, in a closed loop with a simulated job, the true rate stays within the budget.

use serde::{Deserialize, Serialize};

use crate::veto::Veto;
use units::{AccessRate, Bytes, RatioPpm};

mod binomial;
pub mod bursts;
pub mod rate;
mod sum;

use rate::Estimate;
use sum::Sum;

/// Parameters, including the latency of the slow node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Params {
    /// x: the permitted slowdown, as a share of time (Thermostat section 3.4: 3 %).
    pub slowdown: RatioPpm,
    /// t_s: the latency of one access to the slow node, in nanoseconds. Zero means unknown: nothing is placed.
    pub latency_ns: u64,
    /// f: the share of the job's blocks that is sampled in each period (Thermostat section 3.2: 5 %).
    pub sample: RatioPpm,
}

/// Returns the budget: accesses per second to slow memory that the permitted slowdown allows, `x / t_s`; zero if the latency is unknown.
#[must_use]
pub fn budget(params: &Params) -> AccessRate {
    // Millionths divided by nanoseconds are thousands per second, or 10^9 millionths per second.
    let micro = u128::from(params.slowdown.0) * 1_000_000_000;
    AccessRate(micro.checked_div(u128::from(params.latency_ns)).map_or(0, |rate| u64::try_from(rate).unwrap_or(u64::MAX)))
}

/// A number of equal blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The size of each.
    pub bytes: Bytes,
    /// The mean rate of each.
    pub mean: AccessRate,
    /// The upper 95 % bound of the rate of each; `None` if it cannot be determined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upper: Option<AccessRate>,
    /// The number of blocks.
    pub blocks: u32,
}

impl Run {
    fn estimate(&self) -> Estimate {
        Estimate { mean: self.mean, upper: self.upper }
    }

    fn rank(&self) -> Rank {
        rank(self.bytes, &self.estimate())
    }
}

/// The position of a block in the order from coldest to hottest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// A rate without an upper bound ranks above all others.
    unbounded: bool,
    upper: Option<AccessRate>,
    mean: AccessRate,
    /// Of two equally hot blocks the larger saves more in slow memory, so it ranks as the colder.
    bytes: std::cmp::Reverse<Bytes>,
}

/// Returns the rank by which [`Step`] counts blocks. Blocks of equal rank are interchangeable.
#[must_use]
pub fn rank(bytes: Bytes, estimate: &Estimate) -> Rank {
    Rank { unbounded: estimate.upper.is_none(), upper: estimate.upper, mean: estimate.mean, bytes: std::cmp::Reverse(bytes) }
}

/// Blocks from coldest to hottest, with equal blocks as one run. The journal contains this form.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<Run>", into = "Vec<Run>")]
pub struct Runs(Vec<Run>);

impl Runs {
    /// Returns the runs, coldest first.
    #[must_use]
    pub fn as_slice(&self) -> &[Run] {
        &self.0
    }

    /// Returns the number of blocks.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.0.iter().map(|run| u64::from(run.blocks)).sum()
    }

    /// Returns their total size.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.0.iter().map(|run| Bytes(run.bytes.0.saturating_mul(run.blocks.into()))).sum()
    }

    /// Returns the sum of their mean rates.
    #[must_use]
    pub fn mean(&self) -> AccessRate {
        self.0.iter().map(|run| run.mean.saturating_mul(run.blocks.into())).sum()
    }
}

impl From<Vec<Run>> for Runs {
    /// Accepts any order; runs without blocks are dropped.
    fn from(mut runs: Vec<Run>) -> Self {
        runs.retain(|run| run.blocks > 0);
        runs.sort_unstable_by_key(Run::rank);
        // If a count would overflow, the rest remains a separate run.
        runs.dedup_by(|next, kept| {
            let both = (next.rank() == kept.rank()).then(|| kept.blocks.checked_add(next.blocks)).flatten();
            kept.blocks = both.unwrap_or(kept.blocks);
            both.is_some()
        });
        Self(runs)
    }
}

impl From<Runs> for Vec<Run> {
    fn from(runs: Runs) -> Self {
        runs.0
    }
}

impl FromIterator<(Bytes, Estimate)> for Runs {
    fn from_iter<I: IntoIterator<Item = (Bytes, Estimate)>>(blocks: I) -> Self {
        let run = |(bytes, estimate): (Bytes, Estimate)| Run { bytes, mean: estimate.mean, upper: estimate.upper, blocks: 1 };
        Self::from(blocks.into_iter().map(run).collect::<Vec<_>>())
    }
}

/// Observation of one job at the end of a period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// The job's blocks in the slow node, all of them.
    pub slow: Runs,
    /// The blocks sampled in this period, not in the slow node.
    pub sampled: Runs,
    /// Free space of the slow node.
    pub room: Bytes,
    /// How many more blocks the tracker can sample in the slow node.
    #[serde(default = "any_number", skip_serializing_if = "is_any_number")]
    pub trackable: u32,
    /// How much may be moved in this period, in both directions together. It never limits promotion.
    pub step_max: Bytes,
    /// The veto in effect; `None` without one.
    pub veto: Option<Veto>,
}

/// What journals before there was a limit mean.
const fn any_number() -> u32 {
    u32::MAX
}

const fn is_any_number(number: &u32) -> bool {
    *number == any_number()
}

/// The moves, with the values that they are based on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The budget of accesses per second to slow memory.
    pub budget: AccessRate,
    /// Mean accesses per second to the blocks that were in the slow node in this period.
    pub rate: AccessRate,
    /// Upper bound of the accesses to the blocks that remain in the slow node and those that are placed, together.
    pub upper: AccessRate,
    /// Number of the hottest slow blocks to promote, by [`rank`].
    pub home: u32,
    /// Number of the coldest sampled blocks to place in the slow node, by [`rank`].
    pub place: u32,
    /// Why no block is placed; `None` if one is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
}

/// Why nothing is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// The permitted slowdown is zero, or the latency of the slow node is unknown.
    NoBudget,
    /// No block was sampled in this period.
    NothingSampled,
    /// The coldest sampled block exceeds the sampled share of the budget, or its rate cannot be determined.
    NothingCold,
    /// The blocks in the slow node leave too little of the budget for the coldest sampled block.
    BudgetSpent,
    /// The slow node has no free space for it.
    NoRoom,
    /// The tracker could not sample it in the slow node.
    NotTrackable,
    /// `step_max` is used up, or is less than one block. Earlier versions limited promotion by it, too.
    #[serde(alias = "home_cut_short")]
    StepSpent,
    /// A veto is in effect.
    Vetoed(Veto),
}

/// Decides for one period. Deterministic.
#[must_use]
pub fn step(params: &Params, input: &Input) -> Step {
    let budget = budget(params);
    let home = promote(&input.slow, budget);
    let answer = |place, left: Sum, hold| Step { budget, rate: input.slow.mean(), upper: left.upper(), home: home.blocks, place, hold };
    if let Some(reason) = hold(input, budget) {
        return answer(0, home.left, Some(reason));
    }
    let limits = Limits {
        share: AccessRate(params.sample.share_of(budget.0)).min(budget),
        budget,
        slow: home.left,
        room: input.room,
        trackable: input.trackable,
        step: input.step_max - home.bytes,
    };
    match limits.place(&input.sampled) {
        Ok((place, placed)) => answer(place, home.left.and(placed), None),
        Err(reason) => answer(0, home.left, Some(reason)),
    }
}

/// Returns the reason not to place any sampled block, the most fundamental first.
fn hold(input: &Input, budget: AccessRate) -> Option<Hold> {
    if let Some(veto @ (Veto::ObserveOnly | Veto::OtherPolicy)) = input.veto {
        return Some(Hold::Vetoed(veto));
    }
    if budget == AccessRate::ZERO {
        return Some(Hold::NoBudget);
    }
    if let Some(veto) = input.veto {
        return Some(Hold::Vetoed(veto));
    }
    (input.sampled.blocks() == 0).then_some(Hold::NothingSampled)
}

/// Promotions to the fast node.
struct Promotion {
    blocks: u32,
    bytes: Bytes,
    /// The accesses to the blocks that remain.
    left: Sum,
}

/// Selects the hottest blocks: all but the coldest that fit the budget together.
fn promote(slow: &Runs, budget: AccessRate) -> Promotion {
    let mut left = Sum::default();
    let mut home = Promotion { blocks: 0, bytes: Bytes::ZERO, left };
    for run in &slow.0 {
        // With a zero budget the slow node may not be used, not even by blocks without observed accesses.
        let over = home.blocks > 0 || budget == AccessRate::ZERO;
        let stay = if over { 0 } else { left.fitting(run.estimate(), run.blocks, budget) };
        left = left.with(run.estimate(), stay);
        home.blocks = home.blocks.saturating_add(run.blocks - stay);
        home.bytes += Bytes(run.bytes.0.saturating_mul((run.blocks - stay).into()));
    }
    Promotion { left, ..home }
}

/// Limits of placement.
struct Limits {
    /// The sampled share of the budget.
    share: AccessRate,
    /// The whole budget.
    budget: AccessRate,
    /// The accesses to the blocks that remain in the slow node.
    slow: Sum,
    /// Free space of the slow node.
    room: Bytes,
    /// How many more blocks can be sampled there.
    trackable: u32,
    /// How much may still be moved.
    step: Bytes,
}

impl Limits {
    /// Returns the number of the coldest blocks within all limits and the accesses to them, or why there is none.
    fn place(&self, sampled: &Runs) -> Result<(u32, Sum), Hold> {
        let (mut place, mut placed, mut bytes) = (0u32, Sum::default(), Bytes::ZERO);
        let mut first_to_stop = Hold::NothingSampled;
        for run in &sampled.0 {
            let (fit, reason) = self.fit(run, place, placed, bytes);
            place += fit;
            placed = placed.with(run.estimate(), fit);
            bytes += Bytes(run.bytes.0.saturating_mul(fit.into()));
            if fit < run.blocks {
                first_to_stop = reason;
                break;
            }
        }
        if place == 0 { Err(first_to_stop) } else { Ok((place, placed)) }
    }

    /// Returns how many blocks of a run fit in addition to those placed, and the limit that stops the next one.
    fn fit(&self, run: &Run, place: u32, placed: Sum, bytes: Bytes) -> (u32, Hold) {
        let times = |left: Bytes| u32::try_from(left.0.checked_div(run.bytes.0).unwrap_or(u64::MAX)).unwrap_or(u32::MAX);
        let fits = [
            (placed.fitting(run.estimate(), run.blocks, self.share), Hold::NothingCold),
            (self.slow.and(placed).fitting(run.estimate(), run.blocks, self.budget), Hold::BudgetSpent),
            (times(self.room - bytes), Hold::NoRoom),
            (self.trackable - place, Hold::NotTrackable),
            (times(self.step - bytes), Hold::StepSpent),
        ];
        let (fit, reason) = fits.into_iter().min_by_key(|&(fit, _)| fit).unwrap_or((0, Hold::NothingCold));
        (fit.min(run.blocks), reason)
    }
}

#[cfg(test)]
mod tests;

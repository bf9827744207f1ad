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
//! Between the two, what the job has in the slow node is brought within its [`bounds`]: a floor of fast memory, an upper bound of slow
//! memory, and its share where several jobs compete for the node ([`division`]).
//!
//! Placement moves what promotion leaves of `step_max`. Promotion of hot memory has no limit of its own: in the slow node it slows the job
//! down until it is moved. The order is strict: if the next block does not fit, no later one replaces it, so that a decision is two counts and
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
pub mod bounds;
pub mod bursts;
pub mod division;
pub mod latency;
pub mod rate;
mod runs;
mod sum;

use bounds::{Allowance, Bound, Bounds, Excess};
use division::Claim;
pub use runs::{Rank, Run, Runs, rank};
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
    /// What the operator permits the job to have in the slow node.
    #[serde(default, skip_serializing_if = "Bounds::is_none")]
    pub bounds: Bounds,
}

/// Returns the budget: accesses per second to slow memory that the permitted slowdown allows, `x / t_s`; zero if the latency is unknown.
#[must_use]
pub fn budget(params: &Params) -> AccessRate {
    // Millionths divided by nanoseconds are thousands per second, or 10^9 millionths per second.
    let micro = u128::from(params.slowdown.0) * 1_000_000_000;
    AccessRate(micro.checked_div(u128::from(params.latency_ns)).map_or(0, |rate| u64::try_from(rate).unwrap_or(u64::MAX)))
}

/// Observation of one job at the end of a period.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// The job's memory that can be moved, in both nodes. It counts for [`Bounds`] only.
    #[serde(default, skip_serializing_if = "bounds::is_zero")]
    pub memory: Bytes,
    /// Its share of the slow node, where jobs compete for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<Bytes>,
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
    /// The bound that what remains after the promotion of hot blocks exceeds; `None` if it exceeds none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excess: Option<Excess>,
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
    /// What the job may have in the slow node is reached.
    Bounded(Bound),
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
    solve(params, input, (input.room, input.trackable), input.share).step
}

/// Returns what a job claims of the slow node: what it would have there if there were room, and the tracker could sample it.
#[must_use]
pub fn claim(params: &Params, input: &Input, weight: u32) -> Claim {
    let Outcome { has, places, .. } = solve(params, input, (Bytes(u64::MAX), u32::MAX), None);
    Claim { has, demand: has + places, weight }
}

/// Returns what a job may have in the slow node in this period, and the bound that says so; `None` without one.
#[must_use]
pub fn allowance(params: &Params, input: &Input) -> Option<(Bytes, Bound)> {
    Allowance::new(&params.bounds, input.memory, input.share).least()
}

/// A decision, and the size of what it concerns.
struct Outcome {
    step: Step,
    /// What stays in the slow node.
    has: Bytes,
    /// What is placed there.
    places: Bytes,
}

fn solve(params: &Params, input: &Input, (room, trackable): (Bytes, u32), share: Option<Bytes>) -> Outcome {
    let budget = budget(params);
    let allowance = Allowance::new(&params.bounds, input.memory, share);
    let hot = promote(&input.slow, budget);
    let (excess, moved) = allowance.promote(&input.slow, hot.blocks, input.step_max - hot.bytes).unzip();
    let home = hot.blocks.saturating_add(excess.map_or(0, |excess| excess.blocks));
    let left = if home > hot.blocks { input.slow.without_hottest(home) } else { hot.left };
    let promoted = hot.bytes + moved.unwrap_or_default();
    let has = input.slow.bytes() - promoted;
    let answer = |place, left: Sum, places, hold| Outcome {
        step: Step { budget, rate: input.slow.mean(), upper: left.upper(), home, excess, place, hold },
        has,
        places,
    };
    if let Some(reason) = hold(input, budget) {
        return answer(0, left, Bytes::ZERO, Some(reason));
    }
    let limits = Limits {
        share: AccessRate(params.sample.share_of(budget.0)).min(budget),
        budget,
        slow: left,
        allowance,
        has,
        room,
        trackable,
        step: input.step_max - promoted,
    };
    match limits.place(&input.sampled) {
        Ok(placed) => answer(placed.blocks, left.and(placed.sum), placed.bytes, None),
        Err(reason) => answer(0, left, Bytes::ZERO, Some(reason)),
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
    for run in slow.as_slice() {
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
    /// What the job may have there.
    allowance: Allowance,
    /// What it has there.
    has: Bytes,
    /// Free space of the slow node.
    room: Bytes,
    /// How many more blocks can be sampled there.
    trackable: u32,
    /// How much may still be moved.
    step: Bytes,
}

/// Blocks to be placed.
#[derive(Clone, Copy, Default)]
struct Placement {
    blocks: u32,
    bytes: Bytes,
    sum: Sum,
}

impl Limits {
    /// Returns the coldest blocks within all limits, or why there is none.
    fn place(&self, sampled: &Runs) -> Result<Placement, Hold> {
        let mut placed = Placement::default();
        let mut first_to_stop = Hold::NothingSampled;
        for run in sampled.as_slice() {
            let (fit, reason) = self.fit(run, &placed);
            placed.blocks += fit;
            placed.sum = placed.sum.with(run.estimate(), fit);
            placed.bytes += Bytes(run.bytes.0.saturating_mul(fit.into()));
            if fit < run.blocks {
                first_to_stop = reason;
                break;
            }
        }
        if placed.blocks == 0 { Err(first_to_stop) } else { Ok(placed) }
    }

    /// Returns how many blocks of a run fit in addition to those placed, and the limit that stops the next one.
    fn fit(&self, run: &Run, placed: &Placement) -> (u32, Hold) {
        let times = |left: Bytes| u32::try_from(left.0.checked_div(run.bytes.0).unwrap_or(u64::MAX)).unwrap_or(u32::MAX);
        let [limit, share] = self.allowance.fits(self.has + placed.bytes, run.bytes);
        let fits = [
            (placed.sum.fitting(run.estimate(), run.blocks, self.share), Hold::NothingCold),
            (self.slow.and(placed.sum).fitting(run.estimate(), run.blocks, self.budget), Hold::BudgetSpent),
            (limit.0, Hold::Bounded(limit.1)),
            (share.0, Hold::Bounded(share.1)),
            (times(self.room - placed.bytes), Hold::NoRoom),
            (self.trackable - placed.blocks, Hold::NotTrackable),
            (times(self.step - placed.bytes), Hold::StepSpent),
        ];
        let (fit, reason) = fits.into_iter().min_by_key(|&(fit, _)| fit).unwrap_or((0, Hold::NothingCold));
        (fit.min(run.blocks), reason)
    }
}

#[cfg(test)]
mod tests;

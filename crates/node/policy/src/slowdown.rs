//! Slowdown-bounded placement: the least accessed blocks to a slow node, until their accesses cost what a job may lose
//! (002 section 3).
//!
//! # Problem
//! Slow memory is loaded and stored directly. There is no fault to count and no stall that the kernel sees, so what a
//! placement costs must be known from how often its memory is accessed. `A` accesses per second that take `t_s` each cost a
//! share `A t_s` of the time; a tolerable slowdown `x` therefore allows `x / t_s` accesses per second (002 section 3.4): the
//! *budget*. At 3 % and 1 us it is 30,000.
//!
//! # Algorithm
//! Each period, with all rates taken at their upper 95 % bounds ([`rate`]), so that what is not known costs savings and not
//! slowdown:
//! 1. *Home.* The most accessed blocks of the slow node come home until the rest fit the budget (002 section 3.5). A block
//!    whose rate is beyond what the looks can tell counts as more than any budget.
//! 2. *Place.* The coldest sampled blocks go to the slow node, while their sum is within the sampled share of the budget (002
//!    section 3.4), all that is slow stays within the budget, and the slow node has room.
//!
//! Both move no more than `step_max` bytes together, the way home first. The order is strict: where the next block does not
//! fit, no later one is taken in its place, so that a decision is two counts and a replay needs no addresses.
//!
//! A veto holds placing. It never holds the way home: what is too hot for slow memory slows the job down, whatever else is
//! the matter.
//!
//! The sum of upper bounds lies far above an upper bound of the sum where there are many blocks, for their errors cancel
//! out. The exact answer for the sum would need the joint distribution; this one is simple, safe, and the dearer the fewer
//! looks there are.
//!
//! # Properties
//! Each is a test of that name: the bounds of what is slow never exceed the budget, unless `step_max` cut the way home
//! short; a block that turns hot is home within one period; the order of blocks does not matter; nothing of a uniformly
//! hot job is placed; a budget of zero brings everything home; a veto never holds the way home; any input is answered; and,
//! in a closed loop with a simulated job, the true rate stays within the budget.

use serde::{Deserialize, Serialize};

use crate::veto::Veto;
use units::{AccessRate, Bytes, RatioPpm};

mod binomial;
pub mod rate;

use rate::Estimate;

/// What an operator may choose, and what the slow node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Params {
    /// x: the share of its time that a job may lose to slow memory (002: 3 %).
    pub slowdown: RatioPpm,
    /// t_s: what one access to the slow node takes, in nanoseconds. Zero is no latency but an unknown one: nothing is
    /// placed.
    pub latency_ns: u64,
    /// f: the share of the job's blocks that is sampled each period (002: 5 %).
    pub sample: RatioPpm,
}

/// Accesses per second to slow memory that the tolerable slowdown allows: `x / t_s`; none where the latency is unknown.
#[must_use]
pub fn budget(params: &Params) -> AccessRate {
    // Millionths over nanoseconds are thousands per second, or 10^9 millionths per second.
    let micro = u128::from(params.slowdown.0) * 1_000_000_000;
    AccessRate(micro.checked_div(u128::from(params.latency_ns)).map_or(0, |rate| u64::try_from(rate).unwrap_or(u64::MAX)))
}

/// So many blocks alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// What each of them holds.
    pub bytes: Bytes,
    /// The rate of each.
    pub mean: AccessRate,
    /// The 95 % upper bound on the rate of each; `None` where it cannot be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upper: Option<AccessRate>,
    /// How many there are.
    pub blocks: u32,
}

impl Run {
    fn rank(&self) -> Rank {
        rank(self.bytes, &Estimate { mean: self.mean, upper: self.upper })
    }
}

/// The place of a block in the order from coldest to hottest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// A rate that cannot be told ranks above all.
    untold: bool,
    upper: Option<AccessRate>,
    mean: AccessRate,
    /// Of two equally hot blocks the larger is worth more in slow memory, and so counts as the colder.
    bytes: std::cmp::Reverse<Bytes>,
}

/// The order in which [`Step`] counts blocks. Blocks of equal rank are alike.
#[must_use]
pub fn rank(bytes: Bytes, estimate: &Estimate) -> Rank {
    Rank { untold: estimate.upper.is_none(), upper: estimate.upper, mean: estimate.mean, bytes: std::cmp::Reverse(bytes) }
}

/// Blocks from the coldest to the hottest, those alike as one run: what a decision rests on, and what the journal holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<Run>", into = "Vec<Run>")]
pub struct Runs(Vec<Run>);

impl Runs {
    /// The runs, coldest first.
    #[must_use]
    pub fn as_slice(&self) -> &[Run] {
        &self.0
    }

    /// How many blocks there are.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.0.iter().map(|run| u64::from(run.blocks)).sum()
    }

    /// What they hold together.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.0.iter().map(|run| Bytes(run.bytes.0.saturating_mul(run.blocks.into()))).sum()
    }

    /// The sum of their rates, each at its mean.
    #[must_use]
    pub fn mean(&self) -> AccessRate {
        self.0.iter().map(|run| run.mean.saturating_mul(run.blocks.into())).sum()
    }
}

impl From<Vec<Run>> for Runs {
    /// In whatever order they are; runs without blocks are dropped.
    fn from(mut runs: Vec<Run>) -> Self {
        runs.retain(|run| run.blocks > 0);
        runs.sort_unstable_by_key(Run::rank);
        // Where a count would overflow, the rest stays a run of its own.
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

/// What is known of one job at the end of one period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// The job's blocks in the slow node, all of them.
    pub slow: Runs,
    /// The blocks sampled in this period, not in the slow node.
    pub sampled: Runs,
    /// What the slow node has room for.
    pub room: Bytes,
    /// What may be moved in this period, both ways together.
    pub step_max: Bytes,
    /// Why the surroundings forbid placing in this period, if they do.
    pub veto: Option<Veto>,
}

/// What to move, with the numbers that it rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Accesses per second to slow memory that are allowed.
    pub budget: AccessRate,
    /// Accesses per second to what was slow in this period, at their means.
    pub rate: AccessRate,
    /// Upper bound on the accesses to what remains slow and what is placed; the largest number there is where the rate of a
    /// block that remains cannot be told.
    pub upper: AccessRate,
    /// So many of the hottest slow blocks come home, by [`rank`].
    pub home: u32,
    /// So many of the coldest sampled blocks go to the slow node, by [`rank`].
    pub place: u32,
    /// Why none are placed, where none are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
}

/// Why nothing is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// The tolerable slowdown is zero, or the latency of the slow node is not known.
    NoBudget,
    /// No block was sampled in this period.
    NothingSampled,
    /// What may be moved in this period did not suffice to bring home all that is too hot.
    HomeCutShort,
    /// The coldest sampled block alone is accessed more often than the sampled share of the budget, or its rate cannot be
    /// told.
    NothingCold,
    /// What is slow already leaves too little of the budget for the coldest sampled block.
    BudgetSpent,
    /// The slow node has no room for it.
    NoRoom,
    /// What may be moved in this period is spent, or less than one block.
    StepSpent,
    /// The surroundings forbid it.
    Vetoed(Veto),
}

/// One period. Pure: same arguments, same answer.
#[must_use]
pub fn step(params: &Params, input: &Input) -> Step {
    let budget = budget(params);
    let home = bring_home(&input.slow, budget, input.step_max);
    let answer = |place, upper, hold| Step { budget, rate: input.slow.mean(), upper, home: home.blocks, place, hold };
    if let Some(reason) = hold(input, budget, &home) {
        return answer(0, home.left, Some(reason));
    }
    let limits = Limits {
        share: AccessRate(params.sample.share_of(budget.0)).min(budget),
        left: budget - home.left,
        room: input.room,
        step: input.step_max - home.bytes,
    };
    match limits.place(&input.sampled) {
        Ok((place, placed)) => answer(place, home.left + placed, None),
        Err(reason) => answer(0, home.left, Some(reason)),
    }
}

/// The reasons not to look at what was sampled, the most fundamental first.
fn hold(input: &Input, budget: AccessRate, home: &Home) -> Option<Hold> {
    if let Some(veto @ (Veto::ObserveOnly | Veto::OtherPolicy)) = input.veto {
        return Some(Hold::Vetoed(veto));
    }
    if budget == AccessRate::ZERO {
        return Some(Hold::NoBudget);
    }
    if home.left > budget {
        return Some(Hold::HomeCutShort);
    }
    if let Some(veto) = input.veto {
        return Some(Hold::Vetoed(veto));
    }
    (input.sampled.blocks() == 0).then_some(Hold::NothingSampled)
}

/// What comes home.
struct Home {
    blocks: u32,
    bytes: Bytes,
    /// Upper bound on the accesses to what remains.
    left: AccessRate,
}

/// The hottest blocks, until the rest fit the budget or no more may be moved.
fn bring_home(slow: &Runs, budget: AccessRate, step_max: Bytes) -> Home {
    // Wide enough that no sum of what u64 and u32 hold saturates: what is taken off again must be what was added.
    let upper = |run: &Run| run.upper.map_or(u128::from(u64::MAX), |upper| u128::from(upper.0));
    let mut left: u128 = slow.0.iter().map(|run| upper(run) * u128::from(run.blocks)).sum();
    let mut home = Home { blocks: 0, bytes: Bytes::ZERO, left: AccessRate::ZERO };
    for run in slow.0.iter().rev() {
        // A zero budget means that the slow node may not be used, not even by what nobody was seen to access.
        let too_hot = match (budget, run.upper) {
            (AccessRate::ZERO, _) | (_, None) => run.blocks,
            (budget, Some(upper)) => blocks_over(left, budget, upper),
        };
        let movable = (step_max - home.bytes).0.checked_div(run.bytes.0).unwrap_or(u64::MAX);
        let wanted = too_hot.min(run.blocks);
        let moved = wanted.min(u32::try_from(movable).unwrap_or(u32::MAX)).min(u32::MAX - home.blocks);
        left -= upper(run) * u128::from(moved);
        home.blocks += moved;
        home.bytes += Bytes(run.bytes.0.saturating_mul(moved.into()));
        if moved < run.blocks {
            break;
        }
    }
    home.left = AccessRate(u64::try_from(left).unwrap_or(u64::MAX));
    home
}

/// How many blocks of rate `each` must go for `sum` to fit the budget.
fn blocks_over(sum: u128, budget: AccessRate, each: AccessRate) -> u32 {
    let over = sum.saturating_sub(budget.0.into());
    let blocks = over.div_ceil(u128::from(each.0).max(1));
    u32::try_from(blocks).unwrap_or(u32::MAX)
}

/// What may be placed.
struct Limits {
    /// The sampled share of the budget.
    share: AccessRate,
    /// What remains of the whole budget.
    left: AccessRate,
    /// What the slow node has room for.
    room: Bytes,
    /// What may still be moved.
    step: Bytes,
}

impl Limits {
    /// The number of the coldest blocks within all limits, and the sum of their bounds; why there is none.
    fn place(&self, sampled: &Runs) -> Result<(u32, AccessRate), Hold> {
        let (mut place, mut rate, mut bytes) = (0u32, AccessRate::ZERO, Bytes::ZERO);
        let mut first_to_stop = Hold::NothingSampled;
        for run in &sampled.0 {
            let (fit, reason) = self.fit(run, rate, bytes);
            let fit = fit.min(u32::MAX - place);
            place += fit;
            rate += run.upper.unwrap_or_default().saturating_mul(fit.into());
            bytes += Bytes(run.bytes.0.saturating_mul(fit.into()));
            if fit < run.blocks {
                first_to_stop = reason;
                break;
            }
        }
        if place == 0 { Err(first_to_stop) } else { Ok((place, rate)) }
    }

    /// How many blocks of a run fit beside what is placed already, and what stops the next.
    fn fit(&self, run: &Run, rate: AccessRate, bytes: Bytes) -> (u32, Hold) {
        let Some(upper) = run.upper else { return (0, Hold::NothingCold) };
        let times = |left: u64, each: u64| left.checked_div(each).unwrap_or(u64::MAX);
        let fits = [
            (times((self.share - rate).0, upper.0), Hold::NothingCold),
            (times((self.left - rate).0, upper.0), Hold::BudgetSpent),
            (times((self.room - bytes).0, run.bytes.0), Hold::NoRoom),
            (times((self.step - bytes).0, run.bytes.0), Hold::StepSpent),
        ];
        let (fit, reason) = fits.into_iter().min_by_key(|&(fit, _)| fit).unwrap_or((0, Hold::NothingCold));
        (u32::try_from(fit).unwrap_or(u32::MAX).min(run.blocks), reason)
    }
}

#[cfg(test)]
mod tests;

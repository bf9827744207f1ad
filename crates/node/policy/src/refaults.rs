//! How much page cache is reclaimed while its refaults stay within the objective of policy `cold_age`.
//!
//! # Problem
//! For anonymous memory, the promotion histogram predicts what a threshold costs. For page cache a stock kernel gives no ages:
//! accessed bits cover mapped pages only, and a page that was read once is in the oldest generation at once. What the kernel does
//! count is what returned: refaults of pages that it remembers to have evicted (`mm/workingset.c`).
//!
//! # Rule
//! The objective is the one of anonymous memory: at most P of the working set per minute, promotions and refaults together. A
//! refault that takes four times as long as a promotion counts as four. Under policy `auto` it is the stall target instead: what
//! returns may take that share of the time.
//!
//! One read of a device may bring many pages: read-ahead is 128 KiB by default, which is 32 refaults for one wait. So the refaults of a
//! period cost no more than the time in which a task of the job waited for a device (`io.pressure`), and no less than if each read had
//! brought 32: a task that reads with `io_uring` and does other things meanwhile is not seen to wait. What part of their latency they
//! cost is what those to come are expected to.
//!
//! While a period stays within it, the next one reclaims more: twice as much after a quarter of the warm-up. That is the time which
//! the evicted pages get to return before much more follows them. A period beyond the objective halves the amount, and nothing goes
//! out for 1 / (1 - K) periods, for each such period, so that they are (100 - K) % at most, as for parts of the anonymous memory
//! ([`crate::cold_age`]). Page cache cannot be called back, but what was needed is back after its refault, and protected: the kernel
//! activates pages that return.
//!
//! A stall target is a mean over time. What exceeds it is owed, unless the periods before left as much unused, and nothing goes out
//! until quieter periods have made up for it. So a table that a query reads from end to end each hour may be out in between if the
//! target permits these reads in an hour. Page cache may use what promotions leave of the target, and half of it at least: threshold
//! T of anonymous memory is chosen for what page cache leaves, in the mean ([`left_of`]). Each kind alone gets all of it.
//!
//! What the objective permits is not worth its cost where nothing is saved for it: a cache of which each page returns at once stays
//! what it is. Pages that are out for `t` on average return at the rate `saved / t`, so that in the time `t` as many return as are out
//! (Little's law). If more returned in a warm-up than are out now, they are out for less than a warm-up on average, and the agent leaves
//! the cache alone: for two warm-ups, and for four if that happens again. What was out in the mean of a warm-up counts, if that is more:
//! when a table has been read again, none of it is out. Pages that returned by one wait count as one of these: a cache
//! that a build reads again by large requests each time may be out in between.
//!
//! The last pages to go out are the most used, and many of them may return at one event, such as a program that starts again. If at
//! once, which may be in two periods, and beyond the objective, four fifths as many return as went out in the last warm-up, the
//! cache is needed as it is then: none of it goes out for four warm-ups, and for 8, 16 and 32 if that happens again. What the cache
//! has beyond that still may. Where ages of the pages are known, only old ones go out, and this does not apply.
//!
//! If, beyond the objective, half as many return at once as went out in the last warm-up, the agent was too fast to see it: by then
//! more had followed. What returned at the same rate all the time is not of that: it went out long before. From then on it pauses
//! after each request, and reclaims more only after a pause in which that did not happen again. After a failure a pause is two
//! warm-ups, or twice the last one up to 32, and each pause without a failure halves it again. A shorter one showed nothing: it
//! ended before a build began again and read what had gone out. As long as a pause is `2^n` quarters of a warm-up, what returns
//! beyond a stall target is owed `2^n` times, so that a job of which each request fails uses an ever smaller part of its target.
//! Neither applies to so few pages that the objective permits all of them to return within a warm-up.
//!
//! In one period at most one part in 32 of the cache goes out. While less returns than the objective permits, it is more in
//! proportion: one part in eight if a quarter of it returns, or less, unless much returned at once lately. Where every page's age
//! is known, at most those that are old; where only generations of the kernel are, at most those that no process maps, or that are
//! in its older ones: code that runs is mapped and in the two youngest, and without it a program stands still.
//!
//! # Properties
//! Each is a test of this name: a cache that nothing reads goes out; a cache that is read at random keeps the objective in K of the
//! periods; dearer refaults leave more of the cache; pages that one wait brings cost as much as the wait; a cache whose pages
//! return at once is left alone; so is what returned in a burst; after a failure one request at a time is tried; a pause lasts
//! until what went out has had time to return; what failed requests cost is owed several times; what is owed is time; a burst
//! that quiet periods have paid for is no failure; each kind gets half of a stall target, and what the other leaves of it; what may
//! return within a warm-up needs no pause; what returns all the time is no failure of a request; a cache that few waits bring back
//! may be out in between; while little returns larger parts go out; it never acts before the warm-up; it is deterministic for any
//! input.

use serde::{Deserialize, Serialize};

use crate::cold_age::{observations_needed, promotions_allowed};
use crate::veto::Veto;
use units::{Millis, Pages, RatioPpm};

/// A period reclaims one part in this many of the cache at most.
const PARTS: u64 = 32;

/// The same, if what returns is a quarter of what the objective permits, or less.
const PARTS_MIN: u64 = 8;

/// The smallest request. The kernel isolates so many pages at once (`MIN_LRU_BATCH` in `mm/vmscan.c`).
pub const LEAST: Pages = Pages(64);

/// The floor of journals that have none.
const FLOOR_BEFORE: Pages = Pages(1_024);

/// The longest wait, in periods: two weeks of periods of two minutes.
const WAIT_MAX: u32 = 10_000;

/// Pages that one read brings: the kernel's default of read-ahead, 128 KiB.
const READ_AHEAD: u64 = 32;

/// Refaults are kept in parts of a page: what little returns must not be rounded away.
const PARTS_OF_PAGE: u64 = 1_024;

/// The first rest is two warm-ups, and the second and each after it four. In the simulated arena, longer ones lost more of what a
/// job's later phases would save than they avoided.
const RESTS_MAX: u32 = 2;

/// What returned in a burst is kept for four warm-ups at first, and for 32 at most.
const KEPT_WARMUPS: u64 = 2;
const KEPT_MAX: u32 = 4;

/// A request failed if half as many returned as went out in the last warm-up.
const FAILED: (u64, u64) = (1, 2);

/// A burst: four fifths as many as went out. Of pages that are read at random, a period returns a small part of them.
const BURST: (u64, u64) = (4, 5);

/// Parameters, which are those of the cold-age controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Params {
    /// P: permitted promotions per minute, as a share of the working set.
    pub promotion_rate_max: RatioPpm,
    /// K: the share of periods that keep the objective.
    pub percentile: RatioPpm,
    /// How long a job runs before anything is reclaimed, in milliseconds.
    pub warmup_ms: Millis,
    /// A cache of fewer pages is left alone.
    #[serde(default = "floor_before")]
    pub floor: Pages,
}

fn floor_before() -> Pages {
    FLOOR_BEFORE
}

/// State of a job. A restart may lose it: the amount begins small again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Pages that a period reclaims.
    amount: Pages,
    /// Periods to wait for.
    wait: u32,
    /// What it may use of a stall target.
    #[serde(default, skip_serializing_if = "Budget::is_new")]
    budget: Budget,
    /// What returned in the last four warm-ups, in [`PARTS_OF_PAGE`], with exponential weights.
    #[serde(default, skip_serializing_if = "is_zero")]
    back: u64,
    /// What returned in the last warm-up, where pages that returned by one wait count as one, in the same way.
    #[serde(default, skip_serializing_if = "is_zero")]
    waits: u64,
    /// What was out in the mean of the last warm-up, in [`PARTS_OF_PAGE`].
    #[serde(default, skip_serializing_if = "is_zero")]
    held: u64,
    /// While the cache is left alone, because what went out returned too soon.
    #[serde(default, skip_serializing_if = "Rests::is_none")]
    resting: Rests,
    /// What went out in the last warm-up, in [`PARTS_OF_PAGE`], with exponential weights.
    #[serde(default, skip_serializing_if = "is_zero")]
    out: u64,
    /// Refaults of the last period, if it was not one of a failure.
    #[serde(default, skip_serializing_if = "is_nothing")]
    refaulted: Pages,
    /// What the cache was after a burst.
    #[serde(default, skip_serializing_if = "is_nothing")]
    needed: Pages,
    /// While none of that goes out.
    #[serde(default, skip_serializing_if = "Rests::is_none")]
    keeping: Rests,
    /// Between requests, since one failed.
    #[serde(default, skip_serializing_if = "Pauses::is_none")]
    pauses: Pauses,
    /// The part of their latency that refaults did not wait for, because others brought them.
    #[serde(default, skip_serializing_if = "is_all_waited_for")]
    spared: RatioPpm,
}

fn is_all_waited_for(spared: &RatioPpm) -> bool {
    *spared == RatioPpm::default()
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

fn is_nothing(pages: &Pages) -> bool {
    *pages == Pages::ZERO
}

/// Observation of one job at the end of a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// Milliseconds since the job was first observed.
    pub job_age_ms: Millis,
    /// Milliseconds since the previous step; zero at the first.
    pub elapsed_ms: Millis,
    /// Resident page cache, without shared memory.
    pub cache: Pages,
    /// Anonymous and shared pages that are not cold.
    pub working_set: Pages,
    /// Promotions of anonymous and shared pages since the previous step.
    pub promoted: Pages,
    /// Refaults of page cache since the previous step.
    pub refaulted: Pages,
    /// The cost of a refault that waits for a read of its own, in millionths of that of a promotion.
    pub refault_cost: RatioPpm,
    /// How many promotions take as long as tasks of the job waited for devices since the previous step; `None` where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited: Option<Pages>,
    /// Pages of the cache that are old; `None` where ages are not known.
    pub cold: Option<Pages>,
    /// Pages of the cache that no process maps, or that were not accessed since the kernel's two youngest generations were opened;
    /// `None` where nothing opens them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spare: Option<Pages>,
    /// Permitted promotions and refaults in the period, if they follow from the job's stall target and the cost of a promotion
    /// ([`crate::cold_age::allowance`]) instead of P.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowance: Option<Pages>,
    /// Promotions and refaults that a trial of the job permits in the period ([`crate::trial`]), if these are fewer; `None` without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trial_max: Option<Pages>,
    /// Reclaimed pages of the cache that are still out ([`crate::page_cache`]); `None` if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved: Option<Pages>,
    /// What was reclaimed of it since the previous step; `None` in journals that do not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaimed: Option<Pages>,
    /// The veto in effect; `None` without one.
    pub veto: Option<Veto>,
}

/// The action for a job, with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "action")]
pub enum Decision {
    /// Reclaim page cache.
    Reclaim {
        /// The amount.
        pages: Pages,
    },
    /// Reclaim nothing.
    Hold {
        /// The reason.
        reason: Hold,
    },
}

/// Why nothing is reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// No earlier period to compare with.
    NoHistory,
    /// The job is younger than the warm-up.
    WarmingUp,
    /// More returned than the objective permits, in this period or in one of the last.
    Refaults,
    /// What was reclaimed returned too soon to be worth it, now or in the time before.
    ReturnsTooSoon,
    /// The job has hardly any page cache.
    AtFloor,
    /// Without it, many pages returned at once.
    Needed,
    /// None of it is old.
    NothingCold,
    /// What went out last has time to return.
    Awaited,
    /// A veto is in effect.
    Vetoed(Veto),
}

/// A decision with the values that it is based on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// What to do.
    pub decision: Decision,
    /// Promotions and refaults of the period, in promotions; with a stall target, refaults alone.
    pub returned: Pages,
    /// The same as the objective permits; with a stall target, page cache's part.
    pub allowed: Pages,
}

/// Decides for one period. Deterministic.
#[must_use]
pub fn step(params: &Params, state: &State, input: &Input) -> (State, Step) {
    let by_rate = || promotions_allowed(params.promotion_rate_max, input.working_set + input.cache, input.elapsed_ms);
    let mut next = *state;
    let cost = next.cost(input);
    let (returned, allowed) = match input.allowance {
        Some(allowance) => {
            next.budget.take(cost, allowance, input.elapsed_ms, usual_life(params.warmup_ms));
            let within_trial = input.trial_max.map_or(Pages(u64::MAX), |most| most - input.promoted);
            (cost, Budget::part(allowance, input.promoted).min(within_trial))
        }
        None => (input.promoted + cost, input.trial_max.map_or_else(by_rate, |most| by_rate().min(most))),
    };
    let hold = |reason| Decision::Hold { reason };
    let spent = Spent { cost: returned, allowed, elapsed: input.elapsed_ms };
    let over = if input.allowance.is_some() { next.budget.is_exceeded(&spent) } else { returned > allowed };
    let failed = next.failed(params, input, over);
    let needed = next.needed(params, input, failed);
    let is_in_vain = next.is_in_vain(params, input);
    let decision = if input.elapsed_ms == Millis::ZERO {
        hold(Hold::NoHistory)
    } else if input.job_age_ms < params.warmup_ms {
        hold(Hold::WarmingUp)
    } else if next.is_over(params, input, &spent, over) {
        hold(Hold::Refaults)
    } else if is_in_vain {
        hold(Hold::ReturnsTooSoon)
    } else if next.pauses.is_pause() && !next.is_affordable(params, input, allowed) {
        hold(Hold::Awaited)
    } else {
        let most = next.most(params, input, allowed);
        let before = std::mem::replace(&mut next.amount, grown(state.amount, params.warmup_ms, input.elapsed_ms).max(LEAST).min(most));
        let pages = [input.cold, input.spare].into_iter().flatten().fold(next.amount, Pages::min);
        match input.veto {
            Some(veto) => hold(Hold::Vetoed(veto)),
            None if input.cache < params.floor => hold(Hold::AtFloor),
            None if input.cache < needed + pages => {
                next.amount = before;
                hold(Hold::Needed)
            }
            None if pages < LEAST => hold(Hold::NothingCold),
            None => {
                next.pauses.begin(doubled_in(params.warmup_ms));
                Decision::Reclaim { pages }
            }
        }
    };
    (next, Step { decision, returned, allowed })
}

impl State {
    /// What the refaults of a period cost, in promotions. Learns what part of their latency that was.
    fn cost(&mut self, input: &Input) -> Pages {
        let alone = promotions_of(input.refaulted, input.refault_cost);
        let cost = input.waited.map_or(alone, |waited| waited.clamp(Pages(alone.0 / READ_AHEAD), alone));
        if alone > Pages::ZERO {
            // As many refaults as the smallest request has count as much as all before them.
            let ppm = |part: u64, of: u64| u64::try_from(u128::from(part) * 1_000_000 / u128::from(of)).unwrap_or(u64::MAX);
            let weight = ppm(input.refaulted.0, input.refaulted.0.saturating_add(LEAST.0));
            let spared = ppm((alone - cost).0, alone.0) * weight + u64::from(self.spared.0) * (1_000_000 - weight);
            self.spared = RatioPpm(u32::try_from(spared / 1_000_000).unwrap_or(0));
        }
        cost
    }

    /// The part of a stall target that page cache takes, in the mean: half at most.
    #[must_use]
    pub fn taken(&self) -> RatioPpm {
        self.budget.taken()
    }

    /// Takes in what returned in a period, and says whether it forbids to reclaim more.
    fn is_over(&mut self, params: &Params, input: &Input, spent: &Spent, over: bool) -> bool {
        let was_over = self.wait > 0 || self.budget.is_owed();
        if input.allowance.is_some() {
            self.wait = 0;
            let times = if self.is_affordable(params, input, spent.allowed) { 1 } else { self.pauses.times() };
            self.budget.settle(spent, times);
            // What returns while some is owed went out before the amount was halved.
            self.amount = if over && !was_over { Pages(self.amount.0 / 2) } else { self.amount };
            return over || self.budget.is_owed();
        }
        self.budget = Budget::default();
        if over {
            self.amount = Pages(self.amount.0 / 2);
            self.wait = self.wait.saturating_add(u32::from(observations_needed(params.percentile))).min(WAIT_MAX);
        } else {
            self.wait = self.wait.saturating_sub(1);
        }
        over || was_over
    }

    /// The part of a quantity for which the job waits, if read-ahead brings as much as lately.
    fn waited_for(&self, quantity: u64) -> u64 {
        RatioPpm(1_000_000 - self.spared.0.min(1_000_000)).share_of(quantity)
    }

    /// Whether the objective permits that all of what went out in the last warm-up, and another request, returns within one.
    fn is_affordable(&self, params: &Params, input: &Input, allowed: Pages) -> bool {
        let alone = promotions_of(Pages(self.out / PARTS_OF_PAGE + LEAST.0), input.refault_cost);
        let cost = u128::from(self.waited_for(alone.0));
        cost.saturating_mul(input.elapsed_ms.0.into()) <= u128::from(allowed.0) * u128::from(params.warmup_ms.0)
    }

    /// Refaults in such a period, by what returned lately.
    fn usual(&self, params: &Params, input: &Input) -> Pages {
        let parts = u128::from(self.back) * u128::from(input.elapsed_ms.0) / u128::from(usual_life(params.warmup_ms).0.max(1));
        Pages(u64::try_from(parts).unwrap_or(u64::MAX) / PARTS_OF_PAGE)
    }

    /// The most that goes out in a period.
    fn most(&self, params: &Params, input: &Input, allowed: Pages) -> Pages {
        let part = |parts: u64| Pages(input.cache.0 / parts);
        let is_calm = self.pauses.doublings == 0 && self.keeping.times == 0 && self.resting.times == 0;
        if !is_calm || (input.reclaimed.is_none() && input.cold.is_none()) {
            return part(PARTS).max(LEAST);
        }
        let usual = self.waited_for(promotions_of(self.usual(params, input), input.refault_cost).0);
        // Page cache's part of a stall target is without promotions.
        let promoted = if input.allowance.is_some() { Pages::ZERO } else { input.promoted };
        let returns = (promoted + Pages(usual)).0.saturating_mul(PARTS);
        part((returns / allowed.0.max(1)).clamp(PARTS_MIN, PARTS)).max(LEAST)
    }

    /// Takes in what returned, and says whether the cache is left alone because it returned too soon.
    fn is_in_vain(&mut self, params: &Params, input: &Input) -> bool {
        let returned = input.refaulted.0.saturating_mul(PARTS_OF_PAGE);
        self.back = decayed(self.back, input.elapsed_ms, usual_life(params.warmup_ms)).saturating_add(returned);
        let Some(saved) = input.saved else { return false };
        self.held = followed(self.held, saved.0.saturating_mul(PARTS_OF_PAGE), input.elapsed_ms, params.warmup_ms);
        self.waits = decayed(self.waits, input.elapsed_ms, params.warmup_ms).saturating_add(self.waited_for(returned));
        if self.resting.pass(input.elapsed_ms, params.warmup_ms) {
            return true;
        }
        let is_in_vain = self.waits > saved.max(LEAST).0.saturating_mul(PARTS_OF_PAGE).max(self.held);
        if is_in_vain {
            self.resting.begin(params.warmup_ms, RESTS_MAX);
            (self.amount, self.waits) = (Pages::ZERO, 0);
        }
        is_in_vain
    }

    /// Takes in what went out and returned, and says whether much of it returned at once.
    fn failed(&mut self, params: &Params, input: &Input, over: bool) -> Option<Failure> {
        self.pauses.pass(input.elapsed_ms);
        let reclaimed = reclaimed_in_order(input)?;
        let parts = |pages: Pages| pages.0.saturating_mul(PARTS_OF_PAGE);
        self.out = decayed(self.out, input.elapsed_ms, params.warmup_ms).saturating_add(parts(reclaimed));
        // What returns at once may fall into two periods.
        let refaulted = input.refaulted + std::mem::replace(&mut self.refaulted, input.refaulted);
        let unusual = parts(refaulted - (self.usual(params, input) + self.usual(params, input)));
        let is_share = |(share, of): (u64, u64)| unusual.saturating_mul(of) > self.out.saturating_mul(share);
        if !over || refaulted < LEAST || !is_share(FAILED) {
            return None;
        }
        self.refaulted = Pages::ZERO;
        let failure = if is_share(BURST) { Failure::Burst } else { Failure::Half };
        self.pauses.fail();
        Some(failure)
    }

    /// How much of the cache must stay because of a burst.
    fn needed(&mut self, params: &Params, input: &Input, failed: Option<Failure>) -> Pages {
        if reclaimed_in_order(input).is_none() {
            return Pages::ZERO;
        }
        let unit = Millis(params.warmup_ms.0.saturating_mul(KEPT_WARMUPS));
        let kept = self.keeping.pass(input.elapsed_ms, unit);
        if failed == Some(Failure::Burst) {
            self.needed = if kept { self.needed.max(input.cache) } else { input.cache };
            self.keeping.begin(unit, KEPT_MAX);
            self.amount = Pages::ZERO;
        } else if !kept {
            self.needed = Pages::ZERO;
        }
        self.needed
    }
}

/// What page cache leaves of a stall target to anonymous memory if it takes this part of it ([`State::taken`]).
#[must_use]
pub fn left_of(target: RatioPpm, taken: RatioPpm) -> RatioPpm {
    RatioPpm(u32::try_from(u64::from(target.0) - taken.min(RatioPpm::ONE).share_of(target.0.into())).unwrap_or(target.0))
}

/// How many promotions cost as much as so many refaults, each of which waits for a read of its own.
fn promotions_of(refaults: Pages, refault_cost: RatioPpm) -> Pages {
    Pages(u64::try_from(u128::from(refaults.0) * u128::from(refault_cost.0) / 1_000_000).unwrap_or(u64::MAX))
}

/// What the kernel reclaimed in its own order; `None` where ages are known and only old pages go out, or if it is not known.
fn reclaimed_in_order(input: &Input) -> Option<Pages> {
    input.reclaimed.filter(|_| input.cold.is_none())
}

/// How much of what went out in the last warm-up returned at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    /// Half of it ([`FAILED`]).
    Half,
    /// Most of it ([`BURST`]).
    Burst,
}

mod budget;
mod over_time;
mod pauses;
mod rests;

use budget::{Budget, Spent};
use over_time::{decayed, doubled_in, followed, grown, usual_life};
use pauses::Pauses;
use rests::Rests;

#[cfg(test)]
mod tests;

//! The cold-age controller (SDFM section 4.3).
//!
//! # Problem
//! Choose the smallest cold age T such that offloading every page idle for T or longer promotes at most P of the job's working set per
//! minute. The promotion histogram answers this exactly for the past control period; the controller must predict it for the next one.
//!
//! # Algorithm
//! In each control period:
//! 1. *best* = the smallest T of the predefined set whose promotions were at most P; "none" if there is no such T.
//! 2. *percentile* = the K-th percentile of all bests so far, including this one. "None" ranks above every T.
//! 3. T = max(percentile, best): a spike above the percentile takes effect at once.
//! 4. Nothing is offloaded during the first S seconds of the job, nor if T is "none".
//!
//! 5. With a bound ([`Params::bound`], which SDFM does not have), rules 2 and 3 become an upper bound of the promotions to come:
//!    the percentile is taken of the bests and one more that is worse than all of them, and T rises to the first threshold whose
//!    own history is long enough, or whose promotions leave a margin that shrinks as the history grows ([`early`]). Of a
//!    sample of the pages, the promotions of several scans are added up ([`window`]).
//!
//! 6. With parts ([`Params::partial`]), a threshold counts as measured from the second observation on, and a part of the pages is offloaded where the promotions of all would exceed the objective
//!    ([`partial`]). Nothing is taken that rule 5 would not bound.
//!
//! 7. A stall target can be kept in the mean of the scans in place of in K of them ([`mean`]); it replaces rules 2 to 6.
//!
//! With n past periods, rule 2 alone exceeds the objective in the next one with probability 1 / (n + 1) or more, however high K
//! is. With the bound, that is (100 - K) % at most for exchangeable periods, from the first decision on.
//!
//! Two parameters change rules 2 and 3. With a half-life, the weight of a best halves each time the half-life passes (as in Autopilot,
//! EuroSys 2020, and in the Vertical Pod Autoscaler); without one, all have the same weight. Without the rule for spikes, T is the
//! percentile.
//!
//! The past bests are one counter per threshold, because every best is a member of the set: a step reads two histograms and the counters
//! once, costs the same however long the job has run, and allocates nothing.
//!
//! # Properties
//! Each is a test of this name: [`step`] is deterministic; the threshold never falls when P falls; it never acts before S; a spike raises
//! the threshold at once; in steady state it violates the SLO in about (100 - K) % of the periods; without a qualifying threshold it
//! holds; a more conservative class never takes more; with the bound, a young history violates the SLO no more often than a long
//! one.

use serde::{Deserialize, Serialize};

use crate::histogram::Histogram;
use crate::thresholds::{THRESHOLDS_MAX, Thresholds};
use crate::veto::Veto;
use units::{Age, Millis, Pages, RatioPpm};

const MS_PER_MINUTE: u64 = 60_000;

/// How long after an observation the next one may follow, if its promotions cover `window`. A quarter of the window is tolerated,
/// because scans do not start exactly on time.
#[inline]
fn next_after(window: Millis) -> Millis {
    Millis(window.0 - window.0 / 4)
}

/// Parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Params {
    /// P: permitted promotions per minute, as a share of the working set (SDFM section 4.2: 0.2 %).
    pub promotion_rate_max: RatioPpm,
    /// K: the percentile of past best thresholds that becomes the next threshold.
    pub percentile: RatioPpm,
    /// S: how long a job runs before it is offloaded, in milliseconds.
    pub warmup_ms: Millis,
    /// Half-life of the weight of past bests, in milliseconds; 0 gives all the same weight.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub half_life_ms: Millis,
    /// Whether a best above the percentile becomes the threshold (rule 3).
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub spikes: bool,
    /// Whether T is an upper bound also while the history is short (rule 5). Journals without it were decided without it.
    #[serde(default, skip_serializing_if = "is_no")]
    pub bound: bool,
    /// Whether a part of the cold pages is offloaded where all would exceed the objective (rule 6). Needs the bound.
    #[serde(default, skip_serializing_if = "is_no")]
    pub partial: bool,
    /// Whether what the far pages have shown counts in place of the error of a sample, if a stall target is kept in the mean ([`shown`]).
    /// Journals without it were decided without it.
    #[serde(default, skip_serializing_if = "is_no")]
    pub returns: bool,
    /// Whether a stall target ([`Input::allowance`]) is kept in the mean of the scans ([`mean`]) in place of in K of them.
    #[serde(default, skip_serializing_if = "is_no")]
    pub mean: bool,
}

impl Params {
    /// Returns the parameters of SDFM: no half-life, the rule for spikes, no bound.
    #[must_use]
    pub const fn new(promotion_rate_max: RatioPpm, percentile: RatioPpm, warmup_ms: Millis) -> Self {
        let half_life_ms = Millis::ZERO;
        let (bound, partial, returns, mean) = (false, false, false, false);
        Self { promotion_rate_max, percentile, warmup_ms, half_life_ms, spikes: true, bound, partial, returns, mean }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks this way")]
fn is_zero(time: &Millis) -> bool {
    *time == Millis::ZERO
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks this way")]
fn is_yes(flag: &bool) -> bool {
    *flag
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks this way")]
fn is_no(flag: &bool) -> bool {
    !*flag
}

fn yes() -> bool {
    true
}

/// State of a job: one counter per threshold, and one for "none"; while it is young, also what each threshold measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "stored::Stored", into = "stored::Stored")]
pub struct State {
    bests: [u32; THRESHOLDS_MAX + 1],
    fading: Fading,
    /// `None` once all thresholds have a long history. Kept with and without the bound, which can be switched on later.
    early: Option<Early>,
    /// Scans of a sample that are not an observation yet; `None` without the bound, and if all pages are counted.
    window: Option<Window>,
    /// What returned in the mean; `None` without a stall target that is kept in the mean.
    mean: Option<Mean>,
}

impl Default for State {
    fn default() -> Self {
        Self { bests: [0; THRESHOLDS_MAX + 1], fading: Fading::default(), early: Some(Early::default()), window: None, mean: None }
    }
}

/// How far the counters of a job have decayed. The model has its own counters and uses this, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fading {
    /// The half-life in milliseconds, and how often it had passed at the job's last step; `None` without decay.
    passed: Option<(Millis, u64)>,
}

impl Fading {
    /// The weight of a new best with decay; it can be halved six times before it rounds to zero.
    const WHOLE: u32 = 64;

    /// Applies the decay up to this age of the job, and returns the weight of a new best.
    ///
    /// All counters are halved, rounded down, each time a half-life has passed. Percentiles are ratios, so switching the decay on or
    /// off does not change the decision.
    #[must_use]
    #[inline]
    pub fn fade(&mut self, bests: &mut [u32], half_life_ms: Millis, job_age_ms: Millis) -> u32 {
        let due = job_age_ms.0.checked_div(half_life_ms.0).map(|passed| (half_life_ms, passed));
        match (self.passed, due) {
            (None, None) => return 1,
            (None, Some(_)) => bests.iter_mut().for_each(|n| *n = n.saturating_mul(Self::WHOLE)),
            (Some(_), None) => bests.iter_mut().for_each(|n| *n = n.div_ceil(Self::WHOLE)),
            (Some((before, passed)), Some((now, due))) if before == now && due > passed => {
                let halves = u32::try_from(due - passed).unwrap_or(u32::MAX);
                bests.iter_mut().for_each(|n| *n = n.checked_shr(halves).unwrap_or(0));
            }
            // The half-life has changed, or the age of the job has restarted: count from here.
            (Some(_), Some(_)) => {}
        }
        self.passed = due;
        if due.is_some() { Self::WHOLE } else { 1 }
    }
}

/// Observation of one job in one control period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// Milliseconds since the job was first observed.
    pub job_age_ms: Millis,
    /// The time that `promotions` covers, in milliseconds; zero before the first complete scan.
    pub window_ms: Millis,
    /// Pages by age at the last scan, resident and far.
    pub cold: Histogram,
    /// The pages of `cold` that are in DRAM, which can be offloaded.
    pub resident: Histogram,
    /// Accesses by the page's age at the access, including real promotions.
    pub promotions: Histogram,
    /// The real promotions among them, if the others were estimated from a sample: these are counted by the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub returned: Option<Histogram>,
    /// Permitted promotions in the window, if they follow from the job's stall target and the cost of a promotion ([`allowance`])
    /// instead of P.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowance: Option<Pages>,
    /// Promotions that a trial of the job permits in the window ([`crate::trial`]), if these are fewer; `None` without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trial_max: Option<Pages>,
    /// The sample that the histograms were estimated from; `None` if all pages were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<Sample>,
    /// The age of the oldest pages that can go out now, where they go out by generations of the kernel; `None` where they go out one
    /// by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reach: Option<Age>,
    /// The veto in effect; `None` without one.
    pub veto: Option<Veto>,
}

impl Input {
    /// The promotions that are permitted of these.
    fn at_most(&self, promotions: Pages) -> Pages {
        self.trial_max.map_or(promotions, |most| promotions.min(most))
    }

    /// How many of the thresholds have pages that can go out now.
    fn reached(&self, thresholds: &Thresholds) -> usize {
        self.reach.map_or(thresholds.len(), |reach| thresholds.as_slice().partition_point(|&age| age <= reach))
    }
}

/// Returns the promotions that a stall target permits: `target * window / cost`, rounded down.
///
/// The threshold thereby depends on the tier: a page from zswap costs about 20 us, one from a slow disk some milliseconds, so the same
/// target permits hundreds of times as many promotions from zswap.
#[must_use]
pub fn allowance(stall_target: RatioPpm, window_ms: Millis, cost_us: u32) -> Pages {
    // ppm * ms / us: a target of one millionth is a nanosecond of each millisecond.
    let stall_ns = u128::from(stall_target.0) * u128::from(window_ms.0);
    Pages(u64::try_from(stall_ns / (u128::from(cost_us.max(1)) * 1_000)).unwrap_or(u64::MAX))
}

/// The action for a job in the next period, with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "action")]
pub enum Decision {
    /// Offload every resident page of this age or older.
    Offload {
        /// T, in scan periods.
        threshold: Age,
        /// The number of these pages.
        pages: Pages,
        /// The rule that determined T.
        reason: Reason,
    },
    /// Offload nothing.
    Hold {
        /// The reason.
        reason: Hold,
    },
}

/// The rule that determined the threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The K-th percentile of past bests.
    Percentile,
    /// The last period's best is above the percentile: a spike.
    Spike,
    /// The youngest threshold at or above both whose promotions leave a margin for a short history.
    ShortHistory,
    /// A part of the pages: all of them would exceed the objective.
    Partial,
    /// The youngest threshold whose promotions keep the stall target in the mean.
    Mean,
}

/// Why nothing is offloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// No scan has covered this job.
    NoHistory,
    /// The job is younger than S.
    WarmingUp,
    /// Even the oldest pages are promoted too often.
    NoThresholdQualifies,
    /// The history is too short for any threshold that would meet the objective so far.
    ShortHistory,
    /// No resident page has reached the threshold.
    NothingCold,
    /// No generation of the kernel is as old as the threshold yet.
    OutOfReach,
    /// As many pages are far as the objective permits.
    PartIsFar,
    /// More returned than the stall target permits, and quieter scans have not made up for it.
    Owed,
    /// A veto is in effect.
    Vetoed(Veto),
}

/// A decision with the values that it is based on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// What to do.
    pub decision: Decision,
    /// The smallest threshold that would have met the SLO in this period; `None` if none would have.
    pub best: Option<Age>,
    /// The threshold for the next period. It is determined even if offloading is held back for another reason.
    pub threshold: Option<Age>,
    /// Pages accessed within the minimum cold age.
    pub working_set: Pages,
    /// Promotions that the SLO or the allowance permitted in the window.
    pub promotions_max: Pages,
    /// The threshold if pages of any age could go out: the age that generations should distinguish. `None` where pages go out one by
    /// one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pace: Option<Age>,
}

/// Decides for one control period. Deterministic.
#[must_use]
pub fn step(params: &Params, thresholds: &Thresholds, state: &State, input: &Input) -> (State, Step) {
    let working_set = input.cold.below_first();
    let by_rate = || promotions_allowed(params.promotion_rate_max, working_set, input.window_ms);
    let promotions_max = input.at_most(input.allowance.unwrap_or_else(by_rate));
    let observed = input.window_ms > Millis::ZERO
        && input.cold.fits(thresholds)
        && input.promotions.fits(thresholds)
        && input.resident.fits(thresholds);
    if !observed {
        let decision = Decision::Hold { reason: Hold::NoHistory };
        return (*state, Step { decision, best: None, threshold: None, working_set, promotions_max, pace: None });
    }

    let mut next = *state;
    let weight = next.fading.fade(&mut next.bests, params.half_life_ms, input.job_age_ms);
    let Seen { best, returned_best, complete } = next.observe(params, thresholds, input, promotions_max);
    if returned_best > 0 {
        next.count(returned_best, weight.saturating_mul(window::RETURNED_WEIGHT));
    }
    if let Some(observed) = complete {
        next.count(observed.best, weight);
        next.count(observed.rest_best, weight.saturating_mul(u32::from(observed.scans) - 1));
        next.early = next.early.and_then(|mut early| {
            early.strict = params.partial;
            early.observe_input(thresholds, input, &observed);
            (!early.complete(thresholds.len())).then_some(early)
        });
    }
    let percentile = percentile_index(&next, params.percentile, if params.bound { weight } else { 0 });
    let past = if params.spikes { percentile.max(best) } else { percentile };
    let chosen = match next.early.filter(|_| params.bound) {
        Some(early) => early.first_qualifying(past, thresholds.len(), observations_needed(params.percentile)),
        None => past,
    };
    let young = next.window.is_some_and(|window| window.is_first());
    let (reached, needed) = (input.reached(thresholds), observations_needed(params.percentile));
    // Of a threshold beyond reach, none can go out now.
    let all = if chosen < reached { input.cold.at_or_above(chosen) } else { Pages::ZERO };
    let mut pace = thresholds.get(chosen);
    let part = next.early.as_mut().filter(|_| params.bound && params.partial).and_then(|early| {
        let largest = |reached| partial::largest(early, thresholds, input, promotions_max, past, needed, reached);
        let wanted = input.reach.and_then(|_| largest(thresholds.len())).filter(|part| part.far_max > input.cold.at_or_above(chosen));
        pace = wanted.map_or(pace, |part| thresholds.get(part.index));
        let part = largest(reached)?;
        Some(early.taken.follow(part, input, promotions_max, needed))
    });
    let decision = match part.filter(|part| part.far_max > all) {
        Some(part) => decide::by_part(params, input, thresholds, part),
        None => decide::by_threshold(params, input, thresholds, &decide::Choice { percentile, past, chosen, young }),
    };
    let (decision, threshold) = match next.follow_mean(params, input, promotions_max) {
        Some(mean) => {
            pace = input.reach.and_then(|_| mean.wanted(params, input, thresholds, promotions_max));
            mean.decide(params, input, thresholds, promotions_max)
        }
        None => (decision, thresholds.get(chosen)),
    };
    let pace = pace.filter(|_| input.reach.is_some());
    (next, Step { decision, best: thresholds.get(best), threshold, working_set, promotions_max, pace })
}

impl State {
    /// Whether the history is too short to say that no threshold will qualify.
    #[must_use]
    pub fn is_short(&self, params: &Params) -> bool {
        let needed = observations_needed(params.percentile);
        params.bound && self.early.as_ref().is_some_and(|early| early.observations(0) < needed)
    }

    /// Takes in what returned in the mean, if that decides.
    fn follow_mean(&mut self, params: &Params, input: &Input, allowed: Pages) -> Option<Mean> {
        self.mean = (params.mean && input.allowance.is_some()).then(|| self.mean.unwrap_or_default());
        self.mean.as_mut()?.observe(input, allowed, params.returns);
        self.mean
    }

    /// Returns the most pages that may be far in a tier whose latency permits `allowed` promotions in a scan; `None` if no stall target
    /// is kept in the mean, or nothing was measured.
    #[must_use]
    pub fn far_max(&self, params: &Params, thresholds: &Thresholds, input: &Input, allowed: Pages) -> Option<Pages> {
        self.mean?.largest(params, thresholds, input, input.at_most(allowed), thresholds.len()).map(|(part, _)| part.far_max)
    }

    fn count(&mut self, best: usize, weight: u32) {
        self.bests[best] = self.bests[best].saturating_add(weight);
    }

    /// What a control period shows, and adds to the history.
    fn observe(&mut self, params: &Params, thresholds: &Thresholds, input: &Input, allowed: Pages) -> Seen {
        if params.bound && input.sample.is_some_and(Sample::is_partial) {
            return self.window.get_or_insert_default().observe(thresholds, input, allowed);
        }
        self.window = None;
        let best = best_index(thresholds, &input.promotions, allowed);
        let all = Observed { promotions: input.promotions, allowed, scans: 1, best, rest_best: best };
        Seen { best, returned_best: 0, complete: Some(all) }
    }
}

/// Returns the promotions that P permits in a window: `P * working_set * window / 1 min`, rounded down. The model uses it, too.
#[must_use]
pub fn promotions_allowed(rate: RatioPpm, working_set: Pages, window_ms: Millis) -> Pages {
    const DIVISOR: u64 = 1_000_000 * MS_PER_MINUTE;
    // The product nearly always fits in 64 bits, where a division by a constant is a multiplication.
    if let Some(scaled) = u64::from(rate.0).checked_mul(working_set.0).and_then(|allowed| allowed.checked_mul(window_ms.0)) {
        return Pages(scaled / DIVISOR);
    }
    // 32 + 64 bits fit; a window of centuries saturates.
    let scaled = (u128::from(rate.0) * u128::from(working_set.0)).saturating_mul(u128::from(window_ms.0));
    Pages(u64::try_from(scaled / u128::from(DIVISOR)).unwrap_or(u64::MAX))
}

/// Returns the index of the smallest threshold with at most `allowed` promotions; `thresholds.len()` if there is none.
fn best_index(thresholds: &Thresholds, promotions: &Histogram, allowed: Pages) -> usize {
    // From the oldest threshold down: the suffix sum only grows, so the loop ends at the first excess.
    let mut promoted = 0u64;
    for index in (0..thresholds.len()).rev() {
        promoted = promoted.saturating_add(promotions.buckets()[index + 1]);
        if promoted > allowed.0 {
            return index + 1;
        }
    }
    0
}

/// Returns the index of the K-th percentile of the bests and of a further one of weight `ahead` above all of them: the smallest
/// index such that at least K of them are at or below it. If only the further one is, the highest best.
fn percentile_index(state: &State, percentile: RatioPpm, ahead: u32) -> usize {
    let total: u64 = state.bests.iter().map(|&n| u64::from(n)).sum();
    let rank = (u128::from(total + u64::from(ahead)) * u128::from(percentile.0)).div_ceil(1_000_000);
    let rank = rank.min(u128::from(total)).max(1);
    let mut cumulative = 0u128;
    for (index, &n) in state.bests.iter().enumerate() {
        cumulative += u128::from(n);
        if cumulative >= rank {
            return index;
        }
    }
    THRESHOLDS_MAX
}

mod decide;
pub mod early;
mod lists;
pub mod mean;
mod partial;
pub mod pooled;
mod shown;
mod stored;
pub mod window;

pub use early::{Early, observations_needed};
pub use lists::PoolSizeError;
pub use mean::Mean;
pub use pooled::Sample;
pub use window::{Observed, Seen, Window};

#[cfg(test)]
mod tests;

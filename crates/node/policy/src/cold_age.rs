//! The cold-age controller (000 section 4.3).
//!
//! # Problem
//! Choose the smallest cold age T such that moving every page idle for T or longer into far memory brings back no
//! more than P of the job's working set per minute. The promotion histogram answers that exactly for the minute
//! that has passed; the controller must answer it for the minute that comes.
//!
//! # Algorithm
//! Each control period:
//! 1. *best* = the smallest T of the predefined set whose promotions stayed at or under P; "none" if no T did.
//! 2. *percentile* = the K-th percentile of all past bests, this one included. "None" ranks above every T.
//! 3. T = max(percentile, best): a spike above the percentile counts at once.
//! 4. Nothing is offloaded during the first S seconds of the job, nor where T is "none".
//!
//! Two parameters change 2 and 3, and are off unless asked for. With a half-life, bests count the less the longer ago
//! they were, by halves (as in Autopilot, EuroSys 2020, and in the Vertical Pod Autoscaler after it); without one, all count
//! alike. Without the rule for spikes, T is the percentile.
//!
//! The pool of past bests is one counter per threshold, because only the set's members can be a best: a step reads
//! two histograms and the counters once, costs the same however long the job has run, and allocates nothing.
//!
//! # Properties
//! Each is a test of that name: [`step`] is deterministic; the threshold never falls when P falls; it never acts
//! before S; a spike raises the threshold at once; in steady state it violates the SLO in about (100 - K) % of the
//! periods; without a qualifying threshold it holds.

use serde::{Deserialize, Serialize};

use crate::histogram::Histogram;
use crate::thresholds::{THRESHOLDS_MAX, Thresholds};
use crate::veto::Veto;
use units::{Age, Pages, RatioPpm};

const MS_PER_MINUTE: u64 = 60_000;

/// What an operator or a tuner may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Params {
    /// P: promotions per minute allowed, as a share of the working set (000 section 4.2: 0.2 %).
    pub promotion_rate_max: RatioPpm,
    /// K: the percentile of past best thresholds that becomes the next threshold.
    pub percentile: RatioPpm,
    /// S: how long a job runs before anything of it is offloaded, in milliseconds.
    pub warmup_ms: u64,
    /// After how long a past best counts half, in milliseconds; 0 where all count alike.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub half_life_ms: u64,
    /// Whether a best above the percentile is the threshold: rule 3.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub spikes: bool,
}

impl Params {
    /// The parameters of the paper, and nothing beside them.
    #[must_use]
    pub const fn new(promotion_rate_max: RatioPpm, percentile: RatioPpm, warmup_ms: u64) -> Self {
        Self { promotion_rate_max, percentile, warmup_ms, half_life_ms: 0, spikes: true }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks this way")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks this way")]
fn is_yes(flag: &bool) -> bool {
    *flag
}

fn yes() -> bool {
    true
}

/// Everything that a controller remembers of a job: one counter per threshold, and one for "none".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "stored::Stored", into = "stored::Stored")]
pub struct State {
    bests: [u32; THRESHOLDS_MAX + 1],
    fading: Fading,
}

impl Default for State {
    fn default() -> Self {
        Self { bests: [0; THRESHOLDS_MAX + 1], fading: Fading::default() }
    }
}

/// How far the bests of a pool have faded.
///
/// The model keeps pools of its own, and lets them fade by this.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fading {
    /// The half-life in milliseconds, and how often it had passed at the job's last step; `None` where bests do not fade.
    passed: Option<(u64, u64)>,
}

impl Fading {
    /// What a best counts that does fade: halves of it are told apart six times.
    const WHOLE: u32 = 64;

    /// Lets a pool fade to this age of the job, and says what a best counts in it from now on.
    ///
    /// All counters are halved, rounded down, each time another half-life has passed. Percentiles are ratios, so a pool
    /// that has just begun to fade, or stopped, decides as before.
    #[must_use]
    #[inline]
    pub fn fade(&mut self, bests: &mut [u32], half_life_ms: u64, job_age_ms: u64) -> u32 {
        let due = job_age_ms.checked_div(half_life_ms).map(|passed| (half_life_ms, passed));
        match (self.passed, due) {
            (None, None) => return 1,
            (None, Some(_)) => bests.iter_mut().for_each(|n| *n = n.saturating_mul(Self::WHOLE)),
            (Some(_), None) => bests.iter_mut().for_each(|n| *n = n.div_ceil(Self::WHOLE)),
            (Some((before, passed)), Some((now, due))) if before == now && due > passed => {
                let halves = u32::try_from(due - passed).unwrap_or(u32::MAX);
                bests.iter_mut().for_each(|n| *n = n.checked_shr(halves).unwrap_or(0));
            }
            // Another half-life is configured, or the job is counted anew: from now on.
            (Some(_), Some(_)) => {}
        }
        self.passed = due;
        if due.is_some() { Self::WHOLE } else { 1 }
    }
}

/// What happened to one job during one control period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// Milliseconds since the job was first observed.
    pub job_age_ms: u64,
    /// Milliseconds of accesses that `promotions` covers; zero where no scan has finished yet.
    pub window_ms: u64,
    /// Pages by age at the last scan, resident and far.
    pub cold: Histogram,
    /// Of `cold`, the pages still in DRAM: what an offload can reach.
    pub resident: Histogram,
    /// Accesses by the page's age at the access, real promotions included.
    pub promotions: Histogram,
    /// Promotions that may come in the window, where something else than P says so: the job's stall target and what a
    /// promotion from its tier costs ([`allowance`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowance: Option<Pages>,
    /// Why the surroundings forbid offloading in this period, if they do.
    pub veto: Option<Veto>,
}

/// Promotions that a stall target leaves room for: `target * window / cost`, rounded down.
///
/// It ties the threshold to the tier. A page from zswap costs some 20 us and one from a slow disk some milliseconds; with
/// the same target, hundreds of times as many of the first may come back as of the second.
#[must_use]
pub fn allowance(stall_target: RatioPpm, window_ms: u64, cost_us: u32) -> Pages {
    // ppm * ms / us: a target of one millionth is a nanosecond of each millisecond.
    let stall_ns = u128::from(stall_target.0) * u128::from(window_ms);
    Pages(u64::try_from(stall_ns / (u128::from(cost_us.max(1)) * 1_000)).unwrap_or(u64::MAX))
}

/// What to do with a job in the coming period, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "action")]
pub enum Decision {
    /// Offload every resident page of this age or older.
    Offload {
        /// T, in scans.
        threshold: Age,
        /// How many pages that is.
        pages: Pages,
        /// Which rule set T.
        reason: Reason,
    },
    /// Offload nothing.
    Hold {
        /// What holds it back.
        reason: Hold,
    },
}

/// Which rule of the controller set the threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The K-th percentile of past bests.
    Percentile,
    /// The last period's best lay above the percentile: an SLO spike.
    Spike,
}

/// Why nothing is offloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// No scan has covered this job yet.
    NoHistory,
    /// The job is younger than S.
    WarmingUp,
    /// Even the oldest pages come back too often.
    NoThresholdQualifies,
    /// No resident page has reached the threshold.
    NothingCold,
    /// The surroundings forbid it.
    Vetoed(Veto),
}

/// A decision with the numbers that it rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// What to do.
    pub decision: Decision,
    /// The smallest threshold that would have met the SLO in this period; `None` where none would have.
    pub best: Option<Age>,
    /// The threshold for the coming period, known even while something else holds offloading back.
    pub threshold: Option<Age>,
    /// Pages accessed within the minimum cold age.
    pub working_set: Pages,
    /// Promotions that the SLO, or the allowance in its place, permitted during the window.
    pub promotions_max: Pages,
}

/// One control period. Pure: same arguments, same answer.
#[must_use]
pub fn step(params: &Params, thresholds: &Thresholds, state: &State, input: &Input) -> (State, Step) {
    let working_set = input.cold.below_first();
    let by_rate = || promotions_allowed(params.promotion_rate_max, working_set, input.window_ms);
    let promotions_max = input.allowance.unwrap_or_else(by_rate);
    let observed =
        input.window_ms > 0 && input.cold.fits(thresholds) && input.promotions.fits(thresholds) && input.resident.fits(thresholds);
    if !observed {
        let decision = Decision::Hold { reason: Hold::NoHistory };
        return (*state, Step { decision, best: None, threshold: None, working_set, promotions_max });
    }

    let best = best_index(thresholds, &input.promotions, promotions_max);
    let mut next = *state;
    let whole = next.fading.fade(&mut next.bests, params.half_life_ms, input.job_age_ms);
    next.bests[best] = next.bests[best].saturating_add(whole);
    let percentile = percentile_index(&next, params.percentile);
    let chosen = if params.spikes { percentile.max(best) } else { percentile };
    let threshold = thresholds.get(chosen);

    let decision = match (hold(params, input, threshold), threshold) {
        (Some(reason), _) => Decision::Hold { reason },
        (None, None) => Decision::Hold { reason: Hold::NoThresholdQualifies },
        (None, Some(threshold)) => match input.resident.at_or_above(chosen) {
            Pages::ZERO => Decision::Hold { reason: Hold::NothingCold },
            pages => {
                let reason = if chosen > percentile { Reason::Spike } else { Reason::Percentile };
                Decision::Offload { threshold, pages, reason }
            }
        },
    };
    (next, Step { decision, best: thresholds.get(best), threshold, working_set, promotions_max })
}

/// The threshold-independent reasons to hold, the most fundamental first.
fn hold(params: &Params, input: &Input, threshold: Option<Age>) -> Option<Hold> {
    if let Some(veto @ (Veto::ObserveOnly | Veto::OtherPolicy)) = input.veto {
        return Some(Hold::Vetoed(veto));
    }
    if input.job_age_ms < params.warmup_ms {
        return Some(Hold::WarmingUp);
    }
    if threshold.is_none() {
        return Some(Hold::NoThresholdQualifies);
    }
    input.veto.map(Hold::Vetoed)
}

/// P of the working set per minute, over a window: `P * working_set * window / 1 min`, rounded down.
///
/// The model, which asks for many entries of many jobs, calls it too.
#[must_use]
pub fn promotions_allowed(rate: RatioPpm, working_set: Pages, window_ms: u64) -> Pages {
    const DIVISOR: u64 = 1_000_000 * MS_PER_MINUTE;
    // Almost always the product fits in 64 bits, where a division by a constant is a multiplication.
    if let Some(scaled) = u64::from(rate.0).checked_mul(working_set.0).and_then(|allowed| allowed.checked_mul(window_ms)) {
        return Pages(scaled / DIVISOR);
    }
    // 32 + 64 bits fit; a window of centuries saturates.
    let scaled = (u128::from(rate.0) * u128::from(working_set.0)).saturating_mul(u128::from(window_ms));
    Pages(u64::try_from(scaled / u128::from(DIVISOR)).unwrap_or(u64::MAX))
}

/// Index of the smallest threshold whose promotions stayed within `allowed`; `thresholds.len()` stands for none.
fn best_index(thresholds: &Thresholds, promotions: &Histogram, allowed: Pages) -> usize {
    // From the oldest threshold down: the suffix sum only grows, so the first excess ends the walk.
    let mut promoted = 0u64;
    for index in (0..thresholds.len()).rev() {
        promoted = promoted.saturating_add(promotions.buckets()[index + 1]);
        if promoted > allowed.0 {
            return index + 1;
        }
    }
    0
}

/// Index of the K-th percentile of the pool: the smallest index at or below which at least K of the bests lie.
fn percentile_index(state: &State, percentile: RatioPpm) -> usize {
    let total: u64 = state.bests.iter().map(|&n| u64::from(n)).sum();
    let rank = (u128::from(total) * u128::from(percentile.0)).div_ceil(1_000_000).max(1);
    let mut seen = 0u128;
    for (index, &n) in state.bests.iter().enumerate() {
        seen += u128::from(n);
        if seen >= rank {
            return index;
        }
    }
    THRESHOLDS_MAX
}

mod stored;

pub use stored::PoolSizeError;

#[cfg(test)]
mod tests;

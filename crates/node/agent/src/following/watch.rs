//! The agent's guardrail: whether the jobs of this machine violate the operator's objectives under a bundle.
//!
//! It is coarse, because one machine has little data: it rejects what clearly violates the objectives within minutes, and leaves
//! finer comparison to the rollout, which has many machines. The objectives are those of the configuration file, which no bundle
//! changes.
//!
//! # Promotions
//! The objective is a percentile: it holds in 98 % of a job's minutes, and 2 % may violate it. Whether many more do is detected by
//! a cumulative sum (Page, Biometrika 1954) over the periods of all jobs. A period beyond the limit adds `ln(q / p)`, any other
//! adds the negative `ln((1 - q) / (1 - p))`, with p = 2 % and q = 25 %; the sum never falls below zero. Under a bundle that keeps
//! the percentile, the sum passes h at most once in e^h periods (Lorden, Annals of Mathematical Statistics 1971): with the h
//! here, once in 10^8, which is 700 days for a machine of a hundred jobs and periods of a minute. That holds for independent
//! periods. Those of one job's burst are not independent; for them the limit is `rollout.promotion_max` times the objective. A
//! bundle under which all periods are beyond the limit passes h with the eighth.
//!
//! A bundle may also be over the objective all the time, and never far: half of the periods at 1.7 times the objective were not
//! noticed by that sum alone (scenario `bad_bundle`). A second sum is over the periods beyond the objective itself, with p = 20 % and
//! q = 50 %, so that a burst must last for twenty periods to count as proof.
//!
//! The guardrail and the controller use the same bound. With the operator's `cold_age.bound`, a young job exceeds its objective
//! no more often than an old one, so its periods count from the first on, and a bundle that takes more than the bound allows is
//! rejected for it. Without it, the history of a young job is too short for its percentile K, whatever the bundle: of n periods,
//! the worst only shows that about one in n + 1 is worse. A job's promotions then count from the period that completes the
//! observations that the bound needs ([`observations_needed`]).

use std::collections::BTreeMap;

use config::{ColdAge, Policy, Rollout};
use policy::cold_age::observations_needed;
use units::{Millis, RatioPpm};

use crate::context::guardrail::JobPeriod;

/// The objectives that a bundle may violate.
pub const KINDS: [&str; 3] = ["promotions", "stall", "starts"];

/// What periods add to a cumulative sum, in thousandths of a natural logarithm.
#[derive(Clone, Copy, Debug)]
struct Weights {
    /// Of a period beyond the limit: `ln(q / p)`.
    beyond: u64,
    /// What any other subtracts: `ln((1 - p) / (1 - q))`.
    within: u64,
}

/// Far beyond the objective: p = 2 %, q = 25 %.
const FAR: Weights = Weights { beyond: 2_526, within: 267 };

/// Beyond the objective: p = 20 %, q = 50 %.
const OVER: Weights = Weights { beyond: 916, within: 470 };

/// Evidence that rejects the bundle: `ln(10^8)`.
const ENOUGH: u64 = 18_421;

/// A cumulative sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    /// In thousandths of a natural logarithm.
    evidence: u64,
    /// Periods since the evidence was last zero, and those of them that were beyond the limit.
    periods: u64,
    beyond: u64,
}

impl Sum {
    fn weigh(&mut self, weights: Weights, beyond: bool) {
        self.evidence = if beyond { self.evidence.saturating_add(weights.beyond) } else { self.evidence.saturating_sub(weights.within) };
        if self.evidence == 0 {
            (self.periods, self.beyond) = (0, 0);
        } else {
            self.periods += 1;
            self.beyond += u64::from(beyond);
        }
    }

    fn is_enough(&self) -> bool {
        self.evidence >= ENOUGH
    }
}

/// The evidence against the bundle in effect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watch {
    /// By promotion rates far beyond their objectives.
    far: Sum,
    /// By promotion rates beyond their objectives.
    over: Sum,
    /// Control periods in a row in which a job stalled beyond its target, by job.
    stalled: BTreeMap<String, u32>,
    /// Stall of each job, ever, in microseconds.
    stall_us: BTreeMap<String, u64>,
}

/// One period of a job, measured against the operator's own objectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Promotion rate and the operator's objective, in millionths of the working set per minute; `None` if the job had no far
    /// memory, no working set, or too few periods.
    pub promotions_ppm: Option<(u64, u64)>,
    /// Whether it has far memory.
    pub far: bool,
    /// Stall of its tasks for memory, ever, in microseconds.
    pub stall_us: u64,
    /// Length of the period in milliseconds.
    pub elapsed_ms: Millis,
    /// The share of time that it may stall, in millionths.
    pub stall_target_ppm: u32,
}

impl Sample {
    /// A period, judged by the operator's objectives for the job's class.
    #[must_use]
    pub fn of(period: &JobPeriod, own: &ColdAge, stall_target: RatioPpm) -> Self {
        let known = own.bound || period.periods > u64::from(observations_needed(own.percentile));
        let promotions_ppm = period.promotions_ppm.filter(|_| known).and_then(|(rate, in_effect)| match period.policy {
            Policy::ColdAge => Some((rate, u64::from(own.promotion_rate.0))),
            // The objective in effect is proportional to the stall target in effect; the operator's own target replaces that. An
            // objective of zero is that of a period whose cost is not known yet.
            Policy::Auto => {
                let target = period.stall_target.map_or(0, |target| target.0);
                let own = (u128::from(in_effect) * u128::from(stall_target.0)).checked_div(u128::from(target))?;
                u64::try_from(own).ok().filter(|&own| own > 0).map(|own| (rate, own))
            }
            // Promotions are no objective of these policies.
            _ => None,
        });
        let (far, stall_us, elapsed_ms) = (period.far, period.stall_us, period.elapsed_ms);
        Self { promotions_ppm, far, stall_us, elapsed_ms, stall_target_ppm: stall_target.0 }
    }
}

impl Watch {
    /// Accounts a period of a job. `promotion_max` is the tolerated promotion rate as a multiple of the objective.
    pub fn note(&mut self, job: &str, sample: &Sample, promotion_max: RatioPpm) {
        if let Some((rate, objective)) = sample.promotions_ppm {
            let limit = u128::from(objective) * u128::from(promotion_max.0) / 1_000_000;
            self.far.weigh(FAR, u128::from(rate) > limit);
            self.over.weigh(OVER, rate > objective);
        }
        let before = self.stall_us.insert(job.to_owned(), sample.stall_us);
        // A counter that decreases belongs to a recreated cgroup.
        let stalled_us = before.map_or(0, |before| sample.stall_us.saturating_sub(before));
        // A millionth of a millisecond is a thousandth of a microsecond.
        let allowed_us = u128::from(sample.elapsed_ms.0) * u128::from(sample.stall_target_ppm) / 1_000;
        if sample.far && u128::from(stalled_us) > allowed_us {
            *self.stalled.entry(job.to_owned()).or_default() += 1;
        } else {
            self.stalled.remove(job);
        }
    }

    /// Forgets jobs that have ended.
    pub fn keep(&mut self, lives: impl Fn(&str) -> bool) {
        self.stalled.retain(|job, _| lives(job));
        self.stall_us.retain(|job, _| lives(job));
    }

    /// Which objective is violated, and how; `None` if none is.
    #[must_use]
    pub fn breach(&self, limits: &Rollout) -> Option<(&'static str, String)> {
        if self.far.is_enough() {
            let (Sum { beyond, periods, .. }, limit) = (self.far, limits.promotion_max);
            let why = format!("{beyond} of the last {periods} periods of its jobs had promotion rates beyond {limit} of their objectives");
            return Some((KINDS[0], why));
        }
        if self.over.is_enough() {
            let Sum { beyond, periods, .. } = self.over;
            return Some((KINDS[0], format!("{beyond} of the last {periods} periods of its jobs were over their promotion objectives")));
        }
        let worst = self.stalled.iter().max_by_key(|(_, periods)| **periods)?;
        let broken = *worst.1 >= limits.stall_periods;
        broken.then(|| (KINDS[1], format!("{} has stalled beyond its target in {} control periods in a row", worst.0, worst.1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: RatioPpm = RatioPpm(3_000_000);

    fn limits() -> Rollout {
        Rollout { promotion_max: LIMIT, stall_periods: 3, ..Rollout::default() }
    }

    const QUIET: Sample = Sample { promotions_ppm: None, far: true, stall_us: 0, elapsed_ms: Millis(60_000), stall_target_ppm: 1_000 };

    fn rated(rate: u64) -> Sample {
        Sample { promotions_ppm: Some((rate, 2_000)), ..QUIET }
    }

    /// The first period at which a sum is enough, of periods that are beyond its limit or not.
    fn enough_at(weights: Weights, beyond: impl IntoIterator<Item = bool>) -> Option<usize> {
        let mut sum = Sum::default();
        beyond.into_iter().position(|beyond| {
            sum.weigh(weights, beyond);
            sum.is_enough()
        })
    }

    fn broken_at(beyond: impl IntoIterator<Item = bool>) -> Option<usize> {
        enough_at(FAR, beyond)
    }

    #[test]
    fn a_bundle_is_rejected_if_half_of_the_periods_are_over_the_objective() {
        let every = |n: usize| (0..10_000).map(move |at| at % n == 0);
        assert_eq!(enough_at(OVER, every(2)), Some(80));
        assert_eq!(enough_at(OVER, every(3)), None);
        assert_eq!(enough_at(OVER, [true; 30]), Some(20), "a burst of twenty periods is none yet");
        assert_eq!(enough_at(OVER, (0..100_000).map(|at| at % 1_440 < 20)), None, "once a day");
        let mut random = fastrand::Rng::with_seed(8);
        assert_eq!(enough_at(OVER, (0..2_000_000).map(|_| random.f64() < 0.05)), None);
        let mut watch = Watch::default();
        let at = (0..100).position(|at| {
            watch.note("/a", &rated(if at % 3 == 0 { 1_000 } else { 3_400 }), LIMIT);
            watch.breach(&limits()).is_some()
        });
        assert_eq!(at, Some(40));
        assert!(watch.breach(&limits()).unwrap().1.ends_with("were over their promotion objectives"));
    }

    #[test]
    fn a_bundle_is_rejected_if_many_more_than_two_percent_are_beyond_the_limit() {
        let every = |n: usize| (0..10_000).map(move |at| at % n == 0);
        assert_eq!(broken_at([true; 10]), Some(7));
        assert_eq!(broken_at(every(2)), Some(16));
        assert_eq!(broken_at(every(4)), Some(40));
        assert_eq!(broken_at(every(20)), None);
        // A short disturbance: six periods of one job, once a day.
        assert_eq!(broken_at((0..100_000).map(|at| at % 1_440 < 6)), None);
        // Earlier periods within the limit do not outweigh later ones beyond it.
        assert_eq!(broken_at((0..2_000).map(|at| at >= 1_000)), Some(1_007));
    }

    #[test]
    fn a_bundle_that_keeps_its_percentile_is_not_rejected() {
        let mut random = fastrand::Rng::with_seed(8);
        assert_eq!(broken_at((0..2_000_000).map(|_| random.f64() < 0.02)), None);
        let found: Vec<_> = (0..200).map(|_| broken_at((0..2_000).map(|_| random.f64() < 0.25)).unwrap()).collect();
        assert!(found.iter().sum::<usize>() / found.len() < 80, "{found:?}");
    }

    #[test]
    fn the_reason_counts_the_periods() {
        let mut watch = Watch::default();
        (0..50).for_each(|_| watch.note("/a", &rated(1), LIMIT));
        (0..9).for_each(|at| watch.note("/a", &rated(if at == 3 { 0 } else { 9_000 }), LIMIT));
        let (kind, why) = watch.breach(&limits()).unwrap();
        assert_eq!(
            (kind, why.as_str()),
            ("promotions", "8 of the last 9 periods of its jobs had promotion rates beyond 300% of their objectives")
        );
        // At the limit is within it.
        let mut watch = Watch::default();
        (0..50).for_each(|_| watch.note("/a", &rated(6_000), LIMIT));
        assert_eq!(watch.far.evidence, 0);
        // With an objective of zero any promotion is beyond it.
        let mut watch = Watch::default();
        (0..8).for_each(|_| watch.note("/a", &Sample { promotions_ppm: Some((1, 0)), ..QUIET }, LIMIT));
        assert!(watch.breach(&limits()).is_some());
    }

    #[test]
    fn a_young_job_counts_if_the_operators_threshold_is_bounded() {
        let counts = |bound, percentile, periods| {
            let own = ColdAge { bound, percentile: RatioPpm(percentile), ..ColdAge::default() };
            let period = JobPeriod {
                job: "/a".to_owned(),
                class: config::Class::Standard,
                policy: Policy::ColdAge,
                periods,
                promotions_ppm: Some((9_000, 8_000)),
                stall_target: None,
                far: true,
                stall_us: 0,
                elapsed_ms: Millis(60_000),
            };
            Sample::of(&period, &own, RatioPpm(1_000)).promotions_ppm
        };
        let own = Some((9_000, u64::from(ColdAge::default().promotion_rate.0)));
        assert_eq!((counts(true, 990_000, 1), counts(true, 1_000_000, 1)), (own, own));
        for (percentile, periods) in [(500_000, 2), (980_000, 50), (990_000, 100), (1_000_000, 500)] {
            assert_eq!((counts(false, percentile, periods), counts(false, percentile, periods + 1)), (None, own), "{percentile} ppm");
        }
    }

    #[test]
    fn a_lasting_stall_rejects_a_bundle() {
        let check = |what: &str, periods: &[(u64, bool)], broken: bool| {
            let (mut watch, mut total) = (Watch::default(), 500);
            watch.note("/a", &Sample { stall_us: total, ..QUIET }, LIMIT);
            for &(stall, far) in periods {
                total += stall;
                watch.note("/a", &Sample { stall_us: total, far, ..QUIET }, LIMIT);
                watch.note("/b", &QUIET, LIMIT);
            }
            assert_eq!(watch.breach(&limits()).map(|(kind, _)| kind), broken.then_some("stall"), "{what}");
        };
        let (over, at) = ((60_001, true), (60_000, true));
        check("three in a row", &[over, over, over], true);
        check("two", &[over, over], false);
        check("interrupted", &[over, over, at, over, over], false);
        check("without far memory", &[(90_000, false); 9], false);
        let mut watch = Watch::default();
        (1..9).for_each(|at| watch.note("/a", &Sample { stall_us: at * 90_000, ..QUIET }, LIMIT));
        watch.keep(|job| job != "/a");
        assert_eq!(watch, Watch::default());
    }
}

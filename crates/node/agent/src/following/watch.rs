//! The agent's own guardrail: whether jobs feel a bundle more than the operator's objectives allow.
//!
//! It is coarse, for one machine sees little: it stops what clearly hurts within minutes, and leaves fine judgement to the
//! rollout, which compares many machines. The objectives are those of the configuration file, which no bundle moves.
//!
//! # Promotions
//! The objective is a percentile: 98 % of a job's minutes keep it, so 2 % need not. Whether far more do not is told by a cumulative
//! sum (Page, Biometrika 1954) over the periods of all jobs. A period beyond the limit adds `ln(q / p)` to it, any other
//! `ln((1 - q) / (1 - p))`, which is less than nothing, with p = 2 % and q = 25 %; below zero it starts again. Under a bundle that
//! keeps the percentile, this passes h once in e^h periods or less often (Lorden, Annals of Mathematical Statistics 1971): at the
//! h here, once in 10^8, which is 700 days for a machine of a hundred jobs and periods of a minute. That is for periods that are
//! independent. Those of one job's burst are not; what is left for them is that the limit is `rollout.promotion_max` times the
//! objective. A bundle under which all periods are beyond passes h with the eighth.
//!
//! The history of a young job is too short for its own percentile K, whatever the bundle: of n periods, the worst says no more
//! than that one in n + 1 is worse. A job's promotions count from the period on that leaves it 1 / (1 - K) of them
//! ([`periods_to_know`]).

use std::collections::BTreeMap;

use config::Rollout;
use units::RatioPpm;

/// By what a bundle may hurt.
pub const KINDS: [&str; 3] = ["promotions", "stall", "starts"];

/// What a period beyond the limit adds to the evidence, in thousandths: `ln(0.25 / 0.02)`.
const BEYOND: u64 = 2_526;

/// What any other takes from it: `ln(0.98 / 0.75)`.
const WITHIN: u64 = 267;

/// How much evidence is enough: `ln(10^8)`.
const ENOUGH: u64 = 18_421;

/// The most periods that a job is young for, where K is close to all of them.
const YOUNG_MAX: u64 = 500;

/// What was seen under a bundle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watch {
    /// Against the bundle, by its promotions, in thousandths of a natural logarithm.
    evidence: u64,
    /// Since the evidence was last nothing: periods, and those of them that were beyond the limit.
    periods: u64,
    beyond: u64,
    /// Of jobs that stall beyond their target, in how many control periods in a row.
    stalled: BTreeMap<String, u32>,
    /// Stall of each job so far, in microseconds.
    stall_us: BTreeMap<String, u64>,
}

/// How many periods with far memory a job must have had before it says something of this percentile.
#[must_use]
pub fn periods_to_know(percentile: RatioPpm) -> u64 {
    let rest = 1_000_000_u64.saturating_sub(u64::from(percentile.0));
    1_000_000_u64.checked_div(rest).unwrap_or(YOUNG_MAX).min(YOUNG_MAX)
}

/// One period of a job, as it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Felt {
    /// Its promotion rate and the operator's objective for it, in millionths of the working set a minute; `None` where it had
    /// no far memory, or nothing to divide by, or is young.
    pub promotions_ppm: Option<(u64, u64)>,
    /// Whether it has far memory.
    pub far: bool,
    /// Stall for memory so far, in microseconds.
    pub stall_us: u64,
    /// How long the period was.
    pub elapsed_ms: u64,
    /// The share of time that it may stall, in millionths.
    pub stall_target_ppm: u32,
}

impl Watch {
    /// Takes in a period of a job, and what its promotion rate may be, as a share of its objective.
    pub fn note(&mut self, job: &str, felt: &Felt, promotion_max: RatioPpm) {
        if let Some((rate, objective)) = felt.promotions_ppm {
            let limit = u128::from(objective) * u128::from(promotion_max.0) / 1_000_000;
            self.weigh(u128::from(rate) > limit);
        }
        let before = self.stall_us.insert(job.to_owned(), felt.stall_us);
        // A counter that went back is another cgroup's.
        let stalled_us = before.map_or(0, |before| felt.stall_us.saturating_sub(before));
        // Microseconds in so many milliseconds: a millionth of the time is a thousandth of them.
        let allowed_us = u128::from(felt.elapsed_ms) * u128::from(felt.stall_target_ppm) / 1_000;
        if felt.far && u128::from(stalled_us) > allowed_us {
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

    fn weigh(&mut self, beyond: bool) {
        self.evidence = if beyond { self.evidence.saturating_add(BEYOND) } else { self.evidence.saturating_sub(WITHIN) };
        if self.evidence == 0 {
            (self.periods, self.beyond) = (0, 0);
        } else {
            self.periods += 1;
            self.beyond += u64::from(beyond);
        }
    }

    /// What breaks the guardrail, if something does: its kind, and why.
    #[must_use]
    pub fn breach(&self, limits: &Rollout) -> Option<(&'static str, String)> {
        if self.evidence >= ENOUGH {
            let (beyond, periods, limit) = (self.beyond, self.periods, limits.promotion_max);
            return Some((
                KINDS[0],
                format!("{beyond} of the last {periods} periods of its jobs had promotion rates beyond {limit} of their objectives"),
            ));
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

    const QUIET: Felt = Felt { promotions_ppm: None, far: true, stall_us: 0, elapsed_ms: 60_000, stall_target_ppm: 1_000 };

    fn rated(rate: u64) -> Felt {
        Felt { promotions_ppm: Some((rate, 2_000)), ..QUIET }
    }

    /// The first period at which the guardrail is broken, of periods that are beyond the limit or not.
    fn broken_at(beyond: impl IntoIterator<Item = bool>) -> Option<usize> {
        let (mut watch, limits) = (Watch::default(), limits());
        beyond.into_iter().position(|beyond| {
            watch.weigh(beyond);
            watch.breach(&limits).is_some()
        })
    }

    #[test]
    fn promotions_break_it_when_far_more_than_two_in_a_hundred_are_beyond() {
        let every = |n: usize| (0..10_000).map(move |at| at % n == 0);
        assert_eq!(broken_at([true; 10]), Some(7));
        assert_eq!(broken_at(every(2)), Some(16));
        assert_eq!(broken_at(every(4)), Some(40));
        assert_eq!(broken_at(every(20)), None);
        // A disturbance that passes: six periods of one job, once a day.
        assert_eq!(broken_at((0..100_000).map(|at| at % 1_440 < 6)), None);
        // What went well for long does not count for what comes then.
        assert_eq!(broken_at((0..2_000).map(|at| at >= 1_000)), Some(1_007));
    }

    #[test]
    fn what_keeps_its_percentile_is_left_alone() {
        let mut random = fastrand::Rng::with_seed(8);
        assert_eq!(broken_at((0..2_000_000).map(|_| random.f64() < 0.02)), None);
        let found: Vec<_> = (0..200).map(|_| broken_at((0..2_000).map(|_| random.f64() < 0.25)).unwrap()).collect();
        assert!(found.iter().sum::<usize>() / found.len() < 80, "{found:?}");
    }

    #[test]
    fn what_is_told_counts_the_periods() {
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
        assert_eq!(watch.evidence, 0);
        // Where nothing may come back, whatever does is too much.
        let mut watch = Watch::default();
        (0..8).for_each(|_| watch.note("/a", &Felt { promotions_ppm: Some((1, 0)), ..QUIET }, LIMIT));
        assert!(watch.breach(&limits()).is_some());
    }

    #[test]
    fn a_job_is_young_until_its_percentile_means_something() {
        for (percentile, periods) in [(500_000, 2), (980_000, 50), (990_000, 100), (999_000, 500), (1_000_000, 500)] {
            assert_eq!(periods_to_know(RatioPpm(percentile)), periods, "{percentile} ppm");
        }
    }

    #[test]
    fn a_stall_breaks_it_when_it_lasts() {
        let check = |what: &str, periods: &[(u64, bool)], broken: bool| {
            let (mut watch, mut total) = (Watch::default(), 500);
            watch.note("/a", &Felt { stall_us: total, ..QUIET }, LIMIT);
            for &(stall, far) in periods {
                total += stall;
                watch.note("/a", &Felt { stall_us: total, far, ..QUIET }, LIMIT);
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
        (1..9).for_each(|at| watch.note("/a", &Felt { stall_us: at * 90_000, ..QUIET }, LIMIT));
        watch.keep(|job| job != "/a");
        assert_eq!(watch, Watch::default());
    }
}

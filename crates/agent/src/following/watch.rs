//! The agent's own guardrail: whether jobs feel a bundle more than the operator's objectives allow.
//!
//! It is coarse, for one machine sees little: it stops what clearly hurts within minutes, and leaves fine judgement to the
//! rollout, which compares many machines. The objectives are those of the configuration file, which no bundle moves.

use std::collections::{BTreeMap, VecDeque};

use config::Rollout;

/// By what a bundle may hurt.
pub const KINDS: [&str; 3] = ["promotions", "stall", "starts"];

/// The fewest periods of jobs that the percentile is taken of: the lower bound on its 98th is then the worst but one.
const PERIODS_MIN: usize = 50;

/// The most: beyond, the oldest go.
const PERIODS_MAX: usize = 500;

/// What was seen under a bundle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watch {
    /// Promotion rates of jobs' periods with far memory, in millionths of their objectives, oldest first.
    rates: VecDeque<u64>,
    /// Of jobs that stall beyond their target, in how many control periods in a row.
    stalled: BTreeMap<String, u32>,
    /// Stall of each job so far, in microseconds.
    stall_us: BTreeMap<String, u64>,
}

/// One period of a job, as it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Felt {
    /// Its promotion rate and the operator's objective for it, in millionths of the working set a minute; `None` where it had
    /// no far memory, or nothing to divide by.
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
    /// Takes in a period of a job.
    pub fn note(&mut self, job: &str, felt: &Felt) {
        if let Some((rate, objective)) = felt.promotions_ppm {
            // Where nothing may come back, whatever does is beyond all measure.
            let share = (u128::from(rate) * 1_000_000).checked_div(u128::from(objective)).unwrap_or(u128::from(rate) << 64);
            if self.rates.len() == PERIODS_MAX {
                self.rates.pop_front();
            }
            self.rates.push_back(u64::try_from(share).unwrap_or(u64::MAX));
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

    /// The 98th percentile of the rates, in millionths of the objectives, once there are enough.
    #[must_use]
    pub fn p98_ppm(&self) -> Option<u64> {
        if self.rates.len() < PERIODS_MIN {
            return None;
        }
        let mut rates: Vec<_> = self.rates.iter().copied().collect();
        // Nearest rank, rounded down: of fifty the worst alone says nothing.
        let at = rates.len() * 98 / 100 - 1;
        Some(*rates.select_nth_unstable(at).1)
    }

    /// What breaks the guardrail, if something does: its kind, and why.
    #[must_use]
    pub fn breach(&self, limits: &Rollout) -> Option<(&'static str, String)> {
        if let Some(p98) = self.p98_ppm().filter(|&p98| p98 > u64::from(limits.promotion_max.0)) {
            let (percent, periods) = (p98 / 10_000, self.rates.len());
            let allowed = limits.promotion_max;
            return Some((
                KINDS[0],
                format!("promotion rates reach {percent}% of their objectives (98th percentile of {periods} periods, {allowed} allowed)"),
            ));
        }
        let worst = self.stalled.iter().max_by_key(|(_, periods)| **periods)?;
        let broken = *worst.1 >= limits.stall_periods;
        broken.then(|| (KINDS[1], format!("{} has stalled beyond its target in {} control periods in a row", worst.0, worst.1)))
    }
}

#[cfg(test)]
mod tests {
    use policy::units::RatioPpm;

    use super::*;

    fn limits() -> Rollout {
        Rollout { promotion_max: RatioPpm(3_000_000), stall_periods: 3, ..Rollout::default() }
    }

    const QUIET: Felt = Felt { promotions_ppm: None, far: true, stall_us: 0, elapsed_ms: 60_000, stall_target_ppm: 1_000 };

    fn rated(rate: u64) -> Felt {
        Felt { promotions_ppm: Some((rate, 2_000)), ..QUIET }
    }

    #[test]
    fn promotions_break_it_by_their_percentile() {
        // Of so many periods so many are above the limit.
        let check = |periods: usize, above: usize, broken: bool| {
            let mut watch = Watch::default();
            for at in 0..periods {
                watch.note("/a", &rated(if at < above { 6_001 } else { 2_000 }));
            }
            assert_eq!(watch.breach(&limits()).map(|(kind, _)| kind), broken.then_some("promotions"), "{above} of {periods}");
        };
        check(49, 49, false);
        check(50, 1, false);
        check(50, 2, true);
        check(500, 10, false);
        check(500, 11, true);
        // What is long past does not count.
        check(1_000, 400, false);
        let mut watch = Watch::default();
        (0..60).for_each(|_| watch.note("/a", &rated(6_000)));
        assert_eq!((watch.p98_ppm(), watch.breach(&limits())), (Some(3_000_000), None), "at the limit is within it");
        let mut watch = Watch::default();
        (0..60).for_each(|_| watch.note("/a", &Felt { promotions_ppm: Some((1, 0)), ..QUIET }));
        assert!(watch.breach(&limits()).is_some(), "nothing is allowed");
    }

    #[test]
    fn a_stall_breaks_it_when_it_lasts() {
        let check = |what: &str, periods: &[(u64, bool)], broken: bool| {
            let (mut watch, mut total) = (Watch::default(), 500);
            watch.note("/a", &Felt { stall_us: total, ..QUIET });
            for &(stall, far) in periods {
                total += stall;
                watch.note("/a", &Felt { stall_us: total, far, ..QUIET });
                watch.note("/b", &QUIET);
            }
            assert_eq!(watch.breach(&limits()).map(|(kind, _)| kind), broken.then_some("stall"), "{what}");
        };
        let (over, at) = ((60_001, true), (60_000, true));
        check("three in a row", &[over, over, over], true);
        check("two", &[over, over], false);
        check("interrupted", &[over, over, at, over, over], false);
        check("without far memory", &[(90_000, false); 9], false);
        let mut watch = Watch::default();
        (1..9).for_each(|at| watch.note("/a", &Felt { stall_us: at * 90_000, ..QUIET }));
        watch.keep(|job| job != "/a");
        assert_eq!(watch, Watch::default());
    }
}

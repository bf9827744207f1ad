//! Builds the trace of a generated program.

use std::ops::Range;

use units::RatioPpm;

use crate::trace::{Group, Interval, Kind, Trace};

/// Pages of 4 KiB in a MiB.
pub(super) const PAGES_PER_MIB: u32 = 256;

/// Intervals of a second that settle, as in the guest arena.
pub(super) const SETTLE: u32 = 160;

/// The guest arena's compression of time: a second stands for a minute.
const COMPRESSION: u32 = 60;

/// A trace in progress.
pub(super) struct Builder {
    /// The program's own random numbers.
    pub(super) random: fastrand::Rng,
    groups: Vec<Group>,
    intervals: Vec<Interval>,
}

impl Builder {
    pub(super) fn new(seed: u64, intervals: u32) -> Self {
        let intervals = (0..intervals).map(|_| Interval::default()).collect();
        Self { random: fastrand::Rng::with_seed(seed), groups: Vec::new(), intervals }
    }

    /// Anonymous memory of so many MiB, whose pages compress to `percent`, 10 points more or less.
    pub(super) fn anon(&mut self, mib: u32, percent: u32) -> Range<u32> {
        let first = self.len();
        for _ in 0..mib * PAGES_PER_MIB {
            let compressed = (percent * 10_000 + self.random.u32(0..200_000)).saturating_sub(100_000);
            self.groups.push(Group { kind: Kind::Anon, compressed: RatioPpm(compressed.max(10_000)) });
        }
        first..self.len()
    }

    /// Page cache of so many MiB.
    pub(super) fn file(&mut self, mib: u32) -> Range<u32> {
        let first = self.len();
        let more = (mib * PAGES_PER_MIB) as usize;
        self.groups.resize(self.groups.len() + more, Group { kind: Kind::File, compressed: RatioPpm::ONE });
        first..self.len()
    }

    /// Intervals of the trace.
    pub(super) fn intervals(&self) -> u32 {
        u32::try_from(self.intervals.len()).unwrap_or(u32::MAX)
    }

    fn len(&self) -> u32 {
        u32::try_from(self.groups.len()).unwrap_or(u32::MAX)
    }

    /// The program accesses groups in an interval.
    pub(super) fn access(&mut self, at: u32, groups: impl IntoIterator<Item = u32>) {
        if let Some(interval) = self.intervals.get_mut(at as usize) {
            interval.accessed.extend(groups);
        }
    }

    /// The program frees groups at the end of an interval.
    pub(super) fn free(&mut self, at: u32, groups: impl IntoIterator<Item = u32>) {
        if let Some(interval) = self.intervals.get_mut(at as usize) {
            interval.freed.extend(groups);
        }
    }

    /// The program accesses each group by a Poisson process of its own, with a rate between two bounds, per second.
    pub(super) fn poisson(&mut self, groups: Range<u32>, slowest: f64, fastest: f64) {
        for group in groups {
            let rate = slowest + (fastest - slowest) * self.random.f64();
            let mut at = 0.0;
            loop {
                at -= libm::log(1.0 - self.random.f64()) / rate;
                if at >= f64::from(self.intervals()) {
                    break;
                }
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and the number of intervals")]
                self.access(at as u32, [group]);
            }
        }
    }

    pub(super) fn finish(mut self, name: &str) -> Trace {
        for interval in &mut self.intervals {
            for groups in [&mut interval.accessed, &mut interval.freed] {
                groups.sort_unstable();
                groups.dedup();
            }
        }
        Trace {
            name: name.to_owned(),
            interval_ms: 1_000,
            group_pages: 1,
            compression: COMPRESSION,
            settle: SETTLE,
            groups: self.groups,
            intervals: self.intervals,
        }
    }
}

/// Draws ranks by Zipf's law: rank r, from zero, with a weight of 1 / (r + 1)^s.
pub(super) struct Zipf(Vec<f64>);

impl Zipf {
    pub(super) fn new(ranks: u32, exponent: f64) -> Self {
        let mut sum = 0.0;
        let cumulative = (1..=ranks).map(|rank| {
            sum += libm::pow(f64::from(rank), -exponent);
            sum
        });
        Self(cumulative.collect())
    }

    pub(super) fn draw(&self, random: &mut fastrand::Rng) -> u32 {
        let at = random.f64() * self.0.last().copied().unwrap_or(0.0);
        u32::try_from(self.0.partition_point(|&sum| sum <= at).min(self.0.len().saturating_sub(1))).unwrap_or(0)
    }
}

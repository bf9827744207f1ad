//! Accesses at random times: each 2 MiB block is a Poisson process with its own rate.
//!
//! All blocks of a region are simulated as one process. If each arrival of a process with the sum of the rates is
//! assigned to a block with a probability proportional to its rate, the blocks have independent Poisson processes of
//! those rates. Only the next arrival has to be stored.

use fastrand::Rng;

use crate::rounding::floor;
use crate::zipf::ZipfPages;

use super::spec::{BLOCK_PAGES, Poisson};

/// An access that is late by more than this is dropped, with all others that became due meanwhile. A delayed workload
/// would otherwise make them all at once, which is no Poisson process, and which accessed bits would show as a single
/// access.
const LATE_MAX_NS: u64 = 50_000_000;

/// The accesses of one region in one phase.
pub(super) struct Arrivals {
    /// Cumulated rates of the blocks by rank; the last is the total rate.
    cumulated: Vec<f64>,
    /// Block of each rank.
    blocks: Vec<usize>,
    /// Popularity of the accessed pages within a block, the same in each block.
    parts: ZipfPages,
    /// Distance between the accessed pages of a block.
    stride: usize,
    rng: Rng,
    next_ns: u64,
}

impl Arrivals {
    /// Starts a process at `now_ns` in a region of `pages` pages, a multiple of [`BLOCK_PAGES`].
    pub(super) fn new(poisson: &Poisson, pages: usize, now_ns: u64, mut rng: Rng) -> Self {
        let mut order: Vec<usize> = (0..pages / BLOCK_PAGES as usize).collect();
        // Which blocks are hot depends only on the seed and on `draw`, not on the draws of other phases.
        let mut assignment = Rng::with_seed(rng.u64(..) ^ poisson.draw);
        assignment.shuffle(&mut order);
        let idle = usize::try_from(floor((order.len() as f64 * poisson.idle).round())).unwrap_or(usize::MAX);
        order.truncate(order.len().saturating_sub(idle));
        let last = order.len().saturating_sub(1).max(1) as f64;
        let mut sum = 0.0;
        let cumulated = (0..order.len())
            .map(|rank| {
                sum += poisson.most * (poisson.least / poisson.most).powf(rank as f64 / last);
                sum
            })
            .collect();
        let parts = ZipfPages::new(poisson.parts as usize, poisson.exponent, &mut assignment);
        let stride = (BLOCK_PAGES / poisson.parts) as usize;
        let mut arrivals = Self { cumulated, blocks: order, parts, stride, rng, next_ns: now_ns };
        arrivals.advance();
        arrivals
    }

    /// Returns the page of the next access, if it is due at `now_ns`.
    pub(super) fn next_until(&mut self, now_ns: u64) -> Option<usize> {
        if now_ns.saturating_sub(self.next_ns) > LATE_MAX_NS {
            // From any moment on, the arrivals are a Poisson process again.
            self.next_ns = now_ns;
            self.advance();
        }
        if self.next_ns > now_ns {
            return None;
        }
        let all = self.cumulated.last()?;
        let at = self.rng.f64() * all;
        let rank = self.cumulated.partition_point(|&sum| sum <= at).min(self.blocks.len() - 1);
        let part = self.parts.draw(&mut self.rng);
        self.advance();
        Some(self.blocks[rank] * BLOCK_PAGES as usize + part * self.stride)
    }

    /// Draws the time of the next access: after an exponentially distributed interval.
    fn advance(&mut self) {
        let Some(all) = self.cumulated.last() else {
            self.next_ns = u64::MAX;
            return;
        };
        let wait_s = -(1.0 - self.rng.f64()).ln() / all;
        self.next_ns = self.next_ns.saturating_add(floor(wait_s * 1e9));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn poisson(least: f64, most: f64) -> Poisson {
        Poisson { least, most, idle: 0.0, parts: BLOCK_PAGES, exponent: 0.0, draw: 0 }
    }

    /// Returns the accesses of each page in `seconds`, drawn in batches of 10 ms.
    fn counts(poisson: &Poisson, blocks: usize, seconds: u64) -> Vec<u32> {
        let pages = blocks * BLOCK_PAGES as usize;
        let mut arrivals = Arrivals::new(poisson, pages, 5 * SECOND, Rng::with_seed(7));
        assert_eq!(arrivals.next_until(5 * SECOND - 1), None);
        let mut counts = vec![0; pages];
        for batch in 1..=seconds * 100 {
            while let Some(page) = arrivals.next_until(5 * SECOND + batch * SECOND / 100) {
                counts[page] += 1;
            }
        }
        counts
    }

    fn by_block(counts: &[u32]) -> Vec<u32> {
        counts.chunks(BLOCK_PAGES as usize).map(|block| block.iter().sum()).collect()
    }

    /// Checks the rates of the blocks, each within five standard deviations of its count.
    fn check(poisson: &Poisson, blocks: usize, rates: &[f64]) {
        const SECONDS: u64 = 200;
        let mut found = by_block(&counts(poisson, blocks, SECONDS));
        found.sort_unstable();
        assert_eq!(found.len(), rates.len());
        for (&count, rate) in found.iter().zip(rates) {
            let expected = rate * SECONDS as f64;
            assert!((f64::from(count) - expected).abs() <= 5.0 * expected.sqrt(), "{poisson:?}: {count} for {expected}");
        }
    }

    #[test]
    fn rates_are_spaced_logarithmically() {
        check(&poisson(1.0, 100.0), 3, &[1.0, 10.0, 100.0]);
        check(&poisson(20.0, 20.0), 2, &[20.0, 20.0]);
        check(&poisson(5.0, 50.0), 1, &[50.0]);
        check(&Poisson { idle: 0.5, ..poisson(10.0, 40.0) }, 4, &[0.0, 0.0, 10.0, 40.0]);
        check(&Poisson { idle: 1.0, ..poisson(10.0, 40.0) }, 2, &[0.0, 0.0]);
    }

    #[test]
    fn intervals_are_random() {
        // The variance of a Poisson process's counts equals their mean: 10 per second, over 400 seconds.
        let mut arrivals = Arrivals::new(&poisson(10.0, 10.0), BLOCK_PAGES as usize, 0, Rng::with_seed(3));
        let mut seconds = Vec::new();
        for second in 1..=400 {
            let mut count = 0.0_f64;
            for batch in 1..=50 {
                while arrivals.next_until((second - 1) * SECOND + batch * SECOND / 50).is_some() {
                    count += 1.0;
                }
            }
            seconds.push(count);
        }
        let mean = seconds.iter().sum::<f64>() / 400.0;
        let variance = seconds.iter().map(|count| (count - mean).powi(2)).sum::<f64>() / 400.0;
        assert!((9.2..=10.8).contains(&mean) && (7.5..=12.5).contains(&variance), "mean {mean}, variance {variance}");
    }

    #[test]
    fn late_accesses_are_dropped() {
        let mut arrivals = Arrivals::new(&poisson(100.0, 100.0), BLOCK_PAGES as usize, 0, Rng::with_seed(3));
        let mut made = |now_ns| std::iter::from_fn(|| arrivals.next_until(now_ns)).count();
        // Two seconds in batches of 10 ms, with one second without calls between them, whose 100 accesses are dropped.
        let first: usize = (1..=100).map(|batch| made(batch * SECOND / 100)).sum();
        assert_eq!(made(2 * SECOND), 0);
        let second: usize = (201..=300).map(|batch| made(batch * SECOND / 100)).sum();
        assert!((65..=135).contains(&first) && (65..=135).contains(&second), "{first} and {second}");
    }

    #[test]
    fn only_the_parts_are_accessed() {
        for (parts, exponent) in [(1, 0.0), (4, 1.0), (512, 0.0)] {
            let counts = counts(&Poisson { parts, exponent, ..poisson(300.0, 300.0) }, 2, 50);
            for block in counts.chunks(BLOCK_PAGES as usize) {
                let touched = block.iter().filter(|&&count| count > 0).count();
                assert_eq!(touched, parts as usize, "{parts} parts");
            }
        }
    }

    #[test]
    fn the_draw_determines_which_blocks_are_hot() {
        let draw = |draw| by_block(&counts(&Poisson { draw, ..poisson(0.1, 100.0) }, 8, 20));
        assert_eq!(draw(1), draw(1));
        let hottest = |counts: &[u32]| (0..8).max_by_key(|&block| counts[block]);
        assert_ne!(hottest(&draw(1)), hottest(&draw(2)));
    }
}

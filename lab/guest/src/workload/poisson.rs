//! Accesses at random times: each 2 MiB block is a Poisson process with a rate of its own.
//!
//! All blocks of a region are one process. Arrivals of the sum of the rates, each given to a block with a chance in
//! proportion to its rate, are independent Poisson processes of those rates: it takes one next arrival, and no
//! calendar.

use fastrand::Rng;

use crate::rounding::floor;
use crate::zipf::ZipfPages;

use super::spec::{BLOCK_PAGES, Poisson};

/// An access that is due for longer than this is left out, with all that fell due meanwhile. A workload that was held
/// up would otherwise make them all at once, which is no Poisson process, and which no accessed bit can tell from a
/// single one.
const LATE_MAX_NS: u64 = 50_000_000;

/// The accesses of one region in one phase.
pub(super) struct Arrivals {
    /// Sum of the rates of the blocks up to each one, in the order of their ranks; the last is the rate of all.
    cumulated: Vec<f64>,
    /// The block of each rank.
    blocks: Vec<usize>,
    /// Which pages of a block are accessed, the same ones in each.
    parts: ZipfPages,
    /// The pages of a block that take part: their distance from one another.
    stride: usize,
    rng: Rng,
    next_ns: u64,
}

impl Arrivals {
    /// The process that starts at `now_ns` in a region of `pages` pages, a multiple of [`BLOCK_PAGES`].
    pub(super) fn new(poisson: &Poisson, pages: usize, now_ns: u64, mut rng: Rng) -> Self {
        let mut order: Vec<usize> = (0..pages / BLOCK_PAGES as usize).collect();
        // The seed and the number of the draw alone say who is hot, whatever was drawn for other phases.
        let mut who = Rng::with_seed(rng.u64(..) ^ poisson.draw);
        who.shuffle(&mut order);
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
        let parts = ZipfPages::new(poisson.parts as usize, poisson.exponent, &mut who);
        let stride = (BLOCK_PAGES / poisson.parts) as usize;
        let mut arrivals = Self { cumulated, blocks: order, parts, stride, rng, next_ns: now_ns };
        arrivals.advance();
        arrivals
    }

    /// The page of the next access, if it is due at `now_ns`.
    pub(super) fn next_until(&mut self, now_ns: u64) -> Option<usize> {
        if now_ns.saturating_sub(self.next_ns) > LATE_MAX_NS {
            // What comes after any moment is a Poisson process again.
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

    /// Draws when the next access is due: after an exponentially distributed time.
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

    /// How often each page is accessed in `seconds`, asked for in batches of 10 ms.
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

    /// Checks that the rates of the blocks are those asked for, each within five standard deviations of its count.
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
    fn rates_are_spread_by_their_logarithm() {
        check(&poisson(1.0, 100.0), 3, &[1.0, 10.0, 100.0]);
        check(&poisson(20.0, 20.0), 2, &[20.0, 20.0]);
        check(&poisson(5.0, 50.0), 1, &[50.0]);
        check(&Poisson { idle: 0.5, ..poisson(10.0, 40.0) }, 4, &[0.0, 0.0, 10.0, 40.0]);
        check(&Poisson { idle: 1.0, ..poisson(10.0, 40.0) }, 2, &[0.0, 0.0]);
    }

    #[test]
    fn times_are_random_and_not_evenly_spaced() {
        // Counts of a Poisson process vary by their own mean: 10 per second, over 400 seconds.
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
    fn what_was_missed_is_left_out() {
        let mut arrivals = Arrivals::new(&poisson(100.0, 100.0), BLOCK_PAGES as usize, 0, Rng::with_seed(3));
        let mut made = |now_ns| std::iter::from_fn(|| arrivals.next_until(now_ns)).count();
        // Two seconds in batches of 10 ms, with one second without a turn between them: that one's 100 are missing.
        let first: usize = (1..=100).map(|batch| made(batch * SECOND / 100)).sum();
        assert_eq!(made(2 * SECOND), 0);
        let second: usize = (201..=300).map(|batch| made(batch * SECOND / 100)).sum();
        assert!((65..=135).contains(&first) && (65..=135).contains(&second), "{first} and {second}");
    }

    #[test]
    fn accesses_fall_on_the_parts_alone() {
        for (parts, exponent) in [(1, 0.0), (4, 1.0), (512, 0.0)] {
            let counts = counts(&Poisson { parts, exponent, ..poisson(300.0, 300.0) }, 2, 50);
            for block in counts.chunks(BLOCK_PAGES as usize) {
                let touched = block.iter().filter(|&&count| count > 0).count();
                assert_eq!(touched, parts as usize, "{parts} parts");
            }
        }
    }

    #[test]
    fn a_draw_says_who_is_hot() {
        let draw = |draw| by_block(&counts(&Poisson { draw, ..poisson(0.1, 100.0) }, 8, 20));
        assert_eq!(draw(1), draw(1));
        let hottest = |counts: &[u32]| (0..8).max_by_key(|&block| counts[block]);
        assert_ne!(hottest(&draw(1)), hottest(&draw(2)));
    }
}

//! Random pages with popularity by Zipf's law.

use std::io;

use fastrand::Rng;

use crate::linux::mapping::lock_items;

/// Draws page numbers; the page of rank r has a probability proportional to r^-exponent.
pub(crate) struct ZipfPages {
    /// Cumulative probabilities by rank; the last is 1.
    cumulated: Vec<f64>,
    /// Page of each rank, shuffled so that neighbours in memory differ in popularity.
    pages: Vec<usize>,
}

impl ZipfPages {
    pub(crate) fn new(pages: usize, exponent: f64, rng: &mut Rng) -> Self {
        let mut sum = 0.0;
        let mut cumulated: Vec<f64> = (1..=pages)
            .map(|rank| {
                sum += (rank as f64).powf(-exponent);
                sum
            })
            .collect();
        for share in &mut cumulated {
            *share /= sum;
        }
        let mut order: Vec<usize> = (0..pages).collect();
        rng.shuffle(&mut order);
        Self { cumulated, pages: order }
    }

    /// Locks its tables in DRAM.
    ///
    /// # Errors
    /// Those of [`lock_items`].
    pub(crate) fn lock(&self) -> io::Result<()> {
        lock_items(&self.cumulated)?;
        lock_items(&self.pages)
    }

    /// Returns each page's probability.
    pub(crate) fn shares(&self) -> Vec<f64> {
        let mut shares = vec![0.0; self.pages.len()];
        let mut before = 0.0;
        for (&page, &cumulated) in self.pages.iter().zip(&self.cumulated) {
            shares[page] = cumulated - before;
            before = cumulated;
        }
        shares
    }

    /// Returns the page of the next access.
    pub(crate) fn draw(&self, rng: &mut Rng) -> usize {
        let uniform = rng.f64();
        let rank = self.cumulated.partition_point(|&share| share <= uniform);
        self.pages[rank.min(self.pages.len() - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pages: usize, exponent: f64) {
        const DRAWS: u32 = 100_000;
        let mut rng = Rng::with_seed(5);
        let zipf = ZipfPages::new(pages, exponent, &mut rng);
        let mut counts = vec![0_u32; pages];
        for _ in 0..DRAWS {
            counts[zipf.draw(&mut rng)] += 1;
        }
        let weights: Vec<f64> = (1..=pages).map(|rank| (rank as f64).powf(-exponent)).collect();
        let sum: f64 = weights.iter().sum();
        let shares = zipf.shares();
        for (rank, weight) in weights.iter().enumerate() {
            let share = shares[zipf.pages[rank]];
            assert!((share - weight / sum).abs() < 1e-12, "{pages} {exponent} rank {rank}: {share}");
            let expected = weight / sum * f64::from(DRAWS);
            let count = f64::from(counts[zipf.pages[rank]]);
            // Five standard deviations of a count.
            assert!((count - expected).abs() <= 5.0 * expected.sqrt() + 1.0, "{pages} {exponent} rank {rank}: {count} for {expected}");
        }
    }

    #[test]
    fn draws_follow_the_distribution() {
        for (pages, exponent) in [(1, 1.0), (2, 0.0), (50, 0.99), (300, 2.0)] {
            check(pages, exponent);
        }
    }
}

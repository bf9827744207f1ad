//! The scans of an entry.
//!
//! An agent decides after each scan, and an entry has the accesses of several and the mean of their cold ages. What an agent knows grows
//! with the number of scans, above all in a short history, so that an entry is as many decisions as it has scans.
//!
//! - **Accesses** are divided among the scans at random, as if they were independent: how they were distributed is not in the trace.
//! - **Ages that are not reached yet.** Pages that are not accessed are one scan older after each scan. The oldest age of an entry is that
//!   of its last scan; its first scan would know promotions of ages (namely none) that no page has reached, and permit far memory too
//!   early. So the oldest age rises from scan to scan, from that of the entry before, and pages beyond it are of that age. When it was
//!   reached follows from the mean: an age that a third of the oldest pages have was reached in the last of three scans.

use policy::cold_age::Input;
use policy::histogram::Histogram;
use units::Millis;

use crate::random::stream;

/// Accesses of one bucket that are divided one by one; of more, most are divided evenly, since chance hardly changes their shares.
const ONE_BY_ONE: u64 = 64;

/// Divides entries of one job, which follow each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Division {
    scan_period: Millis,
    /// The bucket of the oldest pages of the entry before.
    oldest: usize,
}

impl Division {
    pub(super) fn new(scan_period: Millis) -> Self {
        Self { scan_period, oldest: 0 }
    }

    /// Starts over for another job.
    pub(super) fn reset(&mut self) {
        self.oldest = 0;
    }

    /// Divides the next entry.
    pub(super) fn divide(&mut self, entry: &Input) -> Vec<Input> {
        let scan_ms = self.scan_period.0.max(1);
        let scans = ((entry.window_ms.0 + scan_ms / 2) / scan_ms).max(1);
        let (before, oldest) = (self.oldest, oldest(&entry.cold));
        self.oldest = oldest;
        let reached: Vec<usize> = (0..scans).map(|scan| reached(entry.cold.buckets(), before.min(oldest), scans, scans - scan)).collect();
        let promotions = promotions(entry, &reached);
        let ends = |scan: u64| entry.window_ms.0 * scan / scans;
        let input = |(scan, (&reached, promotions)): (u64, (&usize, Histogram))| Input {
            job_age_ms: entry.job_age_ms.saturating_sub(Millis(entry.window_ms.0 - ends(scan + 1))),
            window_ms: Millis(ends(scan + 1) - ends(scan)),
            cold: up_to(&entry.cold, reached),
            resident: up_to(&entry.resident, reached),
            promotions,
            ..*entry
        };
        (0..).zip(reached.iter().zip(promotions)).map(input).collect()
    }
}

/// The bucket of the oldest pages.
fn oldest(cold: &Histogram) -> usize {
    cold.buckets().iter().rposition(|&pages| pages > 0).unwrap_or(0)
}

/// The bucket that the oldest pages have reached when so many scans are left with this one. `before` is that of the entry before.
///
/// Of the pages that were the oldest, those in a bucket are there in as many of the scans as their share in the mean.
fn reached(cold: &[u64], before: usize, scans: u64, left: u64) -> usize {
    let from = |bucket: usize| cold.iter().skip(bucket).map(|&pages| u128::from(pages)).sum::<u128>();
    let needed = u128::from(2 * left - 1) * from(before);
    // What is there at all is there in the last scan.
    let there = |bucket: usize| from(bucket) > 0 && (left == 1 || 2 * u128::from(scans) * from(bucket) >= needed);
    (before..cold.len()).rev().find(|&bucket| there(bucket)).unwrap_or(before)
}

/// The histogram with what is beyond a bucket in that bucket.
fn up_to(histogram: &Histogram, last: usize) -> Histogram {
    let mut buckets = histogram.buckets().to_vec();
    let beyond: u64 = buckets.iter_mut().skip(last + 1).map(std::mem::take).sum();
    if let Some(last) = buckets.get_mut(last) {
        *last += beyond;
    }
    Histogram::try_from(buckets).unwrap_or(*histogram)
}

/// Divides the accesses among scans, each of which has those of ages up to a bucket.
fn promotions(entry: &Input, reached: &[usize]) -> Vec<Histogram> {
    let buckets = entry.promotions.buckets();
    let mut of_scans = vec![vec![0u64; buckets.len()]; reached.len()];
    let random = &mut stream(entry.job_age_ms.0, entry.window_ms.0);
    for (bucket, &count) in buckets.iter().enumerate() {
        let first = reached.partition_point(|&last| last < bucket).min(reached.len() - 1);
        let scans = &mut of_scans[first..];
        let (among, evenly) = (scans.len() as u64, count.saturating_sub(ONE_BY_ONE) / scans.len() as u64);
        scans.iter_mut().for_each(|scan| scan[bucket] = evenly);
        for _ in 0..count - evenly * among {
            scans[random.usize(..scans.len())][bucket] += 1;
        }
    }
    of_scans.into_iter().map(|scan| Histogram::try_from(scan).unwrap_or(entry.promotions)).collect()
}

#[cfg(test)]
mod tests;

//! Far memory of one job, by age.
//!
//! Where a part of the pages of an age is far, which of them are? Those that went out long ago and were not accessed since are older now,
//! and those that were accessed are back. So the far pages of an age are counted, and age with the others:
//!
//! - Of the accesses at an age, the far pages' share of that age returns.
//! - The others grow older. Pages that are not accessed stay in the order of their ages, so that the oldest of before are the oldest of
//!   now, and so on, and the share of them that is far is theirs.
//!
//! With one share for all pages beyond the threshold, the same accesses meet it again and again: promotions were foreseen up to twice as
//! often as an agent had them (`model_error`).

use policy::histogram::Histogram;
use units::Pages;

/// The far pages of a job.
#[derive(Clone, Debug, Default)]
pub(super) struct Far {
    /// Those in each bucket. Fractions count: this is how many are expected.
    pages: Vec<f64>,
    /// Returned pages that are not counted yet, by bucket: less than one in each.
    owed: Vec<f64>,
    /// Pages of the job by age before this period.
    before: Vec<u64>,
    /// The threshold of which all pages are far, if it is one.
    whole: Option<usize>,
    /// Whether a part is far.
    part: bool,
}

impl Far {
    /// The threshold of which all pages are far; `None` if none is far, or a part.
    pub(super) fn whole(&self) -> Option<usize> {
        self.whole
    }

    /// Whether any page is far.
    pub(super) fn is_on(&self) -> bool {
        self.whole.is_some() || self.part
    }

    fn sum(&self) -> f64 {
        self.pages.iter().sum()
    }

    /// How many there are.
    pub(super) fn pages(&self) -> Pages {
        Pages(rounded(self.sum()))
    }

    /// The pages of the job that are not far.
    pub(super) fn resident(&self, cold: &Histogram) -> Histogram {
        let resident = cold.buckets().iter().zip(&self.pages).map(|(&all, &far)| all.saturating_sub(rounded(far)));
        histogram(resident.collect(), cold)
    }

    /// One period: what was accessed returns, and the others are older. Returns what came back, by its age.
    pub(super) fn period(&mut self, cold: &Histogram, promotions: &Histogram) -> Histogram {
        let len = cold.buckets().len();
        self.pages.resize(len, 0.0);
        self.owed.resize(len, 0.0);
        self.before.resize(len, 0);
        let returned: Vec<u64> = promotions.buckets().iter().enumerate().map(|(at, &accessed)| self.returned(at, accessed)).collect();
        self.grow_older(cold.buckets(), promotions.buckets());
        self.before = cold.buckets().to_vec();
        if let Some(index) = self.whole {
            self.whole_from(index, cold);
        }
        histogram(returned, cold)
    }

    fn returned(&mut self, at: usize, accessed: u64) -> u64 {
        if self.whole.is_some_and(|index| at > index) {
            return accessed;
        }
        let share = if self.before[at] == 0 { 1.0 } else { (self.pages[at] / count(self.before[at])).min(1.0) };
        let pages = (count(accessed) * share).min(self.pages[at]);
        self.pages[at] -= pages;
        self.owed[at] += pages;
        let returned = self.owed[at].floor();
        self.owed[at] -= returned;
        rounded(returned)
    }

    /// Moves what was not accessed to its age now. Pages that are not accessed stay in the order of their ages, so that the oldest of
    /// before are the oldest of now.
    fn grow_older(&mut self, now: &[u64], accessed: &[u64]) {
        let mut aged = vec![0.0; now.len()];
        let mut older = (0..now.len()).rev();
        let (mut at, mut room) = (0, 0.0);
        for before in (0..now.len()).rev() {
            let mut left = count(self.before[before].saturating_sub(accessed[before]));
            let share = if left > 0.0 { self.pages[before] / left } else { 0.0 };
            while left > 0.0 {
                if room <= 0.0 {
                    // Without more of them, memory was freed.
                    let Some(next) = older.next() else { break };
                    (at, room) = (next, count(now[next]));
                }
                let moved = left.min(room);
                aged[at] += moved * share;
                (left, room) = (left - moved, room - moved);
            }
        }
        self.pages = aged;
    }

    /// All pages of a threshold go out, and no others are far; without one, none is.
    pub(super) fn set_whole(&mut self, index: Option<usize>, cold: &Histogram) {
        (self.whole, self.part) = (index, false);
        self.owed.fill(0.0);
        self.whole_from(index.unwrap_or(cold.buckets().len()), cold);
    }

    fn whole_from(&mut self, index: usize, cold: &Histogram) {
        let all = cold.buckets().iter().enumerate().map(|(at, &pages)| if at > index { count(pages) } else { 0.0 });
        self.pages = all.collect();
    }

    /// So many more pages of a threshold go out, of all ages beyond it alike.
    pub(super) fn add(&mut self, index: usize, pages: Pages, cold: &Histogram) {
        (self.whole, self.part) = (None, true);
        let resident: f64 = cold.buckets().iter().zip(&self.pages).skip(index + 1).map(|(&all, far)| count(all) - far).sum();
        if resident > 0.0 {
            let share = (count(pages.0) / resident).min(1.0);
            let older = cold.buckets().iter().zip(&mut self.pages).skip(index + 1);
            older.for_each(|(&all, far)| *far += (count(all) - *far) * share);
        }
    }

    /// Nothing more goes out, and what is far stays until it returns.
    pub(super) fn keep(&mut self) {
        (self.whole, self.part) = (None, self.sum() >= 0.5);
    }

    /// Starts over for another job.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }
}

fn histogram(buckets: Vec<u64>, like: &Histogram) -> Histogram {
    Histogram::try_from(buckets).unwrap_or(*like)
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53 pages")]
fn count(pages: u64) -> f64 {
    pages as f64
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "pages are not negative")]
fn rounded(pages: f64) -> u64 {
    pages.round() as u64
}

#[cfg(test)]
mod tests;

//! Sums of the job that is being replayed.

use std::ops::Range;

use crate::grid::{AXIS_MAX, Grid};

/// Sums of a job since they were last added to the tally, for one number of warm-ups, by percentile. With 64 bits they
/// are half as much to write per entry.
///
/// 64 bits suffice for [`crate::series::WINDOW_MS_MAX`] milliseconds: pages and promotions of an entry are below 2^32, an entry
/// takes at least one millisecond, and one bit is the sign of a difference.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    /// Differences as in [`super::Tally`], one more than percentiles, modulo 2^64.
    sums: Vec<[u64; 4]>,
    /// The percentiles at which sums changed, one bit each: of a large grid's, an entry changes few.
    changed: [u64; (AXIS_MAX + 1).div_ceil(64)],
    /// The ranges in effect. Most entries change none of them, and are added to these alone.
    pub(super) open: Vec<Open>,
    pub(super) warm: usize,
    pub(super) window_ms: u64,
}

/// A range of percentiles with the same threshold.
#[derive(Clone, Debug)]
pub(super) struct Open {
    pub(super) percentiles: Range<usize>,
    pub(super) threshold: usize,
    /// Pairs of the percentiles at which it begins and ends; no end above the highest percentile.
    pub(super) begin: usize,
    pub(super) end: Option<usize>,
    /// Sums of each of its percentiles since it is open.
    pub(super) sums: [u64; 4],
}

impl Running {
    /// Creates empty sums.
    pub(crate) fn new(grid: &Grid) -> Self {
        let sums = vec![[0; 4]; grid.percentiles().len() + 1];
        Self { sums, changed: [0; (AXIS_MAX + 1).div_ceil(64)], open: Vec::new(), warm: 0, window_ms: 0 }
    }

    /// Prepares for the next job, after [`super::Tally::settle`].
    pub(crate) fn reset(&mut self) {
        self.open.clear();
    }

    /// Returns the number of warm-ups for which the ranges in effect were opened.
    #[inline]
    pub(crate) fn warm(&self) -> usize {
        self.warm
    }

    /// Ends the ranges in effect.
    pub(super) fn close(&mut self) {
        self.add_open();
        self.open.clear();
    }

    /// Adds the sums of the ranges in effect, and resets these.
    pub(super) fn add_open(&mut self) {
        let mut above = [0; 4];
        let mut begin = None;
        for open in &mut self.open {
            let sums = std::mem::take(&mut open.sums);
            change(&mut self.sums, &mut self.changed, open.percentiles.end, above, sums);
            (above, begin) = (sums, Some(open.percentiles.start));
        }
        if let Some(begin) = begin {
            change(&mut self.sums, &mut self.changed, begin, above, [0; 4]);
        }
    }

    /// Calls `each` with the changes by percentile, and resets them.
    pub(super) fn take(&mut self, mut each: impl FnMut(usize, [u64; 4])) {
        for (word, changed) in self.changed.iter_mut().enumerate() {
            while *changed != 0 {
                let percentile = word * 64 + changed.trailing_zeros() as usize;
                *changed &= *changed - 1;
                each(percentile, std::mem::take(&mut self.sums[percentile]));
            }
        }
    }
}

/// Adds `more` and subtracts `less` at a percentile.
#[inline]
fn change(sums: &mut [[u64; 4]], changed: &mut [u64], percentile: usize, more: [u64; 4], less: [u64; 4]) {
    changed[percentile / 64] |= 1 << (percentile % 64);
    for (slot, (more, less)) in sums[percentile].iter_mut().zip(more.into_iter().zip(less)) {
        *slot = slot.wrapping_add(more.wrapping_sub(less));
    }
}

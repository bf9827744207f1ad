//! Rows as columns.

use std::ops::Range;

use crate::entry::{FIGURES, Figures, JobId};

/// Rows of a batch, at most. The histograms of so many rows fit into the processor's second cache.
pub(super) const ROWS: usize = 256;

/// Names of [`FIGURES`] that a reader of batches uses; others are not decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Indices in [`FIGURES`], in the order of the names.
    pub(super) figures: Vec<usize>,
}

impl Wanted {
    /// Finds figures by name. Returns `None` if there is no figure of a name.
    #[must_use]
    pub fn new(names: &[&str]) -> Option<Self> {
        let find = |name: &&str| FIGURES.iter().position(|figure| figure.name == *name);
        Some(Self { figures: names.iter().map(find).collect::<Option<_>>()? })
    }
}

/// Consecutive rows of a row group, as columns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Rows.
    pub(super) rows: usize,
    /// Columns of suffix sums: those of cold ages by bucket, then those of promotions.
    pub(super) sums: Vec<[u32; ROWS]>,
    /// The figures that were asked for.
    pub(super) figures: Vec<[u64; ROWS]>,
    pub(super) keys: Vec<[u64; ROWS]>,
}

impl Batch {
    /// Returns a figure of a row, by its index in [`Wanted`].
    #[must_use]
    #[inline]
    pub fn figure<const INDEX: usize>(&self, row: usize) -> u64 {
        self.figures[INDEX][row]
    }

    /// Returns the figures of a row, of which those that were not asked for are zero.
    #[must_use]
    pub fn figures(&self, row: usize, wanted: &Wanted) -> Figures {
        let mut array = [0; FIGURES.len()];
        for (&figure, column) in wanted.figures.iter().zip(&self.figures) {
            array[figure] = column[row];
        }
        Figures::from_array(array)
    }

    /// Appends the suffix sums of some rows to `sums`, row by row: first those of cold ages, then those of promotions. A sum
    /// counts the pages at or above the age of its bucket; none is 2^31 or more.
    pub fn append_sums(&self, rows: Range<usize>, sums: &mut Vec<u32>) {
        self.append_rows(rows, self.sums.len(), sums);
    }

    /// Appends rows of `stride` numbers, which begin with the suffix sums; the other numbers are zero.
    pub(crate) fn append_rows(&self, rows: Range<usize>, stride: usize, sums: &mut Vec<u32>) {
        let begin = sums.len();
        sums.resize(begin + rows.len() * stride, 0);
        // Four rows at a time: each column is then read in pieces of 16 bytes.
        let mut quads = sums[begin..].chunks_exact_mut(4 * stride);
        let mut row = rows.start;
        for quad in quads.by_ref() {
            let (first, rest) = quad.split_at_mut(stride);
            let (second, rest) = rest.split_at_mut(stride);
            let (third, fourth) = rest.split_at_mut(stride);
            let slots = first.iter_mut().zip(second).zip(third.iter_mut().zip(fourth));
            for (column, ((first, second), (third, fourth))) in self.sums.iter().zip(slots) {
                if let Some([a, b, c, d]) = column.get(row..).and_then(|column| column.first_chunk()) {
                    (*first, *second, *third, *fourth) = (*a, *b, *c, *d);
                }
            }
            row += 4;
        }
        for (row, single) in (row..rows.end).zip(quads.into_remainder().chunks_exact_mut(stride)) {
            for (column, slot) in self.sums.iter().zip(single) {
                *slot = column[row];
            }
        }
    }
}

/// Consecutive rows of one job in a batch, with the same labels.
#[derive(Clone, Debug)]
pub struct Part<'a> {
    /// The rows of the batch.
    pub rows: Range<usize>,
    /// Cluster of the job.
    pub cluster: &'a str,
    /// Machine of the job.
    pub machine: &'a str,
    /// The job.
    pub job: &'a str,
    /// Its number.
    pub job_key: i64,
    /// Its class.
    pub class: &'a str,
    /// Its policy.
    pub policy: &'a str,
    /// Its tracker.
    pub tracker: &'a str,
    /// Whether the job begins here: the rows before, if any, are of another.
    pub begins: bool,
}

impl Part<'_> {
    /// Returns whether the job is this one.
    #[must_use]
    pub fn is_of(&self, id: &JobId) -> bool {
        id.job_key == self.job_key && id.job == self.job && id.machine == self.machine && id.cluster == self.cluster
    }

    /// Returns the job.
    #[must_use]
    pub fn id(&self) -> JobId {
        let [cluster, machine, job] = [self.cluster, self.machine, self.job].map(ToOwned::to_owned);
        JobId { cluster, machine, job, job_key: self.job_key }
    }
}

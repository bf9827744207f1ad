//! Batches of slices that a host or a pool works on.

use pool::{Generation, SliceId};

/// A batch is complete: its number in [`Batches`], and its ledger.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchDone {
    pub(crate) ledger: u32,
    pub(crate) batch: u32,
}

/// Batches in progress. Numbers of completed batches are reused.
#[derive(Debug, Default)]
pub(crate) struct Batches {
    batches: Vec<Batch>,
    unused: Vec<u32>,
}

/// Slices whose release or zeroing began together. The whole batch completes when its last slice does.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Whether the slices are zeroed; otherwise they are taken offline.
    pub(crate) scrub: bool,
    pub(crate) slices: Vec<(SliceId, Generation)>,
}

impl Batches {
    /// Returns an empty batch, to be filled, and its number.
    pub(crate) fn open(&mut self, scrub: bool) -> (u32, &mut Vec<(SliceId, Generation)>) {
        let number = self.unused.pop().unwrap_or_else(|| {
            self.batches.push(Batch::default());
            u32::try_from(self.batches.len() - 1).unwrap_or(u32::MAX)
        });
        let batch = &mut self.batches[number as usize];
        batch.scrub = scrub;
        batch.slices.clear();
        (number, &mut batch.slices)
    }

    /// Takes a completed batch out.
    pub(crate) fn take(&mut self, number: u32) -> Batch {
        std::mem::take(&mut self.batches[number as usize])
    }

    /// Makes the number of a completed batch available again, together with the memory of its list.
    pub(crate) fn recycle(&mut self, number: u32, batch: Batch) {
        self.batches[number as usize].slices = batch.slices;
        self.unused.push(number);
    }
}

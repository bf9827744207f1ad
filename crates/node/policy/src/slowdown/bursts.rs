//! Bursts: accesses to many pages of a huge page at once, which set its accessed bit only once.
//!
//! # Problem
//! A huge page has one accessed bit. A scan that reads all 512 pages of it within a sampling interval sets it once, like a single
//! access. A table that is scanned once a minute counts as 0.02 accesses per second and block, and has 8.5.
//!
//! # Method
//! *Known* blocks are those whose bit was found set while they were in slow memory. In each period a few known blocks are split, and their
//! pages are sampled; the others are sampled as a whole. As the few are chosen at random, both kinds are accessed equally often. So with the
//! accessed pages `V` of the mean split block, and the set bits `U` of the mean whole block in the same period,
//!
//! `w = sum(V) / sum(U)`
//!
//! over these periods is the number of pages for which a set bit stands, at most those of a huge page; both sums forget. A scan
//! concerns many blocks at once: whether a period has one does not matter, as it counts on both sides. (As a ratio of two
//! rates, each over its own periods, `w` was 212 where a scan once a minute sets one bit for 512 pages.) It counts as 1, which it is
//! for accesses at random, unless `sum(V)` exceeds `2 sum(U)` by 16.
//!
//! A known block is accessed `s` times per second in the long run, by its bit. A burst is rare, and most periods show nothing of
//! it, so that it is the long run that counts: `(w - 1) s` is added to each estimate of the block. A block that was promoted stays
//! known, so that it is not placed again as soon as it seems idle.
//!
//! # What it does not cover
//! - A block's first burst in slow memory, and the next: only these show that there are any.
//! - Bursts that are hours apart are forgotten in between.
//! - Repeated accesses to one page within a burst. A page has one accessed bit, too.

use std::collections::BTreeMap;

use units::AccessRate;

use super::rate::{self, Estimate};

/// A block: its process and first address.
pub type Key = (i32, u64);

/// Millionths of an event, or of a page.
const MICRO: u64 = 1_000_000;

/// `V` is at least so many times `U`, and exceeds that by so much, before it counts.
const BURST_MIN: u64 = 2;
const MARGIN: u64 = 16 * MICRO;

/// The most that a set bit can stand for: the pages of a huge page.
const PAGES_MAX: u64 = 512;

/// Each sum loses one part in this many in a period.
const FORGET: u64 = 64;

/// A block is known until less than this is left of its events.
const KNOWN_MIN: u64 = MICRO / 50;

/// A block that was not sampled in so many periods is forgotten: its process has ended, or its memory is gone.
const UNSAMPLED_MAX: u32 = 512;

/// Blocks that are known at once, at most.
const KNOWN_MAX: usize = 1 << 16;

/// A sum of events over a time; both are forgotten alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    /// In millionths.
    events: u64,
    /// Microseconds.
    time_us: u64,
}

impl Tally {
    fn add(&mut self, rate: AccessRate, window_us: u64) {
        self.events = self.events.saturating_add(events(rate, window_us));
        self.time_us = self.time_us.saturating_add(window_us);
    }

    fn forget(&mut self) {
        self.events = forget(self.events);
        self.time_us = forget(self.time_us);
    }

    fn rate(self) -> AccessRate {
        let rate = u128::from(self.events) * u128::from(MICRO) / u128::from(self.time_us.max(1));
        AccessRate(u64::try_from(rate).unwrap_or(u64::MAX))
    }
}

/// Events of some blocks in one period.
#[derive(Clone, Copy, Debug, Default)]
struct Blocks {
    /// In millionths.
    events: u64,
    count: u64,
}

impl Blocks {
    fn add(&mut self, rate: AccessRate, window_us: u64) {
        self.events = self.events.saturating_add(events(rate, window_us));
        self.count += 1;
    }

    /// Of the mean block; `None` without blocks.
    fn mean(self) -> Option<u64> {
        self.events.checked_div(self.count)
    }
}

/// Events in millionths.
fn events(rate: AccessRate, window_us: u64) -> u64 {
    u64::try_from(u128::from(rate.0) * u128::from(window_us) / u128::from(MICRO)).unwrap_or(u64::MAX)
}

const fn forget(sum: u64) -> u64 {
    sum - sum / FORGET
}

/// A known block.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    bits: Tally,
    /// Periods since it was sampled.
    unsampled: u32,
}

/// What is known of the bursts of one job.
#[derive(Clone, Debug, Default)]
pub struct Bursts {
    known: BTreeMap<Key, Known>,
    /// In this period: known blocks that were split, and known ones that were whole.
    split: Blocks,
    whole: Blocks,
    /// Accessed pages of the mean split block, in millionths, over the periods with both kinds.
    pages: u64,
    /// Set bits of the mean whole block, in the same periods.
    bits: u64,
}

impl Bursts {
    /// Whether the bit of a block was found set while it was in slow memory.
    #[must_use]
    pub fn knows(&self, block: Key) -> bool {
        self.known.contains_key(&block)
    }

    /// Whether there is so much evidence that blocks need not be split in each period.
    #[must_use]
    pub fn has_evidence(&self) -> bool {
        self.pages.min(self.bits) >= FORGET * MICRO
    }

    /// Takes in the rate of a block in slow memory that was sampled as a whole.
    pub fn add_whole(&mut self, block: Key, rate: AccessRate, window_us: u64) {
        if let Some(known) = self.known.get_mut(&block) {
            known.bits.forget();
            known.bits.add(rate, window_us);
            known.unsampled = 0;
            self.whole.add(rate, window_us);
        } else if rate > AccessRate::ZERO && self.known.len() < KNOWN_MAX {
            // What made it known says nothing about how often it is accessed compared with others: it does not count for `w`.
            let mut known = Known::default();
            known.bits.add(rate, window_us);
            self.known.insert(block, known);
        }
    }

    /// Takes in the rate of a known block that was split: of its pages, in all.
    pub fn add_split(&mut self, block: Key, rate: AccessRate, window_us: u64) {
        if let Some(known) = self.known.get_mut(&block) {
            known.unsampled = 0;
            self.split.add(rate, window_us);
        }
    }

    /// Takes in the rate of a block that is not in slow memory.
    pub fn add_fast(&mut self, block: Key, rate: AccessRate, window_us: u64) {
        if let Some(known) = self.known.get_mut(&block) {
            known.bits.forget();
            known.bits.add(rate, window_us);
            known.unsampled = 0;
        }
    }

    /// Compares what the period showed, and forgets a part of what earlier ones did.
    pub fn end_period(&mut self) {
        (self.pages, self.bits) = (forget(self.pages), forget(self.bits));
        let (split, whole) = (std::mem::take(&mut self.split), std::mem::take(&mut self.whole));
        if let (Some(pages), Some(bits)) = (split.mean(), whole.mean()) {
            (self.pages, self.bits) = (self.pages.saturating_add(pages), self.bits.saturating_add(bits));
        }
        self.known.values_mut().for_each(|known| known.unsampled += 1);
        self.known.retain(|_, known| known.bits.events >= KNOWN_MIN && known.unsampled <= UNSAMPLED_MAX);
    }

    /// `w`, in millionths: the pages for which a set bit stands.
    #[must_use]
    pub fn pages_per_bit(&self) -> u64 {
        let Self { pages, bits, .. } = *self;
        if pages < bits.saturating_mul(BURST_MIN).saturating_add(MARGIN) {
            return MICRO;
        }
        let ratio = u128::from(pages) * u128::from(MICRO) / u128::from(bits.max(1));
        u64::try_from(ratio).unwrap_or(u64::MAX).min(PAGES_MAX * MICRO)
    }

    /// The rate of a known block in the long run, by its bit, for a period that shows nothing of it. Zero once it is forgotten: it was idle
    /// for that long.
    #[must_use]
    pub fn long_run(&self, block: Key) -> Estimate {
        let idle = Estimate { mean: AccessRate::ZERO, upper: Some(AccessRate::ZERO) };
        self.known.get(&block).map_or(idle, |known| rate::counted(known.bits.events / MICRO, known.bits.time_us))
    }

    /// The estimate of a huge page with its bursts: `own`, and `(w - 1) s`.
    #[must_use]
    pub fn weigh(&self, block: Key, own: Estimate) -> Estimate {
        let more = self.pages_per_bit() - MICRO;
        if more == 0 {
            return own;
        }
        let by_bits = self.known.get(&block).map_or(own.mean, |known| known.bits.rate());
        let extra = u128::from(by_bits.0) * u128::from(more) / u128::from(MICRO);
        let extra = AccessRate(u64::try_from(extra).unwrap_or(u64::MAX));
        Estimate { mean: own.mean + extra, upper: own.upper.map(|upper| upper + extra) }
    }
}

#[cfg(test)]
mod tests;

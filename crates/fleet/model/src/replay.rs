//! Replays one job through the cold-age controller, for every percentile and warm-up of a grid at once.
//!
//! # Problem
//! (SDFM section 5.3) replays a trace once per configuration. A hundred configurations take a hundred times as long,
//! which is why its authors searched with a Gaussian process.
//!
//! # Algorithm
//! The best threshold of an entry, and so the pool of past bests, depends on neither K nor S:
//! 1. Find the best threshold once, and count it in the pool: one counter per threshold.
//! 2. A percentile of the pool is a bucket. Each bucket is the percentile for all K between the share of bests below it
//!    and the share up to it. Walk the occupied buckets from that of the highest percentile, which rarely moves, down
//!    to the best; all percentiles that remain, or would be below it, take the best (the rule for spikes, if it is
//!    enabled).
//! 3. The outcome of the next entry under a bucket is one lookup in its suffix sums, added for the whole range
//!    ([`crate::tally`]).
//! 4. With the bound, K is taken of the bests and one more above them, which is a larger number to multiply K by. While the
//!    history is young, each span's threshold is checked against the margin; only where its highest percentile needs more,
//!    the span is divided ([`policy::cold_age::early`]).
//! 5. A best below all buckets of a decision that serve a percentile raises the shares below them a little: a decision says how
//!    many such bests leave it as it is, and these are only counted.
//! 6. S only decides from which entry on a job counts: an entry is added once, to the last warm-up that has passed.
//!
//! # Time
//! As in the agent, the threshold decided at the end of an entry is in effect during the next one. The first entry of a
//! job has no far memory. The last decision stays in effect over gaps in the trace.
//!
//! # Properties
//! Thresholds agree with [`policy::cold_age::step`], entry by entry and for every pair: a test replays random jobs
//! through both. For histograms of a sample they do not: [`policy::cold_age::window`] is not modelled. Nor are parts of the cold
//! pages, which agents offload where no threshold qualifies: such jobs store more than the model says.

use std::ops::Range;

use multiversion::multiversion;
use policy::cold_age::early::Observation;
use policy::cold_age::{self, Early, Fading, observations_needed};
use policy::thresholds::{THRESHOLDS_MAX, Thresholds};
use units::{Millis, Pages, RatioPpm};

use crate::grid::{Grid, Setup};
use crate::sampling::Sampled;
use crate::series::{Row, Series};
use crate::tally::{Running, Tally};

/// A range of percentiles, as indices of the grid, with the same threshold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The percentiles.
    pub percentiles: Range<usize>,
    /// Index of the threshold.
    pub threshold: usize,
}

/// The controller of one job under all percentiles of a grid. Reused for each job.
#[derive(Clone, Debug)]
pub struct Controller {
    percentiles: Vec<u64>,
    /// By bucket: the number of percentiles below it at the last search. A further best changes few of them, so a
    /// search that starts here ends at once; it needs no division, and its branches are predicted well.
    starts: [usize; THRESHOLDS_MAX + 1],
    rate_max: RatioPpm,
    half_life_ms: Millis,
    spikes: bool,
    bound: bool,
    partial: bool,
    /// The observations that each percentile needs.
    needed: Vec<u16>,
    /// The measurements of a young history; `None` once they suffice for all percentiles.
    early: Option<Early>,
    first: usize,
    len: usize,
    /// How often each threshold was best; the last element counts "none".
    bests: [u32; THRESHOLDS_MAX + 1],
    /// Bit i: `bests[i]` is not zero.
    occupied: u128,
    total: u64,
    /// The bests that K is a share of: with the bound, one more than there are.
    ranked: u64,
    /// Bucket of the highest percentile, and the number of bests above it. A further best rarely moves it, and no
    /// percentile is in the buckets above it.
    top: usize,
    above_top: u64,
    fading: Fading,
    /// The lowest bucket that serves a percentile, and how many further bests below it certainly change no span.
    lowest: usize,
    quiet: u64,
    spans: Vec<Span>,
    /// Whether the spans may have changed since they were last used.
    changed: bool,
    /// Memory for the spans of a young history before they are divided.
    young_spans: Vec<Span>,
}

/// Returns the number of thresholds with more promotions than `allowed`. The sums decrease, so these are the first
/// ones. Counted without a branch, several at a time: the branches of a search would be predicted poorly.
#[multiversion(targets("x86_64+avx2"))]
fn too_many(promotions: &[u32], allowed: u32) -> usize {
    promotions[1..].iter().map(|&promotions| u32::from(promotions > allowed)).sum::<u32>() as usize
}

impl Controller {
    /// Creates a controller before its first entry; `None` if no threshold is old enough for the setup.
    #[must_use]
    pub fn new(grid: &Grid, setup: &Setup, thresholds: &Thresholds) -> Option<Self> {
        let percentiles: Vec<u64> = grid.percentiles().iter().map(|k| u64::from(k.0)).collect();
        let needed = grid.percentiles().iter().map(|&k| observations_needed(k)).collect();
        Some(Self {
            percentiles,
            starts: [0; THRESHOLDS_MAX + 1],
            rate_max: setup.promotion_rate_max,
            half_life_ms: setup.half_life_ms,
            spikes: setup.spikes,
            bound: setup.bound,
            partial: setup.partial,
            needed,
            early: None,
            first: setup.first(thresholds)?,
            len: thresholds.len(),
            bests: [0; THRESHOLDS_MAX + 1],
            occupied: 0,
            total: 0,
            ranked: 0,
            top: 0,
            above_top: 0,
            fading: Fading::default(),
            lowest: 0,
            quiet: 0,
            spans: Vec::with_capacity(THRESHOLDS_MAX + 1),
            changed: true,
            young_spans: Vec::new(),
        })
    }

    /// Resets the controller for the next job.
    fn reset(&mut self) {
        self.bests = [0; THRESHOLDS_MAX + 1];
        self.occupied = 0;
        (self.total, self.ranked) = (0, 0);
        self.early = self.bound.then(|| Early::new(self.partial));
        (self.top, self.above_top) = (0, 0);
        self.fading = Fading::default();
        self.forget();
    }

    /// Ends all spans.
    fn forget(&mut self) {
        self.quiet = 0;
        self.changed = true;
        self.spans.clear();
    }

    /// Returns the thresholds in effect after the last entry; percentiles without a threshold are in no span.
    #[must_use]
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Returns the promotions that the objective allows for an entry.
    #[inline]
    fn allowed(&self, working_set: u64, row: &Row<'_>) -> u64 {
        cold_age::promotions_allowed(self.rate_max, Pages(working_set), row.window_ms).0
    }

    /// Adds one entry. `too_many` is the number of thresholds that exceeded the objective in it, which is `allowed`.
    #[inline]
    fn step(&mut self, row: &Row<'_>, too_many: usize, allowed: u64) {
        if row.window_ms == Millis::ZERO {
            return self.forget();
        }
        let best = too_many.max(self.first);
        let whole = if self.half_life_ms == Millis::ZERO { 1 } else { self.fade(row.age_ms) };
        let Some(counter) = self.bests.get_mut(best) else { return self.forget() };
        let more = counter.saturating_add(whole);
        let added = u64::from(more - *counter);
        *counter = more;
        self.total += added;
        self.ranked = self.total + if self.bound { u64::from(whole) } else { 0 };
        self.occupied |= 1 << best;
        if best < self.lowest && (1..=self.quiet).contains(&added) {
            self.quiet -= added;
            return;
        }
        self.search(best, added);
        if self.early.is_some() {
            self.quiet = 0;
            self.leave_margins(row, allowed);
        }
    }

    /// Applies the decay, and returns the weight of a new best.
    fn fade(&mut self, job_age_ms: Millis) -> u32 {
        let before = self.fading;
        let whole = self.fading.fade(&mut self.bests, self.half_life_ms, job_age_ms);
        if self.fading != before {
            self.recount();
        }
        whole
    }

    /// Computes the spans after a best was counted.
    fn search(&mut self, best: usize, added: u64) {
        self.spans.clear();
        self.changed = true;
        self.above_top += if best > self.top { added } else { 0 };
        self.find_top();
        // Without the rule for spikes, the lowest bucket takes the remaining percentiles.
        self.decide(if self.spikes { best } else { self.occupied.trailing_zeros() as usize });
    }

    /// Adds the entry to a young history, and raises the thresholds that need a margin.
    fn leave_margins(&mut self, row: &Row<'_>, allowed: u64) {
        let Some(early) = &mut self.early else { return };
        let observation = Observation { job_age_ms: row.age_ms, window_ms: row.window_ms, allowed, sample: None, periods: 1 };
        early.observe(
            &observation,
            row.promotions[1..].iter().zip(&row.cold[1..]).map(|(&promotions, &cold)| (promotions.into(), u16::from(cold > 0))),
        );
        let needed_most = self.needed.last().copied().unwrap_or(0);
        if early.measured(self.len - 1) >= needed_most {
            self.early = None;
            return;
        }
        let early = *early;
        let needs = |span: &Span| span.percentiles.end.checked_sub(1).and_then(|last| self.needed.get(last)).copied().unwrap_or(0);
        if self.spans.iter().all(|span| early.qualifies(span.threshold, needs(span))) {
            return;
        }
        let mut young = std::mem::take(&mut self.young_spans);
        std::mem::swap(&mut young, &mut self.spans);
        for span in young.drain(..) {
            self.divide(&early, span);
        }
        self.young_spans = young;
    }

    /// Divides a span by the thresholds that qualify. A higher percentile needs more observations, so what serves it
    /// serves all lower ones: each threshold takes those up to the last that it qualifies for, unless a younger one does.
    fn divide(&mut self, early: &Early, Span { percentiles, threshold }: Span) {
        let first = self.spans.len();
        let mut start = percentiles.start;
        for threshold in threshold..self.len {
            let rest = &self.needed[start..percentiles.end];
            let Some(&next) = rest.first() else { break };
            if !early.qualifies(threshold, next) {
                continue;
            }
            let end = start + rest.partition_point(|&needed| early.qualifies(threshold, needed));
            self.push(start..end, threshold);
            start = end;
        }
        // Spans are in the order of falling thresholds.
        self.spans[first..].reverse();
    }

    /// Computes the sums over all counters again, after they have faded.
    #[cold]
    fn recount(&mut self) {
        self.total = self.bests.iter().map(|&n| u64::from(n)).sum();
        (self.top, self.above_top) = (0, self.total - u64::from(self.bests[0]));
        self.quiet = 0;
        self.occupied = self.bests.iter().enumerate().fold(0, |bits, (bucket, &n)| bits | u128::from(n > 0) << bucket);
    }

    /// Moves `top` to the bucket of the highest percentile.
    #[inline]
    fn find_top(&mut self) {
        let Some(rank) = self.percentiles.last().map(|k| (k * self.ranked).min(self.total * 1_000_000)) else { return };
        while rank > (self.total - self.above_top) * 1_000_000 {
            // The rank is at most the total: there is an occupied bucket above.
            self.top += 1 + (self.occupied >> self.top >> 1).trailing_zeros() as usize;
            self.above_top -= u64::from(self.bests[self.top]);
        }
        loop {
            let below = self.total - self.above_top - u64::from(self.bests[self.top]);
            if below == 0 || rank > below * 1_000_000 {
                break;
            }
            self.above_top += u64::from(self.bests[self.top]);
            let lower = self.occupied & ((1 << self.top) - 1);
            self.top = 127 - lower.leading_zeros() as usize;
        }
    }

    /// Distributes the percentiles over the buckets; none gets a bucket below `lowest`, which is occupied.
    #[inline]
    fn decide(&mut self, lowest: usize) {
        let mut end = self.percentiles.len();
        // Bests in buckets up to and including the current one.
        let mut up_to = self.total - self.above_top;
        // Occupied buckets above the lowest, limited to those up to the top.
        #[expect(clippy::cast_possible_truncation, reason = "of 65 buckets, 64 are above another")]
        let above = (self.occupied >> lowest >> 1) as u64;
        let mut above = self.top.checked_sub(lowest + 1).map_or(0, |last| above & (u64::MAX >> (63 - last)));
        let mut quiet = u64::MAX;
        while above != 0 && end > 0 {
            let highest = 63 - above.leading_zeros() as usize;
            above ^= 1 << highest;
            let bucket = lowest + 1 + highest;
            let below = up_to - u64::from(self.bests[bucket]);
            // The rank of a percentile is ceil(total * K); a lower bucket serves it if the rank is at most `below`. For
            // integers that is total * K <= below. At least one best is below: `lowest` is occupied.
            let start = self.at_or_below(bucket, below).min(end);
            if start < end {
                quiet = quiet.min(self.unchanged(start, below));
                self.lowest = bucket;
            }
            self.push(start..end, bucket);
            (end, up_to) = (start, below);
        }
        self.push(0..end, lowest);
        // What the lowest bucket serves depends on which one it is.
        self.quiet = if end == 0 { quiet } else { 0 };
    }

    /// Returns how many further bests below a bucket leave the percentile with this index above their share, which it is now. With
    /// m of them: K * (ranked + m) > 1 * (below + m).
    #[inline]
    fn unchanged(&self, percentile: usize, below: u64) -> u64 {
        let k = self.percentiles[percentile];
        let excess = (k * self.ranked).saturating_sub(below * 1_000_000);
        excess.saturating_sub(1).checked_div(1_000_000u64.saturating_sub(k)).unwrap_or(u64::MAX)
    }

    /// Returns the number of percentiles at or below the share of `bests` in all bests, which are those below a bucket.
    #[inline]
    fn at_or_below(&mut self, bucket: usize, bests: u64) -> usize {
        let share = bests * 1_000_000;
        let mut count = self.starts[bucket];
        while self.percentiles.get(count).is_some_and(|&k| k * self.ranked <= share) {
            count += 1;
        }
        while count > 0 && self.percentiles[count - 1] * self.ranked > share {
            count -= 1;
        }
        self.starts[bucket] = count;
        count
    }

    #[inline]
    fn push(&mut self, percentiles: Range<usize>, threshold: usize) {
        if !percentiles.is_empty() && threshold < self.len {
            self.spans.push(Span { percentiles, threshold });
        }
    }
}

/// Replays jobs under one setup.
#[derive(Clone, Debug)]
pub struct Replay {
    controller: Controller,
    running: Running,
    warmups: Vec<Millis>,
    /// Index of the first suffix sum without pages younger than the minimum age; the working set is the sum before it,
    /// minus it.
    working_buckets: usize,
}

impl Replay {
    /// Creates a replay over `grid`; `None` if no threshold is old enough for the setup.
    #[must_use]
    pub fn new(grid: &Grid, setup: &Setup, thresholds: &Thresholds) -> Option<Self> {
        let controller = Controller::new(grid, setup, thresholds)?;
        let working_buckets = controller.first + 1;
        Some(Self { controller, running: Running::new(grid), warmups: grid.warmups().to_vec(), working_buckets })
    }

    /// Replays a job and adds its outcome to `tally`.
    pub fn job(&mut self, series: &Series, tally: &mut Tally) {
        let mut ignore = |_: &Row<'_>, _: &[Span], _: usize| {};
        self.job_observed(series, tally, &mut ignore);
    }

    /// Replays a job as [`Self::job`] does, and calls `observe` after each entry with the thresholds then in effect and
    /// the number of warm-ups that have passed.
    pub fn job_observed(&mut self, series: &Series, tally: &mut Tally, observe: &mut impl FnMut(&Row<'_>, &[Span], usize)) {
        self.controller.reset();
        self.running.reset();
        if series.is_empty() || series.buckets() != self.controller.len + 1 {
            return;
        }
        let (mut used_page_ms, mut cold_page_ms, mut cold_accesses) = (0u128, 0u128, 0u128);
        let (mut sampled, mut sampled_ms) = (Sampled::default(), 0u128);
        // The number of warm-ups that had passed at the last decision.
        let mut warm = 0;
        for row in series.rows() {
            let working_set = row.cold[0] - row.cold[self.working_buckets];
            let allowed = self.controller.allowed(working_set.into(), &row);
            let too_many = too_many(row.promotions, u32::try_from(allowed).unwrap_or(u32::MAX));
            let window = u128::from(row.window_ms.0);
            used_page_ms += u128::from(row.cold[0]) * window;
            cold_page_ms += u128::from(row.cold[1]) * window;
            cold_accesses += u128::from(row.promotions[1]);
            if row.origin.sampled > 0 {
                sampled.entry(row.cold[0], row.origin.sampled, window);
                sampled_ms += window;
            }
            if warm > 0 && row.window_ms > Millis::ZERO {
                if self.controller.changed || self.running.warm() != warm {
                    self.controller.changed = false;
                    let spans = self.controller.spans.iter().map(|span| (span.percentiles.clone(), span.threshold));
                    tally.open(&mut self.running, spans, warm);
                }
                tally.add(&mut self.running, &row, &series.compressibility, working_set);
            }
            self.controller.step(&row, too_many, allowed);
            while self.warmups.get(warm).is_some_and(|&warmup| row.age_ms >= warmup) {
                warm += 1;
            }
            observe(&row, &self.controller.spans, warm);
        }
        tally.settle(&mut self.running);
        sampled.finish_job(sampled_ms);
        let started = series.rows().next().map(|first| first.age_ms.saturating_sub(first.window_ms));
        let ended = series.entries().last().map(|last| last.age_ms);
        let lasted = ended.zip(started).map_or(Millis::ZERO, |(ended, started)| ended.saturating_sub(started));
        tally.base.merge(&crate::tally::Base {
            jobs: 1,
            jobs_assumed: u64::from(series.assumed),
            entries: series.len() as u64,
            used_page_ms,
            cold_page_ms,
            cold_accesses,
            start_unix_ms: series.start_unix_ms,
            end_unix_ms: series.start_unix_ms + lasted,
            sampled,
        });
    }
}

#[cfg(test)]
mod tests;

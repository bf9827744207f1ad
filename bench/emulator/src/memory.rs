//! The slow memory of the program: its blocks, and their parked pages.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::time::{Duration, Instant};

use kernel::maps::{Kind, Vma};
use kernel::pagemap::{Entry, Pagemap};
use units::RatioPpm;

use crate::choice::{BLOCK, PAGE, is_sampled, is_slow};
use crate::helper::{CALLS_MAX, Call, Helper, Reply, parking};
use crate::pending::Pending;
use crate::placement::Placement;

/// How long pages freed by the program are not parked. The kernel reports `madvise(2)` before it frees the pages, and
/// not when it has finished: a page parked in between would keep its old content.
const FREED_FOR: Duration = Duration::from_secs(10);

/// Pages per block.
const PAGES: usize = 512;
const _: () = assert!(PAGES as u64 * PAGE == BLOCK);

/// The random choice of slow blocks and parked pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub(crate) seed: u64,
    pub(crate) share: RatioPpm,
    pub(crate) sample: RatioPpm,
    pub(crate) draw: u64,
}

/// Slow blocks of one program. Stores which blocks are registered; the state of their pages is always read from the
/// kernel.
#[derive(Debug)]
pub(crate) struct Memory {
    pagemap: Pagemap,
    /// Registered blocks, with the number of accesses to each.
    pub(crate) blocks: BTreeMap<u64, u64>,
    /// Blocks whose parking address is in use, or that the kernel refused to register.
    unfit: HashSet<u64>,
    /// Ranges freed by the program, and when.
    pub(crate) freed: Vec<(Range<u64>, Instant)>,
    /// Number of forks; the children got copies of the parked pages.
    pub(crate) forks: u64,
    /// Number of blocks of private anonymous memory at the last survey.
    pub(crate) surveyed: u64,
    pub(crate) pending: Pending,
    /// Chooses the slow blocks; `None` if they are random.
    pub(crate) placement: Option<Placement>,
}

impl Memory {
    pub(crate) fn new(pagemap: Pagemap, placement: Option<Placement>) -> Self {
        Self {
            pagemap,
            blocks: BTreeMap::new(),
            unfit: HashSet::new(),
            freed: Vec::new(),
            forks: 0,
            surveyed: 0,
            pending: Pending::default(),
            placement,
        }
    }

    /// Number of slow blocks.
    pub(crate) fn slow_blocks(&self) -> u64 {
        self.placement.as_ref().map_or(self.blocks.len() as u64, Placement::slow_blocks)
    }

    /// Counts accesses to pages.
    pub(crate) fn count_accesses(&mut self, pages: &[u64]) {
        for page in pages {
            let block = page & !(BLOCK - 1);
            if let Some(accesses) = self.blocks.get_mut(&block) {
                *accesses += 1;
            }
            if let Some(placement) = &mut self.placement {
                placement.count_access(block);
            }
        }
    }

    /// Number of slow blocks that were accessed.
    pub(crate) fn accessed_blocks(&self) -> u64 {
        self.blocks.values().filter(|accesses| **accesses > 0).count() as u64
    }

    /// Registers new slow blocks, and parks the pages of this draw. `initial` is whether the first period has just
    /// begun. Returns the number of moved pages; `None` if an event has to be handled first.
    pub(crate) fn survey(&mut self, vmas: &[Vma], choice: Choice, initial: bool, helper: &mut Helper) -> kernel::Result<Option<u64>> {
        let found: Vec<u64> =
            vmas.iter().filter(|vma| is_eligible(vma)).flat_map(blocks_of).filter(|block| !self.is_parking(*block)).collect();
        self.surveyed = found.len() as u64;
        let new: Vec<u64> = found
            .into_iter()
            .filter(|block| !self.blocks.contains_key(block) && !self.unfit.contains(block) && is_slow(choice.seed, *block, choice.share))
            .collect();
        for block in new {
            if self.register(block, helper)?.is_none() {
                return Ok(None);
            }
            if let Some(placement) = self.placement.as_mut().filter(|_| self.blocks.contains_key(&block)) {
                placement.add(block, initial);
            }
        }
        self.freed.retain(|(_, since)| since.elapsed() < FREED_FOR);
        self.park(choice, helper)
    }

    /// Lets the policy decide after a period in which the program used the processor time `own`.
    pub(crate) fn end_period(&mut self, own: Duration, sample: RatioPpm) {
        if let Some(placement) = &mut self.placement {
            placement.end_period(own, sample, |block| self.blocks.contains_key(&block));
        }
    }

    /// Whether this is the parking address of a registered block.
    fn is_parking(&self, block: u64) -> bool {
        self.blocks.contains_key(&parking(block))
    }

    /// Registers a block and its parking address. `None` if an event has to be handled first.
    fn register(&mut self, block: u64, helper: &mut Helper) -> kernel::Result<Option<()>> {
        let (range, parked) = (block..block + BLOCK, parking(block)..parking(block) + BLOCK);
        let calls = [Call::map(&parked), Call::not_for_children(parked.clone()), Call::register(&parked), Call::register(&range)];
        let Some(replies) = helper.run(&calls)? else { return Ok(None) };
        let Some(failed) = replies.iter().position(|reply| reply.result.is_err()) else {
            self.blocks.insert(block, 0);
            return Ok(Some(()));
        };
        log::debug!("block {block:x} stays fast: {} failed with {:?}", calls[failed].op(), replies[failed].result);
        self.unfit.insert(block);
        if failed > 0 {
            helper.run(&[Call::unregister(&parked), Call::unmap(&parked)])?;
        }
        Ok(Some(()))
    }

    /// Parks the pages of this draw, and restores pages that are no longer in it.
    fn park(&mut self, choice: Choice, helper: &mut Helper) -> kernel::Result<Option<u64>> {
        let open: HashSet<u64> = helper.open().into_iter().collect();
        let freed = self.freed_ranges();
        let is_freed = |page: u64| freed[..freed.partition_point(|range| range.start <= page)].last().is_some_and(|range| page < range.end);
        let mut moved = 0;
        let blocks: Vec<u64> = self.blocks.keys().copied().collect();
        for block in blocks {
            let (here, parked) = (self.entries(block)?, self.entries(parking(block))?);
            let watched = self.placement.as_mut().is_none_or(|placement| {
                placement.set_pages(block, here.iter().chain(&parked).filter(|entry| has_content(entry)).count() as u64);
                placement.is_watched(block)
            });
            let in_draw = |page: u64| watched && is_sampled(choice.seed, choice.draw, page, choice.sample);
            let out = runs(block, &here, |page| in_draw(page) && !open.contains(&page) && !is_freed(page));
            let back = runs(block, &parked, |page| !in_draw(page));
            let calls: Vec<Call> = (out.into_iter().map(|run| Call::move_pages(parking(run.start), run.start, run.end - run.start)))
                .chain(back.into_iter().map(|run| Call::move_pages(run.start, parking(run.start), run.end - run.start)))
                .collect();
            for batch in calls.chunks(CALLS_MAX) {
                let Some(replies) = helper.run(batch)? else { return Ok(None) };
                // A page that cannot be moved (pinned, or shared after a fork) ends its run; the next survey tries
                // again.
                moved += replies.iter().map(|reply| bytes_done(reply) / PAGE).sum::<u64>();
            }
        }
        Ok(Some(moved))
    }

    /// Ranges that the program freed recently, sorted and without overlaps.
    fn freed_ranges(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = self.freed.iter().map(|(range, _)| range.clone()).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        let mut merged: Vec<Range<u64>> = Vec::new();
        for range in ranges {
            match merged.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => merged.push(range),
            }
        }
        merged
    }

    /// Reads the pagemap entries of a block.
    fn entries(&self, block: u64) -> kernel::Result<Vec<Entry>> {
        let mut entries = vec![Entry::default(); PAGES];
        let read = self.pagemap.read(block, &mut entries)?;
        entries.truncate(read);
        Ok(entries)
    }

    /// Returns the parked pages in a range, as runs of their original addresses.
    pub(crate) fn parked(&self, within: &Range<u64>) -> kernel::Result<Vec<Range<u64>>> {
        let mut found = Vec::new();
        for block in self.overlapping(within) {
            found.extend(runs(block, &self.entries(parking(block))?, |page| within.contains(&page)));
        }
        Ok(found)
    }

    /// Returns the number of all parked pages.
    pub(crate) fn parked_pages(&self) -> kernel::Result<u64> {
        Ok(self.parked(&(0..u64::MAX))?.iter().map(|run| (run.end - run.start) / PAGE).sum())
    }

    /// Returns the registered blocks that overlap with a range.
    pub(crate) fn overlapping(&self, range: &Range<u64>) -> Vec<u64> {
        self.blocks.range(range.start.saturating_sub(BLOCK - 1)..range.end).map(|(block, _)| *block).collect()
    }
}

/// Returns the number of bytes that a copy or move has processed, even if it failed.
pub(crate) fn bytes_done(reply: &Reply) -> u64 {
    let [_, _, bytes, _, done] = reply.words;
    match reply.result {
        Ok(_) => bytes,
        Err(_) => u64::try_from(done.cast_signed()).unwrap_or(0),
    }
}

/// Returns whether a mapping is private, anonymous, readable and writable memory.
fn is_eligible(vma: &Vma) -> bool {
    matches!(vma.kind, Kind::Anon | Kind::Heap) && vma.private() && vma.perms.read && vma.perms.write && !vma.perms.execute
}

/// Returns the whole blocks of a mapping.
fn blocks_of(vma: &Vma) -> impl Iterator<Item = u64> + use<> {
    let (start, end) = (vma.start.next_multiple_of(BLOCK), vma.end / BLOCK * BLOCK);
    (0..end.saturating_sub(start) / BLOCK).map(move |at| start + at * BLOCK)
}

/// Returns whether a page has content, in memory or swap.
fn has_content(entry: &Entry) -> bool {
    entry.present() || entry.swapped()
}

/// Returns the pages that have content and pass the test, as runs of adjacent addresses. `entries` may be those of the
/// parking address.
fn runs(block: u64, entries: &[Entry], mut test: impl FnMut(u64) -> bool) -> Vec<Range<u64>> {
    let mut found: Vec<Range<u64>> = Vec::new();
    let pages = (0..).map(|at| block + at * PAGE);
    for (page, entry) in pages.zip(entries) {
        if !has_content(entry) || !test(page) {
            continue;
        }
        match found.last_mut() {
            Some(run) if run.end == page => run.end += PAGE,
            _ => found.push(page..page + PAGE),
        }
    }
    found
}

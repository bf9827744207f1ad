//! The program's slow memory: which blocks there are, and what is parked.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::resident::{CALLS_MAX, Call, Reply, Resident, parking};
use kernel::maps::{Kind, Vma};
use kernel::pagemap::{Entry, Pagemap};
use units::RatioPpm;

use crate::changes::Changes;
use crate::choice::{BLOCK, PAGE, sampled, slow};
use crate::placement::Placement;

/// How long pages that the program gave back are left alone. The kernel tells of that before it takes the pages, and
/// not when it is done: one that was parked in between would come back with its old content.
const LEFT_ALONE: Duration = Duration::from_secs(10);

/// Pages of a block.
const PAGES: usize = 512;
const _: () = assert!(PAGES as u64 * PAGE == BLOCK);

/// Which blocks are slow, and how many of their pages are parked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub(crate) seed: u64,
    pub(crate) share: RatioPpm,
    pub(crate) sample: RatioPpm,
    pub(crate) draw: u64,
}

/// Slow blocks of one program. Everything is asked of the kernel again where it counts; this only knows which blocks
/// are registered.
#[derive(Debug)]
pub(crate) struct Memory {
    pagemap: Pagemap,
    /// Blocks whose faults are ours, with the accesses counted in each.
    pub(crate) blocks: BTreeMap<u64, u64>,
    /// Blocks whose parking place is taken by something else, or that the kernel would not register.
    unfit: HashSet<u64>,
    pub(crate) given_back: Vec<(Range<u64>, Instant)>,
    /// Forks, whose children got copies of what was parked.
    pub(crate) forks: u64,
    /// Blocks of private anonymous memory at the last survey.
    pub(crate) surveyed: u64,
    pub(crate) changes: Changes,
    /// What says which blocks are slow, where it is not chance.
    pub(crate) placement: Option<Placement>,
}

impl Memory {
    pub(crate) fn new(pagemap: Pagemap, placement: Option<Placement>) -> Self {
        Self {
            pagemap,
            blocks: BTreeMap::new(),
            unfit: HashSet::new(),
            given_back: Vec::new(),
            forks: 0,
            surveyed: 0,
            changes: Changes::default(),
            placement,
        }
    }

    /// Slow blocks at present.
    pub(crate) fn slow_blocks(&self) -> u64 {
        self.placement.as_ref().map_or(self.blocks.len() as u64, Placement::slow_blocks)
    }

    /// Books accesses to pages.
    pub(crate) fn book(&mut self, pages: &[u64]) {
        for page in pages {
            let block = page & !(BLOCK - 1);
            if let Some(accesses) = self.blocks.get_mut(&block) {
                *accesses += 1;
            }
            if let Some(placement) = &mut self.placement {
                placement.book(block);
            }
        }
    }

    /// Slow blocks that were accessed.
    pub(crate) fn accessed_blocks(&self) -> u64 {
        self.blocks.values().filter(|accesses| **accesses > 0).count() as u64
    }

    /// Registers slow blocks that have appeared, at the beginning of a period or in its midst, and parks what is to be parked.
    /// Returns the pages moved; `None` where an event has to be dealt with first.
    pub(crate) fn survey(
        &mut self,
        vmas: &[Vma],
        choice: Choice,
        at_the_beginning: bool,
        resident: &mut Resident,
    ) -> kernel::Result<Option<u64>> {
        let found: Vec<u64> = vmas.iter().filter(|vma| fit(vma)).flat_map(blocks_of).filter(|block| !self.taken(*block)).collect();
        self.surveyed = found.len() as u64;
        let new: Vec<u64> = found
            .into_iter()
            .filter(|block| !self.blocks.contains_key(block) && !self.unfit.contains(block) && slow(choice.seed, *block, choice.share))
            .collect();
        for block in new {
            if self.adopt(block, resident)?.is_none() {
                return Ok(None);
            }
            if let Some(placement) = self.placement.as_mut().filter(|_| self.blocks.contains_key(&block)) {
                placement.meet(block, at_the_beginning);
            }
        }
        self.given_back.retain(|(_, since)| since.elapsed() < LEFT_ALONE);
        self.park(choice, resident)
    }

    /// Decides which blocks are slow from now on, after a period of so much of the program's own time.
    pub(crate) fn end_period(&mut self, own: Duration, sample: RatioPpm) {
        if let Some(placement) = &mut self.placement {
            placement.end_period(own, sample, |block| self.blocks.contains_key(&block));
        }
    }

    /// Whether this is where one of our blocks is parked.
    fn taken(&self, block: u64) -> bool {
        self.blocks.contains_key(&parking(block))
    }

    fn adopt(&mut self, block: u64, resident: &mut Resident) -> kernel::Result<Option<()>> {
        let (range, parked) = (block..block + BLOCK, parking(block)..parking(block) + BLOCK);
        let calls = [Call::map(&parked), Call::not_for_children(parked.clone()), Call::register(&parked), Call::register(&range)];
        let Some(replies) = resident.run(&calls)? else { return Ok(None) };
        let Some(failed) = replies.iter().position(|reply| reply.result.is_err()) else {
            self.blocks.insert(block, 0);
            return Ok(Some(()));
        };
        log::debug!("block {block:x} stays fast: {} gave {:?}", calls[failed].op(), replies[failed].result);
        self.unfit.insert(block);
        if failed > 0 {
            resident.run(&[Call::unregister(&parked), Call::unmap(&parked)])?;
        }
        Ok(Some(()))
    }

    /// Parks the pages of this draw, and brings those home that are no longer in it.
    fn park(&mut self, choice: Choice, resident: &mut Resident) -> kernel::Result<Option<u64>> {
        let open: HashSet<u64> = resident.open().into_iter().collect();
        let given_back = self.given_back();
        let is_given_back =
            |page: u64| given_back[..given_back.partition_point(|range| range.start <= page)].last().is_some_and(|range| page < range.end);
        let mut moved = 0;
        let blocks: Vec<u64> = self.blocks.keys().copied().collect();
        for block in blocks {
            let (here, parked) = (self.entries(block)?, self.entries(parking(block))?);
            let watched = self.placement.as_mut().is_none_or(|placement| {
                placement.measure(block, here.iter().chain(&parked).filter(|entry| has_content(entry)).count() as u64);
                placement.is_watched(block)
            });
            let in_draw = |page: u64| watched && sampled(choice.seed, choice.draw, page, choice.sample);
            let out = runs(block, &here, |page| in_draw(page) && !open.contains(&page) && !is_given_back(page));
            let home = runs(block, &parked, |page| !in_draw(page));
            let calls: Vec<Call> = (out.into_iter().map(|run| Call::move_pages(parking(run.start), run.start, run.end - run.start)))
                .chain(home.into_iter().map(|run| Call::move_pages(run.start, parking(run.start), run.end - run.start)))
                .collect();
            for batch in calls.chunks(CALLS_MAX) {
                let Some(replies) = resident.run(batch)? else { return Ok(None) };
                // A page that cannot be moved (pinned, shared after a fork) ends its run; the next survey tries again.
                moved += replies.iter().map(|reply| bytes_done(reply) / PAGE).sum::<u64>();
            }
        }
        Ok(Some(moved))
    }

    /// What the program gave back a short while ago, in order and without overlaps.
    fn given_back(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = self.given_back.iter().map(|(range, _)| range.clone()).collect();
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

    fn entries(&self, block: u64) -> kernel::Result<Vec<Entry>> {
        let mut entries = vec![Entry::default(); PAGES];
        let read = self.pagemap.read(block, &mut entries)?;
        entries.truncate(read);
        Ok(entries)
    }

    /// Pages that are parked now, as runs of their own addresses.
    pub(crate) fn parked(&self, within: &Range<u64>) -> kernel::Result<Vec<Range<u64>>> {
        let mut found = Vec::new();
        for block in self.touching(within) {
            found.extend(runs(block, &self.entries(parking(block))?, |page| within.contains(&page)));
        }
        Ok(found)
    }

    /// Pages parked in all.
    pub(crate) fn parked_pages(&self) -> kernel::Result<u64> {
        Ok(self.parked(&(0..u64::MAX))?.iter().map(|run| (run.end - run.start) / PAGE).sum())
    }

    /// Our blocks that share an address with this range.
    pub(crate) fn touching(&self, range: &Range<u64>) -> Vec<u64> {
        self.blocks.range(range.start.saturating_sub(BLOCK - 1)..range.end).map(|(block, _)| *block).collect()
    }
}

/// Bytes that a copy or move has got done: its last word, where that is no error.
pub(crate) fn bytes_done(reply: &Reply) -> u64 {
    let [_, _, bytes, _, done] = reply.words;
    match reply.result {
        Ok(_) => bytes,
        Err(_) => u64::try_from(done.cast_signed()).unwrap_or(0),
    }
}

/// Private anonymous memory that may be read and written.
fn fit(vma: &Vma) -> bool {
    matches!(vma.kind, Kind::Anon | Kind::Heap) && vma.private() && vma.perms.read && vma.perms.write && !vma.perms.execute
}

/// The whole blocks of a mapping.
fn blocks_of(vma: &Vma) -> impl Iterator<Item = u64> + use<> {
    let (start, end) = (vma.start.next_multiple_of(BLOCK), vma.end / BLOCK * BLOCK);
    (0..end.saturating_sub(start) / BLOCK).map(move |at| start + at * BLOCK)
}

/// Whether there is a page, in memory or swap.
fn has_content(entry: &Entry) -> bool {
    entry.present() || entry.swapped()
}

/// Pages that have content, in memory or swap, and pass the test, as runs of adjacent addresses. `entries` may be those
/// of where the block is parked.
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

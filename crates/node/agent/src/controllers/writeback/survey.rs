//! Ages of a job's far pages by address: since when their swap entries are the same.
//!
//! `/proc/PID/pagemap` has the swap entry of each page that is swapped out. A page that was swapped in and out again mostly has another
//! one. For each block of [`PAGES`] pages of which nearly all are swapped out, a hash of its entries is kept, and since when it is
//! unchanged: 40 bytes for 64 KiB of far memory.
//!
//! Bounded: [`BLOCKS_MAX`] blocks of a job, and [`ENTRIES_MAX`] entries in a period. What lies beyond is not watched, and stays in
//! zswap.

use kernel::pagemap::{Entry, Pagemap};
use kernel::{Result, Roots};
use policy::writeback::expected_rate;
use trackers::walk::{Flow, Walker};
use units::{Millis, Pages};

/// Pages of a block: 64 KiB where a page has 4.
pub const PAGES: usize = 16;

/// The fewest swapped pages of a block that is watched. The others are in use, and are left alone.
const SWAPPED_MIN: u32 = 12;

/// Blocks that are watched of one job: 1 GiB of far memory.
pub const BLOCKS_MAX: usize = 16_384;

/// Entries that are read in a period: those of 4 GiB of addresses, in some tens of milliseconds.
const ENTRIES_MAX: u64 = 1 << 20;

/// The pages of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// A bit for each page that is swapped out.
    pub swapped: u16,
    /// A bit for each page in DRAM.
    present: u16,
    /// A hash of the swap entries.
    hash: u64,
}

impl Found {
    /// Takes in the page with this index in the block.
    fn add(&mut self, index: usize, entry: Entry) {
        if entry.file_or_shmem() {
            return;
        }
        if entry.present() {
            self.present |= 1 << index;
        }
        if let Some(swap) = entry.swap_entry() {
            self.swapped |= 1 << index;
            self.hash = mixed(self.hash ^ mixed(swap ^ ((index as u64) << 56)));
        }
    }

    /// The number of pages that are swapped out.
    #[must_use]
    pub fn pages(&self) -> Pages {
        Pages(u64::from(self.swapped.count_ones()))
    }

    /// Their addresses, in a block that begins at `start`.
    #[must_use]
    pub fn addresses(&self, start: u64) -> Vec<u64> {
        let page = kernel::page_size().bytes();
        (0..PAGES).filter(|index| self.swapped >> index & 1 == 1).map(|index| start + index as u64 * page).collect()
    }

    /// Pages that were accessed between `before` and now: those that are in DRAM now, or at least one, if the entries of the same pages
    /// differ. Pages that were freed are in neither.
    fn returned_since(&self, before: &Found) -> Pages {
        let returned = u64::from((before.swapped & self.present).count_ones());
        let again = self.swapped == before.swapped && self.hash != before.hash;
        Pages(returned.max(u64::from(again)))
    }
}

/// The finalizer of splitmix64: all bits of the result depend on all bits of the argument.
fn mixed(mut number: u64) -> u64 {
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// A block that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its process.
    pub pid: i32,
    /// Its first address.
    pub start: u64,
    /// Its pages.
    pub found: Found,
    /// Time since boot at which they were first found like this.
    pub since: Millis,
    /// Whether the agent has moved them to the device.
    pub written: bool,
}

/// The blocks of a job, by process and address.
#[derive(Debug, Default)]
pub struct Blocks {
    list: Vec<Block>,
    /// Whether the job has more than is watched.
    pub partial: bool,
    surveyed_at: Option<Millis>,
}

/// What a survey found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Surveyed {
    /// The longest time for which a block that is not written has been far.
    pub oldest: Option<Millis>,
    /// The sum of `1 / 2t` over the written pages, in pages per million seconds.
    pub written_rate: u64,
    /// Returns expected since the last survey, in thousandths of a page, of blocks that were far for longer than the threshold.
    pub expected: u64,
    /// Pages of these that returned.
    pub returned: Pages,
}

impl Blocks {
    /// Reads the page maps of a job's processes. `after` is the last second threshold; without one no returns are counted.
    pub fn survey(&mut self, roots: &Roots, walker: &mut Walker, pids: &[i32], now: Millis, after: Option<Millis>) -> Surveyed {
        let before = std::mem::take(&mut self.list);
        let elapsed = now.saturating_sub(self.surveyed_at.replace(now).unwrap_or(now));
        let mut pids = pids.to_vec();
        pids.sort_unstable();
        self.partial = false;
        let mut surveyed = Surveyed::default();
        let mut left = ENTRIES_MAX;
        for pid in pids {
            let mut collect = |start: u64, found: Found| {
                let known = before.binary_search_by_key(&(pid, start), |block| (block.pid, block.start)).ok().map(|at| before[at]);
                if let Some(known) = known {
                    surveyed.count_returns(&known, found, now, elapsed, after);
                }
                self.take(pid, start, found, known, now)
            };
            // A process that has exited has no pages.
            let Ok((reached, read)) = walk_blocks(roots, walker, pid, left, &mut collect) else { continue };
            left = left.saturating_sub(read);
            if reached.is_some() || left == 0 {
                self.partial = true;
                break;
            }
        }
        self.summarize(&mut surveyed, now);
        surveyed
    }

    /// Watches a block if nearly all of it is swapped out and there is room. Returns whether there is.
    fn take(&mut self, pid: i32, start: u64, found: Found, known: Option<Block>, now: Millis) -> Flow {
        if found.swapped.count_ones() < SWAPPED_MIN {
            return Flow::Continue;
        }
        if self.list.len() == BLOCKS_MAX {
            self.partial = true;
            return Flow::Stop;
        }
        let same = known.filter(|known| (known.found.swapped, known.found.hash) == (found.swapped, found.hash));
        let (since, written) = same.map_or((now, false), |known| (known.since, known.written));
        self.list.push(Block { pid, start, found, since, written });
        Flow::Continue
    }

    fn summarize(&self, surveyed: &mut Surveyed, now: Millis) {
        for block in &self.list {
            let age = now.saturating_sub(block.since);
            if block.written {
                surveyed.written_rate = surveyed.written_rate.saturating_add(expected_rate(block.found.pages(), age));
            } else {
                surveyed.oldest = surveyed.oldest.max(Some(age));
            }
        }
    }

    /// The blocks to move: not written, far for `after` or longer, the oldest first, of `pages` at most.
    #[must_use]
    pub fn oldest(&self, now: Millis, after: Millis, pages: Pages) -> Vec<(i32, u64)> {
        let due = |block: &&Block| !block.written && now.saturating_sub(block.since) >= after;
        let mut due: Vec<&Block> = self.list.iter().filter(due).collect();
        due.sort_by_key(|block| block.since);
        let mut left = pages;
        let fits = |block: &&&Block| {
            let fits = block.found.pages() <= left;
            left = left - block.found.pages();
            fits
        };
        due.iter().take_while(fits).map(|block| (block.pid, block.start)).collect()
    }

    /// A block.
    pub fn get_mut(&mut self, pid: i32, start: u64) -> Option<&mut Block> {
        let at = self.list.binary_search_by_key(&(pid, start), |block| (block.pid, block.start)).ok()?;
        self.list.get_mut(at)
    }

    /// The pages that are watched, and those of them that were moved.
    #[must_use]
    pub fn pages(&self) -> (Pages, Pages) {
        let sum = |written: bool| self.list.iter().filter(|block| block.written || !written).map(|block| block.found.pages()).sum();
        (sum(false), sum(true))
    }
}

impl Surveyed {
    fn count_returns(&mut self, known: &Block, found: Found, now: Millis, elapsed: Millis, after: Option<Millis>) {
        let age = now.saturating_sub(known.since);
        if after.is_none_or(|after| age < after) {
            return;
        }
        let expected = expected_rate(known.found.pages(), age).saturating_mul(elapsed.0) / 1_000_000;
        self.expected = self.expected.saturating_add(expected);
        self.returned += found.returned_since(&known.found);
    }
}

/// The pages of one block now.
///
/// # Errors
/// `Gone` if the process has exited or runs another program; any other error of its page map.
pub fn read_block(pagemap: &Pagemap, start: u64) -> Result<Found> {
    let mut entries = [Entry::default(); PAGES];
    let read = pagemap.read(start, &mut entries)?;
    let mut found = Found::default();
    entries[..read].iter().enumerate().for_each(|(index, entry)| found.add(index, *entry));
    Ok(found)
}

/// Calls `collect` with each block that has anonymous pages. Returns where the walk ended before the end, and about how many entries it
/// read.
fn walk_blocks(
    roots: &Roots,
    walker: &mut Walker,
    pid: i32,
    most: u64,
    collect: &mut dyn FnMut(u64, Found) -> Flow,
) -> Result<(Option<u64>, u64)> {
    let page = kernel::page_size().bytes();
    let block = page * PAGES as u64;
    let mut current: Option<(u64, Found)> = None;
    let mut visited = 0;
    let mut full = false;
    let reached = walker.walk(roots, pid, 0, most, &mut |address, entry| {
        visited += 1;
        let start = address - address % block;
        if let Some((before, found)) = current.filter(|(before, _)| *before != start) {
            current = None;
            if collect(before, found) == Flow::Stop {
                full = true;
                return Flow::Stop;
            }
        }
        let index = usize::try_from((address - start) / page).unwrap_or(0);
        current.get_or_insert((start, Found::default())).1.add(index, entry);
        Flow::Continue
    })?;
    if let Some((start, found)) = current.filter(|_| !full) {
        // A block that the walk ended in the middle of is found whole in the next one, or never.
        if reached.is_none() && collect(start, found) == Flow::Stop {
            full = true;
        }
    }
    Ok((reached.or(full.then_some(u64::MAX)), visited))
}

#[cfg(test)]
mod tests;

//! How much each block of memory is accessed, by DAMON: one kdamond reads the accessed bits of a few pages of each block again and again.
//!
//! The other instruments do not do: accessed bits of `smaps` are summed over a mapping, and idle page tracking says whether a page was
//! accessed in a window, which is no rate.

use std::ops::Range;
use std::time::Duration;

use fastrand::Rng;
use kernel::damon::{Damon, Points};
use kernel::pagemap::{Entry, Pagemap};
use kernel::{Error, Result, Roots, page_size, process};
use policy::slowdown::rate::{BitSamples, Parts, parts};
use units::Bytes;

use super::watched::INTERVAL_MIN;
use crate::hot::Block;

/// Pages of all blocks that are watched, about.
const WATCHED: u64 = 2_048;

/// Pages of a block that are watched at least: one page alone says nothing of the difference between pages (`policy::slowdown::rate`).
const PAGES_MIN: u64 = 2;

/// The least size of a block: a huge page, of guests that have such.
const BLOCK_MIN: u64 = 2 << 20;

/// A block, and where it is in the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Its addresses.
    pub range: Range<u64>,
    /// Its size and its rate.
    pub block: Block,
}

/// A block that is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Watched {
    range: Range<u64>,
    /// Resident pages.
    resident: u64,
    /// Addresses of those that are watched.
    pages: Vec<u64>,
}

/// Watches blocks of `ranges`, which ascend, for `window`, which `wait` waits for. Only pages for which `counts` is true are counted; blocks
/// without one are left out. Returns also the CPU time of the kdamond.
///
/// # Errors
/// As [`super::watched::sample`].
pub(super) fn sample(
    roots: &Roots,
    pid: i32,
    ranges: &[Range<u64>],
    counts: impl Fn(&[u64]) -> Result<Vec<bool>>,
    window: Duration,
    wait: impl FnOnce(Duration),
) -> Result<(Vec<Placed>, Duration)> {
    let damon = Damon::probe(roots)?;
    let watched = draw(roots, pid, ranges, counts)?;
    let addresses: Vec<u64> = watched.iter().flat_map(|block| block.pages.iter().copied()).collect();
    if addresses.is_empty() {
        return Ok((Vec::new(), Duration::ZERO));
    }
    // The shortest interval resolves the highest rate.
    let interval = INTERVAL_MIN;
    let mut session = damon.watch_points(interval, &[Points { pid, addresses }])?;
    wait(window);
    let counts = session.counts();
    let cpu = session.kdamond_pid().and_then(|kdamond| process::stat(roots, kdamond).ok()).map_or(Duration::ZERO, |stat| stat.cpu_time());
    session.stop()?;
    let counts = counts?;
    let Some(accessed) = counts.accessed.into_iter().next().flatten() else {
        return Err(Error::Gone { path: roots.proc.join(pid.to_string()) });
    };
    Ok((placed(watched, &accessed, counts.samples, interval), cpu))
}

/// The blocks with their rates, by how many of the samples of each page found it accessed.
fn placed(watched: Vec<Watched>, accessed: &[u32], taken: u32, interval: Duration) -> Vec<Placed> {
    let mut accessed = accessed.iter();
    let interval_us = u64::try_from(interval.as_micros()).unwrap_or(u64::MAX);
    let page = page_size().bytes();
    let rate = |block: Watched| {
        let of_page = |&accessed: &u32| BitSamples { taken, accessed };
        let samples: Vec<_> = accessed.by_ref().take(block.pages.len()).map(of_page).collect();
        let resident = u32::try_from(block.resident).unwrap_or(u32::MAX);
        // Pages that are not resident are in no memory, and come to the pool with their first access.
        let estimate = parts(&Parts { of: resident, touched: resident, touch_window_us: 0, samples: &samples, interval_us });
        Placed { range: block.range, block: Block { bytes: Bytes(block.resident * page), estimate } }
    };
    watched.into_iter().map(rate).collect()
}

/// Divides the ranges into equal blocks and draws pages of each.
fn draw(roots: &Roots, pid: i32, ranges: &[Range<u64>], counts: impl Fn(&[u64]) -> Result<Vec<bool>>) -> Result<Vec<Watched>> {
    let pagemap = Pagemap::open(roots, pid)?;
    let mut random = Rng::with_seed(super::seed());
    let (size, pages) = sizes(ranges);
    let mut blocks = Vec::new();
    for range in ranges {
        let mut start = range.start;
        while start < range.end {
            let end = range.end.min(start + size);
            let mut drawn = resident(&pagemap, start..end)?;
            let resident = drawn.len() as u64;
            choose(&mut drawn, pages, &mut random);
            let counted = counts(&drawn)?;
            let pages: Vec<u64> = drawn.into_iter().zip(counted).filter_map(|(page, counts)| counts.then_some(page)).collect();
            if !pages.is_empty() {
                blocks.push(Watched { range: start..end, resident, pages });
            }
            start = end;
        }
    }
    Ok(blocks)
}

/// The size of a block, and how many of its pages are watched.
fn sizes(ranges: &[Range<u64>]) -> (u64, usize) {
    let all: u64 = ranges.iter().map(|range| range.end - range.start).sum();
    let size = all.div_ceil(WATCHED / PAGES_MIN).next_power_of_two().max(BLOCK_MIN);
    let pages = WATCHED.checked_div(all.div_ceil(size)).unwrap_or(PAGES_MIN).max(PAGES_MIN);
    (size, usize::try_from(pages).unwrap_or(usize::MAX))
}

/// Keeps so many of the pages, at random, in their order.
fn choose(pages: &mut Vec<u64>, count: usize, random: &mut Rng) {
    for at in 0..count.min(pages.len()) {
        let other = random.usize(at..pages.len());
        pages.swap(at, other);
    }
    pages.truncate(count);
    pages.sort_unstable();
}

/// The addresses of the pages that are in memory.
fn resident(pagemap: &Pagemap, range: Range<u64>) -> Result<Vec<u64>> {
    let page = page_size().bytes();
    let count = usize::try_from((range.end - range.start) / page).unwrap_or(usize::MAX);
    let mut entries = vec![Entry::default(); count];
    let read = pagemap.read(range.start, &mut entries)?;
    let present = entries[..read].iter().zip((range.start..range.end).step_by(usize::try_from(page).unwrap_or(usize::MAX)));
    Ok(present.filter_map(|(entry, address)| entry.present().then_some(address)).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn blocks_are_so_large_that_each_has_its_pages() {
        let check = |gib_sixteenths: u64, expected| assert_eq!(sizes(&[0..gib_sixteenths << 26, 1 << 40..1 << 40]), expected);
        check(1, (2 << 20, 64));
        check(16, (2 << 20, 4));
        check(32, (2 << 20, 2));
        check(16 * 64, (64 << 20, 2));
    }

    #[test]
    fn pages_are_drawn_of_what_is_resident_and_counts() {
        let directory = tempfile::tempdir().unwrap();
        let page = page_size().bytes();
        let per_block = BLOCK_MIN / page;
        // Three blocks: the first half resident, the second empty, the third resident and not to be counted.
        let is_resident = |at: u64| at < per_block / 2 || at >= 2 * per_block;
        let words: Vec<u8> = (0..3 * per_block).flat_map(|at| (u64::from(is_resident(at)) << 63).to_ne_bytes()).collect();
        fs::create_dir_all(directory.path().join("proc/7")).unwrap();
        fs::write(directory.path().join("proc/7/pagemap"), words).unwrap();
        let counts = |pages: &[u64]| Ok(pages.iter().map(|&page| page < 2 * BLOCK_MIN).collect());
        let blocks = draw(&Roots::under(directory.path()), 7, std::slice::from_ref(&(0..3 * BLOCK_MIN)), counts).unwrap();
        assert_eq!(blocks.len(), 1, "{blocks:?}");
        let Watched { range, resident, pages } = &blocks[0];
        assert_eq!((range.clone(), *resident, pages.len()), (0..BLOCK_MIN, per_block / 2, usize::try_from(per_block / 2).unwrap()));
        assert!(pages.is_sorted_by(|one, next| one < next) && pages.iter().all(|page| *page < BLOCK_MIN / 2));
    }

    #[test]
    fn a_block_has_the_rate_of_its_pages() {
        let watched = |start: u64, pages: u64| Watched { range: start..start + BLOCK_MIN, resident: 512, pages: (0..pages).collect() };
        let blocks = placed(
            vec![watched(0, 4), watched(BLOCK_MIN, 4), watched(2 * BLOCK_MIN, 4)],
            &[0, 0, 0, 0, 5, 5, 5, 5, 0, 20, 0, 0],
            20,
            INTERVAL_MIN,
        );
        let [cold, warm, hot] = [0, 1, 2].map(|at: usize| blocks[at].block.estimate);
        assert_eq!((blocks[1].range.start, blocks[1].block.bytes), (BLOCK_MIN, Bytes(512 * page_size().bytes())));
        // In a quarter of the half seconds: ln(4/3) accesses in each, of each of 512 pages.
        assert!((warm.mean.as_f64() - 512.0 * (4.0f64 / 3.0).ln() / 0.5).abs() < 1.0, "{warm:?}");
        assert!(cold.mean.0 == 0 && cold.upper.unwrap() < warm.upper.unwrap() && warm.upper.unwrap() > warm.mean, "{cold:?} {warm:?}");
        assert_eq!(hot.upper, None, "one page is accessed at any rate");
    }
}

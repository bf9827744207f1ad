//! What a page fault on swapped-out memory costs beside the read that the kernel counts.
//!
//! Delay accounting begins and ends in `swap_read_folio()` (`mm/page_io.c`). The fault around it also allocates and charges a page,
//! searches the swap cache, maps it and returns its slot (`do_swap_page()` in `mm/memory.c`): more than a fault on new memory
//! does. So it is measured where it can be: on pages of the agent itself, which are paged out and touched again.
//!
//! How long both parts take depends on what else the processor does: whoever rarely faults finds cold caches. The reads of a job's own
//! pages show it, and the rest of its faults is assumed to be slower, or faster, by the same factor ([`Fault::beside_reads_of`]).

use std::hint::black_box;
use std::ops::Range;
use std::time::Duration;

use daemon::Clock;
use kernel::madvise::PidFd;
use kernel::taskstats::{Delay, TaskStats};

/// Pages that are paged out. Their memory is returned when the measurement ends.
const PAGES: usize = 64;

/// Fewer reads than this show nothing.
const READS_MIN: u64 = 8;

/// The loop waits for the pages: of a slow device fewer are read.
const TIME_MAX: Duration = Duration::from_millis(100);

/// Every how many pages the next one is touched: no divisor of [`PAGES`], and far enough apart that read-ahead does not help.
const STRIDE: usize = 37;

/// The greatest factor by which a job's faults are assumed to differ: a device's reads are slower for other reasons.
const FACTOR_MAX: f64 = 3.0;

/// The parts of a page fault on swapped-out memory, each a mean.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fault {
    /// All but the read.
    pub beside: Duration,
    /// The read of the same pages; zero if it was not measured.
    pub read: Duration,
}

impl Fault {
    /// The part of a job's faults beside its reads, if these take so long on average.
    #[must_use]
    pub fn beside_reads_of(&self, mean: Duration) -> Duration {
        if self.read.is_zero() || mean.is_zero() {
            return self.beside;
        }
        self.beside.mul_f64((mean.as_secs_f64() / self.read.as_secs_f64()).clamp(FACTOR_MAX.recip(), FACTOR_MAX))
    }
}

/// A measurement, in two steps: a page that was written to a device leaves DRAM at the second request only.
#[derive(Debug, Default)]
pub(super) struct Measurement(Option<Vec<u8>>);

impl Measurement {
    /// The next step. The first returns nothing; the second the parts of a fault, unless the kernel kept the pages in DRAM, or counts
    /// no delays of this process (it started before they were turned on).
    pub(super) fn step(&mut self, accounting: &mut TaskStats, clock: &Clock) -> Option<Fault> {
        let page = usize::try_from(kernel::page_size().bytes()).ok()?;
        let own = i32::try_from(std::process::id()).ok()?;
        let started = self.0.take();
        let second = started.is_some();
        let memory = started.unwrap_or_else(|| filled(page));
        PidFd::open(own).ok()?.advise_pageout(&[range(&memory, page)]).ok()?;
        if !second {
            self.0 = Some(memory);
            return None;
        }
        let before = accounting.delays(own).ok()?;
        let taken = touched(&memory, page, clock);
        let waits = accounting.delays(own).ok()? - before;
        parts(taken.saturating_sub(Duration::from_nanos(waits.block_io.total_ns)), waits.swap_in)
    }
}

/// Touches the pages, as many as there is time for. Returns how long that took.
fn touched(memory: &[u8], page: usize, clock: &Clock) -> Duration {
    let (start, first) = (clock.now(), offset(memory, page));
    let mut taken = Duration::ZERO;
    for turn in 0..PAGES {
        black_box(memory[first + turn * STRIDE % PAGES * page]);
        taken = clock.now().saturating_sub(start);
        if taken >= TIME_MAX {
            break;
        }
    }
    taken
}

/// Divides `taken` into the reads and the rest, for each of them.
fn parts(taken: Duration, reads: Delay) -> Option<Fault> {
    let all = Duration::from_nanos(reads.total_ns);
    let rest = taken.saturating_sub(all);
    if reads.count < READS_MIN || rest.is_zero() {
        return None;
    }
    let each = |of: Duration| of / u32::try_from(reads.count).unwrap_or(u32::MAX);
    Some(Fault { beside: each(rest), read: each(all) })
}

/// Memory for the pages, wherever the first one begins. A third of each page is random: pages that are all alike would be stored
/// without compression, and random ones not at all.
fn filled(page: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    (0..(PAGES + 1) * page).map(|at| if at % page < page / 3 { random() } else { 7 }).collect()
}

/// Where the first whole page begins.
fn offset(memory: &[u8], page: usize) -> usize {
    memory.as_ptr().addr().next_multiple_of(page) - memory.as_ptr().addr()
}

fn range(memory: &[u8], page: usize) -> Range<u64> {
    let start = (memory.as_ptr().addr() + offset(memory, page)) as u64;
    start..start + (PAGES * page) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_pages_are_whole_and_touched_once() {
        let page = 4096;
        let memory = filled(page);
        let pages = range(&memory, page);
        assert_eq!((pages.start % 4096, pages.end - pages.start), (0, (PAGES * page) as u64));
        assert!(offset(&memory, page) + PAGES * page <= memory.len());
        let mut turns: Vec<usize> = (0..PAGES).map(|turn| turn * STRIDE % PAGES).collect();
        turns.sort_unstable();
        assert_eq!(turns, (0..PAGES).collect::<Vec<_>>());
        let differing = memory.chunks(page).zip(memory.chunks(page).skip(1)).all(|(one, next)| one != next);
        assert!(differing, "pages of the same content would be stored once");
    }

    #[test]
    fn reads_are_not_counted_twice_and_pages_that_stayed_count_nothing() {
        let us = Duration::from_micros;
        let check = |taken_us: u64, count: u64, read_us: u64, expected_us: Option<(u64, u64)>| {
            let reads = Delay { count, total_ns: read_us * 1000 };
            let expected = expected_us.map(|(beside, read)| Fault { beside: us(beside), read: us(read) });
            assert_eq!(parts(us(taken_us), reads), expected);
        };
        check(1000, 100, 600, Some((4, 6)));
        check(1000, 7, 600, None);
        check(500, 100, 600, None);
    }

    #[test]
    fn faults_of_a_job_are_slower_by_the_factor_of_its_reads() {
        let us = Duration::from_micros;
        let fault = Fault { beside: us(60), read: us(40) };
        for (mean, expected) in [(40, 60), (80, 120), (20, 30), (400, 180), (1, 20), (0, 60)] {
            assert_eq!(fault.beside_reads_of(us(mean)), us(expected), "{mean}");
        }
        assert_eq!(Fault { read: Duration::ZERO, ..fault }.beside_reads_of(us(80)), us(60), "not measured");
    }
}

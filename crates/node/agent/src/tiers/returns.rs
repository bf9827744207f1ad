//! What a page fault on swapped-out memory costs beside the read that the kernel counts.
//!
//! Delay accounting begins and ends in `swap_read_folio()` (`mm/page_io.c`). The fault around it also allocates and charges a page,
//! searches the swap cache, maps it and returns its slot (`do_swap_page()` in `mm/memory.c`): more than a fault on new memory
//! does. So it is measured where it can be: on pages of the agent itself, which are paged out and touched again.
//!
//! The single faults are measured as well, again and again, for the distribution of their durations: a mean says nothing of the rare
//! long ones.
//!
//! How long both parts take depends on what else the processor does between two faults. Pages that are touched one after another find
//! warm caches, and a job that computes in between does not. Jobs are between the two, the closer to warm caches the more they
//! fault; so pages are touched in pairs, with a pause before each pair, by a thread of its own, which the agent's loop does not wait for.
//! Where a job's own reads take longer, or shorter, the rest of its faults is assumed to do so by the same factor
//! ([`Fault::beside_reads_of`]).

use std::hint::black_box;
use std::ops::Range;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use daemon::Clock;
use kernel::Roots;
use kernel::madvise::PidFd;
use kernel::taskstats::{Delay, Delays, TaskStats};
use serde::Serialize;

use crate::durations::{Quantiles, RecentDurations};

/// Pages that are paged out. Their memory is returned when the measurement ends.
const PAGES: usize = 256;

/// Time before each pair of touches: all of them together are spread over some seconds, so that what disturbs a moment counts little.
const PAUSE: Duration = Duration::from_millis(50);

/// Time for a device to write the pages: they leave DRAM at the second request only.
const WRITTEN_IN: Duration = Duration::from_secs(1);

/// Fewer reads than this show nothing.
const READS_MIN: u64 = 8;

/// Of a slow device fewer pages are read.
const TIME_MAX: Duration = Duration::from_secs(30);

/// Every how many pages the next one is touched: no divisor of [`PAGES`], and far enough apart that read-ahead does not help.
const STRIDE: usize = 37;

/// The greatest factor by which a job's faults are assumed to differ: a device's reads are slower for other reasons.
const FACTOR_MAX: f64 = 3.0;

/// Measurements until the first succeeds: pages of the agent may be kept in DRAM once by chance, and by its unit's limits always.
const BEGUN_MAX: u32 = 3;

/// Time from the end of a measurement to the next one. Each writes 1 MiB, where the agent's pages go to a device: 36 MiB a day.
const WAIT: Duration = Duration::from_mins(40);

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

/// Durations of single faults on the agent's own swapped-out pages, over the last one to two hours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct FaultsView {
    /// Those that a page in DRAM was decompressed for; `None` without any.
    pub compressed: Option<Quantiles>,
    /// Those that waited for a device; `None` without any.
    pub device: Option<Quantiles>,
}

/// What faults on the agent's own pages took.
#[derive(Debug)]
pub(super) struct Returns {
    fault: Fault,
    measurement: Option<Receiver<Vec<Touched>>>,
    /// Measurements so far.
    begun: u32,
    /// When the next measurement begins; `None` until the first succeeds.
    next_at: Option<Duration>,
    compressed: RecentDurations,
    device: RecentDurations,
}

impl Returns {
    /// Until a fault was measured, it costs as much as one on new memory.
    pub(super) fn new(on_new_memory: Duration) -> Self {
        Self {
            fault: Fault { beside: on_new_memory, ..Fault::default() },
            measurement: None,
            begun: 0,
            next_at: None,
            compressed: RecentDurations::default(),
            device: RecentDurations::default(),
        }
    }

    /// The mean parts of a fault. They are those of the first measurement, so that decisions do not follow what disturbs a later one.
    pub(super) fn fault(&self) -> Fault {
        self.fault
    }

    /// The distributions.
    pub(super) fn view(&self) -> FaultsView {
        FaultsView { compressed: self.compressed.quantiles(), device: self.device.quantiles() }
    }

    /// Begins a measurement if one is due, or takes in what one found. The kernel counts delays of tasks.
    pub(super) fn measure(&mut self, roots: &Roots, clock: &Clock) {
        let now = clock.now();
        self.compressed.age(now);
        self.device.age(now);
        let Some(measurement) = self.measurement.take() else {
            if self.next_at.map_or(self.begun < BEGUN_MAX, |next_at| now >= next_at) {
                self.begun += 1;
                self.measurement = begin(roots);
            }
            return;
        };
        match measurement.try_recv() {
            Err(TryRecvError::Empty) => self.measurement = Some(measurement),
            Err(TryRecvError::Disconnected) => self.end(&[], now),
            Ok(pairs) => self.end(&pairs, now),
        }
    }

    /// Takes in what a measurement found, if it found something. The first one counts, so that decisions do not follow what disturbs a
    /// later one.
    fn end(&mut self, pairs: &[Touched], now: Duration) {
        let [compressed, device] = Touched::all(pairs).by_tier();
        compressed.into_iter().for_each(|each| self.compressed.add(each, 1));
        device.into_iter().for_each(|each| self.device.add(each, 1));
        if let Some(fault) = undisturbed(pairs).parts().filter(|_| self.next_at.is_none()) {
            self.fault = fault;
            let (Fault { beside, read }, all) = (fault, Touched::all(pairs).parts().unwrap_or_default());
            log::info!(
                "a page fault on swapped-out memory takes {beside:?}, and {read:?} for the read; with those that were disturbed {:?} and {:?}",
                all.beside,
                all.read
            );
        }
        // One that failed later is repeated as late as one that succeeded.
        if self.next_at.is_some() || !self.fault.read.is_zero() {
            self.next_at = Some(now + WAIT);
        }
    }
}

/// The pairs without the slowest quarter of them: the thread has lost its processor in some, and a few of these decide a mean.
fn undisturbed(pairs: &[Touched]) -> Touched {
    let mut sorted: Vec<&Touched> = pairs.iter().collect();
    sorted.sort_by_key(|pair| pair.each.iter().sum::<Duration>());
    sorted.truncate(pairs.len() - pairs.len() / 4);
    Touched::all(sorted)
}

/// Begins a measurement in a thread of its own. Returns where its result arrives; nothing does if nothing could be measured.
fn begin(roots: &Roots) -> Option<Receiver<Vec<Touched>>> {
    let (result, touched) = channel();
    let roots = roots.clone();
    let run = move || {
        if let Some(pairs) = touched_in_pairs(&roots) {
            // The agent may have ended meanwhile.
            let _sent: Result<(), _> = result.send(pairs);
        }
    };
    let started = thread::Builder::new().name("fault-cost".to_owned()).spawn(run);
    started.map_err(|error| log::warn!("what a page fault takes is not measured: cannot start a thread: {error}")).ok()?;
    Some(touched)
}

/// Pages memory out and touches it, in pairs of pages with a pause before each. `None` if nothing can be paged out, or if the kernel does
/// not say what this task waits for.
fn touched_in_pairs(roots: &Roots) -> Option<Vec<Touched>> {
    let page = usize::try_from(kernel::page_size().bytes()).ok()?;
    let task = rustix::thread::gettid().as_raw_nonzero().get();
    let mut accounting = TaskStats::open(roots).ok()?;
    let memory = filled(page);
    page_out(&memory, page)?;
    thread::sleep(WRITTEN_IN);
    page_out(&memory, page)?;
    let (began, first) = (Instant::now(), offset(&memory, page));
    let mut before = accounting.delays_of_task(task).ok()?;
    let mut pairs = Vec::with_capacity(PAGES / 2);
    while pairs.len() < PAGES / 2 && began.elapsed() < TIME_MAX {
        thread::sleep(PAUSE);
        let each = [0, 1].map(|of_pair| {
            let turn = pairs.len() * 2 + of_pair;
            let start = Instant::now();
            black_box(memory[first + turn * STRIDE % PAGES * page]);
            start.elapsed()
        });
        let after = accounting.delays_of_task(task).ok()?;
        pairs.push(Touched { each: each.to_vec(), waits: after - before });
        before = after;
    }
    Some(pairs)
}

fn page_out(memory: &[u8], page: usize) -> Option<()> {
    let own = i32::try_from(std::process::id()).ok()?;
    PidFd::open(own).ok()?.advise_pageout(&[range(memory, page)]).ok().map(drop)
}

/// How long each page took, and what the kernel counted meanwhile.
#[derive(Debug, Default)]
struct Touched {
    each: Vec<Duration>,
    waits: Delays,
}

impl Touched {
    /// All of these together.
    fn all<'a>(of: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut all = Self::default();
        for Self { each, waits } in of {
            all.each.extend(each);
            all.waits += *waits;
        }
        all
    }

    fn parts(&self) -> Option<Fault> {
        let taken: Duration = self.each.iter().sum();
        parts(taken.saturating_sub(self.waits.for_devices()), self.waits.swap_in)
    }

    /// The faults that read a page from memory, and from a device. The kernel's counts say how many of each there were; the longest
    /// touches are assumed to be those that waited for the device, and the shortest those of pages that were in DRAM.
    fn by_tier(&self) -> [Vec<Duration>; 2] {
        let mut sorted = self.each.clone();
        sorted.sort_unstable();
        let count = |counted: u64| usize::try_from(counted).unwrap_or(usize::MAX);
        let faults = count(self.waits.swap_in.count).min(sorted.len());
        let mut compressed = sorted.split_off(sorted.len() - faults);
        let device = compressed.split_off(faults - count(self.waits.block_io.count).min(faults));
        [compressed, device]
    }
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

/// Words of the records below.
const WORDS: [&[u8; 8]; 8] = [b"session\0", b"pending\0", b"user-agt", b"text/htm", b"2026-11-", b"https://", b"checkout", b"default\0"];

/// Memory for the pages, wherever the first one begins. It holds records as programs do: an address, a number, a small value, a word.
/// Pages that are all alike would be stored without compression, random ones not at all, and long runs of a byte are decompressed faster
/// than a job's data.
fn filled(page: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let mut memory = Vec::with_capacity((PAGES + 1) * page + 32);
    for number in 0u64.. {
        if memory.len() >= (PAGES + 1) * page {
            break;
        }
        memory.extend((0x7f3a_4000_0000 | (random() & 0xff_fff8)).to_le_bytes());
        memory.extend(((number & 0xffff_ffff) | (random() & 3) << 32).to_le_bytes());
        memory.extend(WORDS[usize::try_from(random() & 7).unwrap_or(0)]);
        memory.extend((random() & 0xffff).to_le_bytes());
    }
    memory.truncate((PAGES + 1) * page);
    memory
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
    fn each_fault_belongs_to_the_tier_that_the_kernel_counted() {
        let us = Duration::from_micros;
        let check = |reads, waits, compressed: &[u64], device: &[u64]| {
            let delay = |count| Delay { count, total_ns: 0 };
            let waits = Delays { swap_in: delay(reads), block_io: delay(waits), ..Delays::default() };
            let touched = Touched { each: [9, 300, 1, 8, 200].map(us).to_vec(), waits };
            let expected = [compressed, device].map(|all| all.iter().copied().map(us).collect::<Vec<_>>());
            assert_eq!(touched.by_tier(), expected, "{reads} reads, {waits:?}");
        };
        check(0, 0, &[], &[]);
        check(4, 0, &[8, 9, 200, 300], &[]);
        check(4, 2, &[8, 9], &[200, 300]);
        check(5, 5, &[], &[1, 8, 9, 200, 300]);
        // Read-ahead reads more pages than there are faults.
        check(40, 1, &[1, 8, 9, 200], &[300]);
        check(1, 9, &[], &[300]);
    }

    /// Pairs of touches that take so long each, of which the read is a part.
    fn pairs(count: u64, each_us: u64, read_us: u64) -> Vec<Touched> {
        let waits = Delays { swap_in: Delay { count: 2, total_ns: 2 * read_us * 1_000 }, ..Delays::default() };
        (0..count).map(|_| Touched { each: vec![Duration::from_micros(each_us); 2], waits }).collect()
    }

    #[test]
    fn the_first_measurement_that_finds_something_counts() {
        let us = Duration::from_micros;
        let mut returns = Returns::new(us(1));
        let on_new_memory = Fault { beside: us(1), read: Duration::ZERO };
        for nothing in [Vec::new(), pairs(1, 1, 1)] {
            returns.end(&nothing, us(5));
            assert_eq!((returns.fault(), returns.next_at), (on_new_memory, None), "pages that stayed in DRAM show nothing");
        }
        returns.end(&pairs(128, 10, 4), us(5));
        let first = Fault { beside: us(6), read: us(4) };
        assert_eq!((returns.fault(), returns.next_at), (first, Some(us(5) + WAIT)));
        returns.end(&pairs(128, 1_000, 4), us(6));
        assert_eq!((returns.fault(), returns.next_at), (first, Some(us(6) + WAIT)));
        assert!(returns.view().compressed.is_some_and(|quantiles| quantiles.count > 0), "{:?}", returns.view());
    }

    #[test]
    fn pairs_in_which_the_thread_lost_its_processor_do_not_count() {
        let us = Duration::from_micros;
        let mut all = pairs(96, 10, 4);
        all.splice(10..10, pairs(32, 5_000, 4));
        assert_eq!(undisturbed(&all).parts(), Some(Fault { beside: us(6), read: us(4) }));
        assert!(Touched::all(&all).parts().is_some_and(|fault| fault.beside > us(1_000)));
    }

    #[test]
    fn as_many_touches_as_pages_are_measured() {
        let Some(pairs) = touched_in_pairs(&Roots::host()) else {
            println!("SKIPPED: the kernel counts no delays of tasks here, or memory cannot be paged out");
            return;
        };
        assert_eq!(Touched::all(&pairs).each.len(), PAGES);
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

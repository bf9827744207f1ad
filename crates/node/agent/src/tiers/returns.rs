//! What a page fault on swapped-out memory costs beside the read that the kernel counts.
//!
//! Delay accounting begins and ends in `swap_read_folio()` (`mm/page_io.c`). The fault around it also allocates and charges a page,
//! searches the swap cache, maps it and returns its slot (`do_swap_page()` in `mm/memory.c`): more than a fault on new memory
//! does. So it is measured where it can be: on pages of the agent itself, which are paged out and touched again.
//!
//! The single faults are measured as well, again and again, for the distribution of their durations: a mean says nothing of the rare
//! long ones.
//!
//! How long both parts take depends on what else the processor does: whoever rarely faults finds cold caches, and the rest of the
//! fault suffers more from that than the read. So some pages are touched one after another, and others a few at a time, with pauses
//! between, and the geometric mean of both counts: a job is somewhere between. Where a job's own reads take longer, or shorter, the
//! rest of its faults is assumed to do so by the same factor ([`Fault::beside_reads_of`]). Its reads do not show where between the two
//! it is: they depend on its data as well.

use std::hint::black_box;
use std::ops::Range;
use std::time::Duration;

use daemon::Clock;
use kernel::madvise::PidFd;
use kernel::taskstats::{Delay, Delays, TaskStats};
use serde::Serialize;

use crate::durations::{Quantiles, RecentDurations};

/// Pages that are paged out. Their memory is returned when the measurement ends.
const PAGES: usize = 64;

/// As many of them are touched one after another, the others a few at a time.
const AT_ONCE: usize = 32;

/// The first of these find cold caches, and count for neither.
const WARM_UP: usize = 8;

/// Pages that are touched in a step of their own.
const FEW: usize = 4;

/// Fewer reads than this show nothing.
const READS_MIN: u64 = 8;

/// The loop waits for the pages: of a slow device fewer are read.
const TIME_MAX: Duration = Duration::from_millis(100);

/// Every how many pages the next one is touched: no divisor of [`PAGES`], and far enough apart that read-ahead does not help.
const STRIDE: usize = 37;

/// The greatest factor by which a job's faults are assumed to differ: a device's reads are slower for other reasons.
const FACTOR_MAX: f64 = 3.0;

/// Measurements until the first succeeds: pages of the agent may be kept in DRAM once by chance, and by its unit's limits always.
const BEGUN_MAX: u32 = 3;

/// Time from the end of a measurement to the next one, which takes a control period per step. Each writes 256 KiB, where the agent's
/// pages go to a device: less than 36 MiB a day.
const WAIT: Duration = Duration::from_mins(10);

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

    /// Both parts of a fault between these.
    fn between(self, other: Self) -> Self {
        let mean = |a: Duration, b: Duration| Duration::from_secs_f64((a.as_secs_f64() * b.as_secs_f64()).sqrt());
        Self { beside: mean(self.beside, other.beside), read: mean(self.read, other.read) }
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
    measurement: Option<Measurement>,
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

    /// One step of a measurement, if one is due.
    pub(super) fn measure(&mut self, accounting: &mut TaskStats, clock: &Clock) {
        let now = clock.now();
        self.compressed.age(now);
        self.device.age(now);
        let is_due = self.measurement.is_some() || self.next_at.map_or(self.begun < BEGUN_MAX, |next_at| now >= next_at);
        if !is_due {
            return;
        }
        self.measurement = match self.measurement.take() {
            Some(measurement) => self.step(measurement, accounting, clock),
            None => {
                self.begun += 1;
                Measurement::begin()
            }
        };
        // One that failed later is repeated as late as one that succeeded.
        if self.measurement.is_none() && (self.next_at.is_some() || !self.fault.read.is_zero()) {
            self.next_at = Some(now + WAIT);
        }
    }

    /// The next step of a measurement; `None` if it has ended.
    fn step(&mut self, mut measurement: Measurement, accounting: &mut TaskStats, clock: &Clock) -> Option<Measurement> {
        let touched = measurement.step(accounting, clock)?;
        let [compressed, device] = touched.by_tier();
        compressed.into_iter().for_each(|each| self.compressed.add(each, 1));
        device.into_iter().for_each(|each| self.device.add(each, 1));
        self.take(&mut measurement, touched);
        (measurement.touched < PAGES && measurement.warm.is_some()).then_some(measurement)
    }

    /// Takes in what touching pages took. The first measurement counts, so that decisions do not follow what disturbs a later one.
    fn take(&mut self, measurement: &mut Measurement, touched: Touched) {
        let is_first = self.next_at.is_none();
        let Some(warm) = measurement.warm else {
            measurement.warm = touched.parts();
            self.fault = measurement.warm.filter(|_| is_first).unwrap_or(self.fault);
            return;
        };
        measurement.few.add(touched);
        if let Some(few) = measurement.few.parts().filter(|_| is_first && measurement.touched == PAGES) {
            self.fault = warm.between(few);
            let Fault { beside, read } = few;
            log::info!(
                "a page fault on swapped-out memory takes {beside:?}, and {read:?} for the read; one of many in a row {:?} and {:?}",
                warm.beside,
                warm.read
            );
        }
    }
}

/// A measurement, in steps: a page that was written to a device leaves DRAM at the second request only.
#[derive(Debug)]
struct Measurement {
    memory: Vec<u8>,
    page: usize,
    /// The pages touched so far.
    touched: usize,
    /// A fault on the pages that were touched one after another.
    warm: Option<Fault>,
    /// The pages that are touched a few at a time.
    few: Touched,
}

impl Measurement {
    /// Fills the pages, and pages them out.
    fn begin() -> Option<Self> {
        let page = usize::try_from(kernel::page_size().bytes()).ok()?;
        let measurement = Self { memory: filled(page), page, touched: 0, warm: None, few: Touched::default() };
        measurement.page_out()?;
        Some(measurement)
    }

    fn page_out(&self) -> Option<()> {
        PidFd::open(own_pid()?).ok()?.advise_pageout(&[range(&self.memory, self.page)]).ok().map(drop)
    }

    /// Touches the next pages. `None` if the kernel counts no delays of this process: it started before they were turned on.
    fn step(&mut self, accounting: &mut TaskStats, clock: &Clock) -> Option<Touched> {
        let own = own_pid()?;
        let turns = if self.touched == 0 {
            self.page_out()?;
            touched(&self.memory, self.page, clock, 0..WARM_UP);
            WARM_UP..AT_ONCE
        } else {
            self.touched..PAGES.min(self.touched + FEW)
        };
        self.touched = turns.end;
        let before = accounting.delays(own).ok()?;
        let each = touched(&self.memory, self.page, clock, turns);
        Some(Touched { each, waits: accounting.delays(own).ok()? - before })
    }
}

fn own_pid() -> Option<i32> {
    i32::try_from(std::process::id()).ok()
}

/// Touches the pages of these turns, as many as there is time for. Returns how long each took.
fn touched(memory: &[u8], page: usize, clock: &Clock, turns: Range<usize>) -> Vec<Duration> {
    let (start, first) = (clock.now(), offset(memory, page));
    let (mut each, mut last) = (Vec::with_capacity(PAGES), start);
    for turn in turns {
        black_box(memory[first + turn * STRIDE % PAGES * page]);
        let now = clock.now();
        each.push(now.saturating_sub(last));
        last = now;
        if now.saturating_sub(start) >= TIME_MAX {
            break;
        }
    }
    each
}

/// How long each page took, and what the kernel counted meanwhile.
#[derive(Debug, Default)]
struct Touched {
    each: Vec<Duration>,
    waits: Delays,
}

impl Touched {
    fn add(&mut self, more: Self) {
        self.each.extend(more.each);
        self.waits += more.waits;
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

    #[test]
    fn the_first_measurement_counts_and_both_of_its_states() {
        let us = Duration::from_micros;
        let touched = |pages: usize, each_us: u64, read_us: u64| Touched {
            each: vec![us(each_us); pages],
            waits: Delays { swap_in: Delay { count: pages as u64, total_ns: pages as u64 * read_us * 1_000 }, ..Delays::default() },
        };
        let measurement = || Measurement { memory: Vec::new(), page: 4096, touched: AT_ONCE, warm: None, few: Touched::default() };
        let (mut returns, mut first) = (Returns::new(us(1)), measurement());
        returns.take(&mut first, touched(24, 10, 4));
        let warm = Fault { beside: us(6), read: us(4) };
        assert_eq!(returns.fault(), warm);
        for _ in 0..8 {
            assert_eq!(returns.fault(), warm, "few pages show nothing");
            first.touched += FEW;
            returns.take(&mut first, touched(4, 33, 9));
        }
        let both = Fault { beside: us(12), read: us(6) };
        assert_eq!(returns.fault(), both);
        returns.next_at = Some(WAIT);
        let mut second = measurement();
        returns.take(&mut second, touched(24, 1_000, 4));
        assert_eq!(returns.fault(), both);
        // Pages that stayed in DRAM end a measurement.
        let mut third = measurement();
        returns.take(&mut third, touched(2, 1, 1));
        assert_eq!(third.warm, None);
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

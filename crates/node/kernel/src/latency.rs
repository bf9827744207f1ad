//! The latency of a node's memory, measured by loads of lines that are not in the cache.
//!
//! Firmware describes an idle node (HMAT). A node whose bandwidth is used takes longer: loads wait in the queues of its controller
//! (Colloid abstract: up to several times as long). What counts is measured where it is paid, by loads beside all others.
//!
//! # Measurement
//! Some pages of this process are allocated on the node. A line of them is flushed from all caches (`clflush`), then loaded between two
//! readings of the processor's clock, with fences, so that nothing overlaps with the load; then it is loaded again, from the cache. The
//! difference of the medians is the latency beyond the first cache. The flush translates the address: the load finds it in the TLB. The
//! pages are loaded in an order that no prefetcher follows, and a prefetched line would be flushed before it is timed.
//! The clock's rate is that of the measurement itself against `CLOCK_MONOTONIC`, so that nothing is assumed of it.
//!
//! A median is not moved by loads during which the thread was interrupted. What it contains besides the node: the way from the processor on
//! which the thread runs, which is longer from another socket.
//!
//! # Cost
//! Up to [`LOADS`] loads, for [`TIME_MAX`] at most, and a write to each page before; 256 KiB of the node.
//!
//! # Where it means nothing
//! Under emulation of processors a flush does nothing, and the clock is the emulator's.
#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use crate::move_pages::{self, Located};
use crate::{Error, Result, mempolicy};

/// Pages that are loaded from: less than a huge page, of which there is one address only.
const PAGES: usize = 64;

/// Loads of a measurement.
pub const LOADS: usize = 128;

/// The most that the loads of one measurement take, whatever the latency is.
pub const TIME_MAX: Duration = Duration::from_micros(200);

/// A median of fewer loads is no figure: in that time, of loads that take 6 us each.
const LOADS_MIN: usize = 32;

/// The size of a line in the cache, or a multiple.
const LINE: usize = 128;

/// Pages of this process on one node, to measure the latency of its memory.
#[derive(Debug)]
pub struct Probe {
    node: u32,
    start: NonNull<u8>,
    page: usize,
}

// SAFETY: the memory belongs to the probe alone, and every access to it takes `&mut self`.
unsafe impl Send for Probe {}

/// The clock's readings of a measurement.
#[derive(Clone, Debug, Default)]
struct Samples {
    /// Ticks of loads from memory.
    memory: Vec<u64>,
    /// Ticks of loads of the same lines from the cache.
    cache: Vec<u64>,
    /// Ticks of the whole measurement.
    ticks: u64,
    /// Its duration.
    elapsed: Duration,
}

impl Probe {
    /// Prepares the measurement of a node.
    ///
    /// The pages prefer the node. Bound to it, an allocation on a full node would have the kernel kill this process.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on other processors than x86-64, and if the kernel refuses to allocate on the node; [`Error::Io`] if it has no
    /// memory for the pages.
    pub fn open(node: u32) -> Result<Self> {
        if !cfg!(target_arch = "x86_64") {
            return Err(Error::unsupported(
                "the latency of memory is measured on x86-64 only",
                "set slow.latency, and measure it by other means",
            ));
        }
        let page = usize::try_from(crate::page_size().bytes()).unwrap_or(4096);
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice does not affect other memory.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), PAGES * page, protection, flags, -1, 0) };
        let fail = |op, source| Error::Io { path: format!("memory node {node}").into(), op, source };
        let mapped = NonNull::new(start.cast()).filter(|_| start != libc::MAP_FAILED);
        let start = mapped.ok_or_else(|| fail("map pages of", io::Error::last_os_error()))?;
        // From here on the pages are unmapped when the probe is dropped.
        let probe = Self { node, start, page };
        mempolicy::prefer(start.as_ptr().addr(), PAGES * page, node)?;
        Ok(probe)
    }

    /// The node.
    #[must_use]
    pub fn node(&self) -> u32 {
        self.node
    }

    /// Measures the latency of an access to the node, in nanoseconds: the median of up to [`LOADS`] loads.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the pages are on other nodes, as they are if this one is full or not permitted, or if the processor is so
    /// busy that too few loads are done in [`TIME_MAX`]; those of [`move_pages::locate`].
    pub fn measure(&mut self) -> Result<u64> {
        let lines = self.lines()?;
        let samples = timed::loads(&lines);
        median_ns(samples).ok_or_else(|| {
            let what = format!("fewer than {LOADS_MIN} loads from memory node {} were timed within {TIME_MAX:?}", self.node);
            Error::unsupported(what, "the machine is too busy for a measurement, which is repeated in the next period")
        })
    }

    /// The pages' lines that are loaded, one per page and round, of pages that are on the node now.
    fn lines(&mut self) -> Result<Vec<*const u8>> {
        let mut pages = Vec::with_capacity(PAGES);
        for index in 0..PAGES {
            // SAFETY: the offset lies within the mapping, which no other thread accesses.
            let page = unsafe { self.start.as_ptr().add(index * self.page) };
            // SAFETY: the page is mapped and writable. A write allocates it, also after the kernel has swapped it out.
            unsafe { page.write_volatile(1) };
            pages.push(page.cast_const());
        }
        let addresses: Vec<u64> = pages.iter().map(|page| page.addr() as u64).collect();
        let pid = i32::try_from(std::process::id()).unwrap_or_default();
        let located = move_pages::locate(pid, &addresses)?;
        let here: Vec<_> = pages.iter().zip(&located).filter(|(_, at)| **at == Located::Node(self.node)).map(|(page, _)| *page).collect();
        if here.len() < PAGES / 2 {
            let what = format!("{} of {PAGES} pages could be allocated on memory node {}", here.len(), self.node);
            return Err(Error::unsupported(what, "free memory there, and permit it to the agent (cpuset.mems)"));
        }
        // Neither the next page nor the next line, and another line of each page in every round.
        let (count, lines) = (here.len(), self.page / LINE);
        // SAFETY: the line begins within the page.
        let line = |index: usize| unsafe { here[index * 29 % count].add((index * 7 + index / count) % lines * LINE) };
        Ok((0..LOADS).map(line).collect())
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to the probe, and no reference into it exists.
        unsafe { libc::munmap(self.start.as_ptr().cast(), PAGES * self.page) };
    }
}

/// The difference of the medians, in nanoseconds; `None` of too few loads, or without a clock that advances.
fn median_ns(samples: Samples) -> Option<u64> {
    let Samples { mut memory, mut cache, ticks, elapsed } = samples;
    if memory.len() < LOADS_MIN || ticks == 0 {
        return None;
    }
    let median = |values: &mut Vec<u64>| {
        values.sort_unstable();
        values.get(values.len() / 2).copied()
    };
    let beyond_cache = median(&mut memory)?.saturating_sub(median(&mut cache)?);
    u64::try_from(u128::from(beyond_cache) * elapsed.as_nanos() / u128::from(ticks)).ok()
}

#[cfg(target_arch = "x86_64")]
mod timed {
    use std::arch::x86_64::{_mm_clflush, _mm_lfence, _mm_mfence, _rdtsc};

    use super::{Instant, Samples, TIME_MAX};

    /// Ticks of the processor's clock that a load takes.
    ///
    /// # Safety
    /// `line` is readable.
    unsafe fn load(line: *const u8) -> u64 {
        // SAFETY: fences and the clock access no memory; the caller guarantees that the line is readable. `lfence` waits until
        // all earlier instructions are done, and lets no later one begin (Intel SDM, volume 2, RDTSC).
        unsafe {
            _mm_lfence();
            let begin = _rdtsc();
            _mm_lfence();
            std::hint::black_box(line.read_volatile());
            _mm_lfence();
            _rdtsc().wrapping_sub(begin)
        }
    }

    /// Loads each line from memory and from the cache, for [`TIME_MAX`] at most.
    pub(super) fn loads(lines: &[*const u8]) -> Samples {
        let mut samples = Samples { memory: Vec::with_capacity(lines.len()), cache: Vec::with_capacity(lines.len()), ..Samples::default() };
        let begin = Instant::now();
        // SAFETY: reading the clock accesses no memory.
        let first = unsafe { _rdtsc() };
        for &line in lines {
            if begin.elapsed() >= TIME_MAX {
                break;
            }
            // SAFETY: the lines lie in mapped pages of the probe; a flush does not change what they contain.
            let (memory, cache) = unsafe {
                _mm_clflush(line);
                _mm_mfence();
                (load(line), load(line))
            };
            samples.memory.push(memory);
            samples.cache.push(cache);
        }
        // SAFETY: as above.
        samples.ticks = unsafe { _rdtsc() }.wrapping_sub(first);
        samples.elapsed = begin.elapsed();
        samples
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod timed {
    /// [`super::Probe::open`] refuses before.
    pub(super) fn loads(_: &[*const u8]) -> super::Samples {
        super::Samples::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(memory: &[u64], cache: u64, ticks: u64, elapsed: Duration) -> Samples {
        Samples { memory: memory.to_vec(), cache: vec![cache; memory.len()], ticks, elapsed }
    }

    #[test]
    fn interrupted_loads_do_not_move_the_median() {
        // At 2 ticks per nanosecond: 240 ticks from memory, 40 from the cache.
        let mut memory = [240; 100];
        let at = |memory: &[u64]| median_ns(samples(memory, 40, 200_000, Duration::from_micros(100)));
        assert_eq!(at(&memory), Some(100));
        for late in &mut memory[..45] {
            *late = 9_000_000;
        }
        assert_eq!(at(&memory), Some(100));
        assert_eq!(at(&memory[..LOADS_MIN - 1]), None, "too few");
        assert_eq!(median_ns(samples(&[240; 100], 40, 0, Duration::ZERO)), None, "a clock that does not advance");
        assert_eq!(at(&[30; 100]), Some(0), "from memory faster than from the cache: emulated");
    }

    #[test]
    fn a_node_that_does_not_exist_is_refused() {
        for node in [1000, 1024] {
            let refused = Probe::open(node).unwrap_err();
            assert!(refused.is_unsupported(), "{refused}");
        }
    }

    #[test]
    fn measurements_are_short_and_of_the_node() {
        let mut probe = match Probe::open(0) {
            Err(error) if error.is_unsupported() => {
                println!("SKIPPED: {error}");
                return;
            }
            probe => probe.unwrap(),
        };
        assert_eq!(probe.node(), 0);
        match probe.measure() {
            // A host that does something else for that long.
            Err(error) if error.is_unsupported() => println!("SKIPPED: {error}"),
            measured => println!("{} ns", measured.unwrap()),
        }
        let lines = probe.lines().unwrap();
        assert_eq!(lines.len(), LOADS);
        let first = probe.start.as_ptr().addr();
        assert!(lines.iter().all(|line| (first..first + PAGES * probe.page).contains(&line.addr())));
        let distinct: std::collections::BTreeSet<_> = lines.iter().collect();
        assert!(distinct.len() >= LOADS / 2, "{} lines", distinct.len());
    }
}

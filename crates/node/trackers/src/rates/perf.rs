//! Rates by hardware samples of memory accesses (PEBS, IBS), instead of accessed bits.
//!
//! The processor records one in `period` accesses, with its address. A point counts as accessed in a sampling interval if a
//! hardware sample of it arrived. The rate estimated from that is the rate of *recorded* accesses; because each stands for
//! `period` accesses, the reported window is `period` times as short, which makes rates and bounds `period` times as high
//! ([`Observation::window`]).
//!
//! Unlike accessed bits, hardware samples include accesses while the TLB holds the page, which is most of them, and
//! distinguish parts of a huge page without splitting it. The cost is an interrupt for each few samples, on every processor.
//!
//! **Not tested on a processor with this feature** (see [`kernel::perf`]); off unless `slow.access_sampling` is set.
//!
//! # Lost samples
//! Samples that did not fit the kernel's buffer, or were throttled, would make memory appear colder than it is. A watch that
//! lost any reports no samples for any point, so nothing is placed because of it.

use std::time::{Duration, Instant};

use kernel::page_idle::{KPF_THP, KPageFlags};
use kernel::perf::AccessSampler;
use kernel::{Result, Roots};
use policy::slowdown::rate::BitSamples;

use super::blocks::BLOCK_BYTES;
use super::point::Point;
use super::tracker::{Observation, RateTracker, Watch};
use super::translate;

/// Upper limit of the points of a watch, as with idle page tracking.
const POINTS_MAX: usize = 1 << 17;

/// Accesses per hardware sample. 10^8 accesses per second yield 10^5 samples per second, the limit beyond which the kernel
/// throttles each processor (`perf_event_max_sample_rate`).
const PERIOD: u64 = 1_009;

/// A source of hardware samples.
trait Source: std::fmt::Debug {
    /// Accesses per hardware sample.
    fn period(&self) -> u64;

    /// Starts or stops the recording of samples.
    fn switch(&mut self, on: bool) -> Result<()>;

    /// Calls `each` with process and address of every sample since the last call. Returns the number of lost samples.
    fn drain(&mut self, each: &mut dyn FnMut(i32, u64)) -> u64;
}

impl Source for AccessSampler {
    fn period(&self) -> u64 {
        Self::every(self)
    }

    fn switch(&mut self, on: bool) -> Result<()> {
        if on { self.resume() } else { self.pause() }
    }

    fn drain(&mut self, each: &mut dyn FnMut(i32, u64)) -> u64 {
        Self::drain(self, each)
    }
}

/// The tracker based on hardware samples.
#[derive(Debug)]
pub struct Perf {
    roots: Roots,
    source: Box<dyn Source>,
    watched: Option<Watched>,
}

/// A watch under way.
#[derive(Debug)]
struct Watched {
    /// Process, address of the first byte, address past the last byte, and index of the point; sorted.
    ranges: Vec<(i32, u64, u64, usize)>,
    points: Vec<Count>,
    /// Number of repeated points.
    repeated: usize,
    /// Number of intervals so far.
    samples: u32,
    /// Number of lost hardware samples.
    lost: u64,
    began: Instant,
    sampled_at: Instant,
}

/// Intervals in which a point was accessed.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    accessed: u32,
    /// Number, from 1, of the last interval that was counted.
    last: u32,
}

impl Perf {
    /// Opens the processor's access sampling.
    ///
    /// # Errors
    /// `Unsupported` if this processor or kernel lacks it.
    pub fn open(roots: &Roots) -> Result<Self> {
        let source = Box::new(AccessSampler::open(roots, PERIOD)?);
        Ok(Self { roots: roots.clone(), source, watched: None })
    }

    /// Returns which points are huge pages as a whole. The first base page of a huge page, if mapped on its own, counts as the
    /// whole: its rate is overestimated, which is the safe direction.
    fn huge(&self, points: &[Point]) -> Result<Vec<bool>> {
        let flags = KPageFlags::open(&self.roots)?;
        let huge = |(point, entry): (&Point, kernel::pagemap::Entry)| {
            let Some(frame) = entry.pfn().filter(|_| point.address.is_multiple_of(BLOCK_BYTES)) else { return Ok(false) };
            let mut own = [0];
            flags.read_chunk(frame, &mut own)?;
            Ok(own[0] & KPF_THP != 0)
        };
        points.iter().zip(translate::entries(&self.roots, points)?).map(huge).collect()
    }
}

impl Watched {
    fn new(points: &[Point], huge: &[bool], repeated: usize, now: Instant) -> Self {
        let range = |(index, (point, &huge)): (usize, (&Point, &bool))| {
            let length = if huge { BLOCK_BYTES } else { kernel::page_size().bytes() };
            (point.pid, point.address, point.address.saturating_add(length), index)
        };
        let mut ranges: Vec<_> = points.iter().zip(huge).enumerate().map(range).collect();
        ranges.sort_unstable();
        let counts = vec![Count::default(); points.len()];
        Self { ranges, points: counts, repeated, samples: 0, lost: 0, began: now, sampled_at: now }
    }

    /// Ends an interval: counts the points of which hardware samples arrived.
    fn sample(&mut self, source: &mut dyn Source, now: Instant) {
        self.samples = self.samples.saturating_add(1);
        let Self { ranges, points, samples, .. } = self;
        let lost = source.drain(&mut |pid, address| {
            let after = ranges.partition_point(|&(of, start, ..)| (of, start) <= (pid, address));
            let Some(&(of, _, end, index)) = after.checked_sub(1).and_then(|at| ranges.get(at)) else { return };
            if of == pid && address < end && points[index].last != *samples {
                points[index].last = *samples;
                points[index].accessed += 1;
            }
        });
        self.lost = self.lost.saturating_add(lost);
        self.sampled_at = now;
    }

    /// The result, with a window shortened by the accesses per hardware sample.
    fn observation(&self, period: u64) -> Observation {
        let samples = |(index, count): (usize, &Count)| {
            let samples = match index < self.repeated {
                true => BitSamples { taken: self.samples, accessed: count.accessed },
                false => BitSamples { taken: 1, accessed: count.accessed.min(1) },
            };
            (self.lost == 0 && self.samples > 0).then_some(samples)
        };
        let lasted = self.sampled_at.saturating_duration_since(self.began);
        let window = Duration::from_nanos(u64::try_from(lasted.as_nanos() / u128::from(period.max(1))).unwrap_or(u64::MAX));
        Observation { samples: self.points.iter().enumerate().map(samples).collect(), window: window.max(Duration::from_micros(1)) }
    }
}

impl RateTracker for Perf {
    fn name(&self) -> &'static str {
        "perf"
    }

    fn points_max(&self) -> usize {
        POINTS_MAX
    }

    fn watch(&mut self, watch: &Watch<'_>) -> Result<()> {
        let points = [watch.repeated, watch.once].concat();
        let huge = self.huge(&points)?;
        // Samples from before this watch are discarded. Recording is off between watches: it would cause needless interrupts, and
        // samples that a full buffer lost would be reported as lost in the next watch.
        self.source.drain(&mut |_, _| {});
        self.source.switch(true)?;
        self.watched = Some(Watched::new(&points, &huge, watch.repeated.len(), Instant::now()));
        Ok(())
    }

    fn sample(&mut self) -> Result<()> {
        if let Some(watched) = &mut self.watched {
            watched.sample(self.source.as_mut(), Instant::now());
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<Option<Observation>> {
        let Some(watched) = self.watched.take() else { return Ok(Some(Observation::default())) };
        self.source.switch(false)?;
        if watched.lost > 0 {
            log::warn!("{} hardware samples of memory accesses were lost; no rates are reported for this stage", watched.lost);
        }
        Ok(Some(watched.observation(self.source.period())))
    }

    fn stop(&mut self) -> Result<()> {
        self.watched = None;
        self.source.switch(false)
    }
}

#[cfg(test)]
mod tests {
    use policy::slowdown::rate;

    use super::*;

    const PAGE: u64 = 4096;

    /// Prepared samples, one list for each call, and the number of lost samples.
    #[derive(Debug, Default)]
    struct Prepared(std::collections::VecDeque<(Vec<(i32, u64)>, u64)>);

    impl Source for Prepared {
        fn period(&self) -> u64 {
            100
        }

        fn switch(&mut self, _: bool) -> Result<()> {
            Ok(())
        }

        fn drain(&mut self, each: &mut dyn FnMut(i32, u64)) -> u64 {
            let (samples, lost) = self.0.pop_front().unwrap_or_default();
            samples.into_iter().for_each(|(pid, address)| each(pid, address));
            lost
        }
    }

    fn point(pid: i32, address: u64) -> Point {
        Point { pid, address }
    }

    /// Three samples, a second apart, of a page, a huge page, and a page that is sampled once.
    fn watch(prepared: Vec<(Vec<(i32, u64)>, u64)>) -> Observation {
        let points = [point(7, PAGE), point(7, BLOCK_BYTES), point(8, PAGE)];
        let began = Instant::now();
        let mut watched = Watched::new(&points, &[false, true, false], 2, began);
        let mut source = Prepared(prepared.into());
        for second in 1..=3 {
            watched.sample(&mut source, began + Duration::from_secs(second));
        }
        watched.observation(source.period())
    }

    #[test]
    fn a_point_is_accessed_if_a_hardware_sample_of_it_arrived() {
        let nothing = || (Vec::new(), 0);
        let observed = watch(vec![
            // Two samples in one interval count once; the last byte of the page belongs to it, the next one does not.
            (vec![(7, PAGE), (7, 2 * PAGE - 1), (7, 2 * PAGE), (8, 3 * PAGE), (9, PAGE), (6, 0)], 0),
            (vec![(7, BLOCK_BYTES + 17 * PAGE), (8, PAGE + 8)], 0),
            (vec![(7, 2 * BLOCK_BYTES - 1), (7, 2 * BLOCK_BYTES), (8, PAGE)], 0),
        ]);
        let bits = |taken, accessed| Some(BitSamples { taken, accessed });
        assert_eq!(observed.samples, [bits(3, 1), bits(3, 2), bits(1, 1)]);
        // Each sample stands for 100 accesses: 3 s are reported as 30 ms.
        assert_eq!(observed.window, Duration::from_millis(30));
        let interval_us = u64::try_from(observed.window.as_micros()).unwrap() / 3;
        let (one, hundred) =
            (rate::page(BitSamples { taken: 3, accessed: 1 }, 1_000_000), rate::page(observed.samples[0].unwrap(), interval_us));
        assert!(hundred.mean.0.abs_diff(100 * one.mean.0) <= 100, "{hundred:?} {one:?}");
        assert_eq!(watch(vec![nothing(), nothing(), nothing()]).samples, [bits(3, 0), bits(3, 0), bits(1, 0)]);
    }

    #[test]
    fn a_watch_that_lost_samples_reports_none() {
        assert_eq!(watch(vec![(vec![(7, PAGE)], 0), (Vec::new(), 1)]).samples, [None, None, None]);
    }

    #[test]
    fn huge_pages_are_recognised_by_their_frames() {
        let directory = tempfile::tempdir().unwrap();
        let put = |name: &str, words: Vec<u64>| {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, words.into_iter().flat_map(u64::to_ne_bytes).collect::<Vec<_>>()).unwrap();
        };
        // Page n of process 7 is in frame n; frames from 512 on belong to huge pages.
        put("proc/kpageflags", (0..2048).map(|frame| if frame < 512 { 0 } else { KPF_THP }).collect());
        put("proc/7/pagemap", (0..2048).map(|page| 1 << 63 | page).collect());
        let roots = Roots::under(directory.path());
        let perf = Perf { roots, source: Box::new(Prepared::default()), watched: None };
        let points = [point(7, PAGE), point(7, BLOCK_BYTES), point(7, BLOCK_BYTES + PAGE), point(7, 3 * BLOCK_BYTES), point(9, 0)];
        assert_eq!(perf.huge(&points).unwrap(), [false, true, false, true, false]);
    }
}

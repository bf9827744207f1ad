//! Rates by the processor's own samples of accesses (PEBS, IBS), in place of accessed bits.
//!
//! One access of so many is noted, with its address. Between two looks a point counts as accessed where a sample of it came. What is
//! estimated from that is the rate of *sampled* accesses; as each stands for `every` of them, the watch is told as if it had been
//! `every` times as short, which makes rates and bounds as many times as high ([`Seen::window`]).
//!
//! What it sees beyond accessed bits: accesses while the TLB holds the page, which is most of them, and parts of a huge page
//! without splitting it. What it costs: an interrupt for each few samples, on every processor.
//!
//! **Not tested on such a processor** (see [`kernel::perf`]); off unless `slow.access_sampling` asks for it.
//!
//! # Failing safe
//! Samples that the kernel had no room for, or throttled, would make memory look colder than it is. After a watch that lost any,
//! nothing is told of any point, and nothing is placed by it.

use std::time::{Duration, Instant};

use kernel::page_idle::{KPF_THP, KPageFlags};
use kernel::perf::AccessSampler;
use kernel::{Result, Roots};
use policy::slowdown::rate::Looks;

use super::blocks::BLOCK_BYTES;
use super::{Point, RateTracker, Seen, Watch, translate};

/// Points of one watch, as with idle page tracking.
const POINTS_MAX: usize = 1 << 17;

/// One of so many accesses is sampled: at 10^8 accesses per second, a hundred thousand interrupts' worth, which the kernel throttles
/// beyond a hundred thousand a second and processor (`perf_event_max_sample_rate`).
const EVERY: u64 = 1_009;

/// Where samples come from.
trait Samples: std::fmt::Debug {
    /// For how many accesses each stands.
    fn every(&self) -> u64;

    /// Samples are taken from now on, or no more.
    fn switch(&mut self, on: bool) -> Result<()>;

    /// Those since the last call, by process and address; returns how many were lost.
    fn drain(&mut self, each: &mut dyn FnMut(i32, u64)) -> u64;
}

impl Samples for AccessSampler {
    fn every(&self) -> u64 {
        Self::every(self)
    }

    fn switch(&mut self, on: bool) -> Result<()> {
        if on { self.resume() } else { self.pause() }
    }

    fn drain(&mut self, each: &mut dyn FnMut(i32, u64)) -> u64 {
        Self::drain(self, each)
    }
}

/// The tracker.
#[derive(Debug)]
pub struct Perf {
    roots: Roots,
    samples: Box<dyn Samples>,
    watched: Option<Watched>,
}

/// A watch under way.
#[derive(Debug)]
struct Watched {
    /// Process, first byte, the byte past the last, and which point: sorted.
    ranges: Vec<(i32, u64, u64, usize)>,
    points: Vec<Counted>,
    often: usize,
    looks: u32,
    lost: u64,
    began: Instant,
    looked_at: Instant,
}

/// What was seen of a point.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    accessed: u32,
    /// The number of the last look that a sample was counted for, from one.
    last: u32,
}

impl Perf {
    /// Begins to sample.
    ///
    /// # Errors
    /// `Unsupported` where this processor or kernel does not.
    pub fn open(roots: &Roots) -> Result<Self> {
        let samples = Box::new(AccessSampler::open(roots, EVERY)?);
        Ok(Self { roots: roots.clone(), samples, watched: None })
    }

    /// Which points are huge pages as a whole. A page that is mapped apart from the huge page that it belongs to and lies at its
    /// beginning counts as the whole: it seems to be accessed more often than it is, the mild error.
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
    fn new(points: &[Point], huge: &[bool], often: usize, now: Instant) -> Self {
        let range = |(index, (point, &huge)): (usize, (&Point, &bool))| {
            let length = if huge { BLOCK_BYTES } else { kernel::page_size().bytes() };
            (point.pid, point.address, point.address.saturating_add(length), index)
        };
        let mut ranges: Vec<_> = points.iter().zip(huge).enumerate().map(range).collect();
        ranges.sort_unstable();
        let counted = vec![Counted::default(); points.len()];
        Self { ranges, points: counted, often, looks: 0, lost: 0, began: now, looked_at: now }
    }

    /// Counts the samples since the look before as this look's.
    fn look(&mut self, samples: &mut dyn Samples, now: Instant) {
        self.looks = self.looks.saturating_add(1);
        let Self { ranges, points, looks, .. } = self;
        let lost = samples.drain(&mut |pid, address| {
            let after = ranges.partition_point(|&(of, start, ..)| (of, start) <= (pid, address));
            let Some(&(of, _, end, index)) = after.checked_sub(1).and_then(|at| ranges.get(at)) else { return };
            if of == pid && address < end && points[index].last != *looks {
                points[index].last = *looks;
                points[index].accessed += 1;
            }
        });
        self.lost = self.lost.saturating_add(lost);
        self.looked_at = now;
    }

    fn seen(&self, every: u64) -> Seen {
        let look = |(index, counted): (usize, &Counted)| {
            let looks = match index < self.often {
                true => Looks { taken: self.looks, accessed: counted.accessed },
                false => Looks { taken: 1, accessed: counted.accessed.min(1) },
            };
            (self.lost == 0 && self.looks > 0).then_some(looks)
        };
        let lasted = self.looked_at.saturating_duration_since(self.began);
        let window = Duration::from_nanos(u64::try_from(lasted.as_nanos() / u128::from(every.max(1))).unwrap_or(u64::MAX));
        Seen { looks: self.points.iter().enumerate().map(look).collect(), window: window.max(Duration::from_micros(1)) }
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
        let points = [watch.often, watch.once].concat();
        let huge = self.huge(&points)?;
        // What came before this watch is nobody's. Between watches nothing is sampled: it would interrupt for nothing, and what a full
        // buffer lost would be told in the next watch, as lost there.
        self.samples.drain(&mut |_, _| {});
        self.samples.switch(true)?;
        self.watched = Some(Watched::new(&points, &huge, watch.often.len(), Instant::now()));
        Ok(())
    }

    fn look(&mut self) -> Result<()> {
        if let Some(watched) = &mut self.watched {
            watched.look(self.samples.as_mut(), Instant::now());
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<Option<Seen>> {
        let Some(watched) = self.watched.take() else { return Ok(Some(Seen::default())) };
        self.samples.switch(false)?;
        if watched.lost > 0 {
            log::warn!("{} samples of memory accesses were lost; nothing is told of this look", watched.lost);
        }
        Ok(Some(watched.seen(self.samples.every())))
    }

    fn stop(&mut self) -> Result<()> {
        self.watched = None;
        self.samples.switch(false)
    }
}

#[cfg(test)]
mod tests {
    use policy::slowdown::rate;

    use super::*;

    const PAGE: u64 = 4096;

    /// Samples that were told beforehand, a list for each call; and how many were lost.
    #[derive(Debug, Default)]
    struct Told(std::collections::VecDeque<(Vec<(i32, u64)>, u64)>);

    impl Samples for Told {
        fn every(&self) -> u64 {
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

    /// Three looks a second apart at a page, a huge page and one that counts but once.
    fn watch(told: Vec<(Vec<(i32, u64)>, u64)>) -> Seen {
        let points = [point(7, PAGE), point(7, BLOCK_BYTES), point(8, PAGE)];
        let began = Instant::now();
        let mut watched = Watched::new(&points, &[false, true, false], 2, began);
        let mut told = Told(told.into());
        for look in 1..=3 {
            watched.look(&mut told, began + Duration::from_secs(look));
        }
        watched.seen(told.every())
    }

    #[test]
    fn a_point_is_accessed_where_a_sample_of_it_came() {
        let nothing = || (Vec::new(), 0);
        let seen = watch(vec![
            // Twice between two looks is once; the last byte of the page is it, the next one is not.
            (vec![(7, PAGE), (7, 2 * PAGE - 1), (7, 2 * PAGE), (8, 3 * PAGE), (9, PAGE), (6, 0)], 0),
            (vec![(7, BLOCK_BYTES + 17 * PAGE), (8, PAGE + 8)], 0),
            (vec![(7, 2 * BLOCK_BYTES - 1), (7, 2 * BLOCK_BYTES), (8, PAGE)], 0),
        ]);
        let looks = |taken, accessed| Some(Looks { taken, accessed });
        assert_eq!(seen.looks, [looks(3, 1), looks(3, 2), looks(1, 1)]);
        // Each sample stands for a hundred accesses: 3 s are told as 30 ms.
        assert_eq!(seen.window, Duration::from_millis(30));
        let interval_us = u64::try_from(seen.window.as_micros()).unwrap() / 3;
        let (one, hundred) = (rate::page(Looks { taken: 3, accessed: 1 }, 1_000_000), rate::page(seen.looks[0].unwrap(), interval_us));
        assert!(hundred.mean.0.abs_diff(100 * one.mean.0) <= 100, "{hundred:?} {one:?}");
        assert_eq!(watch(vec![nothing(), nothing(), nothing()]).looks, [looks(3, 0), looks(3, 0), looks(1, 0)]);
    }

    #[test]
    fn after_a_loss_nothing_is_told() {
        assert_eq!(watch(vec![(vec![(7, PAGE)], 0), (Vec::new(), 1)]).looks, [None, None, None]);
    }

    #[test]
    fn huge_pages_are_told_by_their_frames() {
        let directory = tempfile::tempdir().unwrap();
        let put = |name: &str, words: Vec<u64>| {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, words.into_iter().flat_map(u64::to_ne_bytes).collect::<Vec<_>>()).unwrap();
        };
        // Page n of process 7 is in frame n; frames from 512 on are of huge pages.
        put("proc/kpageflags", (0..2048).map(|frame| if frame < 512 { 0 } else { KPF_THP }).collect());
        put("proc/7/pagemap", (0..2048).map(|page| 1 << 63 | page).collect());
        let roots = Roots::under(directory.path());
        let perf = Perf { roots, samples: Box::new(Told::default()), watched: None };
        let points = [point(7, PAGE), point(7, BLOCK_BYTES), point(7, BLOCK_BYTES + PAGE), point(7, 3 * BLOCK_BYTES), point(9, 0)];
        assert_eq!(perf.huge(&points).unwrap(), [false, true, false, true, false]);
    }
}

//! Rates by idle page tracking: each sample reads the idle bits of the watched page frames, counts those that an access
//! cleared, and sets them again.
//!
//! Only the head of a compound page has a bit. A huge page is one point, its head. If base pages of a larger folio are mapped,
//! every one of them shows the accesses to the whole folio, and the rate of their block is overestimated, which is the safe
//! direction.
//!
//! # Cost
//! Two system calls per sample and word of 64 frames: two for a huge page, at most sixteen for the parts of one that was split
//! in place. In the kernel, each read or write of a bit walks the page tables that map its page.

use std::time::{Duration, Instant};

use kernel::page_idle::{IdleBitmap, KPageFlags, PFNS_PER_WORD};
use kernel::pagemap::Entry;
use kernel::{Result, Roots};
use policy::slowdown::rate::BitSamples;

use super::point::Point;
use super::tracker::{Observation, RateTracker, Watch};
use super::translate;

/// Upper limit of the points of a watch: 3 MiB of addresses and counters, and about a second in the kernel to set all bits.
const POINTS_MAX: usize = 1 << 17;

/// The tracker that sees every access.
#[derive(Debug)]
pub struct PageIdle {
    roots: Roots,
    idle: IdleBitmap,
    flags: KPageFlags,
    watched: Option<Watched>,
}

/// A watch under way.
#[derive(Debug)]
struct Watched {
    repeated: Points,
    once: Points,
    marked_at: Instant,
    sampled_at: Instant,
}

impl PageIdle {
    /// Opens the kernel's files.
    ///
    /// # Errors
    /// `Unsupported` if the kernel was built without idle page tracking, like Debian's.
    pub fn open(roots: &Roots) -> Result<Self> {
        Ok(Self { roots: roots.clone(), idle: IdleBitmap::open(roots)?, flags: KPageFlags::open(roots)?, watched: None })
    }

    fn points(&self, points: &[Point]) -> Result<Points> {
        let heads = self.heads(points)?;
        let mut frames: Vec<u64> = heads.iter().copied().flatten().collect();
        frames.sort_unstable();
        frames.dedup();
        Ok(Points { points: points.to_vec(), heads, counts: Counts { accessed: vec![0; frames.len()], frames, taken: 0 } })
    }

    /// Returns the frames whose idle bits cover the points. `None` for an absent page, or one that is on no LRU list and
    /// therefore has no bit.
    fn heads(&self, points: &[Point]) -> Result<Vec<Option<u64>>> {
        let own: Vec<Option<u64>> = translate::entries(&self.roots, points)?.into_iter().map(Entry::pfn).collect();
        let mut frames: Vec<u64> = own.iter().copied().flatten().collect();
        frames.sort_unstable();
        frames.dedup();
        let mut heads = Vec::with_capacity(frames.len());
        // One call reads the flags of all frames within 64.
        for near in frames.chunk_by(|one, next| one / PFNS_PER_WORD == next / PFNS_PER_WORD) {
            let mut flags = [0; u64::BITS as usize];
            let index = |frame: u64| usize::try_from(frame - near[0]).unwrap_or(0);
            self.flags.read_chunk(near[0], &mut flags[..=index(near[near.len() - 1])])?;
            for &frame in near {
                heads.push(self.flags.idle_head(frame, flags[index(frame)])?);
            }
        }
        let head = |frame: Option<u64>| frame.and_then(|frame| heads[frames.binary_search(&frame).ok()?]);
        Ok(own.into_iter().map(head).collect())
    }
}

/// Points and their page frames.
#[derive(Debug)]
struct Points {
    points: Vec<Point>,
    /// The frame whose idle bit covers each point.
    heads: Vec<Option<u64>>,
    counts: Counts,
}

impl Points {
    /// The samples of each point. `None` if its frame differs from `heads_now`, the frames at the end.
    fn samples(&self, heads_now: &[Option<u64>]) -> Vec<Option<BitSamples>> {
        let bits = |(before, now): (&Option<u64>, &Option<u64>)| before.filter(|_| before == now).and_then(|frame| self.counts.of(frame));
        self.heads.iter().zip(heads_now).map(bits).collect()
    }
}

/// How often the idle bit of each frame was found cleared.
#[derive(Debug)]
struct Counts {
    /// Sorted, without duplicates.
    frames: Vec<u64>,
    accessed: Vec<u32>,
    taken: u32,
}

impl Counts {
    fn of(&self, frame: u64) -> Option<BitSamples> {
        let at = self.frames.binary_search(&frame).ok()?;
        Some(BitSamples { taken: self.taken, accessed: self.accessed[at] })
    }

    /// Visits the bits of all frames: counts the cleared ones if `count`, and sets them if `mark`.
    ///
    /// Word by word, so that bits are set right after they are read, because an access in between is lost. Reading more words
    /// at once would save one call per hundred page table walks, and lose the accesses during those walks.
    fn visit(&mut self, idle: &IdleBitmap, count: bool, mark: bool) -> Result<()> {
        let mut from = 0;
        for frames in self.frames.chunk_by(|one, next| one / PFNS_PER_WORD == next / PFNS_PER_WORD) {
            let first = frames[0] - frames[0] % PFNS_PER_WORD;
            let mut word = [0];
            if count {
                // A word past the end of memory stays zero, as if accessed.
                idle.read_chunk(first, &mut word)?;
            }
            let mut marks = [0];
            for (frame, accessed) in frames.iter().zip(&mut self.accessed[from..]) {
                let bit = 1 << (frame - first);
                if word[0] & bit == 0 {
                    marks[0] |= bit;
                    *accessed += u32::from(count);
                }
            }
            if mark && marks[0] != 0 {
                idle.write_chunk(first, &marks)?;
            }
            from += frames.len();
        }
        self.taken += u32::from(count);
        Ok(())
    }
}

impl RateTracker for PageIdle {
    fn name(&self) -> &'static str {
        "page_idle"
    }

    fn points_max(&self) -> usize {
        POINTS_MAX
    }

    fn watch(&mut self, watch: &Watch<'_>) -> Result<()> {
        let mut repeated = self.points(watch.repeated)?;
        let mut once = self.points(watch.once)?;
        once.counts.visit(&self.idle, false, true)?;
        // One time for all bits: after about half of them were set.
        let marked_at = Instant::now();
        repeated.counts.visit(&self.idle, false, true)?;
        self.watched = Some(Watched { repeated, once, marked_at, sampled_at: marked_at });
        Ok(())
    }

    fn sample(&mut self) -> Result<()> {
        if let Some(watched) = &mut self.watched {
            watched.sampled_at = Instant::now();
            watched.repeated.counts.visit(&self.idle, true, true)?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<Option<Observation>> {
        let Some(mut watched) = self.watched.take() else { return Ok(Some(Observation::default())) };
        watched.once.counts.visit(&self.idle, true, false)?;
        let mut samples = watched.repeated.samples(&self.heads(&watched.repeated.points)?);
        samples.extend(watched.once.samples(&self.heads(&watched.once.points)?));
        let window = watched.sampled_at.saturating_duration_since(watched.marked_at).max(Duration::from_micros(1));
        Ok(Some(Observation { samples, window }))
    }

    fn stop(&mut self) -> Result<()> {
        self.watched = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use kernel::page_idle::{KPF_COMPOUND_HEAD, KPF_COMPOUND_TAIL, KPF_LRU};

    use super::*;

    const PAGE: u64 = 4096;

    /// A machine of 1024 frames: frames 512 to 767 are one compound page, frame 3 is on no LRU list, the others are base
    /// pages. Page `n` of process 7 is in frame `n`.
    struct Machine {
        directory: tempfile::TempDir,
        roots: Roots,
    }

    impl Machine {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let machine = Self { roots: Roots::under(directory.path()), directory };
            let flags = |frame: u64| match frame {
                3 => 0,
                512 => KPF_LRU | KPF_COMPOUND_HEAD,
                513..768 => KPF_COMPOUND_TAIL,
                _ => KPF_LRU,
            };
            machine.put("proc/kpageflags", (0..1024).map(flags));
            machine.put("proc/7/pagemap", (0..1024).map(|page| 1 << 63 | page));
            machine.put("sys/kernel/mm/page_idle/bitmap", std::iter::repeat_n(0, 16));
            machine
        }

        fn put(&self, name: &str, words: impl Iterator<Item = u64>) {
            let path = self.directory.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, words.flat_map(u64::to_ne_bytes).collect::<Vec<_>>()).unwrap();
        }

        fn bitmap(&self) -> Vec<u64> {
            let bytes = std::fs::read(self.directory.path().join("sys/kernel/mm/page_idle/bitmap")).unwrap();
            bytes.as_chunks::<8>().0.iter().map(|&word| u64::from_ne_bytes(word)).collect()
        }

        /// Clears the bits of these frames, as the kernel does after an access.
        fn access(&self, frames: &[u64]) {
            let mut words = self.bitmap();
            for frame in frames {
                words[usize::try_from(frame / 64).unwrap()] &= !(1 << (frame % 64));
            }
            self.put("sys/kernel/mm/page_idle/bitmap", words.into_iter());
        }

        fn marked(&self) -> Vec<u64> {
            let words = self.bitmap();
            (0..1024).filter(|frame| words[usize::try_from(frame / 64).unwrap()] >> (frame % 64) & 1 == 1).collect()
        }
    }

    fn points(pages: &[u64]) -> Vec<Point> {
        pages.iter().map(|page| Point { pid: 7, address: page * PAGE }).collect()
    }

    fn watch<'a>(repeated: &'a [Point], once: &'a [Point]) -> Watch<'a> {
        Watch { repeated, once, interval: Duration::from_secs(1), samples: 3 }
    }

    #[test]
    fn accesses_are_counted_and_only_watched_frames_are_marked() {
        let machine = Machine::new();
        let mut tracker = PageIdle::open(&machine.roots).unwrap();
        // Unsorted, in several words; two pages of one compound page, whose head has their bit.
        let (repeated, once) = (points(&[700, 1, 128, 600, 129, 1023, 3]), points(&[900, 200, 901]));
        tracker.watch(&watch(&repeated, &once)).unwrap();
        let marked = [1, 128, 129, 200, 512, 900, 901, 1023];
        assert_eq!(machine.marked(), marked);
        // In this file, unlike in the kernel's, writing a word clears the bits that are not set in it.
        for accessed in [&[1, 512][..], &[], &[1, 128, 129, 900]] {
            machine.access(accessed);
            tracker.sample().unwrap();
        }
        assert_eq!(machine.marked(), [1, 128, 129, 200, 512, 901, 1023], "points sampled once are not marked again");
        let observed = tracker.finish().unwrap().unwrap();
        let want = [Some(1), Some(2), Some(1), Some(1), Some(1), Some(0), None]
            .map(|count| count.map(|accessed| BitSamples { taken: 3, accessed }));
        assert_eq!(observed.samples[..7], want);
        let want = [1, 0, 0].map(|accessed| Some(BitSamples { taken: 1, accessed }));
        assert_eq!(observed.samples[7..], want);
        assert!(observed.window > Duration::ZERO);
        assert_eq!(tracker.finish().unwrap(), Some(Observation::default()), "the watch has ended");
    }

    #[test]
    fn moved_and_vanished_pages_have_no_samples() {
        let machine = Machine::new();
        let mut tracker = PageIdle::open(&machine.roots).unwrap();
        let repeated = [points(&[1, 2, 4]), vec![Point { pid: 8, address: 0 }]].concat();
        tracker.watch(&watch(&repeated, &[])).unwrap();
        tracker.sample().unwrap();
        // Page 1 stays, 2 moves to another frame, 4 is gone.
        machine.put("proc/7/pagemap", [0, 1 << 63 | 1, 1 << 63 | 9].into_iter());
        let samples = tracker.finish().unwrap().unwrap().samples;
        assert_eq!(samples, [Some(BitSamples { taken: 1, accessed: 0 }), None, None, None]);
    }
}

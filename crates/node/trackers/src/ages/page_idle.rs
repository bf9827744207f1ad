//! kstaled in user space (SDFM section 5.1): the age of every page of every watched job, one byte per page frame, and one for its
//! owner.
//!
//! The tracker uses `/sys/kernel/mm/page_idle/bitmap`. A set bit marks a page idle; any access through any mapping, or
//! by the kernel on behalf of a process, clears it, so a page shared by several tasks is young if one of them accessed
//! it. Each scan reads the bits (pages whose bit is still set are one scan older), then sets the bits of all watched
//! pages again. `/proc/kpageflags` shows which frames count (on an LRU list, evictable, not locked), and
//! `/proc/kpagecgroup` their cgroups.
//!
//! # Limitations
//! A frame that another job used at the last scan holds a new page: its age begins at zero, and no access is counted. A frame that
//! is freed and reused by the same job between two scans cannot be distinguished from one that was
//! accessed: it counts as an access at the old page's age, which raises the threshold, the safe direction. Frames that
//! the agent itself reclaims, which are by far the most likely to be reused, do not count: their age is reset at once
//! ([`Tracker::reclaim_requested`]). Nor does such a frame's new page count as old: before reclaim, the bitmap is read
//! again ([`Tracker::still_idle`]), and a new page is not idle.
//!
//! The kernel clears accessed bits without flushing TLBs. A page whose translation stays in a TLB for a whole scan
//! period appears idle however hot it is. This is unlikely within minutes, but was seen with the large TLBs of
//! emulators, and huge pages are the most likely to be affected. The page is promoted at its next access, and its fault
//! counts as a promotion.

use std::collections::HashMap;
use std::time::Duration;

use config::Tracker as Kind;
use kernel::page_idle::{KPF_COMPOUND_TAIL, KPF_LRU, KPF_MLOCKED, KPF_SWAPBACKED, KPF_UNEVICTABLE, PFNS_PER_WORD};
use kernel::pagemap;
use kernel::zoneinfo::PfnRange;
use kernel::{Result, Roots};
use units::{Age, Bytes, Pages};

use super::idle_files::{IdleFiles, MAX_COMPOUND};
use super::passed_over::PassedOver;
use super::{PageAges, Scan, Target, Tracker};

/// Frames per bulk read: 512 KiB of flags. A multiple of [`MAX_COMPOUND`], so that no compound page on an LRU list
/// crosses a chunk.
const CHUNK: usize = 1 << 16;

const _: () = assert!(CHUNK.is_multiple_of(MAX_COMPOUND) && CHUNK.is_multiple_of(64));

/// The tracker that sees every access.
#[derive(Debug)]
pub struct PageIdle {
    files: IdleFiles,
    ranges: Vec<PfnRange>,
    /// Age of each page frame; zero for frames that are not watched.
    ages: Vec<FrameAge>,
    passed_over: PassedOver,
    /// Time at which the pages of each job were last marked idle, by cgroup id.
    marked: HashMap<u64, Duration>,
    buffers: Buffers,
}

/// The machine's ranges of page frames, and the end of the last.
fn frames(roots: &Roots) -> Result<(Vec<PfnRange>, u64)> {
    let ranges = kernel::zoneinfo::pfn_ranges(roots)?;
    let end = ranges.iter().map(|range| range.end).max().unwrap_or(0);
    Ok((ranges, end))
}

/// Memory that the ages of this machine's page frames would take.
///
/// # Errors
/// Any error of `/proc/zoneinfo`.
pub fn memory(roots: &Roots) -> Result<Bytes> {
    let (_, frames) = frames(roots)?;
    Ok(Bytes(frames.saturating_mul(size_of::<FrameAge>() as u64)))
}

#[derive(Debug)]
struct Buffers {
    flags: Vec<u64>,
    cgroups: Vec<u64>,
    idle: Vec<u64>,
}

impl PageIdle {
    /// Opens the kernel's files.
    ///
    /// # Errors
    /// `Unsupported` if the kernel was built without idle page tracking, like Debian's.
    pub fn open(roots: &Roots) -> Result<Self> {
        let (ranges, frames) = frames(roots)?;
        Ok(Self {
            files: IdleFiles::open(roots)?,
            ranges,
            ages: vec![FrameAge::default(); usize::try_from(frames).unwrap_or(0)],
            passed_over: PassedOver::default(),
            marked: HashMap::new(),
            buffers: Buffers { flags: vec![0; CHUNK], cgroups: vec![0; CHUNK], idle: vec![0; CHUNK / 64] },
        })
    }

    /// Ages one chunk of frames and marks its watched pages idle again.
    fn scan_chunk(&mut self, first: u64, owners: &HashMap<u64, Owner>, scans: &mut [Scan]) -> Result<()> {
        let start = usize::try_from(first).unwrap_or(usize::MAX);
        let length = CHUNK.min(self.ages.len().saturating_sub(start));
        let Buffers { flags, cgroups, idle } = &mut self.buffers;
        let count = self.files.flags.read_chunk(first, &mut flags[..length])?;
        let count = self.files.cgroups.read_chunk(first, &mut cgroups[..count])?;
        // The bitmap is read last, because reading it walks the page tables.
        let words = self.files.idle.read_chunk(first, &mut idle[..count.div_ceil(64)])?;
        let count = count.min(words * 64);
        let frames = Frames { flags: &flags[..count], cgroups: &cgroups[..count], idle: &mut idle[..words] };
        age_frames(frames, &mut self.ages[start..start + count], owners, scans);
        self.passed_over.scanned(start, &self.ages[start..start + count], |frame| frame.age > 0);
        if idle[..words].iter().any(|&word| word != 0) {
            self.files.idle.write_chunk(first, &idle[..words])?;
        }
        Ok(())
    }
}

/// The kernel's data about one chunk of page frames.
#[derive(Debug)]
pub struct Frames<'a> {
    /// `/proc/kpageflags`: a word per frame.
    pub flags: &'a [u64],
    /// `/proc/kpagecgroup`: a cgroup id per frame.
    pub cgroups: &'a [u64],
    /// The idle bitmap: a bit per frame. On return, the bits to set.
    pub idle: &'a mut [u64],
}

/// A page frame: the age of its page, and a tag of the job that had it at the last scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameAge {
    /// The age.
    pub age: u8,
    /// [`Owner::tag`]; zero for no job.
    pub tag: u8,
}

/// A job as the owner of page frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Its place among the scans.
    pub index: usize,
    /// A byte that is the same at every scan, never zero, and differs for all but one in 255 pairs of jobs.
    pub tag: u8,
}

impl Owner {
    /// The owner with this kernel id.
    #[must_use]
    pub fn new(index: usize, id: u64) -> Self {
        // Ids are often consecutive: multiplied by the golden ratio they are spread evenly (Knuth, TAOCP 6.4).
        let mixed = id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        Self { index, tag: u8::try_from(mixed % 255 + 1).unwrap_or(1) }
    }
}

/// Updates the ages of one chunk of frames, and counts them in the scans of their jobs.
///
/// `owners` maps cgroup ids to jobs. The head of a compound page determines the age of its tails.
pub fn age_frames(frames: Frames<'_>, ages: &mut [FrameAge], owners: &HashMap<u64, Owner>, scans: &mut [Scan]) {
    let Frames { flags, cgroups, idle } = frames;
    let mut last_cgroup = 0;
    let mut owner = None;
    let mut at = 0;
    while at < flags.len() {
        let mut end = at + 1;
        while end < flags.len() && flags[end] & KPF_COMPOUND_TAIL != 0 {
            end += 1;
        }
        if cgroups[at] != last_cgroup {
            last_cgroup = cgroups[at];
            owner = owners.get(&last_cgroup).copied();
        }
        let (word, bit) = (at / 64, 1u64 << (at % 64));
        let was_idle = idle[word] & bit != 0;
        let reclaimable = flags[at] & KPF_LRU != 0 && flags[at] & (KPF_UNEVICTABLE | KPF_MLOCKED | KPF_COMPOUND_TAIL) == 0;
        clear_bits(idle, at, end);
        match owner.and_then(|owner: Owner| Some((owner.tag, scans.get_mut(owner.index)?))).filter(|_| reclaimable) {
            Some((tag, scan)) => {
                let pages = Pages((end - at) as u64);
                let new = ages[at].tag != tag;
                let before = Age(ages[at].age);
                let now = if was_idle && !new { before.older() } else { Age(0) };
                if flags[at] & KPF_SWAPBACKED != 0 {
                    scan.resident.add(now, pages);
                    if !was_idle && !new {
                        scan.accesses.add(before, pages);
                    }
                } else {
                    scan.file.add(now, pages);
                }
                ages[at..end].fill(FrameAge { age: now.0, tag });
                idle[word] |= bit;
            }
            None => ages[at..end].fill(FrameAge::default()),
        }
        at = end;
    }
}

fn clear_bits(words: &mut [u64], from: usize, to: usize) {
    for at in from..to {
        words[at / 64] &= !(1 << (at % 64));
    }
}

impl Tracker for PageIdle {
    fn kind(&self) -> Kind {
        Kind::PageIdle
    }

    fn scan(&mut self, now: Duration, targets: &[Target]) -> Result<Vec<Result<Scan>>> {
        let mut owners = HashMap::new();
        let mut scans = Vec::with_capacity(targets.len());
        for (index, target) in targets.iter().enumerate() {
            let owner = Owner::new(index, target.id);
            owners.extend(target.cgroups.iter().map(|&id| (id, owner)));
            let window = self.marked.get(&target.id).map_or(Duration::ZERO, |&then| now.saturating_sub(then));
            scans.push(Scan { taken_at: now, window, resolved_to: Age::MAX, ..Scan::default() });
        }
        // Two ranges may end in the same chunk, which must not age twice.
        let mut next = 0;
        for range in self.ranges.clone() {
            next = next.max(range.start - range.start % CHUNK as u64);
            while next < range.end {
                self.scan_chunk(next, &owners, &mut scans)?;
                next += CHUNK as u64;
            }
        }
        self.marked = targets.iter().map(|target| (target.id, now)).collect();
        Ok(scans.into_iter().map(Ok).collect())
    }

    fn page_ages(&self) -> Option<&dyn PageAges> {
        Some(self)
    }

    fn still_idle(&self, frames: &[u64]) -> Result<Vec<bool>> {
        let (mut word, mut word_of_head) = (None, None);
        let mut still = vec![false; frames.len()];
        let mut ascending: Vec<usize> = (0..frames.len()).collect();
        ascending.sort_unstable_by_key(|&at| frames[at]);
        for at in ascending {
            still[at] = self.files.is_idle(frames[at], &mut word)?
                || self.files.head_of(frames[at])?.map_or(Ok(false), |head| self.files.is_idle(head, &mut word_of_head))?;
        }
        Ok(still)
    }

    fn reclaim_requested(&mut self, frames: &[u64]) {
        for &frame in frames {
            if let Some(age) = usize::try_from(frame).ok().and_then(|frame| self.ages.get_mut(frame)) {
                // Not zero: a page that the kernel did not reclaim must not count as part of the working set.
                age.age = age.age.min(1);
            }
        }
    }

    fn pass_over(&mut self, frames: &[u64]) {
        for &frame in frames {
            self.passed_over.add(frame, self.ages.len());
        }
    }
}

impl PageAges for PageIdle {
    fn age(&self, _pid: i32, _address: u64, entry: pagemap::Entry) -> Option<Age> {
        let frame = usize::try_from(entry.pfn()?).ok()?;
        self.ages.get(frame).map(|frame| Age(frame.age))
    }

    fn is_passed_over(&self, entry: pagemap::Entry) -> bool {
        entry.pfn().is_some_and(|frame| self.passed_over.has(frame))
    }

    fn hide_access(&self, _: i32, _: u64, entry: pagemap::Entry, access: &mut dyn FnMut()) {
        let head = entry.pfn().and_then(|frame| Some(self.files.head_of(frame).ok()?.unwrap_or(frame)));
        let idle = head.filter(|&frame| self.files.is_idle(frame, &mut None).unwrap_or(false));
        access();
        if let Some(frame) = idle {
            // If this fails, one access too many is counted, and the page stays resident a while longer.
            let _ = self.files.idle.write_chunk(frame - frame % PFNS_PER_WORD, &[1 << (frame % PFNS_PER_WORD)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FRAMES, Machine};

    const ANON: u64 = KPF_LRU | KPF_SWAPBACKED;

    /// Flags and cgroups of frames by letter: `a` anonymous in cgroup 5, `f` file in 5, `o` anonymous in another
    /// cgroup, `H` and `t` head and tail of a huge page in 5, `m` mlocked, `-` free.
    fn flags_and_cgroups(kinds: &str) -> (Vec<u64>, Vec<u64>) {
        kinds
            .chars()
            .map(|kind| match kind {
                'a' | 'H' => (ANON, 5),
                'f' => (KPF_LRU, 5),
                'o' => (ANON, 9),
                't' => (ANON | KPF_COMPOUND_TAIL, 5),
                'm' => (ANON | KPF_MLOCKED, 5),
                _ => (0, 0),
            })
            .unzip()
    }

    /// Scans once; `idle` has `1` for each frame that was not accessed. Returns the ages, the bits to set, and the
    /// job's scan.
    fn check(kinds: &str, idle: &str, ages: Vec<u8>) -> (Vec<u8>, String, Scan) {
        check_of(kinds, idle, ages, Owner::new(0, 5).tag)
    }

    /// The same for frames that had the owner `tag` before.
    fn check_of(kinds: &str, idle: &str, ages: Vec<u8>, tag: u8) -> (Vec<u8>, String, Scan) {
        let mut ages: Vec<_> = ages.into_iter().map(|age| FrameAge { age, tag }).collect();
        let (flags, cgroups) = flags_and_cgroups(kinds);
        let mut words = vec![0u64];
        for (i, _) in idle.chars().enumerate().filter(|&(_, c)| c == '1') {
            words[0] |= 1 << i;
        }
        let mut scans = vec![Scan::default()];
        let frames = Frames { flags: &flags, cgroups: &cgroups, idle: &mut words };
        age_frames(frames, &mut ages, &HashMap::from([(5, Owner::new(0, 5))]), &mut scans);
        let marks = (0..kinds.len()).map(|i| if words[0] >> i & 1 == 1 { '1' } else { '0' }).collect();
        (ages.iter().map(|frame| frame.age).collect(), marks, scans.remove(0))
    }

    #[test]
    fn a_new_page_does_not_inherit_the_age_of_its_frame() {
        // Another job freed these frames since the last scan. New pages are accessed; one is already idle again.
        for tag in [Owner::new(0, 9).tag, 0] {
            let (ages, marks, scan) = check_of("aaaHtt", "100000", vec![100; 6], tag);
            assert_eq!((ages, marks.as_str()), (vec![0; 6], "111100"));
            assert_eq!(scan.resident.at(Age(0)), Pages(6));
            assert_eq!(scan.accesses.total(), Pages(0), "no access at the age of another job's page");
        }
    }

    #[test]
    fn tags_of_jobs_differ() {
        let tags: Vec<u8> = (1..=255).map(|id| Owner::new(0, id).tag).collect();
        assert!(!tags.contains(&0));
        let same = |distance: u64| (1..10_000).filter(|&id| Owner::new(0, id).tag == Owner::new(0, id + distance).tag).count();
        for distance in [1, 2, 3, 17, 255, 256, 510] {
            assert!(same(distance) < 500, "{distance}: {}", same(distance));
        }
    }

    #[test]
    fn idle_pages_age_and_accesses_count_at_the_age_of_the_page() {
        let (ages, marks, scan) = check("aaa", "110", vec![0, 254, 7]);
        assert_eq!((ages, marks.as_str()), (vec![1, 255, 0], "111"));
        assert_eq!(scan.resident.iter().collect::<Vec<_>>(), [(Age(0), Pages(1)), (Age(1), Pages(1)), (Age(255), Pages(1))]);
        assert_eq!(scan.accesses.iter().collect::<Vec<_>>(), [(Age(7), Pages(1))]);
    }

    #[test]
    fn a_hidden_access_leaves_the_idle_bit_as_it_was() {
        let machine = Machine::new();
        let tracker = PageIdle::open(&machine.roots).unwrap();
        for (frame, accessed_before, idle_after) in [(70, 70, true), (70, 71, false), (1, 0, true)] {
            machine.access_frames(accessed_before);
            let mut accesses = 0;
            tracker.hide_access(0, 0, pagemap::Entry(1 << 63 | frame), &mut || {
                machine.access_frames(FRAMES);
                accesses += 1;
            });
            assert_eq!((accesses, machine.is_idle(frame)), (1, idle_after), "frame {frame} after {accessed_before}");
        }
    }

    #[test]
    fn pages_of_other_jobs_and_unevictable_pages_are_not_marked() {
        let (ages, marks, scan) = check("om-", "111", vec![9, 9, 9]);
        assert_eq!((ages, marks.as_str()), (vec![0, 0, 0], "000"));
        assert_eq!((scan.resident.total(), scan.file.total()), (Pages(0), Pages(0)));
    }

    #[test]
    fn pages_accessed_or_replaced_since_the_scan_are_not_idle() {
        let root = tempfile::tempdir().unwrap();
        let roots = Roots::under(root.path());
        let put = |path: &str, words: &[u64]| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>()).unwrap();
        };
        let (mut flags, _) = flags_and_cgroups("aaaHttHtt");
        flags.resize(128, 0);
        put("proc/kpageflags", &flags);
        put("proc/kpagecgroup", &[5; 128]);
        put("sys/kernel/mm/page_idle/bitmap", &[0b1101, 0b1]);
        let tracker = PageIdle {
            files: IdleFiles::open(&roots).unwrap(),
            ranges: Vec::new(),
            ages: Vec::new(),
            passed_over: PassedOver::default(),
            marked: HashMap::new(),
            buffers: Buffers { flags: Vec::new(), cgroups: Vec::new(), idle: Vec::new() },
        };
        let frames = [0, 1, 2, 3, 4, 5, 6, 8, 64, 65];
        let still = [true, false, true, true, true, true, false, false, true, false];
        assert_eq!(tracker.still_idle(&frames).unwrap(), still);
    }

    #[test]
    fn a_huge_page_has_the_age_of_its_head_and_counts_in_full() {
        let (ages, marks, scan) = check("Htttaf", "100010", vec![4, 4, 4, 4, 0, 3]);
        assert_eq!((ages, marks.as_str()), (vec![5, 5, 5, 5, 1, 0], "100011"));
        assert_eq!(scan.resident.at(Age(5)), Pages(4));
        assert_eq!(scan.file.at(Age(0)), Pages(1));
        assert_eq!(scan.accesses.total(), Pages(0), "file pages are not stored in zswap");
        let (ages, _, scan) = check("Httt", "0000", vec![6, 6, 6, 6]);
        assert_eq!(ages, [0; 4]);
        assert_eq!(scan.accesses.at(Age(6)), Pages(4));
    }
}

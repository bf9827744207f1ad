//! Ages of a random sample of page frames, by idle page tracking: for machines on which the ages of all frames cost too much
//! ([`super::page_idle`]). It sees the same accesses, knows page cache as well, and needs neither processes nor DAMON.
//!
//! # Single frames
//! The idle bitmap is read in words of 64 frames, but a word's frames mostly belong to one job and were allocated together: with a
//! correlation `r` between them, a sample of `n` frames in words is worth `n / (1 + 63 r)` single ones (the design effect; Kish,
//! *Survey Sampling*, section 5.4), and `r` is 1 in huge pages. A word costs eight times as much as a single frame: 64 flags, owners
//! and page tables in place of one. Words would be better only where `r` is below 0.1. So single frames are chosen, one in each
//! aligned block of `2^level` ([`blocks`]), which spreads them evenly. Their design effect is 1: however pages lie in memory, a share
//! `p` is estimated from `n` points with a variance of `p (1 - p) / n` at most, and Clopper and Pearson's bounds hold.
//!
//! # Small jobs
//! At one level for the whole machine, a job of 64 MiB would get two points at 1 TiB. Each job has a level of its own, by its size.
//! Frames at the machine's level are examined at every scan. What a finer level adds is found by a sweep that reads the owners of
//! [`SWEEP`] frames per scan: all of them in each scan up to 8 GiB, in 128 scans at 1 TiB. Beside 1,000 others, a job of 64 MiB has 2
//! points at its first scan and 32 at the end of a sweep.
//!
//! # Cost
//! Per scan, a point takes one read if its page was idle, and another one in a huge page if any was split since the last scan; otherwise
//! one of its flags, its owner, and one write. The sweep reads 8 bytes per frame. None of it grows with the machine.
//!
//! # Limitations
//! A page that the sweep finds may be older than it knows: its first access is not counted, and until nearly all points have been
//! watched that long, no older age counts as known ([`super::Scan::resolved_to`]). Other limitations are those of `page_idle`: a frame that
//! was freed and reused by the same cgroup between two scans counts as an access. Frames that the agent itself offloads do not
//! ([`Tracker::swapped_out`]).
//!
//! What is offloaded is decided as by tracker `sampled`: the sample decides how much and how old, generations of MGLRU which pages.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::time::Duration;

use config::Tracker as Kind;
use kernel::cgroup::{Cgroup, CgroupRoot};
use kernel::zoneinfo::PfnRange;
use kernel::{Result, Roots, pagemap};
use units::{Age, Pages};

use super::generations::Generations;
use super::idle_files::IdleFiles;
use super::sampled::blocks::{self, Space};
use super::{Generation, PageAges, Scan, Target, Tracker};
use sample::{JobSample, Memory, Point, Rate};

mod sample;

/// Frames whose owners the sweep reads per scan: 16 MiB of `kpagecgroup`.
const SWEEP: u64 = 1 << 21;

/// Frames per read of the sweep.
const CHUNK: usize = 1 << 16;

/// The fewest points that a job may have, if it has as many pages; it has half as many at least. With 1,000 jobs on 1 TiB, which have 30
/// each then, measuring ages takes less than 0.1 % of a core (`docs/measurements.md`). Configuration `agent.sample_points` gives more.
const POINTS_MIN: u64 = 48;

/// Limits of the tracker.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Time between two scans.
    pub scan_period: Duration,
    /// The most frames that are watched at once, unless that permits a job fewer than 48.
    pub points_max: u64,
    /// The most frames of one job.
    pub job_points_max: u64,
}

impl Limits {
    /// Points of all of `jobs` jobs, and of each.
    fn points(&self, jobs: usize) -> (u64, u64) {
        let jobs = (jobs as u64).max(1);
        let all = self.points_max.max(jobs * POINTS_MIN);
        (all, (all / jobs).min(self.job_points_max))
    }
}

/// The tracker.
#[derive(Debug)]
pub struct SampledFrames {
    roots: Roots,
    files: IdleFiles,
    cgroups: CgroupRoot,
    ranges: Vec<PfnRange>,
    limits: Limits,
    seed: u64,
    generations: Option<Generations>,
    jobs: HashMap<u64, JobSample>,
    /// The job of each sampled frame.
    job_of: HashMap<u64, u64>,
    /// The machine's level, the finest of jobs that need no sweep: its frames are examined at every scan.
    level: u32,
    /// Huge pages that were split since boot, at the last scan.
    splits: Option<u64>,
    /// Where the sweep goes on, counted in frames of all ranges.
    cursor: u64,
    /// Frames of the sweep per scan.
    sweep: u64,
}

/// The jobs of a scan by their cgroups.
type Owners = HashMap<u64, u64>;

impl SampledFrames {
    /// Opens the kernel's files. `seed` determines which frames are chosen.
    ///
    /// # Errors
    /// `Unsupported` if the kernel was built without idle page tracking, like Debian's.
    pub fn open(roots: &Roots, limits: Limits, seed: u64) -> Result<Self> {
        let generations = match Generations::open(roots, limits.scan_period) {
            Err(error) if error.is_unsupported() => None,
            opened => Some(opened?),
        };
        Ok(Self {
            roots: roots.clone(),
            files: IdleFiles::open(roots)?,
            cgroups: CgroupRoot::probe(roots)?,
            ranges: kernel::zoneinfo::pfn_ranges(roots)?,
            limits,
            seed,
            generations,
            jobs: HashMap::new(),
            job_of: HashMap::new(),
            level: 0,
            splits: None,
            cursor: 0,
            sweep: SWEEP,
        })
    }

    fn frame_count(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }

    /// Forgets the samples of jobs that are none of `targets`.
    fn forget_others(&mut self, targets: &[Target]) {
        let ids: HashSet<u64> = targets.iter().map(|target| target.id).collect();
        let known = self.jobs.len();
        self.jobs.retain(|id, _| ids.contains(id));
        if self.jobs.len() < known {
            self.job_of.retain(|_, id| self.jobs.contains_key(id));
        }
    }

    /// Whether a frame is in the sample at a level.
    fn is_chosen(&self, frame: u64, level: u32) -> bool {
        blocks::is_chosen(self.seed, Space::FRAMES, level, frame)
    }

    /// The memory of a job, and the level for it.
    fn read_level(&self, target: &Target, wanted: u64) -> Result<(Memory, u32)> {
        let stat = Cgroup::known(&self.cgroups, &target.path, target.id).stat()?;
        let (size, shmem) = (kernel::page_size(), stat.shmem.unwrap_or_default());
        let swap_backed = (stat.anon.unwrap_or_default() + shmem).to_pages(size);
        let memory = Memory { swap_backed, file: (stat.file.unwrap_or_default() - shmem).to_pages(size) };
        let current = self.jobs.get(&target.id).and_then(|job| job.rate).map(|rate| rate.level);
        Ok((memory, blocks::level_for((memory.swap_backed + memory.file).0, wanted, current)))
    }

    /// Chooses the levels of the machine and of all jobs. Returns the memory of each job.
    fn choose_levels(&mut self, targets: &[Target]) -> Vec<Result<Memory>> {
        let (all, wanted) = self.limits.points(targets.len());
        let chosen: Vec<_> = targets.iter().map(|target| self.read_level(target, wanted)).collect();
        // Twice as many points as the jobs may have, so that a job of average size needs no sweep.
        let finest = blocks::level_for(self.frame_count(), all * 2, None);
        // No job has the frames that a still finer level adds: they would be examined in vain.
        let levels = chosen.iter().flatten().map(|&(_, level)| level);
        self.level = levels.filter(|&level| level >= finest).min().unwrap_or(finest);
        let choose = |(target, chosen): (&Target, Result<(Memory, u32)>)| {
            let (memory, level) = chosen?;
            self.choose_level(target.id, level);
            Ok(memory)
        };
        targets.iter().zip(chosen).map(choose).collect()
    }

    /// Samples a job at a level. Frames that a coarser one excludes leave the sample.
    fn choose_level(&mut self, id: u64, level: u32) {
        let (frames, machine, seed) = (self.frame_count(), self.level, self.seed);
        let job = self.jobs.entry(id).or_default();
        if job.rate.is_some_and(|rate| rate.level == level) {
            return;
        }
        let before = job.rate.map_or(machine, |rate| if rate.swept.0 < frames { rate.before } else { rate.level });
        job.choose(Rate { level, before: before.min(machine), swept: (0, frames) });
        let job_of = &mut self.job_of;
        job.points.retain(|&frame, _| {
            let kept = blocks::is_chosen(seed, Space::FRAMES, level, frame);
            if !kept {
                job_of.remove(&frame);
            }
            kept
        });
    }

    /// Reads the sampled frames of a job again: which were accessed, and which have another page now. `may_be_split` says whether huge
    /// pages may have been split since the last scan.
    fn age_job(&mut self, now: Duration, id: u64, owners: &Owners, may_be_split: bool) -> Result<()> {
        let Some(mut job) = self.jobs.remove(&id) else { return Ok(()) };
        let first_counts = !self.is_swept(&job) || self.frame_count() <= self.sweep;
        let (mut word, mut accessed) = (None, Vec::new());
        for (&frame, point) in &mut job.points {
            // After a split the frame has a bit of its own. The kernel does not count splits of large pages in the page cache.
            let may_be_split = may_be_split || !point.page.swap_backed;
            if may_be_split && point.page.head != frame && !self.files.is_tail(frame)? {
                point.page.head = frame;
            }
            // A page that is freed or charged to another cgroup is no longer idle.
            if owners.get(&point.cgroup) != Some(&id) || !self.files.is_idle(point.page.head, &mut word)? {
                accessed.push((frame, *point));
            }
        }
        let mut marks = Vec::new();
        for (frame, point) in accessed {
            let same = if self.files.cgroup(frame)? == point.cgroup { self.files.listed(frame)? } else { None };
            match same.filter(|_| owners.get(&point.cgroup) == Some(&id)) {
                Some(page) => {
                    job.accessed(now, frame, page, first_counts, self.limits.scan_period);
                    marks.push(page.head);
                }
                None => {
                    job.points.remove(&frame);
                    self.job_of.remove(&frame);
                }
            }
        }
        self.jobs.insert(id, job);
        self.files.mark(marks)
    }

    /// Whether a job has points that only the sweep finds.
    fn is_swept(&self, job: &JobSample) -> bool {
        job.rate.is_some_and(|rate| rate.level < self.level)
    }

    /// Takes a frame into the sample of its job, if it has a page of one. `examined` says whether it was examined at the last scan as
    /// well: then its page is new. Returns the frame to mark.
    fn join(&mut self, now: Duration, (frame, cgroup): (u64, u64), owners: &Owners, examined: bool) -> Result<Option<u64>> {
        let Some((&id, job)) = owners.get(&cgroup).and_then(|id| Some((id, self.jobs.get(id)?))) else { return Ok(None) };
        if !job.rate.is_some_and(|rate| self.is_chosen(frame, rate.level)) {
            return Ok(None);
        }
        let new = examined && job.knows_its_frames();
        let Some(page) = self.files.listed(frame)? else { return Ok(None) };
        if let Some(job) = self.jobs.get_mut(&id) {
            job.points.insert(frame, Point::new(now, cgroup, page, new));
            self.job_of.insert(frame, id);
        }
        Ok(Some(page.head))
    }

    /// Examines the frames of the machine's level that are not in the sample. `before` is that level at the last scan.
    fn examine(&mut self, now: Duration, owners: &Owners, before: u32) -> Result<()> {
        let (level, mut marks) = (self.level, Vec::new());
        for range in self.ranges.clone() {
            for block in range.start >> level..range.end.div_ceil(1 << level) {
                let frame = blocks::page_of(self.seed, Space::FRAMES, level, block);
                if (range.start..range.end).contains(&frame) && !self.job_of.contains_key(&frame) {
                    let cgroup = self.files.cgroup(frame)?;
                    marks.extend(self.join(now, (frame, cgroup), owners, level >= before)?);
                }
            }
        }
        self.files.mark(marks)
    }

    /// Examines the next frames for the jobs with a finer level, all that they have.
    fn sweep(&mut self, now: Duration, owners: &Owners) -> Result<()> {
        let swept = |id: &u64| self.jobs.get(id).filter(|job| self.is_swept(job)).and_then(|job| job.rate);
        let rates: HashMap<u64, Rate> = owners.iter().filter_map(|(&cgroup, id)| Some((cgroup, swept(id)?))).collect();
        let all = self.frame_count();
        if rates.is_empty() {
            return Ok(());
        }
        let length = self.sweep.min(all);
        let (mut marks, mut cgroups) = (Vec::new(), vec![0; CHUNK]);
        for part in self.next_part(length) {
            for first in part.clone().step_by(CHUNK) {
                let most = usize::try_from(part.end - first).unwrap_or(CHUNK).min(CHUNK);
                let count = self.files.cgroups.read_chunk(first, &mut cgroups[..most])?;
                let (mut last, mut rate) = (0, None);
                for (frame, &cgroup) in (first..).zip(&cgroups[..count]) {
                    // Neighbours mostly have the same owner.
                    if cgroup != last {
                        (last, rate) = (cgroup, rates.get(&cgroup));
                    }
                    if rate.is_some_and(|rate| self.is_chosen(frame, rate.level)) && !self.job_of.contains_key(&frame) {
                        marks.extend(self.join(now, (frame, cgroup), owners, length == all)?);
                    }
                }
            }
        }
        for rate in self.jobs.values_mut().filter_map(|job| job.rate.as_mut()) {
            rate.swept.0 = rate.swept.0.saturating_add(length).min(all);
        }
        self.files.mark(marks)
    }

    /// The next `length` frames of the sweep.
    fn next_part(&mut self, length: u64) -> Vec<Range<u64>> {
        let (all, mut left, mut parts) = (self.frame_count(), length, Vec::new());
        while left > 0 {
            let mut at = self.cursor;
            for range in &self.ranges {
                let size = range.end - range.start;
                if at < size {
                    let taken = left.min(size - at);
                    parts.push(range.start + at..range.start + at + taken);
                    left -= taken;
                    self.cursor = (self.cursor + taken) % all;
                    break;
                }
                at -= size;
            }
        }
        parts
    }
}

impl Tracker for SampledFrames {
    fn kind(&self) -> Kind {
        Kind::SampledFrames
    }

    fn scan(&mut self, now: Duration, targets: &[Target]) -> Result<Vec<Result<Scan>>> {
        if let Some(generations) = &mut self.generations {
            let jobs = &self.jobs;
            generations.keep_pace(targets, |id| jobs.get(&id).map_or(Duration::ZERO, |job| job.observed_for(now)))?;
        }
        let owners: Owners = targets.iter().flat_map(|target| target.cgroups.iter().map(|&cgroup| (cgroup, target.id))).collect();
        self.forget_others(targets);
        let before = self.level;
        let memory = self.choose_levels(targets);
        let splits = kernel::thp::splits(&self.roots)?;
        let may_be_split = splits.is_none() || std::mem::replace(&mut self.splits, splits) != splits;
        for target in targets {
            self.age_job(now, target.id, &owners, may_be_split)?;
        }
        self.examine(now, &owners, before)?;
        self.sweep(now, &owners)?;
        let scan_period = self.limits.scan_period;
        let mut finish = |id: u64, memory| self.jobs.entry(id).or_default().finish(now, scan_period, memory);
        Ok(targets.iter().zip(memory).map(|(target, memory)| memory.map(|memory| finish(target.id, memory))).collect())
    }

    fn page_ages(&self) -> Option<&dyn PageAges> {
        Some(self)
    }

    fn generations(&self, path: &str, age: Age) -> Vec<Generation> {
        self.generations.as_ref().map(|generations| generations.old(path, age)).unwrap_or_default()
    }

    fn reach(&self, path: &str) -> Option<Age> {
        self.generations.as_ref().map(|generations| generations.reach(path))
    }

    /// Frames of the job's sample that have become free leave it at once: at the next scan they may have another page of the job.
    fn swapped_out(&mut self, job: u64, _: Pages) {
        let Some(sample) = self.jobs.get_mut(&job) else { return };
        let (files, job_of) = (&self.files, &mut self.job_of);
        sample.points.retain(|frame, point| {
            let lost = !files.is_idle(point.page.head, &mut None).unwrap_or(true);
            let freed = lost && files.listed(*frame).is_ok_and(|page| page.is_none());
            if freed {
                job_of.remove(frame);
            }
            !freed
        });
    }
}

impl PageAges for SampledFrames {
    fn age(&self, _pid: i32, _address: u64, entry: pagemap::Entry) -> Option<Age> {
        let frame = entry.pfn()?;
        self.jobs.get(self.job_of.get(&frame)?)?.age(frame, self.limits.scan_period)
    }

    fn are_complete(&self) -> bool {
        false
    }

    fn hide_access(&self, _: i32, _: u64, entry: pagemap::Entry, access: &mut dyn FnMut()) {
        let point = entry.pfn().and_then(|frame| self.jobs.get(self.job_of.get(&frame)?)?.points.get(&frame));
        let head = point.map(|point| point.page.head);
        let idle = head.filter(|&head| self.files.is_idle(head, &mut None).unwrap_or(false));
        access();
        if let Some(head) = idle {
            // If this fails, one access too many is counted, and the page stays resident a while longer.
            let _ = self.files.mark(vec![head]);
        }
    }
}

#[cfg(test)]
mod tests;

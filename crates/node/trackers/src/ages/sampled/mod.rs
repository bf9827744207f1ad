//! Ages of a random sample of pages, exact for each of them, on any kernel with DAMON: cold-age and promotion histograms without
//! bias, at a cost that depends on the number of points and not on the size of the machine.
//!
//! [`blocks`] chooses the pages, [`held`] finds which of them a process has, one kdamond ([`kernel::damon::PageSession`]) watches
//! them, [`point`] and [`job`] keep their ages; [`split`] splits idle huge pages of the sample.
//!
//! A share `p` of a job's memory is estimated from `n` points with a standard error of at most `sqrt(p (1 - p) / n)`: 1.6 percentage
//! points at `p = 0.5` and `n = 1024`, 0.2 at `p = 0.005`.
//!
//! # What is offloaded
//! The sample decides how much and how old. Which pages that are is known to the kernel: generations of MGLRU are opened at the pace
//! that the job's threshold needs, one each half of it, so that of the kernel's four one is always just older than the threshold.
//! Opening one at each scan would let the kernel forget the order beyond two scans. Before the first threshold they follow the time
//! that the job has been observed.
//!
//! # Limitations
//! Memory of processes that are younger than a scan, and shared memory that no process maps, is not in the sample. It counts as
//! young.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use config::Tracker as Kind;
use kernel::cgroup::{Cgroup, CgroupRoot};
use kernel::damon::{Damon, PageSession, Points};
use kernel::pagemap::Entry;
use kernel::{Result, Roots, process};
use policy::histogram::AgeCounts;
use units::{Age, Bytes, Pages};

use super::generations::Generations;
use super::{Generation, PageAges, Sample, Scan, Target, Tracker};
use crate::kdamond_time::KdamondTime;
use busy::BusyPages;
use job::{Counted, JobSample};
use point::{Report, Watching};

pub mod blocks;
pub mod busy;
mod collapsed;
pub mod held;
pub mod job;
pub mod point;
pub mod split;

/// The fewest points that a job is given, if it has as many pages.
const POINTS_MIN: u64 = 128;

/// A machine's sample is not made smaller than this.
const ALL_POINTS_MIN: u64 = 1024;

/// Limits of the tracker.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Time between two scans.
    pub scan_period: Duration,
    /// The most pages that are watched at once.
    pub points_max: u64,
    /// The most pages of one job.
    pub job_points_max: u64,
}

impl Limits {
    /// DAMON's interval. Several per scan, so that an age is known to a fraction of a scan; long, because each clears accessed bits.
    fn interval(&self) -> Duration {
        (self.scan_period / 4).clamp(Duration::from_millis(500), Duration::from_secs(30))
    }

    /// Points that each of `jobs` jobs should have.
    fn points_of_job(&self, jobs: usize) -> u64 {
        // The choice of a level may give twice as many points as wanted.
        (self.points_max / 2 / (jobs as u64).max(1)).clamp(POINTS_MIN, self.job_points_max)
    }

    /// Halves the points, if enough are left. Returns how many these are.
    fn halve(&mut self) -> Option<u64> {
        let half = self.points_max / 2;
        if half < ALL_POINTS_MIN {
            return None;
        }
        (self.points_max, self.job_points_max) = (half, (self.job_points_max / 2).max(POINTS_MIN));
        Some(half)
    }
}

/// The tracker based on a sample.
#[derive(Debug)]
pub struct Sampled {
    roots: Roots,
    admin: Damon,
    cgroups: CgroupRoot,
    limits: Limits,
    seed: u64,
    session: Option<PageSession>,
    /// The job of each watched process.
    owners: HashMap<i32, u64>,
    jobs: HashMap<u64, JobSample>,
    /// Time of the last report, since boot.
    reported: Option<Duration>,
    /// The end of what earlier sessions reported, as time since boot: before that this session's ages say nothing.
    began: Duration,
    generations: Option<Generations>,
    /// Whether the list of watched pages must be renewed.
    stale: bool,
    /// Pages that the agent itself accessed, and when: the next report of each says accessed.
    hidden: RefCell<HashMap<(i32, u64), Instant>>,
    cpu: KdamondTime,
}

impl Sampled {
    /// Prepares sampling; no kdamond starts before the first scan. `seed` determines which pages are chosen.
    ///
    /// # Errors
    /// `Unsupported` if the kernel lacks DAMON's sysfs interface or trace events, `Busy` if another program uses DAMON.
    pub fn open(roots: &Roots, limits: Limits, seed: u64) -> Result<Self> {
        probe(roots)?;
        let generations = match Generations::open(roots, limits.scan_period) {
            Err(error) if error.is_unsupported() => None,
            opened => Some(opened?),
        };
        Ok(Self {
            roots: roots.clone(),
            admin: Damon::probe(roots)?,
            cgroups: CgroupRoot::probe(roots)?,
            limits,
            seed,
            session: None,
            owners: HashMap::new(),
            jobs: HashMap::new(),
            reported: None,
            began: Duration::ZERO,
            generations,
            stale: true,
            hidden: RefCell::default(),
            cpu: KdamondTime::default(),
        })
    }

    /// Takes in what the kernel reported since the last scan.
    fn take_reports(&mut self, now: Duration) -> Result<()> {
        let Some(mut session) = self.session.take() else { return Ok(()) };
        let mut hidden = hidden_at(self.hidden.take(), now);
        self.cpu.update(&self.roots, session.kdamond_pid().as_slice());
        let watching = Watching { interval: self.limits.interval(), since: self.began };
        let pids: Vec<i32> = session.slots().iter().map(|slot| slot.pid).collect();
        let drained = session.drain(&mut |state| {
            let pid = pids[state.slot];
            if let Some(job) = self.owners.get(&pid).and_then(|id| self.jobs.get_mut(id)) {
                let own = hidden.get(&(pid, state.address)).is_some_and(|&hidden| state.at >= hidden);
                if own {
                    hidden.remove(&(pid, state.address));
                }
                job.take(pid, state.address, Report { at: state.at, accessed: state.accessed && !own, age: state.age }, &watching);
            }
            self.reported = Some(state.at);
        });
        self.session = Some(session);
        drained
    }

    fn scan_job(&mut self, now: Duration, target: &Target, wanted: u64) -> Result<Scan> {
        let cgroup = Cgroup::open(&self.cgroups, &target.path)?;
        let stat = cgroup.stat()?;
        let size = kernel::page_size();
        let resident = (stat.anon.unwrap_or_default() + stat.shmem.unwrap_or_default()).to_pages(size);
        let far = cgroup.swap_current()?.unwrap_or_default().to_pages(size);
        let job = self.jobs.entry(target.id).or_default();
        let level = blocks::level_for((resident + far).0, wanted, job.level);
        job.level = Some(level);
        let (mut held, mut sparse) = (Vec::new(), 0);
        for pid in job.settled(&target.pids) {
            match held::visit(&self.roots, pid, self.seed, level, &mut |page| held.push((pid, page))) {
                Ok(complete) => sparse += u32::from(!complete),
                // The process has exited; the job's other processes still count.
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error),
            }
        }
        collapsed::forget(&self.roots, job)?;
        // Before the first report nothing is known.
        let known_until = self.reported.unwrap_or_default().min(now);
        let counted = job.scan(&held, now, known_until, self.limits.scan_period);
        let mut split = 0;
        if target.may_split {
            split += split_idle(&self.roots, job, self.limits.scan_period)?;
        }
        if target.may_split_busy {
            split += split_busy(&self.roots, job, target, self.limits.scan_period)?;
        }
        self.stale |= counted.joined;
        let file = self.file_ages(&target.path, (stat.file.unwrap_or_default() - stat.shmem.unwrap_or_default()).to_pages(size));
        let remark = (sparse > 0)
            .then(|| format!("{sparse} processes have reservations too sparse to sample before Linux 6.7; they count as young"));
        Ok(estimate(
            counted,
            level,
            resident,
            Scan { taken_at: if self.reported.is_some() { known_until } else { now }, file, remark, split, ..Scan::default() },
        ))
    }

    /// File pages by the age of their generation, all of them young without generations.
    fn file_ages(&self, path: &str, total: Pages) -> AgeCounts {
        let mut file = AgeCounts::default();
        match &self.generations {
            Some(generations) => {
                for memcg in generations.of_job(path) {
                    for (age, generation) in memcg.nodes.iter().flat_map(|node| generations.ages(node)) {
                        file.add(age, Pages(generation.file_pages));
                    }
                }
            }
            None => file.add(Age(0), total),
        }
        file
    }

    /// The points of all jobs, by process.
    ///
    /// A process that has exited must not be among them: the kernel then refuses the whole list, reports success, and stops the
    /// kdamond (`damon_sysfs_cmd_request_callback()` in Linux 6.12).
    fn wanted(&mut self) -> BTreeMap<i32, Vec<u64>> {
        let mut wanted = BTreeMap::new();
        self.owners.clear();
        let mut left = usize::try_from(self.limits.points_max).unwrap_or(usize::MAX);
        for (&id, job) in &self.jobs {
            for (pid, addresses) in job.watched() {
                if addresses.len() > left || process::stat(&self.roots, pid).is_err() {
                    continue;
                }
                left -= addresses.len();
                self.owners.insert(pid, id);
                wanted.insert(pid, addresses);
            }
        }
        wanted
    }

    /// Has the kernel watch the points of all jobs.
    fn watch(&mut self, now: Duration) -> Result<()> {
        let wanted = self.wanted();
        if wanted.is_empty() {
            return self.stop_session();
        }
        let renewed = match &mut self.session {
            Some(session) if session.is_running()? => match session.replace(in_slots(session.slots(), wanted.clone())) {
                Err(error) if error.is_gone() => None,
                other => Some(other?),
            },
            _ => None,
        };
        if renewed.is_none() {
            self.stop_session()?;
            let slots: Vec<_> = wanted.into_iter().map(|(pid, addresses)| Points { pid, addresses }).collect();
            let started = self.admin.watch_pages(&self.roots, self.limits.interval(), self.limits.points_max, &slots);
            // A process exited in between: the next scan starts without it. Until then nothing is reported, and ages do not grow.
            match started {
                Err(error) if error.is_gone() => {}
                other => self.session = Some(other?),
            }
            // Reports were read after this scan began.
            self.began = now.max(self.reported.unwrap_or_default());
        }
        Ok(())
    }

    fn stop_session(&mut self) -> Result<()> {
        let Some(session) = &mut self.session else { return Ok(()) };
        self.cpu.update(&self.roots, session.kdamond_pid().as_slice());
        self.cpu.stopped();
        // A session that could not be stopped is kept, because only its owner can stop the kernel thread later.
        match session.stop() {
            Err(error) if !error.is_gone() => return Err(error),
            _ => self.session = None,
        }
        Ok(())
    }
}

/// Splits the idle huge pages of a job's sample.
fn split_idle(roots: &Roots, job: &mut JobSample, scan: Duration) -> Result<u64> {
    let mut split = 0;
    for (pid, addresses) in job.idle_for(split::IDLE, scan) {
        match split::split(roots, pid, &addresses) {
            Ok((count, small)) => {
                split += count as u64;
                job.small.extend(small.into_iter().map(|block| (pid, block)));
            }
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(split)
}

/// Splits huge pages of a job that are in use while most of what they hold is idle, after a test of each process.
fn split_busy(roots: &Roots, job: &mut JobSample, target: &Target, scan: Duration) -> Result<u64> {
    let (mut split, mut failed) = (0, Ok(()));
    let in_use = job.in_use(split::IDLE, scan);
    let mut busy = std::mem::take(&mut job.busy);
    busy.begin(&target.pids.iter().copied().collect());
    for (&pid, addresses) in &in_use {
        let step = busy.step(pid, target.threshold, |blocks, age| job.parts(pid, blocks, age, scan));
        match take_step(roots, job, (pid, addresses), step, &mut busy) {
            Ok(count) => split += count as u64,
            Err(error) if error.is_gone() => {}
            Err(error) => {
                busy.failed(pid);
                failed = Err(error);
            }
        }
    }
    job.busy = busy;
    failed.map(|()| split)
}

/// Does what was decided on one process, whose sampled pages in use are at `addresses`. Returns how many huge pages were split.
fn take_step(roots: &Roots, job: &mut JobSample, (pid, addresses): (i32, &[u64]), step: busy::Step, busy: &mut BusyPages) -> Result<usize> {
    match step {
        busy::Step::Keep => Ok(0),
        busy::Step::Test => {
            let blocks = split::test(roots, pid, addresses)?;
            let count = blocks.len();
            busy.tested(pid, blocks);
            Ok(count)
        }
        busy::Step::Split(from) => {
            let (count, next) = split::all(roots, pid, from, addresses)?;
            busy.split(pid, next);
            Ok(count)
        }
        busy::Step::Collapse(mut blocks) => {
            // Collapsing would bring back what has gone out meanwhile.
            blocks.retain(|&block| !job.has_far(pid, block));
            split::collapse(pid, &blocks)?;
            // They are to stay huge, and are in use.
            job.small.retain(|(of, block)| *of != pid || !blocks.contains(block));
            Ok(0)
        }
    }
}

/// Times since boot at which pages were accessed by the agent, now that it is `now`.
fn hidden_at(hidden: HashMap<(i32, u64), Instant>, now: Duration) -> HashMap<(i32, u64), Duration> {
    hidden.into_iter().map(|(page, at)| (page, now.saturating_sub(at.elapsed()))).collect()
}

/// Whether the tracker is available; changes nothing.
///
/// # Errors
/// As [`Sampled::open`].
pub fn probe(roots: &Roots) -> Result<()> {
    Damon::probe(roots)?;
    kernel::tracefs::probe(roots).map(drop)
}

/// An address that no process has mapped: the first that Linux lets one map (`vm.mmap_min_addr`).
const UNUSED_ADDRESS: u64 = 1 << 16;

/// Gives each process its former slot, then the slots of processes that are not wanted any more, then new ones. A slot that is left
/// over gets this process, with a page that it does not have.
fn in_slots(before: &[Points], mut wanted: BTreeMap<i32, Vec<u64>>) -> Vec<Points> {
    let kept: Vec<Option<Vec<u64>>> = before.iter().map(|slot| wanted.remove(&slot.pid)).collect();
    let mut new = wanted.into_iter();
    let mut slots: Vec<Points> = before
        .iter()
        .zip(kept)
        .map(|(slot, kept)| match kept {
            Some(addresses) => Points { pid: slot.pid, addresses },
            None => match new.next() {
                Some((pid, addresses)) => Points { pid, addresses },
                None => Points { pid: std::process::id().cast_signed(), addresses: vec![UNUSED_ADDRESS] },
            },
        })
        .collect();
    slots.extend(new.map(|(pid, addresses)| Points { pid, addresses }));
    slots
}

/// Scales what was counted in points to pages.
///
/// Each point stands for `2^level` pages. If that gives the job's memory within a tenth, which sampling explains, the kernel's total
/// has precedence; memory that the sample does not reach counts as young.
fn estimate(counted: Counted, level: u32, resident: Pages, scan: Scan) -> Scan {
    let points = counted.resident.total();
    let reached = Pages(points.0 << level);
    let covered = if reached.0 >= resident.0 - resident.0 / 10 { resident } else { reached };
    let mut by_age = counted.resident.scaled(covered, points);
    by_age.add(Age(0), resident - by_age.total());
    Scan {
        resident: by_age,
        accesses: counted
            .accesses
            .scaled(Pages(covered.0.saturating_mul(counted.accesses.total().0) / points.0.max(1)), counted.accesses.total()),
        window: counted.window,
        resolved_to: counted.resolved_to,
        sample: Some(Sample { points, far: counted.far, promoted: counted.promoted }),
        ..scan
    }
}

impl Tracker for Sampled {
    fn kind(&self) -> Kind {
        Kind::Sampled
    }

    fn scan(&mut self, now: Duration, targets: &[Target]) -> Result<Vec<Result<Scan>>> {
        self.take_reports(now)?;
        if let Some(generations) = &mut self.generations {
            let jobs = &self.jobs;
            generations.keep_pace(targets, |id| jobs.get(&id).map_or(Duration::ZERO, |job| job.observed_for(now)))?;
        }
        self.jobs.retain(|id, _| targets.iter().any(|target| target.id == *id));
        let wanted = self.limits.points_of_job(targets.len());
        let scans = targets.iter().map(|target| self.scan_job(now, target, wanted)).collect();
        if self.stale || self.session.as_ref().map_or(Ok(false), PageSession::is_running).is_ok_and(|running| !running) {
            self.watch(now)?;
            self.stale = false;
        }
        Ok(scans)
    }

    fn page_ages(&self) -> Option<&dyn PageAges> {
        Some(self)
    }

    fn kernel_cpu_time(&self) -> Duration {
        self.cpu.total()
    }

    fn kdamond_targets(&self) -> Vec<i32> {
        self.session.as_ref().map(|session| session.slots().iter().map(|slot| slot.pid).collect()).unwrap_or_default()
    }

    fn kernel_memory(&self) -> Bytes {
        self.session.as_ref().map_or(Bytes::ZERO, PageSession::kernel_memory)
    }

    fn generations(&self, path: &str, age: Age) -> Vec<Generation> {
        self.generations.as_ref().map(|generations| generations.old(path, age)).unwrap_or_default()
    }

    fn reach(&self, path: &str) -> Option<Age> {
        self.generations.as_ref().map(|generations| generations.reach(path))
    }

    fn sample_fewer(&mut self) -> Option<u64> {
        // What is watched now is renewed at the next scan.
        self.limits.halve().inspect(|_| self.stale = true)
    }

    fn stop(&mut self) -> Result<()> {
        self.stop_session()?;
        self.jobs.clear();
        self.owners.clear();
        Ok(())
    }
}

impl PageAges for Sampled {
    fn age(&self, pid: i32, address: u64, _: Entry) -> Option<Age> {
        self.jobs.get(self.owners.get(&pid)?)?.age(pid, address, self.limits.scan_period)
    }

    fn are_complete(&self) -> bool {
        false
    }

    fn hide_access(&self, pid: i32, address: u64, _: Entry, access: &mut dyn FnMut()) {
        self.hidden.borrow_mut().insert((pid, address), Instant::now());
        access();
    }
}

#[cfg(test)]
mod tests;

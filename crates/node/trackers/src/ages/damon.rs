//! Ages from DAMON: one kdamond per process, virtual addresses, and the sampling interval equal to the aggregation
//! interval.
//!
//! Only then is a region's `age` the time since its last access: with more samples per aggregation DAMON tolerates a
//! few accesses before it resets the age, and memory that is accessed rarely appears unused. A region counts as
//! accessed if one sampled page of it was, so differences within a region are lost; there are as many regions as the
//! configuration allows, and resident pages are counted individually inside each.
//!
//! While the kernel reports its regions, which takes longer the more there are, it does not sample: accesses in that
//! time are lost, and a page that is accessed once in a long time may appear idle. A report must therefore take a small
//! part of the scan period; otherwise the scan carries a remark.
//!
//! DAMON has one set of kdamonds for the whole machine. If another program uses it, this tracker reports "busy" and
//! does not interfere. When processes are added, monitoring starts over with the new set, and so do the ages: pages
//! then appear younger than they are, which is the safe direction.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use config::Tracker as Kind;
use kernel::damon::{Damon as Admin, Monitor, Region, Session};
use kernel::maps::{self, Vma};
use kernel::pagemap::Entry;
use kernel::{Result, Roots};
use units::{Age, Bytes, Pages};

use super::{PageAges, Scan, Target, Tracker};
use crate::kdamond_time::KdamondTime;
use crate::walk::{Flow, Walker};

/// Lower limit of the number of regions, set by the kernel.
const REGIONS_MIN: u64 = 3;

/// Mapped bytes per region of a process, up to the limit on regions. The kernel splits memory into between half and all
/// of the allowed regions, and every region costs four reads per scan. Regions of 64 KiB were measured to be nearly
/// exact.
const REGION_BYTES: u64 = 32 << 10;

/// Page map entries of a process that a scan reads at most: those of 1 TiB.
const ENTRIES_MAX: u64 = 1 << 28;

/// Upper bounds of what the kernel keeps: `struct damon_region` in its slab (at most 104 bytes on 6.12 and 7.2), and the stack and
/// the task of a kdamond.
const REGION_KERNEL_BYTES: Bytes = Bytes(128);
const KDAMOND_KERNEL_BYTES: Bytes = Bytes(32 << 10);

/// The tracker based on DAMON.
#[derive(Debug)]
pub struct Damon {
    roots: Roots,
    admin: Admin,
    limits: Limits,
    session: Option<Session>,
    watched: Vec<i32>,
    /// Regions of each process at the last scan.
    last: HashMap<i32, ProcessRegions>,
    scanned_at: HashMap<u64, Duration>,
    walker: Walker,
    cpu: KdamondTime,
}

/// Regions of a process, sorted by address, and the time since boot at which they were reported.
#[derive(Debug, Default)]
struct ProcessRegions {
    regions: Vec<Region>,
    taken_at: Duration,
}

/// Limits of the tracker.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Time between two scans.
    pub scan_period: Duration,
    /// Upper limit of the regions of each process.
    pub regions_max: u64,
    /// Upper limit of the watched processes; each has a kernel thread.
    pub processes_max: usize,
}

impl Limits {
    /// DAMON's sampling and aggregation interval: short, because reading a snapshot waits for the end of one.
    fn interval(&self) -> Duration {
        (self.scan_period / 4).clamp(Duration::from_millis(500), Duration::from_secs(2))
    }

    /// Number of regions for a process with this much mapped memory.
    fn regions(&self, mapped: Bytes) -> u64 {
        (mapped.0 / REGION_BYTES).max(REGIONS_MIN).min(self.regions_max.max(REGIONS_MIN))
    }

    /// Whether DAMON took so long to report its regions that accesses were missed: more than an eighth of the scan
    /// period, without the one interval that it always waits.
    fn missed_accesses(&self, snapshot: Duration) -> bool {
        snapshot.saturating_sub(self.interval()) > self.scan_period / 8
    }

    fn idle_time(&self, region: &Region) -> Duration {
        if region.nr_accesses > 0 {
            return Duration::ZERO;
        }
        self.interval().saturating_mul(region.age)
    }

    fn age(&self, region: &Region) -> Age {
        Age::from_idle_time(self.idle_time(region), self.scan_period)
    }
}

impl Damon {
    /// Prepares monitoring; no kdamond starts before the first scan.
    ///
    /// # Errors
    /// `Unsupported` if the kernel lacks DAMON's sysfs interface, `Busy` if another program uses it.
    pub fn open(roots: &Roots, limits: Limits) -> Result<Self> {
        let admin = Admin::probe(roots)?;
        Ok(Self {
            roots: roots.clone(),
            admin,
            limits,
            session: None,
            watched: Vec::new(),
            last: HashMap::new(),
            scanned_at: HashMap::new(),
            walker: Walker::default(),
            cpu: KdamondTime::default(),
        })
    }

    /// Watches these processes. Monitoring continues undisturbed if no process was added.
    fn watch(&mut self, pids: &BTreeSet<i32>) -> Result<()> {
        if self.session.is_some() && pids.iter().all(|pid| self.watched.contains(pid)) {
            return Ok(());
        }
        self.stop()?;
        let interval = self.limits.interval();
        let mut monitors = Vec::with_capacity(pids.len());
        for &pid in pids {
            let mapped: u64 = maps::read(&self.roots, pid).unwrap_or_default().iter().map(Vma::len).sum();
            let regions = self.limits.regions(Bytes(mapped));
            monitors.push(Monitor { pid, interval, regions_min: regions, regions_max: regions });
        }
        if !monitors.is_empty() {
            self.session = Some(self.admin.start(&monitors)?);
        }
        self.watched = pids.iter().copied().collect();
        Ok(())
    }

    /// Scans one process. `begun` is the instant at which the scan at time `now` began.
    fn scan_process(&mut self, pid: i32, (now, begun): (Duration, Instant), job: &mut JobScan) -> Result<()> {
        let (Some(session), Some(index)) = (&mut self.session, self.watched.iter().position(|&w| w == pid)) else { return Ok(()) };
        let requested = Instant::now();
        let (regions, taken_at) = session.snapshot(index)?;
        let waited = taken_at.saturating_duration_since(requested);
        if self.limits.missed_accesses(waited) {
            job.scan.remark = Some(format!(
                "DAMON took {:.1} s to report {} regions of process {pid} and missed accesses during that time; lower \
                 agent.damon_regions_max or lengthen agent.scan_period",
                waited.as_secs_f64(),
                regions.len()
            ));
        }
        self.cpu.update(&self.roots, &session.kdamond_pids());
        let current = ProcessRegions { regions, taken_at: now + taken_at.saturating_duration_since(begun) };
        let previous = self.last.remove(&pid).unwrap_or_default();
        let window = job.scan.window;
        job.scan.taken_at = current.taken_at;
        let limits = self.limits;
        let (mut now_at, mut before_at) = (Cursor::new(&current.regions), Cursor::new(&previous.regions));
        let walked = self.walker.walk(&self.roots, pid, 0, ENTRIES_MAX, &mut |address, entry| {
            if entry.present() {
                // Memory outside all regions was mapped after the regions were last updated: it is new.
                let region = now_at.find(address);
                let age = region.map_or(Age(0), |r| limits.age(r));
                // Compared as a duration: in whole scan periods, every delayed scan would count as an access.
                let touched = region.is_some_and(|r| limits.idle_time(r) < window);
                let page = PageAge { age, accessed_at: before_at.find(address).filter(|_| touched).map(|r| limits.age(r)) };
                match entry.pfn().filter(|_| !entry.exclusive()) {
                    Some(frame) => job.shared.entry(frame).or_insert(page).merge(page),
                    None => page.count(&mut job.scan),
                }
            }
            Flow::Continue
        });
        self.last.insert(pid, current);
        if walked?.is_some() {
            job.scan.remark = Some(format!("process {pid} has reserved more memory than can be read; its last pages are not counted"));
        }
        Ok(())
    }
}

/// A scan of a job under way.
#[derive(Debug)]
struct JobScan {
    scan: Scan,
    /// Pages mapped by several processes, by frame: each counts once.
    shared: HashMap<u64, PageAge>,
}

impl JobScan {
    fn finish(mut self) -> Scan {
        self.shared.into_values().for_each(|page| page.count(&mut self.scan));
        self.scan
    }
}

/// The age of a page according to the regions of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PageAge {
    age: Age,
    /// Its age at an access since the last scan; `None` if it was not accessed.
    accessed_at: Option<Age>,
}

impl PageAge {
    /// Merges the views of two processes: the latest access determines the age.
    fn merge(&mut self, other: Self) {
        self.age = self.age.min(other.age);
        self.accessed_at = self.accessed_at.into_iter().chain(other.accessed_at).min();
    }

    fn count(self, scan: &mut Scan) {
        scan.resident.add(self.age, Pages(1));
        if let Some(age) = self.accessed_at {
            scan.accesses.add(age, Pages(1));
        }
    }
}

/// Finds ascending addresses in sorted regions, in one pass over both.
struct Cursor<'a> {
    regions: &'a [Region],
}

impl<'a> Cursor<'a> {
    fn new(regions: &'a [Region]) -> Self {
        Self { regions }
    }

    fn find(&mut self, address: u64) -> Option<&'a Region> {
        while self.regions.first().is_some_and(|r| r.end <= address) {
            self.regions = &self.regions[1..];
        }
        self.regions.first().filter(|r| r.start <= address)
    }
}

impl Tracker for Damon {
    fn kind(&self) -> Kind {
        Kind::Damon
    }

    fn scan(&mut self, now: Duration, targets: &[Target]) -> Result<Vec<Result<Scan>>> {
        let pids: BTreeSet<i32> = targets.iter().flat_map(|t| &t.pids).copied().take(self.limits.processes_max).collect();
        self.watch(&pids)?;
        let begun = Instant::now();
        self.last.retain(|pid, _| pids.contains(pid));
        let mut scans = Vec::with_capacity(targets.len());
        for target in targets {
            let window = self.scanned_at.insert(target.id, now).map_or(Duration::ZERO, |then| now.saturating_sub(then));
            let mut scan = Scan { taken_at: now, window, resolved_to: Age::MAX, ..Scan::default() };
            let unwatched = target.pids.iter().filter(|pid| !pids.contains(pid)).count();
            if unwatched > 0 {
                scan.remark =
                    Some(format!("{unwatched} processes are not watched: agent.damon_processes_max is {}", self.limits.processes_max));
            }
            let mut result = Ok(());
            let mut job = JobScan { scan, shared: HashMap::new() };
            for &pid in target.pids.iter().filter(|pid| pids.contains(pid)) {
                match self.scan_process(pid, (now, begun), &mut job) {
                    // The process has exited; the job's other processes still count.
                    Err(error) if error.is_gone() => {}
                    Err(error) => result = Err(error),
                    Ok(()) => {}
                }
            }
            scans.push(result.map(|()| job.finish()));
        }
        Ok(scans)
    }

    fn page_ages(&self) -> Option<&dyn PageAges> {
        Some(self)
    }

    fn kernel_memory(&self) -> Bytes {
        let regions: usize = self.last.values().map(|process| process.regions.len()).sum();
        REGION_KERNEL_BYTES.saturating_mul(regions as u64) + KDAMOND_KERNEL_BYTES.saturating_mul(self.watched.len() as u64)
    }

    fn kernel_cpu_time(&self) -> Duration {
        self.cpu.total()
    }

    fn kdamond_targets(&self) -> Vec<i32> {
        self.watched.clone()
    }

    fn stop(&mut self) -> Result<()> {
        if let Some(session) = &self.session {
            self.cpu.update(&self.roots, &session.kdamond_pids());
            self.cpu.stopped();
        }
        // A session that could not be stopped is kept, because only its owner can stop the kernel threads later.
        if let Some(session) = &mut self.session {
            match session.stop() {
                Err(error) if !error.is_gone() => return Err(error),
                _ => self.session = None,
            }
        }
        self.watched.clear();
        self.last.clear();
        self.scanned_at.clear();
        Ok(())
    }
}

impl PageAges for Damon {
    fn age(&self, pid: i32, address: u64, _entry: Entry) -> Option<Age> {
        let regions = &self.last.get(&pid)?.regions;
        let at = regions.partition_point(|r| r.end <= address);
        let region = regions.get(at).filter(|r| r.start <= address)?;
        Some(self.limits.age(region))
    }

    fn taken_at(&self, pid: i32) -> Option<Duration> {
        Some(self.last.get(&pid)?.taken_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(start: u64, end: u64, nr_accesses: u32, age: u32) -> Region {
        Region { start, end, nr_accesses, age }
    }

    #[test]
    fn the_age_of_a_region_is_its_time_without_access() {
        let limits = Limits { scan_period: Duration::from_secs(120), regions_max: 100, processes_max: 1 };
        assert_eq!(limits.interval(), Duration::from_secs(2));
        assert!(!limits.missed_accesses(Duration::from_secs(17)) && limits.missed_accesses(Duration::from_secs(18)));
        for (nr_accesses, age, want) in [(0, 0, 0), (0, 59, 0), (0, 60, 1), (0, 125, 2), (1, 500, 0), (0, u32::MAX, 255)] {
            assert_eq!(limits.age(&region(0, 1, nr_accesses, age)), Age(want), "{nr_accesses} {age}");
        }
    }

    #[test]
    fn a_shared_page_counts_once_with_its_latest_access() {
        let page = |age, accessed_at: Option<u8>| PageAge { age: Age(age), accessed_at: accessed_at.map(Age) };
        for (one, other, want) in [
            (page(7, None), page(2, None), page(2, None)),
            (page(0, Some(3)), page(9, None), page(0, Some(3))),
            (page(0, Some(3)), page(0, Some(1)), page(0, Some(1))),
        ] {
            for (mut merged, with) in [(one, other), (other, one)] {
                merged.merge(with);
                assert_eq!(merged, want);
            }
        }
        let mut scan = Scan::default();
        page(0, Some(3)).count(&mut scan);
        assert_eq!((scan.resident.at(Age(0)), scan.accesses.at(Age(3))), (Pages(1), Pages(1)));
    }

    #[test]
    fn small_processes_get_few_regions() {
        let limits = |regions_max| Limits { scan_period: Duration::from_secs(120), regions_max, processes_max: 1 };
        for (mapped, regions_max, want) in [(0, 4096, 3), (Bytes::mib(1).0, 4096, 32), (u64::MAX, 4096, 4096), (u64::MAX, 0, 3)] {
            assert_eq!(limits(regions_max).regions(Bytes(mapped)), want, "{mapped} {regions_max}");
        }
    }

    #[test]
    fn addresses_are_found_in_one_pass() {
        let regions = [region(10, 20, 0, 1), region(20, 30, 0, 2), region(50, 60, 0, 3)];
        let mut cursor = Cursor::new(&regions);
        let found: Vec<_> = [5, 10, 19, 20, 35, 50, 59, 60].map(|a| cursor.find(a).map(|r| r.age)).into();
        assert_eq!(found, [None, Some(1), Some(1), Some(2), None, Some(3), Some(3), None]);
    }
}

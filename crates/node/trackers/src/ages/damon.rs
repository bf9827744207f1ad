//! Ages from DAMON: one kdamond per process, virtual addresses, and the sampling interval equal to the aggregation
//! interval.
//!
//! Only then does a region's `age` mean "time since the last access": with more samples per aggregation DAMON
//! forgives a few accesses before it resets the age, and memory touched now and then looks dead. A region counts as
//! accessed when one sampled page of it was, so that what differs inside a region is blurred; the regions are as
//! many as the configuration allows, and resident pages are counted page by page inside each.
//!
//! While the kernel hands its regions out, which takes the longer the more there are, it does not look: an access in
//! that time is lost, and a page that is accessed once and then not again for long may look untouched. A snapshot
//! must therefore take a small part of the scan period; where it does not, the scan's remark says so.
//!
//! DAMON has one set of kdamonds for the whole machine. Where anybody else uses it, this tracker reports "busy" and
//! stays away. When processes come, monitoring starts over with the new set, and ages with it: pages then look
//! younger than they are, which is the safe direction.

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

/// The fewest regions that the kernel accepts.
const REGIONS_MIN: u64 = 3;

/// A region for each of these of a process, up to the limit: the kernel splits to between half as many and all, and
/// every region costs a scan four reads. 64 KiB regions were seen to be near exact.
const REGION_BYTES: u64 = 32 << 10;

/// The sampling tracker.
#[derive(Debug)]
pub struct Damon {
    roots: Roots,
    admin: Admin,
    limits: Limits,
    session: Option<Session>,
    watched: Vec<i32>,
    /// What the last scan found of each process.
    found: HashMap<i32, Found>,
    scanned_at: HashMap<u64, Duration>,
    walker: Walker,
    cpu: KdamondTime,
}

/// One process's regions, sorted by address, and the time since boot that they are of.
#[derive(Debug, Default)]
struct Found {
    regions: Vec<Region>,
    taken_at: Duration,
}

/// What bounds the tracker.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Time from scan to scan.
    pub scan_period: Duration,
    /// Regions of each process.
    pub regions_max: u64,
    /// Processes watched at once; each has a kernel thread.
    pub processes_max: usize,
}

impl Limits {
    /// DAMON's interval: short, because reading a snapshot waits for the end of one.
    fn interval(&self) -> Duration {
        (self.scan_period / 4).clamp(Duration::from_millis(500), Duration::from_secs(2))
    }

    /// Regions of a process that has mapped so much.
    fn regions(&self, mapped: Bytes) -> u64 {
        (mapped.0 / REGION_BYTES).max(REGIONS_MIN).min(self.regions_max.max(REGIONS_MIN))
    }

    /// Whether DAMON took so long to hand its regions out that accesses were missed: over an eighth of the period,
    /// beside the interval that it waits for in any case.
    fn is_blind(&self, snapshot: Duration) -> bool {
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
    /// Prepares monitoring; nothing starts before the first scan.
    ///
    /// # Errors
    /// `Unsupported` where the kernel lacks DAMON's sysfs interface, `Busy` where somebody uses it.
    pub fn open(roots: &Roots, limits: Limits) -> Result<Self> {
        let admin = Admin::probe(roots)?;
        Ok(Self {
            roots: roots.clone(),
            admin,
            limits,
            session: None,
            watched: Vec::new(),
            found: HashMap::new(),
            scanned_at: HashMap::new(),
            walker: Walker::default(),
            cpu: KdamondTime::default(),
        })
    }

    /// Watches exactly these processes; unchanged sets, and sets that only shrank, go on undisturbed.
    fn watch(&mut self, wanted: &BTreeSet<i32>) -> Result<()> {
        if self.session.is_some() && wanted.iter().all(|pid| self.watched.contains(pid)) {
            return Ok(());
        }
        self.stop()?;
        let interval = self.limits.interval();
        let mut monitors = Vec::with_capacity(wanted.len());
        for &pid in wanted {
            let mapped: u64 = maps::read(&self.roots, pid).unwrap_or_default().iter().map(Vma::len).sum();
            let regions = self.limits.regions(Bytes(mapped));
            monitors.push(Monitor { pid, interval, regions_min: regions, regions_max: regions });
        }
        if !monitors.is_empty() {
            self.session = Some(self.admin.start(&monitors)?);
        }
        self.watched = wanted.iter().copied().collect();
        Ok(())
    }

    /// `begun` is when the scan of this moment `now` began.
    fn scan_process(&mut self, pid: i32, (now, begun): (Duration, Instant), job: &mut JobScan) -> Result<()> {
        let (Some(session), Some(index)) = (&mut self.session, self.watched.iter().position(|&w| w == pid)) else { return Ok(()) };
        let asked = Instant::now();
        let (regions, taken_at) = session.snapshot(index)?;
        let waited = taken_at.saturating_duration_since(asked);
        if self.limits.is_blind(waited) {
            job.scan.remark = Some(format!(
                "DAMON took {:.1} s to hand out {} regions of process {pid} and missed accesses meanwhile; lower agent.damon_regions_max \
                 or lengthen agent.scan_period",
                waited.as_secs_f64(),
                regions.len()
            ));
        }
        self.cpu.update(&self.roots, &session.kdamond_pids());
        let found = Found { regions, taken_at: now + taken_at.saturating_duration_since(begun) };
        let before = self.found.remove(&pid).unwrap_or_default();
        let window = job.scan.window;
        job.scan.taken_at = found.taken_at;
        let limits = self.limits;
        let (mut now_at, mut before_at) = (Cursor::new(&found.regions), Cursor::new(&before.regions));
        let walked = self.walker.walk(&self.roots, pid, 0, &mut |address, entry| {
            if entry.present() {
                // Memory outside every region was mapped after the regions were last updated: it is new.
                let region = now_at.find(address);
                let age = region.map_or(Age(0), |r| limits.age(r));
                // By the time itself: its whole scans alone would make an access of each scan that comes late.
                let touched = region.is_some_and(|r| limits.idle_time(r) < window);
                let seen = Seen { age, accessed_at: before_at.find(address).filter(|_| touched).map(|r| limits.age(r)) };
                match entry.pfn().filter(|_| !entry.exclusive()) {
                    Some(frame) => job.shared.entry(frame).or_insert(seen).merge(seen),
                    None => seen.count(&mut job.scan),
                }
            }
            Flow::Continue
        });
        self.found.insert(pid, found);
        walked
    }
}

/// A job's scan under way.
#[derive(Debug)]
struct JobScan {
    scan: Scan,
    /// Pages that several processes map, by frame: each counts once.
    shared: HashMap<u64, Seen>,
}

impl JobScan {
    fn finish(mut self) -> Scan {
        self.shared.into_values().for_each(|seen| seen.count(&mut self.scan));
        self.scan
    }
}

/// What one process's regions say of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    age: Age,
    /// Its age when it was accessed since the last scan, if it was.
    accessed_at: Option<Age>,
}

impl Seen {
    /// A page is as young as whoever used it last has made it.
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

/// Looks up ascending addresses in sorted regions, in one pass over both.
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

    fn scan(&mut self, now: Duration, targets: &[Target<'_>]) -> Result<Vec<Result<Scan>>> {
        let wanted: BTreeSet<i32> = targets.iter().flat_map(|t| t.pids).copied().take(self.limits.processes_max).collect();
        self.watch(&wanted)?;
        let begun = Instant::now();
        self.found.retain(|pid, _| wanted.contains(pid));
        let mut scans = Vec::with_capacity(targets.len());
        for target in targets {
            let window = self.scanned_at.insert(target.id, now).map_or(Duration::ZERO, |then| now.saturating_sub(then));
            let mut scan = Scan { taken_at: now, window, resolved_to: Age::MAX, ..Scan::default() };
            let unwatched = target.pids.iter().filter(|pid| !wanted.contains(pid)).count();
            if unwatched > 0 {
                scan.remark =
                    Some(format!("{unwatched} processes not watched: agent.damon_processes_max is {}", self.limits.processes_max));
            }
            let mut result = Ok(());
            let mut job = JobScan { scan, shared: HashMap::new() };
            for &pid in target.pids.iter().filter(|pid| wanted.contains(pid)) {
                match self.scan_process(pid, (now, begun), &mut job) {
                    // It ended; the job's other processes count all the same.
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

    fn kernel_cpu_time(&self) -> Duration {
        self.cpu.total()
    }

    fn kdamond_targets(&self) -> Vec<i32> {
        self.watched.clone()
    }

    fn stop(&mut self) -> Result<()> {
        if let Some(session) = &self.session {
            self.cpu.update(&self.roots, &session.kdamond_pids());
            self.cpu.ended();
        }
        // Until it has ended, it stays known: the kernel threads would otherwise outlive whoever could end them.
        if let Some(session) = &mut self.session {
            match session.stop() {
                Err(error) if !error.is_gone() => return Err(error),
                _ => self.session = None,
            }
        }
        self.watched.clear();
        self.found.clear();
        self.scanned_at.clear();
        Ok(())
    }
}

impl PageAges for Damon {
    fn age(&self, pid: i32, address: u64, _entry: Entry) -> Option<Age> {
        let regions = &self.found.get(&pid)?.regions;
        let at = regions.partition_point(|r| r.end <= address);
        let region = regions.get(at).filter(|r| r.start <= address)?;
        Some(self.limits.age(region))
    }

    fn taken_at(&self, pid: i32) -> Option<Duration> {
        Some(self.found.get(&pid)?.taken_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(start: u64, end: u64, nr_accesses: u32, age: u32) -> Region {
        Region { start, end, nr_accesses, age }
    }

    #[test]
    fn a_region_is_as_old_as_its_time_without_access() {
        let limits = Limits { scan_period: Duration::from_secs(120), regions_max: 100, processes_max: 1 };
        assert_eq!(limits.interval(), Duration::from_secs(2));
        assert!(!limits.is_blind(Duration::from_secs(17)) && limits.is_blind(Duration::from_secs(18)));
        for (nr_accesses, age, want) in [(0, 0, 0), (0, 59, 0), (0, 60, 1), (0, 125, 2), (1, 500, 0), (0, u32::MAX, 255)] {
            assert_eq!(limits.age(&region(0, 1, nr_accesses, age)), Age(want), "{nr_accesses} {age}");
        }
    }

    #[test]
    fn a_shared_page_counts_once_and_is_as_young_as_its_last_user_made_it() {
        let seen = |age, accessed_at: Option<u8>| Seen { age: Age(age), accessed_at: accessed_at.map(Age) };
        for (one, other, want) in [
            (seen(7, None), seen(2, None), seen(2, None)),
            (seen(0, Some(3)), seen(9, None), seen(0, Some(3))),
            (seen(0, Some(3)), seen(0, Some(1)), seen(0, Some(1))),
        ] {
            for (mut merged, with) in [(one, other), (other, one)] {
                merged.merge(with);
                assert_eq!(merged, want);
            }
        }
        let mut scan = Scan::default();
        seen(0, Some(3)).count(&mut scan);
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

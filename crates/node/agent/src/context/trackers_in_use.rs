//! The trackers of page ages: what the kernel offers, and those in use.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use config::Agent as Settings;
use kernel::Roots;
use trackers::ages::choose::Offer;
use trackers::ages::{Kind, PageAges, Tracker, damon, frames, lru_gen, page_idle, sampled};
use units::{Bytes, Pages, RatioPpm};

use super::affordance::Affordance;

/// The most pages of one job that a tracker of a sample watches: an estimated share is then off by 1.1 percentage points at most
/// (one standard error).
const JOB_POINTS_MAX: u64 = 2048;

/// The trackers of page ages.
pub struct TrackersInUse {
    /// What the kernel offers.
    pub offer: Offer,
    open: BTreeMap<Kind, Box<dyn Tracker>>,
    /// Trackers that are scanning, on another thread.
    lent: BTreeMap<Kind, Lent>,
    affordances: BTreeMap<Kind, Affordance>,
}

/// What a tracker had cost before it was lent.
#[derive(Clone, Copy)]
struct Lent {
    kernel_cpu: Duration,
    kernel_memory: Bytes,
}

impl std::fmt::Debug for TrackersInUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.open.keys()).finish()
    }
}

impl TrackersInUse {
    /// No tracker in use yet.
    #[must_use]
    pub fn new(offer: Offer) -> Self {
        Self { offer, open: BTreeMap::new(), lent: BTreeMap::new(), affordances: BTreeMap::new() }
    }

    /// The tracker of a kind, if it is in use and not scanning.
    #[must_use]
    pub fn get(&self, kind: Kind) -> Option<&dyn Tracker> {
        self.open.get(&kind).map(AsRef::as_ref)
    }

    /// The same, to change it.
    pub fn get_mut(&mut self, kind: Kind) -> Option<&mut Box<dyn Tracker>> {
        self.open.get_mut(&kind)
    }

    /// Takes a tracker out, to scan with it on another thread.
    pub fn lend(&mut self, kind: Kind) -> Option<Box<dyn Tracker>> {
        let tracker = self.open.remove(&kind)?;
        self.lent.insert(kind, Lent { kernel_cpu: tracker.kernel_cpu_time(), kernel_memory: tracker.kernel_memory() });
        Some(tracker)
    }

    /// Takes back a tracker that was lent.
    pub fn give_back(&mut self, tracker: Box<dyn Tracker>) {
        self.lent.remove(&tracker.kind());
        self.open.insert(tracker.kind(), tracker);
    }

    /// All trackers in use that are not scanning.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Box<dyn Tracker>> {
        self.open.values_mut()
    }

    /// Opens a tracker at its first use.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub fn open(&mut self, kind: Kind, roots: &Roots, settings: &Settings) -> kernel::Result<()> {
        if self.open.contains_key(&kind) {
            return Ok(());
        }
        let tracker: Box<dyn Tracker> = match kind {
            Kind::PageIdle => Box::new(page_idle::PageIdle::open(roots)?),
            Kind::SampledFrames => {
                let points_max = u64::from(settings.sample_points);
                let limits = frames::Limits { scan_period: settings.scan_period, points_max, job_points_max: JOB_POINTS_MAX };
                Box::new(frames::SampledFrames::open(roots, limits, RandomState::new().hash_one(std::process::id()))?)
            }
            Kind::Sampled => {
                let points_max = u64::from(settings.sample_points);
                let limits = sampled::Limits { scan_period: settings.scan_period, points_max, job_points_max: JOB_POINTS_MAX };
                Box::new(sampled::Sampled::open(roots, limits, RandomState::new().hash_one(std::process::id()))?)
            }
            Kind::LruGen => Box::new(lru_gen::LruGen::open(roots, settings.scan_period)?),
            Kind::Damon | Kind::Auto => {
                let limits = damon::Limits {
                    scan_period: settings.scan_period,
                    regions_max: u64::from(settings.damon_regions_max),
                    processes_max: usize::try_from(settings.damon_processes_max).unwrap_or(usize::MAX),
                };
                Box::new(damon::Damon::open(roots, limits)?)
            }
        };
        self.open.insert(kind, tracker);
        Ok(())
    }

    /// The ages of single pages, if the tracker of this kind measures them.
    #[must_use]
    pub fn page_ages(&self, kind: Kind) -> Option<&dyn PageAges> {
        self.get(kind)?.page_ages()
    }

    /// Reports to a job's tracker that pages of the job were swapped out.
    pub fn swapped_out(&mut self, kind: Kind, job: u64, pages: Pages) {
        if let Some(tracker) = self.open.get_mut(&kind) {
            tracker.swapped_out(job, pages);
        }
    }

    /// CPU time of kernel threads that run for the trackers.
    #[must_use]
    pub fn kernel_cpu_time(&self) -> Duration {
        let lent: Duration = self.lent.values().map(|lent| lent.kernel_cpu).sum();
        lent + self.open.values().map(|tracker| tracker.kernel_cpu_time()).sum::<Duration>()
    }

    /// Memory of these kernel threads.
    #[must_use]
    pub fn kernel_memory(&self) -> Bytes {
        let lent: Bytes = self.lent.values().map(|lent| lent.kernel_memory).sum();
        lent + self.open.values().map(|tracker| tracker.kernel_memory()).sum::<Bytes>()
    }

    /// Accounts the CPU time of one scan. Returns whether the tracker has cost more than `budget` for several scans in a row.
    pub fn is_too_expensive(&mut self, kind: Kind, cpu: Duration, scan_period: Duration, budget: RatioPpm) -> bool {
        let too_expensive = self.affordances.entry(kind).or_default().judge(cpu, scan_period, budget);
        if too_expensive {
            self.affordances.remove(&kind);
        }
        too_expensive
    }
}

//! One job: what all of its controllers share.

use std::time::Duration;

use config::Config;
use kernel::Result;
use kernel::cgroup::{Cgroup, Protected};
use policy::histogram::AgeCounts;
use policy::page_cache;
use policy::tiering::Permitted;
use serde::Serialize;
use trackers::ages::{self, Scan};
use units::{AccessRate, Age, Bytes, Millis, Pages, RatioPpm};

use crate::controllers::tiering::state::Tiering;
use crate::discover::Treatment;
use crate::far::FarAges;
use crate::limits::Standing;
use crate::memory::{JobMemory, Outcome};
use crate::now::Now;
use crate::ram_disks::RamDisks;
use crate::savings::Requests;
use crate::waits::Waits;

/// A job. Its controllers are kept beside it, in [`crate::controllers::slots::Entry`].
#[derive(Debug)]
pub struct Job {
    /// Its cgroup.
    pub cgroup: Cgroup,
    /// How the operator wants it treated.
    pub treatment: Treatment,
    /// The tracker that measures its page ages, and why that one.
    pub tracker: (ages::Kind, &'static str),
    /// Time since boot at which an agent first observed it.
    pub seen_at: Duration,
    /// Ids of its cgroup and of all cgroups below.
    pub members: Vec<u64>,
    /// The last scan.
    pub scan: Option<Scan>,
    /// Ages of its pages in far memory.
    pub far: FarAges,
    /// Where its memory is.
    pub memory: JobMemory,
    /// Its protection in effect, at the last control period.
    pub protection: Protected,
    /// Whether the agent has set its `memory.min`.
    pub hard_protection: bool,
    /// Accesses by age since the last decision by age.
    pub promotions: Promotions,
    /// Counters of what moved.
    pub counters: Counters,
    /// What its tasks waited for.
    pub waits: Waits,
    /// Time since boot until which a trial wants it without far memory; `None` if there is no trial.
    pub held_until: Option<Duration>,
    /// What its controllers report to each other.
    pub signals: Signals,
    /// Where its swap-backed memory goes.
    pub tiering: Tiering,
    /// Last reported error; a repeated error is reported once.
    pub error: Option<String>,
}

/// Totals since the agent started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Bytes moved to far memory.
    pub offloaded: Bytes,
    /// Bytes promoted from far memory.
    pub promoted: Bytes,
}

/// What moved, by the kernel's counters.
#[derive(Debug, Default)]
pub struct Counters {
    /// Totals since the agent started.
    pub totals: Totals,
    /// Page cache that the agent reclaimed, as far as it is still saved.
    pub page_cache: page_cache::Saved,
    /// What the agent's requests moved out of DRAM.
    pub requests: Requests,
    /// What moved since the last decision by age.
    outcome: Outcome,
    closed_at: Option<Duration>,
    last: Option<Readings>,
    /// Pages that the agent itself read from far memory, which are no promotions: those since the last reading, and those before
    /// that the kernel's counters may not show yet.
    own_reads: [u64; 2],
}

/// What a job's controllers report to each other.
#[derive(Clone, Copy, Debug, Default)]
pub struct Signals {
    /// How the job stands to its memory limits, by the last reading of the controller that decides.
    pub limit: Standing,
    /// The threshold of the last decision by age that had one, even if it was a hold. What was offloaded by it is still far, and
    /// generations keep its pace, while no threshold qualifies for a few periods.
    pub threshold: Option<Age>,
    /// The pages that may still be offloaded, if the last decision by age was for a part of the cold ones.
    pub part: Option<Pages>,
    /// Whether a decision by age was based on accesses.
    pub observed: bool,
    /// Whether no decision by age had a threshold yet, only because the history is too short for one.
    pub short_history: bool,
    /// What the stall target permits in each tier, by the last decision by age.
    pub permitted: Option<Permitted>,
    /// The pressure controller's target and its last stall; `None` if the job has no pressure controller.
    pub stall: Option<Stall>,
    /// Swap-backed memory in DRAM that no process maps and no device is writing, by the last reading.
    pub unmapped: Bytes,
    /// Memory in the slow node, by the last reading.
    pub slow: Bytes,
    /// Estimated accesses to it per second, and the latency of one in nanoseconds; zero if its policy places nothing there.
    pub slow_accesses: (AccessRate, u64),
    /// DRAM of zswap's pool beyond the compressed bytes, as a share of these, by the machine's last reading.
    pub pool_overhead: RatioPpm,
}

/// A job's stall target and what it costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stall {
    /// Tolerated share of time in which some task waits for memory.
    pub target: RatioPpm,
    /// The part of it that page cache takes, in the mean.
    pub page_cache: RatioPpm,
    /// Observed wait per promoted page in microseconds, smoothed; zero until enough pages were promoted.
    pub observed_cost_us: u64,
    /// Whether the last period's stall was at its target.
    pub at_target: bool,
}

impl Stall {
    /// What is left of the target for promotions.
    #[must_use]
    pub fn of_anon(&self) -> RatioPpm {
        policy::refaults::left_of(self.target, self.page_cache)
    }

    /// The wait per promoted page in microseconds: the tier's latency or the observed wait, whichever is longer. Tasks may
    /// wait for each other, and for a device that others keep busy.
    #[must_use]
    pub fn cost_us(&self, tier_us: u32) -> u32 {
        tier_us.max(u32::try_from(self.observed_cost_us).unwrap_or(u32::MAX))
    }
}

/// Promotions and accesses by age.
#[derive(Clone, Debug, Default)]
pub struct Promotions {
    /// Since the last decision.
    fresh: Accesses,
    /// Those that the last decision used. They stay valid until a scan adds newer ones.
    used: Accesses,
}

/// Accesses by the age of the page at the access.
#[derive(Clone, Debug, Default)]
pub struct Accesses {
    /// All of them.
    pub all: AgeCounts,
    /// Those of pages in far memory, whose number is the kernel's.
    pub far: AgeCounts,
    /// The time that they cover.
    pub window: Duration,
}

impl Promotions {
    /// The accesses for the next decision.
    pub fn for_decision(&mut self) -> &Accesses {
        if self.fresh.window > Duration::ZERO {
            self.used = std::mem::take(&mut self.fresh);
        }
        &self.used
    }

    fn promoted(&mut self, ages: &AgeCounts) {
        self.fresh.all.merge(ages);
        self.fresh.far.merge(ages);
    }
}

/// The kernel's counters at one reading.
#[derive(Clone, Copy, Debug)]
struct Readings {
    /// Pages swapped in, ever, as far as the kernel counts them.
    swapped_in: u64,
    /// Anonymous pages that were refaulted, ever.
    refaulted: u64,
    /// File pages that were refaulted, ever.
    refaulted_file: u64,
    /// Pages written to swap devices, ever; if the kernel does not count them per cgroup (before Linux 6.17), those that zswap
    /// wrote back.
    written: u64,
    /// Whether the kernel counts all writes to swap devices.
    counts_writes: bool,
}

impl Counters {
    /// Pages that were promoted, of those that the kernel counted: without the agent's own reads. What is not counted yet is
    /// subtracted from the next reading, and then forgotten: `memory.stat` is at most 2 s behind.
    fn without_own_reads(&mut self, counted: u64) -> u64 {
        let [fresh, late] = self.own_reads;
        let left = counted.saturating_sub(late);
        let own = fresh.min(left);
        self.own_reads = [0, fresh - own];
        left - own
    }
}

impl Job {
    /// A job that was never observed before. The caller restores its history, if it has one.
    #[must_use]
    pub fn new(cgroup: Cgroup, treatment: Treatment, tracker: (ages::Kind, &'static str), config: &Config, now: Now) -> Self {
        Self {
            cgroup,
            treatment,
            tracker,
            seen_at: now.since_boot,
            members: Vec::new(),
            scan: None,
            far: FarAges::default(),
            memory: JobMemory::default(),
            protection: Protected::default(),
            hard_protection: false,
            promotions: Promotions::default(),
            counters: Counters::default(),
            waits: Waits::default(),
            held_until: None,
            signals: Signals::default(),
            tiering: Tiering::new(config, &treatment, now.boot_ms()),
            error: None,
        }
    }

    /// Its processes now; none if it has ended.
    #[must_use]
    pub fn processes(&self) -> Vec<i32> {
        self.cgroup.procs(crate::PROCESSES_MAX).unwrap_or_default()
    }

    /// Its path relative to the cgroup root.
    #[must_use]
    pub fn path(&self) -> &str {
        self.cgroup.name()
    }

    /// Whether a trial wants it without far memory now.
    #[must_use]
    pub fn is_held(&self, now: Duration) -> bool {
        self.held_until.is_some_and(|until| now < until)
    }

    /// Time since the job was first observed.
    #[must_use]
    pub fn age_ms(&self, now: Now) -> Millis {
        Millis::from(now.since_boot.saturating_sub(self.seen_at))
    }

    /// Reads the job's counters and notes what was promoted since the last reading. A part of what it has in swap areas may be on
    /// `ram_disks`.
    ///
    /// # Errors
    /// Any error of the cgroup's files, including `Gone`.
    pub fn observe(&mut self, ram_disks: &RamDisks) -> Result<Pages> {
        let promoted = self.read_counters(ram_disks)?;
        // Their window is that of the scan in which they fall.
        let ages = self.far.promoted(promoted);
        self.promotions.promoted(&ages);
        Ok(promoted)
    }

    /// Takes in a finished scan, and reads the job's counters.
    ///
    /// # Errors
    /// As [`Job::observe`].
    pub fn take_scan(&mut self, scan: Scan, ram_disks: &RamDisks) -> Result<()> {
        let promoted = self.read_counters(ram_disks)?;
        let mut ages = self.far.promoted(promoted);
        self.far.grow_older();
        self.far.reconcile(self.memory.far.to_pages(kernel::page_size()), self.unknown_age());
        if let Some(sample) = &scan.sample {
            self.far.resemble(&sample.far);
            if sample.promoted.total() > Pages::ZERO {
                // How many came back is known from the kernel's counters, at which ages from the sample.
                ages = sample.promoted.scaled(promoted, sample.promoted.total());
            }
        }
        // The accesses of a first scan have no window: they are all accesses since the pages were allocated.
        if scan.window > Duration::ZERO {
            self.promotions.promoted(&ages);
            self.promotions.fresh.all.merge(&scan.accesses);
            self.promotions.fresh.window += scan.window;
        }
        self.scan = Some(scan);
        Ok(())
    }

    /// Reads where the memory is. Returns the pages promoted since the last reading.
    fn read_counters(&mut self, ram_disks: &RamDisks) -> Result<Pages> {
        let page = kernel::page_size();
        let stat = self.cgroup.stat()?;
        // Pages in the swap cache still occupy DRAM although they are charged as swapped.
        let swapped = self.cgroup.swap_current()?.unwrap_or_default();
        let current = self.cgroup.current()?;
        // A page in the swap cache still has its slot, and its copy on a zram device.
        let on_ram_disks = ram_disks.share_of(swapped - stat.zswapped.unwrap_or_default());
        let now = Readings {
            // `zswpin` counts pages from the pool, `pswpin` (per cgroup since Linux 6.17) pages from the device.
            swapped_in: stat.zswpin.unwrap_or(0).saturating_add(stat.pswpin.unwrap_or(0)),
            // Without `pswpin`, refaults replace it. They are less exact: pages evicted long ago are not counted.
            refaulted: if stat.pswpin.is_none() { stat.workingset_refault_anon.unwrap_or(0) } else { 0 },
            refaulted_file: stat.workingset_refault_file.unwrap_or(0),
            written: stat.pswpout.or(stat.zswpwb).unwrap_or(0),
            counts_writes: stat.pswpout.is_some(),
        };
        // Shared memory is swapped, although the kernel accounts it as page cache.
        let cache = stat.file.unwrap_or_default() - stat.shmem.unwrap_or_default();
        let refaulted = self.counters.last.map_or(0, |before| now.refaulted_file.saturating_sub(before.refaulted_file));
        self.counters.page_cache.observe(cache, Pages(refaulted).to_bytes(page));
        let pool = stat.zswap.unwrap_or_default();
        self.signals.unmapped = stat.unmapped() - stat.file_writeback.unwrap_or_default();
        self.memory = JobMemory {
            current,
            far: swapped - stat.swapcached.unwrap_or_default(),
            pool,
            pool_overhead: Bytes(self.signals.pool_overhead.share_of(pool.0)),
            file: self.counters.page_cache.bytes(),
            zram: on_ram_disks.memory,
            zram_stored: on_ram_disks.stored,
            slow: self.signals.slow,
        };
        // A counter that decreases belongs to a recreated cgroup; nothing is counted.
        let promoted = self
            .counters
            .last
            .map_or(0, |before| now.swapped_in.saturating_sub(before.swapped_in).max(now.refaulted.saturating_sub(before.refaulted)));
        let promoted = self.counters.without_own_reads(promoted);
        if let Some(before) = self.counters.last {
            self.tiering.uncharged += ram_disks.worn_by(Pages(now.written.saturating_sub(before.written)).to_bytes(page));
        }
        self.counters.last = Some(now);
        self.counters.outcome.promoted += Pages(promoted);
        self.counters.totals.promoted += Pages(promoted).to_bytes(page);
        Ok(Pages(promoted))
    }

    /// Takes in the machine's memory: how much of the page cache that `all` jobs count as saved fits into `room`, and what the pool
    /// occupies beyond the compressed bytes, as a share of these.
    pub fn take_machine(&mut self, now: Now, (room, all): (Bytes, Bytes), pool_overhead: RatioPpm) {
        let saved = &mut self.counters.page_cache;
        saved.age(now.boot_ms());
        saved.limit(room, all);
        self.signals.pool_overhead = pool_overhead;
        self.memory.file = saved.bytes();
        self.memory.pool_overhead = Bytes(pool_overhead.share_of(self.memory.pool.0));
    }

    /// DRAM that the job would save if all that has been idle for the last threshold, or the part of it that the objective permits,
    /// were offloaded, and what is offloaded already.
    /// `compressed` is what the copies would occupy, as a share. `None` before the first decision that is based on accesses, and
    /// while something is cold and the history is too short for a threshold.
    #[must_use]
    pub fn could_save(&self, compressed: RatioPpm) -> Option<Bytes> {
        let scan = self.scan.as_ref().filter(|_| self.signals.observed)?;
        if self.signals.short_history && scan.resident.at_least(Age(1)) > Pages::ZERO {
            return None;
        }
        let cold = self.signals.threshold.map_or(Pages::ZERO, |age| scan.resident.at_least(age));
        let cold = self.signals.part.map_or(cold, |part| cold.min(part));
        Some(self.saved_with(cold, compressed))
    }

    /// What [`Job::could_save`] can be at most: all that was not accessed between two scans is offloaded. Known before the history
    /// is long enough for a threshold; `None` before the first decision that is based on accesses.
    #[must_use]
    pub fn could_save_at_most(&self, compressed: RatioPpm) -> Option<Bytes> {
        let scan = self.scan.as_ref().filter(|_| self.signals.observed)?;
        Some(self.saved_with(scan.resident.at_least(Age(1)), compressed))
    }

    /// What the job would save if these pages were offloaded as well.
    fn saved_with(&self, cold: Pages, compressed: RatioPpm) -> Bytes {
        let cold = cold.to_bytes(kernel::page_size());
        self.memory.swap_backed() + cold - Bytes(compressed.share_of(cold.0))
    }

    /// The age of far pages that the agent did not offload itself, or whose offload is not accounted yet: the threshold,
    /// because a younger age would hide their promotion from the threshold that offloaded them. `memory.stat` lags behind
    /// `memory.swap.current` by a batch of updates per CPU, so there are such pages at every scan.
    fn unknown_age(&self) -> Age {
        self.signals.threshold.unwrap_or(Age(1))
    }

    /// Accounts pages that the agent chose: how many it asked for, and how much the kernel's count grew.
    pub fn account_offload(&mut self, asked: Pages, mut ages: AgeCounts, offloaded: Pages, threshold: Age) {
        self.counters.outcome.asked += asked;
        self.count_offloaded(offloaded);
        let known = ages.take_youngest(offloaded);
        for (age, pages) in known.iter() {
            self.far.offloaded(age, pages);
        }
        self.far.offloaded(threshold, offloaded - known.total());
    }

    /// Accounts memory that the kernel chose: it is assumed to be the oldest that the job had.
    pub fn account_reclaim(&mut self, offloaded: Pages, file: Bytes) {
        self.count_offloaded(offloaded);
        self.counters.page_cache.reclaimed(file);
        let oldest = self.scan.as_mut().map(|scan| scan.resident.take_oldest(offloaded)).unwrap_or_default();
        for (age, pages) in oldest.iter() {
            self.far.offloaded(age, pages);
        }
        self.far.offloaded(Age(1), offloaded - oldest.total());
    }

    fn count_offloaded(&mut self, offloaded: Pages) {
        self.counters.outcome.offloaded += offloaded;
        self.counters.totals.offloaded += offloaded.to_bytes(kernel::page_size());
    }

    /// Accounts what one request wrote to a device without passing zswap, if the kernel does not count that itself.
    pub fn account_write(&mut self, bytes: Bytes) {
        if self.counters.last.is_some_and(|last| !last.counts_writes) {
            self.tiering.uncharged += bytes;
        }
    }

    /// Notes that the agent itself has read pages from far memory.
    pub fn account_own_reads(&mut self, pages: Pages) {
        self.counters.own_reads[0] = self.counters.own_reads[0].saturating_add(pages.0);
    }

    /// Closes the period that ends now and returns what moved in it.
    pub fn close_period(&mut self, now: Now) -> Outcome {
        let closed_at = self.counters.closed_at.replace(now.since_boot);
        let elapsed_ms = closed_at.map_or(0, |then| units::millis(now.since_boot.saturating_sub(then)));
        Outcome { elapsed_ms: Millis(elapsed_ms), ..std::mem::take(&mut self.counters.outcome) }
    }
}

#[cfg(test)]
mod tests;

//! Sums over the journal records of one job.

use std::collections::VecDeque;

use policy::thresholds::Thresholds;
use policy::veto::Veto;
use units::{Age, Bytes, Millis, PageSize, Pages, UnixMillis};

use super::distribution::{Distribution, Rounding};
use super::spending::{Cold, Share};
use agent::controllers::cold_age::record::Period;
use agent::journal::{JobMemory, JobRecord, PeriodRecord, PressureRecord};

/// The tracker whose resolution is known without a record of it.
const LRU_GEN: &str = "lru_gen";
const LRU_GEN_RESOLVED_TO: Age = Age(2);

/// Units of the records of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) page_size: PageSize,
    pub(super) scan_period_ms: Millis,
    pub(super) thresholds: Thresholds,
}

/// A job's memory during a period, by location.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moment {
    /// DRAM that the job would have used without far memory: resident memory without compressed copies, plus far
    /// memory.
    pub(super) demand: Bytes,
    /// Memory charged to the job: DRAM, including its compressed pool, and slow memory.
    pub(super) memory: Bytes,
    /// DRAM that its compressed copies occupy on zram devices; not charged to the job.
    pub(super) zram: Bytes,
    /// DRAM that the machine saved.
    pub(super) saved: Bytes,
    /// Far memory, uncompressed, and page cache.
    pub(super) far: Bytes,
    /// Of that, page cache.
    pub(super) file: Bytes,
    /// Slow memory, which is accessed directly.
    pub(super) slow: Bytes,
    /// Resident memory of an observed job that its controller would have offloaded; `None` if the job is acted upon or
    /// warming up.
    pub(super) potential: Option<Bytes>,
}

impl Moment {
    pub(super) fn of(memory: &JobMemory) -> Self {
        let (saved, far, slow) = (memory.saved(), memory.far + memory.file, memory.slow);
        let demand = memory.current + far - memory.pool;
        Self { demand, memory: memory.current, zram: memory.zram, saved, far, file: memory.file, slow, potential: None }
    }

    /// Limits page cache to what can have been there.
    pub(super) fn limit_file(&mut self, limit: Bytes) {
        let excess = self.file - limit;
        for bytes in [&mut self.file, &mut self.far, &mut self.saved, &mut self.demand] {
            *bytes = *bytes - excess;
        }
    }

    /// DRAM that the job used, including what it occupies on zram devices.
    pub(super) fn dram(&self) -> Bytes {
        self.memory + self.zram - self.slow
    }

    /// Cold memory by location.
    pub(super) fn cold(&self) -> Cold<Bytes> {
        // Slow memory is resident and may be part of the potential: count it once.
        let potential = self.potential.unwrap_or_default() - self.slow;
        Cold { far: self.far, slow: self.slow, potential }
    }

    /// Combines two samples conservatively: the higher demand, and the lower saving.
    fn worst(self, other: Self) -> Self {
        Self {
            demand: self.demand.max(other.demand),
            memory: self.memory.max(other.memory),
            zram: self.zram.max(other.zram),
            saved: self.saved.min(other.saved),
            far: self.far.min(other.far),
            file: self.file.min(other.file),
            slow: self.slow.min(other.slow),
            potential: self.potential.or(other.potential),
        }
    }
}

/// The largest amount of memory promoted within the reaction time of the agent.
#[derive(Clone, Debug, Default)]
pub(super) struct Burst {
    /// Periods of the window: milliseconds and promoted bytes of each.
    recent: VecDeque<(Millis, u64)>,
    /// Sums over the window, which may contain very many periods; sums of 64-bit numbers do not overflow.
    covered_ms: u128,
    promoted: u128,
    pub(super) largest: Bytes,
    /// The longest reaction time, in milliseconds.
    pub(super) reaction_ms: Millis,
}

impl Burst {
    /// Adds a period of `elapsed_ms` in which `promoted` bytes were promoted.
    ///
    /// The next scan sees promotions up to a scan period later, and the decision after it follows up to a control
    /// period later: the sum is the reaction time. The window consists of the smallest number of whole periods that
    /// covers it.
    pub(super) fn add(&mut self, elapsed_ms: Millis, promoted: Bytes, scan_period_ms: Millis) {
        if elapsed_ms == Millis::ZERO {
            return;
        }
        let reaction_ms = scan_period_ms + elapsed_ms;
        self.reaction_ms = self.reaction_ms.max(reaction_ms);
        self.recent.push_back((elapsed_ms, promoted.0));
        self.covered_ms += u128::from(elapsed_ms.0);
        self.promoted += u128::from(promoted.0);
        while let Some(&(oldest_ms, oldest)) = self.recent.front()
            && self.covered_ms - u128::from(oldest_ms.0) >= u128::from(reaction_ms.0)
        {
            self.covered_ms -= u128::from(oldest_ms.0);
            self.promoted -= u128::from(oldest);
            self.recent.pop_front();
        }
        self.largest = self.largest.max(Bytes(u64::try_from(self.promoted).unwrap_or(u64::MAX)));
    }

    /// Starts over: the next period does not follow the previous one directly.
    fn interrupt(&mut self) {
        self.recent.clear();
        (self.covered_ms, self.promoted) = (0, 0);
    }
}

/// Distributions of one job. Jobs that reuse a name count as one, because they share a limit.
#[derive(Clone, Debug, Default)]
pub(super) struct Account {
    /// Number of cgroups that were created with that name.
    pub(super) starts: u64,
    pub(super) first_unix_ms: Option<UnixMillis>,
    pub(super) last_unix_ms: UnixMillis,
    pub(super) demand: Distribution,
    pub(super) memory: Distribution,
    pub(super) working_set: Distribution,
    pub(super) saved: Distribution,
    pub(super) slow: Distribution,
    pub(super) potential: Distribution,
    /// Promotions per minute, in millionths of the working set.
    pub(super) promotion_rate_ppm: Distribution,
    /// Share of time stalled on memory, in millionths.
    pub(super) stall_ppm: Distribution,
    pub(super) burst: Burst,
    pub(super) cold: Share,
    /// Periods in which the job was at its limit.
    pub(super) at_limit: u64,
    /// Its tracker, by the last record.
    pub(super) tracker: String,
    /// Periods of an observed job whose threshold is above the ages that the tracker distinguished.
    pub(super) unresolved: u64,
    /// Whether its records hold all page cache that was ever reclaimed, as before version 5 of the journal.
    pub(super) sums_file: bool,
    /// The largest memory with far memory and without page cache that was reclaimed.
    peak: Bytes,
    id: Option<u64>,
    warmup_ms: Millis,
    since_period: Option<Moment>,
}

impl Account {
    /// Adds the start or continuation of a controller.
    pub(super) fn begin(&mut self, job: &JobRecord) {
        self.warmup_ms = job.params.warmup_ms;
        self.tracker.clone_from(&job.tracker);
        // The agent was not running, or a new file begins: promotions in between are unknown.
        self.burst.interrupt();
    }

    /// Adds a sample between two periods of the cold-age controller, which every job has.
    pub(super) fn sample(&mut self, memory: &JobMemory) {
        let mut moment = Moment::of(memory);
        let resident = moment.demand - moment.file;
        self.peak = self.peak.max(resident);
        if self.sums_file {
            // Page cache that was reclaimed was resident before: no more of it than the job shrank by.
            moment.limit_file(self.peak - resident);
        }
        self.since_period = Some(self.since_period.map_or(moment, |before| before.worst(moment)));
    }

    /// Adds a period of the pressure controller.
    pub(super) fn pressure(&mut self, period: &PressureRecord) {
        self.sample(&period.memory);
        self.stall_ppm.add(u64::from(period.step.memory_stall.0), Rounding::Up);
    }

    /// Adds a control period. Returns the memory by location during it.
    pub(super) fn period(&mut self, period: &PeriodRecord, terms: &Terms) -> Moment {
        if self.id.replace(period.id) != Some(period.id) {
            self.starts += 1;
            self.since_period = None;
            self.peak = Bytes::ZERO;
            self.burst.interrupt();
        }
        self.first_unix_ms.get_or_insert(period.unix_ms);
        self.last_unix_ms = period.unix_ms;
        self.sample(&period.memory);
        let mut moment = self.since_period.take().unwrap_or_default();
        moment.potential = self.potential_in(period, terms);
        self.demand.add(moment.demand.0, Rounding::Up);
        self.memory.add(moment.memory.0, Rounding::Up);
        self.saved.add(moment.saved.0, Rounding::Down);
        self.slow.add(moment.slow.0, Rounding::Down);
        self.cold.add(moment.cold(), moment.demand);
        self.working_set.add(period.step.working_set.to_bytes(terms.page_size).0, Rounding::Up);
        if let Some(potential) = moment.potential {
            self.potential.add(potential.0, Rounding::Down);
        }
        if let Some(rate) = Period::from(period).promotion_rate_ppm() {
            self.promotion_rate_ppm.add(rate, Rounding::Up);
        }
        self.burst.add(period.outcome.elapsed_ms, period.outcome.promoted.to_bytes(terms.page_size), terms.scan_period_ms);
        self.at_limit += u64::from(period.input.veto == Some(Veto::AtLimit));
        moment
    }

    /// Returns the memory that the controller would have offloaded from an observed job; `None` if its tracker did not
    /// distinguish the threshold's age.
    fn potential_in(&mut self, period: &PeriodRecord, terms: &Terms) -> Option<Bytes> {
        let may_act = period.input.veto != Some(Veto::ObserveOnly);
        if may_act || period.input.job_age_ms < self.warmup_ms || !period.input.resident.fits(&terms.thresholds) {
            return None;
        }
        let resolved_to = period.resolved_to.unwrap_or(if self.tracker == LRU_GEN { LRU_GEN_RESOLVED_TO } else { Age::MAX });
        if period.step.threshold.is_some_and(|threshold| threshold > resolved_to) {
            self.unresolved += 1;
            return None;
        }
        let index = terms.thresholds.as_slice().iter().position(|&age| Some(age) == period.step.threshold);
        Some(index.map_or(Pages::ZERO, |index| period.input.resident.at_or_above(index)).to_bytes(terms.page_size))
    }
}

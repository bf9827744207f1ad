//! What a journal tells of one job.

use std::collections::VecDeque;

use policy::thresholds::Thresholds;
use policy::veto::Veto;
use units::{Bytes, PageSize, Pages};

use super::distribution::{Distribution, Rounding};
use super::spending::{Cold, Share};
use agent::controllers::cold_age::record::Period;
use agent::journal::{JobMemory, JobRecord, PeriodRecord, PressureRecord};

/// What the lines of a file are to be read with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) page_size: PageSize,
    pub(super) scan_period_ms: u64,
    pub(super) thresholds: Thresholds,
}

/// Where a job's memory was during a period.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moment {
    /// DRAM that it would have taken without far memory: everything in DRAM, uncompressed, and what has left it.
    pub(super) demand: Bytes,
    /// What was charged to it: the DRAM that it took, its compressed pool included, and what was in slow memory.
    pub(super) memory: Bytes,
    /// DRAM that the machine got back.
    pub(super) saved: Bytes,
    /// What has left memory, uncompressed.
    pub(super) far: Bytes,
    /// What was in slow memory, which is loaded directly.
    pub(super) slow: Bytes,
    /// Resident memory of an observed job that its controller would have let go; `None` where the job is acted upon,
    /// or warms up.
    pub(super) potential: Option<Bytes>,
}

impl Moment {
    pub(super) fn of(memory: &JobMemory) -> Self {
        let (saved, far, slow) = (memory.saved(), memory.far + memory.file, memory.slow);
        Self { demand: memory.current + far - memory.pool, memory: memory.current, saved, far, slow, potential: None }
    }

    /// DRAM that it took.
    pub(super) fn dram(&self) -> Bytes {
        self.memory - self.slow
    }

    /// What is cold of it, by where that is.
    pub(super) fn cold(&self) -> Cold<Bytes> {
        // What lies in slow memory is resident, and may be part of the potential: it counts once.
        let potential = self.potential.unwrap_or_default() - self.slow;
        Cold { far: self.far, slow: self.slow, potential }
    }

    /// Both at their worst: most needed, least gained.
    fn worst(self, other: Self) -> Self {
        Self {
            demand: self.demand.max(other.demand),
            memory: self.memory.max(other.memory),
            saved: self.saved.min(other.saved),
            far: self.far.min(other.far),
            slow: self.slow.min(other.slow),
            potential: self.potential.or(other.potential),
        }
    }
}

/// The largest amount of memory that came back within the time in which nothing could be done about it.
#[derive(Clone, Debug, Default)]
pub(super) struct Burst {
    /// The periods of the window, each with its milliseconds and the bytes that came back.
    recent: VecDeque<(u64, u64)>,
    /// Both summed over the window: it may hold very many periods. No sum of 64-bit numbers overflows these.
    covered_ms: u128,
    promoted: u128,
    pub(super) largest: Bytes,
    /// The longest reaction time, in milliseconds.
    pub(super) reaction_ms: u64,
}

impl Burst {
    /// A period of `elapsed_ms` in which `promoted` came back.
    ///
    /// What comes back just after a scan is seen by the next one, a scan period later, and answered by the decision after
    /// that, up to a control period later: so long is the reaction time. The window is of whole periods, as few as cover it.
    pub(super) fn add(&mut self, elapsed_ms: u64, promoted: Bytes, scan_period_ms: u64) {
        if elapsed_ms == 0 {
            return;
        }
        let reaction_ms = scan_period_ms.saturating_add(elapsed_ms);
        self.reaction_ms = self.reaction_ms.max(reaction_ms);
        self.recent.push_back((elapsed_ms, promoted.0));
        self.covered_ms += u128::from(elapsed_ms);
        self.promoted += u128::from(promoted.0);
        while let Some(&(oldest_ms, oldest)) = self.recent.front()
            && self.covered_ms - u128::from(oldest_ms) >= u128::from(reaction_ms)
        {
            self.covered_ms -= u128::from(oldest_ms);
            self.promoted -= u128::from(oldest);
            self.recent.pop_front();
        }
        self.largest = self.largest.max(Bytes(u64::try_from(self.promoted).unwrap_or(u64::MAX)));
    }

    /// What comes now does not follow on what was.
    fn interrupt(&mut self) {
        self.recent.clear();
        (self.covered_ms, self.promoted) = (0, 0);
    }
}

/// The distributions of one job. A job that ends and comes back under the same name is one, because its limit is set
/// once for both.
#[derive(Clone, Debug, Default)]
pub(super) struct Account {
    /// How often a cgroup of that name was made.
    pub(super) starts: u64,
    pub(super) first_unix_ms: Option<u64>,
    pub(super) last_unix_ms: u64,
    pub(super) demand: Distribution,
    pub(super) memory: Distribution,
    pub(super) working_set: Distribution,
    pub(super) saved: Distribution,
    pub(super) slow: Distribution,
    pub(super) potential: Distribution,
    /// Promotions per minute, in millionths of the working set.
    pub(super) promotion_rate_ppm: Distribution,
    /// Share of time waited for memory, in millionths.
    pub(super) stall_ppm: Distribution,
    pub(super) burst: Burst,
    pub(super) cold: Share,
    /// Periods in which it had reached its limit.
    pub(super) at_limit: u64,
    id: Option<u64>,
    warmup_ms: u64,
    since_period: Option<Moment>,
}

impl Account {
    /// A controller starts, or goes on.
    pub(super) fn begin(&mut self, job: &JobRecord) {
        self.warmup_ms = job.params.warmup_ms;
        // The agent was away, or a new file begins: what came back in between is not known either way.
        self.burst.interrupt();
    }

    /// A look between two periods of the cold-age controller, which all jobs have.
    pub(super) fn look(&mut self, memory: &JobMemory) {
        let moment = Moment::of(memory);
        self.since_period = Some(self.since_period.map_or(moment, |before| before.worst(moment)));
    }

    /// A period of the pressure controller.
    pub(super) fn pressure(&mut self, period: &PressureRecord) {
        self.look(&period.memory);
        self.stall_ppm.add(u64::from(period.step.memory_stall.0), Rounding::Up);
    }

    /// A control period; returns where memory was during it.
    pub(super) fn period(&mut self, period: &PeriodRecord, terms: &Terms) -> Moment {
        if self.id.replace(period.id) != Some(period.id) {
            self.starts += 1;
            self.since_period = None;
            self.burst.interrupt();
        }
        self.first_unix_ms.get_or_insert(period.unix_ms);
        self.last_unix_ms = period.unix_ms;
        self.look(&period.memory);
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

    /// What the controller would have let go of a job that it may only observe.
    fn potential_in(&self, period: &PeriodRecord, terms: &Terms) -> Option<Bytes> {
        let may_act = period.input.veto != Some(Veto::ObserveOnly);
        if may_act || period.input.job_age_ms < self.warmup_ms || !period.input.resident.fits(&terms.thresholds) {
            return None;
        }
        let index = terms.thresholds.as_slice().iter().position(|&age| Some(age) == period.step.threshold);
        Some(index.map_or(Pages::ZERO, |index| period.input.resident.at_or_above(index)).to_bytes(terms.page_size))
    }
}

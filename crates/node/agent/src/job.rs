//! One job as the agent knows it between scans.

use std::collections::VecDeque;
use std::time::Duration;

use config::Policy;
use kernel::Result;
use kernel::cgroup::{Cgroup, Limit};
use policy::cold_age::{self, Input};
use policy::endurance::{self, Bucket};
use policy::histogram::{AgeCounts, Histogram};
use policy::incompressible;
use policy::pressure;
use policy::thresholds::Thresholds;
use policy::veto::Veto;
use serde::{Deserialize, Serialize};
use units::{Age, Bytes, Pages, RatioPpm, millis};

use crate::actuators::exact::Cursor;
use crate::discover::Treatment;
use crate::far::FarAges;
use crate::journal::{JobMemory, Outcome, PeriodRecord};
use crate::tiers::Placed;
use trackers::ages::{self, Scan};
use trackers::compressibility::Measurement;

pub mod background;
pub mod pressed;
pub mod slowed;

use background::Background;
use pressed::{Amount, Pressed};
use slowed::Slowed;

/// Periods kept in memory for `explain`.
const RECENT_MAX: usize = 64;

/// A job, its controllers and its counters.
#[derive(Debug)]
pub struct Job {
    /// Its cgroup.
    pub cgroup: Cgroup,
    /// How the operator wants it treated.
    pub treatment: Treatment,
    /// What observes it, and why that.
    pub tracker: (ages::Kind, &'static str),
    /// Its pressure controller, where its policy has one.
    pub pressed: Option<Pressed>,
    /// Its background controller, where its policy has one.
    pub background: Option<Background>,
    /// What of it is in a slow memory node, where its policy places memory there.
    pub slowed: Option<Slowed>,
    /// Parameters of its cold-age controller.
    pub params: cold_age::Params,
    /// Memory of its cold-age controller.
    pub state: cold_age::State,
    /// Memory of the compressibility judge.
    pub incompressible: incompressible::State,
    /// Time since boot at which an agent first saw it.
    pub seen_at: Duration,
    /// Ids of its cgroup and those below.
    pub members: Vec<u64>,
    /// Its processes.
    pub pids: Vec<i32>,
    /// Ages of what it has in far memory.
    pub far: FarAges,
    /// The last scan.
    pub scan: Option<Scan>,
    /// The age at and above which its pages are to go out, by the last decision.
    pub threshold: Option<Age>,
    /// What is being offloaded.
    pub plan: Option<Plan>,
    /// What the last offloads became in zswap, until it is judged.
    pub stored: incompressible::Stored,
    /// When its pages were last sampled, in milliseconds since boot.
    pub sampled_at_ms: Option<u64>,
    /// Where its memory is.
    pub memory: JobMemory,
    /// Page cache that was reclaimed from it and has not come back.
    pub file_out: Bytes,
    /// Where its swap-backed memory goes, and why.
    pub tier: Option<Placed>,
    /// What its cold pages compress to, by the last sample.
    pub compressed: Option<RatioPpm>,
    /// The same by each family of compressors.
    pub measured: Option<Measurement>,
    /// What it may still write to swap devices.
    pub writes: Bucket,
    /// Bytes that it wrote to swap devices since the agent started.
    pub written: Bytes,
    /// Of these, what is not taken from `writes` yet.
    pub unbooked: Bytes,
    /// What our steps have put into the swap cache and nobody was asked to free yet.
    pub cached_out: Bytes,
    /// What went wrong with it last, so that it is told once.
    pub trouble: Option<String>,
    /// Running totals.
    pub totals: Totals,
    /// The last periods, oldest first.
    pub recent: VecDeque<ClosedPeriod>,
    promotions: Promotions,
    outcome: Outcome,
    stepped_at: Option<Duration>,
    counters: Option<Counters>,
    max_events: Option<u64>,
}

/// What a job's controllers are set to.
#[derive(Clone, Copy, Debug)]
pub struct Parameters {
    /// Of the cold-age controller.
    pub cold_age: cold_age::Params,
    /// Of the pressure controller, where the policy has one.
    pub pressure: pressure::Params,
    /// Of the background controller, where the policy has one.
    pub background: policy::background::Params,
    /// What the job may write to swap devices.
    pub writes: endurance::Params,
}

/// Pages to offload until the next decision.
#[derive(Clone, Debug)]
pub struct Plan {
    /// At and above this age.
    pub threshold: Age,
    /// Pages left to ask for.
    pub left: Pages,
    /// How far the exact actuator has come.
    pub cursor: Cursor,
}

/// Monotonic totals since the agent started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Bytes that went to far memory.
    pub offloaded: Bytes,
    /// Bytes that came back.
    pub promoted: Bytes,
    /// Steady control periods: far memory on, promotion rate known.
    pub periods: u64,
    /// Of these, periods whose promotion rate was above the objective.
    pub slo_violations: u64,
}

/// The promotion histogram that the next decision will read.
#[derive(Clone, Debug, Default)]
struct Promotions {
    /// Accesses and their window since the last decision.
    fresh: (AgeCounts, Duration),
    /// Those that the last decision read: they stand until a scan brings newer ones.
    read: (AgeCounts, Duration),
}

#[derive(Clone, Copy, Debug)]
struct Counters {
    /// Pages that came back from swap, ever, as far as the kernel counts them.
    swapped_in: u64,
    /// Anonymous pages that were missed after they had gone, ever.
    refaulted: u64,
    /// Pages written to swap devices, ever; where the kernel does not count them per cgroup (before Linux 6.17), those that
    /// zswap wrote back.
    written: u64,
    /// Whether the kernel counts all of them.
    counts_writes: bool,
}

impl Job {
    /// A job that was never seen before, or whose history is put in by the caller.
    #[must_use]
    pub fn new(cgroup: Cgroup, treatment: Treatment, tracker: (ages::Kind, &'static str), params: &Parameters, now: Duration) -> Self {
        let pressed = matches!(treatment.policy, Policy::Pressure | Policy::Auto).then(|| Pressed::new(params.pressure));
        let background = matches!(treatment.policy, Policy::Background | Policy::Auto).then(|| Background::new(params.background));
        Self {
            cgroup,
            treatment,
            tracker,
            pressed,
            background,
            slowed: (treatment.policy == Policy::Slowdown).then(Slowed::default),
            params: params.cold_age,
            state: cold_age::State::default(),
            incompressible: incompressible::State::default(),
            seen_at: now,
            members: Vec::new(),
            pids: Vec::new(),
            far: FarAges::default(),
            scan: None,
            threshold: None,
            plan: None,
            stored: incompressible::Stored::default(),
            sampled_at_ms: None,
            memory: JobMemory::default(),
            file_out: Bytes::ZERO,
            tier: None,
            compressed: None,
            measured: None,
            writes: Bucket::full(&params.writes, millis(now)),
            written: Bytes::ZERO,
            unbooked: Bytes::ZERO,
            cached_out: Bytes::ZERO,
            trouble: None,
            totals: Totals::default(),
            recent: VecDeque::new(),
            promotions: Promotions::default(),
            outcome: Outcome::default(),
            stepped_at: None,
            counters: None,
            max_events: None,
        }
    }

    /// Its path relative to the cgroup root.
    #[must_use]
    pub fn path(&self) -> &str {
        self.cgroup.name()
    }

    /// Reads where its memory is and what came back since the last reading.
    ///
    /// # Errors
    /// Any error of the cgroup's files, `Gone` among them.
    pub fn read_counters(&mut self) -> Result<Pages> {
        let page = kernel::page_size();
        let stat = self.cgroup.stat()?;
        // Pages in the swap cache still occupy DRAM although they are charged as swapped.
        let swapped = self.cgroup.swap_current()?.unwrap_or_default();
        self.memory = JobMemory {
            current: self.cgroup.current()?,
            far: swapped - stat.swapcached.unwrap_or_default(),
            pool: stat.zswap.unwrap_or_default(),
            file: self.file_out,
            slow: self.slowed.as_ref().map(|slowed| slowed.slow).unwrap_or_default(),
        };
        let now = Counters {
            // `zswpin` counts pages from the pool, `pswpin` (Linux 6.17 and up, per cgroup) pages from the device.
            swapped_in: stat.zswpin.unwrap_or(0).saturating_add(stat.pswpin.unwrap_or(0)),
            // Where the device is not counted, refaults stand in: less exact, for they miss what went out long ago.
            refaulted: if stat.pswpin.is_none() { stat.workingset_refault_anon.unwrap_or(0) } else { 0 },
            written: stat.pswpout.or(stat.zswpwb).unwrap_or(0),
            counts_writes: stat.pswpout.is_some(),
        };
        // A counter that goes back is another job's: start over.
        let came_back = self
            .counters
            .map_or(0, |before| now.swapped_in.saturating_sub(before.swapped_in).max(now.refaulted.saturating_sub(before.refaulted)));
        if let Some(before) = self.counters {
            self.unbooked += Pages(now.written.saturating_sub(before.written)).to_bytes(page);
        }
        self.counters = Some(now);
        self.outcome.promoted += Pages(came_back);
        self.totals.promoted += Pages(came_back).to_bytes(page);
        Ok(Pages(came_back))
    }

    /// Counts pages that came back, by age, in the promotion histogram that the next decision reads.
    ///
    /// Their window is that of the scan in which they fall.
    pub fn note_promotions(&mut self, ages: &AgeCounts) {
        self.promotions.fresh.0.merge(ages);
    }

    /// Takes in a finished scan.
    ///
    /// # Errors
    /// As [`Job::read_counters`].
    pub fn take_scan(&mut self, scan: Scan) -> Result<()> {
        let came_back = self.read_counters()?;
        let ages = self.far.promoted(came_back);
        self.far.grow_older();
        self.far.reconcile(self.memory.far.to_pages(kernel::page_size()), self.unknown_age());
        let (counts, window) = &mut self.promotions.fresh;
        // What a first scan finds accessed has no window: it is everything since the pages were made.
        if scan.window > Duration::ZERO {
            counts.merge(&scan.accesses);
            counts.merge(&ages);
            *window += scan.window;
        }
        self.scan = Some(scan);
        Ok(())
    }

    /// The age of far pages that the ledger does not know: the threshold, because most are ours, and a young age would
    /// hide their return from the very threshold that let them go. `memory.stat` lags behind `memory.swap.current` by up
    /// to a batch of updates per CPU, so that there are some at every scan.
    fn unknown_age(&self) -> Age {
        self.recent.back().and_then(|period| period.step.threshold).unwrap_or(Age(1))
    }

    /// Takes note of an offload: how much was asked for, and how much the kernel's own count grew.
    pub fn took_out(&mut self, asked: Pages, mut ages: AgeCounts, went_out: Pages, threshold: Age) {
        let page = kernel::page_size();
        self.outcome.asked += asked;
        self.outcome.offloaded += went_out;
        self.totals.offloaded += went_out.to_bytes(page);
        let known = ages.take_youngest(went_out);
        for (age, pages) in known.iter() {
            self.far.offloaded(age, pages);
        }
        self.far.offloaded(threshold, went_out - known.total());
    }

    /// Takes note of what one of our requests wrote to a device past zswap, where the kernel does not count that itself.
    pub fn wrote(&mut self, bytes: Bytes) {
        if self.counters.is_some_and(|counters| !counters.counts_writes) {
            self.unbooked += bytes;
        }
    }

    /// Gives up what was to go to a device, until the next decision: what may be written is spent.
    pub fn drop_anon_plans(&mut self) {
        self.plan = None;
        if let Some(pressed) = &mut self.pressed {
            pressed.plan = pressed.plan.map(|plan| Amount { anon: Bytes::ZERO, ..plan }).filter(|plan| plan.total() > Bytes::ZERO);
        }
    }

    /// Takes note of memory that the kernel chose and reclaimed: it is taken for the oldest that the job had.
    pub fn was_reclaimed(&mut self, went_out: Pages, file: Bytes) {
        self.outcome.offloaded += went_out;
        self.totals.offloaded += went_out.to_bytes(kernel::page_size());
        self.file_out += file;
        let oldest = self.scan.as_mut().map(|scan| scan.resident.take_oldest(went_out)).unwrap_or_default();
        for (age, pages) in oldest.iter() {
            self.far.offloaded(age, pages);
        }
        self.far.offloaded(Age(1), went_out - oldest.total());
    }

    /// What the controller is to see of this period. With a stall target and the cost of a promotion in microseconds,
    /// these say how many may come back, instead of the promotion rate's objective.
    #[must_use]
    pub fn input(&mut self, thresholds: &Thresholds, now: Duration, stall_target: Option<(RatioPpm, u32)>, veto: Option<Veto>) -> Input {
        if self.promotions.fresh.1 > Duration::ZERO {
            self.promotions.read = std::mem::take(&mut self.promotions.fresh);
        }
        let (promotions, window) = &self.promotions.read;
        let window_ms = millis(*window);
        let resident = self.scan.as_ref().map(|scan| scan.resident.clone()).unwrap_or_default();
        let mut cold = resident.clone();
        cold.merge(self.far.counts());
        Input {
            job_age_ms: millis(now.saturating_sub(self.seen_at)),
            window_ms,
            cold: Histogram::from_counts(&cold, thresholds),
            resident: Histogram::from_counts(&resident, thresholds),
            promotions: Histogram::from_counts(promotions, thresholds),
            allowance: stall_target.map(|(target, cost_us)| cold_age::allowance(target, window_ms, cost_us)),
            veto,
        }
    }

    /// Closes the period that ends now and returns what happened in it.
    pub fn close_period(&mut self, now: Duration) -> Outcome {
        let elapsed_ms = self.stepped_at.map_or(0, |then| millis(now.saturating_sub(then)));
        self.stepped_at = Some(now);
        Outcome { elapsed_ms, ..std::mem::take(&mut self.outcome) }
    }

    /// Remembers a closed period, and counts it against the objective once far memory is on. Returns its promotion rate and
    /// that objective where it was counted.
    pub fn remember(&mut self, period: ClosedPeriod) -> Option<(u64, u64)> {
        let mut counted = None;
        // A period in which everything came back ends without far memory, and is the worst of all.
        let far_memory_on = self.memory.far > Bytes::ZERO || period.outcome.promoted > Pages::ZERO;
        if let Some(rate) = period.promotion_rate_ppm()
            && far_memory_on
            && period.job_age_ms >= self.params.warmup_ms
        {
            self.totals.periods += 1;
            let objective = self.objective_ppm(&period);
            self.totals.slo_violations += u64::from(rate > objective);
            counted = Some((rate, objective));
        }
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(period);
        counted
    }

    /// Puts other parameters in force. What the controllers have learned stays.
    pub fn set(&mut self, params: &Parameters) {
        self.params = params.cold_age;
        if let Some(pressed) = &mut self.pressed {
            pressed.params = params.pressure;
        }
        if let Some(background) = &mut self.background {
            background.params = params.background;
        }
    }

    /// Promotions per minute that a period allowed, in millionths of the working set: by the rate's objective, or by the
    /// stall target and the tier's cost.
    #[must_use]
    pub fn objective_ppm(&self, period: &ClosedPeriod) -> u64 {
        match self.treatment.policy {
            Policy::Auto => per_minute_ppm(period.step.promotions_max, period.step.working_set, period.window_ms).unwrap_or(0),
            _ => u64::from(self.params.promotion_rate_max.0),
        }
    }

    /// Whether it has reached its memory limit since the last call, or stands within 1 % of it.
    ///
    /// # Errors
    /// Any error of the cgroup's files.
    pub fn at_limit(&mut self) -> Result<bool> {
        let max_events = self.cgroup.events()?.max;
        let hit = self.max_events.is_some_and(|before| max_events > before);
        self.max_events = Some(max_events);
        let close = match self.cgroup.effective_limit()? {
            Limit::Max => false,
            Limit::Bytes(limit) => self.memory.current.0 >= limit.0 - limit.0 / 100,
        };
        Ok(hit || close)
    }
}

/// What people are shown of a period that has passed. Its histograms are in the journal alone: kept for every job,
/// they would be most of the agent's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClosedPeriod {
    /// Milliseconds since the epoch.
    pub unix_ms: u64,
    /// Milliseconds since the job was first observed.
    pub job_age_ms: u64,
    /// Milliseconds of accesses that the decision rests on.
    pub window_ms: u64,
    /// What was decided.
    pub step: cold_age::Step,
    /// What was done and what came back since the period before.
    pub outcome: Outcome,
}

impl From<&PeriodRecord> for ClosedPeriod {
    fn from(period: &PeriodRecord) -> Self {
        Self {
            unix_ms: period.unix_ms,
            job_age_ms: period.input.job_age_ms,
            window_ms: period.input.window_ms,
            step: period.step,
            outcome: period.outcome,
        }
    }
}

impl ClosedPeriod {
    /// The service level indicator: far pages accessed per minute, in millionths of the working set; `None` where
    /// there is no working set or no time to divide by.
    #[must_use]
    pub fn promotion_rate_ppm(&self) -> Option<u64> {
        per_minute_ppm(self.outcome.promoted, self.step.working_set, self.outcome.elapsed_ms)
    }
}

/// Pages per minute in millionths of a working set; `None` where there is none, or no time.
fn per_minute_ppm(pages: Pages, working_set: Pages, time_ms: u64) -> Option<u64> {
    let per = u128::from(working_set.0) * u128::from(time_ms);
    let scaled = u128::from(pages.0) * 60_000 * 1_000_000;
    scaled.checked_div(per).map(|ppm| u64::try_from(ppm).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;

//! What people and machines may see of the agent: a copy, made after each round.

use std::sync::{Arc, PoisonError, RwLock};

use config::{Config, Kind, Policy};
use policy::background::{self, Hint};
use policy::balance::Lean;
use policy::cold_age::{Decision, Hold, Reason};
use policy::pressure;
use policy::slowdown;
use policy::veto::Veto;
use serde::Serialize;
use units::{AccessRate, Age, Bytes, RatioPpm};

use crate::actuators::compact::Task;
use crate::following::FollowingView;
use crate::job::background::{Background, BackgroundPeriod};
use crate::job::pressed::PressedPeriod;
use crate::job::slowed::SlowPeriod;
use crate::job::{ClosedPeriod, Job, Totals};
use crate::machine::Machine;
use crate::node::{Costs, Options};
use crate::slow::SlowNode;
use crate::tiers::TiersView;

/// The whole agent.
#[derive(Clone, Debug, Default, Serialize)]
pub struct View {
    /// The program's version.
    pub version: &'static str,
    /// The process.
    pub pid: u32,
    /// The kernel's release.
    pub kernel: String,
    /// Whether it only looks.
    pub dry_run: bool,
    /// Seconds from scan to scan.
    pub scan_period_seconds: f64,
    /// The machine.
    pub machine: Machine,
    /// Its tiers.
    pub tiers: TiersView,
    /// The slow memory node, where a job has use for one.
    pub slow: Option<SlowNode>,
    /// Why nothing can be placed there.
    pub slow_trouble: Option<String>,
    /// The rollout that the machine follows, where it follows one.
    pub rollout: Option<FollowingView>,
    /// What the agent itself costs.
    pub costs: Costs,
    /// DRAM that all jobs together gave back, minus the agent's own memory; negative while it costs more.
    pub saved_bytes: i64,
    /// What the jobs of each kind hold and gave back (001 figures 9 and 10).
    pub totals_by_kind: [KindTotals; Kind::ALL.len()],
    /// Its jobs, by path.
    pub jobs: Vec<JobView>,
}

/// Where the loop puts each new view for other threads. Readers take the one of the moment and hold no lock while they
/// use it, so that a slow scrape or client never keeps the loop waiting.
#[derive(Clone, Debug, Default)]
pub struct Published(Arc<RwLock<Arc<View>>>);

impl Published {
    /// The view of the moment.
    #[must_use]
    pub fn get(&self) -> Arc<View> {
        // Nobody panics while exchanging two pointers; were it so, either view is whole.
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts a new view in place of the last one.
    pub fn set(&self, view: View) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(view);
    }
}

/// All jobs of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct KindTotals {
    /// The kind.
    pub kind: &'static str,
    /// How many jobs.
    pub jobs: usize,
    /// Everything charged to them.
    pub memory_bytes: Bytes,
    /// DRAM that they gave back.
    pub saved_bytes: Bytes,
    /// `memory_bytes` as a share of the machine's memory.
    pub memory_ratio: f64,
    /// `saved_bytes` as a share of the machine's memory.
    pub saved_ratio: f64,
}

/// One job.
#[derive(Clone, Debug, Serialize)]
pub struct JobView {
    /// Its cgroup relative to the cgroup root.
    pub job: String,
    /// How it is treated.
    pub class: &'static str,
    /// What it is for.
    pub kind: &'static str,
    /// What decides for it.
    pub policy: &'static str,
    /// Where its swap-backed memory goes.
    pub tier: Option<&'static str>,
    /// Why there, or why nowhere.
    pub tier_reason: &'static str,
    /// Whether it is in use, in an operator's word, if there is one.
    pub hint: Option<Hint>,
    /// What its sampled cold pages compress to, as a share of their size.
    pub compressed_ratio: Option<f64>,
    /// That another compressor would save much more of it, if one would, and how to switch.
    pub advice: Option<String>,
    /// Bytes that it wrote to swap devices.
    pub written_bytes: Bytes,
    /// What observes it.
    pub tracker: &'static str,
    /// Why that tracker.
    pub tracker_reason: &'static str,
    /// Time since boot of the last scan; `None` before the first.
    pub scanned_at_seconds: Option<f64>,
    /// Ages beyond this one, in seconds, are the tracker's estimate.
    pub resolved_to_seconds: f64,
    /// What the tracker could not see.
    pub remark: Option<String>,
    /// Everything charged to it.
    pub memory_bytes: Bytes,
    /// Swap-backed bytes accessed within the minimum cold age.
    pub working_set_bytes: Bytes,
    /// Swap-backed bytes idle for the minimum cold age or longer, far ones included.
    pub cold_bytes: Bytes,
    /// Cold file bytes, which are not acted upon.
    pub cold_file_bytes: Bytes,
    /// Bytes in far memory, uncompressed.
    pub far_bytes: Bytes,
    /// DRAM that they occupy compressed.
    pub pool_bytes: Bytes,
    /// Page cache that was reclaimed and has not come back.
    pub file_out_bytes: Bytes,
    /// What is in a slow memory node.
    pub slow_bytes: Bytes,
    /// Accesses per second to that, by the last period's estimate; `None` where the policy places nothing there.
    pub slow_rate_per_second: Option<f64>,
    /// As many as its tolerable slowdown allows.
    pub slow_budget_per_second: Option<f64>,
    /// DRAM given back: far memory without what it takes compressed, page cache, and what is in a slow memory node.
    pub saved_bytes: Bytes,
    /// Share of the last period of `pressure.period` in which some task waited for memory; `None` where no policy asks.
    pub stall_ratio: Option<f64>,
    /// The same for I/O.
    pub io_stall_ratio: Option<f64>,
    /// What the pages that came back cost by the tier's measured latency, as a share of that period.
    pub refault_stall_ratio: Option<f64>,
    /// `far_bytes / cold_bytes` (000 section 6.1).
    pub coverage_ratio: f64,
    /// The cold-age threshold in seconds; `None` where none qualifies.
    pub threshold_seconds: Option<f64>,
    /// The last decision.
    pub decision: Option<Decision>,
    /// The same in words.
    pub explanation: String,
    /// Promotions per minute in the last period, as a ratio of the working set.
    pub promotion_rate_ratio_per_min: Option<f64>,
    /// The objective for it.
    pub slo_ratio_per_min: f64,
    /// Monotonic totals.
    pub totals: Totals,
    /// Swap-backed bytes by threshold: of each age in seconds and older, how many.
    pub cold_age: Vec<(f64, Bytes)>,
    /// The last periods, oldest first; only `explain` shows them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recent: Vec<ClosedPeriod>,
    /// The same for pressure-driven offloading.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recent_pressure: Vec<PressedPeriod>,
    /// The same for a job that may go to the background.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recent_background: Vec<BackgroundPeriod>,
    /// The same for a job whose memory may live in a slow node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recent_slow: Vec<SlowPeriod>,
}

impl View {
    /// Copies what is to be seen.
    pub fn of<'a>(
        config: &Config,
        options: &Options,
        machine: &Machine,
        tiers: TiersView,
        costs: Costs,
        kernel: &str,
        jobs: impl Iterator<Item = &'a Job>,
    ) -> Self {
        let period = config.agent.scan_period.as_secs_f64();
        let jobs: Vec<_> = jobs.map(|job| JobView::of(job, machine, period)).collect();
        let saved: u64 = jobs.iter().map(|job| job.saved_bytes.0).sum();
        let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        Self {
            version: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
            kernel: kernel.to_owned(),
            dry_run: options.dry_run,
            scan_period_seconds: period,
            machine: machine.clone(),
            tiers,
            slow: None,
            slow_trouble: None,
            rollout: None,
            costs,
            saved_bytes: signed(saved) - signed(costs.rss_bytes.0),
            totals_by_kind: totals_by_kind(&jobs, machine.total_bytes),
            jobs,
        }
    }

    /// A copy without the jobs' last periods, by far the longest part.
    #[must_use]
    pub fn brief(&self) -> Self {
        let brief = |job: &JobView| JobView {
            job: job.job.clone(),
            advice: job.advice.clone(),
            remark: job.remark.clone(),
            explanation: job.explanation.clone(),
            cold_age: job.cold_age.clone(),
            recent: Vec::new(),
            recent_pressure: Vec::new(),
            recent_background: Vec::new(),
            recent_slow: Vec::new(),
            ..*job
        };
        Self {
            kernel: self.kernel.clone(),
            machine: self.machine.clone(),
            slow_trouble: self.slow_trouble.clone(),
            rollout: self.rollout.clone(),
            jobs: self.jobs.iter().map(brief).collect(),
            ..*self
        }
    }
}

/// Sums of the jobs of each kind, for a machine with so much memory.
fn totals_by_kind(jobs: &[JobView], machine: Bytes) -> [KindTotals; Kind::ALL.len()] {
    let share = |bytes: Bytes| RatioPpm::of(bytes.0, machine.0).map_or(0.0, RatioPpm::as_f64);
    let mut totals = [KindTotals::default(); Kind::ALL.len()];
    for (total, kind) in totals.iter_mut().zip(Kind::NAMES) {
        total.kind = kind;
        for job in jobs.iter().filter(|job| job.kind == *kind) {
            total.jobs += 1;
            total.memory_bytes += job.memory_bytes;
            total.saved_bytes += job.saved_bytes;
        }
        total.memory_ratio = share(total.memory_bytes);
        total.saved_ratio = share(total.saved_bytes);
    }
    totals
}

impl JobView {
    fn of(job: &Job, machine: &Machine, period: f64) -> Self {
        let page = kernel::page_size();
        let scan = job.scan.clone().unwrap_or_default();
        let last = job.recent.back();
        let pressed = job.pressed.as_ref().and_then(|pressed| pressed.recent.back());
        let slowed = job.slowed.as_ref().and_then(|slowed| slowed.recent.back());
        let hint = job.background.as_ref().and_then(|background| background.hint);
        let tier = if job.slowed.is_some() { (Some("slow"), IN_SLOW) } else { crate::tiers::words(job.tier) };
        let mut cold = scan.resident.clone();
        cold.merge(job.far.counts());
        let cold_bytes = cold.at_least(Age(1)).to_bytes(page);
        let far = job.memory.far;
        let threshold = last.and_then(|period| period.step.threshold);
        let thresholds = [1u8, 2, 4, 8, 16, 30, 61, 125, 255];
        Self {
            job: job.path().to_owned(),
            class: job.treatment.class.as_str(),
            kind: job.treatment.kind.as_str(),
            policy: job.treatment.policy.as_str(),
            tier: tier.0,
            tier_reason: tier.1,
            hint,
            compressed_ratio: job.compressed.map(RatioPpm::as_f64),
            advice: job.measured.filter(|_| machine.zswap_enabled).and_then(|measured| measured.advice(&machine.compressor)),
            written_bytes: job.written,
            tracker: job.tracker.0.as_str(),
            tracker_reason: job.tracker.1,
            scanned_at_seconds: job.scan.as_ref().map(|scan| scan.taken_at.as_secs_f64()),
            resolved_to_seconds: f64::from(scan.resolved_to.0) * period,
            remark: scan.remark,
            memory_bytes: job.memory.current,
            working_set_bytes: cold.at(Age(0)).to_bytes(page),
            cold_bytes,
            cold_file_bytes: scan.file.at_least(Age(1)).to_bytes(page),
            far_bytes: far,
            pool_bytes: job.memory.pool,
            file_out_bytes: job.memory.file,
            slow_bytes: job.memory.slow,
            slow_rate_per_second: slowed.map(|period| period.step.rate.as_f64()),
            slow_budget_per_second: slowed.map(|period| period.step.budget.as_f64()),
            saved_bytes: job.memory.saved(),
            stall_ratio: pressed.map(|period| period.step.memory_stall.as_f64()),
            io_stall_ratio: pressed.map(|period| period.step.io_stall.as_f64()),
            refault_stall_ratio: pressed.map(|period| period.step.refault_stall.as_f64()),
            coverage_ratio: RatioPpm::of(far.0, cold_bytes.0).map_or(0.0, |ratio| ratio.as_f64().min(1.0)),
            threshold_seconds: threshold.map(|age| f64::from(age.0) * period),
            decision: last.map(|period| period.step.decision),
            explanation: words(job, last, pressed, period),
            #[expect(clippy::cast_precision_loss, reason = "shown to people")]
            promotion_rate_ratio_per_min: last.and_then(ClosedPeriod::promotion_rate_ppm).map(|ppm| ppm as f64 / 1e6),
            #[expect(clippy::cast_precision_loss, reason = "shown to people")]
            slo_ratio_per_min: last.map_or(job.params.promotion_rate_max.as_f64(), |last| job.objective_ppm(last) as f64 / 1e6),
            totals: job.totals,
            cold_age: thresholds.iter().map(|&age| (f64::from(age) * period, cold.at_least(Age(age)).to_bytes(page))).collect(),
            recent: job.recent.iter().copied().collect(),
            recent_pressure: job.pressed.iter().flat_map(|pressed| pressed.recent.iter().copied()).collect(),
            recent_background: job.background.iter().flat_map(|background| background.recent.iter().copied()).collect(),
            recent_slow: job.slowed.iter().flat_map(|slowed| slowed.recent.iter().copied()).collect(),
        }
    }
}

const IN_SLOW: &str = "its policy places memory in a slow node, which loads and stores reach directly";

const IN_USE: background::Decision = background::Decision::Nothing { reason: background::Reason::Foreground };

/// What the job's policy last decided, in words.
fn words(job: &Job, last: Option<&ClosedPeriod>, pressed: Option<&PressedPeriod>, period: f64) -> String {
    let cold_age = last.map(|last| explain(last, period));
    let pressure = pressed.map(explain_pressure);
    let background = job.background.as_ref().and_then(at_present);
    // That it is in use goes without saying where there is more to say.
    let in_use = job.background.iter().any(|background| background.recent.back().is_some_and(|period| period.decision == IN_USE));
    let said: Vec<String> = match job.treatment.policy {
        Policy::ColdAge => cold_age.into_iter().collect(),
        Policy::Pressure => pressure.into_iter().collect(),
        Policy::Background => background.into_iter().collect(),
        Policy::Slowdown => job.slowed.iter().filter_map(|slowed| slowed.recent.back()).map(explain_slow).collect(),
        Policy::Auto => cold_age.into_iter().chain(pressure).chain(background.filter(|_| !in_use)).collect(),
    };
    if said.is_empty() { "no control period has passed yet".to_owned() } else { said.join("; and ") }
}

/// What is being done about a job that may go to the background, or else what was last decided.
fn at_present(background: &Background) -> Option<String> {
    let last = background.recent.back().map(explain_background);
    let Some(plan) = &background.plan else { return last };
    Some(match plan.task {
        _ if plan.paused => format!("compaction waits after {}", plan.done.asked),
        Task::Compact => format!("being compacted, {} so far", plan.done.asked),
        Task::Prefetch => format!("being prefetched, {} so far", plan.done.prefetched),
    })
}

/// A decision about a job that may go to the background, in words, with the numbers that it rests on.
#[must_use]
pub fn explain_background(period: &BackgroundPeriod) -> String {
    use background::{Decision, Reason};
    match period.decision {
        Decision::Compact => "compact: it has settled in the background".to_owned(),
        Decision::Prefetch => "prefetch: it is back in the foreground".to_owned(),
        Decision::Nothing { reason } => match reason {
            Reason::Foreground => "not compacted: it is in the foreground".to_owned(),
            Reason::Settling => "not compacted yet: it has just gone to the background".to_owned(),
            Reason::MachineUnderPressure => format!(
                "compaction put off: tasks of the machine waited {} of the time for memory, and {:.1}% of it is available",
                period.machine_stall,
                period.available.as_f64() * 100.0
            ),
            Reason::Done => "in the background, compacted once".to_owned(),
            Reason::Vetoed(veto) => format!("not compacted: {}", veto_words(veto)),
        },
    }
}

/// A decision about slow memory in words, with the numbers that it rests on.
#[must_use]
pub fn explain_slow(period: &SlowPeriod) -> String {
    let SlowPeriod { step, slow, memory, moved, .. } = period;
    let rate = |rate: AccessRate| format!("{:.0}", rate.as_f64());
    let share = RatioPpm::of(slow.0, memory.0).unwrap_or_default();
    let mut text = format!(
        "{slow} of {memory} in slow memory ({share}), accessed {} times a second, {} at most by what was seen, {} allowed",
        rate(step.rate),
        rate(step.upper),
        rate(step.budget)
    );
    if step.home > 0 {
        text += &format!("; {} blocks to come home", step.home);
    }
    match step.hold {
        Some(hold) => text += &format!("; no more placed: {}", slow_hold_words(hold)),
        None => text += &format!("; {} blocks more to go there", step.place),
    }
    for (bytes, why) in [
        (moved.no_room, "could not be moved for want of room"),
        (moved.pinned, "could not be moved, being locked, shared or in use by a device"),
    ] {
        if bytes > Bytes::ZERO {
            text += &format!("; {bytes} {why}");
        }
    }
    text
}

/// A decision of the pressure controller in words, with the numbers that it rests on.
#[must_use]
pub fn explain_pressure(period: &PressedPeriod) -> String {
    use pressure::{Decision, Hold};
    let step = &period.step;
    let lean = match period.lean {
        Lean::FileOnly => "page cache only".to_owned(),
        Lean::Swappiness(swappiness) => format!("swappiness {swappiness}"),
    };
    let stalls = format!("stalled {} for memory, {} for I/O, {} by what came back", step.memory_stall, step.io_stall, step.refault_stall);
    // A stall beyond the target is paid off over the periods after it, whose own may be none.
    let now_and_before = format!("{stalls}, with what earlier periods were over");
    match step.decision {
        Decision::Reclaim { bytes } => format!("reclaim {bytes}, {lean}: {stalls}"),
        Decision::Hold { reason } => match reason {
            Hold::NoHistory => "hold: no period has passed to compare with".to_owned(),
            Hold::CounterWentBack => "hold: a counter of the kernel went back".to_owned(),
            Hold::WarmingUp => "hold: seen for too short a time".to_owned(),
            Hold::MemoryStall => format!("hold: {now_and_before}: waiting for memory is at its target"),
            Hold::IoStall => format!("hold: {now_and_before}: waiting for I/O is at its target"),
            Hold::Refaults => format!("hold: {now_and_before}: what came back costs as much as the target allows"),
            Hold::AtFloor => "hold: as small as it may become".to_owned(),
            Hold::Vetoed(veto) => format!("hold: {}", veto_words(veto)),
        },
    }
}

/// A decision in words, with the numbers that it rests on.
#[must_use]
pub fn explain(period: &ClosedPeriod, scan_period_seconds: f64) -> String {
    let page = kernel::page_size();
    let step = &period.step;
    let seconds = |age: Age| format!("{} s", f64::from(age.0) * scan_period_seconds);
    let best = step.best.map_or_else(|| "no threshold".to_owned(), seconds);
    match step.decision {
        Decision::Offload { threshold, pages, reason } => {
            let rule = match reason {
                Reason::Percentile => "the percentile of past best thresholds",
                Reason::Spike => "the last period's best, above the percentile: promotions spiked",
            };
            format!("offload {} idle for {} or longer: {rule}; this period's best was {best}", pages.to_bytes(page), seconds(threshold))
        }
        Decision::Hold { reason } => match reason {
            Hold::NoHistory => "hold: no scan has covered this job yet".to_owned(),
            Hold::WarmingUp => format!("hold: warming up, seen for {} s; the best so far is {best}", period.job_age_ms / 1000),
            Hold::NoThresholdQualifies => "hold: even the oldest pages come back more often than the objective allows".to_owned(),
            Hold::NothingCold => {
                format!("hold: nothing resident has been idle for {}", step.threshold.map_or_else(String::new, seconds))
            }
            Hold::Vetoed(veto) => format!("hold: {}; the threshold would be {}", veto_words(veto), step.threshold.map_or(best, seconds)),
        },
    }
}

fn slow_hold_words(hold: slowdown::Hold) -> &'static str {
    use slowdown::Hold;
    match hold {
        Hold::NoBudget => "no slowdown is tolerated",
        Hold::NothingSampled => "nothing was sampled",
        Hold::HomeCutShort => "what is too hot for slow memory is not all home yet",
        Hold::NothingCold => "the coldest that was sampled is accessed too often",
        Hold::BudgetSpent => "what is slow already uses up what is allowed",
        Hold::NoRoom => "the slow node is full",
        Hold::StepSpent => "no more may be moved in this period",
        Hold::Vetoed(veto) => veto_words(veto),
    }
}

fn veto_words(veto: Veto) -> &'static str {
    match veto {
        Veto::OtherPolicy => "another policy decides for this job",
        Veto::ObserveOnly => "observing only",
        Veto::AtLimit => "the job is at its memory limit and shall fail fast rather than thrash",
        Veto::NoFarMemory => "there is no far memory, or it is full (see `thermocline doctor`)",
        Veto::Incompressible => "its cold pages do not compress",
        Veto::BudgetSpent => "the agent has spent its CPU budget",
        Veto::WritesSpent => "the device's write budget is spent for now",
        Veto::NumaBalancing => "the kernel moves pages by itself: set kernel.numa_balancing to 0, or slow.manage to true",
        Veto::Stalled => "it is stalled as long as its pressure target allows",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{Agent, Message};
    use crate::testing::Machine;

    #[test]
    fn memory_tax_is_summed_up_apart() {
        let machine = Machine::new();
        let jobs = [
            ("/app", "application", 400),
            ("/log", "datacenter_tax", 80),
            ("/proxy", "application_tax", 40),
            ("/mesh", "application_tax", 20),
        ];
        let mut text = String::new();
        for (job, kind, kib) in jobs {
            machine.cgroup(job);
            machine.set(job, "memory.current", &(kib * 1024).to_string());
            text += &format!("[[job]]\ncgroup = \"{job}\"\nkind = \"{kind}\"\n");
        }
        machine.set("/log", "memory.swap.current", "30720");
        machine.set("/log", "memory.stat", "anon 0\nzswap 10240");
        let options = Options { ephemeral: true, ..Options::default() };
        let mut agent = Agent::new(machine.roots.clone(), machine.config(&text), options).unwrap();
        let (sender, messages) = std::sync::mpsc::sync_channel(1);
        sender.send(Message::Stop).unwrap();
        agent.run(&messages, None, &mut |_, _| ()).unwrap();
        let view = agent.view().get();
        let totals = view.totals_by_kind.map(|kind| (kind.kind, kind.jobs, kind.memory_bytes.0 / 1024, kind.saved_bytes.0 / 1024));
        assert_eq!(totals, [("application", 1, 400, 0), ("datacenter_tax", 1, 80, 20), ("application_tax", 2, 60, 0)]);
        assert_eq!(view.totals_by_kind.map(|kind| kind.memory_ratio), [0.390_625, 0.078_125, 0.058_593]);
        let metrics = crate::metrics::render(&view).unwrap();
        assert!(
            metrics.contains("thermocline_job_saved_bytes{job=\"/log\",class=\"aggressive\",kind=\"datacenter_tax\"} 20480"),
            "{metrics}"
        );
    }
}

//! Everything of the machine and of the agent that a step may use, besides the jobs themselves.

use std::time::Duration;

use config::{Class, Config, Policy};
use daemon::Clock;
use kernel::cgroup::CgroupRoot;
use kernel::lru_gen::LruGen;
use kernel::{Roots, meminfo, process, psi};
use policy::thresholds::Thresholds;
use policy::trial::Kept;
use trackers::walk::Walker;
use units::{Bytes, Millis, Pages, RatioPpm};

use crate::actuators::reclaimer::Reclaimer;
use crate::job::Job;
use crate::machine::Machine;
use crate::now::Now;
use crate::options::Options;
use crate::tiers::Tiers;
use crate::trials::Trials;
use crate::undo::UndoLog;
use crate::waits::Accounting;

pub mod affordance;
pub mod claims;
pub mod guardrail;
pub mod log;
pub mod pace;
pub mod trackers_in_use;

use claims::Claims;
use guardrail::JobPeriod;
use log::Log;
use pace::{ByteRate, CpuBudget, IdleTime};
use trackers_in_use::TrackersInUse;

/// Pages per step: few enough that the loop never waits long for the kernel.
const STEP_PAGES: Pages = Pages(2048);

/// How long the loop waits if the byte rate or the CPU budget is used up.
pub const PACE_WAIT: Duration = Duration::from_millis(50);

/// How long one turn of moving memory may take before the loop checks its messages again; one step more at most.
pub const SLICE: Duration = Duration::from_millis(50);

/// The kernel's interfaces.
#[derive(Debug)]
pub struct KernelHandles {
    /// Where its file systems are mounted.
    pub roots: Roots,
    /// The cgroup file system.
    pub cgroups: CgroupRoot,
    /// MGLRU's debugfs file; `None` if the kernel has none.
    pub lru: Option<LruGen>,
    /// Reads processes' page maps.
    pub walker: Walker,
    /// Asks for reclaim.
    pub reclaimer: Reclaimer,
    /// Reads what tasks waited for.
    pub delays: Accounting,
}

impl KernelHandles {
    /// Opens what the kernel offers.
    #[must_use]
    pub fn new(roots: Roots, cgroups: CgroupRoot) -> Self {
        let lru = LruGen::probe(&roots).ok();
        Self { roots, cgroups, lru, walker: Walker::default(), reclaimer: Reclaimer::default(), delays: Accounting::default() }
    }
}

/// How fast the agent may work.
#[derive(Debug)]
pub struct Pacing {
    /// Bytes that may be offloaded per second.
    pub rate: ByteRate,
    /// CPU time that the agent may use.
    pub budget: CpuBudget,
    /// Whether the CPU budget was spent at the last check.
    pub budget_spent: bool,
    /// Time for samples of compressibility: a job's first one walks its memory, and a thousand jobs may ask for one at once.
    pub sampling: IdleTime,
    /// CPU time of kernel threads that sample access rates for the agent.
    pub rates_kernel_cpu: Duration,
}

/// What a step may use.
#[derive(Debug)]
pub struct Context {
    /// The only source of time.
    pub clock: Clock,
    /// The kernel's interfaces.
    pub kernel: KernelHandles,
    /// The parameters in effect: the machine's own, with those of a bundle over them.
    pub config: Config,
    /// How this run differs from the configuration.
    pub options: Options,
    /// The thresholds of all histograms.
    pub thresholds: Thresholds,
    /// The trackers of page ages.
    pub trackers: TrackersInUse,
    /// The machine's memory, as last read.
    pub machine: Machine,
    /// The machine's tiers, as last read.
    pub tiers: Tiers,
    /// Results of trials that limit what is offloaded.
    pub trials: Trials,
    /// What must be restored on exit.
    pub undo: UndoLog,
    /// What protected jobs claim of their ancestors' protection.
    pub claims: Claims,
    /// How fast the agent may work.
    pub pacing: Pacing,
    /// Records and events for the journal.
    pub log: Log,
    /// Periods for the guardrail, while a bundle is in effect; `None` otherwise.
    pub guardrail: Option<Vec<JobPeriod>>,
    /// Whether the view is to be published before the next wait.
    pub publish_due: bool,
}

impl Context {
    /// Both clocks.
    #[must_use]
    pub fn now(&self) -> Now {
        Now::of(&self.clock)
    }

    /// Whether the agent may change anything about a job. A job that a trial holds is only observed.
    #[must_use]
    pub fn may_act(&self, job: &Job) -> bool {
        !job.is_held(self.clock.now()) && !self.options.dry_run && !matches!(job.treatment.class, Class::Off | Class::Observe)
    }

    /// The job's trial that is kept and has not expired, with the slowdown that its class tolerates.
    #[must_use]
    pub fn trial_of(&self, job: &Job) -> Option<(Kept, RatioPpm)> {
        let keep = Millis::from(self.config.agent.trial_keep);
        let kept = self.trials.of(job.path(), self.clock.unix_ms(), keep)?;
        Some((kept, self.config.slowdown_tolerated(job.treatment.class)))
    }

    /// Promotions that the job's trial permits in `window`, where a refault counts as `refault_cost` of one; `None` without a limit.
    #[must_use]
    pub fn trial_max(&self, job: &Job, window: Millis, refault_cost: RatioPpm) -> Option<Pages> {
        let (kept, tolerated) = self.trial_of(job)?;
        kept.promotions_max(tolerated, window, refault_cost)
    }

    /// Whether a tracker may split idle huge pages of a job.
    #[must_use]
    pub fn may_split(&self, job: &Job) -> bool {
        let by_age = matches!(job.treatment.policy, Policy::ColdAge | Policy::Auto);
        by_age && self.config.agent.split_idle && self.may_act(job)
    }

    /// Whether a tracker may split huge pages of a job that are in use while most of what they hold is idle. Not of class
    /// `conservative`: what the misses of the TLB cost shows in no counter that the agent reads. And not under policy `cold_age`, whose
    /// objective permits few promotions: parts whose ages begin again with the split return more often than that, and what is known
    /// of the job's thresholds is lost (scenario `smoke`).
    #[must_use]
    pub fn may_split_busy(&self, job: &Job) -> bool {
        let bears_it = job.treatment.policy == Policy::Auto && job.treatment.class != Class::Conservative;
        self.config.agent.split_busy && bears_it && self.may_act(job)
    }

    /// Adopts the byte rate and the CPU budget of a configuration that was read again.
    pub fn repace(&mut self, config: &Config) {
        let (now, agent) = (self.clock.now(), &config.agent);
        if agent.offload_rate != self.config.agent.offload_rate {
            self.pacing.rate = ByteRate::new(agent.offload_rate, now);
        }
        if agent.cpu_budget != self.config.agent.cpu_budget {
            self.pacing.budget = CpuBudget::new(agent.cpu_budget, agent.control_period, now, self.cpu_time());
        }
    }

    /// Logs an event, in the journal and on standard error.
    pub fn event(&mut self, job: Option<&str>, what: String) {
        self.log.event(self.clock.unix_ms(), job, what);
    }

    /// Reports an error about a job. A repeated error is reported once.
    pub fn report_error(&mut self, job: &mut Job, error: &kernel::Error) {
        let what = error.to_string();
        if job.error.replace(what.clone()).as_ref() != Some(&what) {
            self.event(Some(job.path()), what);
        }
    }

    /// Sets what the controllers deferred in a period.
    pub fn flush_settings(&mut self) {
        while self.flush_some() {}
    }

    /// Sets some of them. Returns whether there are more.
    pub fn flush_some(&mut self) -> bool {
        let (failed, more) = self.undo.flush();
        for (path, error) in failed {
            ::log::warn!("{}: {error}", path.display());
        }
        more
    }

    /// Reads the machine and its tiers. What cannot be read is reported once.
    pub fn read_machine(&mut self, now: Now) {
        let known = std::mem::take(&mut self.machine.troubles);
        let may_write = self.config.swap.write_budget > Bytes::ZERO;
        self.machine.read(&self.kernel.roots, &self.kernel.cgroups, may_write);
        let errors = self.tiers.read(&self.kernel.roots, &self.machine, now.since_boot);
        self.machine.troubles.extend(errors);
        for error in self.machine.troubles.clone() {
            if !known.contains(&error) {
                self.event(None, error);
            }
        }
    }

    /// The machine's memory pressure: the share of the last 10 s in which tasks waited for memory, and the share of its
    /// memory that is available. A kernel without PSI counts as having no stall.
    ///
    /// # Errors
    /// Any error of the kernel's files.
    pub fn memory_pressure(&self) -> kernel::Result<(RatioPpm, RatioPpm)> {
        let stall = match psi::memory(&self.kernel.roots) {
            Ok(pressure) => pressure.some.avg10,
            Err(error) if error.is_unsupported() => RatioPpm(0),
            Err(error) => return Err(error),
        };
        let info = meminfo::read(&self.kernel.roots)?;
        Ok((stall, RatioPpm::of(info.available.0, info.total.0).unwrap_or_default()))
    }

    /// CPU time that the agent has used, including its children and kernel threads that run for it.
    #[must_use]
    pub fn cpu_time(&self) -> Duration {
        let own = process::own_cpu_time().unwrap_or_default() + self.kernel.reclaimer.cpu_time();
        own + self.trackers.kernel_cpu_time() + self.pacing.rates_kernel_cpu
    }

    /// CPU time of this thread and of the children that ask the kernel for reclaim. The difference between two readings is what the
    /// work in between cost the agent, whatever its other threads do.
    #[must_use]
    pub fn offload_cpu_time(&self) -> Duration {
        let children = process::children_cpu_time().unwrap_or_default() + self.kernel.reclaimer.cpu_time();
        process::thread_cpu_time().unwrap_or_default() + children
    }

    /// Checks the CPU budget.
    pub fn check_budget(&mut self, now: Duration) {
        let cpu = self.cpu_time();
        self.pacing.budget_spent = self.pacing.budget.spent(now, cpu);
    }

    /// Pages that one step may move now; `None` while the byte rate or the CPU budget is used up.
    pub fn step_limit(&mut self) -> Option<Pages> {
        let now = self.clock.now();
        let cpu = self.cpu_time();
        if self.pacing.budget.spent(now, cpu) {
            self.pacing.budget_spent = true;
            return None;
        }
        let available = self.pacing.rate.available(now).to_pages(kernel::page_size());
        Some(available.min(STEP_PAGES)).filter(|&limit| limit > Pages::ZERO)
    }
}

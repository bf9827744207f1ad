//! The machine's part of policy `slowdown`: the sampling of access rates, and the queue of moves.

use std::time::Duration;

use config::{Config, Policy as Named};
use kernel::process;
use kernel::thp::Splitter;
use policy::thresholds::Thresholds;
use trackers::rates::sampler::{DENSER, Settings};
use trackers::rates::{self, RateTracker};

use super::Slowdown;
use super::khugepaged::Khugepaged;
use super::latency::Latencies;
use super::period::{Period, Search};
use super::queue::Moves;
use super::sampling_cost::SamplingCost;
use crate::context::Context;
use crate::controllers::policy::{Cadence, Policy};
use crate::controllers::seam::Slot;
use crate::controllers::slots::Jobs;
use crate::discover::Treatment;
use crate::job::Job;
use crate::slow_node::{self, SlowNode};
use crate::view::View;

/// The kernel's own migration of pages between nodes.
const NUMA_BALANCING: &str = "sys/kernel/numa_balancing";

/// The policy as the scheduler knows it.
#[derive(Debug, Default)]
pub struct SlowdownPolicy {
    pub(super) tracker: Option<Box<dyn RateTracker>>,
    pub(super) splitter: Option<Splitter>,
    /// The slow node, as last read.
    pub(super) node: Option<SlowNode>,
    /// The search for the blocks of the next period.
    pub(super) search: Option<Search>,
    pub(super) current: Option<Period>,
    pub(super) moves: Moves,
    pub(super) khugepaged: Khugepaged,
    pub(super) cost: SamplingCost,
    pub(super) latencies: Latencies,
    /// Periods begun: their number selects the sample.
    pub(super) periods: u64,
    /// Time since boot of the next sample or period.
    pub(super) next: Duration,
    /// Last reported error; a repeated error is reported once.
    pub(super) error: Option<String>,
}

impl Policy for SlowdownPolicy {
    fn cadence(&self, _: &Config) -> Cadence {
        Cadence::Own
    }

    fn slot(&self, config: &Config, treatment: &Treatment, _: &Thresholds) -> Option<Box<dyn Slot>> {
        let latency_ns = self.node.map_or(0, |node| node.latency_ns);
        let params = config.slowdown_for(treatment.class, latency_ns);
        (treatment.policy == Named::Slowdown).then(|| Box::new(Slowdown::new(params)) as Box<dyn Slot>)
    }

    /// Samples, decides or moves, whatever is due.
    fn act(&mut self, jobs: &mut Jobs, context: &mut Context) -> Option<Duration> {
        if !jobs.values().any(|entry| entry.slots.get::<Slowdown>().is_some()) {
            self.stop_sampling(context);
            self.cost.pause();
            return None;
        }
        let now = context.clock.now();
        self.cost.resume(now);
        if let Some(wait) = self.move_some(jobs, context) {
            return Some(wait);
        }
        if now >= self.next {
            let used = process::thread_cpu_time().unwrap_or_default();
            if let Err(error) = self.sample(jobs, context, now) {
                self.stop_sampling(context);
                self.next = now + context.config.slow.period;
                self.report_error(context, error.to_string());
            }
            self.cost.charge(used);
            context.pacing.rates_kernel_cpu = self.cost.kernel_cpu_time(self.tracker.as_deref());
        }
        Some(self.next.saturating_sub(context.clock.now()))
    }

    fn release(&mut self, job: &Job, context: &mut Context) {
        for what in slow_node::promote_placed(&context.kernel.cgroups, &mut context.undo, Some(job.path())) {
            context.event(Some(job.path()), what);
        }
    }

    /// Promotes what was placed: without the agent its access rate would not be observed.
    fn stop(&mut self, _: &mut Jobs, context: &mut Context) {
        self.stop_sampling(context);
        for what in slow_node::promote_placed(&context.kernel.cgroups, &mut context.undo, None) {
            context.event(None, what);
        }
    }

    fn report(&self, view: &mut View) {
        view.slow = self.node;
        view.slow_trouble.clone_from(&self.error);
        self.cost.report(self.tracker.as_deref(), &mut view.costs);
    }
}

impl SlowdownPolicy {
    /// Ends the current period and leaves nothing of it in the kernel.
    pub(super) fn stop_sampling(&mut self, context: &mut Context) {
        self.search = None;
        self.khugepaged.restore(&context.kernel.roots, &mut context.undo);
        if let Some(period) = self.current.take() {
            self.collapse(context, &period.sampler.abandon());
        }
        let Some(mut tracker) = self.tracker.take() else { return };
        let kernel_threads = tracker.has_kernel_threads();
        let stopped = tracker.stop();
        self.cost.keep(tracker.as_ref());
        context.pacing.rates_kernel_cpu = self.cost.kernel_cpu_time(None);
        match stopped {
            // What could not be ended stays on the undo list, and the next start ends it.
            Err(error) => log::error!("stopping the sampling of access rates: {error}; run `thermocline agent --restore`"),
            Ok(()) if kernel_threads => {
                if let Err(error) = context.undo.set_kdamond_targets(&[]) {
                    log::error!("undo list: {error}");
                }
            }
            Ok(()) => {}
        }
    }

    /// Opens what sampling needs.
    pub(super) fn open(&mut self, context: &Context) -> kernel::Result<()> {
        let (roots, slow) = (&context.kernel.roots, &context.config.slow);
        if self.tracker.is_none() {
            self.tracker = Some(rates::choose(roots, slow.access_sampling)?);
        }
        if self.splitter.is_none() && slow.split {
            // Without it the parts of huge pages cannot be distinguished; `thermocline doctor` reports that.
            self.splitter = Splitter::open(roots).ok();
        }
        Ok(())
    }

    /// How a period samples: at such an interval that its stages, with the time that the tracker takes to return its counts after each,
    /// fit into the period. It takes longer if the tracker cannot sample as often.
    pub(super) fn sampling(&self, config: &Config) -> Settings {
        let slow = &config.slow;
        let after = self.tracker.as_ref().map_or(0, |tracker| tracker.report_intervals());
        let intervals = DENSER * (slow.samples + 3 * after) + slow.samples + after;
        Settings { samples: slow.samples / 3, interval: slow.period / intervals * DENSER, parts_max: slow.parts }
    }

    /// Disables the kernel's own migration if the operator configured that. It is restored on exit.
    pub(super) fn manage_numa_balancing(&self, jobs: &Jobs, context: &mut Context) {
        let acting = jobs.values().any(|entry| entry.slots.get::<Slowdown>().is_some() && context.may_act(&entry.job));
        let file = context.kernel.roots.proc.join(NUMA_BALANCING);
        if !context.config.slow.manage || !acting || context.undo.original(&file).is_some() || !file.exists() {
            return;
        }
        match context.undo.set(&file, "0") {
            Ok(()) => context.event(None, "kernel.numa_balancing set to 0 while the agent runs".to_owned()),
            Err(error) => context.event(None, format!("kernel.numa_balancing cannot be set to 0: {error}")),
        }
    }

    fn report_error(&mut self, context: &mut Context, what: String) {
        if self.error.as_ref() != Some(&what) {
            context.event(None, format!("nothing is placed in slow memory: {what}"));
            self.error = Some(what);
        }
    }
}

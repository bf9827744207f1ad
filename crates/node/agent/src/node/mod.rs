//! The loop: read, step, act, record.
//!
//! One thread does everything that touches the kernel, in this order, forever: every scan period the trackers look
//! (`node/scan.rs`), every control period the policies decide (`node/control.rs`), and in between what was decided is carried
//! out in small steps (`node/act.rs`). Other threads (metrics, control socket) read a published copy and never wait for
//! the loop, nor it for them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use config::{Config, Poll};
use daemon::PidLock;
use kernel::cgroup::{Cgroup, CgroupRoot};
use kernel::{Roots, process};
use policy::background::Hint;
use policy::thresholds::Thresholds;
use units::Bytes;

use crate::discover::Rules;
use crate::following::Following;
use crate::history::History;
use crate::job::Job;
use crate::journal::{self, Journal, Record};
use crate::pace::{ByteRate, CpuBudget};
use crate::record::Recorder;
use crate::undo::UndoLog;
use crate::view::{Published, View};
use trackers::ages::choose::Offer;
use trackers::ages::{self, Tracker};
use trackers::walk::Walker;

mod act;
mod afford;
mod background;
mod control;
mod follow;
mod guard;
mod pressure;
mod scan;
mod slow;
mod start;
mod tier;

pub use start::alone;
pub use start::restore;

/// How this run of the loop differs from the configuration.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Decide and record, but act on nothing.
    pub dry_run: bool,
    /// Keep no journal and no history: a short look, or one command's run.
    pub ephemeral: bool,
}

/// What others may tell the loop.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// End, and put everything back.
    Stop,
    /// Where a job is, in an operator's or orchestrator's word; `None` to see for ourselves.
    Hint {
        /// Its path.
        job: String,
        /// The word.
        hint: Option<Hint>,
    },
    /// What a look at the store of bundles brought.
    Follow(Box<Poll>),
}

/// Why the agent cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused something that the agent cannot do without.
    #[error(transparent)]
    Kernel(#[from] kernel::Error),
    /// The runtime directory cannot be used, or another agent runs.
    #[error(transparent)]
    Daemon(#[from] daemon::Error),
    /// A file of the agent's own cannot be used.
    #[error("cannot use {path}: {source}; check the directory's owner and free space")]
    File {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A `[[job]]` pattern is none.
    #[error("job pattern {0}")]
    Pattern(#[from] globset::Error),
    /// The configured thresholds are none.
    #[error("cold_age.thresholds: {0}")]
    Thresholds(#[from] policy::thresholds::ThresholdsError),
    /// The trace cannot be kept.
    #[error("trace: {0}")]
    Trace(#[from] trace::Error),
    /// No tracker can be had at all.
    #[error("this kernel offers no way to see page ages; run `thermocline doctor` for what to enable")]
    NoTracker,
}

/// Time since boot, by the clock that does not jump.
#[derive(Clone, Copy, Debug)]
struct Clock {
    base: Duration,
    started: Instant,
}

impl Clock {
    fn now(&self) -> Duration {
        self.base + self.started.elapsed()
    }
}

/// The node agent.
pub struct Agent {
    roots: Roots,
    /// What is in force: the machine's own, with what a bundle sets over it.
    config: Config,
    following: Following,
    options: Options,
    clock: Clock,
    thresholds: Thresholds,
    rules: Rules,
    cgroups: CgroupRoot,
    offer: Offer,
    affordances: BTreeMap<ages::Kind, afford::Affordance>,
    trackers: BTreeMap<ages::Kind, Box<dyn Tracker>>,
    lru: Option<kernel::lru_gen::LruGen>,
    jobs: BTreeMap<String, Job>,
    /// Cgroups that a rule names and that no tracker can watch.
    refused: BTreeSet<String>,
    undo: UndoLog,
    history: Option<History>,
    journal: Option<Journal>,
    recorder: Option<Recorder>,
    /// Records to be written together, before what they tell of is acted upon.
    pending: Vec<Record>,
    rate: ByteRate,
    budget: CpuBudget,
    budget_spent: bool,
    walker: Walker,
    machine: crate::machine::Machine,
    tiers: crate::tiers::Tiers,
    slow: slow::Placement,
    boot_id: String,
    kernel_release: String,
    view: Published,
    costs: Costs,
    /// Where round-robin over the jobs' plans goes on.
    turn: usize,
    /// The job that the guard ended last.
    ending: Option<guard::Ending>,
    _lock: PidLock,
}

/// What the agent itself costs, and how it keeps its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Costs {
    /// CPU time of the agent, its children, and kernel threads that run for it (kdamonds).
    pub cpu_seconds: f64,
    /// Its resident memory.
    pub rss_bytes: Bytes,
    /// Finished scans.
    pub scans: u64,
    /// Scans that began more than half a period late, or lasted longer than a period.
    pub late_scans: u64,
    /// Time that the last scan took.
    pub scan_seconds: f64,
    /// CPU time that all scans took, that of kdamonds between them included.
    pub scan_cpu_seconds: f64,
    /// Bytes of page ages that all scans covered.
    pub scanned_bytes: Bytes,
    /// Time for which access rates were looked at, for policy `slowdown`.
    pub rates_seconds: f64,
    /// Processor time that it took, the kernel's threads included.
    pub rates_cpu_seconds: f64,
    /// The same as a share of one processor over that time.
    pub rates_cpu_ratio: f64,
    /// Time that splitting huge pages and putting them together took; jobs waited for these pages so long at the most.
    pub rates_held_seconds: f64,
    /// The same as a share of the time of looking.
    pub rates_held_ratio: f64,
    /// Huge pages that were split to be looked at in parts.
    pub rates_splits: u64,
    /// Huge pages that were put together again after that.
    pub rates_collapses: u64,
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent").field("jobs", &self.jobs.len()).field("options", &self.options).finish_non_exhaustive()
    }
}

/// How soon the loop looks again while the guard is on watch.
const GUARD_WAIT: Duration = Duration::from_secs(1);

impl Agent {
    /// The copy of its state that other threads may read.
    #[must_use]
    pub fn view(&self) -> Published {
        self.view.clone()
    }

    /// The jobs that it watches now.
    #[must_use]
    pub fn jobs(&self) -> &BTreeMap<String, Job> {
        &self.jobs
    }

    /// What it runs on.
    #[must_use]
    pub fn roots(&self) -> &Roots {
        &self.roots
    }

    /// The tracker of a kind, if it is in use.
    #[must_use]
    pub fn tracker(&self, kind: ages::Kind) -> Option<&dyn Tracker> {
        self.trackers.get(&kind).map(AsRef::as_ref)
    }

    /// Runs until a message or `until` (time since the start) ends it, then puts everything back.
    ///
    /// `after_round` is called after each scan or decision, with the published view.
    ///
    /// # Errors
    /// Only what the agent cannot go on without; trouble with one job is recorded and the job left alone.
    pub fn run(
        &mut self,
        messages: &Receiver<Message>,
        until: Option<Duration>,
        after_round: &mut dyn FnMut(&Self, &View),
    ) -> Result<(), Error> {
        self.go_by();
        let scan_period = self.config.agent.scan_period;
        let control_period = self.config.agent.control_period;
        let start = self.clock.now();
        let end = until.map(|until| start + until);
        let mut next_scan = start;
        let mut next_control = start + control_period;
        let mut next_press = start + self.config.pressure.period;
        loop {
            let now = self.clock.now();
            if end.is_some_and(|end| now >= end) {
                break;
            }
            let (scanning, deciding) = (now >= next_scan, now >= next_control);
            if scanning {
                let late = now.saturating_sub(next_scan) > scan_period / 2 && self.costs.scans > 0;
                self.scan(now);
                let done = self.clock.now();
                // A scan that outlasts its period is followed by one that begins late, however late it is made to be.
                self.costs.late_scans += u64::from(late || next_scan + scan_period < done);
                next_scan = after(next_scan, scan_period, done);
            }
            if deciding {
                let decided = self.clock.now();
                self.control(decided);
                next_control = after(next_control, control_period, self.clock.now());
            }
            if scanning {
                self.plan();
            }
            let pressing = self.clock.now() >= next_press;
            if pressing {
                self.press(self.clock.now());
                next_press = after(next_press, self.config.pressure.period, self.clock.now());
            }
            let (compacting, offloading, placing) = (self.compact(), self.act(), self.place_slow());
            let more = [compacting, offloading, placing].into_iter().flatten().min();
            self.guard();
            self.write_journal();
            if scanning || deciding || pressing {
                self.publish();
                after_round(self, &self.view.get());
            }
            let mut wake = next_scan.min(next_control).min(next_press).min(end.unwrap_or(Duration::MAX));
            if let Some(wait) = more {
                wake = wake.min(self.clock.now() + wait);
            }
            if self.config.guard.enabled {
                wake = wake.min(self.clock.now() + GUARD_WAIT);
            }
            match messages.recv_timeout(wake.saturating_sub(self.clock.now())) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Message::Hint { job, hint }) => {
                    self.take_hint(&job, hint);
                    self.publish();
                }
                Ok(Message::Follow(told)) => {
                    self.follow(*told);
                    self.publish();
                }
                Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.stop();
        Ok(())
    }

    /// Ends observation and puts everything back.
    fn stop(&mut self) {
        self.store_history();
        self.following.stop();
        self.stop_sampling();
        self.bring_all_home();
        for tracker in self.trackers.values_mut() {
            let watched = !tracker.kdamond_targets().is_empty();
            let stopped = tracker.stop();
            if let Err(error) = &stopped {
                log::error!("stopping {:?}: {error}; run `thermocline agent --restore`", tracker.kind());
            }
            // What could not be ended stays on the list, for the next start to end.
            if watched
                && stopped.is_ok()
                && let Err(error) = self.undo.set_kdamond_targets(&[])
            {
                log::error!("undo list: {error}");
            }
        }
        for (path, outcome) in self.undo.restore_all() {
            log::info!("put back {}: {outcome:?}", path.display());
        }
        for what in self.recorder.take().map(|recorder| recorder.stop(unix_ms())).unwrap_or_default() {
            self.event(None, what);
        }
        self.event(None, "agent stopped".to_owned());
        self.write_journal();
    }

    /// Notes something that is no decision, in the journal and on standard error.
    fn event(&mut self, job: Option<&str>, what: String) {
        log::info!("{}{what}", job.map(|job| format!("{job}: ")).unwrap_or_default());
        self.pending.push(Record::Event { unix_ms: unix_ms(), job: job.map(ToOwned::to_owned), what });
    }

    /// Appends the pending records; a full disk costs records, never the jobs' well-being.
    fn write_journal(&mut self) {
        let records = std::mem::take(&mut self.pending);
        let Some(mut journal) = self.journal.take_if(|_| !records.is_empty()) else { return };
        let written = journal
            .append(&records)
            .and_then(|()| journal.rotate_if_full())
            .and_then(|rotated| if rotated { journal.append(&self.beginning()) } else { Ok(()) });
        self.journal = Some(journal);
        if let Err(error) = written {
            log::error!("journal: {error}; {} records lost", records.len());
            // A replay knows nothing of the lost periods: what is written next starts every controller anew.
            self.pending = self.beginning();
        }
    }

    /// What every file of the journal begins with: the agent, and each job's controller as it is now.
    fn beginning(&self) -> Vec<Record> {
        let bundle = self.following.version();
        let agent = agent_record(&self.thresholds, &self.config, &self.boot_id, &self.kernel_release, bundle);
        std::iter::once(Record::Agent(agent)).chain(self.jobs.values().map(job_record)).collect()
    }

    fn store_history(&mut self) {
        let Some(history) = &mut self.history else { return };
        let jobs = self.jobs.values().map(|job| {
            let history = crate::history::JobHistory {
                id: job.cgroup.id(),
                seen_at_ms: units::millis(job.seen_at),
                state: job.state,
                incompressible: job.incompressible,
                far: job.far.clone(),
                file_out: job.file_out,
                writes: Some(job.writes),
                hint: job.background.as_ref().and_then(|background| background.hint),
            };
            (job.path().to_owned(), history)
        });
        let cgroups = &self.cgroups;
        let exists = |path: &str, id: u64| Cgroup::open(cgroups, path).is_ok_and(|cgroup| cgroup.id() == id);
        if let Err(error) = history.store(self.tiers.writes(), jobs, exists) {
            log::error!("history: {error}; a restart would warm these jobs up anew");
        }
    }

    /// CPU time that the agent has cost so far, its children's and that of kernel threads that run for it included.
    fn cpu_time(&self) -> Duration {
        let kernel: Duration = self.trackers.values().map(|tracker| tracker.kernel_cpu_time()).sum();
        let kernel = kernel + self.slow.kernel_cpu_time();
        process::own_cpu_time().unwrap_or_default() + kernel
    }

    /// Publishes a copy of the state for other threads.
    fn publish(&mut self) {
        self.costs.cpu_seconds = self.cpu_time().as_secs_f64();
        self.slow.tell_costs(&mut self.costs);
        self.costs.rss_bytes = process::own_rss(&self.roots).unwrap_or_default();
        let mut view = {
            let tiers = self.tiers.view(self.clock.now());
            View::of(&self.config, &self.options, &self.machine, tiers, self.costs, &self.kernel_release, self.jobs.values())
        };
        view.slow = self.slow.node;
        view.slow_trouble.clone_from(&self.slow.trouble);
        view.rollout = (!self.following.own().rollout.store.is_empty()).then(|| self.following.view());
        self.view.set(view);
    }
}

/// The next deadline of a period; periods that were missed are skipped, not made up for.
fn after(deadline: Duration, period: Duration, now: Duration) -> Duration {
    let next = deadline + period;
    if next < now { now + period } else { next }
}

fn agent_record(thresholds: &Thresholds, config: &Config, boot_id: &str, kernel: &str, bundle: u64) -> journal::AgentRecord {
    journal::AgentRecord {
        version: journal::VERSION,
        unix_ms: unix_ms(),
        boot_id: boot_id.to_owned(),
        kernel: kernel.to_owned(),
        page_bytes: kernel::page_size().bytes(),
        scan_period_ms: units::millis(config.agent.scan_period),
        thresholds: *thresholds,
        bundle,
    }
}

fn job_record(job: &Job) -> Record {
    Record::Job(Box::new(journal::JobRecord {
        unix_ms: unix_ms(),
        job: job.path().to_owned(),
        id: job.cgroup.id(),
        class: job.treatment.class,
        tracker: job.tracker.0.as_str().to_owned(),
        params: job.params,
        state: job.state,
        policy: job.treatment.policy,
        pressure: job.pressed.as_ref().map(|pressed| journal::PressureStart {
            params: pressed.params,
            state: pressed.state,
            balance: pressed.balance,
        }),
        background: job
            .background
            .as_ref()
            .map(|background| journal::BackgroundStart { params: background.params, state: background.state }),
    }))
}

pub(crate) fn unix_ms() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, units::millis)
}

#[cfg(test)]
mod tests;

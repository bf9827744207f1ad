//! The scheduler: reads, lets the controllers decide, carries out their plans, records.
//!
//! One thread decides and acts: each scan period it has the trackers measure ages (`scan.rs`), each control period the
//! controllers decide (`control.rs`), and in between their plans are carried out in small steps (`offload.rs`). The scan itself
//! runs on a thread of its own (`scanner.rs`): on a large machine it takes seconds, and guard, pressure and messages do not wait
//! for it. Decisions by age do. Other threads (metrics, control socket) read a published copy of the state and never wait for the loop, nor the loop for
//! them. The scheduler knows no policy by name.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use config::{Config, Poll};
use daemon::PidLock;
use kernel::{Roots, process};
use policy::background::Hint;
use policy::trial::Kept;
use trackers::ages::{self, Tracker};

use crate::actuators::reclaimer::{Ask, Reclaimer};
use crate::context::{Context, SLICE};
use crate::controllers::policy::Cadence;
use crate::controllers::slots::Jobs;
use crate::costs::Costs;
use crate::following::Following;
use crate::instructions::Instructions;
use crate::job::Job;
use crate::now::Now;
use crate::protection::hard;
use crate::savings::Ledger;
use crate::view::{Published, View};

mod compressor;
mod control;
mod discovery;
mod follow;
mod guard;
mod offload;
mod report;
mod scan;
mod scanner;
mod stages;
mod start;
mod state;
mod trials;

use scanner::Scanner;
use stages::Stages;
pub use start::{Error, lock, restore};
use state::{Discovery, Durable, Guard, Identity, Running, Scheduled, ZswapCompressor};

/// A round takes at most seconds: scans have a thread of their own. One that takes this long hangs in the kernel.
const ROUND_LIMIT: Duration = Duration::from_secs(5 * 60);
/// How often the guard checks the machine.
const GUARD_WAIT: Duration = Duration::from_secs(1);

/// A message to the loop.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// Restore everything and exit.
    Stop,
    /// Whether a job is in the background, by an operator or orchestrator; `None` to detect it.
    Hint {
        /// Its path.
        job: String,
        /// The hint.
        hint: Option<Hint>,
    },
    /// A trial wants a job without far memory for some time, or, if that is zero, as its policy decides again.
    Hold {
        /// Its path.
        job: String,
        /// How long from now.
        time: Duration,
    },
    /// The result of a trial is kept: it may limit what is offloaded.
    Keep {
        /// The job's path.
        job: String,
        /// The result. The agent sets its time.
        trial: Kept,
    },
    /// The result of a trial is forgotten.
    Forget {
        /// The job's path.
        job: String,
    },
    /// The result of reading the store of bundles.
    Follow(Box<Poll>),
    /// The configuration file, read again; or why it cannot be used.
    Reload(Box<Result<Config, String>>),
}

/// The node agent.
#[derive(Debug)]
pub struct Agent {
    context: Context,
    jobs: Jobs,
    policies: Vec<Scheduled>,
    discovery: Discovery,
    scanner: Scanner,
    /// The scan that is under way.
    scanning: Option<Running>,
    /// When the last finished scan began, as time since boot.
    scanned_at: Duration,
    compressor: ZswapCompressor,
    following: Following,
    durable: Durable,
    identity: Identity,
    guard: Guard,
    protection: hard::Watch,
    instructions: Instructions,
    stages: Stages,
    /// The job that offloaded last, by its index among those with a plan.
    turn: usize,
    costs: Costs,
    /// CPU time of policies with a period of their own.
    deciding_cpu: Duration,
    ledger: Ledger,
    view: Published,
    _lock: PidLock,
}

/// The next deadlines of the loop, as time since boot.
#[derive(Debug)]
pub struct Deadlines {
    scan: Duration,
    control: Duration,
    end: Option<Duration>,
}

/// How a turn of the loop treats a scan that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanWait {
    /// Waits for it as long as nothing else is due, [`SLICE`] at most.
    Slice,
    /// Waits until it ends.
    End,
    /// Takes it in at a later turn: the scan of a large machine lasts for many. It has measured everything when the turn ends.
    Later,
}

impl Agent {
    /// The copy of its state that other threads may read.
    #[must_use]
    pub fn view(&self) -> Published {
        self.view.clone()
    }

    /// The jobs that it observes now, in the order of their paths.
    pub fn jobs(&self) -> impl Iterator<Item = &Job> {
        self.jobs.values().map(|entry| &entry.job)
    }

    /// Where the kernel's file systems are mounted.
    #[must_use]
    pub fn roots(&self) -> &Roots {
        &self.context.kernel.roots
    }

    /// The tracker of a kind, if it is in use.
    #[must_use]
    pub fn tracker(&self, kind: ages::Kind) -> Option<&dyn Tracker> {
        self.context.trackers.get(kind)
    }

    /// Has `ask` carry out requests for reclaim, in place of the child process that asks the kernel.
    pub fn ask_reclaim_by(&mut self, ask: Ask) {
        self.context.kernel.reclaimer = Reclaimer::by(ask);
    }

    /// Runs until a message or `until` (time since the start) ends it, then restores everything.
    ///
    /// `after_round` is called after each scan or decision, with the published view.
    ///
    /// # Errors
    /// Only errors that the agent cannot continue after; an error about one job is recorded and the job left alone.
    pub fn run(
        &mut self,
        messages: &Receiver<Message>,
        until: Option<Duration>,
        after_round: &mut dyn FnMut(&Self, &View),
    ) -> Result<(), Error> {
        let mut deadlines = self.begin_turns(until);
        let outcome = self.keep_deadlines(&mut deadlines, messages, after_round);
        self.stop();
        outcome
    }

    fn keep_deadlines(
        &mut self,
        deadlines: &mut Deadlines,
        messages: &Receiver<Message>,
        after_round: &mut dyn FnMut(&Self, &View),
    ) -> Result<(), Error> {
        let member = daemon::watchdog::join("loop", ROUND_LIMIT);
        while deadlines.end.is_none_or(|end| self.context.clock.now() < end) {
            let busy = member.busy();
            let wake = self.turn(deadlines, ScanWait::Slice, after_round)?;
            drop(busy);
            match messages.recv_timeout(wake.saturating_sub(self.context.clock.now())) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(message) => {
                    self.stages.begin(self.context.clock.now());
                    self.receive(message);
                    self.end_stage("a message");
                }
            }
        }
        // The trackers cannot be stopped during a scan.
        if self.finish_scan(Duration::MAX)? {
            self.publish();
            after_round(self, &self.view.get());
        }
        Ok(())
    }

    /// The loop's first deadlines; it ends at `until` after now. [`Agent::run`] does this, the turns and their end by itself: these are
    /// for a caller that keeps the time, such as a simulation.
    pub fn begin_turns(&mut self, until: Option<Duration>) -> Deadlines {
        self.update_parameters();
        let start = self.context.clock.now();
        for scheduled in &mut self.policies {
            if let Cadence::Every(period) = scheduled.policy.cadence(&self.context.config) {
                scheduled.next = start + period;
            }
        }
        let control = start + self.context.config.agent.control_period;
        Deadlines { scan: start, control, end: until.map(|until| start + until) }
    }

    /// One turn of the loop: does what is due. Returns the time since boot of the next turn.
    ///
    /// # Errors
    /// As [`Agent::run`].
    pub fn turn(
        &mut self,
        deadlines: &mut Deadlines,
        scan_wait: ScanWait,
        after_round: &mut dyn FnMut(&Self, &View),
    ) -> Result<Duration, Error> {
        self.stages.begin(self.context.clock.now());
        let observed = self.observe_and_decide(deadlines, scan_wait)?;
        let wait = self.carry_out();
        self.end_stage("offloading");
        self.check_guard_if_due();
        self.protection.check_if_due(&mut self.jobs, &mut self.context, &self.discovery.rules);
        self.end_stage("hard protection");
        self.write_journal();
        self.end_stage("the journal");
        if observed || std::mem::take(&mut self.context.publish_due) {
            self.publish();
        }
        if observed {
            after_round(self, &self.view.get());
        }
        self.end_stage("publishing");
        Ok(self.wake_at(deadlines, wait))
    }

    /// Ends the turns as [`Agent::run`] does: waits for the scan that is under way, and restores everything.
    ///
    /// # Errors
    /// If the scanning thread has panicked; everything else is restored.
    pub fn end_turns(&mut self) -> Result<(), Error> {
        let scanned = self.finish_scan(Duration::MAX);
        self.stop();
        scanned.map(drop)
    }

    /// Scans and decides, whatever is due. Returns whether anything was. Decisions by age wait for the scan that is under way.
    fn observe_and_decide(&mut self, deadlines: &mut Deadlines, scan_wait: ScanWait) -> Result<bool, Error> {
        let now = self.context.clock.now();
        let (scan_period, control_period) = {
            let agent = &self.context.config.agent;
            (agent.scan_period, agent.control_period)
        };
        if self.scanning.is_none() && now >= deadlines.scan {
            let late = now.saturating_sub(deadlines.scan) > scan_period / 2 && self.costs.scans > 0;
            self.begin_scan(self.context.now(), late)?;
            self.end_stage("the list of jobs");
        }
        let scanned = match scan_wait {
            ScanWait::Slice => self.finish_scan(SLICE.min(self.until_own_deadline()))?,
            ScanWait::End => self.finish_scan(Duration::MAX)?,
            ScanWait::Later if self.scanning.is_some() => {
                self.scanner.settle()?;
                false
            }
            ScanWait::Later => false,
        };
        self.end_stage("taking in the scan");
        if scanned {
            deadlines.scan = after(deadlines.scan, scan_period, self.context.clock.now());
        }
        let deciding = self.scanning.is_none() && self.context.clock.now() >= deadlines.control;
        if deciding {
            self.control(self.context.now());
            deadlines.control = after(deadlines.control, control_period, self.context.clock.now());
        }
        if scanned {
            self.plan();
            self.end_stage("planning");
        }
        let pressing = self.decide_due();
        Ok(scanned || deciding || pressing)
    }

    /// A stage of the loop is over.
    fn end_stage(&mut self, name: &'static str) {
        self.stages.end(name, self.context.clock.now());
    }

    /// Counts a step that began too late, and reports what delayed it.
    fn missed_deadline(&mut self, what: &str, due: Duration, now: Duration) {
        self.costs.deadlines_missed += 1;
        let cause = self.stages.cause(due, now);
        log::warn!("{}", stages::missed(what, now.saturating_sub(due), cause));
    }

    /// How long until a policy with a period of its own is due.
    fn until_own_deadline(&self) -> Duration {
        let config = &self.context.config;
        let own = self.policies.iter().filter(|scheduled| matches!(scheduled.policy.cadence(config), Cadence::Every(_)));
        own.map(|scheduled| scheduled.next.saturating_sub(self.context.clock.now())).min().unwrap_or(Duration::MAX)
    }

    /// Runs the policies whose own period is over. Returns whether there was one.
    fn decide_due(&mut self) -> bool {
        let mut any = false;
        for policy in 0..self.policies.len() {
            let scheduled = &self.policies[policy];
            let Cadence::Every(period) = scheduled.policy.cadence(&self.context.config) else { continue };
            let now = self.context.clock.now();
            if now < scheduled.next {
                continue;
            }
            let due = scheduled.next;
            if now > due + period / 2 {
                self.missed_deadline("a policy with its own period", due, now);
            }
            any = true;
            let cpu = process::thread_cpu_time().unwrap_or_default();
            self.decide_now(policy, self.context.now());
            self.deciding_cpu += process::thread_cpu_time().unwrap_or_default().saturating_sub(cpu);
            self.end_stage("a policy with its own period");
            let done = self.context.clock.now();
            let scheduled = &mut self.policies[policy];
            scheduled.next = after(scheduled.next, period, done);
        }
        any
    }

    /// Carries out one step of each plan. Returns how long to wait for the next step; `None` if there is no plan.
    fn carry_out(&mut self) -> Option<Duration> {
        let offload = self.offload();
        let Self { policies, jobs, context, .. } = self;
        let waits = policies.iter_mut().filter_map(|scheduled| scheduled.policy.act(jobs, context));
        let wait = waits.chain(offload).min();
        wait.into_iter().chain(self.estimate_one()).min()
    }

    fn wake_at(&self, deadlines: &Deadlines, wait: Option<Duration>) -> Duration {
        let now = self.context.clock.now();
        let guard = self.guard.checked.map(|last| (last + GUARD_WAIT).saturating_sub(now));
        let protection = self.protection.wait(&self.context);
        let waits = wait.into_iter().chain(guard).chain(protection).chain([self.until_own_deadline()]).map(|wait| now.saturating_add(wait));
        let fixed = [deadlines.scan, deadlines.control].into_iter().chain(deadlines.end);
        fixed.chain(waits).min().unwrap_or(now)
    }

    /// Takes a message, as [`Agent::run`] does between two turns.
    pub fn receive(&mut self, message: Message) {
        match message {
            Message::Hint { job, hint } => self.take_hint(&job, hint),
            Message::Hold { job, time } => self.hold(&job, time),
            Message::Keep { job, trial } => self.keep_trial(&job, trial),
            Message::Forget { job } => self.forget_trial(&job),
            Message::Follow(poll) => self.follow(*poll),
            Message::Reload(config) => self.reload(*config),
            Message::Stop => {}
        }
        self.publish();
    }

    /// Ends observation and restores everything.
    fn stop(&mut self) {
        self.store_history();
        self.following.stop();
        let Self { policies, jobs, context, .. } = self;
        for scheduled in policies {
            scheduled.policy.stop(jobs, context);
        }
        for tracker in context.trackers.iter_mut() {
            let watched = !tracker.kdamond_targets().is_empty();
            let stopped = tracker.stop();
            if let Err(error) = &stopped {
                log::error!("stopping {:?}: {error}; run `thermocline agent --restore`", tracker.kind());
            }
            // What could not be ended stays on the undo list, and the next start ends it.
            if watched
                && stopped.is_ok()
                && let Err(error) = context.undo.set_kdamond_targets(&[])
            {
                log::error!("undo list: {error}");
            }
        }
        for (path, outcome) in context.undo.restore_all() {
            log::info!("restored {}: {outcome:?}", path.display());
        }
        let unix_ms = context.clock.unix_ms();
        for what in self.durable.recorder.take().map(|recorder| recorder.stop(unix_ms)).unwrap_or_default() {
            self.context.event(None, what);
        }
        self.context.event(None, "agent stopped".to_owned());
        self.write_journal();
    }

    /// Publishes a copy of the state for other threads.
    fn publish(&mut self) {
        self.costs.cpu_seconds = self.context.cpu_time().as_secs_f64();
        self.costs.rss_bytes = process::own_rss(&self.context.kernel.roots).unwrap_or_default();
        self.view.set(self.report());
    }
}

/// The next deadline of a period; missed periods are skipped.
fn after(deadline: Duration, period: Duration, now: Duration) -> Duration {
    let next = deadline + period;
    if next < now { now + period } else { next }
}

#[cfg(test)]
mod tests;

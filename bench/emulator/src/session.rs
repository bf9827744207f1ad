//! An emulated program, from its start to its exit.

use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use kernel::pagemap::Pagemap;
use kernel::{Roots, maps, process};
use units::RatioPpm;

use crate::helper::{Counts, Helper};
use crate::memory::{Choice, Memory};
use crate::phases::{Phase, Phases, Slow, Snapshot};
use crate::placement::{Decision, Placement};
use crate::ptrace::Traced;
use crate::{Error, Result};

/// Time between two reads of the log of accesses. It holds 65,536 accesses, more than can be served in this time.
const TICK: Duration = Duration::from_millis(100);

/// Time between two surveys, which find new memory, and park pages that were accessed for the first time.
const SURVEY: Duration = Duration::from_secs(1);

/// How long the same pages are parked.
pub const DRAW: Duration = Duration::from_secs(10);

/// The same if the policy chooses blocks: in every period, the few hot pages of a block must be parked in proportion.
const DRAW_POLICY: Duration = Duration::from_secs(1);

/// The same while blocks are measured: most pages should be in some draw of the period.
const DRAW_MEASURING: Duration = Duration::from_millis(100);

/// Share of the sample that is parked while all blocks are measured: faults use processor time of the program, and must
/// not use most of it.
const SAMPLE_MEASURING: RatioPpm = RatioPpm(500_000);

/// Parameters of the emulation.
#[derive(Clone, Debug)]
pub struct Options {
    /// Share of blocks that are slow.
    pub share: RatioPpm,
    /// Parameters of the policy, if it chooses the slow blocks.
    pub policy: Option<Policy>,
    /// Share of slow pages that are parked at a time.
    pub sample: RatioPpm,
    /// Added delay of an access to a parked page, without the floor.
    pub delay: Duration,
    /// Processor time of the program for each fault.
    pub fault_cpu: Duration,
    /// Number of open pages.
    pub open: u64,
    /// Seed of all random choices.
    pub seed: u64,
    /// No memory is slow before this file exists.
    pub wait_for: Option<PathBuf>,
    /// Length of alternating slow and fast phases; `None` if memory is always slow.
    pub alternate: Option<Duration>,
}

/// Parameters of the policy.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Tolerable slowdown.
    pub slowdown: RatioPpm,
    /// Latency of slow memory, in nanoseconds.
    pub latency_ns: u64,
    /// Time in slow phases between two decisions.
    pub period: Duration,
}

/// Result of an emulated program.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Counters of the helper.
    pub counts: Counts,
    /// Accesses and time in slow phases. With a policy, since its first decision.
    pub slow: Slow,
    /// Number of blocks of private anonymous memory at the last survey.
    pub blocks: u64,
    /// Number of slow blocks.
    pub slow_blocks: u64,
    /// Number of slow blocks that were accessed.
    pub accessed_blocks: u64,
    /// Number of forks.
    pub forks: u64,
    /// Whether the program replaced itself by `exec`, after which it was not emulated.
    pub replaced: bool,
    /// Beginnings of the slow and fast phases.
    pub phases: Vec<Phase>,
    /// Accesses per second that the policy allows, and its decisions.
    pub policy: Option<(f64, Vec<Decision>)>,
}

/// A running program with emulated slow memory.
#[derive(Debug)]
pub struct Session {
    child: Child,
    helper: Helper,
    memory: Memory,
    options: Options,
    roots: Roots,
    started: Instant,
    surveyed: Option<Instant>,
    phases: Phases,
    replaced: bool,
}

impl Session {
    /// Starts the program. No memory is slow before the first survey.
    ///
    /// # Errors
    /// As [`Traced::spawn`] and [`Helper::start`].
    pub fn start(command: Command, options: Options) -> Result<Self> {
        let roots = Roots::host();
        let (child, helper) = Helper::start(Traced::spawn(command)?)?;
        let placement = options.policy.map(|policy| Placement::new(policy.slowdown, policy.latency_ns));
        let memory = Memory::new(Pagemap::open(&roots, helper.pid())?, placement);
        helper.set(options.delay, options.open);
        let started = Instant::now();
        Ok(Self { child, helper, memory, options, roots, started, surveyed: None, phases: Phases::default(), replaced: false })
    }

    /// Process id of the program.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.helper.pid()
    }

    /// The program as a child process, with its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Serves the program until it exits.
    ///
    /// # Errors
    /// As [`Session::serve`].
    pub fn finish(mut self) -> Result<(ExitStatus, Outcome)> {
        loop {
            if let Some(status) = self.serve(TICK)? {
                self.account();
                return Ok((status, self.outcome()));
            }
        }
    }

    /// Serves the program for a time. Returns its exit status if it has exited.
    ///
    /// # Errors
    /// [`Error::Killed`] if the helper was killed; [`Error::Kernel`].
    pub fn serve(&mut self, time: Duration) -> Result<Option<ExitStatus>> {
        let until = Instant::now() + time;
        loop {
            if self.helper.program_exited() || self.replaced {
                return self.wait(until);
            }
            if let Err(error) = self.step(until) {
                // Calls fail when the program is exiting; that is no error.
                return if self.helper.program_exited() { self.wait(until) } else { Err(self.kill_program(error)) };
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.helper.wait(left.min(TICK));
        }
    }

    /// Handles an event, reads the log and, if it is due, surveys the memory.
    fn step(&mut self, until: Instant) -> Result<()> {
        self.handle_event()?;
        let (pages, _) = self.helper.accessed();
        self.memory.count_accesses(&pages);
        self.account();
        self.options.wait_for.take_if(|file| file.exists());
        if self.options.wait_for.is_some() {
            return Ok(());
        }
        let every = if self.is_measuring() { DRAW_MEASURING } else { SURVEY };
        if self.surveyed.is_none_or(|at| at.elapsed() >= every.min(until.saturating_duration_since(at))) {
            self.survey()?;
        }
        if self.helper.exited() && !self.helper.program_exited() {
            return Err(Error::Killed);
        }
        Ok(())
    }

    fn handle_event(&mut self) -> Result<()> {
        match self.helper.event() {
            Some(event) => Ok(self.memory.handle(event, &mut self.helper)?),
            None => Ok(()),
        }
    }

    /// Registers new slow memory and parks pages. Returns the number of moved pages.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn survey(&mut self) -> Result<u64> {
        let is_slow = self.phases.next(Instant::now(), self.alternate());
        self.decide();
        let initial = self.phases.period.time < SURVEY;
        let mut moved = 0;
        // Repeated if an event comes first, with a limit: the next survey follows soon.
        for _ in 0..100 {
            self.handle_event()?;
            let vmas = maps::read(&self.roots, self.helper.pid())?;
            if !vmas.is_empty() && !vmas.iter().any(|vma| vma.path.starts_with("/memfd:slow-memory")) {
                self.replaced = true;
                self.helper.abandon();
                return Ok(moved);
            }
            let choice = self.choice(is_slow);
            if let Some(pages) = self.memory.survey(&vmas, choice, initial, &mut self.helper)? {
                moved += pages;
                break;
            }
        }
        let now = Instant::now();
        self.surveyed = Some(now);
        self.account();
        if moved > 0 || self.phases.has_begun() {
            self.phases.begin(now, is_slow);
        }
        Ok(moved)
    }

    /// Accounts accesses and time since the last call.
    fn account(&mut self) {
        let counts = !self.is_measuring();
        let cpu = self.cpu().or(self.phases.last_cpu()).unwrap_or_default();
        self.phases.account(Snapshot { at: Instant::now(), accesses: self.helper.counts().accesses, cpu }, counts);
    }

    /// Processor time of the program; `None` if it has exited.
    pub(crate) fn cpu(&self) -> Option<Duration> {
        process::stat(&self.roots, self.pid()).ok().map(|stat| ticks(stat.utime.saturating_add(stat.stime)))
    }

    /// Share of pages that are parked in slow phases.
    fn sample(&self) -> RatioPpm {
        let sample = self.options.sample;
        if self.is_measuring() {
            RatioPpm(SAMPLE_MEASURING.share_of(sample.0.into()).try_into().unwrap_or(sample.0).max(1))
        } else {
            sample
        }
    }

    /// Whether all blocks are being measured, before the first decision.
    fn is_measuring(&self) -> bool {
        self.memory.placement.as_ref().is_some_and(|placement| !placement.has_decided())
    }

    /// Length of the phases, which alternate after the first decision.
    fn alternate(&self) -> Option<Duration> {
        self.options.alternate.filter(|_| !self.is_measuring())
    }

    /// Lets the policy decide at the end of a period.
    fn decide(&mut self) {
        let Some(policy) = self.options.policy else { return };
        if self.phases.period.time < policy.period {
            return;
        }
        let period = std::mem::take(&mut self.phases.period);
        self.memory.end_period(period.own(self.options.fault_cpu), self.sample());
    }

    fn choice(&self, is_slow: bool) -> Choice {
        let each = match &self.memory.placement {
            Some(_) if self.is_measuring() => DRAW_MEASURING,
            Some(_) => DRAW_POLICY,
            None => DRAW,
        };
        let draws = self.started.elapsed().as_millis() / each.as_millis();
        let draw = if self.sample() >= RatioPpm::ONE { 0 } else { u64::try_from(draws).unwrap_or(u64::MAX) };
        let sample = if is_slow { self.sample() } else { RatioPpm(0) };
        Choice { seed: self.options.seed, share: self.options.share, sample, draw }
    }

    /// Returns the number of parked pages.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn parked_pages(&self) -> Result<u64> {
        Ok(self.memory.parked_pages()?)
    }

    /// Changes the share of slow blocks from the next survey on; slow blocks stay slow.
    pub fn set_share(&mut self, share: RatioPpm) {
        self.options.share = share;
    }

    /// Handles only events, for a time. Returns whether the program has exited.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn serve_events(&mut self, time: Duration) -> Result<bool> {
        self.handle_event()?;
        self.helper.wait(time);
        Ok(self.helper.program_exited())
    }

    /// Changes the added delay and the number of open pages.
    pub fn set(&mut self, delay: Duration, open: u64) {
        (self.options.delay, self.options.open) = (delay, open);
        self.helper.set(delay, open);
    }

    /// Returns the result so far.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        Outcome {
            counts: self.helper.counts(),
            slow: self.phases.all,
            blocks: self.memory.surveyed,
            slow_blocks: self.memory.slow_blocks(),
            accessed_blocks: self.memory.accessed_blocks(),
            forks: self.memory.forks,
            replaced: self.replaced,
            phases: self.phases.list(),
            policy: self.memory.placement.as_ref().map(|placement| (placement.budget(), placement.decisions())),
        }
    }

    /// Waits for a program that needs no service any more.
    fn wait(&mut self, until: Instant) -> Result<Option<ExitStatus>> {
        let failed = |source| Error::Program { op: "wait for", source };
        if !self.helper.program_exited() {
            self.helper.wait(until.saturating_duration_since(Instant::now()));
            return if self.helper.program_exited() { self.wait(until) } else { Ok(None) };
        }
        self.child.wait().map(Some).map_err(failed)
    }

    /// Kills a program that cannot be served any more, because its threads would wait forever.
    fn kill_program(&mut self, error: Error) -> Error {
        // It may have exited by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        error
    }
}

/// Converts clock ticks to a duration.
fn ticks(ticks: u64) -> Duration {
    Duration::from_millis(ticks.saturating_mul(1000) / process::clock_ticks().max(1))
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.helper.program_exited() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

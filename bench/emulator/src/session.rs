//! One emulated program, from its start to its end.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use crate::ptrace::Traced;
use crate::resident::{Counts, Resident};
use kernel::pagemap::Pagemap;
use kernel::{Roots, maps, process};
use serde::Serialize;
use units::RatioPpm;

use crate::memory::{Choice, Memory};
use crate::placement::{Placement, Told};
use crate::{Error, Result};

/// How often the log of accesses is read. It holds 65,536, more than can be served in this time.
const TICK: Duration = Duration::from_millis(100);

/// How often new memory is looked for, and pages are parked that have been touched for the first time.
const SURVEY: Duration = Duration::from_secs(1);

/// How long the same pages are the sample.
pub const DRAW: Duration = Duration::from_secs(10);

/// The same where the policy chooses: the few hot pages of a block must meet each period, in their share.
const DRAW_POLICY: Duration = Duration::from_secs(1);

/// The same while blocks are learned: most pages are to be in some draw of the period.
const DRAW_LEARNING: Duration = Duration::from_millis(100);

/// The share of the sample that is parked while blocks are learned, when all of memory is watched: faults take processor
/// time of the program, and must not take most of it.
const SAMPLE_LEARNING: RatioPpm = RatioPpm(500_000);

/// Turns that are told of, at most: the last ones.
const TURNS_MAX: usize = 10_000;

/// What is emulated.
#[derive(Clone, Debug)]
pub struct Options {
    /// The share of blocks that are slow.
    pub share: RatioPpm,
    /// Where the policy says which of these are slow.
    pub policy: Option<Policy>,
    /// The share of slow pages that are parked at a time.
    pub sample: RatioPpm,
    /// What an access to a parked page shall take longer, over what serving it takes.
    pub delay: Duration,
    /// Processor time of the program that a fault takes.
    pub fault_cpu: Duration,
    /// Pages that may be open at a time.
    pub open: u64,
    /// The seed of all choices.
    pub seed: u64,
    /// Nothing is slow before this file exists.
    pub wait_for: Option<PathBuf>,
    /// Slow for so long, and then fast for so long; always slow without.
    pub turns: Option<Duration>,
}

/// What the policy has to know.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// The tolerable slowdown.
    pub slowdown: RatioPpm,
    /// The latency of slow memory, in nanoseconds.
    pub latency_ns: u64,
    /// Slow time from decision to decision.
    pub period: Duration,
}

/// The memory is slow, or not, from this moment on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Turn {
    /// Milliseconds since the epoch.
    pub unix_ms: u64,
    /// Whether it is slow.
    pub slow: bool,
}

/// What was seen of a program.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The resident's counts.
    pub counts: Counts,
    /// Accesses to parked pages, and time, while memory was slow. With a policy, since it has first decided.
    pub slow: Slow,
    /// Blocks of private anonymous memory at the last survey.
    pub blocks: u64,
    /// Of them, those that are slow.
    pub slow_blocks: u64,
    /// Of those, the ones that were accessed while slow.
    pub accessed_blocks: u64,
    /// Forks.
    pub forks: u64,
    /// The program replaced itself by `exec`, and was not emulated from then on.
    pub replaced: bool,
    /// When memory was slow, and when not.
    pub turns: Vec<Turn>,
    /// Accesses per second that the policy allows, and what it has decided.
    pub policy: Option<(f64, Vec<Told>)>,
}

/// A time in which memory was slow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slow {
    /// Accesses to parked pages.
    pub accesses: u64,
    /// How long it was.
    pub time: Duration,
    /// The processor time that the program used in it, in all threads, faults included.
    pub cpu: Duration,
}

impl Slow {
    fn add(&mut self, other: Self) {
        self.accesses += other.accesses;
        self.time += other.time;
        self.cpu += other.cpu;
    }

    /// The same without faults, each of which took so much.
    #[must_use]
    pub fn own(&self, fault_cpu: Duration) -> Duration {
        let faults_ns = fault_cpu.as_nanos().saturating_mul(self.accesses.into());
        self.cpu.saturating_sub(Duration::from_nanos(u64::try_from(faults_ns).unwrap_or(u64::MAX)))
    }
}

/// How far the program was at a moment.
#[derive(Clone, Copy, Debug)]
struct Mark {
    at: Instant,
    accesses: u64,
    cpu: Duration,
}

/// When memory is slow, and what has happened in that time.
#[derive(Debug, Default)]
struct Pace {
    /// Until when what has happened is booked.
    booked: Option<Mark>,
    is_slow: bool,
    /// Since the last decision, or the start.
    period: Slow,
    /// In all that counts.
    all: Slow,
    turns: VecDeque<Turn>,
    turned: Option<Instant>,
}

impl Pace {
    /// Books what has happened up to now.
    fn book(&mut self, now: Mark, counts: bool) {
        if let Some(then) = self.booked.replace(now).filter(|_| self.is_slow) {
            let passed = Slow {
                accesses: now.accesses.saturating_sub(then.accesses),
                time: now.at.saturating_duration_since(then.at),
                cpu: now.cpu.saturating_sub(then.cpu),
            };
            self.period.add(passed);
            if counts {
                self.all.add(passed);
            }
        }
    }

    /// Whether memory is to be slow now, given how long the turns are.
    fn wants_slow(&self, now: Instant, turns: Option<Duration>) -> bool {
        match (turns, self.turned) {
            (Some(turn), Some(turned)) if now.saturating_duration_since(turned) >= turn => !self.is_slow,
            (_, None) => true,
            _ => self.is_slow,
        }
    }

    /// Memory is slow, or not, from now on.
    fn turn(&mut self, now: Instant, is_slow: bool) {
        if self.turned.is_some() && self.is_slow == is_slow {
            return;
        }
        (self.is_slow, self.turned) = (is_slow, Some(now));
        if self.turns.len() == TURNS_MAX {
            self.turns.pop_front();
        }
        let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        self.turns.push_back(Turn { unix_ms: u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX), slow: is_slow });
    }
}

/// A program whose slow memory is emulated.
#[derive(Debug)]
pub struct Session {
    child: Child,
    resident: Resident,
    memory: Memory,
    options: Options,
    roots: Roots,
    started: Instant,
    surveyed: Option<Instant>,
    pace: Pace,
    replaced: bool,
}

impl Session {
    /// Starts the program. Nothing is slow before the first survey.
    ///
    /// # Errors
    /// As [`Traced::spawn`] and [`Resident::start`].
    pub fn start(command: Command, options: Options) -> Result<Self> {
        let roots = Roots::host();
        let (child, resident) = Resident::start(Traced::spawn(command)?)?;
        let placement = options.policy.map(|policy| Placement::new(policy.slowdown, policy.latency_ns));
        let memory = Memory::new(Pagemap::open(&roots, resident.pid())?, placement);
        resident.set(options.delay, options.open);
        let started = Instant::now();
        Ok(Self { child, resident, memory, options, roots, started, surveyed: None, pace: Pace::default(), replaced: false })
    }

    /// The pid of the program.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.resident.pid()
    }

    /// The program's pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Serves the program until it ends.
    ///
    /// # Errors
    /// As [`Session::serve`].
    pub fn finish(mut self) -> Result<(ExitStatus, Seen)> {
        loop {
            if let Some(status) = self.serve(TICK)? {
                self.book();
                return Ok((status, self.seen()));
            }
        }
    }

    /// Serves it for a while; how it ended, if it did.
    ///
    /// # Errors
    /// [`Error::Killed`] where the resident was killed; [`Error::Kernel`].
    pub fn serve(&mut self, time: Duration) -> Result<Option<ExitStatus>> {
        let until = Instant::now() + time;
        loop {
            if self.resident.ended() || self.replaced {
                return self.wait(until);
            }
            if let Err(error) = self.step(until) {
                // A program that is just ending is no error.
                return if self.resident.ended() { self.wait(until) } else { Err(self.give_up(error)) };
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.resident.wait(left.min(TICK));
        }
    }

    /// One look at events, the log and, when it is time, the whole of the memory.
    fn step(&mut self, until: Instant) -> Result<()> {
        self.deal_with_event()?;
        let (pages, _) = self.resident.accessed();
        self.memory.book(&pages);
        self.book();
        self.options.wait_for.take_if(|file| file.exists());
        if self.options.wait_for.is_some() {
            return Ok(());
        }
        let every = if self.learns() { DRAW_LEARNING } else { SURVEY };
        if self.surveyed.is_none_or(|at| at.elapsed() >= every.min(until.saturating_duration_since(at))) {
            self.survey()?;
        }
        if self.resident.resident_ended() && !self.resident.ended() {
            return Err(Error::Killed);
        }
        Ok(())
    }

    fn deal_with_event(&mut self) -> Result<()> {
        match self.resident.event() {
            Some(event) => Ok(self.memory.deal_with(event, &mut self.resident)?),
            None => Ok(()),
        }
    }

    /// Looks for slow memory and parks what is to be parked; the pages moved.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn survey(&mut self) -> Result<u64> {
        let is_slow = self.pace.wants_slow(Instant::now(), self.turns());
        self.decide();
        let at_the_beginning = self.pace.period.time < SURVEY;
        let mut moved = 0;
        // As often as an event comes between, within reason: there is a next time.
        for _ in 0..100 {
            self.deal_with_event()?;
            let vmas = maps::read(&self.roots, self.resident.pid())?;
            if !vmas.is_empty() && !vmas.iter().any(|vma| vma.path.starts_with("/memfd:slow-memory")) {
                self.replaced = true;
                self.resident.abandon();
                return Ok(moved);
            }
            let choice = self.choice(is_slow);
            if let Some(pages) = self.memory.survey(&vmas, choice, at_the_beginning, &mut self.resident)? {
                moved += pages;
                break;
            }
        }
        let now = Instant::now();
        self.surveyed = Some(now);
        self.book();
        if moved > 0 || self.pace.turned.is_some() {
            self.pace.turn(now, is_slow);
        }
        Ok(moved)
    }

    /// Books what has happened since the last time.
    fn book(&mut self) {
        let counts = !self.learns();
        let cpu = self.cpu().or(self.pace.booked.map(|mark| mark.cpu)).unwrap_or_default();
        self.pace.book(Mark { at: Instant::now(), accesses: self.resident.counts().accesses, cpu }, counts);
    }

    /// Processor time that the program has used; `None` where it has ended.
    pub(crate) fn cpu(&self) -> Option<Duration> {
        process::stat(&self.roots, self.pid()).ok().map(|stat| ticks(stat.utime.saturating_add(stat.stime)))
    }

    /// The share of pages that is parked while memory is slow.
    fn sample(&self) -> RatioPpm {
        let sample = self.options.sample;
        if self.learns() { RatioPpm(SAMPLE_LEARNING.share_of(sample.0.into()).try_into().unwrap_or(sample.0).max(1)) } else { sample }
    }

    /// Whether no block is known yet to be slow or fast.
    fn learns(&self) -> bool {
        self.memory.placement.as_ref().is_some_and(|placement| !placement.has_decided())
    }

    /// Turns are taken once it is known what is slow.
    fn turns(&self) -> Option<Duration> {
        self.options.turns.filter(|_| !self.learns())
    }

    /// Lets the policy decide, when it is time.
    fn decide(&mut self) {
        let Some(policy) = self.options.policy else { return };
        if self.pace.period.time < policy.period {
            return;
        }
        let period = std::mem::take(&mut self.pace.period);
        self.memory.end_period(period.own(self.options.fault_cpu), self.sample());
    }

    fn choice(&self, is_slow: bool) -> Choice {
        let each = match &self.memory.placement {
            Some(_) if self.learns() => DRAW_LEARNING,
            Some(_) => DRAW_POLICY,
            None => DRAW,
        };
        let draws = self.started.elapsed().as_millis() / each.as_millis();
        let draw = if self.sample() >= RatioPpm::ONE { 0 } else { u64::try_from(draws).unwrap_or(u64::MAX) };
        let sample = if is_slow { self.sample() } else { RatioPpm(0) };
        Choice { seed: self.options.seed, share: self.options.share, sample, draw }
    }

    /// Pages that are parked now.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn parked_pages(&self) -> Result<u64> {
        Ok(self.memory.parked_pages()?)
    }

    /// Changes the share of blocks that are slow, from the next survey on; those that are slow stay so.
    pub fn set_share(&mut self, share: RatioPpm) {
        self.options.share = share;
    }

    /// Deals with events alone, for a while; whether the program has ended.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn serve_events(&mut self, time: Duration) -> Result<bool> {
        self.deal_with_event()?;
        self.resident.wait(time);
        Ok(self.resident.ended())
    }

    /// Changes what an access is delayed by, and how many pages may be open.
    pub fn set(&mut self, delay: Duration, open: u64) {
        (self.options.delay, self.options.open) = (delay, open);
        self.resident.set(delay, open);
    }

    /// What was seen so far.
    #[must_use]
    pub fn seen(&self) -> Seen {
        Seen {
            counts: self.resident.counts(),
            slow: self.pace.all,
            blocks: self.memory.surveyed,
            slow_blocks: self.memory.slow_blocks(),
            accessed_blocks: self.memory.accessed_blocks(),
            forks: self.memory.forks,
            replaced: self.replaced,
            turns: self.pace.turns.iter().copied().collect(),
            policy: self.memory.placement.as_ref().map(|placement| (placement.budget(), placement.told())),
        }
    }

    /// Waits for the end of a program that needs no serving any more.
    fn wait(&mut self, until: Instant) -> Result<Option<ExitStatus>> {
        let failed = |source| Error::Program { op: "wait for", source };
        if !self.resident.ended() {
            self.resident.wait(until.saturating_duration_since(Instant::now()));
            return if self.resident.ended() { self.wait(until) } else { Ok(None) };
        }
        self.child.wait().map(Some).map_err(failed)
    }

    /// A program that cannot be served any more must not wait for ever, nor go on.
    fn give_up(&mut self, error: Error) -> Error {
        // That it has ended by itself is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
        error
    }
}

/// Clock ticks as a time.
fn ticks(ticks: u64) -> Duration {
    Duration::from_millis(ticks.saturating_mul(1000) / process::clock_ticks().max(1))
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.resident.ended() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_counts_while_memory_is_slow() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        // It uses half of a processor.
        let mark = |seconds: u64, accesses: u64| Mark { at: at(seconds), accesses, cpu: Duration::from_millis(500 * seconds) };
        let slow = |accesses, seconds| Slow { accesses, time: Duration::from_secs(seconds), cpu: Duration::from_millis(500 * seconds) };
        let mut pace = Pace::default();
        pace.book(mark(0, 5), true);
        assert!(pace.wants_slow(at(3), Some(Duration::from_secs(10))), "at first");
        pace.book(mark(3, 5), true);
        pace.turn(at(3), true);
        pace.book(mark(5, 25), false);
        pace.book(mark(13, 105), true);
        assert_eq!((pace.period, pace.all), (slow(100, 10), slow(80, 8)));
        // It takes a moment until all pages are home.
        assert!(!pace.wants_slow(at(13), Some(Duration::from_secs(10))) && pace.wants_slow(at(13), None));
        pace.book(mark(14, 110), true);
        pace.turn(at(14), false);
        pace.book(mark(23, 111), true);
        assert!(!pace.wants_slow(at(23), Some(Duration::from_secs(10))) && pace.wants_slow(at(24), Some(Duration::from_secs(10))));
        assert_eq!((pace.period, pace.all), (slow(105, 11), slow(85, 9)));
        pace.turn(at(24), true);
        pace.turn(at(25), true);
        assert_eq!(pace.turns.iter().map(|turn| turn.slow).collect::<Vec<_>>(), [true, false, true]);
        assert_eq!(pace.turned, Some(at(24)), "a turn is one, however often it is told");
        let own = |us: u64| pace.all.own(Duration::from_micros(us));
        assert_eq!((own(0), own(20_000), own(u64::MAX / 2)), (Duration::from_millis(4500), Duration::from_millis(2800), Duration::ZERO));
    }
}

//! One emulated program, from its start to its end.

use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use kernel::pagemap::Pagemap;
use kernel::resident::{Counts, Resident};
use kernel::trace::Traced;
use kernel::{Roots, maps};
use policy::units::RatioPpm;

use crate::memory::{Choice, Memory};
use crate::{Error, Result};

/// How often the log of accesses is read. It holds 65,536, more than can be served in this time.
const TICK: Duration = Duration::from_millis(100);

/// How often new memory is looked for, and pages are parked that have been touched for the first time.
const SURVEY: Duration = Duration::from_secs(1);

/// How long the same pages are the sample.
pub const DRAW: Duration = Duration::from_secs(10);

/// What is emulated.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The share of blocks that are slow.
    pub share: RatioPpm,
    /// The share of slow pages that are parked at a time.
    pub sample: RatioPpm,
    /// What an access to a parked page shall take longer, over what serving it takes.
    pub delay: Duration,
    /// Pages that may be open at a time.
    pub open: u64,
    /// The seed of all choices.
    pub seed: u64,
}

/// What was seen of a program.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// The resident's counts.
    pub counts: Counts,
    /// Time since the first survey found something to park.
    pub emulated: Duration,
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
    first_parked: Option<Instant>,
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
        let memory = Memory::new(Pagemap::open(&roots, resident.pid())?);
        resident.set(options.delay, options.open);
        let started = Instant::now();
        Ok(Self { child, resident, memory, options, roots, started, surveyed: None, first_parked: None, replaced: false })
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
        if self.surveyed.is_none_or(|at| at.elapsed() >= SURVEY.min(until.saturating_duration_since(at))) {
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
            if let Some(pages) = self.memory.survey(&vmas, self.choice(), &mut self.resident)? {
                moved += pages;
                break;
            }
        }
        let now = Instant::now();
        self.surveyed = Some(now);
        if moved > 0 {
            self.first_parked.get_or_insert(now);
        }
        Ok(moved)
    }

    fn choice(&self) -> Choice {
        let draw = if self.options.sample >= RatioPpm::ONE { 0 } else { self.started.elapsed().as_secs() / DRAW.as_secs() };
        Choice { seed: self.options.seed, share: self.options.share, sample: self.options.sample, draw }
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
            emulated: self.first_parked.map(|at| at.elapsed()).unwrap_or_default(),
            blocks: self.memory.surveyed,
            slow_blocks: self.memory.slow_blocks(),
            accessed_blocks: self.memory.accessed_blocks(),
            forks: self.memory.forks,
            replaced: self.replaced,
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

impl Drop for Session {
    fn drop(&mut self) {
        if !self.resident.ended() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

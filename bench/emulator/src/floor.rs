//! What a fault costs on this machine, and how well the emulator keeps to what it is asked for.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::Serialize;
use units::RatioPpm;

use crate::chase::Chased;
use crate::session::{Options, Session};
use crate::{Error, Result};

/// Accesses of a measurement: some tenths of a second.
const ACCESSES: u64 = 20_000;

/// Times that the floor is measured. The least counts: whatever else the machine did only ever adds.
const ROUNDS: u64 = 5;

/// Pages of the chase, 64 MiB: so many that nearly none is open when its turn comes again.
const PAGES: u64 = 16_384;

/// A measured pointer chase under emulation.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Measured {
    /// Threads of the chase.
    pub threads: u64,
    /// Pages that might be open.
    pub open: u64,
    /// What an access was to cost more than without emulation; none: as little as can be.
    pub latency_ns: Option<u64>,
    /// What an access cost without emulation.
    pub plain_ns: u64,
    /// What it cost with it.
    pub chased: Chased,
    /// Accesses that the emulator counted.
    pub counted: u64,
    /// Processor time of the program for each of them, in steps of 10 ms for all together.
    pub cpu_ns: u64,
}

impl Measured {
    /// The floor, of a measurement without latency. What else the machine did meanwhile is not part of it.
    #[must_use]
    pub fn floor_ns(&self) -> u64 {
        self.chased.trimmed_ns.saturating_sub(self.plain_ns)
    }

    /// What an access to a parked page cost more with emulation. Pages at the ends, outside whole blocks, are never
    /// parked and cost nothing.
    #[must_use]
    pub fn added_ns(&self) -> u64 {
        self.chased.mean_ns.saturating_sub(self.plain_ns).saturating_mul(self.chased.accesses) / self.counted.max(1)
    }
}

/// A chase under emulation.
struct Chase {
    session: Session,
    answers: BufReader<std::process::ChildStdout>,
    threads: u64,
    plain_ns: u64,
}

impl Chase {
    /// Starts `program` with the arguments that make it a chase, and parks all of it.
    fn start(program: &Path, arguments: &[&str], threads: u64) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(arguments).arg(PAGES.to_string()).arg(threads.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let options = Options {
            share: RatioPpm(0),
            policy: None,
            sample: RatioPpm::ONE,
            delay: Duration::ZERO,
            fault_cpu: Duration::ZERO,
            open: 64,
            seed: 0,
            wait_for: None,
            turns: None,
        };
        let mut session = Session::start(command, options)?;
        let answers = session.child().stdout.take().ok_or_else(|| Error::Calibration("it has no output".to_owned()))?;
        let mut chase = Self { session, answers: BufReader::new(answers), threads, plain_ns: 0 };
        chase.plain_ns = chase.ask(ACCESSES)?.p50_ns;
        chase.session.set_share(RatioPpm::ONE);
        Ok(chase)
    }

    /// Measures the floor.
    fn floor(&mut self, open: u64) -> Result<Measured> {
        let mut least = self.measure(None, open, ACCESSES / ROUNDS)?;
        let mut cpu_ns = least.cpu_ns;
        for _ in 1..ROUNDS {
            let next = self.measure(None, open, ACCESSES / ROUNDS)?;
            cpu_ns += next.cpu_ns;
            if next.floor_ns() < least.floor_ns() {
                least = next;
            }
        }
        // Clock ticks are coarse: of all rounds together.
        Ok(Measured { cpu_ns: cpu_ns / ROUNDS, ..least })
    }

    /// Measures accesses that are to cost a latency more, given the floor; or, without one, as little as can be.
    fn measure(&mut self, latency: Option<(u64, u64)>, open: u64, accesses: u64) -> Result<Measured> {
        let delay = latency.map(|(latency, floor)| latency.saturating_sub(floor)).unwrap_or_default();
        self.session.set(Duration::from_nanos(delay), open);
        self.session.survey()?;
        let (before, cpu) = (self.session.seen().counts.accesses, self.session.cpu().unwrap_or_default());
        let chased = self.ask(accesses)?;
        let counted = self.session.seen().counts.accesses - before;
        let cpu = self.session.cpu().unwrap_or_default().saturating_sub(cpu);
        let cpu_ns = u64::try_from(cpu.as_nanos() / u128::from(counted.max(1))).unwrap_or(u64::MAX);
        Ok(Measured {
            threads: self.threads,
            open,
            latency_ns: latency.map(|(latency, _)| latency),
            plain_ns: self.plain_ns,
            chased,
            counted,
            cpu_ns,
        })
    }

    /// Has it make accesses and waits for its answer. Its faults are served by the resident alone.
    fn ask(&mut self, accesses: u64) -> Result<Chased> {
        let failed = |source| Error::Program { op: "talk to", source };
        let stdin = self.session.child().stdin.as_mut();
        writeln!(stdin.ok_or_else(|| Error::Calibration("it has no input".to_owned()))?, "{accesses}").map_err(failed)?;
        let mut line = String::new();
        std::thread::scope(|scope| {
            let answers = &mut self.answers;
            let reading = scope.spawn(|| answers.read_line(&mut line));
            // Threads that start and memory that moves are events.
            while !reading.is_finished() {
                if self.session.serve_events(Duration::from_millis(5))? {
                    break;
                }
            }
            reading.join().map_err(|_| Error::Calibration("its output could not be read".to_owned()))?.map_err(failed)
        })?;
        serde_json::from_str(&line).map_err(|error| Error::Calibration(format!("its answer is {line:?}: {error}")))
    }

    /// Whether every page still holds what it held.
    fn check(mut self) -> Result<()> {
        if self.ask(0)?.intact { Ok(()) } else { Err(Error::Calibration("a page does not hold what was written to it".to_owned())) }
    }
}

/// Measures the floor: what an access to a parked page costs without any delay.
///
/// `program` with `arguments`, a number of pages and one of threads must be [`crate::chase::run`].
///
/// # Errors
/// [`Error::Calibration`]; [`Error::Kernel`].
pub fn measure(program: &Path, arguments: &[&str], open: u64) -> Result<Measured> {
    let mut chase = Chase::start(program, arguments, 1)?;
    let measured = chase.floor(open)?;
    chase.check()?;
    Ok(measured)
}

/// The emulator's error: chases of known length at several latencies, numbers of open pages, and threads.
///
/// # Errors
/// As [`measure`].
pub fn table(program: &Path, arguments: &[&str]) -> Result<Vec<Measured>> {
    let mut rows = Vec::new();
    let mut floor_ns = None;
    for threads in [1, 2] {
        let mut chase = Chase::start(program, arguments, threads)?;
        for open in [64, 1024] {
            let measured = chase.floor(open)?;
            rows.push(measured);
            let floor = *floor_ns.get_or_insert(measured.floor_ns());
            for latency in [20_000, 50_000, 200_000] {
                rows.push(chase.measure(Some((latency, floor)), open, ACCESSES)?);
            }
        }
        chase.check()?;
    }
    Ok(rows)
}

//! Calibration: the cost of a fault on this machine, and the accuracy of the emulated latencies.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::Serialize;
use units::RatioPpm;

use crate::chase::ChaseResult;
use crate::session::{Options, Session};
use crate::{Error, Result};

/// Accesses of a measurement, which takes some tenths of a second.
const ACCESSES: u64 = 20_000;

/// Number of measurements of the floor. The lowest is used, because other work on the machine can only add time.
const ROUNDS: u64 = 5;

/// Pages of the chase, 64 MiB: so many that almost none is still open when it is accessed again.
const PAGES: u64 = 16_384;

/// Result of a pointer chase under emulation.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Measurement {
    /// Threads of the chase.
    pub threads: u64,
    /// Number of open pages.
    pub open: u64,
    /// Requested additional latency of an access; `None` for the lowest possible.
    pub latency_ns: Option<u64>,
    /// Latency of an access without emulation.
    pub plain_ns: u64,
    /// Latencies with emulation.
    pub chased: ChaseResult,
    /// Number of accesses that the emulator counted.
    pub counted: u64,
    /// Processor time of the program per counted access; the total has a resolution of 10 ms.
    pub cpu_ns: u64,
}

impl Measurement {
    /// The floor, for a measurement without a requested latency. Excludes delays by other work on the machine.
    #[must_use]
    pub fn floor_ns(&self) -> u64 {
        self.chased.trimmed_ns.saturating_sub(self.plain_ns)
    }

    /// Additional latency of an access to a parked page. Pages outside whole blocks are never parked and not delayed.
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
    /// Starts `program` with the arguments of a chase, and makes all of its memory slow.
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
            alternate: None,
        };
        let mut session = Session::start(command, options)?;
        let answers = session.child().stdout.take().ok_or_else(|| Error::Calibration("the program has no output".to_owned()))?;
        let mut chase = Self { session, answers: BufReader::new(answers), threads, plain_ns: 0 };
        chase.plain_ns = chase.ask(ACCESSES)?.p50_ns;
        chase.session.set_share(RatioPpm::ONE);
        Ok(chase)
    }

    /// Measures the floor.
    fn floor(&mut self, open: u64) -> Result<Measurement> {
        let mut lowest = self.measure(None, open, ACCESSES / ROUNDS)?;
        let mut cpu_ns = lowest.cpu_ns;
        for _ in 1..ROUNDS {
            let next = self.measure(None, open, ACCESSES / ROUNDS)?;
            cpu_ns += next.cpu_ns;
            if next.floor_ns() < lowest.floor_ns() {
                lowest = next;
            }
        }
        // Clock ticks are coarse: use the mean of all rounds.
        Ok(Measurement { cpu_ns: cpu_ns / ROUNDS, ..lowest })
    }

    /// Measures accesses with an additional latency, given with the floor, or with the lowest possible latency.
    fn measure(&mut self, latency: Option<(u64, u64)>, open: u64, accesses: u64) -> Result<Measurement> {
        let delay = latency.map(|(latency, floor)| latency.saturating_sub(floor)).unwrap_or_default();
        self.session.set(Duration::from_nanos(delay), open);
        self.session.survey()?;
        let (before, cpu) = (self.session.outcome().counts.accesses, self.session.cpu().unwrap_or_default());
        let chased = self.ask(accesses)?;
        let counted = self.session.outcome().counts.accesses - before;
        let cpu = self.session.cpu().unwrap_or_default().saturating_sub(cpu);
        let cpu_ns = u64::try_from(cpu.as_nanos() / u128::from(counted.max(1))).unwrap_or(u64::MAX);
        Ok(Measurement {
            threads: self.threads,
            open,
            latency_ns: latency.map(|(latency, _)| latency),
            plain_ns: self.plain_ns,
            chased,
            counted,
            cpu_ns,
        })
    }

    /// Requests accesses and waits for the result. The helper handles the faults itself.
    fn ask(&mut self, accesses: u64) -> Result<ChaseResult> {
        let failed = |source| Error::Program { op: "communicate with", source };
        let stdin = self.session.child().stdin.as_mut();
        writeln!(stdin.ok_or_else(|| Error::Calibration("the program has no input".to_owned()))?, "{accesses}").map_err(failed)?;
        let mut line = String::new();
        std::thread::scope(|scope| {
            let answers = &mut self.answers;
            let reading = scope.spawn(|| answers.read_line(&mut line));
            // New threads and moved memory cause events.
            while !reading.is_finished() {
                if self.session.serve_events(Duration::from_millis(5))? {
                    break;
                }
            }
            reading.join().map_err(|_| Error::Calibration("its output cannot be read".to_owned()))?.map_err(failed)
        })?;
        serde_json::from_str(&line).map_err(|error| Error::Calibration(format!("its answer is {line:?}: {error}")))
    }

    /// Checks that every page has its original content.
    fn check(mut self) -> Result<()> {
        if self.ask(0)?.intact { Ok(()) } else { Err(Error::Calibration("a page does not have its original content".to_owned())) }
    }
}

/// Measures the floor: the latency of an access to a parked page without any delay.
///
/// `program` with `arguments`, the number of pages and the number of threads must execute [`crate::chase::run`].
///
/// # Errors
/// [`Error::Calibration`]; [`Error::Kernel`].
pub fn measure(program: &Path, arguments: &[&str], open: u64) -> Result<Measurement> {
    let mut chase = Chase::start(program, arguments, 1)?;
    let measured = chase.floor(open)?;
    chase.check()?;
    Ok(measured)
}

/// Measures the accuracy of the emulator: chases at several latencies, numbers of open pages, and numbers of threads.
///
/// # Errors
/// As [`measure`].
pub fn table(program: &Path, arguments: &[&str]) -> Result<Vec<Measurement>> {
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

//! `thermocline emulate`.

use std::fmt::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use ::emulate::floor::{self, Measured};
use ::emulate::report::{self, Report};
use ::emulate::session::{Options, Policy, Session};
use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use units::RatioPpm;

use crate::arguments::{Emulate, Format};
use crate::print;

/// The hidden command that is a pointer chase.
pub(crate) const CHASE: &str = "emulate-chase";

/// This very program, which is also the chase.
const SELF: &str = "/proc/self/exe";

/// Runs the command with slow memory, and passes on how it ended.
pub(crate) fn emulate(format: Format, arguments: &Emulate) -> Result<ExitCode> {
    if arguments.calibrate {
        let rows = floor::table(Path::new(SELF), &[CHASE])?;
        print(format, &rows, || table(&rows))?;
        return Ok(ExitCode::SUCCESS);
    }
    let [program, rest @ ..] = arguments.command.as_slice() else { bail!("name the command to run") };
    let latency_ns = u64::try_from(arguments.latency.as_nanos())?;
    let floor = floor::measure(Path::new(SELF), &[CHASE], arguments.open)?;
    let floor_ns = floor.floor_ns();
    let sample = report::sample(latency_ns, floor_ns)?;
    let policy = arguments.slowdown.map(|slowdown| Policy { slowdown, latency_ns, period: arguments.period });
    let options = Options {
        // The policy chooses among all blocks.
        share: if policy.is_some() { RatioPpm::ONE } else { arguments.slow },
        policy,
        sample,
        delay: report::delay(latency_ns, floor_ns, sample),
        fault_cpu: Duration::from_nanos(floor.cpu_ns),
        open: report::open(arguments.open, sample),
        seed: arguments.seed,
        wait_for: arguments.wait_for.clone(),
        turns: arguments.turns,
    };
    let mut command = Command::new(program);
    command.args(rest);
    let session = Session::start(command, options)?;
    forward_signals(session.pid())?;
    let (status, seen) = session.finish()?;
    let report = Report::new(latency_ns, &floor, sample, &seen);
    let text = match format {
        Format::Text => report.to_text(),
        Format::Json => serde_json::to_string(&report)? + "\n",
    };
    match &arguments.report {
        Some(path) => std::fs::write(path, text).with_context(|| format!("cannot write the report to {}", path.display()))?,
        // Standard output belongs to the command.
        None => eprint!("{text}"),
    }
    // What a shell says of a command that a signal ended.
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// Signals to us are meant for the program; we end when it does.
fn forward_signals(pid: i32) -> Result<()> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2]).context("cannot listen for signals")?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            kernel::process::signal(pid, signal);
        }
    })?;
    Ok(())
}

fn table(rows: &[Measured]) -> String {
    let mut text = format!(
        "{:>7} {:>5} {:>12} {:>12} {:>9} {:>12} {:>12} {:>10} {:>10}\n",
        "threads", "open", "latency ns", "added ns", "error", "median ns", "p99 ns", "accesses", "counted"
    );
    for row in rows {
        let asked = row.latency_ns.map_or_else(|| "floor".to_owned(), |latency| latency.to_string());
        #[expect(clippy::cast_precision_loss, reason = "shown to people")]
        let error = row
            .latency_ns
            .map_or_else(|| "-".to_owned(), |latency| format!("{:+.1}%", (row.added_ns() as f64 / latency as f64 - 1.0) * 100.0));
        let _ = writeln!(
            text,
            "{:>7} {:>5} {:>12} {:>12} {:>9} {:>12} {:>12} {:>10} {:>10}",
            row.threads,
            row.open,
            asked,
            row.added_ns(),
            error,
            row.chased.p50_ns,
            row.chased.p99_ns,
            row.chased.accesses,
            row.counted
        );
    }
    text
}

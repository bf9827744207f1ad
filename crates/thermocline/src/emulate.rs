//! `thermocline emulate`.

use std::fmt::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use emulator::floor::{self, Measured};
use emulator::report::{self, Report};
use emulator::session::{Options, Policy, Session};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use units::RatioPpm;

use crate::options::Format;
use crate::output::print;
use crate::values::{duration, latency, share};

#[derive(Debug, Args)]
pub(crate) struct Emulate {
    /// What an access to slow memory costs more than one to DRAM, such as 1us
    #[arg(long, value_name = "DURATION", default_value = "1us", value_parser = latency)]
    pub(crate) latency: std::time::Duration,
    /// The share of the command's anonymous memory that is slow, chosen by chance in blocks of 2 MiB
    #[arg(long, value_name = "RATIO", default_value = "50%", value_parser = share)]
    pub(crate) slow: RatioPpm,
    /// In place of --slow: the least accessed blocks are slow, as many as this slowdown allows by what is counted (policy `slowdown`)
    #[arg(long, value_name = "RATIO", value_parser = share, conflicts_with = "slow")]
    pub(crate) slowdown: Option<RatioPpm>,
    /// How long accesses are counted before --slowdown decides, each time anew
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = turn, requires = "slowdown")]
    pub(crate) period: std::time::Duration,
    /// Nothing is slow before this file exists: create it once the command has started and filled its memory
    #[arg(long, value_name = "FILE")]
    pub(crate) wait_for: Option<std::path::PathBuf>,
    /// Slow for so long, then not for so long, and so on, to compare the command's own figures; the report says when
    #[arg(long, value_name = "DURATION", value_parser = turn)]
    pub(crate) turns: Option<std::time::Duration>,
    /// Pages that may be open at a time: an access to one of them costs nothing, as to a page that the TLB holds
    #[arg(long, value_name = "PAGES", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=65_535))]
    pub(crate) open: u64,
    /// The seed of every choice by chance
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Write the report here in place of standard error
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<std::path::PathBuf>,
    /// Run no command; print how well pointer chases of known length keep to the latencies asked for
    #[arg(long, conflicts_with = "command")]
    pub(crate) calibrate: bool,
    /// The command and its arguments; the program itself, not a script that runs it
    #[arg(required_unless_present = "calibrate", trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    pub(crate) command: Vec<std::ffi::OsString>,
}

fn turn(text: &str) -> Result<std::time::Duration, String> {
    let turn = duration(text)?;
    if turn < std::time::Duration::from_secs(2) {
        return Err("pages take up to a second to come and go; give 2s or more".to_owned());
    }
    Ok(turn)
}

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

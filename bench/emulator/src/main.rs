//! `thermocline-emulator`: runs a command as if part of its memory were slow.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};

use emulator::floor::{self, Measurement};
use emulator::report::{self, Report};
use emulator::session::{Options, Policy, Session};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use units::{RatioPpm, quantity};

/// Exit status if the emulator itself fails, like `timeout(1)` and `env(1)`.
const EXIT_FAILED: u8 = 125;
/// Exit status if the command was found but cannot be executed.
const EXIT_CANNOT_EXECUTE: u8 = 126;
/// Exit status if the command was not found.
const EXIT_NOT_FOUND: u8 = 127;

/// The hidden option that runs the calibration program.
const CHASE: &str = "--chase";

/// This program, which is also the calibration program.
const SELF: &str = "/proc/self/exe";

/// Run a command as if part of its memory were slow, and count the accesses to that part.
///
/// For test machines: the command is stopped at its start, traced, given a helper process in its address space, and killed
/// if the emulator is killed. Requires x86-64, Linux 6.8 or later, and root.
#[derive(Debug, Parser)]
#[command(
    name = "thermocline-emulator",
    version,
    max_term_width = 100,
    after_help = "\
Exit status:
  the command's own; 128 + N if signal N killed the command
  125  the emulator failed, or its arguments are invalid
  126  the command was found but cannot be executed
  127  the command was not found"
)]
struct Arguments {
    /// Format of the report
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Latency that an access to slow memory adds to one to DRAM, such as 1us
    #[arg(long, value_name = "DURATION", default_value = "1us", value_parser = latency)]
    latency: Duration,
    /// Raise --latency to the lowest that this machine can emulate, if it is below that, instead of failing
    #[arg(long)]
    raise_latency: bool,
    /// Share of the command's anonymous memory that is slow, chosen at random in blocks of 2 MiB
    #[arg(long, value_name = "RATIO", default_value = "50%", value_parser = share)]
    slow: RatioPpm,
    /// Instead of --slow: let policy `slowdown` choose the least accessed blocks, as many as this slowdown allows
    #[arg(long, value_name = "RATIO", value_parser = share, conflicts_with = "slow")]
    slowdown: Option<RatioPpm>,
    /// How long accesses are counted before each decision of --slowdown
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = phase, requires = "slowdown")]
    period: Duration,
    /// Keep all memory fast until this file exists; create it once the command has filled its memory
    #[arg(long, value_name = "FILE")]
    wait_for: Option<PathBuf>,
    /// Alternate between slow and fast memory, in phases of this length; the report lists when each phase began
    #[arg(long, value_name = "DURATION", value_parser = phase)]
    alternate: Option<Duration>,
    /// Number of pages that are open at a time: accesses to an open page are not delayed, as if the TLB held it
    #[arg(long, value_name = "PAGES", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=65_535))]
    open: u64,
    /// Seed of all random choices
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Write the report to this file instead of standard error
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Run no command; print the accuracy of the emulated latencies, measured with pointer chases of known length
    #[arg(long, conflicts_with = "command")]
    calibrate: bool,
    /// The calibration program: pages and threads
    #[arg(long, hide = true, num_args = 2, conflicts_with_all = ["command", "calibrate"])]
    chase: Vec<usize>,
    /// The command and its arguments; name the program itself, not a script that runs it
    #[arg(
        required_unless_present_any = ["calibrate", "chase"],
        trailing_var_arg = true,
        value_name = "CMD"
    )]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people
    Text,
    /// For programs: one JSON value
    Json,
}

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().filter_or("THERMOCLINE_LOG", "info")).format_target(false).init();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version are printed to standard output and are no failure.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { EXIT_FAILED } else { 0 });
        }
    };
    match dispatch(&arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("thermocline-emulator: {error:#}");
            ExitCode::from(exit_status_of(&error))
        }
    }
}

fn dispatch(arguments: &Arguments) -> Result<ExitCode> {
    if let [pages, threads] = arguments.chase[..] {
        emulator::chase::run(pages, threads)?;
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.calibrate {
        let rows = floor::table(Path::new(SELF), &[CHASE])?;
        match arguments.format {
            Format::Text => print!("{}", table(&rows)),
            Format::Json => println!("{}", serde_json::to_string(&rows)?),
        }
        return Ok(ExitCode::SUCCESS);
    }
    emulate(arguments)
}

/// Runs the command on emulated slow memory. Returns the command's exit status.
fn emulate(arguments: &Arguments) -> Result<ExitCode> {
    let [program, rest @ ..] = arguments.command.as_slice() else { bail!("name the command to run") };
    let floor = floor::measure(Path::new(SELF), &[CHASE], arguments.open)?;
    let (latency_ns, sample) = sampled_share(arguments, floor.floor_ns())?;
    let policy = arguments.slowdown.map(|slowdown| Policy { slowdown, latency_ns, period: arguments.period });
    let options = Options {
        // The policy chooses among all blocks.
        share: if policy.is_some() { RatioPpm::ONE } else { arguments.slow },
        policy,
        sample,
        delay: report::delay(latency_ns, floor.floor_ns(), sample),
        fault_cpu: Duration::from_nanos(floor.cpu_ns),
        open: report::open(arguments.open, sample),
        seed: arguments.seed,
        wait_for: arguments.wait_for.clone(),
        alternate: arguments.alternate,
    };
    let mut command = Command::new(program);
    command.args(rest);
    let session = Session::start(command, options)?;
    forward_signals(session.pid())?;
    let (status, outcome) = session.finish()?;
    write_report(arguments, &Report::new(latency_ns, &floor, sample, &outcome))?;
    Ok(ExitCode::from(exit_status(status)))
}

/// The latency to emulate, in nanoseconds, and the share of slow pages to park at a time.
fn sampled_share(arguments: &Arguments, floor_ns: u64) -> Result<(u64, RatioPpm)> {
    let latency_ns = u64::try_from(arguments.latency.as_nanos())?;
    match report::sample(latency_ns, floor_ns) {
        Err(emulator::Error::TooFast { lowest_ns, .. }) if arguments.raise_latency => Ok((lowest_ns, report::sample(lowest_ns, floor_ns)?)),
        result => Ok((latency_ns, result?)),
    }
}

fn write_report(arguments: &Arguments, report: &Report) -> Result<()> {
    let text = match arguments.format {
        Format::Text => report.to_text(),
        Format::Json => serde_json::to_string(report)? + "\n",
    };
    match &arguments.report {
        Some(path) => std::fs::write(path, text).with_context(|| format!("cannot write the report to {}", path.display()))?,
        // Standard output belongs to the command.
        None => eprint!("{text}"),
    }
    Ok(())
}

/// The status to exit with after the command has, as a shell reports it.
fn exit_status(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

/// The status to exit with after an error of the emulator.
fn exit_status_of(error: &anyhow::Error) -> u8 {
    match error.downcast_ref() {
        Some(emulator::Error::Start { source, .. }) => match source.kind() {
            std::io::ErrorKind::NotFound => EXIT_NOT_FOUND,
            _ => EXIT_CANNOT_EXECUTE,
        },
        _ => EXIT_FAILED,
    }
}

/// Forwards signals to the command; the emulator exits when the command does.
fn forward_signals(pid: i32) -> Result<()> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2]).context("cannot install signal handlers")?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            kernel::process::signal(pid, signal);
        }
    })?;
    Ok(())
}

fn table(rows: &[Measurement]) -> String {
    let mut text = format!(
        "{:>7} {:>5} {:>12} {:>12} {:>9} {:>12} {:>12} {:>10} {:>10}\n",
        "threads", "open", "latency ns", "added ns", "error", "median ns", "p99 ns", "accesses", "counted"
    );
    for row in rows {
        let requested = row.latency_ns.map_or_else(|| "floor".to_owned(), |latency| latency.to_string());
        #[expect(clippy::cast_precision_loss, reason = "printed with one decimal")]
        let error = row
            .latency_ns
            .map_or_else(|| "-".to_owned(), |latency| format!("{:+.1}%", (row.added_ns() as f64 / latency as f64 - 1.0) * 100.0));
        let _ = writeln!(
            text,
            "{:>7} {:>5} {:>12} {:>12} {:>9} {:>12} {:>12} {:>10} {:>10}",
            row.threads,
            row.open,
            requested,
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

/// Parses a latency, which unlike other durations may be as short as a nanosecond.
fn latency(text: &str) -> Result<Duration, String> {
    let units = [("ns", 1), ("us", 1_000), ("ms", 1_000_000)];
    let parsed = units.iter().find_map(|(unit, ns)| {
        let number: f64 = text.trim().strip_suffix(unit)?.trim().parse().ok()?;
        Duration::try_from_secs_f64(number * f64::from(*ns) / 1e9).ok()
    });
    parsed
        .filter(|latency| (1..=1_000_000_000).contains(&latency.as_nanos()))
        .ok_or_else(|| "write a latency from 1ns to 1000ms, such as 300ns, 1us or 2.5us".to_owned())
}

/// Parses the length of a period or phase.
fn phase(text: &str) -> Result<Duration, String> {
    let length = quantity::parse_duration(text).map_err(|invalid| format!("{}; {}", invalid.message, invalid.remedy))?;
    if length < Duration::from_secs(2) {
        return Err("parking and restoring pages takes up to a second; give 2s or more".to_owned());
    }
    Ok(length)
}

/// Parses a share of at most 100 %.
fn share(text: &str) -> Result<RatioPpm, String> {
    let ratio = quantity::parse_ratio(text).map_err(|invalid| format!("{}; {}", invalid.message, invalid.remedy))?;
    if ratio > RatioPpm::ONE {
        return Err("a share cannot exceed the whole; give at most 100%".to_owned());
    }
    Ok(ratio)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn own_errors_have_their_own_exit_status() {
        let start = |errno| emulator::Error::Start { program: "x".into(), source: io::Error::from_raw_os_error(errno) };
        let check = |error: anyhow::Error, status: u8| assert_eq!(exit_status_of(&error), status, "{error}");
        check(start(libc::ENOENT).into(), EXIT_NOT_FOUND);
        check(start(libc::EACCES).into(), EXIT_CANNOT_EXECUTE);
        check(start(libc::ENOEXEC).into(), EXIT_CANNOT_EXECUTE);
        check(emulator::Error::Killed.into(), EXIT_FAILED);
        check(anyhow::anyhow!("other"), EXIT_FAILED);
    }

    #[test]
    fn the_commands_exit_status_is_passed_on() {
        let check = |raw: i32, status: u8| assert_eq!(exit_status(ExitStatus::from_raw(raw)), status);
        check(0, 0);
        check(7 << 8, 7);
        check(libc::SIGTERM, 143);
    }
}

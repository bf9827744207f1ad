//! `thermocline pool accesses`: what a virtual machine accesses, and which instrument sees it.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use clap::builder::PossibleValuesParser;
use kernel::{Roots, process, smaps};
use pool_host::accesses::{self, Accessed, Choice, Instrument, Seen, Settings};
use serde::Serialize;
use units::Bytes;

use crate::exits;
use crate::options::Format;
use crate::output::print;
use crate::signals;
use crate::table::Table;
use crate::values::{duration, size};

#[derive(Debug, Args)]
#[command(after_help = "\
Sees the accesses of any process, such as QEMU, by the instruments of a pool host's monitor. Nothing is moved. `accessed_bits` clears \
the accessed bits of its pages; `page_idle` marks sampled pages as idle; `damon` starts a kdamond, and ends it.

  thermocline pool accesses $(pidof qemu-system-x86_64)
  thermocline pool accesses 4711 --instrument damon --for 30s")]
pub(crate) struct Accesses {
    /// The process
    #[arg(value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pid: i32,
    /// How accesses are seen, as the setting `monitor.instrument` of a pool host
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = PossibleValuesParser::new(Choice::NAMES))]
    instrument: String,
    /// How long
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = window)]
    window: Duration,
    /// Leave out smaller mappings
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = size)]
    least: Bytes,
}

fn window(text: &str) -> Result<Duration, String> {
    let window = duration(text)?;
    if (Duration::from_secs(1)..=Duration::from_secs(600)).contains(&window) { Ok(window) } else { Err("give 1s to 10m".to_owned()) }
}

/// What was seen of one mapping.
#[derive(Debug, Serialize)]
struct Line {
    start: u64,
    bytes: Bytes,
    path: String,
    rss_bytes: Bytes,
    /// `None` if it was not seen, as of the next one.
    accessed_bytes: Option<Bytes>,
    accessed_at_least_bytes: Option<Bytes>,
}

#[derive(Debug, Serialize)]
struct Report {
    pid: i32,
    seen: Seen,
    window_seconds: f64,
    /// CPU time of seeing it, with that of the kernel's threads.
    cpu_seconds: f64,
    mappings: Vec<Line>,
}

/// Exit status after a signal, as a shell reports SIGINT.
const INTERRUPTED: u8 = 130;

/// Runs the command.
pub(super) fn accesses(format: Format, arguments: &Accesses) -> Result<ExitCode> {
    let roots = Roots::host();
    let (pid, window) = (arguments.pid, arguments.window);
    let before = process::own_cpu_time()?;
    let mut mappings = large(&roots, arguments)?;
    if mappings.is_empty() {
        bail!("process {pid} has no mapping of {} or more; give a smaller --least", arguments.least);
    }
    let Some(choice) = Choice::from_name(&arguments.instrument) else { bail!("{} is no instrument", arguments.instrument) };
    accesses::reap(&roots, &[pid])?;
    let (_sender, receiver) = signals::messages()?;
    let mut complete = true;
    let mut wait = |time| complete = matches!(receiver.recv_timeout(time), Err(RecvTimeoutError::Timeout));
    if let Seen::By(Instrument::AccessedBits) = accesses::choose(&roots, pid, &mappings, choice)? {
        smaps::clear_referenced(&roots, pid)?;
        wait(window);
        mappings = large(&roots, arguments)?;
    }
    let accesses::Sampled { seen, accessed, kernel_cpu } =
        accesses::sample(&roots, pid, &mappings, &Settings { instrument: choice, window }, wait)?;
    let cpu = process::own_cpu_time()?.saturating_sub(before) + kernel_cpu;
    if !complete {
        return Ok(ExitCode::from(INTERRUPTED));
    }
    let is_seen = matches!(seen, Seen::By(_));
    let mappings =
        mappings.into_iter().zip(accessed).map(|(mapping, accessed)| line(mapping, Some(accessed).filter(|_| is_seen))).collect();
    let report = Report { pid, seen, window_seconds: window.as_secs_f64(), cpu_seconds: cpu.as_secs_f64(), mappings };
    print(format, &report, || text(&report))?;
    Ok(if is_seen { ExitCode::SUCCESS } else { exits::negative() })
}

/// The mappings that are reported.
fn large(roots: &Roots, arguments: &Accesses) -> Result<Vec<smaps::Mapping>> {
    let mut mappings = smaps::read(roots, arguments.pid)?;
    mappings.retain(|mapping| mapping.vma.len() >= arguments.least.0);
    Ok(mappings)
}

fn line(mapping: smaps::Mapping, accessed: Option<Accessed>) -> Line {
    Line {
        start: mapping.vma.start,
        bytes: Bytes(mapping.vma.len()),
        path: mapping.vma.path,
        rss_bytes: Bytes(mapping.rss),
        accessed_bytes: accessed.map(|accessed| accessed.estimated),
        accessed_at_least_bytes: accessed.map(|accessed| accessed.at_least),
    }
}

fn text(report: &Report) -> String {
    let by = match report.seen {
        Seen::By(instrument) => instrument,
        Seen::Not(why) => return format!("what process {} accesses cannot be seen: {why}\n", report.pid),
    };
    let mut text = String::new();
    let cpu_ms = report.cpu_seconds * 1e3;
    let _ = writeln!(text, "process {}, {} s, seen by {by}, for {cpu_ms:.0} ms of CPU time", report.pid, report.window_seconds);
    let mut table = Table::new(&["address", "size", "resident", "accessed", "at least", "<of"]);
    for line in &report.mappings {
        let address = format!("{:x}", line.start);
        let shown = |bytes: Option<Bytes>| bytes.map_or_else(|| "-".to_owned(), |bytes| bytes.to_string());
        let (accessed, least) = (shown(line.accessed_bytes), shown(line.accessed_at_least_bytes));
        table.row(&[&address, &line.bytes, &line.rss_bytes, &accessed, &least, &line.path]);
    }
    text + &table.to_string()
}

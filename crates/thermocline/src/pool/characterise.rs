//! `thermocline pool characterise`: measures a workload's counters on local memory, and its slowdown on slow memory.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use kernel::Roots;
use pool_host::counters::{Counters, Perf};
use serde::Serialize;

use crate::options::Format;
use crate::output::print;
use crate::table::Table;

mod run;
mod slow;

use run::{command, timed};
use slow::Slow;

#[derive(Debug, Args)]
#[command(after_help = "\
The command runs on local memory and on slow memory in turn, and must do the same work each time. Slow memory is a NUMA node \
without processors if there is one. Otherwise it is emulated: accesses to the command's pages are sampled and counted. This \
counts accesses that miss the TLB, including hits in the processor's caches. Emulation requires the program itself, not a script.

Counters are the processor's top-down metrics as measured by `perf stat`. Most virtual machines have none. A sample without \
counters is useless for training and is not written.")]
pub(crate) struct Characterise {
    /// Append the workload to this file, as a sample for `thermocline-learn train insensitive`
    #[arg(long, value_name = "FILE.jsonl")]
    out: Option<PathBuf>,
    /// Name of the workload in the sample [default: the command's name]
    #[arg(long)]
    name: Option<String>,
    /// Number of runs on each kind of memory; the medians are reported
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=101))]
    runs: u32,
    /// Latency of the slow node as a multiple of local latency [default: as reported by firmware]
    #[arg(long, value_name = "RATIO", value_parser = multiple)]
    ratio: Option<f64>,
    /// Emulate slow memory even if the machine has a slow node
    #[arg(long, conflicts_with = "ratio")]
    emulate: bool,
    /// The program that emulates slow memory [default: thermocline-emulator, beside this program or in PATH]
    #[arg(long, value_name = "FILE")]
    emulator: Option<PathBuf>,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

fn multiple(text: &str) -> Result<f64, String> {
    let ratio = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok()).map(|percent| percent / 100.0);
    ratio.filter(|ratio| (1.05..=20.0).contains(ratio)).ok_or_else(|| "give 105% to 2000%, such as 182%".to_owned())
}

/// A sample in the trainer's format.
#[derive(Debug, Serialize)]
struct Sample<'a> {
    name: &'a str,
    counters: &'a Counters,
    /// At 182 % and 222 % of local latency.
    slowdowns: [f64; 2],
    /// How the slowdown was measured; ignored by the trainer.
    measured: &'a Measured,
}

/// How a slowdown was measured.
#[derive(Debug, Serialize)]
struct Measured {
    runs: u32,
    /// Median wall time on local memory.
    local_seconds: f64,
    /// Median wall time on the slow node; `None` for emulated memory, which has an overhead of its own.
    slow_seconds: Option<f64>,
    slow: Slow,
}

/// The output of the command.
#[derive(Debug, Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    sample: Sample<'a>,
    /// The reason for missing counters.
    no_counters: Option<&'a str>,
    written: Option<&'a Path>,
}

/// Runs the command.
pub(super) fn characterise(format: Format, arguments: &Characterise) -> Result<()> {
    let roots = Roots::host();
    let slow = Slow::find(&roots, arguments.ratio, arguments.emulate, arguments.emulator.as_deref())?;
    let program = Path::new(&arguments.command[0]).file_name().unwrap_or(&arguments.command[0]).to_string_lossy();
    let name = arguments.name.as_deref().unwrap_or(&program);
    let measured_command = command(&arguments.command)?;
    // If the command fails here, it fails again in the measured runs, which report it.
    let (counters, no_counters) = match Perf::find(&roots, "perf").and_then(|perf| perf.of_command(&measured_command)) {
        Ok(counters) => (counters, None),
        Err(error) => {
            log::warn!("no counters: {error}");
            (Counters::new(), Some(error.to_string()))
        }
    };
    if arguments.out.is_some() && no_counters.is_some() {
        bail!(
            "nothing was written: the processor's counters are not available, and a sample without counters is useless; run on another machine, or without --out"
        );
    }
    let (mut local, mut slowed, mut slowdowns) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..arguments.runs {
        let mut on_local = command(&arguments.command)?;
        slow.keep_local(&mut on_local)?;
        local.push(timed(&mut on_local)?);
        let (seconds, slowdown) = slow.run(&arguments.command)?;
        slowed.push(seconds);
        slowdowns.push(slowdown);
    }
    let local_seconds = median(&mut local);
    let slow_seconds = slow.is_node().then(|| median(&mut slowed));
    let slowdown = slow_seconds.map_or_else(|| median(&mut slowdowns), |seconds| seconds / local_seconds - 1.0);
    let measured = Measured { runs: arguments.runs, local_seconds, slow_seconds, slow };
    let sample = Sample { name, counters: &counters, slowdowns: measured.slow.at_published(slowdown), measured: &measured };
    if let Some(out) = &arguments.out {
        append(out, &sample)?;
    }
    let report = Report { sample, no_counters: no_counters.as_deref(), written: arguments.out.as_deref() };
    print(format, &report, || text(&report))
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = values.get(middle).copied().unwrap_or(0.0);
    if values.len() % 2 == 1 { upper } else { f64::midpoint(upper, values.get(middle.wrapping_sub(1)).copied().unwrap_or(upper)) }
}

fn append(out: &Path, sample: &Sample<'_>) -> Result<()> {
    let fail = || format!("cannot write {}", out.display());
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(out).with_context(fail)?;
    let line = serde_json::to_string(sample)? + "\n";
    file.write_all(line.as_bytes()).with_context(fail)
}

fn text(report: &Report<'_>) -> String {
    let Sample { name, counters, slowdowns: [at_182, at_222], measured } = &report.sample;
    let percent = |share: &f64| format!("{:.1} %", share * 100.0);
    let mut text = format!("{name}: {} slower at 182 % of local latency, {} at 222 %\n", percent(at_182), percent(at_222));
    let _ = writeln!(
        text,
        "median of {} runs on local memory: {:.3} s; {}",
        measured.runs,
        measured.local_seconds,
        measured.slow.description()
    );
    if let Some(seconds) = measured.slow_seconds {
        let _ = writeln!(text, "median on slow memory: {seconds:.3} s");
    }
    match report.no_counters {
        Some(error) => {
            let _ = writeln!(text, "no counters: {error}");
        }
        None => {
            let mut table = Table::new(&["", "<"]);
            for (name, value) in *counters {
                table.row(&[&format!("{value:.4}"), name]);
            }
            text += &table.to_string();
        }
    }
    if let Some(out) = report.written {
        let _ = writeln!(text, "appended to {}", out.display());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_multiples_are_computed() {
        let check = |mut values: Vec<f64>, want: f64| assert!((median(&mut values) - want).abs() < 1e-12, "{values:?}");
        check(vec![3.0], 3.0);
        check(vec![3.0, 1.0], 2.0);
        check(vec![9.0, 1.0, 2.0], 2.0);
        assert_eq!((multiple("182%"), multiple("200 %")), (Ok(1.82), Ok(2.0)));
        assert!(multiple("100%").is_err() && multiple("1.82").is_err() && multiple("").is_err());
    }
}

//! Native benchmarks of code that runs for every page, job or period.
//!
//! Each figure is the median of repeated runs, per second of CPU time, so that a busy machine slows the benchmark down
//! but hardly changes its figures. If a limit exists (only reading the same bytes), it is measured alternately with the
//! work, and the ratio of the two is comparable between machines.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use kernel::Roots;
use serde::Serialize;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

mod controller;
mod histograms;
mod huge;
mod journals;
mod ledgers;
mod machine;
mod measure;
mod models;
mod objective;
mod pages;
mod pools;
mod predictions;
mod resolution;
mod scale;
mod traces;

use measure::{Effort, Report};

/// Counts allocations, for benchmarks that require none.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<std::alloc::System> = &INSTRUMENTED_SYSTEM;

/// Native benchmarks: prints a table and writes the figures as JSON. Fails if a figure is below its requirement.
#[derive(Debug, Parser)]
#[command(name = "thermocline-bench")]
struct Arguments {
    /// File for the figures
    #[arg(long, value_name = "FILE", default_value = "target/bench/native.json")]
    out: PathBuf,
    /// Measure the fleet model instead
    #[arg(long)]
    model: bool,
    /// Measure the pooling simulator, predictions on the VM request path, and the pool manager under load instead
    #[arg(long, conflicts_with_all = ["model", "resolution"])]
    pool: bool,
    /// Measure the effect of summing several periods into an entry instead, on this journal and on a generated fleet
    #[arg(long, value_name = "JOURNAL", conflicts_with = "model")]
    resolution: Option<PathBuf>,
    /// Simulate the objective of the cold-age controller for this many days of generated jobs instead
    #[arg(long, value_name = "JOB_DAYS", conflicts_with_all = ["model", "pool", "resolution"], value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    objective: Option<u64>,
    /// A trace file to simulate as well; repeatable
    #[arg(long, value_name = "FILE", requires = "objective")]
    trace: Vec<PathBuf>,
    /// A journal to simulate as well; repeatable
    #[arg(long, value_name = "FILE", requires = "objective")]
    journal: Vec<PathBuf>,
    /// Measure only the agent at the size of a server
    #[arg(long, conflicts_with_all = ["model", "pool", "resolution", "objective"])]
    scale: bool,
    /// Leave out the agent at the size of a server, which takes most of the time
    #[arg(long, conflicts_with_all = ["scale", "model", "pool", "resolution", "objective"])]
    without_scale: bool,
    #[arg(long, hide = true, requires = "scale_files")]
    scale_agent: Option<String>,
    #[arg(long, hide = true)]
    scale_files: Option<PathBuf>,
    #[arg(long, hide = true, default_value = "auto")]
    scale_tracker: String,
    /// Runs of each benchmark; with an odd number the median is one of them
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=1001))]
    runs: u32,
}

fn main() -> Result<ExitCode> {
    // The agent of the scale benchmark starts its child by this program.
    if let [_, command, parent] = &std::env::args().collect::<Vec<_>>()[..]
        && command == agent::actuators::reclaimer::CHILD_COMMAND
    {
        let files = std::env::var_os(scale::FILES).context("only the scale benchmark starts this")?;
        agent::actuators::reclaimer::child(&Roots::under(Path::new(&files)), parent.parse()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let arguments = Arguments::parse();
    if let (Some(policy), Some(files)) = (&arguments.scale_agent, &arguments.scale_files) {
        scale::agent::run(files, policy, &arguments.scale_tracker)?;
        return Ok(ExitCode::SUCCESS);
    }
    let effort = Effort { runs: arguments.runs };
    let json = match &arguments.resolution {
        None if arguments.objective.is_some() => Some(serde_json::to_string_pretty(&objective::simulate(&arguments.sources())?)?),
        Some(journal) => Some(serde_json::to_string_pretty(&resolution::bench(journal)?)?),
        None if arguments.model => Some(serde_json::to_string_pretty(&models::bench(machine::describe()?, effort)?)?),
        None if arguments.pool => Some(serde_json::to_string_pretty(&pool(effort, &arguments.out)?)?),
        None => None,
    };
    if let Some(json) = json {
        println!("{json}");
        write(&arguments.out, &(json + "\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut report = Report::new(machine::describe()?);
    if !arguments.scale {
        histograms::bench(&mut report, effort)?;
        pages::bench(&mut report, effort)?;
        huge::bench(&mut report, effort)?;
        controller::bench(&mut report, effort)?;
        journals::bench(&mut report, effort)?;
        traces::bench(&mut report, effort)?;
    }
    let beside = arguments.out.parent().unwrap_or(Path::new(""));
    std::fs::create_dir_all(beside)?;
    if !arguments.without_scale {
        report.scale = Some(scale::bench(beside)?);
    }
    print!("{}", report.table());
    write(&arguments.out, &(serde_json::to_string_pretty(&report)? + "\n"))?;
    let missed = report.missed();
    for line in &missed {
        eprintln!("{line}");
    }
    Ok(if missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Arguments {
    fn sources(&self) -> objective::Sources<'_> {
        objective::Sources { job_days: self.objective.unwrap_or(1), traces: &self.trace, journals: &self.journal }
    }
}

/// Figures of `make bench-pool`.
#[derive(Serialize)]
struct PoolFigures {
    #[serde(flatten)]
    simulator: pools::PoolReport,
    #[serde(flatten)]
    predictions: predictions::Predictions,
    #[serde(flatten)]
    ledgers: ledgers::LedgerReport,
}

/// The ledger is measured on the disk of `beside`, the file for the figures.
fn pool(effort: Effort, beside: &Path) -> Result<PoolFigures> {
    let ledgers = ledgers::bench(beside.parent().unwrap_or(Path::new("")))?;
    let simulator = pools::bench(machine::describe()?, effort)?;
    Ok(PoolFigures { simulator, predictions: predictions::predict_bench(Path::new(""))?, ledgers })
}

fn write(out: &Path, json: &str) -> Result<()> {
    if let Some(directory) = out.parent() {
        std::fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    }
    std::fs::write(out, json).with_context(|| format!("cannot write {}", out.display()))?;
    println!("figures in {}", out.display());
    Ok(())
}

//! How well rates are told from accessed bits, on recorded memory accesses of real programs.
//!
//! A trace says exactly when which page was accessed. From it follow both what a watcher of accessed bits would have
//! seen, and the truth. Programs do not access their memory at random times as the estimator assumes: they come in
//! bursts, and move on. How much that matters is what this shows.
//!
//! Traces are those of the Ramulator simulator: per line the instructions before an access that missed all caches, the
//! address read, and perhaps one written back. Time is counted in instructions, at a stated rate; they are short, so the
//! intervals here are as many times shorter than those of a running agent as the accesses are closer together.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, ValueEnum};

mod replay;
mod report;
mod trace;

/// Replays memory traces through the rate estimator, and compares with the true rates.
#[derive(Debug, Parser)]
#[command(name = "rates")]
struct Arguments {
    /// Directory with traces: *.gz
    #[arg(long, value_name = "DIR")]
    traces: PathBuf,
    /// Times from look to look, such as 1ms
    #[arg(long, value_name = "TIME", value_delimiter = ',', value_parser = time, default_values = ["100us", "300us", "1ms", "3ms"])]
    intervals: Vec<Duration>,
    /// Looks per estimate
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    looks: u32,
    /// Instructions per second: what makes a trace into time
    #[arg(long, value_name = "RATE", default_value_t = 1_000_000_000, value_parser = clap::value_parser!(u64).range(1_000_000..=1_000_000_000_000))]
    instructions_per_second: u64,
    /// What is printed
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Text,
    Json,
}

/// From 1 us, the resolution of the estimator, to a minute.
fn time(text: &str) -> std::result::Result<Duration, String> {
    let time = units::quantity::parse_duration(text).map_err(|invalid| invalid.to_string())?;
    let known = Duration::from_micros(1)..=Duration::from_mins(1);
    if known.contains(&time) { Ok(time) } else { Err("give a time between 1us and 1m".to_owned()) }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let paths = trace::list(&arguments.traces)?;
    let mut rows = Vec::new();
    for path in &paths {
        let trace = trace::read(path, arguments.instructions_per_second)?;
        for &interval in &arguments.intervals {
            rows.extend(replay::rows(&trace, interval, arguments.looks));
        }
    }
    match arguments.format {
        Format::Text => print!("{}", report::table(&rows)),
        Format::Json => println!("{}", serde_json::to_string_pretty(&rows)?),
    }
    Ok(())
}

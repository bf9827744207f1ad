//! Accuracy of access rates estimated from accessed bits, on recorded memory accesses of real programs.
//!
//! A trace contains the time and page of each access. It determines both the accessed bits that a sampler would have
//! found and the true rates. Programs do not access their memory at random times, as the estimator assumes, but in
//! bursts and phases; this benchmark measures the effect.
//!
//! Traces are in the format of the Ramulator simulator: each line has the number of instructions before an access that
//! missed all caches, the address read, and optionally an address written back. Time is measured in instructions at a
//! given rate. Traces are short, so the intervals are shorter than those of a running agent, in proportion to the
//! distance of the accesses.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, ValueEnum};

mod replay;
mod report;
mod trace;

/// Replays memory traces through the rate estimator, and compares the estimates with the true rates.
#[derive(Debug, Parser)]
#[command(name = "rates")]
struct Arguments {
    /// Directory with traces (*.gz)
    #[arg(long, value_name = "DIR")]
    traces: PathBuf,
    /// Sampling periods, such as 1ms
    #[arg(long, value_name = "TIME", value_delimiter = ',', value_parser = time, default_values = ["100us", "300us", "1ms", "3ms"])]
    intervals: Vec<Duration>,
    /// Samples per estimate
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    samples: u32,
    /// Instructions per second, which converts a trace to time
    #[arg(long, value_name = "RATE", default_value_t = 1_000_000_000, value_parser = clap::value_parser!(u64).range(1_000_000..=1_000_000_000_000))]
    instructions_per_second: u64,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Text,
    Json,
}

/// Parses a time from 1 us, the resolution of the estimator, to a minute.
fn time(text: &str) -> std::result::Result<Duration, String> {
    let time = units::quantity::parse_duration(text).map_err(|invalid| invalid.to_string())?;
    let known = Duration::from_micros(1)..=Duration::from_mins(1);
    if known.contains(&time) { Ok(time) } else { Err("must be between 1us and 1m".to_owned()) }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let paths = trace::list(&arguments.traces)?;
    let mut rows = Vec::new();
    for path in &paths {
        let trace = trace::read(path, arguments.instructions_per_second)?;
        for &interval in &arguments.intervals {
            rows.extend(replay::rows(&trace, interval, arguments.samples));
        }
    }
    match arguments.format {
        Format::Text => print!("{}", report::table(&rows)),
        Format::Json => println!("{}", serde_json::to_string_pretty(&rows)?),
    }
    Ok(())
}

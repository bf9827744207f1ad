//! Arguments of `thermocline model`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use model::generate::Character;
use units::RatioPpm;

use crate::values::{duration, key_value, price, ratio};

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("source").required(true).args(["trace", "trace_list", "generate", "merge"])))]
#[command(group(clap::ArgGroup::new("made").args(["generate", "resample"])))]
pub(crate) struct Model {
    /// Trace files, directories or s3://bucket/prefix, recursively; files of an object store are copied to this machine for the run
    #[arg(long, value_name = "PATH|URL", num_args = 1..)]
    pub(crate) trace: Vec<String>,
    /// A file with one trace path or URL per line, or `-` for standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) trace_list: Option<PathBuf>,
    /// Only these row groups of a single file, as `--plan` prints them
    #[arg(long, value_name = "FROM..TO", value_parser = row_groups, conflicts_with_all = ["generate", "merge"])]
    pub(crate) groups: Option<std::ops::Range<u32>>,
    /// Merge files of `--tally`, from any number of machines, into one answer
    #[arg(long, value_name = "TALLY", num_args = 1.., conflicts_with_all = ["percentiles", "warmups", "what_if", "by", "survey", "policy", "tier_latency"])]
    pub(crate) merge: Vec<PathBuf>,
    /// Generate a fleet with this number of jobs at any time, to try the command
    #[arg(long, value_name = "JOBS", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub(crate) generate: Option<u64>,
    /// Resample this number of jobs from the traces: each consists of eighths of one traced job's time, in random order. The traced
    /// jobs are held in memory
    #[arg(long, value_name = "JOBS", value_parser = clap::value_parser!(u64).range(1..=100_000_000),
        conflicts_with_all = ["generate", "merge", "plan", "record"])]
    pub(crate) resample: Option<u64>,
    /// Resample only this number of the traces' days: those in which most cold memory was accessed, as a share of the working set
    #[arg(long, value_name = "DAYS", requires = "resample")]
    pub(crate) worst_days: Option<std::num::NonZero<usize>>,
    /// Days of the generated or resampled fleet
    #[arg(long, default_value_t = 7, requires = "made", value_parser = clap::value_parser!(u32).range(1..=3_650))]
    pub(crate) days: u32,
    /// The seed of the generated or resampled fleet
    #[arg(long, default_value_t = 1, requires = "made")]
    pub(crate) seed: u64,
    /// What most promotions of the generated fleet are caused by: mixed, phased, nightly or heavy_tailed
    #[arg(long, default_value_t, requires = "generate")]
    pub(crate) character: Character,
    /// How many times as many sweeps and phases the generated fleet has as usual: 1.6 is a week with many bursts
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, requires = "generate", value_parser = bursts)]
    pub(crate) bursts: f64,
    /// Only write the generated fleet as trace files into a directory
    #[arg(long, value_name = "DIRECTORY", requires = "generate")]
    pub(crate) record: Option<PathBuf>,
    /// Percentiles K, in addition to the configured one
    #[arg(long, value_name = "RATIO,...", value_delimiter = ',', value_parser = ratio,
        default_value = "50%,70%,80%,90%,92%,94%,95%,96%,97%,98%,98.5%,99%,99.5%,99.9%,100%")]
    pub(crate) percentiles: Vec<RatioPpm>,
    /// Warm-ups S, in addition to the configured one
    #[arg(long, value_name = "DURATION,...", value_delimiter = ',', value_parser = duration,
        default_value = "0s,5m,10m,20m,30m,1h,2h,4h")]
    pub(crate) warmups: Vec<std::time::Duration>,
    /// Compare with other limits: promotion_rate=0.5%,minimum_age=240s,half_life=24h,spikes=false,bound=true; repeatable
    #[arg(long, value_name = "KEY=VALUE,...", value_parser = what_if)]
    pub(crate) what_if: Vec<WhatIf>,
    /// The objective: promotions per minute as a share of the working set [default: cold_age.promotion_rate]
    #[arg(long, value_name = "RATIO", value_parser = ratio)]
    pub(crate) objective: Option<RatioPpm>,
    /// Share of the entries that must meet the objective
    #[arg(long, value_name = "RATIO", default_value = "98%", value_parser = ratio)]
    pub(crate) objective_percentile: RatioPpm,
    /// The policy: `cold_age` for all pairs of K and S; the others with their configured parameters
    #[arg(long, value_enum, default_value_t)]
    pub(crate) policy: Modelled,
    /// Latency of one promotion, or of one access to slow memory [default: slow.latency for `slowdown`]
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with_all = ["by", "survey", "what_if"])]
    pub(crate) tier_latency: Option<std::time::Duration>,
    /// Break the answer down by cluster or class
    #[arg(long, value_enum)]
    pub(crate) by: Option<By>,
    /// Show the fleet as it is: ages by threshold, machine and job; a generated one is compared with published figures
    #[arg(long)]
    pub(crate) survey: bool,
    /// With --format json: also print the configured pair by hour, day, machine and job
    #[arg(long, conflicts_with_all = ["merge", "tally", "plan"])]
    pub(crate) detail: bool,
    /// Replay the configured parameters also through the agents' own controller, with parts of the cold pages; slower
    #[arg(long, conflicts_with_all = ["merge", "tally", "plan"])]
    pub(crate) agents: bool,
    /// With --format json: print every pair of percentile and warm-up, not only the best and the Pareto front
    #[arg(long)]
    pub(crate) pairs: bool,
    /// Price of a GiB of DRAM, in any currency
    #[arg(long, value_name = "PRICE", value_parser = price)]
    pub(crate) dram_price_per_gib: Option<f64>,
    /// Compare zswap, CXL memory and an SSD for the same far memory: DRAM saved per millisecond that jobs lose
    #[arg(long, conflicts_with_all = ["tally", "plan", "policy"])]
    pub(crate) tiers: bool,
    /// What one returning page costs in a tier, and a byte of it as a share of the price of DRAM; repeatable, for further tiers too; with
    /// --tiers [default: zswap=40us, cxl=5.76us,0.5, ssd=1ms,0.03]
    #[arg(long, value_name = "NAME=LATENCY[,PRICE]", value_parser = super::tiers::given, conflicts_with_all = ["tally", "plan", "policy"])]
    pub(crate) tier: Vec<super::tiers::GivenTier>,
    /// Answer although no entry can: thresholds above the ages that trackers distinguished count as they were recorded
    #[arg(long)]
    pub(crate) allow_unresolved: bool,
    /// Number of threads [default: all cores]
    #[arg(long, conflicts_with = "merge")]
    pub(crate) threads: Option<std::num::NonZero<usize>>,
    /// Write the exact sums into a file for `--merge` instead of an answer
    #[arg(long, value_name = "FILE", conflicts_with = "record")]
    pub(crate) tally: Option<PathBuf>,
    /// Save progress in a directory, and resume from it when started again with the same arguments
    #[arg(long, value_name = "DIRECTORY", conflicts_with_all = ["merge", "record", "plan"])]
    pub(crate) resume: Option<PathBuf>,
    /// Replay a small part, and print how long the whole takes and how much it reads
    #[arg(long, conflicts_with_all = ["merge", "record", "plan", "tally", "detail", "agents", "policy", "partial_every"])]
    pub(crate) estimate: bool,
    /// Print the answer of what was read so far, on standard error, at this interval [default: 1m on a terminal]
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with_all = ["merge", "record", "plan", "policy"])]
    pub(crate) partial_every: Option<std::time::Duration>,
    /// Replay nothing; print the share of each of this number of workers, without splitting any job
    #[arg(long, value_name = "WORKERS", conflicts_with_all = ["merge", "generate", "groups", "tally"])]
    pub(crate) plan: Option<std::num::NonZero<usize>>,
}

/// The policies that have a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Modelled {
    #[default]
    ColdAge,
    Pressure,
    Slowdown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum By {
    Cluster,
    Class,
}

/// Limits of one pass of the model that differ from the configured ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WhatIf {
    pub(crate) promotion_rate: Option<RatioPpm>,
    pub(crate) minimum_age: Option<std::time::Duration>,
    pub(crate) half_life: Option<std::time::Duration>,
    pub(crate) spikes: Option<bool>,
    pub(crate) bound: Option<bool>,
}

fn row_groups(text: &str) -> Result<std::ops::Range<u32>, String> {
    let range = text.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    range.ok_or_else(|| "write it as FROM..TO, such as 0..16".to_owned())
}

/// The most bursts of a generated fleet, as a multiple of the usual ones.
const BURSTS_MAX: f64 = 100.0;

fn bursts(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor| (0.01..=BURSTS_MAX).contains(factor));
    factor.ok_or_else(|| format!("write a number from 0.01 to {BURSTS_MAX}, such as 1.6"))
}

fn what_if(text: &str) -> Result<WhatIf, String> {
    let mut limits = WhatIf::default();
    for part in text.split(',') {
        let (key, value) = key_value(part).map_err(|_| "write it as KEY=VALUE, such as promotion_rate=0.5%".to_owned())?;
        match key.as_str() {
            "promotion_rate" => limits.promotion_rate = Some(ratio(&value)?),
            "minimum_age" => limits.minimum_age = Some(duration(&value)?),
            "half_life" => limits.half_life = Some(duration(&value)?),
            "spikes" => limits.spikes = Some(value.parse().map_err(|_| "spikes is true or false".to_owned())?),
            "bound" => limits.bound = Some(value.parse().map_err(|_| "bound is true or false".to_owned())?),
            _ => return Err(format!("{key:?} is not known; there are promotion_rate, minimum_age, half_life, spikes and bound")),
        }
    }
    Ok(limits)
}

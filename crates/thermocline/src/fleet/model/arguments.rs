//! Arguments of `thermocline model`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use units::RatioPpm;

use crate::values::{duration, key_value, price, ratio};

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("source").required(true).args(["trace", "trace_list", "generate", "merge"])))]
#[command(group(clap::ArgGroup::new("made").args(["generate", "resample"])))]
pub(crate) struct Model {
    /// Trace files, directories or s3://bucket/prefix, with all that is below them; an object store's files are copied to this
    /// machine for the run
    #[arg(long, value_name = "PATH|URL", num_args = 1..)]
    pub(crate) trace: Vec<String>,
    /// The same, from a file with one on each line, or `-` for standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) trace_list: Option<PathBuf>,
    /// Of the one file, only these row groups, as `--plan` gives them
    #[arg(long, value_name = "FROM..TO", value_parser = row_groups, conflicts_with_all = ["generate", "merge"])]
    pub(crate) groups: Option<std::ops::Range<u32>>,
    /// Add up what `--tally` wrote, from any number of machines, and answer as of one run
    #[arg(long, value_name = "TALLY", num_args = 1.., conflicts_with_all = ["percentiles", "warmups", "what_if", "by", "survey", "policy", "tier_latency"])]
    pub(crate) merge: Vec<PathBuf>,
    /// Make up a fleet in which so many jobs run at any time, for trying things out
    #[arg(long, value_name = "JOBS", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub(crate) generate: Option<u64>,
    /// Instead of the traces, replay so many jobs that are drawn from theirs: each follows one of them, an eighth of its time at
    /// a time, in an order drawn at random. The traces' jobs are held in memory
    #[arg(long, value_name = "JOBS", value_parser = clap::value_parser!(u64).range(1..=100_000_000),
        conflicts_with_all = ["generate", "merge", "plan", "record"])]
    pub(crate) resample: Option<u64>,
    /// Days of the generated or resampled fleet
    #[arg(long, default_value_t = 7, requires = "made", value_parser = clap::value_parser!(u32).range(1..=3_650))]
    pub(crate) days: u32,
    /// Which of all fleets that could be generated, or drawn
    #[arg(long, default_value_t = 1, requires = "made")]
    pub(crate) seed: u64,
    /// Write the generated fleet as trace files into a directory, and do no more
    #[arg(long, value_name = "DIRECTORY", requires = "generate")]
    pub(crate) record: Option<PathBuf>,
    /// Percentiles K to try, beside the configured one
    #[arg(long, value_name = "RATIO,...", value_delimiter = ',', value_parser = ratio,
        default_value = "50%,70%,80%,90%,92%,94%,95%,96%,97%,98%,98.5%,99%,99.5%,99.9%,100%")]
    pub(crate) percentiles: Vec<RatioPpm>,
    /// Warm-ups S to try, beside the configured one
    #[arg(long, value_name = "DURATION,...", value_delimiter = ',', value_parser = duration,
        default_value = "0s,5m,10m,20m,30m,1h,2h,4h")]
    pub(crate) warmups: Vec<std::time::Duration>,
    /// Compare with other limits: promotion_rate=0.5%,minimum_age=240s,half_life=24h,spikes=false; may be given again
    #[arg(long, value_name = "KEY=VALUE,...", value_parser = what_if)]
    pub(crate) what_if: Vec<WhatIf>,
    /// What the fleet must hold: promotions per minute, as a share of the working set [default: cold_age.promotion_rate]
    #[arg(long, value_name = "RATIO", value_parser = ratio)]
    pub(crate) objective: Option<RatioPpm>,
    /// In which share of the entries it must hold
    #[arg(long, value_name = "RATIO", default_value = "98%", value_parser = ratio)]
    pub(crate) objective_percentile: RatioPpm,
    /// Which policy is to be judged: `cold_age` in all pairs of K and S; the others with their configured parameters
    #[arg(long, value_enum, default_value_t)]
    pub(crate) policy: Modelled,
    /// What the return of a page, or one access to slow memory, takes [default: slow.latency for `slowdown`]
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with_all = ["by", "survey", "what_if"])]
    pub(crate) tier_latency: Option<std::time::Duration>,
    /// Tell the jobs apart, too
    #[arg(long, value_enum)]
    pub(crate) by: Option<By>,
    /// Show the fleet as it is: ages by threshold, machine and job; of a generated one, also how it fits what is published
    #[arg(long)]
    pub(crate) survey: bool,
    /// With --format json: also tell what the configured pair comes to by hour, by machine and by job
    #[arg(long, conflicts_with_all = ["merge", "tally", "plan"])]
    pub(crate) detail: bool,
    /// With --format json: tell every pair of percentile and warm-up, not only the best and the front
    #[arg(long)]
    pub(crate) pairs: bool,
    /// What a GiB of DRAM costs, in any currency
    #[arg(long, value_name = "PRICE", value_parser = price)]
    pub(crate) dram_price_per_gib: Option<f64>,
    /// Threads [default: all cores]
    #[arg(long, conflicts_with = "merge")]
    pub(crate) threads: Option<std::num::NonZero<usize>>,
    /// Write the exact sums into a file instead of an answer, for `--merge`
    #[arg(long, value_name = "FILE", conflicts_with = "record")]
    pub(crate) tally: Option<PathBuf>,
    /// Keep what has been counted in a directory, and leave it out when started again with the same arguments
    #[arg(long, value_name = "DIRECTORY", conflicts_with_all = ["merge", "record", "plan"])]
    pub(crate) resume: Option<PathBuf>,
    /// Replay nothing; say what each of so many workers is to replay, so that no job is cut
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

/// Limits that a pass of the model takes, where they differ from the configured ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WhatIf {
    pub(crate) promotion_rate: Option<RatioPpm>,
    pub(crate) minimum_age: Option<std::time::Duration>,
    pub(crate) half_life: Option<std::time::Duration>,
    pub(crate) spikes: Option<bool>,
}

fn row_groups(text: &str) -> Result<std::ops::Range<u32>, String> {
    let range = text.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    range.ok_or_else(|| "write it as FROM..TO, such as 0..16".to_owned())
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
            _ => return Err(format!("{key:?} is not known; there are promotion_rate, minimum_age, half_life and spikes")),
        }
    }
    Ok(limits)
}

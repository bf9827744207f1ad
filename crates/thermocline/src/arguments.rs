//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use units::{Bytes, RatioPpm};

/// Far memory for Linux: finds the memory that nobody touches, moves it to cheaper memory, and keeps every job
/// inside its slowdown budget.
#[derive(Debug, Parser)]
#[command(name = "thermocline", version, max_term_width = 100)]
pub(crate) struct Arguments {
    /// How to print results
    #[arg(long, global = true, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) configuration: Configuration,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    Text,
    /// For programs: one JSON value, or one per line where results keep coming
    Json,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Configuration {
    /// The configuration file; conf.d/*.toml beside it is read too [default: /etc/thermocline/thermocline.toml]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Set one knob, over what the files say; may be given again
    #[arg(long = "set", global = true, value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) overrides: Vec<(String, String)>,
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write it as KEY=VALUE, such as agent.scan_period=30s")?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

pub(crate) fn duration(text: &str) -> Result<std::time::Duration, String> {
    config::quantity::parse_duration(text).map_err(|invalid| format!("{}; {}", invalid.message, invalid.remedy))
}

fn turn(text: &str) -> Result<std::time::Duration, String> {
    let turn = duration(text)?;
    if turn < std::time::Duration::from_secs(2) {
        return Err("pages take up to a second to come and go; give 2s or more".to_owned());
    }
    Ok(turn)
}

pub(crate) fn size(text: &str) -> Result<Bytes, String> {
    config::quantity::parse_bytes(text).map_err(|invalid| format!("{}; {}", invalid.message, invalid.remedy))
}

fn risk(text: &str) -> Result<RatioPpm, String> {
    let ratio = config::quantity::parse_ratio(text).map_err(|invalid| format!("{}; {}", invalid.message, invalid.remedy))?;
    if ratio == RatioPpm(0) || ratio >= RatioPpm::ONE {
        return Err("no measurement excludes a risk; give one above 0 and below 100%, such as 0.1%".to_owned());
    }
    Ok(ratio)
}

fn tier_cost(text: &str) -> Result<RatioPpm, String> {
    let ratio = config::quantity::parse_ratio(text).map_err(|invalid| format!("{}; {}", invalid.message, invalid.remedy))?;
    if ratio >= RatioPpm::ONE {
        return Err("memory that costs as much as DRAM saves nothing; give its share of DRAM's price, such as 0.25".to_owned());
    }
    Ok(ratio)
}

fn sample(text: &str) -> Result<RatioPpm, String> {
    let ratio = config::quantity::parse_ratio(text).map_err(|invalid| format!("{}; {}", invalid.message, invalid.remedy))?;
    if ratio == RatioPpm(0) || ratio > RatioPpm::ONE {
        return Err("give a share above 0 and up to 100%, such as 5%".to_owned());
    }
    Ok(ratio)
}

fn look_period(text: &str) -> Result<std::time::Duration, String> {
    let period = duration(text)?;
    let (least, most) = (std::time::Duration::from_millis(10), std::time::Duration::from_secs(3600));
    if !(least..=most).contains(&period) {
        return Err("give a time from 10ms to 1h, such as 1s".to_owned());
    }
    Ok(period)
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Tell what this machine can do, and how to enable what it cannot; changes nothing
    Doctor,
    /// Watch jobs and show their page ages and what could be saved; moves nothing
    Observe(Observe),
    /// Run a command as a job in a cgroup of its own, with far memory
    Run(Run),
    /// Run the node agent over the configured jobs
    Agent(AgentArguments),
    /// Show what a running agent sees and does
    Status,
    /// Show why a running agent did what it did to a job
    Explain(Explain),
    /// Tell a running agent that a job went to the background, or came back
    Hint(Hint),
    /// Feed a journal through the policies and compare their decisions with the recorded ones
    Replay(Replay),
    /// Advise a limit for each job, and how much memory the machine could promise, from what the journal holds
    Plan(Plan),
    /// Look at how often memory is accessed, and tell how much of it slow memory could hold; moves nothing
    Rates(Rates),
    /// Run a command as if a share of its memory were slow, and count what that costs it. For test machines: it stops,
    /// delays and traces the command
    Emulate(Emulate),
    /// Look at traces, and make of them what a fleet's evaluation reads
    #[command(subcommand)]
    Trace(TraceCommand),
    /// Say what a fleet would save, and feel, under other parameters, from its traces; changes nothing
    Model(Box<Model>),
    /// Compare two groups of machines by their traces: what differs, how sure that is, and how much would differ by chance;
    /// changes nothing
    Experiment(Experiment),
    /// Publish parameters for a fleet, signed, and say which machines follow them
    #[command(subcommand)]
    Rollout(crate::rollout::arguments::RolloutCommand),
    /// Say what sharing memory between machines would save: VM traces, and the DRAM that they strand
    #[command(subcommand)]
    Pool(crate::pool::arguments::PoolCommand),
    /// Check or show the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print a completion script for a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Write man pages, one per command, into a directory
    Man {
        /// Where to
        directory: PathBuf,
    },
    #[command(hide = true, name = crate::emulate::CHASE)]
    Chase { pages: usize, threads: usize },
    #[command(hide = true, name = agent::actuators::lru::CHILD_COMMAND)]
    ReclaimStep { parent: u32, cgroup: String, bytes: u64, swappiness: u8 },
}

#[derive(Debug, Args)]
pub(crate) struct Observe {
    /// Cgroups to watch, as patterns relative to the cgroup root; those of the configuration if none is given
    #[arg(value_name = "PATTERN")]
    pub(crate) jobs: Vec<String>,
    /// Stop after this long; otherwise at Ctrl-C
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) r#for: Option<std::time::Duration>,
    /// At the end, print the address ranges that are at least this old, per process
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) cold_ranges: Option<std::time::Duration>,
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// How the command is treated
    #[arg(long, default_value = "standard", value_parser = clap::builder::PossibleValuesParser::new(config::Class::NAMES))]
    pub(crate) class: String,
    /// Decide and show, but move nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    pub(crate) command: Vec<std::ffi::OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct AgentArguments {
    /// Decide and record, but move nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Stop after this long; otherwise at SIGTERM
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) r#for: Option<std::time::Duration>,
    /// Put back what a dead agent left behind, and exit
    #[arg(long, conflicts_with_all = ["dry_run", "for"])]
    pub(crate) restore: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// The job's cgroup relative to the cgroup root, such as /system.slice/redis.service
    pub(crate) job: String,
    /// How many of the last decisions to show
    #[arg(long, default_value_t = 10)]
    pub(crate) last: usize,
}

#[derive(Debug, Args)]
pub(crate) struct Hint {
    /// The job's cgroup relative to the cgroup root; its policy is background or auto
    pub(crate) job: String,
    /// Where it is; `auto` takes an earlier word back. It stands until the job ends
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(agent::socket::HINT_WORDS))]
    pub(crate) word: String,
}

#[derive(Debug, Args)]
pub(crate) struct Replay {
    /// The journal file [default: the newest of the configured agent.state_dir]
    pub(crate) journal: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Plan {
    /// Journal files of one machine, in any order [default: those in the configured agent.state_dir]
    #[arg(value_name = "JOURNAL")]
    pub(crate) journals: Vec<PathBuf>,
    /// Share of the time in which a limit or the promise may be missed
    #[arg(long, value_name = "RATIO", default_value = "1%", value_parser = risk)]
    pub(crate) risk: RatioPpm,
    /// Advise only on jobs whose cgroup matches; the machine is always all jobs
    #[arg(long, value_name = "PATTERN")]
    pub(crate) job: Option<String>,
    /// The machine's DRAM, such as 256GiB [default: this machine's, unless journals are named]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) dram: Option<Bytes>,
    /// What slow memory costs, as shares of DRAM's price, such as 0.25 or 20%: tells what it would save of the spending
    #[arg(long = "tier-cost", value_name = "RATIO", value_delimiter = ',', value_parser = tier_cost)]
    pub(crate) tier_costs: Vec<RatioPpm>,
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("whose").required(true)))]
pub(crate) struct Rates {
    /// A process; may be given again
    #[arg(long, value_name = "PID", group = "whose", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) pid: Vec<i32>,
    /// A job: all processes of this cgroup, relative to the cgroup root, and of those below it
    #[arg(long, value_name = "CGROUP", group = "whose")]
    pub(crate) job: Option<String>,
    /// How much of the memory to look at, chosen anew each time
    #[arg(long, value_name = "RATIO", default_value = "5%", value_parser = sample)]
    pub(crate) sample: RatioPpm,
    /// Look at all of it
    #[arg(long, conflicts_with = "sample")]
    pub(crate) all: bool,
    /// How often to look at each page; once more as often where a block is looked at in parts
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(2..=600))]
    pub(crate) looks: u32,
    /// The time from look to look: what is accessed much more often cannot be told apart
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = look_period)]
    pub(crate) look_period: std::time::Duration,
    /// Split huge pages that are accessed too often to tell, to look at their parts, and collapse them again. The one
    /// thing here that changes anything: the program does without these huge pages meanwhile
    #[arg(long)]
    pub(crate) split: bool,
    /// What one access to the slow memory in question takes
    #[arg(long, value_name = "DURATION", default_value = "1us", value_parser = duration)]
    pub(crate) latency: std::time::Duration,
}

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
    pub(crate) wait_for: Option<PathBuf>,
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
    pub(crate) report: Option<PathBuf>,
    /// Run no command; print how well pointer chases of known length keep to the latencies asked for
    #[arg(long, conflicts_with = "command")]
    pub(crate) calibrate: bool,
    /// The command and its arguments; the program itself, not a script that runs it
    #[arg(required_unless_present = "calibrate", trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    pub(crate) command: Vec<std::ffi::OsString>,
}

/// A latency: unlike other durations it may be as short as a nanosecond.
pub(crate) fn latency(text: &str) -> Result<std::time::Duration, String> {
    let units = [("ns", 1), ("us", 1_000), ("ms", 1_000_000)];
    let parsed = units.iter().find_map(|(unit, ns)| {
        let number: f64 = text.trim().strip_suffix(unit)?.trim().parse().ok()?;
        std::time::Duration::try_from_secs_f64(number * f64::from(*ns) / 1e9).ok()
    });
    parsed
        .filter(|latency| (1..=1_000_000_000).contains(&latency.as_nanos()))
        .ok_or_else(|| "write a latency from 1ns to 1000ms, such as 300ns, 1us or 2.5us".to_owned())
}

pub(crate) fn share(text: &str) -> Result<RatioPpm, String> {
    let ratio = config::quantity::parse_ratio(text).map_err(|invalid| format!("{}; {}", invalid.message, invalid.remedy))?;
    if ratio > RatioPpm::ONE {
        return Err("there is no more than all of it; give at most 100%".to_owned());
    }
    Ok(ratio)
}

#[derive(Debug, Subcommand)]
pub(crate) enum TraceCommand {
    /// List the files, with what is in each
    List(Traces),
    /// Show each job: memory, coverage, promotions, stalls
    Show(TracesOfJobs),
    /// Read everything, and report what cannot be true; exits with 1 if anything cannot
    Validate(Traces),
    /// Make one sorted file of many
    Merge(TracesInto),
    /// Print every entry: as comma-separated values, or with --format json as one JSON object per line
    Export(TracesOfJobs),
    /// Make the file that a model replays fastest
    Compact(TracesInto),
}

#[derive(Debug, Args)]
pub(crate) struct Traces {
    /// Files, directories or s3://bucket/prefix [default: the configured trace.store]
    #[arg(value_name = "URL")]
    pub(crate) urls: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct TracesOfJobs {
    #[command(flatten)]
    pub(crate) traces: Traces,
    /// Only jobs whose cgroup matches
    #[arg(long, value_name = "PATTERN")]
    pub(crate) job: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct TracesInto {
    #[command(flatten)]
    pub(crate) traces: Traces,
    /// The file to make: a path, or s3://bucket/path
    #[arg(long, value_name = "FILE")]
    pub(crate) to: String,
}

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

fn row_groups(text: &str) -> Result<std::ops::Range<u32>, String> {
    let range = text.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    range.ok_or_else(|| "write it as FROM..TO, such as 0..16".to_owned())
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

pub(crate) fn ratio(text: &str) -> Result<RatioPpm, String> {
    config::quantity::parse_ratio(text).map_err(|invalid| format!("{}; {}", invalid.message, invalid.remedy))
}

fn price(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|price: &f64| price.is_finite() && *price >= 0.0).ok_or_else(|| "write a number, such as 3.50".to_owned())
}

#[derive(Debug, Args)]
pub(crate) struct Experiment {
    /// Where traces are: a directory, or s3://bucket/prefix [default: the configured trace.store]
    #[arg(long, value_name = "URL")]
    pub(crate) trace: Option<String>,
    /// The group that is compared with: terms that all hold, of bundle=VERSION, cluster=PATTERN, class=CLASS, machine=PATTERN and
    /// hash=FROM..UNTIL[@SALT], such as cluster=eu-*,hash=0%..50%
    #[arg(long, value_name = "TERM,...", value_parser = group)]
    pub(crate) a: rollout::experiment::Group,
    /// The other group, the same way
    #[arg(long, value_name = "TERM,...", value_parser = group)]
    pub(crate) b: rollout::experiment::Group,
    /// Only what happened since then, such as 2026-11-20T12:00:00Z
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) from: Option<u64>,
    /// Only what happened before then
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) until: Option<u64>,
    /// Take off what machines were like for so long before --from, which makes intervals narrower
    #[arg(long, value_name = "DURATION", requires = "from", value_parser = duration)]
    pub(crate) before: Option<std::time::Duration>,
    /// The promotion rate that an entry should not exceed [default: cold_age.promotion_rate]
    #[arg(long, value_name = "RATIO", value_parser = ratio)]
    pub(crate) objective: Option<RatioPpm>,
    /// The seed of every draw
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(crate) seed: u64,
}

fn group(text: &str) -> Result<rollout::experiment::Group, String> {
    rollout::experiment::Group::parse(text)
}

/// A time, as milliseconds since the epoch.
fn time(text: &str) -> Result<u64, String> {
    let time: Result<jiff::Timestamp, _> = text.parse();
    time.ok()
        .and_then(|time| u64::try_from(time.as_millisecond()).ok())
        .ok_or_else(|| "write a date and time with its zone, such as 2026-11-20T12:00:00Z".to_owned())
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Report everything that is wrong with the configuration, or that it is sound
    Check,
    /// Print the configuration in effect, with what each knob means
    Show,
    /// List what can be set: values, bounds, and where a tuner looks for better ones
    Knobs,
}

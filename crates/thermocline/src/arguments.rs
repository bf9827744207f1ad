//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use policy::units::{Bytes, RatioPpm};

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

fn duration(text: &str) -> Result<std::time::Duration, String> {
    config::quantity::parse_duration(text).map_err(|invalid| format!("{}; {}", invalid.message, invalid.remedy))
}

fn size(text: &str) -> Result<Bytes, String> {
    config::quantity::parse_bytes(text).map_err(|invalid| format!("{}; {}", invalid.message, invalid.remedy))
}

fn risk(text: &str) -> Result<RatioPpm, String> {
    let ratio = config::quantity::parse_ratio(text).map_err(|invalid| format!("{}; {}", invalid.message, invalid.remedy))?;
    if ratio == RatioPpm(0) || ratio >= RatioPpm::ONE {
        return Err("no measurement excludes a risk; give one above 0 and below 100%, such as 0.1%".to_owned());
    }
    Ok(ratio)
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
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Report everything that is wrong with the configuration, or that it is sound
    Check,
    /// Print the configuration in effect, with what each knob means
    Show,
}

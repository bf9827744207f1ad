//! Arguments of `thermocline rollout`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use units::RatioPpm;

use crate::values::{duration, ratio};

#[derive(Debug, Subcommand)]
pub(crate) enum RolloutCommand {
    /// Create the signing keys
    Keygen(Keygen),
    /// Create a repository in an empty store, and write the root file that machines trust
    Init(Init),
    /// Check, sign and publish a bundle. No machine follows it yet
    Publish(Publish),
    /// Assign bundles to machines
    Assign(Box<Assign>),
    /// Revoke a bundle: machines that followed it return to the previous one
    Revoke(Revoke),
    /// Renew the signatures before they expire
    Refresh(Signing),
    /// Replace all keys
    Rotate(Rotate),
    /// List the published bundles and their assignment
    List(Repository),
    /// Show a bundle
    Show(Show),
    /// Verify all signatures and expiry dates as a machine does
    Verify(Repository),
    /// Show which bundle a machine follows
    Which(Which),
    /// Rehearse a rollout in virtual time, on a fleet of generated jobs or of jobs from traces; writes nothing
    Rehearse(Rehearse),
    #[command(flatten)]
    Steps(StepCommand),
}

/// Staged rollout of a bundle.
#[derive(Debug, Subcommand)]
pub(crate) enum StepCommand {
    /// Print the default plan of stages and guards, or check one
    Plan(PlanArguments),
    /// Start the staged rollout of a published bundle
    Start(Box<Start>),
    /// Evaluate once: compare treated and control machines, then promote, hold or roll back
    Step(Driver),
    /// Evaluate repeatedly until the rollout ends
    Run(RunArguments),
    /// Show the stage of a rollout and the reasons
    Status(StatusArguments),
    /// Keep a rollout in its stage; guards can still roll it back
    Pin(Act),
    /// Stop all decisions: machines keep their bundle
    Stop(Act),
    /// Continue after a pin or a stop
    Resume(Act),
    /// Withdraw the bundle from all machines
    Rollback(Act),
}

#[derive(Debug, Args)]
pub(crate) struct PlanArguments {
    /// A plan to check
    pub(crate) file: Option<PathBuf>,
}

/// Arguments of every step.
#[derive(Debug, Args)]
pub(crate) struct Driver {
    #[command(flatten)]
    pub(crate) signing: Signing,
    /// The machines' traces: a directory, or s3://bucket/prefix [default: the configured trace.store]
    #[arg(long, value_name = "URL")]
    pub(crate) trace: Option<String>,
    /// Log of the steps with their evidence [default: the bundle store]
    #[arg(long, value_name = "URL")]
    pub(crate) log: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Start {
    /// The bundle's version
    pub(crate) version: u64,
    /// The plan [default: the one that `thermocline rollout plan` prints]
    #[arg(long, value_name = "FILE")]
    pub(crate) plan: Option<PathBuf>,
    /// The rollout's id; it seeds the order in which machines are treated [default: the bundle and the time]
    #[arg(long, value_parser = id)]
    pub(crate) id: Option<String>,
    /// The version that all other machines follow [default: the one that they follow now]
    #[arg(long, value_name = "VERSION")]
    pub(crate) previous: Option<u64>,
    #[command(flatten)]
    pub(crate) driver: Driver,
}

#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    /// Time between evaluations
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = every)]
    pub(crate) every: Duration,
    #[command(flatten)]
    pub(crate) driver: Driver,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArguments {
    #[command(flatten)]
    pub(crate) repository: Repository,
    /// Log of the steps [default: the bundle store]
    #[arg(long, value_name = "URL")]
    pub(crate) log: Option<String>,
    /// Number of last steps to show
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) last: u64,
}

#[derive(Debug, Args)]
pub(crate) struct Act {
    /// The reason, for the log
    #[arg(long)]
    pub(crate) why: Option<String>,
    #[command(flatten)]
    pub(crate) driver: Driver,
}

fn id(text: &str) -> Result<String, String> {
    let valid =
        (1..=100).contains(&text.len()) && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) && !text.starts_with('.');
    if valid { Ok(text.to_owned()) } else { Err("give 1 to 100 letters, digits, '-', '_' and '.', not beginning with '.'".to_owned()) }
}

pub(crate) fn every(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    let (least, most) = (Duration::from_secs(1), Duration::from_secs(86_400));
    if !(least..=most).contains(&time) {
        return Err("give a time from 1s to 1d, such as 5m".to_owned());
    }
    Ok(time)
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Repository {
    /// The bundle store: a directory, or s3://bucket/prefix [default: the configured rollout.store]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// The root file [default: the configured rollout.root]
    #[arg(long, value_name = "FILE")]
    pub(crate) root: Option<PathBuf>,
}

/// Arguments of every change.
#[derive(Clone, Debug, Args)]
pub(crate) struct Signing {
    #[command(flatten)]
    pub(crate) repository: Repository,
    /// The directory of the signing keys
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) keys: PathBuf,
    /// Validity of the signatures: machines call the store stale if it is not updated for this time
    #[arg(long, value_name = "DURATION", default_value = "7d", value_parser = validity)]
    pub(crate) valid: Duration,
    /// Show what would be done; change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Keygen {
    /// The directory: empty, or not existing
    pub(crate) directory: PathBuf,
    /// Number of root keys; a threshold of them must sign a key replacement
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) root_keys: u8,
    /// Show what would be created; create nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Init {
    #[command(flatten)]
    pub(crate) signing: Signing,
    /// Number of root keys that must sign
    #[arg(long, default_value_t = 1)]
    pub(crate) root_threshold: u8,
}

#[derive(Debug, Args)]
pub(crate) struct Publish {
    /// The bundle, a TOML file
    pub(crate) bundle: PathBuf,
    #[command(flatten)]
    pub(crate) signing: Signing,
}

#[derive(Debug, Args)]
pub(crate) struct Assign {
    /// The rollout's id; it seeds the order in which machines are treated
    #[arg(long, value_name = "ID")]
    pub(crate) rollout: String,
    /// The version to roll out; none returns all machines to --previous
    #[arg(long, value_name = "VERSION")]
    pub(crate) bundle: Option<u64>,
    /// The version that all other machines follow; none is their configuration file
    #[arg(long, value_name = "VERSION")]
    pub(crate) previous: Option<u64>,
    /// The stage's name
    #[arg(long, value_name = "NAME", default_value = "by hand")]
    pub(crate) stage: String,
    /// The share of machines that follow the bundle
    #[arg(long, value_name = "RATIO", value_parser = ratio)]
    pub(crate) share: RatioPpm,
    /// The share of control machines, which never get the bundle
    #[arg(long, value_name = "RATIO", default_value = "5%", value_parser = ratio)]
    pub(crate) control: RatioPpm,
    /// Only machines of this cluster; repeatable
    #[arg(long = "cluster", value_name = "NAME")]
    pub(crate) clusters: Vec<String>,
    /// Pin the assignment: `rollout step` does not change it
    #[arg(long)]
    pub(crate) pinned: bool,
    #[command(flatten)]
    pub(crate) signing: Signing,
}

#[derive(Debug, Args)]
pub(crate) struct Revoke {
    /// The version
    pub(crate) version: u64,
    #[command(flatten)]
    pub(crate) signing: Signing,
}

#[derive(Debug, Args)]
pub(crate) struct Rotate {
    #[command(flatten)]
    pub(crate) signing: Signing,
    /// The directory of the new keys
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) new_keys: PathBuf,
    /// Number of the new root keys that must sign
    #[arg(long, default_value_t = 1)]
    pub(crate) root_threshold: u8,
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// The version [default: the latest]
    pub(crate) version: Option<u64>,
    #[command(flatten)]
    pub(crate) repository: Repository,
}

#[derive(Debug, Args)]
pub(crate) struct Which {
    /// The machine's name in traces
    pub(crate) machine: String,
    /// The machine's cluster
    #[arg(long, value_name = "NAME", default_value = "")]
    pub(crate) cluster: String,
    #[command(flatten)]
    pub(crate) repository: Repository,
}

fn validity(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    let (least, most) = (Duration::from_secs(60), Duration::from_secs(365 * 86_400));
    if !(least..=most).contains(&time) {
        return Err("give a time from 1m to 365d, such as 7d".to_owned());
    }
    Ok(time)
}

#[derive(Debug, Args)]
pub(crate) struct Rehearse {
    /// A bundle to rehearse [default: one that saves more, and one that does harm]
    #[arg(value_name = "BUNDLE")]
    pub(crate) bundle: Option<PathBuf>,
    /// The plan [default: the one that `thermocline rollout plan` prints]
    #[arg(long, value_name = "FILE")]
    pub(crate) plan: Option<PathBuf>,
    /// Traces whose jobs the fleet is made of: files or directories [default: generated jobs]
    #[arg(long, value_name = "PATH", num_args = 1..)]
    pub(crate) trace: Vec<PathBuf>,
    /// Machines of the fleet
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(20..=20_000))]
    pub(crate) machines: u64,
    /// Seed of the fleet, and of the machines' order
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

//! Arguments of `thermocline rollout`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use units::RatioPpm;

use crate::values::{duration, ratio};

#[derive(Debug, Subcommand)]
pub(crate) enum RolloutCommand {
    /// Make the keys that sign what is published
    Keygen(Keygen),
    /// Begin a repository in an empty store, and write the root that machines are to trust
    Init(Init),
    /// Check a bundle, sign it and publish it. Nobody follows it yet
    Publish(Publish),
    /// Say which machines follow which bundle
    Assign(Box<Assign>),
    /// Take a bundle back: who followed it goes back to what was before it
    Revoke(Revoke),
    /// Renew the signatures before they expire
    Refresh(Signing),
    /// Replace all keys by others
    Rotate(Rotate),
    /// List what is published, and who follows it
    List(Repository),
    /// Show a bundle
    Show(Show),
    /// Verify everything as a machine does, expiry included
    Verify(Repository),
    /// Say what a machine is to follow
    Which(Which),
    #[command(flatten)]
    Steps(StepCommand),
}

/// A bundle's way to the machines, stage by stage.
#[derive(Debug, Subcommand)]
pub(crate) enum StepCommand {
    /// Print the default plan of stages and guardrails, to be changed, or check one
    Plan(PlanArguments),
    /// Begin to bring a published bundle to the machines, stage by stage
    Start(Box<Start>),
    /// Look once: compare the machines with the bundle with those held back, and promote, hold or roll back
    Step(Driver),
    /// Look again and again, until the rollout is over
    Run(RunArguments),
    /// Show where a rollout is, and why
    Status(StatusArguments),
    /// Keep a rollout in its stage; guards still roll it back
    Pin(Act),
    /// Decide nothing any more: machines keep what they have
    Stop(Act),
    /// Go on after a pin or a stop
    Resume(Act),
    /// Take the bundle back from all machines
    Rollback(Act),
}

#[derive(Debug, Args)]
pub(crate) struct PlanArguments {
    /// A plan to check
    pub(crate) file: Option<PathBuf>,
}

/// What every step takes.
#[derive(Debug, Args)]
pub(crate) struct Driver {
    #[command(flatten)]
    pub(crate) signing: Signing,
    /// Where the machines' traces are: a directory, or s3://bucket/prefix [default: the configured trace.store]
    #[arg(long, value_name = "URL")]
    pub(crate) trace: Option<String>,
    /// Where every step is logged, with its evidence [default: the store of bundles]
    #[arg(long, value_name = "URL")]
    pub(crate) log: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Start {
    /// The bundle's version
    pub(crate) version: u64,
    /// The plan [default: that which `thermocline rollout plan` prints]
    #[arg(long, value_name = "FILE")]
    pub(crate) plan: Option<PathBuf>,
    /// The rollout's id: machines draw their places by it, anew for another id [default: the bundle and the time]
    #[arg(long, value_parser = id)]
    pub(crate) id: Option<String>,
    /// The version that all others follow [default: what they follow now]
    #[arg(long, value_name = "VERSION")]
    pub(crate) previous: Option<u64>,
    #[command(flatten)]
    pub(crate) driver: Driver,
}

#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    /// How often
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = every)]
    pub(crate) every: Duration,
    #[command(flatten)]
    pub(crate) driver: Driver,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArguments {
    #[command(flatten)]
    pub(crate) repository: Repository,
    /// Where its steps are logged [default: the store of bundles]
    #[arg(long, value_name = "URL")]
    pub(crate) log: Option<String>,
    /// How many of the last steps to show
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) last: u64,
}

#[derive(Debug, Args)]
pub(crate) struct Act {
    /// Why, for whoever reads the log
    #[arg(long)]
    pub(crate) why: Option<String>,
    #[command(flatten)]
    pub(crate) driver: Driver,
}

fn id(text: &str) -> Result<String, String> {
    let sound =
        (1..=100).contains(&text.len()) && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) && !text.starts_with('.');
    if sound { Ok(text.to_owned()) } else { Err("give 1 to 100 letters, digits, '-', '_' and '.', not beginning with '.'".to_owned()) }
}

fn every(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    let (least, most) = (Duration::from_secs(1), Duration::from_secs(86_400));
    if !(least..=most).contains(&time) {
        return Err("give a time from 1s to 1d, such as 5m".to_owned());
    }
    Ok(time)
}

#[derive(Debug, Args)]
pub(crate) struct Repository {
    /// Where bundles are published: a directory, or s3://bucket/prefix [default: the configured rollout.store]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// The file of the trusted root [default: the configured rollout.root]
    #[arg(long, value_name = "FILE")]
    pub(crate) root: Option<PathBuf>,
}

/// What every change takes.
#[derive(Debug, Args)]
pub(crate) struct Signing {
    #[command(flatten)]
    pub(crate) repository: Repository,
    /// The directory of the keys to sign with
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) keys: PathBuf,
    /// How long machines may go without news before they call the store stale
    #[arg(long, value_name = "DURATION", default_value = "7d", value_parser = validity)]
    pub(crate) valid: Duration,
    /// Say what would be done, and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Keygen {
    /// Where to: an empty directory, or one that does not exist
    pub(crate) directory: PathBuf,
    /// Keys of the root, of which some or all must sign when keys are replaced
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) root_keys: u8,
    /// Say what would be made, and make nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Init {
    #[command(flatten)]
    pub(crate) signing: Signing,
    /// How many of the root's keys must sign
    #[arg(long, default_value_t = 1)]
    pub(crate) root_threshold: u8,
}

#[derive(Debug, Args)]
pub(crate) struct Publish {
    /// The bundle: a file of TOML
    pub(crate) bundle: PathBuf,
    #[command(flatten)]
    pub(crate) signing: Signing,
}

#[derive(Debug, Args)]
pub(crate) struct Assign {
    /// The rollout's id: machines draw their places by it, anew for another id
    #[arg(long, value_name = "ID")]
    pub(crate) rollout: String,
    /// The version that is rolled out; none brings everybody back to --previous
    #[arg(long, value_name = "VERSION")]
    pub(crate) bundle: Option<u64>,
    /// The version that all others follow; none is their configuration file
    #[arg(long, value_name = "VERSION")]
    pub(crate) previous: Option<u64>,
    /// The stage's name
    #[arg(long, value_name = "NAME", default_value = "by hand")]
    pub(crate) stage: String,
    /// The share of machines that follow the bundle
    #[arg(long, value_name = "RATIO", value_parser = ratio)]
    pub(crate) share: RatioPpm,
    /// The share of machines that are held back, to be compared with
    #[arg(long, value_name = "RATIO", default_value = "5%", value_parser = ratio)]
    pub(crate) control: RatioPpm,
    /// Only machines of this cluster; may be given again
    #[arg(long = "cluster", value_name = "NAME")]
    pub(crate) clusters: Vec<String>,
    /// Have whoever decides about stages leave it alone
    #[arg(long)]
    pub(crate) pinned: bool,
    #[command(flatten)]
    pub(crate) signing: Signing,
}

#[derive(Debug, Args)]
pub(crate) struct Revoke {
    /// Which
    pub(crate) version: u64,
    #[command(flatten)]
    pub(crate) signing: Signing,
}

#[derive(Debug, Args)]
pub(crate) struct Rotate {
    #[command(flatten)]
    pub(crate) signing: Signing,
    /// The directory of the keys to sign with from now on
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) new_keys: PathBuf,
    /// How many of the new root's keys must sign
    #[arg(long, default_value_t = 1)]
    pub(crate) root_threshold: u8,
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// Which version [default: the latest]
    pub(crate) version: Option<u64>,
    #[command(flatten)]
    pub(crate) repository: Repository,
}

#[derive(Debug, Args)]
pub(crate) struct Which {
    /// The machine's name in traces
    pub(crate) machine: String,
    /// Its cluster's
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

//! Arguments of `thermocline rollout`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use policy::units::RatioPpm;

use crate::arguments::{duration, ratio};

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

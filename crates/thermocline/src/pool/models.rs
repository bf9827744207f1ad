//! `thermocline pool models`: signed models for the hosts of a pool.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ::rollout::follow::{Follower, Settings};
use ::rollout::models::{self, Change, Followed, Paths};
use ::rollout::repository::Change as Published;
use ::rollout::sha256_of;
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use config::bundle::rfc3339;
use config::{Bundle, Config};
use predict::{Insensitive, Untouched};

use crate::exits;
use crate::fleet::rollout::arguments::{Driver, Signing, Start};
use crate::fleet::rollout::{operator, print_change, reader, steps};
use crate::options::Format;
use crate::output::print;
use crate::values::duration;

/// Interval of polls, of which the follower has no need here: each run of the command is one.
const POLL: Duration = Duration::from_secs(300);

#[derive(Debug, Subcommand)]
pub(crate) enum Models {
    /// Check, sign and publish models as a bundle. No host follows it yet: assign it by `thermocline rollout assign`
    Publish(Publish),
    /// Fetch the models that are assigned to a host, verify them, and write them to the files of its configuration, which the host
    /// reads again by itself. One poll: run it from a timer
    Fetch(Fetch),
    /// Evaluate the staged rollout of a bundle of models by the guests of all hosts: promote, hold, or roll it back. It was started by
    /// `thermocline rollout start`
    Step(super::rollout::Step),
    /// Judge models by the guests of all hosts that got pool memory by them. Run it before a new bundle is for more hosts
    Judge(super::judge::Judge),
}

#[derive(Debug, Args)]
pub(crate) struct Publish {
    /// The model of untouched memory
    #[arg(long, value_name = "FILE", required_unless_present = "insensitive")]
    untouched: Option<PathBuf>,
    /// The model of insensitivity to latency
    #[arg(long, value_name = "FILE")]
    insensitive: Option<PathBuf>,
    /// The bundle's name [default: models-TIME]
    #[arg(long)]
    id: Option<String>,
    /// How long hosts follow the bundle
    #[arg(long, value_name = "DURATION", default_value = "30d", value_parser = lifetime)]
    expires: Duration,
    /// Also begin the staged rollout of the bundle by this plan. It does not begin while another one runs, or before a first bundle was
    /// assigned
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    #[command(flatten)]
    signing: Signing,
}

#[derive(Debug, Args)]
pub(crate) struct Fetch {
    /// The host's configuration file, with the store, its root and the files in [predict]
    #[arg(long, value_name = "FILE", default_value = "/etc/thermocline/pool-host.toml")]
    config: PathBuf,
    /// The host's cluster, for stages that begin with some clusters
    #[arg(long, value_name = "NAME", default_value = "")]
    cluster: String,
    /// Show what would be done; change no model
    #[arg(long)]
    dry_run: bool,
}

fn lifetime(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    let (least, most) = (Duration::from_secs(3_600), Duration::from_secs(365 * 86_400));
    if !(least..=most).contains(&time) {
        return Err("give a time from 1h to 365d, such as 30d".to_owned());
    }
    Ok(time)
}

/// Runs a command about models.
pub(super) fn models(format: Format, command: &Models) -> Result<ExitCode> {
    match command {
        Models::Publish(arguments) => return publish(format, arguments),
        Models::Fetch(arguments) => fetch(format, arguments)?,
        Models::Step(arguments) => super::rollout::step(format, arguments)?,
        Models::Judge(arguments) => return super::judge::judge(format, arguments),
    }
    Ok(ExitCode::SUCCESS)
}

fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs())
}

fn publish(format: Format, arguments: &Publish) -> Result<ExitCode> {
    let Publish { untouched, insensitive, id, expires, plan, signing } = arguments;
    // A file that no host could use is not published, nor is any if its rollout could not be evaluated.
    plan.as_deref().map(|file| super::rollout::check(&steps::plan_of(Some(file))?)).transpose()?;
    untouched.as_deref().map(Untouched::load).transpose()?;
    insensitive.as_deref().map(Insensitive::load).transpose()?;
    let read = |file: &Option<PathBuf>| {
        file.as_ref().map(|file| std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))).transpose()
    };
    let (untouched, insensitive) = (read(untouched)?, read(insensitive)?);
    let config = Config::default();
    let last = reader(&config, &signing.repository)?.contents(true)?.bundles.last().map_or(0, |bundle| bundle.version);
    let now = now_unix_s();
    let bundle = Bundle {
        version: last + 1,
        id: id.clone().unwrap_or_else(|| format!("models-{}", rfc3339(now))),
        created_unix_s: now,
        expires_unix_s: now.saturating_add(expires.as_secs()),
        provenance: config::bundle::Provenance::default(),
        models: config::bundle::Models {
            untouched: untouched.as_deref().map(sha256_of),
            insensitive: insensitive.as_deref().map(sha256_of),
        },
        knobs: std::collections::BTreeMap::new(),
    };
    // Checks what an operator has chosen: the name.
    let bundle = Bundle::parse("the bundle", &bundle.to_toml())?;
    let files: Vec<Vec<u8>> = [untouched, insensitive].into_iter().flatten().collect();
    let changed = operator(&config, signing)?.change(Published::PublishModels(&bundle, &files), signing.dry_run)?;
    let names: Vec<&str> = bundle.models.by_name().into_iter().filter(|(_, digest)| digest.is_some()).map(|(name, _)| name).collect();
    let (version, until) = (bundle.version, rfc3339(bundle.expires_unix_s));
    print_change(format, &changed, &format!("bundle {version} ({}) of {}, valid until {until}", bundle.id, names.join(" and ")))?;
    plan.as_deref().map_or(Ok(ExitCode::SUCCESS), |plan| begin(&config, format, version, plan, signing))
}

/// Begins the staged rollout of a bundle that was published now, if nothing is in its way.
fn begin(config: &Config, format: Format, version: u64, plan: &Path, signing: &Signing) -> Result<ExitCode> {
    if let Some(why) = steps::obstacle(config, &signing.repository)? {
        log::warn!("the rollout of bundle {version} does not begin: {why}");
        return Ok(exits::negative());
    }
    if signing.dry_run {
        let would = serde_json::json!({ "begins": version, "dry_run": true });
        print(format, &would, || format!("dry run, nothing is written: the rollout of bundle {version} begins by {}\n", plan.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let driver = Driver { signing: signing.clone(), trace: None, log: None };
    steps::start(config, format, &Start { version, plan: Some(plan.to_owned()), id: None, previous: None, driver })?;
    Ok(ExitCode::SUCCESS)
}

fn fetch(format: Format, arguments: &Fetch) -> Result<()> {
    let file = &arguments.config;
    let settings = pool_host::settings::Settings::load(file)?;
    let Some(predict) = settings.predict else {
        bail!("{} has no table [predict]: add it, with the files of the models and the store", file.display());
    };
    let Some(store) = predict.store else {
        bail!("{} does not set predict.store: name the store that `thermocline pool models publish` writes to", file.display());
    };
    let (mut follower, remembered) = Follower::new(Settings {
        store,
        network: None,
        root: predict.root,
        poll: POLL,
        state_dir: settings.state,
        machine: settings.host.name,
        cluster: arguments.cluster.clone(),
    });
    if let Err(error) = remembered {
        log::warn!("what was verified before cannot be read: {error}");
    }
    let paths = Paths { untouched: Some(predict.untouched), insensitive: predict.insensitive };
    let followed = models::follow(&mut follower, &paths, now_unix_s(), arguments.dry_run)?;
    print(format, &followed, || text(&followed))?;
    match followed.trouble {
        Some(trouble) => bail!("{trouble}; the models stay as they were verified before"),
        None => Ok(()),
    }
}

fn text(followed: &Followed) -> String {
    let Followed { version, id, why, files, dry_run, .. } = followed;
    let mut text = match (version, id) {
        (Some(version), Some(id)) => format!("bundle {version} ({id})\n"),
        _ => format!("no bundle: {}\n", why.as_deref().unwrap_or("none is assigned")),
    };
    for file in files {
        let done = match file.change {
            Change::Written if *dry_run => "would be written",
            Change::Written => "written",
            Change::Removed if *dry_run => "would be removed",
            Change::Removed => "removed",
            Change::Unchanged => "unchanged",
        };
        text += &format!("{}: {} {done}\n", file.model, file.file.display());
    }
    text
}

//! `thermocline rollout`: signed bundles, their assignment to machines, and staged rollouts.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use ::rollout::assignment::{self, Assignment, Group, SCHEMA};
use ::rollout::keys::{self, KeyFile};
use ::rollout::repository::{Change, ChangeSummary, Contents, Operator, Validity};
use anyhow::{Context, Result, bail};
use config::bundle::{BYTES_MAX, rfc3339};
use config::{Bundle, Config};
use serde_json::json;

use crate::exits;
use crate::options::Format;
use crate::output::print;
use crate::table::Table;

pub(crate) mod arguments;
pub(crate) mod rehearse;
pub(crate) mod status;
pub(crate) mod steps;
pub(crate) mod words;

use ::rollout::stage::Action;
use arguments::StepCommand;
use arguments::{Assign, Repository, RolloutCommand, Show, Signing, Which};

/// Runs a rollout command.
pub(crate) fn run(config: &Config, format: Format, command: &RolloutCommand) -> Result<ExitCode> {
    match command {
        RolloutCommand::Keygen(arguments) => {
            let made = keys::generate(&arguments.directory, arguments.root_keys, arguments.dry_run)?;
            print(format, &made, || keys_text(&made, arguments.dry_run))?;
        }
        RolloutCommand::Init(arguments) => {
            let signing = &arguments.signing;
            let changed = operator(config, signing)?.init(arguments.root_threshold, signing.dry_run)?;
            let root = root(config, &signing.repository);
            print_change(format, &changed, &format!("copy {} to each machine as rollout.root", root.display()))?;
        }
        RolloutCommand::Publish(arguments) => {
            let bundle = read_bundle(&arguments.bundle)?;
            let what = format!("bundle {} ({}), valid until {}", bundle.version, bundle.id, rfc3339(bundle.expires_unix_s));
            change(config, format, &arguments.signing, Change::Publish(&bundle), &what)?;
        }
        RolloutCommand::Assign(arguments) => {
            let assignment = assignment_of(arguments);
            change(config, format, &arguments.signing, Change::Assign(&assignment), &assignment_text(&assignment))?;
        }
        RolloutCommand::Revoke(arguments) => {
            let what = format!("bundle {} is revoked", arguments.version);
            change(config, format, &arguments.signing, Change::Revoke(arguments.version), &what)?;
        }
        RolloutCommand::Refresh(signing) => change(config, format, signing, Change::Refresh, "signatures renewed")?,
        RolloutCommand::Rotate(arguments) => {
            let signing = &arguments.signing;
            let changed = operator(config, signing)?.rotate(&arguments.new_keys, arguments.root_threshold, signing.dry_run)?;
            print_change(
                format,
                &changed,
                &format!("keys in {} sign from now on; the old keys are no longer valid", arguments.new_keys.display()),
            )?;
        }
        RolloutCommand::Rehearse(arguments) => {
            if !rehearse::rehearse(config, format, arguments)? {
                return Ok(exits::negative());
            }
        }
        RolloutCommand::Steps(command) => step(config, format, command)?,
        RolloutCommand::List(repository) => {
            let contents = reader(config, repository)?.contents(true)?;
            print(format, &contents, || contents_text(&contents))?;
        }
        RolloutCommand::Show(arguments) => show(config, format, arguments)?,
        RolloutCommand::Verify(repository) => return verify(config, format, repository),
        RolloutCommand::Which(arguments) => which(config, format, arguments)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Verifies the whole repository.
fn verify(config: &Config, format: Format, repository: &Repository) -> Result<ExitCode> {
    let contents = reader(config, repository)?.contents(false)?;
    let valid = contents.problems.is_empty();
    let first = contents.roles.iter().min_by_key(|role| role.expires_unix_s);
    let until = first.map(|role| format!("; {} expires first, at {}", role.role, rfc3339(role.expires_unix_s))).unwrap_or_default();
    print(format, &json!({ "ok": valid, "problems": contents.problems, "roles": contents.roles }), || {
        let problems: String = contents.problems.iter().map(|problem| format!("{problem}\n")).collect();
        format!("{problems}{} bundles verified{until}\n", contents.bundles.len())
    })?;
    Ok(if valid { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Shows which bundle a machine follows.
fn which(config: &Config, format: Format, arguments: &Which) -> Result<()> {
    let contents = reader(config, &arguments.repository)?.contents(true)?;
    let assignment = contents.assignment.context("nothing is assigned yet; see `thermocline rollout assign`")?;
    let which = assignment::assigned(&assignment, &arguments.machine, &arguments.cluster);
    let version = assignment.version(&arguments.machine, &arguments.cluster);
    let place = assignment::place_ppm(&assignment.rollout, &arguments.machine);
    let arm = match which {
        Group::Bundle(_) => "bundle",
        Group::Previous => "previous",
        Group::Control => "control",
    };
    let shown = json!({ "machine": arguments.machine, "cluster": arguments.cluster, "arm": arm, "version": version, "place_ppm": place });
    print(format, &shown, || {
        let by = version.map_or_else(|| "its configuration file".to_owned(), |version| format!("bundle {version}"));
        format!("{} follows {by}: among {arm}, at {} of the fleet\n", arguments.machine, place)
    })
}

/// Runs a command of a staged rollout.
fn step(config: &Config, format: Format, command: &StepCommand) -> Result<()> {
    match command {
        StepCommand::Plan(arguments) => steps::plan(format, arguments),
        StepCommand::Start(arguments) => steps::start(config, format, arguments),
        StepCommand::Step(driver) => steps::step(config, format, driver),
        StepCommand::Run(arguments) => steps::run(config, format, arguments),
        StepCommand::Status(arguments) => steps::status(config, format, arguments),
        StepCommand::Pin(arguments) => steps::act(config, format, Action::Pin, arguments),
        StepCommand::Stop(arguments) => steps::act(config, format, Action::Stop, arguments),
        StepCommand::Resume(arguments) => steps::act(config, format, Action::Resume, arguments),
        StepCommand::Rollback(arguments) => steps::act(config, format, Action::RollBack, arguments),
    }
}

fn store(config: &Config, repository: &Repository) -> Result<String> {
    match &repository.store {
        Some(store) => Ok(store.clone()),
        None if config.rollout.store.is_empty() => bail!("name the store by --store; none is configured as rollout.store"),
        None => Ok(config.rollout.store.clone()),
    }
}

fn root(config: &Config, repository: &Repository) -> PathBuf {
    repository.root.clone().unwrap_or_else(|| config.rollout.root.clone())
}

/// The repository with the keys to change it.
pub(crate) fn operator(config: &Config, signing: &Signing) -> Result<Operator> {
    let validity = Validity { timestamp: signing.valid, ..Validity::default() };
    let repository = &signing.repository;
    Ok(Operator::open(&store(config, repository)?, &root(config, repository), &signing.keys, validity)?)
}

/// A reader of the repository, without keys.
pub(crate) fn reader(config: &Config, repository: &Repository) -> Result<Operator> {
    let nowhere = PathBuf::new();
    Ok(Operator::open(&store(config, repository)?, &root(config, repository), &nowhere, Validity::default())?)
}

fn change(config: &Config, format: Format, signing: &Signing, change: Change, what: &str) -> Result<()> {
    let changed = operator(config, signing)?.change(change, signing.dry_run)?;
    print_change(format, &changed, what)
}

/// Prints what a change did, or would do.
pub(crate) fn print_change(format: Format, changed: &ChangeSummary, what: &str) -> Result<()> {
    print(format, changed, || {
        let (would, version) = (if changed.dry_run { "dry run, nothing is written: " } else { "" }, changed.version);
        format!("{would}{what} (metadata version {version})\n")
    })
}

fn read_bundle(path: &std::path::Path) -> Result<Bundle> {
    let size = std::fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?.len();
    if size > BYTES_MAX as u64 {
        bail!("{} has {size} bytes; a bundle has {BYTES_MAX} at most", path.display());
    }
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(Bundle::parse(&path.to_string_lossy(), &text)?)
}

fn assignment_of(arguments: &Assign) -> Assignment {
    Assignment {
        schema: SCHEMA,
        rollout: arguments.rollout.clone(),
        bundle: arguments.bundle,
        previous: arguments.previous,
        stage: arguments.stage.clone(),
        share_ppm: arguments.share,
        control_ppm: arguments.control,
        clusters: arguments.clusters.clone(),
        pinned: arguments.pinned,
    }
}

fn show(config: &Config, format: Format, arguments: &Show) -> Result<()> {
    let contents = reader(config, &arguments.repository)?.contents(true)?;
    let requested = arguments.version;
    let found = contents.bundles.iter().rfind(|bundle| requested.is_none_or(|version| version == bundle.version));
    let Some(bundle) = found else {
        let known: Vec<_> = contents.bundles.iter().map(|bundle| bundle.version.to_string()).collect();
        bail!("this bundle is not published; published are: {}", if known.is_empty() { "none".to_owned() } else { known.join(", ") });
    };
    print(format, bundle, || bundle.to_toml())
}

fn keys_text(made: &[KeyFile], dry_run: bool) -> String {
    let mut table = Table::new(&["<", "<", "<"]);
    for key in made {
        table.row(&[&key.role, &key.path.display(), if dry_run { &"would be created" } else { &key.id }]);
    }
    let mut text = table.to_string();
    if !dry_run {
        text += "the keys are not encrypted: keep the root keys offline, and protect all of them from other users\n";
    }
    text
}

fn assignment_text(assignment: &Assignment) -> String {
    let Assignment { rollout, bundle, previous, stage, share_ppm, control_ppm, clusters, pinned, .. } = assignment;
    let version =
        |version: &Option<u64>| version.map_or_else(|| "the configuration file".to_owned(), |version| format!("bundle {version}"));
    let whose = if clusters.is_empty() { String::new() } else { format!(" of {}", clusters.join(", ")) };
    let who = match bundle {
        Some(_) => format!("{}{whose} follow {}, the others {}", share_ppm, version(bundle), version(previous)),
        None => format!("all machines follow {}", version(previous)),
    };
    let pinned = if *pinned { "; pinned" } else { "" };
    format!("rollout {rollout}, stage {stage}: {who}; {} held back{pinned}", control_ppm)
}

fn contents_text(contents: &Contents) -> String {
    let mut table = Table::new(&["version", "<id", "<created", "<expires", "<knobs"]);
    for bundle in &contents.bundles {
        let (created, expires) = (rfc3339(bundle.created_unix_s), rfc3339(bundle.expires_unix_s));
        let knobs: Vec<_> = bundle.knobs.iter().map(|(key, value)| format!("{key} = {value}")).collect();
        table.row(&[&bundle.version, &bundle.id, &created, &expires, &knobs.join(", ")]);
    }
    let mut text = table.to_string();
    for problem in &contents.problems {
        let _ = writeln!(text, "error: {problem}");
    }
    let assigned = contents.assignment.as_ref().map_or_else(|| "nothing is assigned".to_owned(), assignment_text);
    let _ = writeln!(text, "{assigned}");
    for role in &contents.roles {
        let (name, version, keys, expires) = (&role.role, role.version, role.keys.len(), rfc3339(role.expires_unix_s));
        let _ = writeln!(text, "{name:<10} version {version}, {} of {keys} keys must sign, until {expires}", role.threshold);
    }
    text
}

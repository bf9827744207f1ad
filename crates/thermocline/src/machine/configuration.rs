//! `thermocline config`: checks and shows the configuration.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ::rollout::plan::Plan;
use anyhow::{Context, Result, anyhow};
use clap::{Args, Subcommand, ValueEnum};
use config::Config;
use serde_json::json;
use settings::{Problems, Schema, read_file, unreadable};

use super::knobs;
use crate::options::{Configuration, Format};
use crate::output::print;

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check the configuration, or one file of any kind, and report all problems
    Check(Check),
    /// Print the configuration in effect, with what each knob means
    Show,
    /// List all knobs: values, ranges, and the search range of a tuner
    Knobs,
}

#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The file to check [default: the configuration in effect]
    file: Option<PathBuf>,
    /// The kind of the file [default: recognized by its top-level keys and its name]
    #[arg(long = "as", value_enum, value_name = "KIND", requires = "file")]
    kind: Option<Kind>,
}

/// The kinds of files that users write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Agent,
    PoolManager,
    PoolScheduler,
    PoolHost,
    PoolGuest,
    RolloutPlan,
}

impl Kind {
    const fn schema(self) -> &'static Schema {
        match self {
            Self::Agent => &config::SCHEMA,
            Self::PoolManager => &::manager::settings::SCHEMA,
            Self::PoolScheduler => &::scheduler::settings::SCHEMA,
            Self::PoolHost => &pool_host::settings::SCHEMA,
            Self::PoolGuest => &pool_host::guest_file::SCHEMA,
            Self::RolloutPlan => &::rollout::plan::SCHEMA,
        }
    }

    fn check(self, file: &Path) -> Result<(), Problems> {
        match self {
            Self::Agent => Config::load(Some(file), &[]).map(drop),
            Self::PoolManager => ::manager::settings::Settings::load(file).map(drop),
            Self::PoolScheduler => ::scheduler::settings::Settings::load(file).map(drop),
            Self::PoolHost => pool_host::settings::Settings::load(file).map(drop),
            Self::PoolGuest => pool_host::guest_file::load(file, 0).map(drop),
            Self::RolloutPlan => {
                let text = read_file(file).map_err(|error| Problems(vec![unreadable(file, &error)]))?;
                Plan::parse(file, &text).map(drop)
            }
        }
    }

    /// Returns the kind of a file by its top-level keys, and by its name if several kinds have equally many of them.
    fn recognize(file: &Path) -> Result<Self> {
        let text = read_file(file).with_context(|| format!("cannot read {}", file.display()))?;
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let schemas: Vec<_> = Self::value_variants().iter().map(|kind| kind.schema()).collect();
        let found = settings::recognize(&schemas, &name, &text).with_context(|| {
            let names: Vec<_> = schemas.iter().map(|schema| schema.name).collect();
            format!("{}: the kind of the file is not evident from its keys; name it: --as {}", file.display(), names.join("|"))
        })?;
        let kind = Self::value_variants().iter().find(|kind| kind.schema().name == found.name);
        kind.copied().context("a schema without a kind")
    }
}

/// Runs a command about the configuration.
pub(crate) fn run(configuration: &Configuration, format: Format, command: &ConfigCommand) -> Result<ExitCode> {
    match command {
        ConfigCommand::Check(Check { file: None, .. }) => {
            return report(format, Kind::Agent, "the configuration", configuration.checked().map(drop));
        }
        ConfigCommand::Check(Check { file: Some(file), kind }) => {
            let kind = kind.map_or_else(|| Kind::recognize(file), Ok)?;
            return report(format, kind, &file.display().to_string(), kind.check(file));
        }
        ConfigCommand::Show => {
            let config = configuration.load()?;
            print(format, &config, || config.to_toml())?;
        }
        ConfigCommand::Knobs => knobs::knobs(&configuration.load()?, format)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the result of `thermocline config check`.
fn report(format: Format, kind: Kind, name: &str, checked: Result<(), Problems>) -> Result<ExitCode> {
    let kind = kind.schema().name;
    let problems = match (checked, format) {
        (Ok(()), _) => Vec::new(),
        (Err(problems), Format::Json) => problems.0,
        (Err(problems), Format::Text) => return Err(anyhow!("{name}, checked as {kind}, is not valid:\n{problems}")),
    };
    let ok = problems.is_empty();
    print(format, &json!({ "ok": ok, "kind": kind, "problems": problems }), || format!("{name} is valid (checked as {kind})\n"))?;
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

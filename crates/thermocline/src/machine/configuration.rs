//! `thermocline config`: checks and shows the configuration.

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use config::Config;
use serde_json::json;

use super::knobs;
use crate::options::{Configuration, Format};
use crate::output::print;

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check the configuration and report all problems
    Check,
    /// Print the configuration in effect, with what each knob means
    Show,
    /// List all knobs: values, ranges, and the search range of a tuner
    Knobs,
}

/// Runs a command about the configuration.
pub(crate) fn run(configuration: &Configuration, format: Format, command: &ConfigCommand) -> Result<ExitCode> {
    match command {
        ConfigCommand::Check => return check(format, configuration.checked()),
        ConfigCommand::Show => {
            let config = configuration.load()?;
            print(format, &config, || config.to_toml())?;
        }
        ConfigCommand::Knobs => knobs::knobs(&configuration.load()?, format)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// `thermocline config check`.
fn check(format: Format, checked: Result<Config, config::Problems>) -> Result<ExitCode> {
    let problems = match (checked, format) {
        (Ok(_), _) => Vec::new(),
        (Err(problems), Format::Json) => problems.0,
        (Err(problems), Format::Text) => return Err(problems.into()),
    };
    let ok = problems.is_empty();
    print(format, &json!({ "ok": ok, "problems": problems }), || "the configuration is valid\n".to_owned())?;
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

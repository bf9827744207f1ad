//! `thermocline replay`: recorded inputs through the policies again.

use std::path::PathBuf;
use std::process::ExitCode;

use agent::journal::{self, Journal};
use agent::replay;
use anyhow::Result;
use clap::Args;
use config::Config;

use crate::options::Format;
use crate::output::print;

#[derive(Debug, Args)]
pub(crate) struct Replay {
    /// The journal file [default: the newest of the configured agent.state_dir]
    pub(crate) journal: Option<PathBuf>,
}

/// `thermocline replay`.
pub(crate) fn replay(config: &Config, format: Format, arguments: &Replay) -> Result<ExitCode> {
    let path = arguments.journal.clone().unwrap_or_else(|| Journal::path(&config.agent.state_dir));
    let result = replay::replay(&journal::read(&path)?);
    print(format, &result, || {
        let differing = result.differing.len();
        format!("{} decisions replayed, {differing} differ, {} without a starting state\n", result.periods, result.skipped)
    })?;
    Ok(if result.differing.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(2) })
}

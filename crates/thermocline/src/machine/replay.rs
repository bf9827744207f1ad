//! `thermocline replay`: recorded inputs through the policies again.

use std::path::PathBuf;
use std::process::ExitCode;

use agent::journal::{self, Contents, Journal};
use agent::replay;
use anyhow::Result;
use clap::Args;
use config::Config;
use serde::Serialize;

use crate::exits;
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
    let contents = journal::read_contents(&path)?;
    let result = replay::replay(&contents.records);
    if result.periods == 0 {
        eprintln!("thermocline: {}: no decisions: {}", path.display(), why_none(&contents, &result));
        return Ok(exits::negative());
    }
    let output = Output { result: &result, torn_bytes: contents.torn_bytes };
    print(format, &output, || {
        let controllers: Vec<_> = result.controllers.iter().map(|(name, count)| format!("{count} {name}")).collect();
        let differing = result.differing.len();
        let (periods, skipped, controllers) = (result.periods, result.skipped, controllers.join(", "));
        let torn = match contents.torn_bytes {
            0 => String::new(),
            bytes => format!("the last line is torn after {bytes} bytes and was skipped: the agent was killed while it wrote\n"),
        };
        format!("{periods} decisions replayed, {differing} differ, {skipped} without a starting state ({controllers})\n{torn}")
    })?;
    Ok(if result.differing.is_empty() { ExitCode::SUCCESS } else { exits::negative() })
}

/// What `--format json` prints.
#[derive(Serialize)]
struct Output<'a> {
    #[serde(flatten)]
    result: &'a replay::Replay,
    /// Bytes of a torn last line; zero if there is none.
    torn_bytes: usize,
}

fn why_none(contents: &Contents, result: &replay::Replay) -> String {
    match (contents.records.len(), contents.torn_bytes, result.skipped) {
        (0, 0, _) => "the file is empty".to_owned(),
        (0, bytes, _) => format!("the only line is torn after {bytes} bytes"),
        (records, _, 0) => format!("none of its {records} records is one"),
        (_, _, skipped) => format!("{skipped} have no starting state before them"),
    }
}

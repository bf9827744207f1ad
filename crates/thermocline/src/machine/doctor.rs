//! `thermocline doctor`: what the machine supports, and whether the configured stores answer.

use std::process::ExitCode;

use advise::doctor::{Check, Rank, Status, examine, protection};
use anyhow::Result;
use config::Config;
use kernel::Roots;
use rollout::repository::Contents;
use store::Store;

use crate::exits;
use crate::fleet::rollout::arguments::Repository;
use crate::options::Format;
use crate::output::{describe, print};

/// Checks the machine and the stores that the configuration names. Changes nothing.
pub(crate) fn doctor(roots: &Roots, config: Result<Config>, format: Format) -> Result<ExitCode> {
    let mut report = examine(roots);
    match config {
        Ok(config) => {
            report.add(protection(roots, &config));
            report.add([traces(&config), bundles(&config)].into_iter().flatten());
        }
        Err(error) => report.add([missing("configuration", &error, "see `thermocline config check`").ranked(Rank::Blocks)]),
    }
    print(format, &report, || report.to_text())?;
    Ok(if report.able { ExitCode::SUCCESS } else { exits::negative() })
}

fn missing(name: &'static str, error: &anyhow::Error, remedy: &str) -> Check {
    Check::new(name, Status::Missing, describe(error), remedy).ranked(Rank::Costs)
}

/// Whether the trace store answers. Its content is not listed, because it may hold a whole fleet.
fn traces(config: &Config) -> Option<Check> {
    let url = &config.trace.store;
    let answers = || -> Result<()> {
        let store = Store::open(url)?;
        store.block_on(store.read("thermocline-doctor", units::Bytes(1)))?;
        Ok(())
    };
    (!url.is_empty()).then(|| match answers() {
        Ok(()) => Check::new("traces", Status::Ok, format!("{url} can be read"), ""),
        Err(error) => missing("traces", &error, "until it answers, traces wait in agent.state_dir, trace.spool_size of them at most"),
    })
}

/// Whether the bundle store answers, and its content is signed as the machine's root requires.
fn bundles(config: &Config) -> Option<Check> {
    let url = &config.rollout.store;
    let own = Repository { store: None, root: None };
    let found = || -> Result<Contents> { Ok(crate::fleet::rollout::reader(config, &own)?.contents(false)?) };
    (!url.is_empty()).then(|| match found() {
        Ok(contents) if contents.problems.is_empty() => {
            let assigned =
                contents.assignment.as_ref().map_or("nothing is assigned".to_owned(), |assignment| format!("stage {:?}", assignment.stage));
            let found = format!("{url}: {} bundles verified, {assigned}", contents.bundles.len());
            Check::new("rollout", Status::Ok, found, "")
        }
        Ok(contents) => {
            let remedy = "see `thermocline rollout verify`; machines follow the last valid bundle";
            Check::new("rollout", Status::Missing, contents.problems.join("; "), remedy).ranked(Rank::Costs)
        }
        Err(error) => {
            missing("rollout", &error, "give the machine the root.json of `thermocline rollout init`, and credentials of the store")
        }
    })
}

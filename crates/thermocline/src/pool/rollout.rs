//! `thermocline pool models step`: the staged rollout of a bundle of models, by what happened to the guests of all hosts.

use std::path::Path;
use std::time::Duration;

use ::rollout::evaluation;
use ::rollout::evidence::{Evidence, MachineId, PoolGuest, Slot};
use ::rollout::guard::Watched;
use ::rollout::plan::Plan;
use ::rollout::repository::Operator;
use ::rollout::stage::State;
use anyhow::{Context, Result, bail};
use clap::Args;
use config::Config;
use pool_host::host::lives::judged;
use pool_host::host::{ModelId, Tolerated};
use predict::Untouched;
use units::UnixMillis;

use super::judge::Counted;
use super::lives::collect;
use crate::fleet::rollout::arguments::{Driver, Signing, every};
use crate::fleet::rollout::operator;
use crate::fleet::rollout::steps::{Source, run_by, step_by};
use crate::options::Format;

/// The figures that records of guests have.
const FIGURES: [&str; 3] = ["pool_touched", "pool_mitigated", "pool_unpredicted"];

#[derive(Debug, Args)]
pub(crate) struct Step {
    /// The store of the hosts' records (`lives_store`)
    #[arg(long, value_name = "URL")]
    lives: String,
    #[command(flatten)]
    counted: Counted,
    /// Evaluate again after this time, until the rollout ends [default: once]
    #[arg(long, value_name = "DURATION", value_parser = every)]
    every: Option<Duration>,
    /// Log of the steps with their evidence [default: the bundle store]
    #[arg(long, value_name = "URL")]
    log: Option<String>,
    #[command(flatten)]
    signing: Signing,
}

/// Evaluates once, or until the rollout ends.
pub(super) fn step(format: Format, arguments: &Step) -> Result<()> {
    let config = Config::default();
    let Step { lives, counted, every, log, signing } = arguments;
    let driver = Driver { signing: signing.clone(), trace: None, log: log.clone() };
    let mut source =
        Lives { url: lives.clone(), tolerated: counted.tolerated(), repository: operator(&config, signing)?, models: Vec::new() };
    match every {
        None => step_by(&config, format, &driver, &mut source),
        Some(every) => run_by(&config, format, &driver, *every, &mut source),
    }
}

/// The records of hosts' guests that have ended.
struct Lives {
    url: String,
    tolerated: Tolerated,
    repository: Operator,
    /// Bundles with the identities of their models, as far as they were read.
    models: Vec<(u64, ModelId)>,
}

impl Lives {
    /// What identifies the model of a bundle in records: when its training ended.
    fn model_of(&mut self, bundle: u64) -> Result<ModelId> {
        if let Some((_, model)) = self.models.iter().find(|(known, _)| *known == bundle) {
            return Ok(*model);
        }
        let contents = self.repository.contents(true)?;
        let found = contents.bundles.iter().find(|known| known.version == bundle);
        let Some(sha256) = found.and_then(|bundle| bundle.models.untouched.as_deref()) else {
            bail!("bundle {bundle} has no model of untouched memory, so no record of a guest says anything of it");
        };
        let model = Untouched::parse(&self.repository.model(sha256)?, Path::new(sha256))?.trained_until();
        self.models.push((bundle, model));
        Ok(model)
    }
}

impl Source for Lives {
    /// A guest counts when it started: one that runs for long does not blame a model that its host has had since.
    fn read(&mut self, plan: &Plan, state: &State) -> Result<Evidence> {
        check(plan)?;
        let (bundle, model) = (state.bundle, self.model_of(state.bundle)?);
        let collected = collect(&self.url)?;
        let mut evidence = Evidence { files: collected.files.len(), ..Evidence::default() };
        collected.skipped.into_iter().for_each(|skipped| evidence.add_unreadable(skipped));
        for copy in &collected.files {
            let path = copy.path();
            let machines = &mut evidence.machines;
            let read = judged(path, self.tolerated, &mut |guest| {
                let [start_unix_ms, end_unix_ms] =
                    <[i64; 2]>::from(guest.lived_unix_s).map(|second| UnixMillis(u64::try_from(second).unwrap_or(0).saturating_mul(1_000)));
                let Some(slot) = evaluation::slot(plan, state, start_unix_ms) else { return };
                let host = MachineId { cluster: String::new(), machine: guest.host };
                let slots = machines.entry(host).or_insert_with(|| vec![Slot::default(); evaluation::SLOTS]);
                let bundle = if guest.model == model { bundle } else { 0 };
                let (unpredicted, touched, mitigated) = (guest.unpredicted, guest.touched, guest.mitigated);
                slots[slot].add_guest(&PoolGuest { start_unix_ms, end_unix_ms, bundle, unpredicted, touched, mitigated });
            });
            let damaged = read.with_context(|| format!("cannot read {}", path.display()))?;
            if damaged > 0 {
                evidence.add_unreadable(format!("{}: {damaged} damaged lines", path.display()));
            }
        }
        Ok(evidence)
    }
}

/// A plan for the machines of agents waits for figures that no record of a guest has.
pub(super) fn check(plan: &Plan) -> Result<()> {
    for guard in &plan.guards {
        let is_known = match &guard.watched {
            Watched::Metric(name) => FIGURES.contains(&name.as_str()),
            Watched::Query { .. } => true,
            Watched::AgentFailures => false,
        };
        if !is_known {
            bail!("guard {:?} compares what agents report, and hosts of a pool do not: use {} or a query", guard.name, FIGURES.join(", "));
        }
    }
    if let Some(stage) = plan.stages.iter().find(|stage| !stage.clusters.is_empty()) {
        bail!("stage {:?} begins with some clusters, and records of guests name none: leave out stage.clusters", stage.name);
    }
    Ok(())
}

//! `thermocline pool models judge`: what each model predicted and what became of the guests that got pool memory by it, on all hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use config::bundle::rfc3339;
use pool_host::host::lives::judged;
use pool_host::host::{ModelId, Outcome, Tolerated};
use serde::Serialize;
use units::RatioPpm;

use super::lives::collect;
use crate::exits;
use crate::options::Format;
use crate::output::print;
use crate::table::Table;
use crate::values::{duration, ratio};

/// Which guests count, and what of them.
#[derive(Debug, Args)]
pub(crate) struct Counted {
    /// The share of its pool memory that a guest may touch and count as predicted: `monitor.touched` of the hosts
    #[arg(long, value_name = "RATIO", default_value = "5%", value_parser = ratio)]
    touched: RatioPpm,
    /// How long a guest must have run to count: `monitor.least_life` of the hosts
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration)]
    least_life: Duration,
}

impl Counted {
    pub(super) fn tolerated(&self) -> Tolerated {
        Tolerated { touched: self.touched, least_life: self.least_life }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Judge {
    /// The store of the hosts' records (`lives_store`)
    #[arg(long, value_name = "URL")]
    store: String,
    /// The share of guests that may touch their pool memory: that for which the models were trained
    #[arg(long, value_name = "RATIO", value_parser = target)]
    target: RatioPpm,
    #[command(flatten)]
    counted: Counted,
    /// Fewer guests of the newest model than this say nothing
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    guests: u32,
}

fn target(text: &str) -> Result<RatioPpm, String> {
    let target = ratio(text)?;
    if target == RatioPpm(0) || target >= RatioPpm::ONE {
        return Err("give a share above 0% and below 100%, such as 4%".to_owned());
    }
    Ok(target)
}

/// What is known of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    /// More guests touched their pool memory than permitted, beyond chance.
    Fails,
    /// Enough guests, and not too many of them.
    NoHarm,
    /// Too few guests.
    TooFew,
}

#[derive(Debug, Serialize)]
struct Model {
    trained_until_unix_s: ModelId,
    hosts: usize,
    #[serde(flatten)]
    outcome: Outcome,
    mitigated: u32,
    /// Guests with a history for which the model was asked, and those for which it had no prediction.
    asked: u32,
    unpredicted: u32,
    verdict: Verdict,
}

#[derive(Debug, Serialize)]
struct Report {
    target: RatioPpm,
    /// The newest first.
    models: Vec<Model>,
    damaged_lines: u64,
}

#[derive(Debug, Default)]
struct Sums {
    hosts: BTreeSet<String>,
    outcome: Outcome,
    mitigated: u32,
    asked: u32,
    unpredicted: u32,
}

/// Judges each model, and exits by the verdict on the newest.
pub(super) fn judge(format: Format, arguments: &Judge) -> Result<ExitCode> {
    let collected = collect(&arguments.store)?;
    for skipped in &collected.skipped {
        log::warn!("skipped {skipped}");
    }
    let tolerated = arguments.counted.tolerated();
    let mut sums: BTreeMap<ModelId, Sums> = BTreeMap::new();
    let mut damaged_lines = 0;
    for copy in &collected.files {
        let path = copy.path();
        let read = judged(path, tolerated, &mut |guest| {
            let model = sums.entry(guest.model).or_default();
            if let Some(touched) = guest.touched {
                model.outcome.add(touched);
                model.mitigated += u32::from(guest.mitigated);
            }
            model.asked += u32::from(guest.unpredicted.is_some());
            model.unpredicted += u32::from(guest.unpredicted == Some(true));
            model.hosts.insert(guest.host);
        });
        damaged_lines += read.with_context(|| format!("cannot read {}", path.display()))?;
    }
    let models: Vec<Model> = sums.into_iter().rev().map(|(id, sums)| model(arguments, id, &sums)).collect();
    let Some(newest) = models.first().map(|model| model.verdict) else {
        let life = arguments.counted.least_life;
        bail!(
            "{} has no guest that got pool memory by a model and ran for {life:?}, and none for which a model was asked",
            arguments.store
        );
    };
    let report = Report { target: arguments.target, models, damaged_lines };
    print(format, &report, || text(&report))?;
    Ok(if newest == Verdict::NoHarm { ExitCode::SUCCESS } else { exits::negative() })
}

fn model(arguments: &Judge, id: ModelId, sums: &Sums) -> Model {
    let verdict = if sums.outcome.fails(arguments.target) {
        Verdict::Fails
    } else if sums.outcome.guests < arguments.guests {
        Verdict::TooFew
    } else {
        Verdict::NoHarm
    };
    let Sums { ref hosts, outcome, mitigated, asked, unpredicted } = *sums;
    Model { trained_until_unix_s: id, hosts: hosts.len(), outcome, mitigated, asked, unpredicted, verdict }
}

fn text(report: &Report) -> String {
    let mut table = Table::new(&["<trained until", "hosts", "guests", "touched", "share", "mitigated", "unpredicted", "<verdict"]);
    for model in &report.models {
        let Outcome { guests, touched } = model.outcome;
        let until = u64::try_from(model.trained_until_unix_s).map_or_else(|_| model.trained_until_unix_s.to_string(), rfc3339);
        let share = RatioPpm::of(touched.into(), guests.into()).unwrap_or_default();
        let verdict = match model.verdict {
            Verdict::Fails => "fails: more than the target, beyond chance",
            Verdict::NoHarm => "no harm shown",
            Verdict::TooFew => "too few guests",
        };
        let unpredicted =
            RatioPpm::of(model.unpredicted.into(), model.asked.into()).map_or_else(|| "-".to_owned(), |share| share.to_string());
        table.row(&[&until, &model.hosts, &guests, &touched, &share, &model.mitigated, &unpredicted, &verdict]);
    }
    let damaged = if report.damaged_lines > 0 { format!("{} damaged lines were skipped\n", report.damaged_lines) } else { String::new() };
    format!("{table}{damaged}target: {} of the guests may touch their pool memory\n", report.target)
}

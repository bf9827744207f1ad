//! `thermocline reproduce`: figures of the papers, measured here, with a verdict for each.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Serialize;

mod catalogue;
mod step;

use catalogue::{Catalogue, Figure, Step};

use crate::exits;
use crate::options::Format;
use crate::output::print;
use crate::table::Table;

#[derive(Debug, Args)]
#[command(after_help = "\
Figures and ranges are in docs/reproduction/figures.toml. Steps of `make` need the source tree, and most of them boot guests.

  thermocline reproduce --list
  thermocline reproduce --quick --tree ~/thermocline")]
pub(crate) struct Reproduce {
    /// Only the steps that take under an hour together
    #[arg(long)]
    quick: bool,
    /// Only figures of this paper (SDFM, TMO, Thermostat, \"LPC talk\", Pond); repeatable
    #[arg(long, value_name = "NAME")]
    paper: Vec<String>,
    /// Only figures of this step; repeatable
    #[arg(long, value_name = "NAME")]
    step: Vec<String>,
    /// Show the steps and how long they take; run nothing
    #[arg(long)]
    list: bool,
    /// Take results that are there instead of running their steps again
    #[arg(long)]
    reuse: bool,
    /// The source tree
    #[arg(long, value_name = "DIR", default_value = ".")]
    tree: PathBuf,
    /// The directory of results and logs; report.md and report.json are written there
    #[arg(long, value_name = "DIR", default_value = "target/reproduce")]
    out: PathBuf,
}

/// Whether a figure was reproduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Reproduced,
    NotReproduced,
    NotRun,
}

/// A figure as measured.
#[derive(Debug, Serialize)]
struct Row<'a> {
    #[serde(flatten)]
    figure: &'a Figure,
    measured: Option<f64>,
    verdict: Verdict,
    /// Why it was not run, or what else its step reported.
    remark: Option<String>,
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    version: &'a str,
    reproduced: usize,
    not_reproduced: usize,
    not_run: usize,
    figures: Vec<Row<'a>>,
}

/// Runs the command.
pub(crate) fn reproduce(format: Format, arguments: &Reproduce) -> Result<ExitCode> {
    let catalogue = Catalogue::embedded()?;
    let (steps, figures) = chosen(&catalogue, arguments)?;
    if arguments.list {
        print(format, &steps, || listed(&steps))?;
        return Ok(ExitCode::SUCCESS);
    }
    std::fs::create_dir_all(&arguments.out).with_context(|| format!("cannot create {}", arguments.out.display()))?;
    let mut outcomes = Vec::with_capacity(steps.len());
    for (number, step) in steps.iter().enumerate() {
        log::info!("step {} of {}, {}: about {} min", number + 1, steps.len(), step.name, step.minutes);
        let outcome = step::run(step, &arguments.tree, &arguments.out, arguments.reuse);
        match &outcome {
            Ok(done) => done.remark.iter().for_each(|remark| log::warn!("{}: {remark}", step.name)),
            Err(why) => log::warn!("{}: {why}", step.name),
        }
        outcomes.push((step.name.as_str(), outcome));
    }
    let rows: Vec<Row<'_>> = figures.into_iter().map(|figure| row(figure, &outcomes)).collect();
    let count = |verdict| rows.iter().filter(|row| row.verdict == verdict).count();
    let (reproduced, not_reproduced, not_run) = (count(Verdict::Reproduced), count(Verdict::NotReproduced), count(Verdict::NotRun));
    let report = Report { version: env!("CARGO_PKG_VERSION"), reproduced, not_reproduced, not_run, figures: rows };
    write(&arguments.out.join("report.json"), &(serde_json::to_string_pretty(&report)? + "\n"))?;
    write(&arguments.out.join("report.md"), &markdown(&report))?;
    print(format, &report, || text(&report))?;
    Ok(match (not_run, not_reproduced) {
        (0, 0) => ExitCode::SUCCESS,
        (0, _) => exits::negative(),
        _ => ExitCode::FAILURE,
    })
}

/// The steps and figures that were asked for.
fn chosen<'a>(catalogue: &'a Catalogue, arguments: &Reproduce) -> Result<(Vec<&'a Step>, Vec<&'a Figure>)> {
    let papers: Vec<&str> = catalogue.papers();
    for (what, asked, known) in [("paper", &arguments.paper, papers), ("step", &arguments.step, catalogue.step_names())] {
        if let Some(unknown) = asked.iter().find(|name| !known.contains(&name.as_str())) {
            bail!("there is no {what} {unknown:?}; known are {}", known.join(", "));
        }
    }
    let is_asked = |asked: &[String], name: &str| asked.is_empty() || asked.iter().any(|one| one == name);
    let is_chosen = |figure: &&Figure| {
        let quick = catalogue.steps.iter().any(|step| step.name == figure.step && step.quick);
        is_asked(&arguments.paper, &figure.paper) && is_asked(&arguments.step, &figure.step) && (quick || !arguments.quick)
    };
    let figures: Vec<&Figure> = catalogue.figures.iter().filter(is_chosen).collect();
    let steps = catalogue.steps.iter().filter(|step| figures.iter().any(|figure| figure.step == step.name)).collect();
    if figures.is_empty() {
        bail!("no figure is left; leave out --quick, --paper or --step");
    }
    Ok((steps, figures))
}

fn row<'a>(figure: &'a Figure, outcomes: &[(&str, Result<step::Done, String>)]) -> Row<'a> {
    let outcome = outcomes.iter().find(|(name, _)| *name == figure.step).map(|(_, outcome)| outcome);
    let not_run = |why: String| Row { figure, measured: None, verdict: Verdict::NotRun, remark: Some(why) };
    let done = match outcome {
        Some(Ok(done)) => done,
        Some(Err(why)) => return not_run(why.clone()),
        None => return not_run("its step was not run".to_owned()),
    };
    let Some(measured) = figure.measured(&done.result) else {
        return not_run(format!("the result of {} has no {}", figure.step, figure.value));
    };
    let held = (figure.least..=figure.most).contains(&measured);
    let verdict = if held { Verdict::Reproduced } else { Verdict::NotReproduced };
    Row { figure, measured: Some(measured), verdict, remark: done.remark.clone() }
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn listed(steps: &[&Step]) -> String {
    let mut table = Table::new(&["<step", "minutes", "<quick", "<command"]);
    for step in steps {
        table.row(&[&step.name, &step.minutes, &if step.quick { "yes" } else { "" }, &step.command()]);
    }
    let minutes: u32 = steps.iter().map(|step| step.minutes).sum();
    format!("{table}{minutes} minutes in all, on two cores\n")
}

/// The verdict in words.
fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Reproduced => "reproduced",
        Verdict::NotReproduced => "NOT reproduced",
        Verdict::NotRun => "not run",
    }
}

fn here(row: &Row<'_>) -> String {
    row.measured.map_or_else(|| "-".to_owned(), |measured| row.figure.unit.shown(measured))
}

fn text(report: &Report<'_>) -> String {
    let mut table = Table::new(&["<paper", "<section, figure", "here", "<range", "<verdict"]);
    for row in &report.figures {
        let Figure { paper, place, what, published, note, .. } = row.figure;
        table.row(&[paper, place, &here(row), &row.figure.range(), &word(row.verdict)]);
        table.remark(&format!("  {what}\n  published: {published}\n"));
        for remark in [note, &row.remark].into_iter().flatten() {
            table.remark(&format!("  {remark}\n"));
        }
    }
    let Report { reproduced, not_reproduced, not_run, .. } = report;
    format!("{table}{reproduced} reproduced, {not_reproduced} not reproduced, {not_run} not run\n")
}

fn markdown(report: &Report<'_>) -> String {
    let mut text = "# Figures of the papers, measured here\n\n".to_owned();
    let _ = writeln!(
        text,
        "Written by `thermocline reproduce`, version {}: {} reproduced, {} not reproduced, {} not run.\n",
        report.version, report.reproduced, report.not_reproduced, report.not_run
    );
    text.push_str(
        "| paper | figure | quantity | published | here | counts as reproduced | verdict | remark |\n|---|---|---|---|---|---|---|---|\n",
    );
    for row in &report.figures {
        let Figure { paper, place, what, published, note, .. } = row.figure;
        let remarks: Vec<&str> = [note, &row.remark].into_iter().flatten().map(String::as_str).collect();
        let cells = [paper, place, what, published, &here(row), &row.figure.range(), word(row.verdict), &remarks.join("; ")];
        let _ = writeln!(text, "| {} |", cells.map(|cell| cell.replace('|', "\\|").replace('\n', " ")).join(" | "));
    }
    text
}

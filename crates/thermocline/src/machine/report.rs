//! `thermocline report`: what an agent saved and what its jobs felt, or what a fleet, a rollout or a pool did, as one page.

use std::path::PathBuf;

use advise::report::Report;
use anyhow::{Context, Result, bail};
use clap::Args;
use config::Config;

use crate::console::Shown;
use crate::console::page::Page;
use crate::options::Format;
use crate::output::print;

#[derive(Debug, Args)]
pub(crate) struct ReportArguments {
    /// Journal files of one machine, in any order [default: those in the configured agent.state_dir]
    #[arg(value_name = "JOURNAL")]
    journals: Vec<PathBuf>,
    /// Where to write the page: HTML in one file that loads nothing
    #[arg(long, value_name = "FILE", default_value = "thermocline-report.html")]
    out: PathBuf,
    #[command(flatten)]
    shown: Shown,
}

/// `thermocline report`. With `--format json`, the figures are printed and no page is written.
pub(crate) fn report(config: &Config, format: Format, arguments: &ReportArguments) -> Result<()> {
    if let Some(option) = arguments.shown.without_effect() {
        bail!("{option} has no effect on the report of a journal; give --traces, --rollout or --pool, or leave it out");
    }
    if !arguments.shown.is_nothing() {
        let page = Page::read(config, &arguments.journals, &arguments.shown)?;
        return written(format, arguments, page.answers(), &page.verdict(), || page.html());
    }
    let report =
        if arguments.journals.is_empty() { Report::of_directory(&config.agent.state_dir) } else { Report::of_files(&arguments.journals) };
    let from = || arguments.journals.first().unwrap_or(&config.agent.state_dir).display().to_string();
    let report = report.with_context(|| format!("cannot report from {}", from()))?;
    written(format, arguments, &report, &report.verdict(), || Ok(report.page()))
}

fn written(
    format: Format,
    arguments: &ReportArguments,
    figures: &impl serde::Serialize,
    verdict: &[String],
    page: impl FnOnce() -> Result<String>,
) -> Result<()> {
    let out = arguments.out.display();
    if format == Format::Text {
        std::fs::write(&arguments.out, page()?).with_context(|| format!("cannot write {out}"))?;
    }
    print(format, figures, || format!("{}\nwritten: {out}\n", verdict.join("\n")))
}

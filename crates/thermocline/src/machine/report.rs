//! `thermocline report`: what an agent saved and what its jobs felt, as one page.

use std::path::PathBuf;

use advise::report::Report;
use anyhow::{Context, Result};
use clap::Args;
use config::Config;

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
}

/// `thermocline report`. With `--format json`, the figures are printed and no page is written.
pub(crate) fn report(config: &Config, format: Format, arguments: &ReportArguments) -> Result<()> {
    let report =
        if arguments.journals.is_empty() { Report::of_directory(&config.agent.state_dir) } else { Report::of_files(&arguments.journals) };
    let from = || arguments.journals.first().unwrap_or(&config.agent.state_dir).display().to_string();
    let report = report.with_context(|| format!("cannot report from {}", from()))?;
    if format == Format::Text {
        std::fs::write(&arguments.out, report.page()).with_context(|| format!("cannot write {}", arguments.out.display()))?;
    }
    print(format, &report, || format!("{}\nwritten: {}\n", report.verdict().join("\n"), arguments.out.display()))
}

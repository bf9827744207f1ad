//! `thermocline experiment`: two groups of machines, compared by their traces.

use std::fmt::Write;
use std::path::Path;

use ::rollout::experiment::{Finding, GroupSummary, Question, Report, Row, compare};
use ::rollout::metric::Unit;
use anyhow::{Context, Result, bail};
use clap::Args;
use config::Config;
use store::Store;
use trace::calendar;
use units::{Millis, RatioPpm, UnixMillis};

use crate::options::Format;
use crate::output::print;
use crate::table::Table;
use crate::values::{duration, ratio, time};

#[derive(Debug, Args)]
pub(crate) struct Experiment {
    /// The traces: a directory, or s3://bucket/prefix [default: the configured trace.store]
    #[arg(long, value_name = "URL")]
    pub(crate) trace: Option<String>,
    /// The reference group: terms that must all match, of bundle=VERSION, cluster=PATTERN, class=CLASS, machine=PATTERN and
    /// hash=FROM..UNTIL[@SALT], such as cluster=eu-*,hash=0%..50%
    #[arg(long, value_name = "TERM,...", value_parser = group)]
    pub(crate) a: rollout::experiment::Group,
    /// The group to compare, in the same form
    #[arg(long, value_name = "TERM,...", value_parser = group)]
    pub(crate) b: rollout::experiment::Group,
    /// Only entries from this time on, such as 2026-11-20T12:00:00Z
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) from: Option<u64>,
    /// Only entries before this time
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) until: Option<u64>,
    /// Subtract each machine's own mean over this time before --from, which narrows the intervals
    #[arg(long, value_name = "DURATION", requires = "from", value_parser = duration)]
    pub(crate) before: Option<std::time::Duration>,
    /// The promotion rate that an entry should not exceed [default: cold_age.promotion_rate]
    #[arg(long, value_name = "RATIO", value_parser = ratio)]
    pub(crate) objective: Option<RatioPpm>,
    /// The seed of all random draws
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(crate) seed: u64,
}

fn group(text: &str) -> Result<rollout::experiment::Group, String> {
    rollout::experiment::Group::parse(text)
}

pub(crate) fn experiment(config: &Config, format: Format, arguments: &Experiment) -> Result<()> {
    let traces = match &arguments.trace {
        Some(url) => url,
        None if config.trace.store.is_empty() => bail!("name the traces by --trace; none are configured as trace.store"),
        None => &config.trace.store,
    };
    let question = Question {
        a: arguments.a.clone(),
        b: arguments.b.clone(),
        from_unix_ms: arguments.from.map_or(UnixMillis::EPOCH, UnixMillis),
        until_unix_ms: UnixMillis(arguments.until.unwrap_or(u64::MAX)),
        before_ms: arguments.before.map_or(Millis::ZERO, Millis::from),
        objective: arguments.objective.unwrap_or(config.cold_age.promotion_rate).as_f64(),
        seed: arguments.seed,
    };
    if !traces.contains("://") && !Path::new(traces).exists() {
        bail!("cannot read {traces}: no such directory");
    }
    let report = compare(&Store::open(traces)?, &question).with_context(|| format!("cannot compare by {traces}"))?;
    print(format, &report, || text(&report))
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    for (name, GroupSummary { group, machines, entries, first_unix_ms, last_unix_ms }) in ["A", "B"].iter().zip(&report.groups) {
        let [first, last] = [first_unix_ms, last_unix_ms].map(|time| calendar::time(*time));
        let _ = writeln!(text, "{name}: {group}: {machines} machines, {entries} entries, {first} to {last}");
    }
    if report.machines_in_both > 0 {
        let _ = writeln!(text, "{} machines are in both, with some jobs or some time in each", report.machines_in_both);
    }
    let mut table = Table::new(&["<", "A", "B", "B less A", "<in 95 % of experiments", "A/A noise", "<"]);
    for row in &report.rows {
        let Row { metric, unit, a, b, difference, lower, upper, noise, finding, .. } = row;
        let shown = |value: f64| value_text(value, *unit);
        let noise = noise.map_or_else(|| "-".to_owned(), |noise| format!("+-{}", shown(noise)));
        let between = format!("{} to {}", shown(*lower), shown(*upper));
        let finding = match finding {
            Finding::Better => "B is better",
            Finding::Worse => "B is worse",
            Finding::WithinNoise => "no significant difference",
        };
        table.row(&[metric, &shown(*a), &shown(*b), &shown(*difference), &between, &noise, &finding]);
    }
    text += &table.to_string();
    for file in &report.unreadable {
        let _ = writeln!(text, "unreadable: {file}");
    }
    text
}

fn value_text(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Ratio => format!("{:.3}%", value * 100.0),
        Unit::RatioPerMinute => format!("{:.4}%/min", value * 100.0),
        Unit::PerJobDay => format!("{value:.4}/d"),
        Unit::Query => value.to_string(),
    }
}

//! `thermocline experiment`: two groups of machines, compared by their traces.

use std::fmt::Write;

use ::rollout::experiment::{Finding, GroupFound, Question, Report, Row, compare};
use ::rollout::metric::Unit;
use anyhow::{Result, bail};
use config::Config;
use trace::{Store, calendar};

use crate::arguments::{Experiment, Format};
use crate::print;

pub(crate) fn experiment(config: &Config, format: Format, arguments: &Experiment) -> Result<()> {
    let traces = match &arguments.trace {
        Some(url) => url,
        None if config.trace.store.is_empty() => bail!("name the traces by --trace; none are configured as trace.store"),
        None => &config.trace.store,
    };
    let question = Question {
        a: arguments.a.clone(),
        b: arguments.b.clone(),
        from_unix_ms: arguments.from.unwrap_or(0),
        until_unix_ms: arguments.until.unwrap_or(u64::MAX),
        before_ms: arguments.before.map_or(0, |before| u64::try_from(before.as_millis()).unwrap_or(u64::MAX)),
        objective: arguments.objective.unwrap_or(config.cold_age.promotion_rate).as_f64(),
        seed: arguments.seed,
    };
    let report = compare(&Store::open(traces)?, &question)?;
    print(format, &report, || text(&report))
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    for (name, GroupFound { group, machines, entries, first_unix_ms, last_unix_ms }) in ["A", "B"].iter().zip(&report.groups) {
        let [first, last] = [first_unix_ms, last_unix_ms].map(|time| calendar::time(*time));
        let _ = writeln!(text, "{name}: {group}: {machines} machines, {entries} entries, {first} to {last}");
    }
    if report.machines_in_both > 0 {
        let _ = writeln!(text, "{} machines are in both, with some jobs or some time in each", report.machines_in_both);
    }
    let _ = writeln!(text, "{:<20} {:>12} {:>12} {:>12}   {:<27} {:>12}", "", "A", "B", "B less A", "in 95 % of experiments", "A/A noise");
    for row in &report.rows {
        let Row { metric, unit, a, b, difference, lower, upper, noise, finding, .. } = row;
        let shown = |value: f64| value_text(value, *unit);
        let noise = noise.map_or_else(|| "-".to_owned(), |noise| format!("+-{}", shown(noise)));
        let between = format!("{} to {}", shown(*lower), shown(*upper));
        let finding = match finding {
            Finding::Better => "B is better",
            Finding::Worse => "B is worse",
            Finding::WithinNoise => "no difference shown",
        };
        let _ = writeln!(
            text,
            "{metric:<20} {:>12} {:>12} {:>12}   {between:<27} {noise:>12}  {finding}",
            shown(*a),
            shown(*b),
            shown(*difference)
        );
    }
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

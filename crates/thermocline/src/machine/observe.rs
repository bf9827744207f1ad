//! `thermocline observe`: page ages and possible savings of jobs; moves nothing.

use agent::actuators::exact;
use agent::{Agent, Options};
use anyhow::{Context, Result, bail};
use clap::Args;
use config::{Class, Config, JobRule};
use kernel::Roots;
use serde_json::{Value, json};
use units::Age;

use super::text;
use crate::options::Format;
use crate::output::print;
use crate::signals;
use crate::values::duration;

#[derive(Debug, Args)]
pub(crate) struct Observe {
    /// Cgroups to observe, as patterns relative to the cgroup root [default: the configured jobs]
    #[arg(value_name = "PATTERN")]
    pub(crate) jobs: Vec<String>,
    /// Stop after this time [default: at Ctrl-C]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) r#for: Option<std::time::Duration>,
    /// At the end, print the address ranges that were idle for at least this time, per process
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) cold_ranges: Option<std::time::Duration>,
}

/// `thermocline observe`.
pub(crate) fn observe(roots: Roots, mut config: Config, format: Format, arguments: &Observe) -> Result<()> {
    if !arguments.jobs.is_empty() {
        config.jobs = arguments.jobs.iter().map(|glob| JobRule::new(glob, Class::Observe)).collect();
    }
    if config.jobs.is_empty() {
        bail!(
            "no job is configured: name the cgroups to observe, such as `thermocline observe '/system.slice/*.service'`, or add [[job]] rules to the configuration"
        );
    }
    let (_sender, receiver) = signals::messages()?;
    let scan_period = config.agent.scan_period;
    let mut node = Agent::new(roots, config, Options { dry_run: true, ephemeral: true })?;
    let mut last = None;
    let mut ranges = None;
    let mut scans = 0;
    node.run(&receiver, arguments.r#for, &mut |node, view| {
        // Ages change at a scan and not at a decision.
        if let Some(idle) = arguments.cold_ranges.filter(|_| view.costs.scans > scans) {
            scans = view.costs.scans;
            ranges = Some(cold_ranges(node, Age::from_idle_time(idle, scan_period)));
        }
        match format {
            Format::Json => drop(print(format, &view.brief(), String::new)),
            Format::Text => eprint!("\r{} scans, {} jobs ", view.costs.scans, view.jobs.len()),
        }
        last = Some(json!(view.brief()));
    })?;
    if format == Format::Text {
        eprintln!();
        let view = last.context("stopped before the first scan was complete")?;
        print(format, &view, || text::status(&view) + &text::ages(&view))?;
    }
    if let Some(ranges) = ranges {
        print(Format::Json, &json!({ "cold_ranges": ranges }), String::new)?;
    }
    Ok(())
}

/// Address ranges of at least `age`, per process. Jobs whose tracker does not resolve single pages are left out.
fn cold_ranges(node: &Agent, age: Age) -> Vec<Value> {
    let mut found = Vec::new();
    for job in node.jobs() {
        let Some(scan) = &job.scan else { continue };
        let Some(ages) = node.tracker(job.tracker.0).and_then(trackers::ages::Tracker::page_ages) else { continue };
        let Ok(processes) = exact::cold_ranges(node.roots(), ages, &job.pids, age) else { continue };
        for (pid, ranges) in processes {
            let cold: Vec<_> = ranges.iter().map(|range| [range.start, range.end]).collect();
            let taken_at = ages.taken_at(pid).unwrap_or(scan.taken_at);
            let taken_at_ns = units::nanos(taken_at);
            found.push(json!({ "job": job.path(), "pid": pid, "taken_at_ns": taken_at_ns, "cold": cold }));
        }
    }
    found
}

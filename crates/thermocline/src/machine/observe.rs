//! `thermocline observe`: page ages and possible savings of jobs; moves nothing. Beside a running agent it shows what that agent knows:
//! a second tracker would clear the accessed bits of the first.

use std::path::Path;
use std::time::{Duration, Instant};

use agent::actuators::exact;
use agent::scheduler::Error;
use agent::{Agent, Options, socket};
use anyhow::{Context, Result, bail};
use clap::Args;
use config::{Class, Config, JobRule};
use globset::{GlobBuilder, GlobMatcher};
use kernel::Roots;
use serde_json::{Value, json};
use units::Age;

use super::text;
use crate::options::Format;
use crate::output::print;
use crate::signals;
use crate::values::duration;

/// How often a running agent is asked while it does not know yet.
const ASKED_AGAIN: Duration = Duration::from_secs(1);

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
    let (scan_period, known_after) = (config.agent.scan_period, config.agent.scan_period + config.agent.control_period);
    let runtime_dir = config.agent.runtime_dir.clone();
    let mut node = match Agent::new(roots, config, Options { dry_run: true, ephemeral: true, estimate: true }) {
        Err(locked @ Error::Daemon(daemon::Error::Locked { .. })) => return beside(&runtime_dir, locked.into(), format, arguments),
        node => node?,
    };
    if format == Format::Text {
        let (ages, savings) = (scan_period.as_secs_f64(), known_after.as_secs_f64());
        eprintln!("ages are known after {ages} s, savings after about {savings} s, and better after a cycle of the load");
    }
    let named = if arguments.jobs.is_empty() { "a rule of the configuration".to_owned() } else { arguments.jobs.join(", ") };
    let (mut last, mut found) = (None, false);
    let mut ranges = None;
    let mut scans = 0;
    node.run(&receiver, arguments.r#for, &mut |node, view| {
        // Ages change at a scan and not at a decision.
        if let Some(idle) = arguments.cold_ranges.filter(|_| view.costs.scans > scans) {
            scans = view.costs.scans;
            ranges = Some(cold_ranges(node, Age::from_idle_time(idle, scan_period)));
        }
        if view.costs.scans == 1 && view.jobs.is_empty() && last.is_none() {
            eprintln!("no cgroup with memory matches {named} so far; this goes on, in case one appears");
        }
        found |= !view.jobs.is_empty();
        match format {
            Format::Json => drop(print(format, &view.brief(), String::new)),
            Format::Text => eprint!("\r{} scans, {} jobs ", view.costs.scans, view.jobs.len()),
        }
        last = Some(json!(view.brief()));
    })?;
    if last.is_some() && !found {
        bail!("no cgroup matched {named}; patterns are relative to the cgroup root, such as '/system.slice/*.service'");
    }
    if format == Format::Text {
        eprintln!();
        let view = last.context("stopped before the first scan was complete")?;
        print(format, &view, || text::observed(&view))?;
    }
    if let Some(ranges) = ranges {
        print(Format::Json, &json!({ "cold_ranges": ranges }), String::new)?;
    }
    Ok(())
}

/// Prints what the running agent knows of the jobs, and waits for it as long as `--for` allows.
fn beside(runtime_dir: &Path, locked: anyhow::Error, format: Format, arguments: &Observe) -> Result<()> {
    if arguments.cold_ranges.is_some() {
        return Err(locked.context("an agent is running, and does not report ranges; stop it for --cold-ranges"));
    }
    let matchers = arguments.jobs.iter().map(|pattern| matcher(pattern)).collect::<Result<Vec<_>>>()?;
    let end = Instant::now() + arguments.r#for.unwrap_or_default();
    loop {
        // Without an agent that answers, another `observe` or `run` holds the lock.
        let Ok(mut view) = socket::ask(runtime_dir, "status") else { return Err(locked) };
        keep_matching(&mut view, &matchers)?;
        let jobs = || view["jobs"].as_array().into_iter().flatten();
        if jobs().all(|job| job["could_save_bytes"].is_u64()) || Instant::now() >= end {
            if format == Format::Text {
                eprintln!("an agent is running: these are its figures");
            }
            return print(format, &view, || text::observed(&view));
        }
        std::thread::sleep(ASKED_AGAIN.min(end.saturating_duration_since(Instant::now())));
    }
}

fn matcher(pattern: &str) -> Result<GlobMatcher> {
    let glob = GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).build();
    Ok(glob.with_context(|| format!("invalid cgroup pattern {pattern:?}"))?.compile_matcher())
}

/// Removes the jobs that no pattern names, if there are patterns.
fn keep_matching(view: &mut Value, matchers: &[GlobMatcher]) -> Result<()> {
    let name = |job: &Value| job["job"].as_str().unwrap_or_default().to_owned();
    let Some(jobs) = view["jobs"].as_array_mut() else { return Ok(()) };
    let known: Vec<_> = jobs.iter().map(name).collect();
    jobs.retain(|job| matchers.is_empty() || matchers.iter().any(|matcher| matcher.is_match(name(job))));
    if jobs.is_empty() {
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        bail!(
            "an agent is running and watches no such job; its jobs: {known}. Add a [[job]] rule with class = \"observe\" to its \
             configuration, or stop it: two trackers would clear each other's accessed bits"
        );
    }
    Ok(())
}

/// Address ranges of at least `age`, per process. Jobs whose tracker does not resolve single pages are left out.
fn cold_ranges(node: &Agent, age: Age) -> Vec<Value> {
    let mut found = Vec::new();
    for job in node.jobs() {
        let Some(scan) = &job.scan else { continue };
        let ages = node.tracker(job.tracker.0).and_then(trackers::ages::Tracker::page_ages);
        let Some(ages) = ages.filter(|ages| ages.are_complete()) else { continue };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beside_an_agent_its_jobs_are_shown_or_named() {
        let check = |patterns: &[&str], want: Result<&[&str], &str>| {
            let mut view = json!({ "jobs": [{ "job": "/a" }, { "job": "/b/c" }] });
            let matchers: Vec<_> = patterns.iter().map(|pattern| matcher(pattern).unwrap()).collect();
            match (keep_matching(&mut view, &matchers), want) {
                (Ok(()), Ok(names)) => assert_eq!(view["jobs"], json!(names.iter().map(|job| json!({ "job": job })).collect::<Vec<_>>())),
                (Err(error), Err(words)) => assert!(error.to_string().contains(words), "{error}"),
                (found, _) => panic!("{patterns:?}: {found:?}"),
            }
        };
        check(&[], Ok(&["/a", "/b/c"]));
        check(&["/b/*"], Ok(&["/b/c"]));
        check(&["/*"], Ok(&["/a"]));
        check(&["/z"], Err("its jobs: /a, /b/c"));
        assert!(matcher("/[").is_err());
    }
}

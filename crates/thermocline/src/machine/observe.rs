//! `thermocline observe`: page ages and possible savings of jobs; moves nothing. Beside a running agent it shows what that agent knows:
//! a second tracker would clear the accessed bits of the first. What was observed is kept, for `plan` and `setup`.

use std::io::IsTerminal;
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
use kernel::cgroup::{self, CgroupRoot};
use serde_json::{Value, json};
use units::Age;

use super::kept::Kept;
use super::text;
use crate::options::Format;
use crate::output::print;
use crate::signals;
use crate::values::duration;

/// How often a running agent is asked while it does not know yet.
const ASKED_AGAIN: Duration = Duration::from_secs(1);

/// Cgroups that are searched for jobs that an agent does not watch.
const CGROUPS_MAX: usize = 100_000;

#[derive(Debug, Args)]
pub(crate) struct Observe {
    /// Cgroups to observe, as patterns relative to the cgroup root [default: the configured jobs, and every service, container and
    /// virtual machine]
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
    config.jobs = rules(config.jobs, &arguments.jobs);
    let kept = Kept::below(&config.agent.state_dir);
    let scan_period = config.agent.scan_period;
    let runtime_dir = config.agent.runtime_dir.clone();
    warn(&roots);
    let (_sender, receiver) = signals::messages()?;
    let mut node = match start(&roots, &config, &kept) {
        Err(locked @ Error::Daemon(daemon::Error::Locked { .. })) => {
            return beside(&roots, &runtime_dir, &kept, locked.into(), format, arguments);
        }
        node => node?,
    };
    let named = if arguments.jobs.is_empty() {
        "a rule, and no service, container or virtual machine".to_owned()
    } else {
        arguments.jobs.join(", ")
    };
    let updates = format == Format::Text && std::io::stdout().is_terminal();
    if format == Format::Text {
        let ages = 2.0 * scan_period.as_secs_f64();
        eprintln!("ages, and a bound on the saving, are known after about {ages} s; an estimate that keeps the objective once the history");
        eprintln!("is long enough, and a better one after a cycle of the load; Ctrl-C ends it");
    }
    let (mut last, mut ranges, mut scans) = (None, None, 0);
    node.run(&receiver, arguments.r#for, &mut |node, view| {
        // Ages change at a scan and not at a decision.
        if let Some(idle) = arguments.cold_ranges.filter(|_| view.costs.scans > scans) {
            ranges = Some(cold_ranges(node, Age::from_idle_time(idle, scan_period)));
        }
        scans = view.costs.scans;
        if scans == 1 && view.jobs.is_empty() && last.is_none() {
            eprintln!("no cgroup with memory matches {named} so far; this goes on, in case one appears");
        }
        let brief = json!(view.brief());
        match format {
            Format::Json => drop(print(format, &brief, String::new)),
            Format::Text if updates => drop(print(format, &brief, || format!("{HOME_AND_CLEAR}{}{scans} scans\n", text::observed(&brief)))),
            Format::Text => {}
        }
        last = Some(brief);
    })?;
    let view = last.context("stopped before the first scan was complete")?;
    finish(&view, &named, &kept, format)?;
    if let Some(ranges) = ranges {
        print(Format::Json, &json!({ "cold_ranges": ranges }), String::new)?;
    }
    Ok(())
}

/// Moves a terminal's cursor to the first line and clears the screen below.
const HOME_AND_CLEAR: &str = "\x1b[H\x1b[J";

/// The rules to observe by: the named patterns, or the configured rules and, after them, those that find jobs by themselves.
fn rules(configured: Vec<JobRule>, named: &[String]) -> Vec<JobRule> {
    if named.is_empty() {
        return configured.into_iter().chain(advise::jobs::rules()).collect();
    }
    named.iter().map(|glob| JobRule::new(glob, Class::Observe)).collect()
}

/// Starts an agent that observes and keeps its journal, or keeps nothing where that is not possible.
fn start(roots: &Roots, config: &Config, kept: &Kept) -> Result<Agent, Error> {
    let options = Options { dry_run: true, ephemeral: false, estimate: true };
    match Agent::new(roots.clone(), kept.configured(config.clone()), options) {
        Err(error @ Error::File { .. }) => {
            log::warn!("{error}; what is observed is shown and not kept");
            Agent::new(roots.clone(), config.clone(), Options { ephemeral: true, ..options })
        }
        started => started,
    }
}

/// Prints what would prevent savings, before it matters.
fn warn(roots: &Roots) {
    for check in advise::doctor::before_observing(roots) {
        eprintln!("{}: {}", check.name, check.found);
        if !check.remedy.is_empty() {
            eprintln!("  -> {}", check.remedy);
        }
    }
}

/// Keeps the last view, and prints it.
fn finish(view: &Value, named: &str, kept: &Kept, format: Format) -> Result<()> {
    if view["jobs"].as_array().is_none_or(Vec::is_empty) {
        bail!("no cgroup matched {named}; patterns are relative to the cgroup root, such as '/system.slice/*.service'");
    }
    let kept = kept.store(view);
    if format == Format::Text {
        print(format, view, || text::observed(view))?;
    }
    match kept {
        Ok(()) if format == Format::Text => {
            eprintln!("next: `thermocline setup` proposes a configuration, `thermocline plan` limits for each job")
        }
        Ok(()) => {}
        Err(error) => log::warn!("what was observed is not kept: {}", crate::output::describe(&error)),
    }
    Ok(())
}

/// Prints what the running agent knows of the jobs, and waits for it as long as `--for` allows.
fn beside(roots: &Roots, runtime_dir: &Path, kept: &Kept, locked: anyhow::Error, format: Format, arguments: &Observe) -> Result<()> {
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
                unwatched(roots, &view, arguments);
            }
            if format == Format::Json {
                print(format, &view, String::new)?;
            }
            return finish(&view, "a rule of the agent", kept, format);
        }
        std::thread::sleep(ASKED_AGAIN.min(end.saturating_duration_since(Instant::now())));
    }
}

/// Names the jobs of this machine that the agent does not watch.
fn unwatched(roots: &Roots, view: &Value, arguments: &Observe) {
    if !arguments.jobs.is_empty() {
        return;
    }
    let listed = CgroupRoot::probe(roots).and_then(|root| cgroup::list(&root, CGROUPS_MAX)).unwrap_or_default();
    let watched: Vec<_> = view["jobs"].as_array().into_iter().flatten().filter_map(|job| job["job"].as_str()).collect();
    let is_watched =
        |path: &str| watched.iter().any(|job| path == *job || path.strip_prefix(job).is_some_and(|rest| rest.starts_with('/')));
    let others: Vec<_> = listed.iter().filter(|path| advise::jobs::recognize(path).is_some() && !is_watched(path)).collect();
    if let Some(first) = others.first() {
        eprintln!(
            "{} more jobs are on this machine, such as {first}; the agent watches them once a [[job]] rule of class observe names them",
            others.len()
        );
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
        let Ok(processes) = exact::cold_ranges(node.roots(), ages, &job.processes(), age) else { continue };
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

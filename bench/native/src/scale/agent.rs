//! One run of the agent over a machine of files.

use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use agent::Agent;
use agent::options::Options;
use anyhow::{Context, Result};
use config::Config;
use kernel::Roots;
use kernel::process::own_cpu_time;

use super::Own;

/// How long it runs.
const SECONDS: u64 = 50;

/// Runs the agent and prints its figures.
///
/// # Errors
/// Any error of the agent.
pub(crate) fn run(directory: &Path, policy: &str, tracker: &str) -> Result<()> {
    // A missed deadline is a warning that names its cause.
    env_logger::Builder::from_env(env_logger::Env::default().filter_or("THERMOCLINE_LOG", "warn")).init();
    let (state, run) = (directory.join("state"), directory.join("run"));
    let text = format!(
        "[agent]\nstate_dir = {state:?}\nruntime_dir = {run:?}\ntracker = {tracker:?}\nscan_period = \"20s\"\ncontrol_period = \"10s\"\n\
         cpu_budget = \"100%\"\njobs_max = 2000\n[cold_age]\nwarmup = \"0s\"\n[pressure]\nperiod = \"2s\"\nwarmup = \"0s\"\n\
         [guard]\nenabled = true\n[slow]\nlatency = \"400ns\"\nperiod = \"20s\"\n[[job]]\ncgroup = \"/jobs/*\"\nclass = \"standard\"\npolicy = {policy:?}\n"
    );
    let config = Config::from_str("scale", &text)?;
    let mut agent = Agent::new(Roots::under(directory), config, Options::default())?;
    let (started, before) = (Instant::now(), own_cpu_time()?);
    let (_stop, messages) = mpsc::channel();
    let (mut scan_seconds, mut first, mut last) = (0.0_f64, (0.0, 0.0), None);
    agent.run(&messages, Some(Duration::from_secs(SECONDS)), &mut |_, view| {
        scan_seconds = scan_seconds.max(view.costs.scan_seconds);
        if view.costs.scans == 1 {
            first = (view.costs.scan_cpu_seconds, view.costs.ages_cpu_seconds);
        }
        last = Some((view.costs, view.jobs.len(), view.jobs.first().map(|job| job.tracker)));
    })?;
    let (costs, jobs, tracker) = last.context("the agent did nothing")?;
    // Its child's CPU time counts once it has exited.
    drop(agent);
    let cpu = own_cpu_time()?.saturating_sub(before).as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a handful of scans")]
    let later_scans = costs.scans.saturating_sub(1).max(1) as f64;
    let own = Own {
        scans: costs.scans,
        scan_seconds,
        first_scan_cpu_seconds: first.0,
        scan_cpu_seconds: (costs.scan_cpu_seconds - first.0) / later_scans,
        ages_cpu_seconds: (costs.ages_cpu_seconds - first.1) / later_scans,
        late_scans: costs.late_scans,
        deadlines_missed: costs.deadlines_missed,
        cpu_ratio: cpu / started.elapsed().as_secs_f64(),
        agent_rss_bytes: peak_rss()?,
        jobs: jobs as u64,
        tracker: tracker.context("no job")?.to_owned(),
    };
    println!("{}", serde_json::to_string(&own)?);
    Ok(())
}

/// The most memory that this process has had.
fn peak_rss() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM in /proc/self/status")?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib * 1024)
}

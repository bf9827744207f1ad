//! The agent at the size of a server: its loop over the kernel's files of a machine of 1 TiB with 1,000 jobs, under each policy.
//!
//! The files are written to disk and have the right size and shape; nothing in them moves. What the kernel needs to produce them is
//! not measured here, and neither are trackers that need a kernel (`sampled`, `lru_gen`). One job in a hundred is small, so that its
//! page frames have to be found by a sweep, and has a process that has reserved 126 TiB. No page is present in a process: policy
//! `slowdown` only searches for blocks. Periods are shorter than in production, so that deadlines are harder to keep.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use units::Bytes;

pub(crate) mod agent;
mod files;

use files::{Machine, PROCESSES};

/// The variable by which the agent's child learns where the files are: it must never ask for cgroups of this machine.
pub(crate) const FILES: &str = "THERMOCLINE_SCALE_FILES";

/// The policies under which the jobs are.
const POLICIES: [&str; 5] = ["cold_age", "pressure", "background", "auto", "slowdown"];

/// What measures ages: `auto`, which samples page frames on such a machine, and once per machine all frames.
const TRACKERS: [&str; 2] = ["auto", "page_idle"];

/// The machine, and a smaller one of the same shape.
const SIZES: [(Bytes, u64); 2] = [(Bytes::gib(256), 250), (Bytes::gib(1024), 1_000)];

/// The most memory that the agent may take with the tracker that `auto` chooses.
const RSS_MAX: Bytes = Bytes::mib(150);

/// The largest share of a core per TiB that measuring ages may take, at the usual scan period.
const CORE_RATIO_MAX: f64 = 0.001;

/// The most that its processor time may grow, relative to the machine: 1 is linear, and work that grows with the square would show
/// as 4. Two runs of the same machine differ by a quarter where others use its cores.
const GROWTH_MAX: f64 = 1.5;

/// The scan period for which costs are stated.
const SCAN_PERIOD_SECONDS: f64 = 120.0;

/// What a run of the agent reports of itself.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Own {
    /// Finished scans.
    pub(crate) scans: u64,
    /// Duration of the longest.
    pub(crate) scan_seconds: f64,
    /// CPU time of the first scan, in which the whole sample joins.
    pub(crate) first_scan_cpu_seconds: f64,
    /// CPU time of one scan after it, with finding the jobs and reading their counters.
    pub(crate) scan_cpu_seconds: f64,
    /// Of it, that of measuring ages.
    pub(crate) ages_cpu_seconds: f64,
    /// Scans that began late.
    pub(crate) late_scans: u64,
    /// Periods of policies, and checks of the guard, that began more than half a period late.
    pub(crate) deadlines_missed: u64,
    /// CPU time per second.
    pub(crate) cpu_ratio: f64,
    /// The most memory that it took.
    pub(crate) agent_rss_bytes: u64,
    /// Jobs that it observed.
    pub(crate) jobs: u64,
    /// The tracker of the first.
    pub(crate) tracker: String,
}

/// One policy on one machine.
#[derive(Debug, Serialize)]
struct Run {
    memory_bytes: Bytes,
    processes: u64,
    policy: &'static str,
    #[serde(flatten)]
    own: Own,
    /// CPU time of measuring ages as a share of a core, at the usual scan period.
    core_ratio_per_tib: f64,
    /// The same of whole scans.
    scan_core_ratio_per_tib: f64,
    /// The same files, only read.
    bulk_read_seconds: f64,
}

/// The figures.
#[derive(Debug, Serialize)]
pub(crate) struct Scale {
    /// Of the large machine.
    memory_bytes: Bytes,
    /// Of the large machine.
    jobs: u64,
    /// In all runs.
    deadlines_missed: u64,
    /// The largest, with the tracker that `auto` chooses.
    agent_rss_bytes: u64,
    /// The largest, with the tracker that `auto` chooses.
    core_ratio_per_tib: f64,
    /// The same of whole scans, with finding the jobs and reading their counters.
    scan_core_ratio_per_tib: f64,
    /// The same of a bulk read of the files that the ages of all frames are read from, in elapsed time.
    bulk_read_core_ratio_per_tib: f64,
    /// CPU time of the large machine's agent relative to the small one's and to their sizes; the largest.
    growth_ratio: f64,
    runs: Vec<Run>,
}

impl Scale {
    /// What is not as required.
    pub(crate) fn missed(&self) -> Vec<String> {
        let mut missed = Vec::new();
        if self.deadlines_missed > 0 {
            missed.push(format!("scale: {} deadlines missed", self.deadlines_missed));
        }
        if self.agent_rss_bytes > RSS_MAX.0 {
            missed.push(format!("scale: the agent took {}, more than {RSS_MAX}", Bytes(self.agent_rss_bytes)));
        }
        if self.core_ratio_per_tib > CORE_RATIO_MAX {
            missed.push(format!("scale: measuring ages takes {:.2} % of a core per TiB", self.core_ratio_per_tib * 100.0));
        }
        if self.growth_ratio > GROWTH_MAX {
            missed.push(format!("scale: CPU time grows {:.2} times as fast as the machine", self.growth_ratio));
        }
        missed
    }

    /// A line per run.
    pub(crate) fn table(&self) -> String {
        let mut text =
            "\nscale: memory, policy, tracker, longest scan, CPU of the first scan, of one after it and of its ages, same files only read, core, missed \
             deadlines, memory of the agent\n"
                .to_owned();
        for run in &self.runs {
            text += &format!(
                "{:>9} {:<10} {:<14} {:>6.2} s {:>6.3} s {:>6.3} s {:>6.3} s {:>6.2} s {:>6.1} % {:>4} {:>10}\n",
                run.memory_bytes.to_string(),
                run.policy,
                run.own.tracker,
                run.own.scan_seconds,
                run.own.first_scan_cpu_seconds,
                run.own.scan_cpu_seconds,
                run.own.ages_cpu_seconds,
                run.bulk_read_seconds,
                run.own.cpu_ratio * 100.0,
                run.own.deadlines_missed,
                Bytes(run.own.agent_rss_bytes).to_string(),
            );
        }
        text
    }
}

/// Runs the agent under each policy, on both machines. The files are written below `beside`, and take up to 4.1 GiB.
///
/// # Errors
/// Any error of the file system, or of the agent.
pub(crate) fn bench(beside: &Path) -> Result<Scale> {
    let mut runs = Vec::new();
    for (memory, jobs) in SIZES {
        let directory = tempfile::Builder::new().prefix("scale-").tempdir_in(beside)?;
        eprintln!("writing the files of a machine of {memory} with {jobs} jobs");
        let machine = Machine::write(directory.path(), memory, jobs)?;
        // Otherwise the agent's files wait behind these gigabytes on their way to the disk.
        ensure!(Command::new("sync").status()?.success(), "sync failed");
        let [auto, exact] = TRACKERS;
        for (policy, tracker) in POLICIES.map(|policy| (policy, auto)).into_iter().chain([(POLICIES[0], exact)]) {
            eprintln!("measuring scale under {policy}, tracker {tracker}");
            let bulk_read_seconds = bulk_read(&machine)?;
            runs.push(run(&machine, (policy, tracker), bulk_read_seconds)?);
        }
    }
    Ok(summary(runs))
}

fn summary(runs: Vec<Run>) -> Scale {
    let (memory_bytes, jobs) = SIZES[1];
    let chosen = |run: &&Run| run.own.tracker != TRACKERS[1];
    let large: Vec<&Run> = runs.iter().filter(|run| run.memory_bytes == memory_bytes).filter(chosen).collect();
    let cpu = |memory: Bytes, policy: &str| {
        runs.iter().filter(chosen).find(|run| run.memory_bytes == memory && run.policy == policy).map(|run| run.own.cpu_ratio)
    };
    let larger = tib(memory_bytes) / tib(SIZES[0].0);
    let growth = POLICIES.iter().filter_map(|policy| Some(cpu(memory_bytes, policy)? / cpu(SIZES[0].0, policy)? / larger));
    let bulk_read_seconds = large.iter().map(|run| run.bulk_read_seconds).fold(0.0, f64::max);
    Scale {
        memory_bytes,
        jobs,
        deadlines_missed: runs.iter().map(|run| run.own.deadlines_missed).sum(),
        agent_rss_bytes: large.iter().map(|run| run.own.agent_rss_bytes).max().unwrap_or_default(),
        core_ratio_per_tib: large.iter().map(|run| run.core_ratio_per_tib).fold(0.0, f64::max),
        scan_core_ratio_per_tib: large.iter().map(|run| run.scan_core_ratio_per_tib).fold(0.0, f64::max),
        bulk_read_core_ratio_per_tib: bulk_read_seconds / SCAN_PERIOD_SECONDS / tib(memory_bytes),
        growth_ratio: growth.fold(0.0, f64::max),
        runs,
    }
}

#[expect(clippy::cast_precision_loss, reason = "a size of a machine")]
fn tib(memory: Bytes) -> f64 {
    memory.0 as f64 / Bytes::gib(1024).0 as f64
}

/// Runs the agent in a process of its own.
fn run(machine: &Machine, (policy, tracker): (&'static str, &str), bulk_read_seconds: f64) -> Result<Run> {
    let output = Command::new(std::env::current_exe()?)
        .args(["--scale-agent", policy, "--scale-tracker", tracker, "--scale-files"])
        .arg(&machine.directory)
        .env(FILES, &machine.directory)
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "the agent under {policy} failed");
    let own: Own = serde_json::from_slice(&output.stdout).context("the agent's figures")?;
    ensure!(own.jobs == machine.jobs, "the agent observed {} of {} jobs", own.jobs, machine.jobs);
    ensure!(own.scans > 1, "the agent finished {} scans", own.scans);
    Ok(Run {
        memory_bytes: machine.memory,
        processes: machine.jobs * PROCESSES,
        policy,
        core_ratio_per_tib: own.ages_cpu_seconds / SCAN_PERIOD_SECONDS / tib(machine.memory),
        scan_core_ratio_per_tib: own.scan_cpu_seconds / SCAN_PERIOD_SECONDS / tib(machine.memory),
        bulk_read_seconds,
        own,
    })
}

/// Reads the files that a scan reads, and nothing else.
fn bulk_read(machine: &Machine) -> Result<f64> {
    let mut buffer = vec![0u8; 512 << 10];
    let started = Instant::now();
    for path in machine.bulk_files() {
        let mut file = File::open(path)?;
        while file.read(&mut buffer)? > 0 {}
    }
    Ok(started.elapsed().as_secs_f64())
}

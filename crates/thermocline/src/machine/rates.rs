//! `thermocline rates`: access rates of memory, as a table.

use std::fmt::Write;
use std::process::ExitCode;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{SystemTime, UNIX_EPOCH};

use advise::rates::{self, Options, Row, Survey};
use anyhow::{Context, Result, bail};
use clap::Args;
use config::Config;
use kernel::cgroup::{Cgroup, CgroupRoot};
use kernel::{Roots, process};
use trackers::rates::sampler::Settings;
use units::{Bytes, RatioPpm};

use crate::options::Format;
use crate::output::print;
use crate::signals;
use crate::table::Table;
use crate::values::duration;

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("target").required(true)))]
pub(crate) struct Rates {
    /// A process; repeatable
    #[arg(long, value_name = "PID", group = "target", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) pid: Vec<i32>,
    /// A job: all processes of this cgroup, relative to the cgroup root, and of those below it
    #[arg(long, value_name = "CGROUP", group = "target")]
    pub(crate) job: Option<String>,
    /// Share of the memory to sample, chosen at random in each run
    #[arg(long, value_name = "RATIO", default_value = "5%", value_parser = sample)]
    pub(crate) sample: RatioPpm,
    /// Sample all of it
    #[arg(long, conflicts_with = "sample")]
    pub(crate) all: bool,
    /// Samples per page; as many again for blocks that are sampled in parts
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(2..=600))]
    pub(crate) samples: u32,
    /// Time between two samples; rates far above one access per interval cannot be resolved
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = sampling_interval)]
    pub(crate) sampling_interval: std::time::Duration,
    /// Split huge pages whose rate cannot be resolved, sample their parts, and collapse them. The only option that changes
    /// anything: the program runs without these huge pages meanwhile
    #[arg(long)]
    pub(crate) split: bool,
    /// Latency of one access to the slow memory in question
    #[arg(long, value_name = "DURATION", default_value = "1us", value_parser = duration)]
    pub(crate) latency: std::time::Duration,
}

fn sample(text: &str) -> Result<RatioPpm, String> {
    let ratio = units::quantity::parse_ratio(text).map_err(|invalid| invalid.to_string())?;
    if ratio == RatioPpm(0) || ratio > RatioPpm::ONE {
        return Err("give a share above 0 and up to 100%, such as 5%".to_owned());
    }
    Ok(ratio)
}

fn sampling_interval(text: &str) -> Result<std::time::Duration, String> {
    let period = duration(text)?;
    let (least, most) = (std::time::Duration::from_millis(10), std::time::Duration::from_secs(3600));
    if !(least..=most).contains(&period) {
        return Err("give a time from 10ms to 1h, such as 1s".to_owned());
    }
    Ok(period)
}

/// The most processes of a job that are sampled.
const PROCESSES_MAX: usize = 4096;

/// The most parts of a block that are sampled for their rates (Thermostat section 3.2).
const PARTS_MAX: u32 = 50;

/// Exit status after a signal, as a shell reports SIGINT.
const INTERRUPTED: u8 = 130;

/// `thermocline rates`.
pub(crate) fn rates(roots: &Roots, config: &Config, format: Format, arguments: &Rates) -> Result<ExitCode> {
    let pids = match &arguments.job {
        Some(job) => processes_of(roots, job)?,
        None => arguments.pid.clone(),
    };
    for &pid in &pids {
        // Processes of a job may exit at any time; one given by --pid must exist.
        if arguments.job.is_none() {
            process::stat(roots, pid)?;
        }
    }
    let options = Options {
        settings: Settings { samples: arguments.samples, interval: arguments.sampling_interval, parts_max: PARTS_MAX },
        share: if arguments.all { RatioPpm::ONE } else { arguments.sample },
        seed: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        split: arguments.split,
        latency: arguments.latency,
    };
    let (_sender, receiver) = signals::messages()?;
    let wait = &mut |time| matches!(receiver.recv_timeout(time), Err(RecvTimeoutError::Timeout));
    let Some(survey) = rates::survey(roots, config, &pids, &options, wait)? else {
        return Ok(ExitCode::from(INTERRUPTED));
    };
    print(format, &survey, || text(&survey, arguments.latency.as_secs_f64()))?;
    if survey.sampled_bytes == Bytes::ZERO {
        bail!("nothing was sampled of {}, so nothing is known; give a larger --sample, or --all", survey.found_bytes);
    }
    Ok(ExitCode::SUCCESS)
}

fn processes_of(roots: &Roots, job: &str) -> Result<Vec<i32>> {
    let cgroup = Cgroup::open(&CgroupRoot::probe(roots)?, job)?;
    let pids = cgroup.procs(PROCESSES_MAX).with_context(|| format!("cannot list the processes of {job}"))?;
    if pids.is_empty() {
        bail!("no process is in {job}; name a cgroup with processes, relative to {}", roots.cgroup.display());
    }
    Ok(pids)
}

fn text(survey: &Survey, latency_seconds: f64) -> String {
    let mut table = Table::new(&["pid", "address", "size", "pages", "node", "samples", "accessed", "per second", "at most"]);
    survey.blocks.iter().for_each(|block| row(&mut table, block));
    let mut text = table.to_string();
    let Survey { tracker, interval_seconds, found_bytes, sampled_bytes, skipped, lost, .. } = survey;
    let _ = writeln!(text, "\nsampled {sampled_bytes} of {found_bytes} by {tracker}, every {interval_seconds:.3} s");
    let _ =
        writeln!(text, "at most: upper 95 % bound of the accesses that accessed bits show; -: accessed in every sample, no upper bound");
    for share in &survey.summary {
        let (ratio, allowed) = (share.slow_ratio * 100.0, share.slowdown_ratio * 100.0);
        let _ = writeln!(
            text,
            "at {allowed:.0}% slowdown, {:.0} accesses of {:.1} us per second: {ratio:.1}% of the sampled memory could be slow, {}",
            share.budget_per_second,
            latency_seconds * 1e6,
            share.slow_bytes
        );
    }
    let left_out = [
        (skipped.locked_bytes, "locked"),
        (skipped.shared_bytes, "shared with other processes"),
        (skipped.file_bytes, "mapped of files"),
        (skipped.special_bytes, "of the kernel or hugetlbfs"),
        (skipped.sparse_bytes, "reserved, and too sparse to search before Linux 6.7"),
    ];
    let left_out: Vec<_> =
        left_out.iter().filter(|(bytes, _)| *bytes > Bytes::ZERO).map(|(bytes, what)| format!("{bytes} {what}")).collect();
    if !left_out.is_empty() {
        let _ = writeln!(text, "left out: {}", left_out.join(", "));
    }
    let unresolved = [
        (lost.changed, "changed or unmapped during sampling"),
        (lost.over_capacity, "beyond the capacity of the tracker"),
        (lost.not_split, "accessed too often to resolve as a whole (see --split)"),
        (skipped.vanished, "unmapped before sampling"),
    ];
    for (blocks, what) in unresolved.iter().filter(|(blocks, _)| *blocks > 0) {
        let _ = writeln!(text, "{blocks} blocks {what}");
    }
    if skipped.over_limit {
        text += "more blocks than the limit: some were not sampled\n";
    }
    text
}

fn row(table: &mut Table, block: &Row) {
    let pages = match (block.huge, block.parts_touched.zip(block.parts)) {
        (true, None) => "huge".to_owned(),
        (_, Some((touched, of))) => format!("{touched}/{of}"),
        (false, None) => "small".to_owned(),
    };
    table.row(&[
        &block.pid,
        &format!("{:#x}", block.address),
        &block.bytes,
        &pages,
        &block.node,
        &block.samples,
        &block.accessed,
        &format!("{:.2}", block.mean_per_second),
        &block.upper_per_second.map_or_else(|| "-".to_owned(), |upper| format!("{upper:.2}")),
    ]);
}

#[cfg(test)]
mod tests {
    use advise::rates::Share;
    use trackers::rates::blocks::Skipped;
    use trackers::rates::sampler::Lost;

    use super::*;

    #[test]
    fn the_table_lists_blocks_and_counts_unresolved_ones() {
        let block = Row {
            pid: 4_194_304,
            address: 0x7fff_ffe0_0000,
            bytes: Bytes::mib(2),
            huge: true,
            node: 1023,
            samples: 30_000,
            accessed: 30_000,
            parts: Some(512),
            parts_touched: Some(512),
            mean_per_second: 1e7,
            upper_per_second: Some(1e8),
        };
        let unresolved = Row { parts: None, parts_touched: None, upper_per_second: None, ..block.clone() };
        let survey = Survey {
            tracker: "damon",
            interval_seconds: 1.0,
            blocks: vec![block, unresolved],
            found_bytes: Bytes::mib(80),
            sampled_bytes: Bytes::mib(4),
            skipped: Skipped { locked_bytes: Bytes(4096), ..Skipped::default() },
            lost: Lost { not_split: 1, ..Lost::default() },
            summary: vec![Share { slowdown_ratio: 0.03, budget_per_second: 30_000.0, slow_bytes: Bytes::mib(2), slow_ratio: 0.5 }],
        };
        let text = text(&survey, 1e-6);
        for piece in [
            " 512/512 ",
            " huge ",
            "4.0 KiB locked",
            "1 blocks accessed too often",
            "50.0% of the sampled memory could be slow",
            "30000 accesses of 1.0 us",
        ] {
            assert!(text.contains(piece), "no {piece:?} in {text}");
        }
    }
}

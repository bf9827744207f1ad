//! One look at a few processes: how often their memory is accessed, and how much of it slow memory could hold.
//!
//! Moves nothing. Where splitting is allowed, what was split is collapsed again, also where the survey is cut short.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use agent::node::{self, Error};
use agent::undo::UndoLog;
use config::Config;
use kernel::madvise::PidFd;
use kernel::thp::Splitter;
use kernel::{Result, Roots};
use policy::slowdown::{self, Input, Params, Runs};
use serde::Serialize;
use trackers::rates::blocks::{self, Block, Skipped};
use trackers::rates::sampler::{Host, Lost, Rated, Round, Sampler, Settings};
use trackers::rates::{self, RateTracker, selection};
use units::{Bytes, RatioPpm};

/// The slowdowns that a survey tells of (002 figures 5 to 11).
const SLOWDOWNS: [RatioPpm; 3] = [RatioPpm(30_000), RatioPpm(60_000), RatioPpm(100_000)];

/// Blocks that are looked for, at most: 2 TiB in huge pages.
const BLOCKS_MAX: usize = 1 << 20;

/// What to look at, and how.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How to look.
    pub settings: Settings,
    /// The share of the blocks that is looked at.
    pub share: RatioPpm,
    /// Which part of the blocks that is, and which parts of them; another number gives others.
    pub seed: u64,
    /// Whether huge pages that are accessed too much to tell may be split.
    pub split: bool,
    /// What one access to slow memory takes.
    pub latency: Duration,
}

/// What was seen.
#[derive(Clone, Debug, Serialize)]
pub struct Survey {
    /// What looked.
    pub tracker: &'static str,
    /// The mean time from look to look.
    pub interval_seconds: f64,
    /// The blocks that were looked at, by process and address.
    pub blocks: Vec<Row>,
    /// Resident memory that could be placed, all of it.
    pub found_bytes: Bytes,
    /// How much of that was to be looked at.
    pub sampled_bytes: Bytes,
    /// Memory that is not placed, by why not.
    pub skipped: Skipped,
    /// Blocks that were to be looked at and of which too little can be told.
    pub lost: Lost,
    /// What slow memory could hold.
    pub summary: Vec<Share>,
}

/// One block.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The process.
    pub pid: i32,
    /// Its first byte.
    pub address: u64,
    /// What of it is present.
    pub bytes: Bytes,
    /// Whether it was one huge page.
    pub huge: bool,
    /// The NUMA node that it is on.
    pub node: u32,
    /// Looks, at the block or at its parts together.
    pub looks: u32,
    /// How many of them found an access.
    pub accessed: u32,
    /// Of how many parts it was found to consist, where it was looked at in parts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parts: Option<u32>,
    /// How many of these were accessed at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parts_touched: Option<u32>,
    /// Accesses per second, as they most likely are.
    pub mean_per_second: f64,
    /// What they do not exceed, 95 % sure; `None` where that cannot be told.
    pub upper_per_second: Option<f64>,
}

/// What slow memory could hold at one tolerable slowdown.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Share {
    /// The tolerable slowdown.
    pub slowdown_ratio: f64,
    /// Accesses per second to slow memory that it allows.
    pub budget_per_second: f64,
    /// What could be placed, of what was looked at.
    pub slow_bytes: Bytes,
    /// That as a share of what was looked at.
    pub slow_ratio: f64,
}

/// Looks at the memory of `pids`, and waits by `wait` for so long, which says whether to go on. `None` where it says no.
///
/// Takes the agent's lock: looks would spoil an agent's ages, and an agent's looks the rates.
///
/// # Errors
/// When an agent is running; any error of the tracker or the kernel's files but that a process has ended.
pub fn survey(
    roots: &Roots,
    config: &Config,
    pids: &[i32],
    options: &Options,
    wait: &mut dyn FnMut(Duration) -> bool,
) -> Result<Option<Survey>, Error> {
    let (_lock, mut undo) = node::alone(config)?;
    if !undo.is_empty() {
        log::warn!("an agent that died has left settings behind; `thermocline agent --restore` puts them back");
    }
    let mut tracker = rates::choose(roots, config.slow.access_sampling)?;
    let splitter = if options.split { Some(Splitter::open(roots)?) } else { None };
    let found = blocks::find(roots, pids, BLOCKS_MAX)?;
    let sampled = selection::sampled(&found.blocks, options.share, options.seed);
    let sum = |blocks: &[Block]| blocks.iter().map(|block| block.bytes).sum::<Bytes>();
    let bytes = (sum(&found.blocks), sum(&sampled));
    let host = Host { roots, splitter: splitter.as_ref() };
    let mut sampler = Sampler::begin(sampled, Vec::new(), options.settings, options.seed, &*tracker, &host);

    let looked =
        write_down(&*tracker, &mut undo, &sampler.pids(), config).and_then(|()| Ok(look(&mut sampler, &mut *tracker, &host, wait)?));
    // Whatever came of it, nothing stays behind.
    let stopped = tracker.stop();
    if stopped.is_ok() && !undo.kdamond_targets().is_empty() {
        let file = config.agent.runtime_dir.join("undo.json");
        undo.set_kdamond_targets(&[]).map_err(|source| Error::File { path: file, source })?;
    }
    let split = sampler.abandon();
    let round = match looked {
        Ok(Some(round)) => {
            collapse(&round.split);
            round
        }
        other => {
            collapse(&split);
            return other.map(|_| None);
        }
    };
    stopped?;
    Ok(Some(Survey { skipped: found.skipped, ..tell(tracker.name(), &round, bytes, options.latency) }))
}

/// Looks until the round is over; `None` where it is not to go on.
fn look(
    sampler: &mut Sampler,
    tracker: &mut dyn RateTracker,
    host: &Host<'_>,
    wait: &mut dyn FnMut(Duration) -> bool,
) -> Result<Option<Round>> {
    let begun = Instant::now();
    loop {
        if let Some(round) = sampler.tick(begun.elapsed(), tracker, host)? {
            return Ok(Some(round));
        }
        if !wait(sampler.due().saturating_sub(begun.elapsed())) {
            return Ok(None);
        }
    }
}

/// Puts the processes on the undo list that kernel threads are going to watch.
fn write_down(tracker: &dyn RateTracker, undo: &mut UndoLog, pids: &[i32], config: &Config) -> Result<(), Error> {
    if !tracker.has_kernel_threads() {
        return Ok(());
    }
    let path = config.agent.runtime_dir.join("undo.json");
    undo.set_kdamond_targets(pids).map_err(|source| Error::File { path, source })
}

/// Has the kernel put huge pages together again. What cannot be is left to its own khugepaged, and told.
fn collapse(split: &[Block]) {
    let mut by_process: BTreeMap<i32, Vec<std::ops::Range<u64>>> = BTreeMap::new();
    for block in split {
        by_process.entry(block.pid).or_default().push(block.range());
    }
    for (pid, ranges) in by_process {
        match PidFd::open(pid).and_then(|process| process.advise_collapse(&ranges)) {
            Ok(done) if done.0 == ranges.len() as u64 * blocks::BLOCK_BYTES => {}
            Ok(done) => log::warn!("process {pid}: of {} huge pages split, {done} are whole again", ranges.len()),
            Err(error) if error.is_gone() => {}
            Err(error) => log::warn!("process {pid}: {} huge pages stay split: {error}", ranges.len()),
        }
    }
}

/// The result of a round, of memory of which so many bytes were found and so many of those sampled. Pure.
fn tell(tracker: &'static str, round: &Round, bytes: (Bytes, Bytes), latency: Duration) -> Survey {
    let mut blocks: Vec<Row> = round.sampled.iter().map(row).collect();
    blocks.sort_by_key(|row| (row.pid, row.address));
    Survey {
        tracker,
        interval_seconds: round.window.as_secs_f64() / f64::from(round.looks.max(1)),
        blocks,
        found_bytes: bytes.0,
        sampled_bytes: bytes.1,
        skipped: Skipped::default(),
        lost: round.lost,
        summary: SLOWDOWNS.iter().map(|&slowdown| share(slowdown, &round.sampled, bytes, latency)).collect(),
    }
}

fn row(rated: &Rated) -> Row {
    let Rated { block, estimate, looks, parts } = rated;
    Row {
        pid: block.pid,
        address: block.start,
        bytes: block.bytes,
        huge: block.huge,
        node: block.node,
        looks: looks.taken,
        accessed: looks.accessed,
        parts: parts.map(|(of, _)| of),
        parts_touched: parts.map(|(_, touched)| touched),
        mean_per_second: estimate.mean.as_f64(),
        upper_per_second: estimate.upper.map(units::AccessRate::as_f64),
    }
}

/// What the agent's own policy would place if the rest of memory were like what was looked at: the sampled share of the
/// budget for it (002 section 3.4).
fn share(slowdown: RatioPpm, rated: &[Rated], (found, sampled): (Bytes, Bytes), latency: Duration) -> Share {
    let params = Params {
        slowdown,
        latency_ns: u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX),
        sample: RatioPpm::of(sampled.0, found.0).unwrap_or(RatioPpm::ONE),
    };
    let everything = Bytes(u64::MAX);
    let runs: Runs = rated.iter().map(|rated| (rated.block.bytes, rated.estimate)).collect();
    let input = Input { slow: Runs::default(), sampled: runs, room: everything, step_max: everything, veto: None };
    let step = slowdown::step(&params, &input);
    let mut order: Vec<_> = rated.iter().map(|rated| (slowdown::rank(rated.block.bytes, &rated.estimate), rated.block.bytes)).collect();
    order.sort_unstable();
    let placed = usize::try_from(step.place).unwrap_or(usize::MAX);
    let slow_bytes: Bytes = order.iter().take(placed).map(|&(_, bytes)| bytes).sum();
    Share {
        slowdown_ratio: slowdown.as_f64(),
        budget_per_second: step.budget.as_f64(),
        slow_bytes,
        slow_ratio: RatioPpm::of(slow_bytes.0, sampled.0).map_or(0.0, RatioPpm::as_f64),
    }
}

#[cfg(test)]
mod tests {
    use policy::slowdown::rate::{Estimate, Looks};
    use units::AccessRate;

    use super::*;

    fn rated(number: u64, upper: Option<u64>) -> Rated {
        let start = number * blocks::BLOCK_BYTES;
        let block = Block { pid: 7, start, end: start + blocks::BLOCK_BYTES, first: start, bytes: Bytes::mib(2), huge: true, node: 0 };
        let estimate = Estimate { mean: AccessRate::ZERO, upper: upper.map(AccessRate::per_second) };
        Rated { block, estimate, looks: Looks { taken: 10, accessed: 0 }, parts: None }
    }

    /// Blocks with these upper bounds, half of what was found; the shares of what was sampled at 3, 6 and 10 %.
    fn check(uppers: &[Option<u64>], lost: u64, want: [f64; 3]) {
        let sampled = (uppers.len() as u64 + lost) * 2;
        let round = Round {
            sampled: uppers.iter().enumerate().rev().map(|(number, &upper)| rated(number as u64, upper)).collect(),
            looks: 20,
            window: Duration::from_secs(30),
            ..Round::default()
        };
        let survey = tell("page_idle", &round, (Bytes::mib(2 * sampled), Bytes::mib(sampled)), Duration::from_micros(1));
        assert_eq!(survey.summary.iter().map(|share| share.slow_ratio).collect::<Vec<_>>(), want, "{uppers:?}");
        assert_eq!(survey.summary[0].budget_per_second, 30_000.0, "3 % of a second in accesses of 1 us");
        assert!(survey.blocks.is_sorted_by_key(|row| row.address) && survey.interval_seconds == 1.5);
    }

    #[test]
    fn the_coldest_are_placed_until_the_sampled_share_of_the_budget_is_spent() {
        check(&[], 0, [0.0; 3]);
        check(&[Some(0), Some(0)], 0, [1.0; 3]);
        // Half of 30,000, 60,000 and 100,000 per second.
        check(&[Some(15_000), Some(15_000), Some(20_000), Some(60_000)], 0, [0.25, 0.5, 0.75]);
        check(&[None, Some(1)], 2, [0.25; 3]);
    }
}

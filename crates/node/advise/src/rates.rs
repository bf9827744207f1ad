//! A survey of some processes: how often their memory is accessed, and how much of it slow memory could hold.
//!
//! Moves nothing. If splitting is allowed, split huge pages are collapsed again, even if the survey is interrupted.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use agent::scheduler::{self, Error};
use agent::undo::UndoLog;
use config::Config;
use kernel::madvise::PidFd;
use kernel::thp::Splitter;
use kernel::{Result, Roots};
use policy::slowdown::bounds::Bounds;
use policy::slowdown::{self, Input, Params, Runs};
use serde::Serialize;
use trackers::rates::blocks::{self, Block, Skipped};
use trackers::rates::sampler::{BlockRate, Blocks, Host, Lost, Round, Sampler, Settings};
use trackers::rates::{self, RateTracker, selection};
use units::{Bytes, RatioPpm};

/// The slowdowns that a survey reports on (Thermostat figures 5 to 11).
const SLOWDOWNS: [RatioPpm; 3] = [RatioPpm(30_000), RatioPpm(60_000), RatioPpm(100_000)];

/// Upper limit of the blocks to find: 2 TiB of huge pages.
const BLOCKS_MAX: usize = 1 << 20;

/// Scope and method of a survey.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Sampling settings.
    pub settings: Settings,
    /// Share of the blocks that is sampled.
    pub share: RatioPpm,
    /// Seed of the choice of the blocks and their parts.
    pub seed: u64,
    /// Whether huge pages that every sample finds accessed may be split.
    pub split: bool,
    /// Latency of one access to slow memory.
    pub latency: Duration,
}

/// The result of a survey.
#[derive(Clone, Debug, Serialize)]
pub struct Survey {
    /// Name of the tracker.
    pub tracker: &'static str,
    /// Mean sampling interval.
    pub interval_seconds: f64,
    /// The sampled blocks, by process and address.
    pub blocks: Vec<Row>,
    /// Resident memory that could be placed, sampled or not.
    pub found_bytes: Bytes,
    /// The part of it that was chosen for sampling.
    pub sampled_bytes: Bytes,
    /// Memory that cannot be placed, by reason.
    pub skipped: Skipped,
    /// Chosen blocks without a (precise) estimate, by reason.
    pub lost: Lost,
    /// What slow memory could hold at several slowdowns.
    pub summary: Vec<Share>,
}

/// One sampled block.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The process.
    pub pid: i32,
    /// Address of the first byte.
    pub address: u64,
    /// Present memory.
    pub bytes: Bytes,
    /// Whether the block was one huge page.
    pub huge: bool,
    /// NUMA node of the block.
    pub node: u32,
    /// Number of samples, of the block or of all of its parts together.
    pub samples: u32,
    /// Number of samples that found an access.
    pub accessed: u32,
    /// For a block sampled in parts: the number of its parts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parts: Option<u32>,
    /// For a block sampled in parts: the number of parts that were accessed at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parts_touched: Option<u32>,
    /// Accesses per second, most likely value.
    pub mean_per_second: f64,
    /// Upper bound at 95 % confidence; `None` if every sample found an access.
    pub upper_per_second: Option<f64>,
}

/// What slow memory could hold at one tolerable slowdown.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Share {
    /// The tolerable slowdown.
    pub slowdown_ratio: f64,
    /// Accesses per second to slow memory that the slowdown allows.
    pub budget_per_second: f64,
    /// Sampled memory that could be placed.
    pub slow_bytes: Bytes,
    /// The same as a share of the sampled memory.
    pub slow_ratio: f64,
}

/// Samples the memory of `pids`. `wait` sleeps for the given time and returns whether to continue; the result is `None` if it
/// returns `false`.
///
/// Takes the agent's lock, because samples would falsify an agent's ages, and an agent's scans these rates.
///
/// # Errors
/// If an agent is running; any error of the tracker or the kernel's files, except that a process has exited.
pub fn survey(
    roots: &Roots,
    config: &Config,
    pids: &[i32],
    options: &Options,
    wait: &mut dyn FnMut(Duration) -> bool,
) -> Result<Option<Survey>, Error> {
    let (_lock, mut undo) = scheduler::lock(roots, config)?;
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
    let sampled = Blocks { sampled, ..Blocks::default() };
    let mut sampler = Sampler::begin(sampled, options.settings, options.seed, &*tracker, &host);

    let outcome =
        record_targets(&*tracker, &mut undo, &sampler.pids(), config).and_then(|()| Ok(sample(&mut sampler, &mut *tracker, &host, wait)?));
    // Whatever the outcome, nothing stays behind in the kernel.
    let stopped = tracker.stop();
    if stopped.is_ok() && !undo.kdamond_targets().is_empty() {
        let file = config.agent.runtime_dir.join("undo.json");
        undo.set_kdamond_targets(&[]).map_err(|source| Error::File { path: file, source })?;
    }
    let split = sampler.abandon();
    let round = match outcome {
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
    Ok(Some(Survey { skipped: found.skipped, ..summarise(tracker.name(), &round, bytes, options.latency) }))
}

/// Samples until the round is over; `None` if `wait` returns `false`.
fn sample(
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

/// Records the processes that kernel threads are going to watch in the undo list.
fn record_targets(tracker: &dyn RateTracker, undo: &mut UndoLog, pids: &[i32], config: &Config) -> Result<(), Error> {
    if !tracker.has_kernel_threads() {
        return Ok(());
    }
    let path = config.agent.runtime_dir.join("undo.json");
    undo.set_kdamond_targets(pids).map_err(|source| Error::File { path, source })
}

/// Collapses split huge pages again. Those that cannot be collapsed are left to khugepaged, with a warning.
fn collapse(split: &[Block]) {
    let mut by_process: BTreeMap<i32, Vec<std::ops::Range<u64>>> = BTreeMap::new();
    for block in split {
        by_process.entry(block.pid).or_default().push(block.range());
    }
    for (pid, ranges) in by_process {
        match PidFd::open(pid).and_then(|process| process.advise_collapse(&ranges)) {
            Ok(done) if done.0 == ranges.len() as u64 * blocks::BLOCK_BYTES => {}
            Ok(done) => log::warn!("process {pid}: {} huge pages were split, {done} of them were collapsed again", ranges.len()),
            Err(error) if error.is_gone() => {}
            Err(error) => log::warn!("process {pid}: {} huge pages stay split: {error}", ranges.len()),
        }
    }
}

/// Summarises a round; `bytes` are the memory that was found and the part of it that was sampled.
fn summarise(tracker: &'static str, round: &Round, bytes: (Bytes, Bytes), latency: Duration) -> Survey {
    let mut blocks: Vec<Row> = round.sampled.iter().map(row).collect();
    blocks.sort_by_key(|row| (row.pid, row.address));
    Survey {
        tracker,
        interval_seconds: round.window.as_secs_f64() / f64::from(round.samples.max(1)),
        blocks,
        found_bytes: bytes.0,
        sampled_bytes: bytes.1,
        skipped: Skipped::default(),
        lost: round.lost,
        summary: SLOWDOWNS.iter().map(|&slowdown| share(slowdown, &round.sampled, bytes, latency)).collect(),
    }
}

fn row(rate: &BlockRate) -> Row {
    let BlockRate { block, estimate, samples, parts } = rate;
    Row {
        pid: block.pid,
        address: block.start,
        bytes: block.bytes,
        huge: block.huge,
        node: block.node,
        samples: samples.taken,
        accessed: samples.accessed,
        parts: parts.map(|(of, _)| of),
        parts_touched: parts.map(|(_, touched)| touched),
        mean_per_second: estimate.mean.as_f64(),
        upper_per_second: estimate.upper.map(units::AccessRate::as_f64),
    }
}

/// What the agent's policy would place if the rest of memory were like the sampled part: its share of the budget
/// (Thermostat section 3.4).
fn share(slowdown: RatioPpm, rates: &[BlockRate], (found, sampled): (Bytes, Bytes), latency: Duration) -> Share {
    let sample = RatioPpm::of(sampled.0, found.0).unwrap_or(RatioPpm::ONE);
    let params = Params { slowdown, latency_ns: units::nanos(latency), sample, bounds: Bounds::default() };
    let everything = Bytes(u64::MAX);
    let runs: Runs = rates.iter().map(|rate| (rate.block.bytes, rate.estimate)).collect();
    let input = Input { sampled: runs, room: everything, trackable: u32::MAX, step_max: everything, ..Input::default() };
    let step = slowdown::step(&params, &input);
    let mut order: Vec<_> = rates.iter().map(|rate| (slowdown::rank(rate.block.bytes, &rate.estimate), rate.block.bytes)).collect();
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
    use policy::slowdown::rate::{BitSamples, Estimate};
    use units::AccessRate;

    use super::*;

    fn rated(number: u64, upper: Option<u64>) -> BlockRate {
        let start = number * blocks::BLOCK_BYTES;
        let block = Block { pid: 7, start, end: start + blocks::BLOCK_BYTES, first: start, bytes: Bytes::mib(2), huge: true, node: 0 };
        let estimate = Estimate { mean: upper.map_or(AccessRate::ZERO, AccessRate::per_second), upper: upper.map(AccessRate::per_second) };
        BlockRate { block, estimate, samples: BitSamples { taken: 10, accessed: 0 }, parts: None }
    }

    /// Checks the shares at 3, 6 and 10 % of sampled blocks with these upper bounds, half of the blocks found.
    fn check(uppers: &[Option<u64>], lost: u64, want: [f64; 3]) {
        let sampled = (uppers.len() as u64 + lost) * 2;
        let round = Round {
            sampled: uppers.iter().enumerate().rev().map(|(number, &upper)| rated(number as u64, upper)).collect(),
            samples: 20,
            window: Duration::from_secs(30),
            ..Round::default()
        };
        let survey = summarise("page_idle", &round, (Bytes::mib(2 * sampled), Bytes::mib(sampled)), Duration::from_micros(1));
        assert_eq!(survey.summary.iter().map(|share| share.slow_ratio).collect::<Vec<_>>(), want, "{uppers:?}");
        assert_eq!(survey.summary[0].budget_per_second, 30_000.0, "3 % of a second in accesses of 1 us");
        assert!(survey.blocks.is_sorted_by_key(|row| row.address) && survey.interval_seconds == 1.5);
    }

    #[test]
    fn the_coldest_blocks_are_placed_within_the_sampled_share_of_the_budget() {
        check(&[], 0, [0.0; 3]);
        check(&[Some(0), Some(0)], 0, [1.0; 3]);
        // Half of 30,000, 60,000 and 100,000 per second.
        check(&[Some(15_000), Some(15_000), Some(20_000), Some(60_000)], 0, [0.25, 0.5, 0.75]);
        check(&[None, Some(1)], 2, [0.25; 3]);
    }
}

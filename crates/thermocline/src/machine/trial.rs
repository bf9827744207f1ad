//! `thermocline trial`: a switchback trial of one job's far memory, by what its application reports.

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use ::rollout::trial::{Arm, BLOCKS_MIN, Better, Block, Estimate, Verdict, estimate, plan};
use agent::Message;
use agent::actuators::compact::{Cursor, Task, step};
use anyhow::{Result, bail, ensure};
use clap::Args;
use config::Config;
use kernel::cgroup::{Cgroup, CgroupRoot};
use kernel::{Roots, meminfo};
use regex::Regex;
use serde::Serialize;
use trackers::walk::Walker;
use units::{Bytes, Pages};

use self::outcome::{Source, pattern};
use crate::options::Format;
use crate::output::print;
use crate::signals;
use crate::values::duration;

mod kept;
mod outcome;

use self::kept::{Counters, Found, Returned, Returns};

/// Processes of the job whose memory is brought back, at most.
const PROCESSES_MAX: usize = 4_096;

/// Pages that one step brings back.
const STEP: Pages = Pages(1_024);

/// How much longer than half a block the agent holds the job: a trial that is killed leaves it without far memory for that long.
const HOLD_GRACE: Duration = Duration::from_secs(60);

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("source").required(true)))]
pub(crate) struct Trial {
    /// The job's cgroup relative to the cgroup root; a running agent must watch it
    pub(crate) job: String,
    /// Metrics of the application in the text exposition format: a file or a URL; with --metric
    #[arg(long, value_name = "FILE|URL", group = "source", requires = "metric")]
    pub(crate) metrics: Option<String>,
    /// The sample in --metrics, with its labels as they are written there
    #[arg(long, value_name = "SAMPLE", requires = "metrics")]
    pub(crate) metric: Option<String>,
    /// A Prometheus server; with --query
    #[arg(long, value_name = "URL", group = "source", requires = "query")]
    pub(crate) prometheus: Option<String>,
    /// The query to it, whose result is one value; its window must be shorter than the measured part of a half
    #[arg(long, value_name = "PROMQL", requires = "prometheus")]
    pub(crate) query: Option<String>,
    /// A log of the application, to which it adds lines; with --pattern
    #[arg(long, value_name = "FILE", group = "source", requires = "pattern")]
    pub(crate) log: Option<PathBuf>,
    /// A regular expression whose first group is the number in a line of --log, such as 'served ([0-9.]+)'
    #[arg(long, value_name = "REGEX", requires = "log", value_parser = pattern)]
    pub(crate) pattern: Option<Regex>,
    /// The outcome is a counter: its rate is compared
    #[arg(long)]
    pub(crate) rate: bool,
    /// What a better outcome is: higher (throughput) or lower (latency)
    #[arg(long, value_name = "higher|lower", required_unless_present = "forget")]
    pub(crate) better: Option<Better>,
    /// Have the agent keep the result: if the job is slower than its class tolerates, even at the lower end of the interval, it may
    /// promote less from then on, until `agent.trial_keep` has passed
    #[arg(long)]
    pub(crate) keep: bool,
    /// Forget the result of the job that was kept, and end
    #[arg(long, group = "source", conflicts_with = "keep")]
    pub(crate) forget: bool,
    /// Blocks: each has one half with far memory and one without, in random order
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u16).range(i64::try_from(BLOCKS_MIN).unwrap_or(6)..=1_000))]
    pub(crate) blocks: u16,
    /// Duration of half a block
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration)]
    pub(crate) half: Duration,
    /// Its beginning that is not measured: while memory is brought back, or goes out again
    #[arg(long, value_name = "DURATION", default_value = "4m", value_parser = duration)]
    pub(crate) washout: Duration,
    /// Time between two readings of the outcome
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    pub(crate) every: Duration,
    /// The seed of the random order
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(crate) seed: u64,
}

/// Half a block, as it was measured.
#[derive(Debug, Serialize)]
struct Half {
    block: usize,
    arm: Arm,
    outcome: Option<f64>,
    /// What returned to the job while the outcome was measured.
    returned: Returned,
    /// Far memory of the job at the end.
    far_bytes: u64,
    /// Why there is no outcome.
    trouble: Option<String>,
}

/// The result of the command.
#[derive(Debug, Serialize)]
struct Report {
    job: String,
    seed: u64,
    estimate: Option<Estimate>,
    far_bytes_on: u64,
    far_bytes_off: u64,
    /// What returned in 1,000 s with far memory on.
    returned_per_1000_s: Returns,
    /// Whether the agent keeps the result, or why not; absent if that was not asked for.
    kept: Option<String>,
    halves: Vec<Half>,
}

/// `thermocline trial JOB`.
pub(crate) fn trial(roots: &Roots, config: &Config, format: Format, arguments: &Trial) -> Result<()> {
    if arguments.forget {
        let what = kept::forget(config, &arguments.job)?;
        return print(format, &serde_json::json!({ "forgotten": what }), || format!("{what}\n"));
    }
    ensure!(
        arguments.washout + 2 * arguments.every <= arguments.half,
        "--half of {} s has no room for --washout of {} s and two readings",
        arguments.half.as_secs(),
        arguments.washout.as_secs()
    );
    let mut running = Running::start(roots, config, arguments)?;
    let halves = running.run()?;
    drop(running);
    let mut report = report(arguments, halves);
    if arguments.keep {
        report.kept = Some(kept::keep(config, &found(arguments, &report)).unwrap_or_else(|error| format!("not kept: {error}")));
    }
    print(format, &report, || text(&report))
}

/// A trial that is under way. When it ends, in whatever way, the agent lets the job go.
struct Running<'a> {
    roots: &'a Roots,
    config: &'a Config,
    arguments: &'a Trial,
    source: Source,
    cgroup: Cgroup,
    walker: Walker,
    signals: Receiver<Message>,
}

impl<'a> Running<'a> {
    fn start(roots: &'a Roots, config: &'a Config, arguments: &'a Trial) -> Result<Self> {
        let cgroup = Cgroup::open(&CgroupRoot::probe(roots)?, &arguments.job)?;
        let source = source(arguments)?;
        let (_, signals) = signals::messages()?;
        // A source that cannot be read now is an error now, and not in each half.
        source.read(&mut source.end()?)?;
        Ok(Self { roots, config, arguments, source, cgroup, walker: Walker::default(), signals })
    }

    fn run(&mut self) -> Result<Vec<Half>> {
        let mut halves = Vec::new();
        for (block, order) in plan(self.arguments.blocks.into(), self.arguments.seed).into_iter().enumerate() {
            for arm in order {
                self.set(arm)?;
                // Bringing memory back uses CPU time that the job may lack: the washout begins after it.
                let began = Instant::now();
                if self.wait_until(began + self.arguments.washout) {
                    return Ok(halves);
                }
                let before = Counters::read(&self.cgroup)?;
                let measured = self.measure(began + self.arguments.half);
                let returned = Counters::read(&self.cgroup)?.since(&before);
                let Some(measured) = measured.transpose() else { return Ok(halves) };
                let (outcome, trouble) = match measured {
                    Ok(outcome) => (Some(outcome), None),
                    Err(error) => (None, Some(crate::output::describe(&error))),
                };
                let far_bytes = self.far_bytes()?;
                log::info!("block {block}, far memory {arm:?}: outcome {outcome:?}, {} far", Bytes(far_bytes));
                halves.push(Half { block, arm, outcome, returned, far_bytes, trouble });
            }
        }
        Ok(halves)
    }

    /// Waits. Returns whether a signal ended the trial.
    fn wait_until(&self, end: Instant) -> bool {
        !matches!(self.signals.recv_timeout(end.saturating_duration_since(Instant::now())), Err(RecvTimeoutError::Timeout))
    }

    /// The mean outcome until `end`, or the rate of a counter; `None` if a signal ended the trial.
    fn measure(&self, end: Instant) -> Result<Option<f64>> {
        let mut position = self.source.end()?;
        let mut readings = Vec::new();
        loop {
            let next = Instant::now() + self.arguments.every;
            let now = Instant::now();
            let values = self.source.read(&mut position)?;
            readings.extend(values.into_iter().map(|value| (now, value)));
            if next > end {
                break;
            }
            if self.wait_until(next) {
                return Ok(None);
            }
        }
        if self.arguments.rate { rate(&readings).map(Some) } else { mean(&readings).map(Some) }
    }

    /// Turns far memory of the job on or off.
    fn set(&mut self, arm: Arm) -> Result<()> {
        match arm {
            Arm::On => self.hold(Duration::ZERO),
            Arm::Off => {
                self.check_room()?;
                self.hold(self.arguments.half + HOLD_GRACE)?;
                self.bring_back()?;
                self.hold(self.arguments.half + HOLD_GRACE)
            }
        }
    }

    fn hold(&self, time: Duration) -> Result<()> {
        let request = format!("hold {} {}", self.arguments.job, time.as_secs());
        kept::ask(self.config, &request).map(drop)
    }

    /// Memory that comes back must not make the machine short.
    fn check_room(&self) -> Result<()> {
        let (available, far) = (meminfo::read(self.roots)?.available, Bytes(self.far_bytes()?));
        ensure!(
            available.0 > far.0.saturating_add(far.0 / 4),
            "{} has {far} of far memory, and only {available} are available to bring it back; free memory first",
            self.arguments.job
        );
        Ok(())
    }

    fn bring_back(&mut self) -> Result<()> {
        let mut cursor = Cursor::new(&self.cgroup.procs(PROCESSES_MAX)?);
        while !step(self.roots, &mut self.walker, &self.cgroup, Task::Prefetch, &mut cursor, STEP)?.finished {}
        Ok(())
    }

    fn far_bytes(&self) -> Result<u64> {
        let stat = self.cgroup.stat()?;
        let swapped = self.cgroup.swap_current()?.unwrap_or_default();
        Ok((swapped - stat.swapcached.unwrap_or_default()).0)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.hold(Duration::ZERO) {
            let limit = (self.arguments.half + HOLD_GRACE).as_secs();
            log::warn!("the agent holds {} for {limit} s at most: {error}", self.arguments.job);
        }
    }
}

fn source(arguments: &Trial) -> Result<Source> {
    let Trial { metrics, metric, prometheus, query, log, pattern, .. } = arguments;
    Ok(match (metrics.clone().zip(metric.clone()), prometheus.clone().zip(query.clone()), log.clone().zip(pattern.clone())) {
        (Some((from, metric)), ..) => Source::Metrics { from, metric },
        (_, Some((url, query)), _) => Source::Prometheus { url, query },
        (.., Some((path, pattern))) => Source::Log { path, pattern },
        _ => bail!("name the outcome: --metrics with --metric, --prometheus with --query, or --log with --pattern"),
    })
}

#[expect(clippy::cast_precision_loss, reason = "at most some thousands of readings")]
fn mean(readings: &[(Instant, f64)]) -> Result<f64> {
    ensure!(!readings.is_empty(), "the source had no value in the measured part");
    Ok(readings.iter().map(|(_, value)| value).sum::<f64>() / readings.len() as f64)
}

/// The growth of a counter per second.
fn rate(readings: &[(Instant, f64)]) -> Result<f64> {
    let (Some(first), Some(last)) = (readings.first(), readings.last()) else { bail!("the source had no value in the measured part") };
    let seconds = last.0.saturating_duration_since(first.0).as_secs_f64();
    ensure!(seconds > 0.0, "a rate needs two readings");
    ensure!(last.1 >= first.1, "the counter went down from {} to {}: its program was restarted", first.1, last.1);
    Ok((last.1 - first.1) / seconds)
}

fn report(arguments: &Trial, halves: Vec<Half>) -> Report {
    let outcome = |block: usize, arm| halves.iter().find(|half| half.block == block && half.arm == arm)?.outcome;
    let block = |at| Some(Block { on: outcome(at, Arm::On)?, off: outcome(at, Arm::Off)? });
    let blocks: Vec<Block> = (0..usize::from(arguments.blocks)).filter_map(block).collect();
    let far = |arm| {
        let found: Vec<u64> = halves.iter().filter(|half| half.arm == arm).map(|half| half.far_bytes).collect();
        found.iter().sum::<u64>() / u64::try_from(found.len().max(1)).unwrap_or(1)
    };
    Report {
        job: arguments.job.clone(),
        seed: arguments.seed,
        estimate: arguments.better.and_then(|better| estimate(&blocks, better, arguments.seed)),
        far_bytes_on: far(Arm::On),
        far_bytes_off: far(Arm::Off),
        returned_per_1000_s: kept::mean(
            halves.iter().filter(|half| half.arm == Arm::On && half.outcome.is_some()).map(|half| half.returned),
        ),
        kept: None,
        halves,
    }
}

/// What the agent may keep.
fn found<'a>(arguments: &Trial, report: &'a Report) -> Found<'a> {
    Found {
        job: &report.job,
        estimate: report.estimate,
        is_whole: report.halves.len() == 2 * usize::from(arguments.blocks),
        far_bytes: [report.far_bytes_on, report.far_bytes_off],
        returned: report.returned_per_1000_s,
    }
}

fn text(report: &Report) -> String {
    let Report { job, far_bytes_on, far_bytes_off, .. } = report;
    let mut text = format!("{job}: {} far with far memory on, {} off, on average\n", Bytes(*far_bytes_on), Bytes(*far_bytes_off));
    for half in &report.halves {
        if let Some(trouble) = &half.trouble {
            let _ = writeln!(text, "block {}: no outcome: {trouble}", half.block);
        }
    }
    if far_bytes_on <= far_bytes_off {
        text += "the job had no more far memory in one arm than in the other: make the halves longer, or see thermocline explain\n";
    }
    let Some(found) = &report.estimate else {
        let _ = writeln!(text, "fewer than {BLOCKS_MIN} blocks have outcomes of both halves: no estimate");
        return text;
    };
    let percent = |ratio: f64| format!("{:+.2} %", ratio * 100.0);
    let verdict = match found.verdict {
        Verdict::Slower => "slower with far memory",
        Verdict::Faster => "faster with far memory",
        Verdict::NoDifference => "no difference that can be distinguished from chance",
    };
    let _ = writeln!(
        text,
        "slowdown {}, 95 % interval {} to {}, p = {:.4} by randomisation, {} blocks: {verdict}",
        percent(found.slowdown_ratio),
        percent(found.lower_ratio),
        percent(found.upper_ratio),
        found.p_value,
        found.blocks,
    );
    if let Some(kept) = &report.kept {
        let _ = writeln!(text, "{kept}");
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        trial: Trial,
    }

    fn parsed(words: &str) -> Result<Trial, clap::Error> {
        Line::try_parse_from(std::iter::once("trial").chain(words.split(' '))).map(|line| line.trial)
    }

    #[test]
    fn a_trial_has_one_whole_source() {
        for words in [
            "/a --better lower --metrics m --metric x",
            "/a --better higher --rate --prometheus http://p --query q",
            "/a --better higher --log l --pattern ops=(.*)",
        ] {
            assert!(source(&parsed(words).unwrap()).is_ok(), "{words}");
        }
        for words in [
            "/a --better lower",
            "/a --better lower --metrics m",
            "/a --better lower --log l --pattern ops=.*",
            "/a --metrics m --metric x",
            "/a --forget --keep",
            "/a --forget --better lower --metrics m --metric x",
            "/a --better lower --metrics m --metric x --prometheus p --query q",
            "/a --better most --metrics m --metric x",
            "/a --better lower --metrics m --metric x --blocks 5",
        ] {
            assert!(parsed(words).is_err(), "{words}");
        }
        assert!(parsed("--forget /a").unwrap().forget && parsed("/a --better lower --keep --metrics m --metric x").unwrap().keep);
    }

    #[test]
    fn a_counter_is_compared_by_its_rate() {
        let start = Instant::now();
        let at = |seconds, value| (start + Duration::from_secs(seconds), value);
        assert_eq!(rate(&[at(0, 10.0), at(1, 40.0), at(4, 50.0)]).unwrap(), 10.0);
        assert_eq!(mean(&[at(0, 10.0), at(1, 40.0)]).unwrap(), 25.0);
        for readings in [vec![], vec![at(0, 1.0)], vec![at(0, 2.0), at(1, 1.0)]] {
            assert!(rate(&readings).is_err());
        }
    }

    #[test]
    fn a_report_pairs_the_halves_of_a_block() {
        let trial = parsed("/a --better higher --metrics m --metric x --blocks 6").unwrap();
        let half = |block, arm, outcome| Half {
            block,
            arm,
            outcome: Some(outcome),
            returned: Returned::default(),
            far_bytes: 9 << 20,
            trouble: None,
        };
        let mut halves: Vec<Half> = (0..6).flat_map(|block| [half(block, Arm::Off, 100.0), half(block, Arm::On, 95.0)]).collect();
        halves.iter_mut().filter(|half| half.arm == Arm::Off).for_each(|half| half.far_bytes = 0);
        let found = text(&report(&trial, halves));
        assert!(found.contains("9.0 MiB far with far memory on, 0 B off"), "{found}");
        assert!(found.contains("slowdown +5.00 %") && found.contains("p = 0.0312") && found.contains("slower with"), "{found}");
        let mut lost = report(&trial, vec![half(0, Arm::Off, 1.0)]);
        lost.halves[0].trouble = Some("rotated".to_owned());
        let found = text(&lost);
        assert!(found.contains("no estimate") && found.contains("block 0: no outcome: rotated"), "{found}");
    }
}

//! `thermocline rollout rehearse`: a rollout in virtual time, on a fleet of generated jobs or of jobs from traces.
//!
//! The stages, guards and the assignment of machines are those of a real rollout; the evidence is what the fleet model computes that
//! each machine would have reported. Nothing is written, and no machine is involved. Failures of agents, evictions and the agents' own
//! guardrail are not simulated.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::time::Instant;

use ::rollout::assignment::{Group, assigned};
use ::rollout::evaluation::{SLOTS, baseline_start, evaluate, evidence_start};
use ::rollout::evidence::{Evidence, Slot};
use ::rollout::plan::Plan;
use ::rollout::stage::{self, Decision, Evaluation, Phase, State};
use anyhow::{Context, Result};
use config::{Bundle, Config};
use model::fleet::{self, Label, Source};
use model::generate::resample::{Originals, ResampledFleet};
use model::generate::{self, Fleet, SLOTS_PER_MACHINE};
use model::series::Series;
use model::traces::Traces;
use policy::thresholds::Thresholds;
use serde::Serialize;
use units::{Millis, RatioPpm, UnixMillis};

use self::hours::{HOUR, Hours};
use super::arguments::Rehearse;
use super::{read_bundle, steps, words};
use crate::options::Format;
use crate::output::print;

mod hours;

/// The longest rollout that is rehearsed, with the time before it.
const DAYS: u32 = 9;
/// Jobs of each generated machine: fewer than on a real one, because each is replayed under all parameters, and enough for the guard
/// of savings to decide. With three, one that saves more was held for a week with two of four seeds.
const JOBS_PER_MACHINE: u64 = 6;

/// A bundle to rehearse.
struct Candidate {
    name: String,
    config: Config,
    /// How its rollout should end, if that is known.
    expected: Option<Phase>,
}

/// The rehearsal of one bundle.
#[derive(Debug, Serialize)]
struct Rehearsal {
    bundle: String,
    phase: Phase,
    virtual_hours: u64,
    /// The most machines that followed it at once.
    machines_affected: usize,
    stages: Vec<StageReport>,
}

/// A stage, at its end.
#[derive(Debug, Serialize)]
struct StageReport {
    stage: String,
    share_ppm: RatioPpm,
    from_hour: u64,
    to_hour: u64,
    decision: Decision,
    evaluation: Evaluation,
}

/// The result of all rehearsals.
#[derive(Debug, Serialize)]
struct Report {
    machines: usize,
    generated: bool,
    seconds: f64,
    rehearsals: Vec<Rehearsal>,
}

/// Rehearses. Returns whether every rollout ended as it should: a bundle of the user's in the whole fleet.
pub(super) fn rehearse(config: &Config, format: Format, arguments: &Rehearse) -> Result<bool> {
    let began = Instant::now();
    let plan = steps::plan_of(arguments.plan.as_deref())?;
    let candidates = candidates(config, arguments)?;
    let hours = hours(config, &candidates, &plan, arguments)?;
    let rehearse = |(at, candidate): (usize, &Candidate)| Virtual::new(&plan, &hours, at + 1, arguments.seed).run(&candidate.name);
    let rehearsals: Vec<_> = candidates.iter().enumerate().map(rehearse).collect();
    let as_expected = |(candidate, rehearsal): (&Candidate, &Rehearsal)| rehearsal.phase == candidate.expected.unwrap_or(Phase::Finished);
    let good = candidates.iter().zip(&rehearsals).all(as_expected);
    let report = Report {
        machines: hours.machines.len(),
        generated: arguments.trace.is_empty(),
        seconds: began.elapsed().as_secs_f64(),
        rehearsals,
    };
    print(format, &report, || text(&report))?;
    Ok(good)
}

/// The user's bundle, or one of each kind.
fn candidates(config: &Config, arguments: &Rehearse) -> Result<Vec<Candidate>> {
    if let Some(file) = &arguments.bundle {
        let bundle = read_bundle(file)?;
        return Ok(vec![Candidate { name: bundle.id.clone(), config: bundle.over(config), expected: None }]);
    }
    let built_in = |name: &str, knobs: &str, expected| -> Result<Candidate> {
        let header = "schema = 1\nversion = 1\ncreated = 2026-01-01T00:00:00Z\nexpires = 2100-01-01T00:00:00Z\n";
        let bundle = Bundle::parse(name, &format!("{header}id = \"{name}\"\n[knobs.cold_age]\n{knobs}"))?;
        Ok(Candidate { name: name.to_owned(), config: bundle.over(config), expected: Some(expected) })
    };
    Ok(vec![
        built_in("good: percentile 98%", "percentile = \"98%\"\n", Phase::Finished)?,
        built_in("harmful: promotion_rate 5%, percentile 50%", "promotion_rate = \"5%\"\npercentile = \"50%\"\n", Phase::RolledBack)?,
    ])
}

/// What all machines would report under the present configuration and under each candidate.
fn hours(config: &Config, candidates: &[Candidate], plan: &Plan, arguments: &Rehearse) -> Result<Hours> {
    let arm = |config: &Config| (super::super::model::configured(config), config.cold_age.percentile, config.cold_age.warmup.into());
    let arms: Vec<_> = std::iter::once(config).chain(candidates.iter().map(|candidate| &candidate.config)).map(arm).collect();
    let threads = std::thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN);
    let length = usize::try_from(DAYS * 24).unwrap_or(0);
    let open = |thresholds: Thresholds, start: UnixMillis| {
        Hours::new(&arms, thresholds, plan.objective, start, length).context("no threshold is old enough for the bundle's parameters")
    };
    if arguments.trace.is_empty() {
        let count = usize::try_from(config.cold_age.thresholds).unwrap_or(0);
        let thresholds = Thresholds::log_spaced(count).context("cold_age.thresholds")?;
        let fleet = Few(Fleet::new(arguments.seed, arguments.machines * SLOTS_PER_MACHINE, DAYS, thresholds));
        let empty = open(thresholds, generate::START)?;
        let Ok(hours) = fleet::run(&fleet, &fleet::all(&fleet), threads, || empty.clone(), |_| {});
        return Ok(hours);
    }
    let traces = Traces::open(&arguments.trace)?;
    let thresholds = traces.basis().thresholds;
    let originals = fleet::run(&traces, &fleet::all(&traces), threads, Originals::default, |_| {})?;
    let jobs = arguments.machines * SLOTS_PER_MACHINE;
    let fleet = ResampledFleet::new(originals, thresholds, arguments.seed, jobs, DAYS).context("the traces hold no job")?;
    // All of its jobs start at the same time.
    let mut start = UnixMillis::EPOCH;
    let Ok(()) = fleet.read(0, &mut |_, series| start = series.start_unix_ms);
    let empty = open(thresholds, start)?;
    let Ok(hours) = fleet::run(&fleet, &fleet::all(&fleet), threads, || empty.clone(), |_| {});
    Ok(hours)
}

/// A generated fleet with some of its jobs only.
struct Few(Fleet);

impl Source for Few {
    type Error = std::convert::Infallible;

    fn pieces(&self) -> usize {
        self.0.pieces()
    }

    fn read(&self, piece: usize, each: &mut dyn FnMut(&Label, &Series)) -> Result<(), Self::Error> {
        let mut series = Series::new(self.0.thresholds());
        for slot in 0..JOBS_PER_MACHINE {
            self.0.slot(piece as u64 * SLOTS_PER_MACHINE + slot, &mut series, each);
        }
        Ok(())
    }
}

/// A rollout in virtual time.
struct Virtual<'a> {
    plan: &'a Plan,
    hours: &'a Hours,
    arm: usize,
    state: State,
    evidence: Evidence,
    start: UnixMillis,
    affected: usize,
}

const BUNDLE: u64 = 1;

impl<'a> Virtual<'a> {
    fn new(plan: &'a Plan, hours: &'a Hours, arm: usize, seed: u64) -> Self {
        let start = UnixMillis(units::Millis::days(20_000).0);
        let before = plan.baseline_ms.0.div_ceil(HOUR.0) * HOUR.0;
        let state = State::start(&format!("rehearsal-{seed}"), BUNDLE, None, start + Millis(before));
        let machines = hours.machines.keys().map(|id| (id.clone(), vec![Slot::default(); SLOTS])).collect();
        Self { plan, hours, arm, state, evidence: Evidence { machines, ..Evidence::default() }, start, affected: 0 }
    }

    /// Runs the rollout to its end, or to the end of the fleet's time, with an evaluation each hour.
    fn run(mut self, name: &str) -> Rehearsal {
        let mut stages = Vec::new();
        let mut from_hour = 0;
        let mut hour = 0;
        while u64::from(DAYS) * 24 > hour && self.state.phase == Phase::Running {
            self.report(hour);
            hour += 1;
            let now = self.start + HOUR.saturating_mul(hour);
            if now <= self.state.started_unix_ms {
                continue;
            }
            let evaluation = evaluate(self.plan, &self.state, &self.evidence, &BTreeMap::new());
            let (next, decision) = stage::step(self.plan, &self.state, &evaluation, now);
            let since = now.since(self.state.started_unix_ms).0 / HOUR.0;
            let last = hour == u64::from(DAYS) * 24;
            if next.since_unix_ms != self.state.since_unix_ms || last {
                let now = self.plan.stages.get(self.state.stage);
                stages.push(StageReport {
                    stage: now.map(|stage| stage.name.clone()).unwrap_or_default(),
                    share_ppm: now.map(|stage| stage.share_ppm).unwrap_or_default(),
                    from_hour,
                    to_hour: since,
                    decision,
                    evaluation,
                });
                from_hour = since;
                // The evidence of a stage begins with it.
                self.evidence.machines.values_mut().for_each(|slots| slots[1..].fill(Slot::default()));
            }
            self.state = next;
        }
        let virtual_hours = stages.last().map_or(0, |stage: &StageReport| stage.to_hour);
        Rehearsal { bundle: name.to_owned(), phase: self.state.phase, virtual_hours, machines_affected: self.affected, stages }
    }

    /// Adds what all machines report in an hour.
    fn report(&mut self, hour: u64) {
        let now = self.start + HOUR.saturating_mul(hour);
        let slot = if now >= evidence_start(self.plan, &self.state) {
            2
        } else if now >= self.state.since_unix_ms {
            1
        } else if now >= baseline_start(self.plan, &self.state) {
            0
        } else {
            return;
        };
        let assignment = self.state.assignment(self.plan);
        let at = usize::try_from(hour).unwrap_or(usize::MAX);
        let mut followers = 0;
        for (id, slots) in &mut self.evidence.machines {
            let follows = slot > 0 && assigned(&assignment, &id.machine, &id.cluster) == Group::Bundle(BUNDLE);
            followers += usize::from(follows);
            let Some(reported) = self.hours.machines.get(id) else { continue };
            let reported = Hours::of(reported, self.hours.arms(), at, if follows { self.arm } else { 0 });
            // A machine without a job writes entries all the same, which only show that it is alive.
            let slot = &mut slots[slot];
            slot.first_unix_ms = if slot.entries == 0 { now } else { slot.first_unix_ms };
            slot.entries += u64::from(reported.entries.max(1));
            slot.sums.merge(&reported.to_sums());
            slot.last_unix_ms = now + HOUR;
            let version = if follows { BUNDLE } else { 0 };
            slot.bundles.insert(version);
            slot.latest_bundle = (now, version);
        }
        self.affected = self.affected.max(followers);
    }
}

fn text(report: &Report) -> String {
    use std::fmt::Write;
    let of = if report.generated { "generated jobs" } else { "jobs of the traces" };
    let mut text =
        format!("{} machines with {of}, in virtual time; computed in {:.1} s; nothing was written\n", report.machines, report.seconds);
    for rehearsal in &report.rehearsals {
        let Rehearsal { bundle, phase, virtual_hours, machines_affected, stages } = rehearsal;
        let _ = writeln!(text, "\n{bundle}");
        for stage in stages {
            let StageReport { stage, share_ppm, from_hour, to_hour, decision, evaluation } = stage;
            let _ = writeln!(text, "hour {from_hour} to {to_hour}, {stage}, {share_ppm} of the machines: {}", words::decision(decision));
            text += &words::judged(evaluation);
        }
        let end = match phase {
            Phase::Finished => "finished: the whole fleet follows it",
            Phase::RolledBack => "rolled back: no machine follows it",
            Phase::Running | Phase::Stopped => "not finished in the time that was rehearsed",
        };
        let _ = writeln!(text, "{end}, after {virtual_hours} h; at most {machines_affected} machines followed it at once");
    }
    text
}

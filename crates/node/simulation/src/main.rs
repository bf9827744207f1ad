//! Runs the simulation for many seeds, or one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::Context;
use clap::Parser;
use rayon::prelude::*;
use serde::Serialize;
use sim::plan::{Kind, Plan};
use sim::run::{Outcome, run};
use sim::shrink::shrink;

/// One run in this many is repeated, and its digest compared.
const REPEATED: u64 = 20;

/// Runs the node agent on a simulated kernel, with faults from seeds, and checks what it promises.
#[derive(Debug, Parser)]
struct Args {
    /// How many seeds to run.
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Run this seed alone, and print what happens.
    #[arg(long)]
    seed: Option<u64>,
    /// Threads.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Where to write the result.
    #[arg(long)]
    result: Option<PathBuf>,
}

/// A seed that broke a promise.
#[derive(Debug, Serialize)]
struct Violation {
    seed: u64,
    what: Vec<String>,
    /// The faults that it needs.
    faults: Vec<String>,
}

/// The result of all seeds.
#[derive(Debug, Default, Serialize)]
struct Summary {
    seeds: u64,
    violations: u64,
    broken: Vec<Violation>,
    repeated: u64,
    turns: u64,
    starts: u64,
    requests: u64,
    replayed_decisions: u64,
    faults: BTreeMap<&'static str, u64>,
    kinds_of_faults: usize,
    kinds_that_happened: usize,
    seconds: f64,
    seeds_per_minute: f64,
}

impl Summary {
    fn add(&mut self, outcome: &Outcome) {
        self.seeds += 1;
        self.turns += outcome.turns;
        self.starts += outcome.starts;
        self.requests += outcome.requests;
        self.replayed_decisions += outcome.replayed;
        for (kind, count) in &outcome.faults {
            *self.faults.entry(kind).or_default() += count;
        }
    }
}

/// Runs one seed, and shrinks it if it breaks a promise.
fn judge(seed: u64, summary: &Mutex<Summary>) -> anyhow::Result<()> {
    let plan = Plan::of(seed);
    let mut outcome = run(&plan).with_context(|| format!("seed {seed}"))?;
    let repeat = seed.is_multiple_of(REPEATED);
    if repeat && run(&plan)?.digest != outcome.digest {
        outcome.violations.push("two runs of this seed differ".to_owned());
    }
    for what in &outcome.violations {
        println!("seed {seed}: {what}");
    }
    let broken = if outcome.violations.is_empty() { None } else { Some(violation(&plan, &outcome)?) };
    let mut summary = summary.lock().map_err(|_| anyhow::anyhow!("another seed ended the program"))?;
    summary.add(&outcome);
    summary.repeated += u64::from(repeat);
    if let Some(broken) = broken {
        println!("seed {seed} needs: {}", broken.faults.join(", "));
        summary.violations += 1;
        summary.broken.push(broken);
    }
    Ok(())
}

fn violation(plan: &Plan, outcome: &Outcome) -> anyhow::Result<Violation> {
    let smallest = shrink(plan)?;
    let faults = smallest.faults.iter().map(|fault| format!("{:?} before turn {}", fault.kind, fault.turn)).collect();
    Ok(Violation { seed: plan.seed, what: outcome.violations.clone(), faults })
}

fn one(seed: u64) -> anyhow::Result<bool> {
    let plan = Plan::of(seed);
    println!("{}{}", plan.knobs, Plan::rules(plan.groups.iter().map(|(group, _)| group)));
    println!("dry run: {}, ends by --restore: {}", plan.dry_run, plan.ends_by_restore);
    for fault in &plan.faults {
        println!("before turn {}: {:?}", fault.turn, fault.kind);
    }
    let outcome = run(&plan)?;
    println!("{outcome:#?}");
    if !outcome.violations.is_empty() {
        println!("needs: {}", violation(&plan, &outcome)?.faults.join(", "));
    }
    Ok(outcome.violations.is_empty())
}

fn many(args: &Args) -> anyhow::Result<Summary> {
    let began = Instant::now();
    let summary = Mutex::new(Summary::default());
    let seeds = args.from..args.from.saturating_add(args.seeds);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(args.threads.max(1)).build()?;
    pool.install(|| seeds.par_bridge().try_for_each(|seed| judge(seed, &summary)))?;
    let mut summary = summary.into_inner().map_err(|_| anyhow::anyhow!("a thread panicked"))?;
    summary.broken.sort_by_key(|broken| broken.seed);
    (summary.kinds_of_faults, summary.kinds_that_happened) = (Kind::NAMES.len(), summary.faults.len());
    summary.seconds = began.elapsed().as_secs_f64();
    #[allow(clippy::cast_precision_loss, reason = "a rate for the reader")]
    let seeds = summary.seeds as f64;
    summary.seeds_per_minute = (seeds * 60.0 / summary.seconds).round();
    Ok(summary)
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let code = |kept: bool| if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    if let Some(seed) = args.seed {
        return Ok(code(one(seed)?));
    }
    let summary = many(&args)?;
    let text = serde_json::to_string_pretty(&summary)?;
    if let Some(path) = &args.result {
        std::fs::write(path, format!("{text}\n")).with_context(|| format!("cannot write {}", path.display()))?;
    }
    println!("{text}");
    Ok(code(summary.violations == 0))
}

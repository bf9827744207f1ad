//! Places rarely accessed memory in a slow node while the accesses to it stay within a budget (Thermostat). Policy: `slowdown`.
//!
//! In each period a sample of every job's blocks and all blocks in the slow node are observed; then the policy decides and
//! blocks are moved. Sampling accessed bits takes little time at deadlines of its own. Blocks are moved after the period's
//! samples, so that no page is migrated while it is observed; the next period begins after that. A period ends early if one of
//! its stages shows that a job's slow memory has become hot.

use std::cmp::Reverse;

use config::Config;
use policy::slowdown::bursts::Bursts;
use policy::slowdown::division::Claim;
use policy::slowdown::{self, Params, Runs, Step};
use trackers::rates::blocks::Block;
use trackers::rates::sampler::BlockRate;
use units::Bytes;

use super::recent::Recent;
use super::seam::{Controller, Slot, run};
use super::veto::{self, Reason};
use crate::context::Context;
use crate::job::Job;
use crate::journal::{JobRecord, Record};
use crate::now::Now;
use crate::view::JobView;

mod bursts;
mod division;
mod khugepaged;
mod latency;
pub mod machine;
mod moves;
mod period;
mod queue;
pub mod record;
mod sampling;
mod sampling_cost;
mod search;

use queue::Move;
use record::{Moved, SlowRecord, explain};

const VETOES: &[Reason] = &[Reason::ObserveOnly, Reason::NumaBalancing, Reason::CpuBudget];

/// What a sampling period found of one job, and what it may use.
#[derive(Debug, Default)]
pub struct Found {
    /// Its blocks in the slow node.
    slow: Vec<BlockRate>,
    /// Those of them that were split for the period.
    slow_split: Vec<BlockRate>,
    /// Those that were to be split, and have no rate.
    slow_lost: Vec<Block>,
    /// The sampled blocks of its other memory.
    sampled: Vec<BlockRate>,
    /// The job's memory that can be moved.
    memory: Bytes,
    /// Of that, memory in the slow node.
    slow_bytes: Bytes,
    /// The most that the job may move in a period.
    step_max: Bytes,
    /// The slow node, and the node to which its memory is promoted.
    nodes: (u32, u32),
    /// Whether the latency in the parameters was measured.
    is_measured: bool,
}

/// The controller of one job. The policy has no state; what is known of bursts is in the rates of its input.
#[derive(Debug)]
pub struct Slowdown {
    /// The parameters, with the measured latency of the slow node.
    params: Params,
    /// What is known of the job's bursts.
    bursts: Bursts,
    /// What the current sampling period found.
    found: Found,
    /// What its decision is based on. The job's part of the slow node is filled in when it is known what all jobs claim.
    input: slowdown::Input,
    /// What the job may have in the slow node; `None` without a bound.
    most: Option<Bytes>,
    /// Memory to move, in the order in which it is to be moved.
    moves: Vec<Move>,
    /// What the last decision placed.
    placed: Bytes,
    last: Option<Step>,
    recent: Recent,
    explanation: Option<String>,
    moved: Moved,
}

impl Slowdown {
    /// A controller that has decided nothing.
    #[must_use]
    pub fn new(params: Params) -> Self {
        Self {
            params,
            bursts: Bursts::default(),
            found: Found::default(),
            input: slowdown::Input::default(),
            most: None,
            moves: Vec::new(),
            placed: Bytes::ZERO,
            last: None,
            recent: Recent::default(),
            explanation: None,
            moved: Moved::default(),
        }
    }

    /// Takes in what a period found, and returns what the job claims of the slow node.
    fn prepare(&mut self, job: &mut Job, context: &mut Context, now: Now, found: Found) -> Claim {
        let veto = veto::first(VETOES, job, context, now);
        let (slow, sampled) = (runs(&found.slow), runs(&found.sampled));
        let Found { memory, step_max, .. } = found;
        self.input = slowdown::Input { slow, sampled, step_max, veto, memory, ..slowdown::Input::default() };
        self.found = found;
        slowdown::claim(&self.params, &self.input, job.treatment.slow_weight)
    }

    /// Accounts blocks that were moved, or that could not be moved.
    fn account(&mut self, job: &mut Job, moved: &Moved) {
        job.signals.slow = job.signals.slow + moved.placed - moved.home;
        self.moved += moved;
    }
}

impl Controller for Slowdown {
    type Input = slowdown::Input;
    type Decision = Step;

    /// Everything was read when the sampling period ended ([`Slowdown::prepare`]).
    fn read(&mut self, _: &mut Job, _: &mut Context, _: Now) -> kernel::Result<slowdown::Input> {
        Ok(std::mem::take(&mut self.input))
    }

    fn step(&mut self, input: &slowdown::Input) -> Step {
        slowdown::step(&self.params, input)
    }

    fn record(&mut self, job: &mut Job, now: Now, input: slowdown::Input, step: &Step) -> Record {
        self.most = slowdown::allowance(&self.params, &input).map(|(most, _)| most);
        let record = SlowRecord {
            unix_ms: now.unix_ms,
            job: job.path().to_owned(),
            id: job.cgroup.id(),
            params: self.params,
            input,
            step: *step,
            moved: std::mem::take(&mut self.moved),
            memory: self.found.memory,
            slow: self.found.slow_bytes,
            latency_measured: self.found.is_measured,
            pages_per_bit: u32::try_from(self.bursts.pages_per_bit() / 1_000_000).unwrap_or(u32::MAX),
        };
        job.signals.slow = record.slow;
        job.signals.slow_accesses = (step.rate, self.params.latency_ns);
        let text = explain(&record);
        self.recent.push(now.unix_ms, &text);
        self.explanation = Some(text);
        self.last = Some(*step);
        record.into()
    }

    /// Queues the hottest blocks of the slow node for promotion, and the coldest sampled blocks for placement.
    fn apply(&mut self, job: &mut Job, context: &mut Context, _: Now, step: &Step) -> kernel::Result<()> {
        self.placed = Bytes::ZERO;
        let Found { mut slow, mut sampled, nodes: (node, home), .. } = std::mem::take(&mut self.found);
        if !context.may_act(job) {
            return Ok(());
        }
        slow.sort_unstable_by_key(|rated| Reverse(slowdown::rank(rated.block.bytes, &rated.estimate)));
        sampled.sort_unstable_by_key(|rated| slowdown::rank(rated.block.bytes, &rated.estimate));
        let first = |rated: Vec<BlockRate>, count: u32| rated.into_iter().take(usize::try_from(count).unwrap_or(usize::MAX));
        let path = job.path();
        for rated in first(slow, step.home) {
            self.moves.push(Move { job: path.to_owned(), block: rated.block, to: home, home: true });
        }
        for rated in first(sampled, step.place) {
            self.placed += rated.block.bytes;
            self.moves.push(Move { job: path.to_owned(), block: rated.block, to: node, home: false });
        }
        Ok(())
    }
}

impl Slot for Slowdown {
    fn name(&self) -> &'static str {
        "slowdown"
    }

    fn period(&mut self, job: &mut Job, context: &mut Context, now: Now) -> kernel::Result<()> {
        run(self, job, context, now)
    }

    fn abandon(&mut self) {
        self.moves.clear();
    }

    fn configure(&mut self, _: &mut Job, _: &Config) {}

    fn start(&self, _: &mut JobRecord) {}

    fn recent(&self) -> Option<&Recent> {
        Some(&self.recent)
    }

    fn explain(&self, _: &Job) -> Option<String> {
        self.explanation.clone()
    }

    fn report(&self, _: &Job, view: &mut JobView) {
        (view.tier, view.tier_reason) = (Some("slow".to_owned()), IN_SLOW_NODE);
        view.slow_rate_per_second = self.last.map(|step| step.rate.as_f64());
        view.slow_budget_per_second = self.last.map(|step| step.budget.as_f64());
        view.slow_max_bytes = self.most;
    }
}

const IN_SLOW_NODE: &str = "its policy places memory in a slow node, which loads and stores access directly";

fn runs(rated: &[BlockRate]) -> Runs {
    rated.iter().map(|rated| (rated.block.bytes, rated.estimate)).collect()
}

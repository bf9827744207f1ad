//! Runs a sampling period, from the end of the search for its blocks to the decisions at its end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use daemon::Clock;
use policy::slowdown::division::Claim;
use policy::slowdown::{self, Params};
use trackers::rates::blocks::Block;
use trackers::rates::sampler::{BlockRate, Host, Memory, PARTS_MIN, Round, Sampler};
use units::{AccessRate, Bytes};

use super::division::Division;
use super::machine::SlowdownPolicy;
use super::period::{Chosen, Members, Period};
use super::sampling_cost::Changes;
use super::{Found, Slowdown};
use crate::context::Context;
use crate::controllers::seam::Slot;
use crate::controllers::slots::{Entry, Jobs};
use crate::slow_node::MEASUREMENT;

/// Slow memory has become hot if it is accessed this many times as often as the budget allows.
const HOT_TIMES: u64 = 2;

/// One part in this many of a tracker's points stays free for memory that is not in the slow node.
const SAMPLED_PARTS: usize = 4;

/// The machine's memory, with huge pages split only for jobs that the agent may act on.
struct Splittable<'a> {
    host: Host<'a>,
    pids: &'a BTreeSet<i32>,
    changes: &'a Changes,
    clock: &'a Clock,
}

impl Memory for Splittable<'_> {
    fn present(&self, block: &Block) -> kernel::Result<Vec<u64>> {
        self.host.present(block)
    }

    fn is_huge(&self, block: &Block) -> kernel::Result<bool> {
        self.host.is_huge(block)
    }

    fn split(&self, block: &Block) -> kernel::Result<bool> {
        if self.pids.contains(&block.pid) { self.changes.split(self.clock, || self.host.split(block)) } else { Ok(false) }
    }
}

impl SlowdownPolicy {
    /// Continues the current period, or begins one.
    pub(super) fn sample(&mut self, jobs: &mut Jobs, context: &mut Context, now: Duration) -> kernel::Result<()> {
        if self.current.is_none() && !self.begin(jobs, context, now)? {
            return Ok(());
        }
        let Self { tracker: Some(tracker), splitter, current: Some(period), next, cost, .. } = self else {
            return Ok(());
        };
        let host = Host { roots: &context.kernel.roots, splitter: splitter.as_ref() };
        let memory = Splittable { host, pids: &period.members.splittable, changes: &cost.changes, clock: &context.clock };
        let round = period.sampler.tick(now, tracker.as_mut(), &memory)?;
        *next = period.sampler.due();
        let latest = period.sampler.slow_by_last_stage();
        let is_too_hot = latest.is_some() && period.sampler.slow_is_too_hot_to_measure();
        if let Some(round) = round {
            *next = (period.began + context.config.slow.period).max(now);
            if let Some(Period { members, .. }) = self.current.take() {
                self.decide(jobs, context, &members, round);
            }
        } else if let Some(slow) = latest
            && (is_too_hot || self.is_hot(jobs, context, &slow))
            && let Some(Period { sampler, members, .. }) = self.current.take()
        {
            self.decide(jobs, context, &members, sampler.end_early(slow));
            self.next = now;
        }
        Ok(())
    }

    /// Whether some job's slow memory is accessed much more often than allowed. Only the likely rates count here: their bounds,
    /// after a few samples, are far above them.
    fn is_hot(&self, jobs: &Jobs, context: &Context, slow: &[BlockRate]) -> bool {
        let (Some(node), Some(period)) = (self.node, &self.current) else { return false };
        let mut rates: BTreeMap<&str, AccessRate> = BTreeMap::new();
        for rated in slow {
            if let Some(path) = period.members.job_of(rated) {
                *rates.entry(path).or_default() += rated.estimate.mean;
            }
        }
        rates.into_iter().any(|(path, rate)| {
            let class = jobs.get(path).map(|entry| entry.job.treatment.class);
            let budget = class.map(|class| slowdown::budget(&context.config.slowdown_for(class, node.latency_ns)));
            budget.is_some_and(|budget| rate > budget.saturating_mul(HOT_TIMES))
        })
    }

    /// Finds every block of the jobs, for a slice of time at most, and then begins to sample those that are chosen. Returns whether it did.
    fn begin(&mut self, jobs: &mut Jobs, context: &mut Context, now: Duration) -> kernel::Result<bool> {
        if self.search.is_none() {
            self.begin_search(jobs, context, now)?;
        }
        let Some((began, chosen)) = self.search_on(jobs, context) else {
            self.next = now;
            return Ok(false);
        };
        self.next = (began + context.config.slow.period).max(now);
        if chosen.blocks.sampled.is_empty() && chosen.blocks.slow.is_empty() {
            return Ok(false);
        }
        self.begin_sampling(context, began, chosen)
    }

    fn begin_sampling(&mut self, context: &mut Context, began: Duration, chosen: Chosen) -> kernel::Result<bool> {
        let Chosen { blocks, members } = chosen;
        if !blocks.split.is_empty() {
            let reported = self.khugepaged.slow_down(&context.kernel.roots, &mut context.undo, context.config.slow.manage);
            reported.into_iter().for_each(|what| context.event(None, what));
        }
        let settings = self.sampling(&context.config);
        let Self { tracker: Some(tracker), splitter, periods, cost, .. } = self else { return Ok(false) };
        let host = Host { roots: &context.kernel.roots, splitter: splitter.as_ref() };
        let memory = Splittable { host, pids: &members.splittable, changes: &cost.changes, clock: &context.clock };
        let sampler = Sampler::begin(blocks, settings, *periods, tracker.as_ref(), &memory);
        if tracker.has_kernel_threads() {
            let path = context.config.agent.runtime_dir.join("undo.json");
            context.undo.set_kdamond_targets(&sampler.pids()).map_err(|source| kernel::Error::Io { path, op: "write", source })?;
        }
        self.current = Some(Period { sampler, began, members });
        Ok(true)
    }

    /// Decides for each job at the end of a period, and queues the moves.
    fn decide(&mut self, jobs: &mut Jobs, context: &mut Context, members: &Members, round: Round) {
        let Context { kernel, undo, config, .. } = &mut *context;
        let reported = self.khugepaged.end_period(&round.lost, &kernel.roots, undo, config.slow.manage);
        reported.into_iter().for_each(|what| context.event(None, what));
        let Some(node) = self.node else { return };
        self.collapse(context, &round.split);
        self.error = None;
        let window_us = units::micros(round.window);
        let mut found = Self::by_job(members, round);
        let step_max = Bytes(context.config.slow.step_max().0 / u64::try_from(found.len()).unwrap_or(1).max(1));
        let now = context.now();
        let trackable = self.trackable(&found);
        let mut claims: Vec<(&str, Claim)> = Vec::with_capacity(found.len());
        for (path, found) in &mut found {
            let Some(Entry { job, slots }) = jobs.get_mut(*path) else { continue };
            let Some(slowdown) = slots.get_mut::<Slowdown>() else { continue };
            let (memory, slow_bytes) = members.memory.get(*path).copied().unwrap_or_default();
            slowdown.params = Params { bounds: job.treatment.slow, ..context.config.slowdown_for(job.treatment.class, node.latency_ns) };
            found.weigh(&mut slowdown.bursts, window_us);
            let (nodes, is_measured) = ((node.node, node.home), node.latency_from == MEASUREMENT);
            let found = Found { memory, slow_bytes, step_max, nodes, is_measured, ..std::mem::take(found) };
            claims.push((path, slowdown.prepare(job, context, now, found)));
        }
        let mut division = Division::new(node.room(), trackable, claims, self.periods);
        while let Some((path, part)) = division.next() {
            let Some(Entry { job, slots }) = jobs.get_mut(path) else { continue };
            let Some(slowdown) = slots.get_mut::<Slowdown>() else { continue };
            (slowdown.input.room, slowdown.input.trackable, slowdown.input.share) = (part.room, part.trackable, part.share);
            if let Err(error) = slowdown.period(job, context, now) {
                context.report_error(job, &error);
                continue;
            }
            division.take(slowdown.placed, slowdown.last.map_or(0, |step| step.place));
            for next in slowdown.moves.drain(..) {
                self.moves.push(next);
            }
        }
        context.publish_due = true;
    }

    /// How many more blocks the tracker can sample in the slow node, besides a share of its points for memory that is not there.
    fn trackable(&self, found: &BTreeMap<&str, Found>) -> u32 {
        let points_max = self.tracker.as_ref().map_or(0, |tracker| tracker.points_max());
        let points = |rated: &BlockRate| if rated.block.huge { 1 } else { PARTS_MIN };
        let taken: usize = found.values().flat_map(|found| &found.slow).map(points).sum();
        u32::try_from((points_max - points_max / SAMPLED_PARTS).saturating_sub(taken)).unwrap_or(u32::MAX)
    }

    /// The observed blocks, by job.
    fn by_job(members: &Members, round: Round) -> BTreeMap<&str, Found> {
        let mut by_job: BTreeMap<&str, Found> = members.memory.keys().map(|path| (path.as_str(), Found::default())).collect();
        for rated in round.slow {
            if let Some(job) = members.job_of(&rated).and_then(|path| by_job.get_mut(path)) {
                job.slow.push(rated);
            }
        }
        for rated in round.slow_split {
            if let Some(job) = members.job_of(&rated).and_then(|path| by_job.get_mut(path)) {
                job.slow_split.push(rated);
            }
        }
        for block in round.slow_lost {
            if let Some(job) = members.jobs.get(&block.pid).and_then(|path| by_job.get_mut(path.as_str())) {
                job.slow_lost.push(block);
            }
        }
        let measurable = round.measurable;
        for mut rated in round.sampled {
            // In the slow node a huge page is observed as a whole: one whose rate could not be distinguished from hot memory then
            // would be promoted at once.
            if rated.block.huge {
                rated.estimate.upper = rated.estimate.upper.filter(|upper| *upper <= measurable);
            }
            if let Some(job) = members.job_of(&rated).and_then(|path| by_job.get_mut(path)) {
                job.sampled.push(rated);
            }
        }
        by_job
    }
}

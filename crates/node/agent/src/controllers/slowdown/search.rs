//! The search for the blocks of a period, in slices of time.

use std::time::Duration;

use trackers::rates::blocks::{self, Block};
use trackers::rates::selection;
use units::Bytes;

use super::Slowdown;
use super::bursts::{take_split, turn};
use super::machine::SlowdownPolicy;
use super::period::{Chosen, Search};
use crate::context::{Context, SLICE};
use crate::controllers::slots::{Entry, Jobs};
use crate::slow_node::SlowNode;

/// Blocks with less memory stay where they are: a few pages save nothing, and are often a thread's stack.
const BYTES_MIN: Bytes = Bytes(64 << 10);

impl SlowdownPolicy {
    /// Begins to search all jobs that are placed.
    pub(super) fn begin_search(&mut self, jobs: &Jobs, context: &mut Context, now: Duration) -> kernel::Result<()> {
        self.next = now + context.config.slow.period;
        let mut node = SlowNode::find(&context.kernel.roots, &context.config.slow)?;
        if context.config.slow.measure_latency
            && let Some(what) = self.latencies.measure(&mut node)
        {
            context.event(None, what);
        }
        self.node = Some(node);
        self.open(context)?;
        self.manage_numa_balancing(jobs, context);
        let placed = jobs.iter().filter(|(_, entry)| entry.slots.get::<Slowdown>().is_some());
        let paths: Vec<String> = placed.map(|(path, _)| path.clone()).collect();
        let count = paths.len();
        let turns = paths.into_iter().enumerate().map(|(index, path)| (path, turn(self.periods, index, count)));
        self.search = Some(Search { began: now, node: node.node, left: turns.rev().collect(), job: None, chosen: Chosen::default() });
        Ok(())
    }

    /// Searches on, for a slice of time at most. Returns when the search began and what is observed, if it is over.
    pub(super) fn search_on(&mut self, jobs: &mut Jobs, context: &mut Context) -> Option<(Duration, Chosen)> {
        let mut search = self.search.take()?;
        let end = context.clock.now() + SLICE;
        while let Some((path, turn)) = search.left.pop() {
            if context.clock.now() >= end {
                search.left.push((path, turn));
                self.search = Some(search);
                return None;
            }
            // One that has ended meanwhile, or is placed no longer, is left out.
            let Some(entry) = jobs.get_mut(&path).filter(|entry| entry.slots.get::<Slowdown>().is_some()) else {
                search.job = None;
                continue;
            };
            match search.step(entry, context) {
                Ok(None) => search.left.push((path, turn)),
                Ok(Some(found)) => self.choose((&path, entry), found, context, (search.node, turn), &mut search.chosen),
                Err(error) if !error.is_gone() => context.report_error(&mut entry.job, &error),
                Err(_) => {}
            }
        }
        self.periods += 1;
        Some((search.began, search.chosen))
    }

    /// Chooses which blocks of one job are observed. `turn` is the number of its turn to have slow blocks split.
    fn choose(
        &self,
        (path, entry): (&str, &Entry),
        search: blocks::Search,
        context: &Context,
        (node, turn): (u32, Option<u64>),
        chosen: &mut Chosen,
    ) {
        let pids = search.pids().to_vec();
        let (mut slow, fast): (Vec<Block>, Vec<Block>) = search.found.blocks.into_iter().partition(|block| block.node == node);
        let sum = |blocks: &[Block]| blocks.iter().map(|block| block.bytes).sum::<Bytes>();
        let members = &mut chosen.members;
        members.memory.insert(path.to_owned(), (sum(&slow) + sum(&fast), sum(&slow)));
        let worth: Vec<Block> = fast.into_iter().filter(|block| block.bytes >= BYTES_MIN).collect();
        chosen.blocks.sampled.extend(selection::sampled(&worth, context.config.slow.sample, self.periods));
        if context.may_act(&entry.job) {
            let turn = turn.filter(|_| self.khugepaged.allows_split(context.config.slow.manage, self.periods));
            if let (Some(turn), Some(slowdown), true) = (turn, entry.slots.get::<Slowdown>(), self.splitter.is_some()) {
                chosen.blocks.split.extend(take_split(&slowdown.bursts, &mut slow, turn));
            }
            members.splittable.extend(pids.iter().copied());
        }
        chosen.blocks.slow.extend(slow);
        members.jobs.extend(pids.into_iter().map(|pid| (pid, path.to_owned())));
    }
}

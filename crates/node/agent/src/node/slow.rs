//! Memory that is accessed so seldom that a slow node may hold it (002): each period a part of every job's blocks is
//! sampled, all that is in the slow node is looked at, the policy decides, and blocks are moved.
//!
//! Looks at accessed bits are short, and have deadlines of their own in the loop. Blocks are moved when the looks of a period are
//! over, so that no page changes its place while it is looked at; the next period begins after that. A period ends before its
//! time where the looks of one of its stages show that a job's slow memory has turned hot.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kernel::thp::Splitter;
use kernel::{numa, process};
use policy::slowdown::{self, Input, Runs, rate};
use policy::veto::Veto;
use units::{AccessRate, Bytes};

use super::{Agent, Costs, unix_ms};
use crate::job::Job;
use crate::journal::{Record, SlowRecord};
use crate::slow::{self, SlowNode};
use trackers::rates::blocks::{self, Block};
use trackers::rates::sampler::{BlockRate, Host, Memory, Round, Sampler, Settings};
use trackers::rates::{self, RateTracker, selection};

mod looking;
mod moves;

use looking::{Changes, Looking};
use moves::{Move, Moves};

/// Blocks of one job that are known at once, at most: a tebibyte of huge pages. What a job has beyond that stays where it is.
const BLOCKS_MAX: usize = 1 << 19;

/// Slow memory has turned hot where it is accessed so many times as often as allowed.
const HOT_TIMES: u64 = 2;

/// Where the kernel moves pages between nodes by rules of its own.
const NUMA_BALANCING: &str = "sys/kernel/numa_balancing";

/// What placement needs between two calls.
#[derive(Debug, Default)]
pub(super) struct Placement {
    tracker: Option<Box<dyn RateTracker>>,
    splitter: Option<Splitter>,
    /// The slow node, as it last was.
    pub(super) node: Option<SlowNode>,
    under_way: Option<Period>,
    moves: Moves,
    looking: Looking,
    /// Periods begun: what is sampled is chosen by their number.
    periods: u64,
    next: Duration,
    /// What stands in the way, told once.
    pub(super) trouble: Option<String>,
}

/// One period under way.
#[derive(Debug)]
struct Period {
    sampler: Sampler,
    began: Duration,
    members: Members,
}

/// Whose memory is looked at.
#[derive(Debug, Default)]
struct Members {
    /// The job of each process.
    jobs: BTreeMap<i32, String>,
    /// Processes whose huge pages may be split.
    given: BTreeSet<i32>,
    /// The memory of each job that can be placed at all, and what of it is in the slow node.
    memory: BTreeMap<String, (Bytes, Bytes)>,
}

impl Members {
    fn job_of(&self, rated: &BlockRate) -> Option<&str> {
        self.jobs.get(&rated.block.pid).map(String::as_str)
    }
}

/// The machine's memory, of which only that of jobs given to us may be split.
struct Given<'a> {
    host: Host<'a>,
    pids: &'a BTreeSet<i32>,
    changes: &'a Changes,
}

impl Memory for Given<'_> {
    fn present(&self, block: &Block) -> kernel::Result<Vec<u64>> {
        self.host.present(block)
    }

    fn split(&self, block: &Block) -> kernel::Result<bool> {
        if self.pids.contains(&block.pid) { self.changes.split(|| self.host.split(block)) } else { Ok(false) }
    }
}

impl Placement {
    /// CPU time that the kernel's threads have spent on looks, ever.
    pub(super) fn kernel_cpu_time(&self) -> Duration {
        self.looking.kernel_cpu_time(self.tracker.as_deref())
    }

    /// Writes down what looks have cost.
    pub(super) fn tell_costs(&self, costs: &mut Costs) {
        self.looking.tell(self.tracker.as_deref(), costs);
    }
}

impl Agent {
    /// Looks, decides or moves, whatever is due. Returns how long to wait before there is more to do; `None` where no job is
    /// under policy `slowdown`.
    pub(super) fn place_slow(&mut self) -> Option<Duration> {
        if !self.jobs.values().any(|job| job.slowed.is_some()) {
            self.stop_sampling();
            self.slow.looking.pauses();
            return None;
        }
        let now = self.clock.now();
        self.slow.looking.goes_on(now);
        if let Some(wait) = self.move_some() {
            return Some(wait);
        }
        if now >= self.slow.next {
            let used = process::thread_cpu_time().unwrap_or_default();
            if let Err(error) = self.look_at_slow(now) {
                self.stop_sampling();
                self.slow.next = now + self.config.slow.period;
                self.slow_trouble(error.to_string());
            }
            self.slow.looking.book(used);
        }
        Some(self.slow.next.saturating_sub(self.clock.now()))
    }

    /// Goes on with the period under way, or begins one.
    fn look_at_slow(&mut self, now: Duration) -> kernel::Result<()> {
        if self.slow.under_way.is_none() && !self.begin_period(now)? {
            return Ok(());
        }
        let Placement { tracker: Some(tracker), splitter, under_way: Some(period), next, looking, .. } = &mut self.slow else {
            return Ok(());
        };
        let host = Host { roots: &self.roots, splitter: splitter.as_ref() };
        let memory = Given { host, pids: &period.members.given, changes: &looking.changes };
        let round = period.sampler.tick(now, tracker.as_mut(), &memory)?;
        *next = period.sampler.due();
        let latest = period.sampler.slow_by_last_stage();
        if let Some(round) = round {
            *next = (period.began + self.config.slow.period).max(now);
            if let Some(Period { members, .. }) = self.slow.under_way.take() {
                self.decide_slow(&members, round);
            }
        } else if let Some(slow) = latest
            && self.has_turned_hot(&slow)
            && let Some(Period { sampler, members, .. }) = self.slow.under_way.take()
        {
            self.decide_slow(&members, Round { slow, split: sampler.abandon(), ..Round::default() });
            self.slow.next = now;
        }
        Ok(())
    }

    /// Whether the slow memory of some job is accessed much more often than allowed. Only the likely rates count here: their
    /// bounds, after a few looks, are far above them.
    fn has_turned_hot(&self, slow: &[BlockRate]) -> bool {
        let (Some(node), Some(period)) = (self.slow.node, &self.slow.under_way) else { return false };
        let mut rates: BTreeMap<&str, AccessRate> = BTreeMap::new();
        for rated in slow {
            if let Some(path) = period.members.job_of(rated) {
                *rates.entry(path).or_default() += rated.estimate.mean;
            }
        }
        rates.into_iter().any(|(path, rate)| {
            let class = self.jobs.get(path).map(|job| job.treatment.class);
            let budget = class.map(|class| slowdown::budget(&self.config.slowdown_for(class, node.latency_ns)));
            budget.is_some_and(|budget| rate > budget.saturating_mul(HOT_TIMES))
        })
    }

    /// Finds every block of the jobs, and chooses what to look at. Returns whether there is anything.
    fn begin_period(&mut self, now: Duration) -> kernel::Result<bool> {
        self.slow.next = now + self.config.slow.period;
        let node = SlowNode::find(&self.roots, &self.config.slow)?;
        self.slow.node = Some(node);
        if self.slow.tracker.is_none() {
            self.slow.tracker = Some(rates::choose(&self.roots, self.config.slow.access_sampling)?);
        }
        if self.slow.splitter.is_none() && self.config.slow.split {
            // Without it huge pages are told apart as far as they can be as a whole; the doctor says so.
            self.slow.splitter = Splitter::open(&self.roots).ok();
        }
        self.manage_numa_balancing();
        let mut chosen = Chosen::default();
        let paths: Vec<String> = self.jobs.iter().filter(|(_, job)| job.slowed.is_some()).map(|(path, _)| path.clone()).collect();
        for path in paths {
            match self.choose(&path, node.node, &mut chosen) {
                Err(error) if !error.is_gone() => self.trouble(&path, &error),
                _ => {}
            }
        }
        self.slow.periods += 1;
        if chosen.sampled.is_empty() && chosen.slow.is_empty() {
            return Ok(false);
        }
        self.begin_looks(now, chosen)
    }

    /// Chooses what is looked at of one job.
    fn choose(&mut self, path: &str, node: u32, chosen: &mut Chosen) -> kernel::Result<()> {
        let Some(job) = self.jobs.get(path) else { return Ok(()) };
        let pids = job.cgroup.procs(super::scan::PROCESSES_MAX)?;
        let found = blocks::find(&self.roots, &pids, BLOCKS_MAX)?;
        let (slow, fast): (Vec<Block>, Vec<Block>) = found.blocks.into_iter().partition(|block| block.node == node);
        let sum = |blocks: &[Block]| blocks.iter().map(|block| block.bytes).sum::<Bytes>();
        chosen.sampled.extend(selection::sampled(&fast, self.config.slow.sample, self.slow.periods));
        let members = &mut chosen.members;
        members.memory.insert(path.to_owned(), (sum(&slow) + sum(&fast), sum(&slow)));
        chosen.slow.extend(slow);
        if self.may_act(job) {
            members.given.extend(pids.iter().copied());
        }
        members.jobs.extend(pids.into_iter().map(|pid| (pid, path.to_owned())));
        Ok(())
    }

    fn begin_looks(&mut self, now: Duration, chosen: Chosen) -> kernel::Result<bool> {
        let Chosen { sampled, slow, members } = chosen;
        let look_period = self.look_period();
        let Placement { tracker: Some(tracker), splitter, periods, looking, .. } = &mut self.slow else { return Ok(false) };
        let config = &self.config.slow;
        let settings = Settings { samples: config.looks / 3, interval: look_period, parts_max: config.parts };
        let host = Host { roots: &self.roots, splitter: splitter.as_ref() };
        let memory = Given { host, pids: &members.given, changes: &looking.changes };
        let sampler = Sampler::begin(sampled, slow, settings, *periods, tracker.as_ref(), &memory);
        if tracker.has_kernel_threads() {
            let path = self.config.agent.runtime_dir.join("undo.json");
            self.undo.set_kdamond_targets(&sampler.pids()).map_err(|source| kernel::Error::Io { path, op: "write", source })?;
        }
        self.slow.under_way = Some(Period { sampler, began: now, members });
        Ok(true)
    }

    /// Brings home what was placed: nobody would look at it any more.
    pub(super) fn bring_all_home(&mut self) {
        for what in slow::bring_home(&self.cgroups, &mut self.undo, None) {
            self.event(None, what);
        }
    }

    /// Ends what is under way and leaves nothing of it in the kernel.
    pub(super) fn stop_sampling(&mut self) {
        if let Some(period) = self.slow.under_way.take() {
            self.collapse(&period.sampler.abandon());
        }
        let Some(mut tracker) = self.slow.tracker.take() else { return };
        let kernel_threads = tracker.has_kernel_threads();
        let stopped = tracker.stop();
        self.slow.looking.keep(tracker.as_ref());
        match stopped {
            // What could not be ended stays on the list, for the next start to end.
            Err(error) => log::error!("stopping looks at accessed bits: {error}; run `thermocline agent --restore`"),
            Ok(()) if kernel_threads => {
                if let Err(error) = self.undo.set_kdamond_targets(&[]) {
                    log::error!("undo list: {error}");
                }
            }
            Ok(()) => {}
        }
    }

    /// One step of each job's policy, at the end of a period.
    fn decide_slow(&mut self, members: &Members, round: Round) {
        let Some(node) = self.slow.node else { return };
        self.collapse(&round.split);
        self.slow.trouble = None;
        let mut by_job: BTreeMap<&str, JobRound> = members.memory.keys().map(|path| (path.as_str(), JobRound::default())).collect();
        for rated in round.slow {
            if let Some(job) = members.job_of(&rated).and_then(|path| by_job.get_mut(path)) {
                job.slow.push(rated);
            }
        }
        let tellable = self.tellable();
        for mut rated in round.sampled {
            // There, it would be looked at as a whole: what cannot be told from hot memory then would come home at once.
            if rated.block.huge {
                rated.estimate.upper = rated.estimate.upper.filter(|upper| *upper <= tellable);
            }
            if let Some(job) = members.job_of(&rated).and_then(|path| by_job.get_mut(path)) {
                job.sampled.push(rated);
            }
        }
        let step_max = Bytes(self.config.slow.step_max().0 / u64::try_from(by_job.len()).unwrap_or(1).max(1));
        let mut room = node.room();
        for (path, round) in by_job {
            let Some(mut job) = self.jobs.remove(path) else { continue };
            let memory = members.memory.get(path).copied().unwrap_or_default();
            let input = Input { slow: runs(&round.slow), sampled: runs(&round.sampled), room, step_max, veto: self.slow_veto(&job) };
            room = room - self.step_slow(&mut job, node, input, memory, round);
            self.jobs.insert(path.to_owned(), job);
        }
        self.publish();
    }

    /// The highest rate of a block in the slow node that its looks of one period can tell.
    fn tellable(&self) -> AccessRate {
        rate::tellable(self.config.slow.looks, u64::try_from(self.look_period().as_micros()).unwrap_or(u64::MAX))
    }

    /// The time from look to look: so long that the three stages, with the time that the tracker takes to tell what it saw
    /// after each, fit into the period; longer where the tracker cannot look as often.
    fn look_period(&self) -> Duration {
        let slow = &self.config.slow;
        let (after, least) =
            self.slow.tracker.as_ref().map_or((0, Duration::ZERO), |tracker| (tracker.report_intervals(), tracker.interval_min()));
        (slow.period / (slow.looks + 3 * after)).max(least)
    }

    /// Decides for one job, records it, and queues its moves. Returns how much is to be placed.
    fn step_slow(
        &mut self,
        job: &mut Job,
        node: SlowNode,
        input: Input,
        (memory, slow_bytes): (Bytes, Bytes),
        JobRound { mut slow, mut sampled }: JobRound,
    ) -> Bytes {
        let params = self.config.slowdown_for(job.treatment.class, node.latency_ns);
        let step = slowdown::step(&params, &input);
        let may_act = self.may_act(job);
        let Some(slowed) = &mut job.slowed else { return Bytes::ZERO };
        let record = SlowRecord {
            unix_ms: unix_ms(),
            job: job.cgroup.name().to_owned(),
            id: job.cgroup.id(),
            params,
            input,
            step,
            moved: slowed.take_moved(),
            memory,
            slow: slow_bytes,
        };
        slowed.remember(&record);
        self.pending.push(Record::Slow(Box::new(record)));
        if !may_act {
            return Bytes::ZERO;
        }
        slow.sort_unstable_by_key(|rated| std::cmp::Reverse(slowdown::rank(rated.block.bytes, &rated.estimate)));
        sampled.sort_unstable_by_key(|rated| slowdown::rank(rated.block.bytes, &rated.estimate));
        let first = |rated: Vec<BlockRate>, count: u32| rated.into_iter().take(usize::try_from(count).unwrap_or(usize::MAX));
        let path = job.path();
        for rated in first(slow, step.home) {
            self.slow.moves.push(Move { job: path.to_owned(), block: rated.block, to: node.home, home: true });
        }
        let mut placed = Bytes::ZERO;
        for rated in first(sampled, step.place) {
            placed += rated.block.bytes;
            self.slow.moves.push(Move { job: path.to_owned(), block: rated.block, to: node.node, home: false });
        }
        placed
    }

    fn slow_veto(&self, job: &Job) -> Option<Veto> {
        if !self.may_act(job) {
            return Some(Veto::ObserveOnly);
        }
        if numa::balancing(&self.roots).is_ok_and(|balancing| balancing.mode.is_some_and(|mode| mode != 0)) {
            return Some(Veto::NumaBalancing);
        }
        self.budget_spent.then_some(Veto::BudgetSpent)
    }

    /// Switches the kernel's own moving of pages off where the operator asked for it. It is put back on exit.
    fn manage_numa_balancing(&mut self) {
        let acting = self.jobs.values().any(|job| job.slowed.is_some() && self.may_act(job));
        let file = self.roots.proc.join(NUMA_BALANCING);
        if !self.config.slow.manage || !acting || self.undo.original(&file).is_some() || !file.exists() {
            return;
        }
        match self.undo.set(&file, "0") {
            Ok(()) => self.event(None, "kernel.numa_balancing set to 0 while the agent runs".to_owned()),
            Err(error) => self.event(None, format!("kernel.numa_balancing cannot be set to 0: {error}")),
        }
    }

    /// Tells why nothing can be placed, once.
    fn slow_trouble(&mut self, what: String) {
        if self.slow.trouble.as_ref() != Some(&what) {
            self.event(None, format!("nothing is placed in slow memory: {what}"));
            self.slow.trouble = Some(what);
        }
    }
}

/// What is to be looked at in a period.
#[derive(Debug, Default)]
struct Chosen {
    sampled: Vec<Block>,
    slow: Vec<Block>,
    members: Members,
}

/// What a period tells of one job.
#[derive(Default)]
struct JobRound {
    slow: Vec<BlockRate>,
    sampled: Vec<BlockRate>,
}

fn runs(rated: &[BlockRate]) -> Runs {
    rated.iter().map(|rated| (rated.block.bytes, rated.estimate)).collect()
}

#[cfg(test)]
mod tests;

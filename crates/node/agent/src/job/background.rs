//! What the background policy knows of one job, and how far what it decided has been carried out.

use std::collections::VecDeque;
use std::time::Duration;

use policy::background::{self, Decision, Hint, Input, Params, Reason, State};
use serde::{Deserialize, Serialize};
use units::{Bytes, RatioPpm};

use crate::actuators::compact::{Cursor, Task};

/// Periods kept in memory for `explain`.
const RECENT_MAX: usize = 64;

/// The controller of a job that may go to the background.
#[derive(Debug)]
pub struct Background {
    /// Its parameters.
    pub params: Params,
    /// Its memory.
    pub state: State,
    /// What an operator or orchestrator last said of the job.
    pub hint: Option<Hint>,
    /// What is being carried out.
    pub plan: Option<Plan>,
    /// The last periods, oldest first.
    pub recent: VecDeque<BackgroundPeriod>,
    done: Done,
    input: Option<Input>,
}

/// A compaction or a prefetch under way.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Which of the two.
    pub task: Task,
    /// How far it has come.
    pub cursor: Cursor,
    /// Whether it waits for a period in which it may go on.
    pub paused: bool,
    /// How freeing what a swap device has taken goes.
    pub drain: Drain,
    /// What it has done.
    pub done: Done,
}

/// Freeing what a swap device has taken. It has no beginning of its own: it goes along with paging out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Drain {
    /// Whether no more is asked for.
    pub over: bool,
    /// What the last request that did as it should was for.
    pub asked: Bytes,
    /// Requests, one after the other, for which the kernel took other memory instead.
    pub missed: u32,
    /// Looks, one after the other, at which the device had taken nothing.
    pub waited: u32,
    /// Time since boot before which nothing is asked.
    pub not_before: Duration,
}

/// What was done to a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// Swap-backed memory that the kernel was asked to page out.
    pub asked: Bytes,
    /// Memory that left DRAM, by the kernel's count.
    pub offloaded: Bytes,
    /// Addresses of file mappings whose pages were deactivated.
    pub deactivated: Bytes,
    /// Addresses whose pages were asked back.
    pub prefetched: Bytes,
}

impl std::ops::AddAssign for Done {
    fn add_assign(&mut self, other: Self) {
        self.asked += other.asked;
        self.offloaded += other.offloaded;
        self.deactivated += other.deactivated;
        self.prefetched += other.prefetched;
    }
}

/// What people are shown of a period that has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackgroundPeriod {
    /// Milliseconds since the epoch.
    pub unix_ms: u64,
    /// What was decided.
    pub decision: Decision,
    /// Share of time that tasks of the machine waited for memory.
    pub machine_stall: RatioPpm,
    /// Share of the machine's memory that was available.
    pub available: RatioPpm,
    /// What was done since the decision before.
    pub done: Done,
}

impl Background {
    /// A controller that knows nothing yet.
    #[must_use]
    pub fn new(params: Params) -> Self {
        Self { params, state: State::default(), hint: None, plan: None, recent: VecDeque::new(), done: Done::default(), input: None }
    }

    /// One look: what is decided, and what was done since the one before. The plan follows the decision; `pids` are the
    /// processes that a new one is for.
    pub fn step(&mut self, input: Input, pids: &[i32]) -> (Decision, Done) {
        let (state, decision) = background::step(&self.params, &self.state, &input);
        self.state = state;
        self.input = Some(input);
        match decision {
            Decision::Compact => self.plan = Some(Plan::new(Task::Compact, pids)),
            Decision::Prefetch => self.plan = Some(Plan::new(Task::Prefetch, pids)),
            // Compaction is decided once, and may then take many periods.
            Decision::Nothing { reason: Reason::Done } => {
                let waits = input.veto.is_some() || background::short_of_memory(&self.params, &input);
                if let Some(plan) = &mut self.plan {
                    plan.paused = waits;
                }
            }
            Decision::Nothing { reason: Reason::Foreground } => {
                self.plan.take_if(|plan| plan.task == Task::Compact);
            }
            Decision::Nothing { .. } => self.plan = None,
        }
        (decision, std::mem::take(&mut self.done))
    }

    /// Whether there is something to carry out now.
    #[must_use]
    pub fn due(&self) -> bool {
        self.plan.as_ref().is_some_and(|plan| !plan.paused)
    }

    /// Whether what was decided must wait, now that the machine is in this state.
    #[must_use]
    pub fn must_wait(&self, machine_stall: RatioPpm, available: RatioPpm) -> bool {
        self.input.is_none_or(|input| background::short_of_memory(&self.params, &Input { machine_stall, available, ..input }))
    }

    /// Takes note of what one step has done, and of the plan as it is now.
    pub fn took(&mut self, plan: Option<Plan>, done: Done) {
        self.plan = plan;
        self.done += done;
    }

    /// Remembers a closed period.
    pub fn remember(&mut self, period: BackgroundPeriod) {
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(period);
    }
}

impl Plan {
    fn new(task: Task, pids: &[i32]) -> Self {
        Self { task, cursor: Cursor::new(pids), paused: false, drain: Drain::default(), done: Done::default() }
    }
}

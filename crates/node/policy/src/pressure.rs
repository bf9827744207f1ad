//! The pressure controller: offload as much as the job does not feel (001 section 3.3, Senpai).
//!
//! # Problem
//! How often pages come back does not say how much that hurts: it depends on the device and on the job. The kernel
//! measures the hurt itself, as the time in which some task of the job waited for memory or for I/O
//! (`memory.pressure` and `io.pressure`, line `some`, field `total=`).
//!
//! # Algorithm
//! Each period, with *stall* the share of the period in which some task waited, and *worst* the largest of
//! stall / target over memory, I/O and the estimate below:
//!
//! reclaim = resident * ratio * max(0, 1 - worst), at most `step_max` of the job, and never below the floor.
//!
//! Contraction is gentle, for the share is small and shrinks as the target comes near. Expansion is answered at once:
//! at the target nothing is asked for, and the kernel brings back by itself what the job touches.
//!
//! What was waited for memory beyond the target, measured or estimated, counts as waited in the periods after it,
//! until it is made up for.
//! The formula alone, which the paper gives, forgets each period: where one request is large beside the number of
//! returns that the target allows, as with a large job on a slow device, it asks again in every quiet period that
//! chance leaves. On the simulated job of the tests, with returns of 5 ms, its mean stall settles at 1.7 times the
//! target for a ratio of 0.2 %, and at 3.5 times for 5 %. With what is owed that is 0.95 and 1.25 times. Ten periods'
//! worth at most is owed, because a stall may have other causes; that limit is what the 1.25 comes from.
//!
//! The estimate stands in for the kernel's accounting where that sleeps: a page from zswap that was not part of the
//! working set when it went out books no stall on its return (`mm/memory.c`, `mm/workingset.c`), and waits for no I/O.
//! So every page that came back is charged with what is booked nowhere of its wait. Tasks that wait side by side are
//! charged one by one, which errs towards holding back.
//!
//! A small job's share of a period may be less than a page, and would be so for ever. What is left over below a page
//! is therefore carried to the next period. One request may so exceed one period's share by less than a page; the sum
//! of all requests never exceeds the sum of the shares. Whatever holds back also drops what was carried.
//!
//! # Properties
//! Each is a test of that name: [`step`] is deterministic; never above the step; never below the floor; it holds at
//! once when a stall reaches its target; a stall beyond the target is made up for; a counter that goes back holds;
//! small jobs move; on a simulated job it settles at or under the target from any start, the resident memory swings
//! by no more than a twentieth of the job, and a faster device is given more.

use serde::{Deserialize, Serialize};

use crate::veto::Veto;
use units::{Bytes, PageSize, Pages, RatioPpm};

/// The kernel reclaims whole pages and drops the rest of a request.
const PAGE: u64 = PageSize::X86_64.bytes();

/// For how many periods a stall holds back after its end, at most: a minute at 6 s. The stall may have had another
/// cause than our requests, such as the job's own limit.
const OWED_PERIODS_MAX: u64 = 10;

/// What an operator or a tuner may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Params {
    /// Share of the resident memory to ask for in a period without any stall (001: 0.05 %).
    pub ratio: RatioPpm,
    /// Share of time that some task may wait for memory (001: 0.1 %). Zero never reclaims.
    pub stall_target: RatioPpm,
    /// Share of time that some task may wait for I/O. Zero never reclaims.
    pub io_stall_target: RatioPpm,
    /// The most to ask for in one period, as a share of the resident memory (001: 1 %).
    pub step_max: RatioPpm,
    /// Bytes that always stay resident.
    pub floor: Bytes,
    /// How long a job runs before anything of it is offloaded, in milliseconds.
    pub warmup_ms: u64,
}

/// What the kernel has counted since the job began. Each only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Microseconds in which some task waited for memory: `memory.pressure`, `some`, `total=`.
    pub memory_stall_us: u64,
    /// Microseconds in which some task waited for I/O: `io.pressure`, `some`, `total=`.
    pub io_stall_us: u64,
    /// Pages that came back: swap-ins and refaults of file pages.
    pub refaults: Pages,
}

impl Counters {
    /// What was counted since `earlier`; `None` where a counter went back.
    fn since(self, earlier: Self) -> Option<Self> {
        Some(Self {
            memory_stall_us: self.memory_stall_us.checked_sub(earlier.memory_stall_us)?,
            io_stall_us: self.io_stall_us.checked_sub(earlier.io_stall_us)?,
            refaults: Pages(self.refaults.0.checked_sub(earlier.refaults.0)?),
        })
    }
}

/// What is remembered of a job from one period to the next. A restart may forget it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The counters of the step before.
    last: Option<Counters>,
    /// Asked for by the formula but less than a page so far.
    carry: Bytes,
    /// Microseconds waited for memory beyond the target in the periods before, not yet made up for.
    memory_owed_us: u64,
    /// The same of the estimate for pages that came back.
    refault_owed_us: u64,
}

/// What is known of one job at the end of one period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// Milliseconds since the job was first observed.
    pub job_age_ms: u64,
    /// Milliseconds since the counters of the step before were read.
    pub elapsed_ms: u64,
    /// `memory.current` without the compressed pool.
    pub resident: Bytes,
    /// What must stay by the operator's word: `memory.low` or `memory.min`.
    pub protected: Bytes,
    /// The kernel's counters now.
    pub counters: Counters,
    /// Mean wait for one page on its return that neither pressure file tells of, in microseconds.
    pub refault_cost_us: u32,
    /// Why the surroundings forbid offloading in this period, if they do.
    pub veto: Option<Veto>,
}

/// What to do with a job now, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "action")]
pub enum Decision {
    /// Ask the kernel to reclaim.
    Reclaim {
        /// How much, in whole pages; zero while a small job's share has not yet filled one.
        bytes: Bytes,
    },
    /// Reclaim nothing.
    Hold {
        /// What holds it back.
        reason: Hold,
    },
}

/// Why nothing is reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// There are no counters of a period before, or no time has passed since.
    NoHistory,
    /// A counter of the kernel is lower than a period ago: the cgroup was made anew, or the file is not what it was.
    CounterWentBack,
    /// The job is younger than the warm-up time.
    WarmingUp,
    /// Tasks waited for memory at or over the target, in this period or in the mean of those before.
    MemoryStall,
    /// Tasks waited for I/O at or over the target.
    IoStall,
    /// So many pages came back that their wait is estimated at or over the target, likewise.
    Refaults,
    /// Less than a page lies above what must stay.
    AtFloor,
    /// The surroundings forbid it.
    Vetoed(Veto),
}

/// A decision with the numbers that it rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// What to do.
    pub decision: Decision,
    /// Share of the period in which some task waited for memory. Zero without history, like the next two.
    pub memory_stall: RatioPpm,
    /// Share of the period in which some task waited for I/O.
    pub io_stall: RatioPpm,
    /// Estimated share of the period that went into pages coming back.
    pub refault_stall: RatioPpm,
}

/// One period. Pure: same arguments, same answer.
#[must_use]
pub fn step(params: &Params, state: &State, input: &Input) -> (State, Step) {
    let forgetful = State { last: Some(input.counters), ..State::default() };
    let unmeasured = |reason| {
        let decision = Decision::Hold { reason };
        Step { decision, memory_stall: RatioPpm(0), io_stall: RatioPpm(0), refault_stall: RatioPpm(0) }
    };
    let Some(last) = state.last.filter(|_| input.elapsed_ms > 0) else {
        return (forgetful, unmeasured(Hold::NoHistory));
    };
    let Some(counted) = input.counters.since(last) else {
        return (forgetful, unmeasured(Hold::CounterWentBack));
    };

    let elapsed_us = input.elapsed_ms.saturating_mul(1000);
    let returned_us = counted.refaults.0.saturating_mul(u64::from(input.refault_cost_us));
    let share = |stall_us| RatioPpm::of(stall_us, elapsed_us).unwrap_or_default();
    let answer = |decision| Step {
        decision,
        memory_stall: share(counted.memory_stall_us),
        io_stall: share(counted.io_stall_us),
        refault_stall: share(returned_us),
    };

    let allowed_us = params.stall_target.share_of(elapsed_us);
    let memory_us = counted.memory_stall_us.saturating_add(state.memory_owed_us);
    let refault_us = returned_us.saturating_add(state.refault_owed_us);
    let worst = Stall { waited_us: memory_us, allowed_us, reason: Hold::MemoryStall }
        .worse(Stall { waited_us: counted.io_stall_us, allowed_us: params.io_stall_target.share_of(elapsed_us), reason: Hold::IoStall })
        .worse(Stall { waited_us: refault_us, allowed_us, reason: Hold::Refaults });
    let held = State { memory_owed_us: owed(memory_us, allowed_us), refault_owed_us: owed(refault_us, allowed_us), ..forgetful };
    let room = input.resident - params.floor.max(input.protected);
    if let Some(reason) = hold(params, input, worst, room) {
        return (held, answer(Decision::Hold { reason }));
    }

    let share = worst.headroom_of(params.ratio.share_of(input.resident.0)).min(params.step_max.share_of(input.resident.0));
    let gathered = state.carry.0.saturating_add(share).min(room.0);
    let carry = Bytes(gathered % PAGE);
    let decision = Decision::Reclaim { bytes: Bytes(gathered) - carry };
    (State { carry, ..held }, answer(decision))
}

/// What is left to make up for after a period, in microseconds.
fn owed(waited_us: u64, allowed_us: u64) -> u64 {
    waited_us.saturating_sub(allowed_us).min(allowed_us.saturating_mul(OWED_PERIODS_MAX))
}

/// The reasons to hold, the most fundamental first.
fn hold(params: &Params, input: &Input, worst: Stall, room: Bytes) -> Option<Hold> {
    if let Some(veto @ (Veto::ObserveOnly | Veto::OtherPolicy)) = input.veto {
        return Some(Hold::Vetoed(veto));
    }
    if input.job_age_ms < params.warmup_ms {
        return Some(Hold::WarmingUp);
    }
    if worst.at_target() {
        return Some(worst.reason);
    }
    if room.0 < PAGE {
        return Some(Hold::AtFloor);
    }
    input.veto.map(Hold::Vetoed)
}

/// What was waited for in a period, against what was allowed, both in microseconds: the kernel counts no finer.
#[derive(Clone, Copy)]
struct Stall {
    waited_us: u64,
    allowed_us: u64,
    reason: Hold,
}

impl Stall {
    fn at_target(self) -> bool {
        self.waited_us >= self.allowed_us
    }

    /// The one that is larger relative to its target; this one where they are equal.
    fn worse(self, other: Self) -> Self {
        // By cross-multiplication, because the ratios themselves would need rounding, and a target may be zero.
        let this = u128::from(self.waited_us) * u128::from(other.allowed_us);
        let that = u128::from(other.waited_us) * u128::from(self.allowed_us);
        let no_target = other.allowed_us == 0 && self.allowed_us > 0;
        if that > this || no_target { other } else { self }
    }

    /// `amount * (1 - waited / allowed)`, rounded down; zero at and above the target.
    fn headroom_of(self, amount: u64) -> u64 {
        let left = u128::from(self.allowed_us.saturating_sub(self.waited_us));
        let scaled = (u128::from(amount) * left).checked_div(u128::from(self.allowed_us)).unwrap_or(0);
        u64::try_from(scaled).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests;

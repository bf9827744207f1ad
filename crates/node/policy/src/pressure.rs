//! The pressure controller: reclaim while PSI stalls stay below their target (TMO section 3.3, Senpai).
//!
//! # Problem
//! The number of refaults does not show how much they slow a job down: that depends on the device and on the job. The kernel measures
//! the slowdown as the time in which some task of the job stalled on memory or I/O (`memory.pressure` and `io.pressure`, line `some`,
//! field `total=`).
//!
//! # Algorithm
//! In each period, with *stall* the share of the period in which some task stalled, and *worst* the largest of stall / target over
//! memory, I/O and the estimate below:
//!
//! reclaim = resident * ratio * max(0, 1 - worst), at most `step_max` of the job, and never below the floor.
//!
//! Contraction is gentle, because the share is small and shrinks as the stall approaches the target. Expansion is immediate: at the
//! target nothing is reclaimed, and the kernel swaps in what the job accesses.
//!
//! A memory stall beyond the target, measured or estimated, is carried over: it counts as a stall of the following periods until it is
//! compensated. The formula alone, as in TMO, forgets each period: if one request is large relative to the refaults that the target
//! permits, as with a large job on a slow device, it reclaims again in every period that happens to be quiet. On the simulated job of the
//! tests, with refaults of 5 ms, the mean stall converges to 1.7 times the target for a ratio of 0.2 %, and to 3.5 times for 5 %. With the
//! carry-over it is 0.95 and 1.25 times. At most ten periods' worth is carried over, because a stall may have other causes; this limit
//! explains the 1.25.
//!
//! The estimate covers stalls that the kernel does not account for: a page from zswap that was not part of the working set when it was
//! reclaimed causes no memory stall on its return (`mm/memory.c`, `mm/workingset.c`), and no I/O. So every refault is charged with the
//! part of its latency that is not accounted for. Tasks that wait in parallel are charged individually, which errs on the side of less
//! reclaim.
//!
//! The share of a small job may be less than a page. The remainder below a page is therefore carried to the next period. One request may
//! exceed the share of one period by less than a page; the sum of all requests never exceeds the sum of the shares. A hold drops the
//! remainder.
//!
//! # Properties
//! Each is a test of this name: [`step`] is deterministic; never above the step; never below the floor; it holds at once when a stall
//! reaches its target; a stall beyond the target is compensated; a counter that decreases holds; small jobs are reclaimed; on a simulated
//! job it converges to at most the target from any start, the resident memory oscillates by at most a twentieth of the job, and a faster
//! device permits more.

use serde::{Deserialize, Serialize};

use crate::veto::Veto;
use units::{Bytes, Millis, PageSize, Pages, RatioPpm};

/// The kernel reclaims whole pages and drops the rest of a request.
const PAGE: u64 = PageSize::X86_64.bytes();

/// For how many periods at most a stall holds reclaim back after its end: one minute at 6 s. The stall may have had another cause than
/// reclaim by this controller, such as the job's memory limit.
const OWED_PERIODS_MAX: u64 = 10;

/// Parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Params {
    /// Share of the resident memory to reclaim in a period without stalls (TMO section 3.3: 0.05 %).
    pub ratio: RatioPpm,
    /// Target for the share of time with a memory stall (TMO section 3.3: 0.1 %). Zero never reclaims.
    pub stall_target: RatioPpm,
    /// Target for the share of time with an I/O stall. Zero never reclaims.
    pub io_stall_target: RatioPpm,
    /// The most to reclaim in one period, as a share of the resident memory (TMO section 3.3: 1 %).
    pub step_max: RatioPpm,
    /// Bytes that always stay resident.
    pub floor: Bytes,
    /// How long a job runs before it is reclaimed, in milliseconds.
    pub warmup_ms: Millis,
}

/// Counters of the kernel since the cgroup was created. They never decrease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Time with a memory stall, in microseconds: `memory.pressure`, `some`, `total=`.
    pub memory_stall_us: u64,
    /// Time with an I/O stall, in microseconds: `io.pressure`, `some`, `total=`.
    pub io_stall_us: u64,
    /// Swap-ins and refaults of file pages.
    pub refaults: Pages,
}

impl Counters {
    /// Returns the difference since `earlier`; `None` if a counter decreased.
    fn since(self, earlier: Self) -> Option<Self> {
        Some(Self {
            memory_stall_us: self.memory_stall_us.checked_sub(earlier.memory_stall_us)?,
            io_stall_us: self.io_stall_us.checked_sub(earlier.io_stall_us)?,
            refaults: Pages(self.refaults.0.checked_sub(earlier.refaults.0)?),
        })
    }
}

/// State of a job. A restart may lose it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The counters of the previous step.
    last: Option<Counters>,
    /// The remainder below a page of past shares.
    carry: Bytes,
    /// Memory stall beyond the target in past periods that has not been compensated, in microseconds.
    memory_owed_us: u64,
    /// The same for the estimated stall of refaults.
    refault_owed_us: u64,
}

/// Observation of one job at the end of a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// Milliseconds since the job was first observed.
    pub job_age_ms: Millis,
    /// Milliseconds since the previous step.
    pub elapsed_ms: Millis,
    /// `memory.current` without zswap.
    pub resident: Bytes,
    /// Memory that the operator protects: `memory.low` or `memory.min`.
    pub protected: Bytes,
    /// The kernel's counters now.
    pub counters: Counters,
    /// Mean latency of a refault that PSI does not account for, in microseconds.
    pub refault_cost_us: u32,
    /// The veto in effect; `None` without one.
    pub veto: Option<Veto>,
}

/// The action for a job, with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "action")]
pub enum Decision {
    /// Reclaim from the job.
    Reclaim {
        /// The amount, in whole pages; zero while the accumulated share of a small job is less than a page.
        bytes: Bytes,
    },
    /// Reclaim nothing.
    Hold {
        /// The reason.
        reason: Hold,
    },
}

/// Why nothing is reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// There are no counters of a previous period, or no time has passed since.
    NoHistory,
    /// A counter of the kernel has decreased: the cgroup was recreated.
    CounterWentBack,
    /// The job is younger than the warm-up time.
    WarmingUp,
    /// The memory stall, including what is carried over, is at or above the target.
    MemoryStall,
    /// The I/O stall is at or above the target.
    IoStall,
    /// The estimated stall of refaults, including what is carried over, is at or above the target.
    Refaults,
    /// Less than a page is above the floor.
    AtFloor,
    /// A veto is in effect.
    Vetoed(Veto),
}

/// A decision with the values that it is based on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// What to do.
    pub decision: Decision,
    /// Share of the period with a memory stall. Zero without history, like the next two.
    pub memory_stall: RatioPpm,
    /// Share of the period with an I/O stall.
    pub io_stall: RatioPpm,
    /// Estimated share of the period spent on refaults.
    pub refault_stall: RatioPpm,
}

/// Decides for one period. Deterministic.
#[must_use]
pub fn step(params: &Params, state: &State, input: &Input) -> (State, Step) {
    let forgetful = State { last: Some(input.counters), ..State::default() };
    let unmeasured = |reason| {
        let decision = Decision::Hold { reason };
        Step { decision, memory_stall: RatioPpm(0), io_stall: RatioPpm(0), refault_stall: RatioPpm(0) }
    };
    let Some(last) = state.last.filter(|_| input.elapsed_ms > Millis::ZERO) else {
        return (forgetful, unmeasured(Hold::NoHistory));
    };
    let Some(counted) = input.counters.since(last) else {
        return (forgetful, unmeasured(Hold::CounterWentBack));
    };

    let elapsed_us = input.elapsed_ms.0.saturating_mul(1000);
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

/// Returns the stall that is carried over to the next period, in microseconds.
fn owed(waited_us: u64, allowed_us: u64) -> u64 {
    waited_us.saturating_sub(allowed_us).min(allowed_us.saturating_mul(OWED_PERIODS_MAX))
}

/// Returns the reason to hold, the most fundamental first. Where other controllers decide, as under policy `auto`, they still need to
/// know of stalls, which therefore come first.
fn hold(params: &Params, input: &Input, worst: Stall, room: Bytes) -> Option<Hold> {
    if input.veto == Some(Veto::ObserveOnly) {
        return Some(Hold::Vetoed(Veto::ObserveOnly));
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

/// A stall and its target in a period, both in microseconds, the resolution of the kernel.
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

    /// Returns the stall that is larger relative to its target; `self` if they are equal.
    fn worse(self, other: Self) -> Self {
        // By cross-multiplication, because the ratios themselves would need rounding, and a target may be zero.
        let this = u128::from(self.waited_us) * u128::from(other.allowed_us);
        let that = u128::from(other.waited_us) * u128::from(self.allowed_us);
        let no_target = other.allowed_us == 0 && self.allowed_us > 0;
        if that > this || no_target { other } else { self }
    }

    /// Returns `amount * (1 - waited / allowed)`, rounded down; zero at and above the target.
    fn headroom_of(self, amount: u64) -> u64 {
        let left = u128::from(self.allowed_us.saturating_sub(self.waited_us));
        let scaled = (u128::from(amount) * left).checked_div(u128::from(self.allowed_us)).unwrap_or(0);
        u64::try_from(scaled).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests;

//! Compaction of what became idle (003: proactive reclaim by process state).
//!
//! # Problem
//! An application that nobody looks at keeps its memory. Paging it out once, when it goes to the background, made room
//! for others: 15 % fewer kills in the field. The same done while memory was already short made more kills, not
//! fewer (experiments 1 and 2), because paging out needs memory itself.
//!
//! # Rules
//! - In the background is what an operator or orchestrator says is; without their word, what is frozen, or has used
//!   no CPU time for `idle_ms`. Their word wins, so that a job can be brought back before it is thawed.
//! - A job that has stayed there for `settle_ms` is compacted, once per stay.
//! - While the machine is short of memory that is put off, not given up.
//! - On its return to the foreground a job that was compacted is prefetched once, where that is wanted and the machine
//!   is not short of memory. A prefetch that comes late is of no use, so it is not put off.
//!
//! # Properties
//! Each is a test of that name: compacted once per stay; never under pressure or a veto, but put off; prefetched once,
//! and only what was compacted; the operator's word wins; a clock or a counter that goes back is tolerated.

use serde::{Deserialize, Serialize};

use crate::veto::Veto;
use units::RatioPpm;

/// What an operator may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Params {
    /// How long a job stays in the background before it is compacted, in milliseconds.
    pub settle_ms: u64,
    /// How long a job uses no CPU time before it counts as in the background, in milliseconds; zero never infers it.
    pub idle_ms: u64,
    /// Share of time that some task of the machine waits for memory, at or above which nothing is compacted.
    pub pressure_max: RatioPpm,
    /// Share of the machine's memory that must be available for anything to be compacted.
    pub available_min: RatioPpm,
    /// Whether a job that returns to the foreground is read back ahead of its accesses.
    pub prefetch: bool,
}

/// What an operator or orchestrator says of a job, until it says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hint {
    /// Unlikely to be used soon.
    Background,
    /// In use, or about to be.
    Foreground,
}

/// What is known of one job now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// The caller's milliseconds.
    pub now_ms: u64,
    /// The standing hint, if there is one.
    pub hint: Option<Hint>,
    /// Whether the job is frozen: `cgroup.events`, `frozen`.
    pub frozen: bool,
    /// CPU time that the job has used, ever, in microseconds: `cpu.stat`, `usage_usec`.
    pub cpu_usage_us: u64,
    /// Share of time that some task of the machine waited for memory: `/proc/pressure/memory`, `some`, `avg10=`.
    pub machine_stall: RatioPpm,
    /// Share of the machine's memory that is available: `/proc/meminfo`, `MemAvailable` of `MemTotal`.
    pub available: RatioPpm,
    /// Why the surroundings forbid offloading now, if they do.
    pub veto: Option<Veto>,
}

/// What is remembered of a job. A restart may forget it; the job may then be compacted once more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The CPU time last seen; `None` before the first look.
    cpu: Option<CpuTime>,
    /// The present stay in the background; `None` in the foreground.
    stay: Option<Stay>,
}

/// CPU time used, and since when it is the same, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct CpuTime {
    usage_us: u64,
    since_ms: u64,
}

/// A stay in the background: since when, in milliseconds, and whether the job has been compacted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Stay {
    since_ms: u64,
    compacted: bool,
}

/// What to do with a job now, and why nothing is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "action")]
pub enum Decision {
    /// Page out its anonymous memory and deactivate its file pages.
    Compact,
    /// Read back what is far.
    Prefetch,
    /// Leave it as it is.
    Nothing {
        /// What keeps it so.
        reason: Reason,
    },
}

/// Why nothing is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The job is in use.
    Foreground,
    /// It has not been in the background for long enough.
    Settling,
    /// The machine is short of memory: compaction is put off, a prefetch dropped.
    MachineUnderPressure,
    /// It has been compacted in this stay.
    Done,
    /// The surroundings forbid it.
    Vetoed(Veto),
}

/// One look. Pure: same arguments, same answer.
#[must_use]
pub fn step(params: &Params, state: &State, input: &Input) -> (State, Decision) {
    let cpu = match state.cpu {
        // Less than before means another clock or another job: either way, nothing is known of idleness.
        Some(seen) if seen.usage_us == input.cpu_usage_us && seen.since_ms <= input.now_ms => seen,
        _ => CpuTime { usage_us: input.cpu_usage_us, since_ms: input.now_ms },
    };
    if !in_background(params, input, cpu) {
        let compacted = state.stay.is_some_and(|stay| stay.compacted);
        return (State { cpu: Some(cpu), stay: None }, on_return(params, input, compacted));
    }
    let mut stay = state.stay.unwrap_or(Stay { since_ms: input.now_ms, compacted: false });
    stay.since_ms = stay.since_ms.min(input.now_ms);
    let decision = match put_off(params, input, stay) {
        Some(reason) => Decision::Nothing { reason },
        None => Decision::Compact,
    };
    stay.compacted |= decision == Decision::Compact;
    (State { cpu: Some(cpu), stay: Some(stay) }, decision)
}

/// Whether a job is in the background: by the operator's word, or else by what can be seen.
fn in_background(params: &Params, input: &Input, cpu: CpuTime) -> bool {
    match input.hint {
        Some(hint) => hint == Hint::Background,
        None => input.frozen || (params.idle_ms > 0 && input.now_ms.saturating_sub(cpu.since_ms) >= params.idle_ms),
    }
}

/// Why a job in the background is not compacted now, the most fundamental reason first.
fn put_off(params: &Params, input: &Input, stay: Stay) -> Option<Reason> {
    if stay.compacted {
        return Some(Reason::Done);
    }
    if input.now_ms.saturating_sub(stay.since_ms) < params.settle_ms {
        return Some(Reason::Settling);
    }
    if let Some(veto) = input.veto {
        return Some(Reason::Vetoed(veto));
    }
    short_of_memory(params, input).then_some(Reason::MachineUnderPressure)
}

/// What to do with a job in the foreground, which may have been compacted until now.
fn on_return(params: &Params, input: &Input, compacted: bool) -> Decision {
    if !compacted || !params.prefetch {
        return Decision::Nothing { reason: Reason::Foreground };
    }
    match input.veto {
        // These only forbid to offload more.
        None | Some(Veto::NoFarMemory | Veto::Incompressible | Veto::WritesSpent | Veto::Stalled | Veto::NumaBalancing) => {}
        Some(veto) => return Decision::Nothing { reason: Reason::Vetoed(veto) },
    }
    if short_of_memory(params, input) { Decision::Nothing { reason: Reason::MachineUnderPressure } } else { Decision::Prefetch }
}

/// Whether the machine is so short of memory that paging out would make it worse.
#[must_use]
pub fn short_of_memory(params: &Params, input: &Input) -> bool {
    input.machine_stall >= params.pressure_max || input.available < params.available_min
}

#[cfg(test)]
mod tests;

//! Compaction of jobs in the background (LPC talk: proactive reclaim by process state).
//!
//! # Problem
//! An application that is not in use keeps its memory. Reclaiming it once, when it goes to the background, freed memory for others:
//! 15 % fewer kills in the field. The same action while memory was already short caused more kills, not fewer (LPC talk, experiments 1
//! and 2), because reclaim itself needs memory.
//!
//! # Rules
//! - A job is in the background if a hint of the operator or orchestrator puts it there; without a hint, if it is frozen or has used no
//!   CPU time for `idle_ms`. A hint takes precedence, so that a job can be prefetched before it is thawed.
//! - A job that has been in the background for `settle_ms` is compacted, once per stay.
//! - While the machine is short of memory, compaction is postponed.
//! - When a compacted job returns to the foreground, it is prefetched once, if prefetching is enabled and the machine is not short of
//!   memory. A late prefetch is useless, so it is not postponed.
//!
//! # Properties
//! Each is a test of this name: compacted once per stay; never under pressure or a veto, but postponed; prefetched once, and only what
//! was compacted; the hint takes precedence; a clock or a counter that goes backwards is tolerated.

use serde::{Deserialize, Serialize};

use crate::veto::Veto;
use units::{Millis, RatioPpm};

/// Parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Params {
    /// How long a job has to be in the background before it is compacted, in milliseconds.
    pub settle_ms: Millis,
    /// After how long without CPU time a job counts as in the background, in milliseconds; zero disables this rule.
    pub idle_ms: Millis,
    /// Machine-wide PSI `some` share at or above which nothing is compacted.
    pub pressure_max: RatioPpm,
    /// Share of the machine's memory that must be available for anything to be compacted.
    pub available_min: RatioPpm,
    /// Whether a job that returns to the foreground is swapped in before its accesses.
    pub prefetch: bool,
}

/// Hint of an operator or orchestrator for a job. It applies until the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hint {
    /// Unlikely to be used soon.
    Background,
    /// In use, or about to be.
    Foreground,
}

/// Observation of one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// The time, in the caller's milliseconds.
    pub now_ms: Millis,
    /// The last hint; `None` without one.
    pub hint: Option<Hint>,
    /// Whether the job is frozen: `cgroup.events`, `frozen`.
    pub frozen: bool,
    /// Total CPU time of the job, in microseconds: `cpu.stat`, `usage_usec`.
    pub cpu_usage_us: u64,
    /// Machine-wide memory stall: `/proc/pressure/memory`, `some`, `avg10=`.
    pub machine_stall: RatioPpm,
    /// Share of the machine's memory that is available: `/proc/meminfo`, `MemAvailable` of `MemTotal`.
    pub available: RatioPpm,
    /// The veto in effect; `None` without one.
    pub veto: Option<Veto>,
}

/// State of a job. A restart may lose it; the job may then be compacted once more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The last CPU time; `None` before the first step.
    cpu: Option<CpuTime>,
    /// The current stay in the background; `None` in the foreground.
    stay: Option<Stay>,
}

/// CPU time, and the time since when it is unchanged, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct CpuTime {
    usage_us: u64,
    since_ms: Millis,
}

/// A stay in the background: its start in milliseconds, and whether the job has been compacted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Stay {
    since_ms: Millis,
    compacted: bool,
}

/// The action for a job, or why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "action")]
pub enum Decision {
    /// Page out its anonymous memory and deactivate its file pages.
    Compact,
    /// Swap in its memory from far memory.
    Prefetch,
    /// No action.
    Nothing {
        /// The reason.
        reason: Reason,
    },
}

/// Why there is no action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The job is in the foreground.
    Foreground,
    /// The job has not been in the background for `settle_ms`.
    Settling,
    /// The machine is short of memory: compaction is postponed, a prefetch is dropped.
    MachineUnderPressure,
    /// The job has been compacted in this stay.
    Done,
    /// A veto is in effect.
    Vetoed(Veto),
}

/// Decides for one job. Deterministic.
#[must_use]
pub fn step(params: &Params, state: &State, input: &Input) -> (State, Decision) {
    let cpu = match state.cpu {
        // A smaller value means another clock or a recreated cgroup: idleness is unknown.
        Some(last) if last.usage_us == input.cpu_usage_us && last.since_ms <= input.now_ms => last,
        _ => CpuTime { usage_us: input.cpu_usage_us, since_ms: input.now_ms },
    };
    if !in_background(params, input, cpu) {
        let compacted = state.stay.is_some_and(|stay| stay.compacted);
        return (State { cpu: Some(cpu), stay: None }, on_return(params, input, compacted));
    }
    let mut stay = state.stay.unwrap_or(Stay { since_ms: input.now_ms, compacted: false });
    stay.since_ms = stay.since_ms.min(input.now_ms);
    let decision = match postponed(params, input, stay) {
        Some(reason) => Decision::Nothing { reason },
        None => Decision::Compact,
    };
    stay.compacted |= decision == Decision::Compact;
    (State { cpu: Some(cpu), stay: Some(stay) }, decision)
}

/// Whether a job is in the background: by the hint, otherwise by its state.
fn in_background(params: &Params, input: &Input, cpu: CpuTime) -> bool {
    match input.hint {
        Some(hint) => hint == Hint::Background,
        None => input.frozen || (params.idle_ms > Millis::ZERO && input.now_ms.saturating_sub(cpu.since_ms) >= params.idle_ms),
    }
}

/// Returns why a job in the background is not compacted now, the most fundamental reason first.
fn postponed(params: &Params, input: &Input, stay: Stay) -> Option<Reason> {
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

/// Decides for a job in the foreground that may have been compacted in its last stay.
fn on_return(params: &Params, input: &Input, compacted: bool) -> Decision {
    if !compacted || !params.prefetch {
        return Decision::Nothing { reason: Reason::Foreground };
    }
    match input.veto {
        // These vetoes concern offloading only.
        None | Some(Veto::NoFarMemory | Veto::Incompressible | Veto::WritesSpent | Veto::Stalled | Veto::NumaBalancing) => {}
        Some(veto) => return Decision::Nothing { reason: Reason::Vetoed(veto) },
    }
    if short_of_memory(params, input) { Decision::Nothing { reason: Reason::MachineUnderPressure } } else { Decision::Prefetch }
}

/// Whether the machine is so short of memory that reclaim would make it worse.
#[must_use]
pub fn short_of_memory(params: &Params, input: &Input) -> bool {
    input.machine_stall >= params.pressure_max || input.available < params.available_min
}

#[cfg(test)]
mod tests;

//! How much a reclaim request leans to anonymous memory and how much to file pages.
//!
//! # Problem
//! One request may be met from either kind. A file page comes back by a read of its file, an anonymous one from the
//! compressed pool or from a swap device; which is dearer depends on the machine and the job. The kernel's own
//! balance counts returns (`lru_note_cost` in `mm/swap.c`, `get_scan_count` in `mm/vmscan.c`) and knows no device.
//!
//! # Derivation
//! As in the kernel, each kind is asked in inverse proportion to what its returns have cost lately. With the costs
//! `A` and `F`, the share asked of anonymous memory is `1/A : 1/F`, that is `F / (A + F)`. `memory.reclaim` takes that
//! as `swappiness=`, where 100 is even and 200 is anonymous memory only: swappiness = `200 * F / (A + F)`. What is
//! asked for more comes back more and so becomes dearer, hence the loop settles: where returns are in proportion to
//! requests, the requests end up as the square roots of the waits, between equal shares and equal costs.
//!
//! A cost is the number of pages that came back times the measured wait for one, in microseconds. A small constant is
//! added to both costs. It makes no evidence mean 100, and a few returns mean little. The costs decay, so that a kind
//! that has ceased to come back is asked again.
//!
//! The kernel weighs its own counts on top of the swappiness it is given; they shift its answer by a factor of two at
//! most, because it adds the sum of both costs to each.
//!
//! # Properties
//! Each is a test of that name: exchanging the kinds mirrors the lean; it is monotone in each cost; in a loop
//! the cheaper kind gives more; any input is answered; it recovers to even when refaults cease.

use serde::{Deserialize, Serialize};

use units::{Bytes, Pages};

/// The cost that both kinds are taken to have without evidence, in microseconds: the return of two pages from a slow
/// SSD (001 section 2.5), or of 250 from a compressed pool.
const COST_PRIOR_US: u64 = 10_000;

/// A step forgets one part in this many of the costs: half in 20 steps, for (28/29)^20 = 0.496. That is two minutes
/// at one step in six seconds, about the age at which memory begins to be cold (000 section 4.2).
const DECAY: u64 = 29;

/// The kernel's largest `swappiness=`: anonymous memory only.
const ANON_ONLY: u8 = 200;

/// What returns have cost lately. A restart may forget it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Decayed microseconds that returns of anonymous memory cost.
    anon_cost: u64,
    /// Decayed microseconds that returns of file pages cost.
    file_cost: u64,
}

/// What happened to one job since the step before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// Anonymous pages that came back.
    pub anon_refaults: Pages,
    /// File pages that came back.
    pub file_refaults: Pages,
    /// Mean wait for one anonymous page, in microseconds.
    pub anon_cost_us: u32,
    /// Mean wait for one file page, in microseconds.
    pub file_cost_us: u32,
    /// Resident anonymous memory.
    pub anon: Bytes,
    /// Resident file pages.
    pub file: Bytes,
    /// Whether anonymous memory has anywhere to go.
    pub swap: bool,
}

/// Which kind to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lean {
    /// File pages only: there is no swap, or no anonymous memory.
    FileOnly,
    /// Both, by the kernel's `swappiness=`: 1 is nearly only file pages, 100 even, 200 anonymous memory only.
    Swappiness(u8),
}

/// One period. Pure: same arguments, same answer.
#[must_use]
pub fn step(state: &State, input: &Input) -> (State, Lean) {
    let next = State {
        anon_cost: aged(state.anon_cost, input.anon_refaults, input.anon_cost_us),
        file_cost: aged(state.file_cost, input.file_refaults, input.file_cost_us),
    };
    let lean = match (input.swap, input.anon, input.file) {
        (false, _, _) => Lean::FileOnly,
        (true, Bytes::ZERO, Bytes::ZERO) => Lean::Swappiness(swappiness(&next)),
        (true, Bytes::ZERO, _) => Lean::FileOnly,
        (true, _, Bytes::ZERO) => Lean::Swappiness(ANON_ONLY),
        (true, _, _) => Lean::Swappiness(swappiness(&next)),
    };
    (next, lean)
}

/// A cost after one step: decayed, rounded down so that it ends at zero, and with the new returns.
fn aged(cost: u64, refaults: Pages, wait_us: u32) -> u64 {
    let kept = cost - cost.div_ceil(DECAY);
    kept.saturating_add(refaults.0.saturating_mul(u64::from(wait_us)))
}

/// `200 * F / (A + F)` with the prior in both, within 1 to 199: while both kinds are resident, both are asked.
fn swappiness(state: &State) -> u8 {
    let anon = u128::from(state.anon_cost) + u128::from(COST_PRIOR_US);
    let file = u128::from(state.file_cost) + u128::from(COST_PRIOR_US);
    // The share of the dearer kind is what is rounded, so that exchanging the kinds mirrors the answer exactly.
    let dearer = u128::from(ANON_ONLY) * anon.min(file) / (anon + file);
    let dearer = u8::try_from(dearer).unwrap_or(ANON_ONLY / 2).max(1);
    if anon > file { dearer } else { ANON_ONLY - dearer }
}

#[cfg(test)]
mod tests;

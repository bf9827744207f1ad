//! The anon/file bias: how much a reclaim request prefers anonymous memory to file pages.
//!
//! # Problem
//! A request may be met from either kind. A file page is refaulted by a read of its file, an anonymous page from zswap or a swap
//! device; which is more expensive depends on the machine and the job. The kernel's own balance counts refaults (`lru_note_cost` in
//! `mm/swap.c`, `get_scan_count` in `mm/vmscan.c`) and does not know the latency of devices.
//!
//! # Derivation
//! As in the kernel, each kind is reclaimed in inverse proportion to the recent cost of its refaults. With the costs `A` and `F`, the
//! shares of anonymous and file memory are `1/A : 1/F`, so the share of anonymous memory is `F / (A + F)`. `memory.reclaim` takes this
//! as `swappiness=`, where 100 is even and 200 is anonymous memory only: swappiness = `200 * F / (A + F)`. The kind that is reclaimed
//! more refaults more and becomes more expensive, so the loop converges: if refaults are proportional to requests, the ratio of the
//! requests converges to the square root of the inverse ratio of the latencies, between equal shares and equal costs.
//!
//! A cost is the number of refaults times the measured latency of one, in microseconds. A small constant is added to both costs: it
//! makes 100 the answer without evidence, and gives a few refaults little weight. The costs decay, so that a kind without refaults is
//! reclaimed again.
//!
//! The kernel applies its own counts on top of the swappiness that it is given; they change its answer by a factor of at most two,
//! because it adds the sum of both costs to each.
//!
//! # Properties
//! Each is a test of this name: exchanging the kinds mirrors the bias; it is monotone in each cost; in a loop the cheaper kind gives
//! more; any input is answered; it recovers to even when refaults cease.

use serde::{Deserialize, Serialize};

use units::{Bytes, Pages};

/// The prior cost of both kinds, in microseconds: the refault of two pages from a slow SSD (TMO section 2.5), or of 250 from zswap.
const COST_PRIOR_US: u64 = 10_000;

/// Each step removes one part in this many of the costs: half in 20 steps, because (28/29)^20 = 0.496. With one step in six seconds
/// the half-life is two minutes, about the age at which memory begins to be cold (SDFM section 4.2).
const DECAY: u64 = 29;

/// The kernel's largest `swappiness=`: anonymous memory only.
const ANON_ONLY: u8 = 200;

/// Recent costs of refaults. A restart may lose them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Decayed cost of refaults of anonymous memory, in microseconds.
    anon_cost: u64,
    /// Decayed cost of refaults of file pages, in microseconds.
    file_cost: u64,
}

/// Observation of one job since the previous step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// Refaults of anonymous pages.
    pub anon_refaults: Pages,
    /// Refaults of file pages.
    pub file_refaults: Pages,
    /// Mean latency of a refault of an anonymous page, in microseconds.
    pub anon_cost_us: u32,
    /// Mean latency of a refault of a file page, in microseconds.
    pub file_cost_us: u32,
    /// Resident anonymous memory.
    pub anon: Bytes,
    /// Resident file pages.
    pub file: Bytes,
    /// Whether there is free swap space.
    pub swap: bool,
}

/// The anon/file bias of a reclaim request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnonFileBias {
    /// File pages only: there is no swap, or no anonymous memory.
    FileOnly,
    /// Both, by the kernel's `swappiness=`: 1 is almost only file pages, 100 even, 200 anonymous memory only.
    Swappiness(u8),
}

/// Computes the bias of one period. Deterministic.
#[must_use]
pub fn step(state: &State, input: &Input) -> (State, AnonFileBias) {
    let next = State {
        anon_cost: aged(state.anon_cost, input.anon_refaults, input.anon_cost_us),
        file_cost: aged(state.file_cost, input.file_refaults, input.file_cost_us),
    };
    let bias = match (input.swap, input.anon, input.file) {
        (false, _, _) => AnonFileBias::FileOnly,
        (true, Bytes::ZERO, Bytes::ZERO) => AnonFileBias::Swappiness(swappiness(&next)),
        (true, Bytes::ZERO, _) => AnonFileBias::FileOnly,
        (true, _, Bytes::ZERO) => AnonFileBias::Swappiness(ANON_ONLY),
        (true, _, _) => AnonFileBias::Swappiness(swappiness(&next)),
    };
    (next, bias)
}

/// Returns a cost after one step: decayed, rounded down so that it reaches zero, plus the new refaults.
fn aged(cost: u64, refaults: Pages, latency_us: u32) -> u64 {
    let kept = cost - cost.div_ceil(DECAY);
    kept.saturating_add(refaults.0.saturating_mul(u64::from(latency_us)))
}

/// Returns `200 * F / (A + F)` with the prior in both, limited to 1 to 199: while both kinds are resident, both are reclaimed.
fn swappiness(state: &State) -> u8 {
    let anon = u128::from(state.anon_cost) + u128::from(COST_PRIOR_US);
    let file = u128::from(state.file_cost) + u128::from(COST_PRIOR_US);
    // The share of the more expensive kind is rounded, so that exchanging the kinds mirrors the result exactly.
    let smaller = u128::from(ANON_ONLY) * anon.min(file) / (anon + file);
    let smaller = u8::try_from(smaller).unwrap_or(ANON_ONLY / 2).max(1);
    if anon > file { smaller } else { ANON_ONLY - smaller }
}

#[cfg(test)]
mod tests;

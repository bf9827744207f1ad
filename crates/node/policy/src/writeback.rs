//! Which memory of a job in zswap is written on to the swap device: a second threshold of age.
//!
//! # Problem
//! Of what a job has in zswap most is never accessed again, and its compressed copies occupy DRAM. On the swap device they occupy
//! none, but what returns from there waits longer. The kernel writes zswap's entries back when its pool is full or its shrinker needs
//! memory; nothing does so by age.
//!
//! # Derivation
//! **The second threshold.** A page that has not been accessed for `t` returns in the next second with a probability of about
//! `1 / 2t`: the estimate of a rate from no event in the time `t`, with Jeffreys' prior. Offloading it at the first threshold `a` saves
//! the share `1 - r` of it, where `r` is its compressed size, at a loss of `z / 2a`, `z` being the wait for a page in zswap. Writing
//! it to the device saves the share `r` more, at a loss of `(d - z) / 2t` more, `d` being the wait for a page on the device. The same
//! saving per time lost, which is where the job's target has put the first threshold, is reached at
//!
//! ```text
//! t = a * (d - z) / z * (1 - r) / r
//! ```
//!
//! **Calibration.** The estimate `1 / 2t` is checked: of the pages that were far for longer than the threshold, on the device or not,
//! as many returned as were expected, or a multiple of them. A multiple above one multiplies the threshold, by [`CORRECTION_MAX`] at
//! most. One below it, by `1 / CORRECTION_MAX` at least, reduces what the memory on the device is expected to cost.
//!
//! **The stall target.** What is on the device may cost the job half of its stall target: the other half remains for what returns
//! from zswap. The target in parts per million is microseconds per second, so `target / 2 / (d - z)` pages per second may return.
//!
//! **Other memory.** The kernel may write other entries of the job to the device in place of the chosen ones (`shrink_memcg()` in
//! `mm/zswap.c`). The agent then stops; the policy waits for a period, and for twice as many after each further time.
//!
//! # Properties
//! Each is a test of this name: the second threshold is never below the first nor the minimum; it grows with the device's latency
//! and falls with the compressed size; returns beyond the estimate raise it; no more than the write budget, the bound of a period
//! and the stall target permit; a veto or a stall target of zero writes nothing; other memory written delays the next period; any
//! input is answered.

use serde::{Deserialize, Serialize};

use units::{Millis, Pages, RatioPpm};

use crate::veto::Veto;

/// The most by which observed returns correct the estimate, in either direction.
pub const CORRECTION_MAX: u64 = 16;

/// Expected returns, in thousandths of a page, at which both counts are halved: older returns count less.
const EXPECTED_MAX: u64 = 4_096_000;

/// One page of each count: what the correction starts from, so that few returns change it little.
const PRIOR: u64 = 16_000;

/// The most that the wait after other memory was written is doubled: to 64 periods.
const SPILLS_MAX: u32 = 6;

/// Parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Params {
    /// The second threshold is not below this.
    pub after_min_ms: Millis,
    /// The most that is written in a period.
    pub pages_max: Pages,
}

/// What the policy keeps between two periods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Returns that the estimate expected, in thousandths of a page.
    expected: u64,
    /// Pages that returned, in thousandths.
    returned: u64,
    /// Times that other memory was written, without a period in between in which only the chosen one was.
    spills: u32,
    /// Periods to wait.
    wait: u32,
}

/// Why nothing of a job can be written on, whatever its age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Obstacle {
    /// zswap is off, or the kernel has no `memory.zswap.max`.
    NoZswap,
    /// The kernel does not count what it writes back from zswap (`zswpwb`): other memory in place of the chosen one would not be seen.
    NoCounters,
    /// There is no swap device to write to, or one of the swap areas is in memory.
    NoDevice,
    /// The operator, or the job's tier, forbids writes to the device (`memory.zswap.writeback`).
    NoWriteback,
    /// The operator has set `memory.zswap.max` of the job.
    OperatorsLimit,
    /// The machine is short of memory, or the job is near a memory limit.
    ShortOfMemory,
}

/// What one decision is based on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// Time since the previous decision.
    pub elapsed_ms: Millis,
    /// The first threshold; `None` if no decision by age had one.
    pub threshold_ms: Option<Millis>,
    /// The wait for a page in zswap and on the device, in microseconds.
    pub latencies_us: [u32; 2],
    /// Compressed size of what the job has in zswap, as a share.
    pub compressed: RatioPpm,
    /// The job's stall target.
    pub stall_target: RatioPpm,
    /// Pages that the write budgets permit.
    pub writable: Pages,
    /// The longest time for which a block that is not written yet has been far; `None` without one.
    pub oldest_ms: Option<Millis>,
    /// Expected returns of the blocks that are written, in pages per million seconds: the sum of `1 / 2t`.
    pub written_rate: u64,
    /// Returns that were expected since the previous decision, of all blocks far for longer than the second threshold, in thousandths
    /// of a page.
    pub expected: u64,
    /// The pages of these blocks that returned.
    pub returned: Pages,
    /// Pages that were moved since the previous decision.
    pub written: Pages,
    /// Whether the kernel wrote other memory of the job since the previous decision.
    pub spilled: bool,
    /// Why nothing can be written.
    pub obstacle: Option<Obstacle>,
    /// What forbids to act.
    pub veto: Option<Veto>,
}

/// The decision of one period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
pub enum Decision {
    /// Blocks that have been far for long go to the device, the oldest first.
    Write {
        /// The most pages.
        pages: Pages,
    },
    /// Nothing is written.
    Hold {
        /// Why.
        reason: Hold,
    },
}

/// Why nothing is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// No decision by age had a threshold yet, or nothing is in zswap.
    NoThreshold,
    /// No block has been far for long enough.
    NothingOld,
    /// What is on the device may cost as much as the stall target permits.
    StallTarget,
    /// The write budget is spent.
    WritesSpent,
    /// The kernel wrote other memory of the job in place of the chosen one.
    OthersWritten,
    /// Nothing can be written.
    Obstacle(Obstacle),
    /// Something outside forbids it.
    Vetoed(Veto),
}

/// A decision, and the threshold that it used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The second threshold; `None` without a first one.
    pub after_ms: Option<Millis>,
    /// The decision.
    pub decision: Decision,
}

/// Expected returns of pages that have been far for `far`, in pages per million seconds: `1 / 2t` each.
#[must_use]
pub fn expected_rate(pages: Pages, far: Millis) -> u64 {
    pages.0.saturating_mul(1_000_000_000) / far.0.max(1).saturating_mul(2)
}

/// Decides one period.
#[must_use]
pub fn step(params: &Params, state: &State, input: &Input) -> (State, Step) {
    let mut state = learn(*state, input);
    let after_ms = second_threshold(params, &state, input);
    let decision = match decide(params, &mut state, input, after_ms) {
        Ok(pages) => Decision::Write { pages },
        Err(reason) => Decision::Hold { reason },
    };
    (state, Step { after_ms, decision })
}

/// Counts what returned, and whether other memory was written.
fn learn(mut state: State, input: &Input) -> State {
    state.expected = state.expected.saturating_add(input.expected);
    state.returned = state.returned.saturating_add(input.returned.0.saturating_mul(1_000));
    while state.expected > EXPECTED_MAX {
        (state.expected, state.returned) = (state.expected / 2, state.returned / 2);
    }
    if input.spilled {
        state.wait = 1 << state.spills;
        state.spills = (state.spills + 1).min(SPILLS_MAX);
    } else if input.written > Pages::ZERO {
        state.spills = 0;
    }
    state
}

/// The returns that were observed as a multiple of those that were expected, in parts per million.
fn correction(state: &State) -> u64 {
    let (returned, expected) = (state.returned.saturating_add(PRIOR), state.expected.saturating_add(PRIOR));
    let ppm = u64::try_from(u128::from(returned) * 1_000_000 / u128::from(expected)).unwrap_or(u64::MAX);
    ppm.clamp(1_000_000 / CORRECTION_MAX, 1_000_000 * CORRECTION_MAX)
}

/// The second threshold.
fn second_threshold(params: &Params, state: &State, input: &Input) -> Option<Millis> {
    let first = input.threshold_ms?;
    let compressed = u128::from(input.compressed.0.min(1_000_000));
    if compressed == 0 {
        return None;
    }
    let [zswap_us, device_us] = input.latencies_us.map(u128::from);
    let slower = device_us.saturating_sub(zswap_us);
    // Below 2^64 * 2^32 / 1 * 2^20: no overflow of 128 bits.
    let equal = u128::from(first.0) * slower / zswap_us.max(1) * (1_000_000 - compressed) / compressed;
    let corrected = equal.saturating_mul(u128::from(correction(state).max(1_000_000))) / 1_000_000;
    let after = Millis(u64::try_from(corrected).unwrap_or(u64::MAX));
    Some(after.max(first).max(params.after_min_ms))
}

/// The pages to write, or why none.
fn decide(params: &Params, state: &mut State, input: &Input, after_ms: Option<Millis>) -> Result<Pages, Hold> {
    if let Some(veto) = input.veto {
        return Err(Hold::Vetoed(veto));
    }
    if let Some(obstacle) = input.obstacle {
        return Err(Hold::Obstacle(obstacle));
    }
    if state.wait > 0 {
        state.wait -= 1;
        return Err(Hold::OthersWritten);
    }
    let after = after_ms.ok_or(Hold::NoThreshold)?;
    if input.oldest_ms.is_none_or(|oldest| oldest < after) {
        return Err(Hold::NothingOld);
    }
    let permitted = permitted(state, input, after);
    if permitted == Pages::ZERO {
        return Err(Hold::StallTarget);
    }
    let pages = permitted.min(params.pages_max).min(input.writable);
    if pages == Pages::ZERO {
        return Err(Hold::WritesSpent);
    }
    Ok(pages)
}

/// Pages that have been far for `after` and may be on the device besides what is there, within half of the stall target.
fn permitted(state: &State, input: &Input, after: Millis) -> Pages {
    let [zswap_us, device_us] = input.latencies_us;
    let slower = u128::from(device_us.saturating_sub(zswap_us).max(1));
    // Microseconds per second by microseconds per page: pages per second, here per million seconds.
    let target = u128::from(input.stall_target.0) * 1_000_000 / 2 / slower;
    let correction = u128::from(correction(state).min(1_000_000));
    let spent = u128::from(input.written_rate) * correction / 1_000_000;
    let left = target.saturating_sub(spent);
    // One page is expected to return `correction / 2t` times.
    let pages = left * 2 * u128::from(after.0) / 1_000 / 1_000_000 * 1_000_000 / correction.max(1);
    Pages(u64::try_from(pages).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;

//! Chooses the tier of a job's anonymous memory, with the reason.
//!
//! # Problem
//! zswap and zram are fast and wear out no device, but save only what compression saves: memory with a compression ratio of 1.3 to
//! 1.4, such as quantised model weights, saves little (TMO section 4.1). A swap device saves nearly everything (TMO section 2.1), but
//! is slower by orders of magnitude (TMO section 2.5) and endures a limited number of writes.
//!
//! # Rows
//! A machine offers rows: zswap, and one for each swap area. A row has a latency, free space, endurance and accounting, and may write
//! back to another row. A tier is a row, with or without the row that it writes back to. Rows are compared by these properties only;
//! none is treated by its name or medium.
//!
//! The kernel fills swap areas in the order of their priority, for all cgroups alike. So of the areas only those that the kernel fills
//! next are a choice ([`row::reachable`]), and the choice is whether a job's memory goes there.
//!
//! # Choice
//! An offloaded byte saves `1 - compressed` in a row that compresses, where *compressed* is measured on the job's own cold pages, and
//! `1 - swap_cost` on a device.
//! - A job that compresses uses the first row that the kernel can reach. If that row can write back to another one, and that saves
//!   more, it uses both (TMO section 5.1: warmer pages compressed, colder pages on the SSD).
//! - A job that does not compress uses a row whose cost does not depend on compression, or is not offloaded.
//! - If its stall target is kept in the mean ([`crate::cold_age::mean`]), it uses the row in which the target permits to save most: a
//!   promotion from a device takes longer, so that fewer pages may be far there, and each of them saves more. What is never accessed
//!   again saves most on the device.
//! - A row that is slower than the class accepts is not used, nor one whose write budget is spent.
//! - An unknown measurement holds nothing back: the latency of a row is only learned by using it.
//!
//! # Properties
//! Each is a test of this name: a row that is not offered, too slow or spent is never used; the choice has a reason that fits; a ratio
//! near the limit does not oscillate; the order of the areas of one priority does not matter.

use serde::{Deserialize, Serialize};

use units::{Bytes, Pages, RatioPpm};

pub mod row;
mod tier;

use row::{Accounting, Row, reachable};
pub use tier::{FORMER_ROWS, Tier};

/// Hysteresis: a ratio must pass `compressed_max` by five percentage points to change the tier of a job.
const BORDER: u32 = 50_000;

/// Hysteresis: ten elevenths.
const MORE: (u128, u128) = (10, 11);

/// Nothing is written to a device for less than this: the kernel reclaims in batches.
const WRITE_MIN: Bytes = Bytes::mib(1);

/// Parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Params {
    /// A job whose compressed size exceeds this share of the original does not compress.
    pub compressed_max: RatioPpm,
    /// The highest latency that the job's class accepts, in microseconds per page.
    pub latency_max_us: u32,
    /// Cost of a byte on the device relative to DRAM (TMO figure 1: about 3 %).
    pub swap_cost: RatioPpm,
}

/// Observation of one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input<'a> {
    /// Compressed bytes of the job's own cold pages, as a share of the original; `None` before the first sample.
    pub compressed: Option<RatioPpm>,
    /// What the machine offers.
    pub rows: &'a [Row],
    /// The current tier of the job; `None` without one.
    pub previous: Option<Tier>,
    /// What the job's stall target permits in each; `None` without a stall target, or before it is known.
    pub permitted: Option<Permitted>,
}

/// The most pages that may be far: a slower row permits fewer of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Permitted {
    /// In a row that compresses.
    pub compressed: Pages,
    /// On a device.
    pub device: Pages,
}

/// The reason for a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// The job's cold pages compress well enough.
    Compresses,
    /// The job's cold pages do not compress.
    DoesNotCompress,
    /// The job's cold pages compress, and the coldest are cheaper on the device.
    WarmerCompressedColderWritten,
    /// The job's cold pages compress, and what the stall target permits saves more on the device.
    SavesMore,
    /// There is no other row.
    OnlyTier,
    /// The other row, or for a hold the only suitable row, is slower than the class accepts.
    TooSlow,
    /// The write budget of the device is spent.
    WritesSpent,
    /// The compressibility of the job or the latency of the tier has not been measured.
    NotSampled,
    /// There is no far memory.
    NoTier,
    /// The operator chose both tiers, and there is no device.
    NoDevice,
    /// The operator chose both tiers, and the device gets only what does not fit into zswap, because its shrinker is disabled.
    NoShrinker,
}

/// A tier, or none, with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "action")]
pub enum Choice {
    /// Offload to this tier.
    Use {
        /// The tier.
        tier: Tier,
        /// The reason.
        why: Why,
    },
    /// Offload no anonymous memory.
    Hold {
        /// The reason.
        why: Why,
    },
}

/// Chooses a tier. Deterministic.
#[must_use]
pub fn choose(params: &Params, input: &Input<'_>) -> Choice {
    let rows = reachable(input.rows);
    match input.compressed {
        Some(compressed) if compressed.0 > border(params, input.previous) => incompressible(params, compressed, &rows),
        compressed => match device_that_saves_more(params, input, &rows) {
            Some(device) => Choice::Use { tier: Tier::of(device), why: measured(device, Why::SavesMore) },
            None => compressible(params, compressed, &rows),
        },
    }
}

/// Whether the write budget of a row permits writes.
#[must_use]
pub fn may_write(row: &Row) -> bool {
    row.endurance.is_none_or(|left| left >= WRITE_MIN)
}

/// Returns the largest ratio that counts as compressible: a job keeps its tier within [`BORDER`].
fn border(params: &Params, previous: Option<Tier>) -> u32 {
    let max = params.compressed_max.0;
    match previous.map(|tier| tier.accounting) {
        Some(Accounting::Compressed) => max.saturating_add(BORDER),
        Some(Accounting::SwapCost) => max.saturating_sub(BORDER),
        None => max,
    }
}

/// Checks whether a row can be used.
fn check(params: &Params, row: &Row) -> Result<(), Why> {
    match row.latency_us {
        // A device that costs as much as DRAM saves nothing.
        _ if row.accounting == Accounting::SwapCost && params.swap_cost >= RatioPpm::ONE => Err(Why::NoTier),
        Some(latency_us) if latency_us > params.latency_max_us => Err(Why::TooSlow),
        _ if !may_write(row) => Err(Why::WritesSpent),
        _ => Ok(()),
    }
}

/// Cost of a byte in a row relative to DRAM, for a job with this compressed share.
fn cost(params: &Params, compressed: RatioPpm, row: &Row) -> RatioPpm {
    match row.accounting {
        Accounting::Compressed => compressed,
        Accounting::SwapCost => params.swap_cost,
    }
}

/// The reason to use a row, as far as its latency is known: that of a device is only learned by using it.
fn measured(row: &Row, why: Why) -> Why {
    if row.accounting == Accounting::SwapCost && row.latency_us.is_none() { Why::NotSampled } else { why }
}

/// Chooses for a job that compresses, or whose compressibility is unknown: the first usable row.
fn compressible(params: &Params, compressed: Option<RatioPpm>, rows: &[Row]) -> Choice {
    let mut refused = None;
    for row in rows {
        match check(params, row) {
            Ok(()) => return first_usable(params, compressed, rows, row, refused),
            Err(Why::NoTier) => {}
            Err(why) => refused = refused.or(Some(why)),
        }
    }
    Choice::Hold { why: refused.unwrap_or(Why::NoTier) }
}

/// The device, if what the stall target permits there saves more than what it permits compressed: [`MORE`] times as much, or for a
/// job that is there already, not as much less.
fn device_that_saves_more<'a>(params: &Params, input: &Input<'_>, rows: &'a [Row]) -> Option<&'a Row> {
    let (permitted, compressed) = (input.permitted?, input.compressed?);
    rows.iter().find(|row| row.is_in_front_of_swap())?;
    let device = rows.iter().find(|row| row.accounting == Accounting::SwapCost)?;
    check(params, device).ok()?;
    let saves = |pages: Pages, cost: RatioPpm| u128::from(pages.0) * u128::from(RatioPpm::ONE.0.saturating_sub(cost.0));
    let (on_device, in_dram) = (saves(permitted.device, params.swap_cost), saves(permitted.compressed, compressed));
    let is_there = input.previous.is_some_and(|tier| tier.accounting == Accounting::SwapCost);
    let (more, than) = if is_there { (on_device * MORE.1, in_dram * MORE.0) } else { (on_device * MORE.0, in_dram * MORE.1) };
    (more > than).then_some(device)
}

/// Uses a row, and the row that it writes back to if that saves more. `refused` is why rows before it cannot be used.
fn first_usable(params: &Params, compressed: Option<RatioPpm>, rows: &[Row], row: &Row, refused: Option<Why>) -> Choice {
    let cheaper = |second: &&Row| compressed.is_some_and(|ratio| cost(params, ratio, second) < cost(params, ratio, row));
    let second = rows.iter().find(|second| row.writes_back == Some(second.id));
    if let Some(second) = second.filter(cheaper).filter(|second| check(params, second).is_ok()) {
        return Choice::Use { tier: Tier::written_back(row, second), why: measured(second, Why::WarmerCompressedColderWritten) };
    }
    let why = match (row.accounting, compressed) {
        (Accounting::SwapCost, _) => measured(row, refused.unwrap_or(Why::OnlyTier)),
        (Accounting::Compressed, Some(_)) => refused.unwrap_or(Why::Compresses),
        (Accounting::Compressed, None) => refused.unwrap_or(Why::NotSampled),
    };
    Choice::Use { tier: Tier::of(row), why }
}

/// Chooses for a job that does not compress: a row whose cost does not depend on that, unless compression saves more.
fn incompressible(params: &Params, compressed: RatioPpm, rows: &[Row]) -> Choice {
    let mut refused = None;
    for row in rows {
        let why = match check(params, row) {
            _ if row.accounting == Accounting::Compressed => Why::DoesNotCompress,
            Ok(()) if params.swap_cost < compressed => {
                return Choice::Use { tier: Tier::of(row), why: measured(row, Why::DoesNotCompress) };
            }
            Ok(()) => Why::DoesNotCompress,
            Err(Why::NoTier) => continue,
            Err(why) => why,
        };
        // What a device lacks is the better reason: it is the row that would suit the job.
        refused = Some(why);
    }
    Choice::Hold { why: refused.unwrap_or(Why::NoTier) }
}

#[cfg(test)]
mod tests;

//! Chooses the tier of a job's anonymous memory, with the reason.
//!
//! # Problem
//! zswap is fast and wears out no device, but saves only what compression saves: memory with a compression ratio of 1.3 to 1.4, such
//! as quantised model weights, saves little (TMO section 4.1). A swap device saves nearly everything (TMO section 2.1), but is slower
//! by orders of magnitude (TMO section 2.5) and endures a limited number of writes.
//!
//! # Choice
//! An offloaded byte saves `1 - compressed` in zswap, where *compressed* is measured on the job's own cold pages, and `1 - swap_cost`
//! on a device.
//! - A job that compresses uses zswap. If its cold pages can be written back to a device, and that saves more, it uses both (TMO
//!   section 5.1: warmer pages compressed, colder pages on the SSD).
//! - A job that does not compress uses the device, or is not offloaded.
//! - A tier that is slower than the class accepts is not used, nor a device whose write budget is spent.
//! - An unknown measurement holds nothing back: the latency of a tier is only learned by using it. With unknown compressibility zswap
//!   is used first, because it wears out no device.
//!
//! # Properties
//! Each is a test of this name: a tier that is not offered, too slow or without budget is never used; the choice has a reason that
//! fits; a ratio near the limit does not oscillate.

use serde::{Deserialize, Serialize};

use units::RatioPpm;

/// Hysteresis: a ratio must pass `compressed_max` by five percentage points to change the tier of a job.
const BORDER: u32 = 50_000;

/// The tier of anonymous memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// zswap only; nothing is written to a device.
    Zswap,
    /// A swap device only.
    Swap,
    /// zswap, which writes back to a device what stays cold.
    Both,
}

/// The tiers that the machine offers to a job now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Whether zswap is enabled.
    pub zswap: bool,
    /// Whether there is a swap device other than a compressed RAM disk (zram).
    pub swap: bool,
    /// Whether the kernel can write back from zswap to it, per cgroup.
    pub writeback: bool,
    /// Measured latency of a page from the device, in microseconds; `None` before the first swap-in.
    pub swap_latency_us: Option<u32>,
    /// Measured latency of a page from zswap, in microseconds; `None` before the first load.
    pub zswap_latency_us: Option<u32>,
    /// Whether the write budgets of the machine and of the job permit writes.
    pub writes_left: bool,
}

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// Compressed bytes of the job's own cold pages, as a share of the original; `None` before the first sample.
    pub compressed: Option<RatioPpm>,
    /// What the machine offers.
    pub offer: Offer,
    /// The current tier of the job; `None` without one.
    pub previous: Option<Tier>,
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
    /// There is no other tier.
    OnlyTier,
    /// The other tier, or for a hold the only suitable tier, is slower than the class accepts.
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
pub fn choose(params: &Params, input: &Input) -> Choice {
    let (zswap, device) = (zswap(params, &input.offer), device(params, &input.offer));
    match input.compressed {
        Some(compressed) if compressed.0 > border(params, input.previous) => incompressible(params, compressed, zswap, device),
        compressed => compressible(params, compressed, input.offer.writeback, zswap, device),
    }
}

/// Returns the largest ratio that counts as compressible: a job keeps its tier within [`BORDER`].
fn border(params: &Params, previous: Option<Tier>) -> u32 {
    let max = params.compressed_max.0;
    match previous {
        Some(Tier::Zswap | Tier::Both) => max.saturating_add(BORDER),
        Some(Tier::Swap) => max.saturating_sub(BORDER),
        None => max,
    }
}

/// Checks whether zswap can be used.
fn zswap(params: &Params, offer: &Offer) -> Result<(), Why> {
    match offer.zswap_latency_us {
        _ if !offer.zswap => Err(Why::NoTier),
        Some(latency_us) if latency_us > params.latency_max_us => Err(Why::TooSlow),
        _ => Ok(()),
    }
}

/// A usable device.
struct Device {
    /// Whether its latency has been measured.
    measured: bool,
}

/// Returns the device, or why it cannot be used.
fn device(params: &Params, offer: &Offer) -> Result<Device, Why> {
    match offer.swap_latency_us {
        // A device that costs as much as DRAM saves nothing.
        _ if !offer.swap || params.swap_cost >= RatioPpm::ONE => Err(Why::NoTier),
        Some(latency_us) if latency_us > params.latency_max_us => Err(Why::TooSlow),
        _ if !offer.writes_left => Err(Why::WritesSpent),
        latency_us => Ok(Device { measured: latency_us.is_some() }),
    }
}

impl Device {
    fn choice(&self, tier: Tier, why: Why) -> Choice {
        Choice::Use { tier, why: if self.measured { why } else { Why::NotSampled } }
    }
}

/// Chooses for a job that compresses, or whose compressibility is unknown.
fn compressible(
    params: &Params,
    compressed: Option<RatioPpm>,
    writeback: bool,
    zswap: Result<(), Why>,
    device: Result<Device, Why>,
) -> Choice {
    match (zswap, device, compressed) {
        (Ok(()), Ok(device), Some(ratio)) if writeback && params.swap_cost < ratio => {
            device.choice(Tier::Both, Why::WarmerCompressedColderWritten)
        }
        (Ok(()), _, Some(_)) => Choice::Use { tier: Tier::Zswap, why: Why::Compresses },
        (Ok(()), _, None) => Choice::Use { tier: Tier::Zswap, why: Why::NotSampled },
        (Err(Why::NoTier), Ok(device), _) => device.choice(Tier::Swap, Why::OnlyTier),
        (Err(why), Ok(device), _) => device.choice(Tier::Swap, why),
        (Err(Why::NoTier), Err(why), _) | (Err(why), Err(_), _) => Choice::Hold { why },
    }
}

/// Chooses for a job that does not compress: the device, unless zswap saves more.
fn incompressible(params: &Params, compressed: RatioPpm, zswap: Result<(), Why>, device: Result<Device, Why>) -> Choice {
    match device {
        Ok(device) if params.swap_cost < compressed => device.choice(Tier::Swap, Why::DoesNotCompress),
        Err(Why::NoTier) if zswap == Err(Why::NoTier) => Choice::Hold { why: Why::NoTier },
        Ok(_) | Err(Why::NoTier) => Choice::Hold { why: Why::DoesNotCompress },
        Err(why) => Choice::Hold { why },
    }
}

#[cfg(test)]
mod tests;

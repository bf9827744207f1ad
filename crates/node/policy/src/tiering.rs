//! Which tier the anonymous memory of a job goes to, and why.
//!
//! # Problem
//! A compressed pool is fast and wears nothing out, but gives back only what compression saves: memory that shrinks
//! by 1.3 to 1.4 times, such as quantised model weights, is hardly worth it (001 section 4.1). A swap device gives back
//! nearly all (section 2.1), but is slower by orders of magnitude (section 2.5) and bears a limited number of writes.
//!
//! # Choice
//! A byte that goes out saves 1 - compressed in zswap, where *compressed* is measured on the job's own cold pages, and
//! 1 - `swap_cost` on a device.
//! - A job that compresses goes to zswap. Where its cold pages can be written on to a device, and that saves more
//!   still, to both (001 section 5.1: warmer pages compressed, colder ones on the SSD).
//! - A job that does not compress goes to the device, or is left alone.
//! - A tier that is slower than the class accepts is not used, nor a device whose writes are spent.
//! - What is not measured yet holds nothing back: a latency is only learnt by use, and zswap undoes itself. With
//!   unknown compressibility zswap comes first, because it wears nothing out.
//!
//! # Properties
//! Each is a test of that name: a tier that is not offered, too slow or spent is never used; the choice has a reason
//! that fits; a ratio at the border does not flap.

use serde::{Deserialize, Serialize};

use units::RatioPpm;

/// How far a ratio must pass `compressed_max` to change what a job has: five points of a hundred.
const BORDER: u32 = 50_000;

/// Where anonymous memory goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// The compressed pool only; nothing of it is written to a device.
    Zswap,
    /// A swap device only.
    Swap,
    /// The compressed pool, and from there to a device what stays cold.
    Both,
}

/// What the machine has to offer to a job now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// zswap is enabled.
    pub zswap: bool,
    /// There is a swap device that is no compressed RAM disk.
    pub swap: bool,
    /// The kernel can write back from zswap to it, by cgroup.
    pub writeback: bool,
    /// Measured wait for a page from the device, in microseconds; `None` where none has come back yet.
    pub swap_latency_us: Option<u32>,
    /// Measured wait for a page from zswap, in microseconds; `None` where none has come back yet.
    pub zswap_latency_us: Option<u32>,
    /// The endurance budgets of the machine and of the job have something left.
    pub writes_left: bool,
}

/// What an operator or a tuner may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Params {
    /// Compressed bytes above this share of the original mean that the job does not compress.
    pub compressed_max: RatioPpm,
    /// The slowest tier that the job's class accepts, in microseconds per page.
    pub latency_max_us: u32,
    /// Cost of a byte on the device relative to DRAM (001 figure 1: about 3 %).
    pub swap_cost: RatioPpm,
}

/// What is known of one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// Compressed bytes of the job's own cold pages, as a share of the original; `None` where not sampled yet.
    pub compressed: Option<RatioPpm>,
    /// What the machine offers.
    pub offer: Offer,
    /// The tier that the job has now; `None` where it has none.
    pub previous: Option<Tier>,
}

/// The reason for a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// The job's cold pages compress well enough.
    Compresses,
    /// They do not.
    DoesNotCompress,
    /// They compress, and the coldest are cheaper still on the device.
    WarmerCompressedColderWritten,
    /// There is no other tier.
    OnlyTier,
    /// The other tier, or for a hold the one that would do, is slower than the class accepts.
    TooSlow,
    /// What may be written to the device is spent.
    WritesSpent,
    /// The compressibility of the job or the latency of the tier is not measured yet; use will tell.
    NotSampled,
    /// There is no far memory.
    NoTier,
    /// Of two tiers that an operator chose there is one, for want of a device.
    NoDevice,
    /// Of two tiers that an operator chose the second gets only what does not fit: zswap's shrinker is off.
    NoShrinker,
}

/// A tier, or none, with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "action")]
pub enum Choice {
    /// Offload to this tier.
    Use {
        /// Where to.
        tier: Tier,
        /// Why there.
        why: Why,
    },
    /// Offload no anonymous memory.
    Hold {
        /// Why not.
        why: Why,
    },
}

/// Chooses a tier. Pure: same arguments, same answer.
#[must_use]
pub fn choose(params: &Params, input: &Input) -> Choice {
    let (zswap, device) = (zswap(params, &input.offer), device(params, &input.offer));
    match input.compressed {
        Some(compressed) if compressed.0 > border(params, input.previous) => incompressible(params, compressed, zswap, device),
        compressed => compressible(params, compressed, input.offer.writeback, zswap, device),
    }
}

/// The largest ratio that still compresses. What a job has, it keeps within [`BORDER`].
fn border(params: &Params, previous: Option<Tier>) -> u32 {
    let max = params.compressed_max.0;
    match previous {
        Some(Tier::Zswap | Tier::Both) => max.saturating_add(BORDER),
        Some(Tier::Swap) => max.saturating_sub(BORDER),
        None => max,
    }
}

/// Whether zswap can be used, or why not.
fn zswap(params: &Params, offer: &Offer) -> Result<(), Why> {
    match offer.zswap_latency_us {
        _ if !offer.zswap => Err(Why::NoTier),
        Some(latency_us) if latency_us > params.latency_max_us => Err(Why::TooSlow),
        _ => Ok(()),
    }
}

/// A device that can be used: whether its latency is known.
struct Device {
    measured: bool,
}

/// The device, or why it cannot be used.
fn device(params: &Params, offer: &Offer) -> Result<Device, Why> {
    match offer.swap_latency_us {
        // A device as dear as DRAM saves nothing.
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

/// For a job that compresses, or may.
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

/// For a job that does not compress: the device, unless even zswap would save more than that.
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

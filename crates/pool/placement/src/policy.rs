//! Policies that choose among the servers that can hold a VM.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use units::Slices;

use crate::resources::{PoolSpace, Request, Shape};

/// A server that can hold a VM.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// The VM's request.
    pub request: &'a Request,
    /// The hardware of the fleet's servers.
    pub shape: &'a Shape,
    /// Number of the server.
    pub server: u32,
    /// Free cores and free local memory in MiB, without the VM.
    pub free: (u32, u64),
    /// Free space of the server's pool, without the VM.
    pub space: PoolSpace,
    /// Whether the VM would span more than one NUMA node.
    pub spans: bool,
}

impl Candidate<'_> {
    /// Returns the share of each dimension that stays free with the VM, in parts per million: cores, local memory, and pool
    /// memory (0 for a VM that requests none).
    #[must_use]
    pub fn remaining(&self) -> [u64; 3] {
        let pool = if self.request.pool_slices == Slices::ZERO {
            0
        } else {
            ppm(u64::from(self.space.grantable.saturating_sub(self.request.pool_slices).0), u64::from(self.space.capacity.0))
        };
        let cores = u64::from(self.free.0.saturating_sub(self.request.cores));
        let mib = self.free.1.saturating_sub(u64::from(self.request.local_mib));
        [ppm(cores, self.shape.cores()), ppm(mib, self.shape.mib()), pool]
    }
}

/// Returns `part` of `whole` in parts per million, 0 if `whole` is 0.
fn ppm(part: u64, whole: u64) -> u64 {
    part.saturating_mul(1_000_000).checked_div(whole).unwrap_or(0)
}

/// A preference among servers. Pure: the same candidate always has the same cost.
pub trait Policy {
    /// Returns the cost of a server. The server with the lowest cost is chosen, the first in case of a tie. Servers on which
    /// a VM spans NUMA nodes come after all others, whatever their cost.
    fn cost(&self, candidate: &Candidate<'_>) -> u64;

    /// Returns whether all servers on which a VM does not span cost the same, so that the search can stop at the first.
    fn takes_first_fit(&self) -> bool {
        false
    }

    /// Returns what a server with `cores` free cores and free memory between these bounds, in MiB, costs at least, whatever its pool.
    /// With it, servers that are too expensive are skipped. `None`: no bound is known, and all are checked in order.
    fn cost_min(&self, _request: &Request, _shape: &Shape, _cores: u32, _mib: (u64, u64)) -> Option<u64> {
        None
    }
}

/// The placement policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// The first server that fits.
    FirstFit,
    /// The server with the least free resources after placement, over all dimensions.
    BestFit,
    /// The server with the most free resources after placement, over all dimensions. Spreads VMs.
    WorstFit,
    /// The server with the largest dot product of free and requested resources, as in multi-resource packing.
    Alignment,
    /// The server whose free shares of cores and local memory differ least after placement. Strands little of either.
    Balance,
    /// As [`Self::Balance`], with pool memory as a third dimension: of a VM that requests slices, the free shares of local memory and of
    /// the pool both stay close to the free share of cores. The pool's share is what one VM could still get
    /// ([`PoolSpace::grantable`]), so that pools and controllers with much free memory come first, and the failure of one affects few
    /// VMs.
    PoolBalance,
    /// A random server.
    Random {
        /// Seed of the random choice.
        seed: u64,
    },
}

impl Strategy {
    /// The names of all policies, for help texts.
    pub const NAMES: [&'static str; 7] = ["first_fit", "best_fit", "worst_fit", "alignment", "balance", "pool_balance", "random"];

    /// Returns the policy with this name. `seed` is used by randomized policies.
    ///
    /// # Errors
    /// [`UnknownPolicy`] if no policy has this name.
    pub fn named(name: &str, seed: u64) -> Result<Self, UnknownPolicy> {
        Ok(match name {
            "random" => Self::Random { seed },
            _ => name.parse()?,
        })
    }
}

/// No policy has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown placement policy {0:?}; use one of {names}", names = Strategy::NAMES.join(", "))]
pub struct UnknownPolicy(String);

impl FromStr for Strategy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        Ok(match name {
            "first_fit" => Self::FirstFit,
            "best_fit" => Self::BestFit,
            "worst_fit" => Self::WorstFit,
            "alignment" => Self::Alignment,
            "balance" => Self::Balance,
            "pool_balance" => Self::PoolBalance,
            "random" => Self::Random { seed: 1 },
            _ => return Err(UnknownPolicy(name.to_owned())),
        })
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FirstFit => "first_fit",
            Self::BestFit => "best_fit",
            Self::WorstFit => "worst_fit",
            Self::Alignment => "alignment",
            Self::Balance => "balance",
            Self::PoolBalance => "pool_balance",
            Self::Random { .. } => "random",
        })
    }
}

impl Policy for Strategy {
    fn cost(&self, candidate: &Candidate<'_>) -> u64 {
        match self {
            Self::FirstFit => 0,
            Self::BestFit => candidate.remaining().iter().sum(),
            Self::WorstFit => 3_000_000 - candidate.remaining().iter().sum::<u64>().min(3_000_000),
            Self::Alignment => {
                let Candidate { request, shape, free, space, .. } = candidate;
                let pool = product(u64::from(request.pool_slices.0), u64::from(space.grantable.0), u64::from(space.capacity.0));
                u64::MAX - alignment(request, shape, *free) - pool
            }
            Self::Balance => {
                let [cores, mib, _] = candidate.remaining();
                cores.abs_diff(mib)
            }
            Self::PoolBalance => {
                let [cores, mib, pool] = candidate.remaining();
                // Without slices the pool does not matter, and servers of all pools are alike.
                let of_pool = if candidate.request.pool_slices == Slices::ZERO { 0 } else { cores.abs_diff(pool) };
                cores.abs_diff(mib) + of_pool
            }
            Self::Random { seed } => draw(*seed, candidate.request.id, candidate.server),
        }
    }

    fn takes_first_fit(&self) -> bool {
        matches!(self, Self::FirstFit)
    }

    fn cost_min(&self, request: &Request, shape: &Shape, cores: u32, mib: (u64, u64)) -> Option<u64> {
        let in_pool = if request.pool_slices == Slices::ZERO { 0 } else { 1_000_000 };
        let left_cores = ppm(u64::from(cores.saturating_sub(request.cores)), shape.cores());
        let left_mib = |free: u64| ppm(free.saturating_sub(u64::from(request.local_mib)), shape.mib());
        let (least, most) = (left_mib(mib.0), left_mib(mib.1));
        // Of cores and local memory; a pool can only add to it.
        let difference = least.saturating_sub(left_cores).max(left_cores.saturating_sub(most));
        match self {
            Self::BestFit => Some(left_cores + least),
            Self::WorstFit => Some(3_000_000 - (left_cores + most + in_pool).min(3_000_000)),
            Self::Alignment => Some(u64::MAX - alignment(request, shape, (cores, mib.1)) - in_pool * 1_000_000),
            Self::Balance | Self::PoolBalance => Some(difference),
            Self::FirstFit | Self::Random { .. } => None,
        }
    }
}

/// Returns the product of what is requested and what is free, both as shares of the whole.
fn product(requested: u64, free: u64, whole: u64) -> u64 {
    ppm(requested, whole) * ppm(free, whole)
}

/// Returns the dot product of what is requested and what is free, of cores and local memory.
fn alignment(request: &Request, shape: &Shape, (cores, mib): (u32, u64)) -> u64 {
    product(u64::from(request.cores), u64::from(cores), shape.cores()) + product(u64::from(request.local_mib), mib, shape.mib())
}

/// Returns a pseudo-random number for a VM and a server, by the finalizer of `SplitMix64`.
fn draw(seed: u64, vm: u64, server: u32) -> u64 {
    let mut mixed = seed;
    for part in [vm, u64::from(server)] {
        mixed = mixed.wrapping_add(part).wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
    }
    mixed
}

//! Which of the servers that would do is taken.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::fleet::{Request, Room, Shape};

/// A server that has room for a VM.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// What the VM asks for.
    pub request: &'a Request,
    /// What the fleet's servers are like.
    pub shape: &'a Shape,
    /// Which server.
    pub server: u32,
    /// Cores and local memory in MiB that are free on it, before the VM.
    pub free: (u32, u64),
    /// What its pool can give, before the VM.
    pub room: Room,
    /// Whether the VM would lie on more than one of its nodes.
    pub spans: bool,
}

impl Candidate<'_> {
    /// What would be left of each dimension with the VM on it, in millionths of what there is: cores, local memory, and
    /// for a VM that wants some, pool memory.
    #[must_use]
    pub fn left(&self) -> [u64; 3] {
        let pool = if self.request.pool_slices == 0 {
            0
        } else {
            ppm(u64::from(self.room.grantable - self.request.pool_slices.min(self.room.grantable)), u64::from(self.room.capacity))
        };
        let cores = u64::from(self.free.0.saturating_sub(self.request.cores));
        let mib = self.free.1.saturating_sub(u64::from(self.request.local_mib));
        [ppm(cores, self.shape.cores()), ppm(mib, self.shape.mib()), pool]
    }
}

/// `part` of `whole` in millionths, none of nothing.
fn ppm(part: u64, whole: u64) -> u64 {
    part.saturating_mul(1_000_000).checked_div(whole).unwrap_or(0)
}

/// A preference among servers. Pure: the same candidate has the same cost.
pub trait Policy {
    /// What taking this server would cost; the cheapest is taken, the first of equals. Servers on which a VM spans NUMA
    /// nodes come after all others, whatever they cost.
    fn cost(&self, candidate: &Candidate<'_>) -> u64;

    /// Whether all servers on which a VM does not span cost the same, so that the search may end at the first.
    fn any_will_do(&self) -> bool {
        false
    }

    /// Whether two servers of a pool with the same free resources may cost differently.
    fn tells_servers_apart(&self) -> bool {
        false
    }
}

/// The policies there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// The first server with room.
    FirstFit,
    /// The server that would be the fullest, over all dimensions.
    BestFit,
    /// The server that would be the emptiest, over all dimensions: spreads VMs.
    WorstFit,
    /// The server whose free resources are most like what is asked for: the largest dot product of the two, as in
    /// multi-resource packing.
    Alignment,
    /// The server on which cores and local memory would run out together: strands the least of either.
    Balance,
    /// Any server, by lot.
    Random {
        /// Of the lots.
        seed: u64,
    },
}

impl Strategy {
    /// All names, for help texts.
    pub const NAMES: [&'static str; 6] = ["first_fit", "best_fit", "worst_fit", "alignment", "balance", "random"];

    /// The policy of a name, with the seed for those that draw lots.
    ///
    /// # Errors
    /// When there is no such policy.
    pub fn named(name: &str, seed: u64) -> Result<Self, UnknownPolicy> {
        Ok(match name {
            "random" => Self::Random { seed },
            _ => name.parse()?,
        })
    }
}

/// No policy of that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no placement policy {0:?}; there are {names}", names = Strategy::NAMES.join(", "))]
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
            Self::Random { .. } => "random",
        })
    }
}

impl Policy for Strategy {
    fn cost(&self, candidate: &Candidate<'_>) -> u64 {
        match self {
            Self::FirstFit => 0,
            Self::BestFit => candidate.left().iter().sum(),
            Self::WorstFit => 3_000_000 - candidate.left().iter().sum::<u64>().min(3_000_000),
            Self::Alignment => {
                let Candidate { request, shape, free, room, .. } = candidate;
                let of = |want: u64, free: u64, whole: u64| ppm(want, whole) * ppm(free, whole);
                let likeness = of(u64::from(request.cores), u64::from(free.0), shape.cores())
                    + of(u64::from(request.local_mib), free.1, shape.mib())
                    + of(u64::from(request.pool_slices), u64::from(room.grantable), u64::from(room.capacity));
                u64::MAX - likeness
            }
            Self::Balance => {
                let [cores, mib, _] = candidate.left();
                cores.abs_diff(mib)
            }
            Self::Random { seed } => lot(*seed, candidate.request.id, candidate.server),
        }
    }

    fn any_will_do(&self) -> bool {
        matches!(self, Self::FirstFit)
    }

    fn tells_servers_apart(&self) -> bool {
        matches!(self, Self::Random { .. })
    }
}

/// A number by chance for a VM and a server: the finaliser of `SplitMix64`, which lets no pattern of its input through.
fn lot(seed: u64, vm: u64, server: u32) -> u64 {
    let mut mixed = seed;
    for part in [vm, u64::from(server)] {
        mixed = mixed.wrapping_add(part).wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
    }
    mixed
}

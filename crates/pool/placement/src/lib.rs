//! Placement of virtual machines: bin packing in cores, local memory and pool memory.
//!
//! (Pond sections 2, 3.1 and 5) A server has one or more NUMA nodes, and some servers share a pool. Pool memory is one more
//! dimension of the packing. [`Fleet::choose`] chooses a server; [`Fleet::reserve`] and [`Fleet::release`] account for its
//! resources. A [`Policy`] defines the preference among the servers that fit. This crate models neither time nor the inside of
//! a pool.
//!
//! # Rules
//! - A VM is placed on one NUMA node if possible. A server on which the VM fits on one node comes before every server on
//!   which it would span. If it must span, its cores stay on one node if they fit there, with as much of its memory as fits.
//! - Of a VM with a group, servers are left out on which more of its group would fail together than its limit permits ([`Group`]).
//! - Pool memory comes in slices of 1 GiB from one memory controller; [`PoolSpace::grantable`] is the limit for one VM.
//!
//! # Invariants
//! A test checks each of them.
//! - No node is ever oversubscribed, and releasing all placements restores the empty fleet.
//! - A VM is refused only if no server can hold it; with a hard limit, if no server within the limit can.
//! - No placement breaks a hard limit, neither the VM's own nor that of a running VM of its group.
//! - The same fleet, request and seed give the same server. The first server wins a tie.
//! - All arithmetic is on integers, so that every machine rounds alike. No files, clock or threads; random choices depend on
//!   a seed only.
#![deny(missing_docs)]

mod fleet;
mod policy;
mod resources;
mod spread;

pub use fleet::Fleet;
pub use policy::{Candidate, Policy, Strategy, UnknownPolicy};
pub use resources::{NODES_MAX, Node, Placement, PoolSpace, Request, Shape};
pub use spread::{Attempt, Domains, Group, Limit, Mode};

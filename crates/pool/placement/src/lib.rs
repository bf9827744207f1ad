//! Where virtual machines go: bin packing in cores, local memory and pool memory.
//!
//! Pond (ASPLOS 2023), sections 2, 3.1 and 5: a server has one or more NUMA nodes, some servers share a pool, and pool
//! memory is one more dimension of the packing. [`Fleet::choose`] decides, [`Fleet::take`] and [`Fleet::give_back`] keep
//! the books; nothing here knows time or a pool's inside. Which of the servers that would do is taken is a [`Policy`]'s
//! matter.
//!
//! # Rules
//! - A VM goes whole to one NUMA node where it can. A server on which it can comes before every server on which it would
//!   span; where it must span, its cores stay together if they fit, and as much of its memory as fits stays with them.
//! - Pool memory comes in slices of 1 GiB from one memory controller: [`Room::grantable`] is what one VM can get.
//!
//! # Invariants
//! Each is a test of that name.
//! - No node is ever oversubscribed, and what is given back is what was taken.
//! - A VM is refused only when no server has room for it.
//! - The same fleet, request and seed give the same server; of equal servers the first.
//! - Integer arithmetic only: every machine rounds alike. No files, clock, threads, or randomness but from a seed.

mod fleet;
mod policy;

pub use fleet::{Fleet, NODES_MAX, Node, Placement, Request, Room, Shape};
pub use policy::{Candidate, Policy, Strategy};

//! The state machine of a memory pool: memory that hosts share, in slices of 1 GiB, each with one owner at a time.
//! Pure.
//!
//! Pond section 4.2 as a state machine: [`Command`]s in, [`Effect`]s out. The simulator and the pool manager run the
//! same code.
//!
//! # States of a slice
//! ```text
//!            Assign              Return                Offlined             Scrubbed
//!   Free ------------> Online ------------> Offlining -----------> Scrubbing -------> Free
//!     ^                  |                   |     ^                   ^
//!     |                  |   OfflineFailed,  |     | Tick: retried     |
//!     |                  |   or no report    v     |                   |
//!     |                  |                 Stuck --+                   |
//!     |                  |                   |                         |
//!     |                  +---- HostFailed ---+-------------------------+  (manager down: Orphaned until it is up)
//!                        |  Abandoned, from every state with a host   |
//!                        +--------------------------------------------+
//!     +-- Scrubbing <-- EmcRepaired -- Failed <-- EmcFailed, from every state
//! ```
//! A host takes 10 to 100 ms per GiB to offline a slice (Pond section 4.2), and no VM waits for it: VMs get slices that
//! are free already. [`Config::buffer_slices`] slices are never assigned, so that some are free. Hardware does not zero
//! a slice that changes its owner; the manager does, before the next host can access it.
//!
//! # Effects of failures
//! - An EMC: VMs with memory on it are lost, and its slices are unavailable until it is repaired. All slices of a VM
//!   are on one EMC, so VMs on other EMCs are not affected.
//! - A host: its VMs are lost. Its slices return to the pool without its help.
//! - The manager: nothing is lost. VMs continue to run; no slice changes its owner until the manager is up, and
//!   requests in the meantime are refused and must be repeated.
//!
//! # Invariants
//! Each is a test with that name, under arbitrary sequences of commands and faults.
//! - No slice has two owners: one host may access it, for at most one VM.
//! - Memory is never lost: every slice is in exactly one state, and the states add up to the capacity.
//! - Every VM that left returned its slices: when all commands are settled, no slice has an owner.
//! - The buffer is kept: free slices and those being released add up to at least the buffer after every assignment.
//! - A message about an earlier owner changes nothing: every assignment of a slice has a new generation.
//! - No files, clock, threads, randomness or logging. Times are arguments, in integer nanoseconds.
#![deny(missing_docs)]

mod command;
mod ledger;
mod slice;

pub use command::{Cause, Command, Effect, Refusal};
pub use ledger::{Broken, Config, Counts, Kept, Lease, Pool, Record};
pub use slice::{EmcId, Generation, HostId, Ns, SliceId, State, VmId};
pub use units::Slices;

/// Size of a slice: 1 GiB, the granularity of section 4.1.
pub const SLICE: units::Bytes = units::Bytes::gib(1);

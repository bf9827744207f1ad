//! The pool's core: memory that hosts share, in slices of 1 GiB, each with one owner at a time.
//!
//! Pond (ASPLOS 2023), section 4.2, as a state machine: [`Command`]s in, [`Effect`]s out. A simulator and a real pool
//! manager run the same code around it.
//!
//! # The way of a slice
//! ```text
//!            Assign              Return                Offlined             Scrubbed
//!   Free ------------> Online ------------> Offlining -----------> Scrubbing -------> Free
//!     ^                  |                   |     ^                   ^
//!     |                  |   OfflineFailed,  |     | Tick: asked anew  |
//!     |                  |   or no answer    v     |                   |
//!     |                  |                 Stuck --+                   |
//!     |                  |                   |                         |
//!     |                  +---- HostFailed ---+-------------------------+  (the manager away: Orphaned until it is back)
//!                        |  Abandoned, from whatever has a host       |
//!                        +--------------------------------------------+
//!     +-- Scrubbing <-- EmcRepaired -- Failed <-- EmcFailed, from anywhere
//! ```
//! Offlining takes a host 10 to 100 ms per GiB (section 4.2) and no VM waits for it: VMs get slices that are free
//! already. So that there are some, [`Config::buffer_slices`] are never promised. Hardware does not zero a slice that
//! changes hands; that is the manager's job, before the next host sees it.
//!
//! # Who fails, and what is lost
//! - An EMC: the VMs with memory on it, and its slices until it is repaired. A VM's slices lie on one EMC, never across
//!   several, so VMs on other EMCs go on.
//! - A host: its VMs. Its slices go back to the pool, without its help.
//! - The manager: nothing. VMs go on; no slice changes hands until it is back, and what it was told meanwhile is refused
//!   and must be said again.
//!
//! # Invariants
//! Each is a test of that name, under arbitrary sequences of commands and faults.
//! - No slice has two owners: one host may access it, for at most one VM.
//! - Memory is never lost: every slice is in exactly one state, and the states add up to the capacity.
//! - Every VM that left returned what it had: once all is quiet, nothing is owned by anyone.
//! - The buffer is kept: free slices and those on their way add up to it, whatever is asked for.
//! - A message about an earlier owner changes nothing: every assignment of a slice is a new generation.
//! - No files, clock, threads, randomness or logging. Times are arguments, integer nanoseconds.

mod command;
mod ledger;
mod slice;

pub use command::{Cause, Command, Effect, Refusal};
pub use ledger::{Broken, Config, Counts, Kept, Lease, Pool, Record};
pub use slice::{EmcId, Generation, HostId, Ns, SliceId, Slices, State, VmId};

/// Bytes of a slice: 1 GiB, the granularity of section 4.1.
pub const SLICE_BYTES: u64 = 1 << 30;

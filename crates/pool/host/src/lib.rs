//! One host of a memory pool: starts guests with local memory and pool memory, monitors them, and mitigates
//! mispredictions.
//!
//! A guest sees its pool memory as a NUMA node without cores (zNUMA), made of slices that the pool manager assigns to
//! the host. Pond sections 4.2 and 4.3.
//!
//! # Modules
//! [`host`] is the daemon: requests from its socket, a lease with the manager, a sample of every guest each period. It
//! controls guests through a [`driver::Driver`], one of [`drivers`], and gets slices from a [`capacity::Capacity`].
//! [`accesses`] sees which memory a guest accesses, [`counters`] samples performance counters for the latency model. Decisions are pure: [`share`] (how much of a
//! guest's memory comes from the pool), [`monitor`] (whether that was mispredicted), [`hot`] (which part of it moves home first), [`free_memory`] (whether a guest
//! can give up its pool memory).
//!
//! # Invariants
//! - A process maps a slice only while it holds the lock on the slice's file: the hypervisor receives the lock before
//!   it maps the slice, and releases it after it has unmapped the slice.
//! - Guests keep running when the daemon exits. Everything that the next daemon needs is on disk before an operation
//!   completes.
//! - A guest without enough free memory is not asked to release its pool memory.
//! - A guest is moved at most twice, a part of it and then the whole, and counts as one that was mitigated. Every decision
//!   about it carries its reason.
#![deny(missing_docs)]

pub mod accesses;
pub mod capacity;
pub mod counters;
pub mod driver;
pub mod drivers;
mod events;
pub mod free_memory;
pub mod guest_file;
pub mod host;
pub mod hot;
pub mod memory;
pub mod metrics;
pub mod monitor;
pub mod prediction;
pub mod process;
pub mod settings;
pub mod share;
pub mod socket;
#[cfg(test)]
mod testing;
pub mod touched;
pub mod vm;

//! One host of a memory pool: it starts guests that see part of their memory as a NUMA node without cores (zNUMA), of slices
//! that a pool manager lends; watches what they make of it; and repairs a wrong guess once.
//!
//! Pond (ASPLOS 2023), sections 4.2 and 4.3.
//!
//! # Map
//! [`host`] is the daemon: requests from its socket, a lease with the manager, a look at every guest each period. It acts
//! through a [`driver::Driver`], which is [`qemu`] or [`libvirt`], asks a [`capacity::Capacity`] for slices, and the processor for
//! [`counters`] of a guest that the models shall judge. What it
//! decides is pure: [`share`] (how much of a guest comes from the pool), [`monitor`] (whether that was wrong), [`room`] (whether
//! a guest can do without).
//!
//! # Invariants
//! - A slice is mapped by no process that does not hold the lock on its file: the lock is handed to the hypervisor before it
//!   is told to map, and let go of after it has unmapped.
//! - Guests outlive the daemon. What it needs to take them over again is on disk before it is done.
//! - A release that the guest has no room for is refused before the guest hears of it.
//! - A guest is repaired at most once, and every decision about it carries its reason.

pub mod capacity;
pub mod counters;
pub mod driver;
pub mod host;
pub mod libvirt;
pub mod metrics;
pub mod monitor;
pub mod qemu;
pub mod qmp;
pub mod room;
pub mod share;
pub mod socket;
pub mod vm;

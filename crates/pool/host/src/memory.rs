//! Pool memory of a whole machine: slices of a device that other machines see, too, as memory of this kernel.
//!
//! The pool manager assigns slices, and the daemon brings their memory blocks online; returned slices go offline before they are reported.
//! No lock is shared with the other machines. What keeps a slice from having two owners:
//! - The manager takes no slice from a host without its report, or an operator's word that its machine is off ([`manager`]'s
//!   `host_fenced`). A machine that stands still, or loses its network, keeps its slices.
//! - A daemon that starts, or takes a new lease, first takes every block offline that is not assigned to its machine.
//!
//! Nothing is kept on disk: the manager knows the assignments, and the kernel which blocks are online.

mod blocks;
pub mod control;
mod machine;
pub mod metrics;

pub use blocks::{Error, Region, regions};
pub use machine::{Assigned, AssignedSlice, List, Machine, Refused};

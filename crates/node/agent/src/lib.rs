//! The node agent: observes the jobs of one machine, decides by `policy` what to do with their memory, and does it.
//!
//! # Map
//! [`scheduler`] is the loop. It knows the [`controllers`] by their seam only: each holds one policy with its state, plan, journal
//! record and view. They read and act through [`context`] and [`actuators`], record in the [`journal`], and [`replay`] repeats
//! what was recorded. [`undo`] makes it safe to kill the agent; [`view`] is what [`metrics`] and the [`socket`] show.
//!
//! # Invariants
//! - Every lasting setting is on the undo list before it is made.
//! - Only the loop's thread uses the kernel.
//! - Only jobs that a rule names are acted upon; classes `off` and `observe` never are.
//! - Time is an argument of each step. The clock is injected when the agent is created.

#![deny(missing_docs)]

pub mod actuators;
pub mod context;
pub mod controllers;
pub mod costs;
pub mod discover;
pub mod durations;
pub mod far;
pub mod following;
pub mod history;
pub mod instructions;
pub mod job;
pub mod journal;
pub mod killers;
pub mod limits;
pub mod machine;
pub mod memory;
pub mod metrics;
pub mod now;
pub mod options;
pub mod protection;
pub mod ram_disks;
pub mod reclaim;
pub mod record;
pub mod replay;
pub mod savings;
pub mod scheduler;
pub mod slow_node;
pub mod socket;
pub mod swap_gate;
pub mod swap_room;
#[cfg(test)]
mod testing;
pub mod tiers;
pub mod trials;
pub mod undo;
pub mod view;
pub mod waits;

pub use options::Options;
pub use scheduler::{Agent, Deadlines, Message, ScanWait};

/// The most processes of one job that are examined.
const PROCESSES_MAX: usize = 4_096;

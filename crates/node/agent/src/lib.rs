//! The node agent: watches the jobs of one machine, learns how old their pages are, and moves what is older than a
//! safe threshold into far memory.
//!
//! # Map
//! [`node`] is the loop. It reads through `trackers`, steps through `policy`, acts through [`actuators`], and
//! records in the [`journal`]. [`undo`] is what makes it safe to kill; [`view`] is what [`metrics`] and the
//! [`socket`] show.
//!
//! # Invariants
//! - Every lasting setting is on the undo list before it is made.
//! - Only the loop's thread touches the kernel.
//! - Only jobs that a rule names are acted upon; classes `off` and `observe` never are.

pub mod actuators;
pub mod discover;
pub mod far;
pub mod following;
pub mod history;
pub mod job;
pub mod journal;
pub mod machine;
pub mod metrics;
pub mod node;
pub mod pace;
pub mod record;
pub mod replay;
pub mod slow;
pub mod socket;
#[cfg(test)]
mod testing;
pub mod tiers;
pub mod undo;
pub mod view;

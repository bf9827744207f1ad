//! Parameters on their way to the machines of a fleet: signed bundles, and who follows which.
//!
//! An operator publishes bundles and an [`assignment`] into a [`repository`]; machines [`follow`] it. Between them lies a
//! store that nobody need trust: what comes out of it is verified by The Update Framework (<https://theupdateframework.io>,
//! specification 1.0), whose metadata and signatures are `tough`'s.
//!
//! # Invariants
//! - No byte of a store reaches an agent that was not signed by a threshold of the keys that a trusted root names, is older
//!   than what the machine has seen, or has expired.
//! - A change takes effect with one file, or not at all.
//! - Private keys are read where they sign, and go nowhere else.
//!
//! Which machines, and when, is decided by a [`stage`] machine: at each [`look`] it asks [`guard`]s whether the machines with the
//! bundle do worse than those held back, by [`evidence`] out of their traces, with a [`sequential`] test. [`experiment`]
//! compares any two groups of machines. All of these are pure but for reading traces.

pub mod assignment;
mod cache;
mod client;
pub mod contrast;
mod error;
pub mod evidence;
pub mod experiment;
pub mod follow;
pub mod guard;
pub mod journal;
pub mod keys;
pub mod look;
pub mod metric;
pub mod plan;
pub mod prometheus;
#[cfg(test)]
mod random;
pub mod repository;
pub mod sequential;
pub mod stage;

pub use error::{Error, Refusal, Result};

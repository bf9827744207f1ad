//! Rolls out parameters to the machines of a fleet: signed bundles, stages and guardrails.
//!
//! An operator publishes bundles and an [`assignment`] into a [`repository`]; machines [`follow`] it. The store between
//! them is not trusted: its contents are verified by The Update Framework (<https://theupdateframework.io>,
//! specification 1.0), implemented by `tough`.
//!
//! # Invariants
//! - Bytes of a store reach an agent only if they are signed by a threshold of the keys in a trusted root, not older
//!   than a version that the machine has verified, and not expired.
//! - A change takes effect with one file, or not at all.
//! - Private keys are read only to sign, and are never sent or copied.
//!
//! A state machine ([`stage`]) decides which machines have the bundle. At each [`evaluation`], [`guard`]s judge whether
//! the machines with the bundle do worse than the control group, by [`evidence`] from their traces, with a
//! [`sequential`] test. [`experiment`] compares any two groups of machines. All of these are pure except for reading
//! traces.
#![deny(missing_docs)]

pub mod assignment;
mod cache;
mod client;
pub mod contrast;
mod error;
pub mod evaluation;
pub mod evidence;
pub mod experiment;
pub mod follow;
pub mod guard;
pub mod journal;
pub mod keys;
pub mod metric;
pub mod models;
pub mod plan;
pub mod prometheus;
#[cfg(test)]
mod random;
pub mod repository;
pub mod sequential;
pub mod stage;
mod tails;
pub mod trial;

pub use client::sha256_of;
pub use error::{Error, Refusal, Result};

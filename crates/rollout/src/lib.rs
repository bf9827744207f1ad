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

pub mod assignment;
mod cache;
mod client;
mod error;
pub mod follow;
pub mod keys;
pub mod repository;

pub use error::{Error, Refusal, Result};

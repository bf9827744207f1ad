//! Parameters on their way to the machines of a fleet: signed bundles, and who follows which.

pub mod assignment;
mod error;

pub use error::{Error, Result};

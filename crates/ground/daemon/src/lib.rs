//! What every daemon of Thermocline needs: a clock that tests can set.
//!
//! The crate knows no daemon: what a daemon serves or reports is passed in as a closure or a trait implementation.
#![deny(missing_docs)]

mod clock;

pub use clock::{Clock, ManualClock};

//! What every daemon of Thermocline needs: clock, pid lock, control socket, HTTP server with the metrics listener, the
//! readiness notification, and files that it can trust.
//!
//! # Invariants
//! - The crate knows no daemon: what a daemon serves is passed in as a closure or a trait implementation.
//! - Every listener limits connections, bytes and time per request, so that no client can exhaust memory or lock others out.
#![deny(missing_docs)]

mod clock;
mod error;
pub mod http;
mod lock;
pub mod metrics;
mod notify;
pub mod relay;
pub mod socket;
pub mod trusted;
pub mod watchdog;

pub use clock::{Clock, ManualClock, TimeSource};
pub use error::{Error, Result};
pub use lock::PidLock;
pub use notify::notify_ready;

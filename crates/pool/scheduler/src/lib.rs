//! The scheduler of a cluster whose servers share pools: chooses the host of each VM.
//!
//! A service around the pure rules of the `placement` crate, which the simulator uses as well: what was simulated is what
//! is done (Pond sections 4.1 and 5). Pool managers stay the owners of slices; the scheduler reads how many they can assign,
//! and never assigns one itself.
//!
//! # Path of a request
//! ```text
//! HTTP over TLS -> permission of the certificate -> writer: decide, append to the log, one fsync -> answers
//!                                                     ^
//!                          observer, once per second: what each pool's manager can assign
//! ```
//!
//! # Invariants
//! - An answer is sent after its decision is in the log on disk. A scheduler that is killed and started again knows every
//!   VM that it has answered for.
//! - The log is enough to repeat every decision ([`replay`]), also by the simulator ([`simulated`]): it has the servers, the policy,
//!   and what was known of pools.
//! - No server is oversubscribed, whatever clients request.
//! - No decision breaks the hard limit of a group's VM ([`api::Spread`]), by the hosts and domains that are configured then.
//! - Without its manager's answer a pool gets no VM; VMs are placed with all their memory local then.
#![deny(missing_docs)]

pub mod api;
pub mod client;
mod event;
mod log_file;
mod metrics;
mod observer;
pub mod replay;
mod server;
pub mod service;
pub mod settings;
pub mod simulated;
mod state;
mod writer;

pub use event::{Domain, Entry, Event, Host, PoolOfHosts, Topology};
pub use placement::Mode;

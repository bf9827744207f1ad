//! The pool manager: who has which slice of the memory that hosts share.
//!
//! A service round the pure core of `pool` (Pond, ASPLOS 2023, sections 4.1 and 4.2). One process per pool. Its failure
//! stops reassignment and never a running guest: nothing of it lies on the path to memory.
//!
//! # One request's way
//! ```text
//! HTTP over TLS -> route -> may this certificate? -> writer: many requests, one transaction, one fsync -> answers
//!                                                      ^
//!                          keeper, once a second: time, leases that ran out, locks, zeroing
//! ```
//!
//! # Who may touch a slice
//! The hardware of section 4.1 checks every access. Here a slice is a file, and the kernel is the check: whoever uses a
//! slice holds an exclusive `flock(2)` on it. A lock lives as long as any process has the open file, however its driver
//! ended. The manager locks a slice before it takes it back, and each owner's generation is a new file: who comes late opens
//! nothing, or a file that nobody else will ever see ([`claim`]).

pub mod api;
pub mod book;
pub mod certificates;
pub mod claim;
pub mod client;
mod files;
mod keeper;
pub mod layout;
mod ledger;
mod metrics;
pub mod openapi;
mod routes;
mod server;
pub mod service;
pub mod settings;
mod tls;
mod writer;

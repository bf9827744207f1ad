//! The pool manager: assigns slices of the memory that hosts share.
//!
//! A service around the pure state machine of the `pool` crate (Pond sections 4.1 and 4.2). One process per pool. While
//! it is down, no slice changes its owner; running guests are not affected, because the manager is not on the path to
//! memory.
//!
//! # Path of a request
//! ```text
//! HTTP over TLS -> route -> permission of the certificate -> writer: one transaction, one fsync -> answers
//!                                                              ^
//!                       maintenance, twice per second: time, expired leases, locks, scrubbing
//! ```
//!
//! # Access to slices
//! In Pond's design the controller checks every access (Pond section 4.1). Here a slice is a file, and the kernel
//! provides the check: a process that uses a slice holds an exclusive `flock(2)` on its file. The lock persists as long
//! as any process has the open file, whatever happens to the host's daemon. The manager locks a slice before it
//! reclaims it, and each ownership generation has a new file: a late owner finds no file, or opens one that no other
//! process will use ([`claim`]).
#![deny(missing_docs)]

pub mod api;
pub mod audit;
pub mod certificates;
mod chain;
pub mod claim;
pub mod client;
pub mod connection;
mod files;
mod group;
pub mod layout;
mod leader;
pub mod ledger;
mod maintenance;
mod mark;
mod metrics;
pub mod openapi;
mod published;
mod recover;
mod restore;
mod routes;
mod scrubber;
mod server;
pub mod service;
pub mod settings;
mod storage;
pub mod tls;
mod writer;

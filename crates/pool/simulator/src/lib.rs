//! A cluster in discrete events: what pooling memory would save, at which pool size, at what risk.
//!
//! A trace of virtual machines drives [`placement`] and the core of [`pool`], the very code that a scheduler and a pool
//! manager run. Time is integer nanoseconds; events of the same instant follow each other in the order in which they
//! were planned; faults, and how long a host takes to release a slice, are drawn from a seed.
//!
//! # How savings are found
//! As in Pond (ASPLOS 2023), sections 3.1 and 6.5. [`run::baseline`] places every VM with all its memory local. Then each
//! [`Setup`] is run with every VM on the same server, its memory split by the policy, and the most that any server and any
//! pool ever needed at once is what would have to be bought ([`tally::Required`]). A VM whose pool has no room goes to
//! another server, or gets all local memory. [`provision`] asks the other way round: how little may be bought, all servers
//! alike, so that VMs still find room when they may go to another server.
//!
//! # Properties
//! Each is a test of that name.
//! - The same trace, setup and seed give the same outcome, whatever the number of threads.
//! - In every run, with whatever faults: no slice has two owners, memory is never lost, and every VM that left returned
//!   what it had.
//! - A pool of one server saves nothing; without pooled memory nothing is saved.

pub mod assumed;
pub mod faults;
pub mod foretold;
pub mod latency;
pub mod memory;
pub mod oracle;
pub mod provision;
pub mod queue;
pub mod run;
pub mod site;
pub mod study;
pub mod tally;

pub use site::{Setup, Site};

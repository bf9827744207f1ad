//! A discrete-event simulator of a cluster: what pooling memory would save, at which pool size and at what risk.
//!
//! A trace of virtual machines drives [`placement`] and the core of [`pool`], the same code that a scheduler and a pool
//! manager run. Time is in integer nanoseconds. Events of the same instant are handled in the order in which they were
//! scheduled. Faults, and the time that a host takes to release a slice, are drawn from a seed.
//!
//! # How savings are computed
//! As in (Pond sections 3.1 and 6.5). [`run::baseline`] places every VM with all its memory local. Then each [`Setup`] runs
//! with every VM on the same server and its memory split by the policy. The DRAM that must be bought is the peak demand of
//! every server and every pool ([`tally::Required`]). A VM whose pool has too few free slices is placed on another server or
//! gets only local memory. [`provision`] solves the reverse problem: the least memory to buy, with all servers alike, such
//! that VMs still fit when they may be placed on any server.
//!
//! # Properties
//! A test checks each of them.
//! - The same trace, setup and seed give the same outcome for any number of threads.
//! - In every run and under any faults, no slice has two owners, no memory is lost, and every VM that left returned its
//!   slices.
//! - A pool of one server saves nothing; without pool memory nothing is saved.
#![deny(missing_docs)]

pub mod assumptions;
pub mod error;
pub mod faults;
pub mod latency;
pub mod memory;
pub mod oracle;
pub mod pod;
pub mod predictions;
pub mod provision;
pub mod queue;
pub mod run;
pub mod service_level;
pub mod site;
pub mod spill;
pub mod study;
pub mod tally;
mod topology;

pub use site::{Setup, Site};

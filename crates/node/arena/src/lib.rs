//! Control laws of far memory on access traces: which law saves most at equal time lost.
//!
//! A [`trace`] says which page groups a program accesses in which interval. A simulated [`kernel`] holds these groups in DRAM,
//! in zswap or on a device, and offers a law what Linux offers: generations of MGLRU, pressure stalls, counters of refaults, idle
//! ages ([`view`]). A [`law`] asks the kernel for what Linux can be asked for. The [`oracle`] knows the future, and bounds what
//! any law can save at a given loss. [`contest`] compares them, and [`sensitivity`] varies the constants of our own laws.
//!
//! # Invariants
//! - No files, clock or threads. Randomness comes from a seed: the same arguments give the same scores, bit for bit.
//! - Our laws call the functions of crate `policy` that the agent calls. Peers are written from their documentation.
//! - A law sees nothing that its product does not see on Linux ([`view::View`]).
//! - The oracle is never beaten: it decides for each gap between two accesses by itself, with all tiers.

#![deny(missing_docs)]

pub mod contenders;
pub mod contest;
pub mod curves;
pub mod generations;
pub mod kernel;
pub mod law;
pub mod laws;
pub mod oracle;
pub mod programs;
pub mod request;
pub mod run;
pub mod sensitivity;
pub mod stalls;
pub mod text;
pub mod trace;
pub mod view;

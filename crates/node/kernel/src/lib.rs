//! The Linux interfaces that Thermocline uses, and all of its `unsafe` code.
//!
//! One module per kernel interface, named after it. Each holds a parser, which is a pure function of text or bytes, and a
//! thin handle under an injectable root ([`Roots`]).
//!
//! # Invariants
//! - Handles read and write; they do not decide.
//! - Differences between kernels are probed, never derived from the version number: a missing file is `None` or
//!   [`Error::Unsupported`], a malformed file [`Error::Parse`], a cgroup, process or device that has vanished
//!   [`Error::Gone`], which is a normal outcome.
#![deny(missing_docs)]

pub mod block;
pub mod capability;
pub mod cgroup;
pub mod cgroup_namespace;
pub mod cxl;
pub mod damon;
pub mod device_memory;
mod error;
pub mod file;
pub mod hotplug;
pub mod kmsg;
pub mod latency;
pub mod lru_gen;
pub mod madvise;
pub mod maps;
pub mod meminfo;
pub mod mempolicy;
pub mod modules;
pub mod move_pages;
pub mod numa;
pub mod numa_maps;
pub mod page_idle;
pub mod pagemap;
pub mod perf;
pub mod process;
pub mod psi;
pub mod remote;
mod roots;
pub mod smaps;
pub mod swap;
pub mod taskstats;
mod text;
pub mod thp;
pub mod tracefs;
pub mod vmstat;
pub mod zoneinfo;
pub mod zram;
pub mod zswap;

#[cfg(test)]
mod testing;

pub use error::{Error, Malformed, Result};
pub use process::page_size;
pub use roots::Roots;

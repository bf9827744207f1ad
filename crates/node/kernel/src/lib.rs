//! Everything of Linux that Thermocline touches, and all of its `unsafe` code.
//!
//! One module per kernel interface, named after it. Each holds a parser, which is a pure function of text or
//! bytes, and a thin handle under an injectable root ([`Roots`]). Handles read and write what they are told to;
//! they never decide. What differs between kernels is found by looking, never by version number: a missing file
//! is `None` or [`Error::Unsupported`], a malformed one [`Error::Parse`], a vanished cgroup, process or device
//! [`Error::Gone`], which is a normal outcome.

pub mod block;
pub mod capability;
pub mod cgroup;
pub mod cxl;
pub mod damon;
mod error;
pub mod file;
pub mod hotplug;
pub mod kmsg;
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
pub mod priority;
pub mod process;
pub mod psi;
mod roots;
pub mod smaps;
pub mod swap;
mod text;
pub mod thp;
pub mod vmstat;
pub mod zoneinfo;
pub mod zswap;

#[cfg(test)]
mod testing;

pub use error::{Error, Malformed, Result};
pub use process::page_size;
pub use roots::Roots;

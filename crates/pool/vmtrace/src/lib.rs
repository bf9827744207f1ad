//! Traces of virtual machines: what was asked for, when it came and went, and what it made of its memory.
//!
//! A [`Vm`] is one row. [`Writer`] puts rows into a Parquet file by arrival, [`Sorter`] those that come in any order;
//! [`Trace`] reads them back. [`schema`] says what the columns are, [`About`] what a file says of itself.
//! What a trace does not tell is `None`: no public trace has all of it.
//!
//! # Invariants
//! - A file is sorted by [`Vm::order`], and every row passes [`Vm::check`], on the way in and on the way out.
//! - A file appears under its name whole, or not at all.
//! - An older file reads; a newer one is refused by name. No file makes a reader panic.
//! - Memory is bounded: a reader holds one row group, a sorter one run.

mod about;
mod error;
pub mod generate;
pub mod import;
mod read;
pub mod schema;
mod sort;
pub mod stranding;
mod vm;
mod write;

pub use about::{About, Words, number_of};
pub use error::{Error, Result};
pub use read::{Trace, Vms};
pub use sort::{RUN_VMS, Sorter};
pub use vm::{CORES_MAX, Fault, MEMORY_BYTES_MAX, SECONDS_MAX, SLOWDOWN_MAX, SLOWDOWN_MIN, Vm};
pub use write::{GROUP_VMS, Writer, Written};

#[cfg(test)]
mod tests;

//! Traces of virtual machines: their requests, their arrivals and departures, and their use of memory.
//!
//! A [`Vm`] is one row. [`Writer`] writes rows in order of arrival to a Parquet file; [`Sorter`] accepts them in any order.
//! [`Trace`] reads them. [`schema`] defines the columns, [`About`] the metadata of a file. A value that a trace lacks is
//! `None`: no public trace has all of them.
//!
//! # Invariants
//! - A file is sorted by [`Vm::order`], and every row passes [`Vm::check`] when it is written and when it is read.
//! - A file appears under its name when it is complete, or not at all.
//! - Older files can be read; newer ones are refused by an error that names the version. No file makes a reader panic.
//! - Memory is bounded: a reader holds one row group, a sorter one run.
#![deny(missing_docs)]

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

pub use about::{About, CategoryNames, number_of};
pub use error::{Error, Result};
pub use read::{Trace, Vms};
pub use sort::{RUN_VMS, Sorter};
pub use vm::{CORES_MAX, InvalidField, MEMORY_MAX, Recorded, SECONDS_MAX, SLOWDOWN_MAX, SLOWDOWN_MIN, Vm};
pub use write::{GROUP_VMS, Writer, Written};

#[cfg(test)]
mod tests;

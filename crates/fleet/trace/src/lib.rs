//! The far-memory trace: what agents saw and did, as files that anybody can read.
//!
//! An [`Entry`] sums what one job did in five minutes or so. [`Writer`] puts entries into Parquet files, sorted by job
//! and time; [`Trace`] reads them back as columns, row group by row group. [`schema`] says what the columns are.
//! On a machine, entries go through a [`Spool`] and a [`Sink`] into a [`store::Store`]; [`Merge`] makes one stream of many files,
//! and [`compact`] turns it into what a model replays fastest.
//!
//! # Invariants
//! - A file is sorted by [`Entry::order`], and no job straddles a row group: who replays a group sees whole series.
//! - All entries of a file count the same things ([`Basis`]).
//! - A file appears under its name whole, or not at all.
//! - An older file reads; a newer one is refused by name. No file makes a reader panic.

pub mod calendar;
pub mod check;
pub mod compact;
mod entry;
mod error;
mod merge;
mod pack;
mod read;
pub mod schema;
mod sink;
mod spool;
mod write;

pub use entry::{Basis, Entry, FIGURES, Figure, Figures, JobId, Labels};
pub use error::{Error, Result};
pub use merge::Merge;
pub use read::{Rows, Run, Trace};
pub use sink::{Sink, Status};
pub use spool::{Closed, Spool};
pub use write::{EXTENSION, GROUP_ENTRIES, GROUP_ENTRIES_MAX, Writer, Written};

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

//! The far-memory trace: what agents observed and did, as Parquet files.
//!
//! An [`Entry`] summarizes about five minutes of one job. [`Writer`] writes entries to Parquet files, sorted by job and
//! time; [`Trace`] reads them back as columns, one row group at a time. [`schema`] describes the columns. On a machine,
//! entries pass through a [`Spool`] and a [`Sink`] into a [`store::Store`]. [`Merge`] joins many files into one sorted
//! stream, and [`compact`] converts it into the form that a model replays fastest.
//!
//! # Invariants
//! - A file is sorted by [`Entry::order`], and all entries of a job are in one row group: a reader of one group sees
//!   complete series.
//! - All entries of a file have the same [`Basis`].
//! - A file appears under its name complete, or not at all.
//! - Older files can be read; newer ones are rejected with their version. No file makes a reader panic.
#![deny(missing_docs)]

pub mod anonymise;
pub mod calendar;
pub mod check;
pub mod compact;
mod direct;
mod entry;
mod error;
mod merge;
mod pack;
mod read;
pub mod schema;
mod sink;
mod spool;
mod write;

pub use direct::{Batch, Part, Wanted};
pub use entry::{Basis, Entry, FIGURES, Figure, Figures, JobId, Labels};
pub use error::{Error, Result};
pub use merge::Merge;
pub use read::{Rows, Run, Trace};
pub use sink::{Sink, Status};
pub use spool::{CloseReport, Spool};
pub use write::{EXTENSION, FileSummary, GROUP_ENTRIES, Writer, group_entries_max};

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

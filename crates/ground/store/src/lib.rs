//! A directory or an object store behind one type, and files that appear whole or not at all.
//!
//! [`Store`] holds objects by path: in a directory, or with the feature `s3` in an object store that speaks the S3
//! protocol. [`Access`] is a store that another process may have the connections to. [`file`] writes local files
//! atomically. [`FileError`] is the error of one operation on one file, shared by all crates that read and write files. The feature `testing` adds `testing`, an S3 server for integration tests.
//!
//! # Invariants
//! - An object or file appears under its name completely written, or not at all.
//! - No read returns more bytes than the caller's limit, whatever size the store reports.
//! - A read of a small object ends within [`READ_TIMEOUT`].
#![deny(missing_docs)]

pub mod access;
mod backend;
mod error;
pub mod file;
mod object;
mod retry;
#[cfg(feature = "testing")]
pub mod testing;

pub use access::Access;
pub use error::{Error, FileError, Result};
pub use object::{LocalCopy, Object, Store};
pub use retry::{Backoff, READ_TIMEOUT};

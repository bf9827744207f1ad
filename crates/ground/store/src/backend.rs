//! Opens the directory or the bucket that a URL names.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::path::Path as ObjectPath;

use crate::error::{Error, FileError, Result};

/// An opened directory or bucket.
pub(crate) struct Backend {
    pub(crate) objects: Arc<dyn ObjectStore>,
    /// First segments of all paths of this store, within the bucket.
    pub(crate) prefix: ObjectPath,
    /// The directory; `None` for a bucket.
    pub(crate) directory: Option<PathBuf>,
}

/// Opens a path, `file:///path` or `s3://bucket/prefix`.
pub(crate) fn open(url: &str) -> Result<Backend> {
    match url.split_once("://") {
        None => directory(url, Path::new(url)),
        Some(("file", path)) if path.starts_with('/') => directory(url, Path::new(path)),
        Some(("s3", bucket)) => s3(url, bucket),
        Some(_) => Err(cannot_open(url, "not a store; write a path, file:///path or s3://bucket/prefix")),
    }
}

pub(crate) fn cannot_open(url: &str, cause: impl ToString) -> Error {
    Error::Object { url: url.to_owned(), operation: "open", cause: cause.to_string() }
}

fn directory(url: &str, directory: &Path) -> Result<Backend> {
    std::fs::create_dir_all(directory).map_err(FileError::at(directory, "create"))?;
    let objects = LocalFileSystem::new_with_prefix(directory).map_err(|error| cannot_open(url, error))?;
    Ok(Backend { objects: Arc::new(objects.with_fsync(true)), prefix: ObjectPath::default(), directory: Some(directory.to_owned()) })
}

#[cfg(feature = "s3")]
fn s3(url: &str, bucket_and_prefix: &str) -> Result<Backend> {
    let (bucket, prefix) = bucket_and_prefix.split_once('/').unwrap_or((bucket_and_prefix, ""));
    let builder = object_store::aws::AmazonS3Builder::from_env().with_bucket_name(bucket);
    let objects = builder.build().map_err(|error| cannot_open(url, error))?;
    let prefix = ObjectPath::parse(prefix).map_err(|error| cannot_open(url, error))?;
    Ok(Backend { objects: Arc::new(objects), prefix, directory: None })
}

#[cfg(not(feature = "s3"))]
fn s3(url: &str, _bucket_and_prefix: &str) -> Result<Backend> {
    Err(cannot_open(url, "this program was built without object stores; build it with `--features s3`, or name a directory"))
}

//! The store and its objects.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use futures_util::TryStreamExt;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStoreExt, PutMode, PutPayload};
use tempfile::{NamedTempFile, TempPath};
use tokio::runtime::Runtime;
use units::Bytes;

use crate::backend::{self, Backend, cannot_open};
use crate::error::{Error, FileError, Result};
use crate::file::TEMPORARY_PREFIX;
use crate::retry::READ_TIMEOUT;

/// A larger file is uploaded in parts of this size; one part at a time is in memory.
const PART: Bytes = Bytes(8 << 20);

/// An open store: a directory or an object store.
///
/// The methods that transfer files block. [`Self::read`] and [`Self::write`] are asynchronous and run in the store's
/// own runtime, through [`Self::block_on`].
pub struct Store {
    url: String,
    backend: Backend,
    runtime: Runtime,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("url", &self.url).finish_non_exhaustive()
    }
}

/// An object in a store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Object {
    /// Path below the store's URL.
    pub path: String,
    /// Size of its contents.
    pub size: Bytes,
}

/// An object as a local file. A downloaded file is removed when this value is dropped.
#[derive(Debug)]
pub struct LocalCopy {
    path: PathBuf,
    /// Removes the file on drop. It holds no open descriptor: a fleet's evaluation keeps thousands of copies.
    _temporary: Option<TempPath>,
}

impl LocalCopy {
    /// Returns the path of the local file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Store {
    /// Opens a store by URL: a path, `file:///path`, or with the feature `s3` `s3://bucket/prefix`.
    ///
    /// A missing directory is created. Credentials, region and endpoint of an object store are taken from the
    /// environment (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT` and so on) or from the machine's role.
    ///
    /// # Errors
    /// [`Error::Object`] if the URL names no store; [`Error::File`] if the directory cannot be created.
    pub fn open(url: &str) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| cannot_open(url, format!("no asynchronous runtime: {error}")))?;
        Ok(Self { url: url.to_owned(), backend: backend::open(url)?, runtime })
    }

    /// Returns the URL that the store was opened with.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Lists the objects with this file name extension (without the dot), sorted by path. Incomplete files are skipped.
    ///
    /// # Errors
    /// [`Error::Object`] if the store cannot be listed.
    pub fn list(&self, extension: &str) -> Result<Vec<Object>> {
        let prefix = &self.backend.prefix;
        let listed = self.runtime.block_on(self.backend.objects.list(Some(prefix)).try_collect::<Vec<_>>());
        let listed = listed.map_err(|error| Error::Object { url: self.url.clone(), operation: "list", cause: error.to_string() })?;
        let mut objects = Vec::new();
        for object in listed {
            // A prefix matches whole path segments only.
            let Some(below) = object.location.prefix_match(prefix) else { continue };
            let path = below.map(|part| part.as_ref().to_owned()).collect::<Vec<_>>().join("/");
            let name = object.location.filename().unwrap_or_default();
            if Path::new(name).extension().is_some_and(|found| found == extension) && !name.starts_with(TEMPORARY_PREFIX) {
                objects.push(Object { path, size: Bytes(object.size) });
            }
        }
        objects.sort();
        Ok(objects)
    }

    /// Uploads a file. The object appears complete or not at all; an existing object under that path is replaced.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be read; [`Error::Object`].
    pub fn put(&self, path: &str, file: &Path) -> Result<()> {
        let location = self.locate(path)?;
        let mut from = File::open(file).map_err(FileError::at(file, "open"))?;
        let size = from.metadata().map_err(FileError::at(file, "read the size of"))?.len();
        let failed = |error: &object_store::Error| self.error("write", path, error);
        self.runtime.block_on(async {
            if size <= PART.0 {
                let payload = next_part(&mut from, file)?;
                return self.backend.objects.put(&location, payload).await.map(drop).map_err(|error| failed(&error));
            }
            let mut upload = self.backend.objects.put_multipart(&location).await.map_err(|error| failed(&error))?;
            loop {
                let payload = next_part(&mut from, file)?;
                if payload.content_length() == 0 {
                    break;
                }
                if let Err(error) = upload.put_part(payload).await {
                    // One failed part fails the upload: discard the parts that were sent.
                    let _ = upload.abort().await;
                    return Err(failed(&error));
                }
            }
            upload.complete().await.map(drop).map_err(|error| failed(&error))
        })
    }

    /// Returns an object as a local file: the file itself in a directory, a downloaded copy from an object store.
    ///
    /// # Errors
    /// [`Error::Object`] if it cannot be downloaded; [`Error::File`] if the copy cannot be written.
    pub fn fetch(&self, path: &str) -> Result<LocalCopy> {
        if let Some(directory) = &self.backend.directory {
            return Ok(LocalCopy { path: directory.join(path), _temporary: None });
        }
        let location = self.locate(path)?;
        let failed = |error: &object_store::Error| self.error("read", path, error);
        let mut copy = NamedTempFile::new().map_err(FileError::at(&std::env::temp_dir(), "create a file in"))?;
        self.runtime.block_on(async {
            let response = self.backend.objects.get(&location).await.map_err(|error| failed(&error))?;
            let mut parts = response.into_stream();
            while let Some(part) = parts.try_next().await.map_err(|error| failed(&error))? {
                copy.write_all(&part).map_err(FileError::at(copy.path(), "write"))?;
            }
            Ok::<_, Error>(())
        })?;
        let copy = copy.into_temp_path();
        Ok(LocalCopy { path: copy.to_path_buf(), _temporary: Some(copy) })
    }

    /// Reads a small object within [`READ_TIMEOUT`]. Returns `None` if no object has that path.
    ///
    /// # Errors
    /// [`Error::Object`] if it cannot be read in time or is larger than `size_max`.
    pub async fn read(&self, path: &str, size_max: Bytes) -> Result<Option<Vec<u8>>> {
        match tokio::time::timeout(READ_TIMEOUT, self.read_within(path, size_max)).await {
            Ok(read) => read,
            Err(_) => Err(self.error("read", path, format!("no answer within {READ_TIMEOUT:?}"))),
        }
    }

    async fn read_within(&self, path: &str, size_max: Bytes) -> Result<Option<Vec<u8>>> {
        let location = self.locate(path)?;
        let failed = |error: &object_store::Error| self.error("read", path, error);
        let response = match self.backend.objects.get(&location).await {
            Ok(response) => response,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(failed(&error)),
        };
        if response.meta.size > size_max.0 {
            return Err(self.error("read", path, format!("{} bytes, more than the limit of {}", response.meta.size, size_max.0)));
        }
        // The reported size may be wrong: the limit also holds for the bytes received.
        let mut bytes = Vec::new();
        let mut parts = response.into_stream();
        while let Some(part) = parts.try_next().await.map_err(|error| failed(&error))? {
            bytes.extend_from_slice(&part);
            if bytes.len() as u64 > size_max.0 {
                return Err(self.error("read", path, format!("more bytes than the limit of {}", size_max.0)));
            }
        }
        Ok(Some(bytes))
    }

    /// Writes a small object, complete or not at all. With `only_new`, an existing object stays and the result is
    /// `false`.
    ///
    /// # Errors
    /// [`Error::Object`].
    pub async fn write(&self, path: &str, bytes: Vec<u8>, only_new: bool) -> Result<bool> {
        let location = self.locate(path)?;
        let mode = if only_new { PutMode::Create } else { PutMode::Overwrite };
        match self.backend.objects.put_opts(&location, PutPayload::from(bytes), mode.into()).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::AlreadyExists { .. }) if only_new => Ok(false),
            Err(error) => Err(self.error("write", path, error)),
        }
    }

    /// Runs a future to completion in the store's runtime, which owns its connections.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    fn locate(&self, path: &str) -> Result<ObjectPath> {
        let prefix = &self.backend.prefix;
        let whole = if prefix.as_ref().is_empty() { path.to_owned() } else { format!("{prefix}/{path}") };
        ObjectPath::parse(whole).map_err(|error| self.error("use", path, error))
    }

    fn error(&self, operation: &'static str, path: &str, cause: impl ToString) -> Error {
        Error::Object { url: format!("{}/{path}", self.url.trim_end_matches('/')), operation, cause: cause.to_string() }
    }
}

/// Reads the next part of a file; an empty one at its end.
fn next_part(from: &mut File, file: &Path) -> Result<PutPayload> {
    let mut part = Vec::new();
    from.take(PART.0).read_to_end(&mut part).map_err(FileError::at(file, "read"))?;
    Ok(PutPayload::from(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_returns_the_files_that_were_put_into_it() {
        let dir = tempfile::tempdir().unwrap();
        let given = dir.path().join("given");
        let store = Store::open(dir.path().join("store/of/traces").to_str().unwrap()).unwrap();
        let part = usize::try_from(PART.0).unwrap();
        let mut expected = Vec::new();
        for (path, bytes) in
            [("a/machine=x%20y/1.parquet", 5), ("a/2.parquet", 0), ("b=c/3.parquet", part), ("b=c/4.parquet", 2 * part + 7)]
        {
            let content: Vec<u8> = (0..bytes).map(|at| u8::try_from(at % 251).unwrap()).collect();
            std::fs::write(&given, &content).unwrap();
            // The second upload replaces the first.
            store.put(path, &given).unwrap();
            store.put(path, &given).unwrap();
            assert!(std::fs::read(store.fetch(path).unwrap().path()).unwrap() == content, "{path}");
            expected.push(Object { path: path.to_owned(), size: Bytes(bytes as u64) });
        }
        for skipped in ["README", ".unfinished-1.parquet"] {
            std::fs::write(dir.path().join("store/of/traces").join(skipped), "no trace").unwrap();
        }
        expected.sort();
        assert_eq!(store.list("parquet").unwrap(), expected);
    }

    #[test]
    fn small_objects_are_read_within_their_limit_and_replaced_unless_only_new() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().to_str().unwrap()).unwrap();
        let read = |path: &str, size_max| store.block_on(store.read(path, Bytes(size_max)));
        assert_eq!(read("a/1", 9).unwrap(), None);
        for (bytes, only_new, written) in [("one", true, true), ("two", true, false), ("three", false, true)] {
            assert_eq!(store.block_on(store.write("a/1", bytes.into(), only_new)).unwrap(), written, "{bytes}");
        }
        assert_eq!(read("a/1", 5).unwrap().as_deref(), Some("three".as_bytes()));
        let error = read("a/1", 4).unwrap_err().to_string();
        assert_eq!(error, format!("cannot read {}/a/1: 5 bytes, more than the limit of 4", store.url()));
        assert!(read("../x", 4).is_err());
    }

    #[test]
    fn a_url_that_names_no_store_is_rejected_with_the_reason() {
        let check = |url: &str, reason: &str| {
            let error = Store::open(url).unwrap_err().to_string();
            assert!(error.contains(url) && error.contains(reason), "{error}");
        };
        check("gopher://x", "write a path");
        check("file://relative", "write a path");
        #[cfg(not(feature = "s3"))]
        check("s3://bucket/prefix", "--features s3");
        check("/proc/none", "cannot create");
    }
}

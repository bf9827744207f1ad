//! Where traces are kept: a directory, or an object store.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutPayload};
use tempfile::{NamedTempFile, TempPath};
use tokio::runtime::Runtime;

use crate::error::{Error, Result};
use crate::write::TEMPORARY;

/// A larger object is sent in parts of this size; one part at a time is in memory.
const PART_BYTES: u64 = 8 << 20;

/// An open store.
#[derive(Debug)]
pub struct Store {
    url: String,
    /// Where it is on this machine, if it is a directory.
    directory: Option<PathBuf>,
    objects: Arc<dyn ObjectStore>,
    /// What all paths below begin with, within the bucket.
    prefix: ObjectPath,
    runtime: Runtime,
}

/// An object of a store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Object {
    /// Its path below the store's URL.
    pub path: String,
    /// Its size.
    pub bytes: u64,
}

/// An object's bytes on this machine; a copy is removed when it is dropped.
#[derive(Debug)]
pub struct Fetched {
    path: PathBuf,
    /// Removes it. Closed, for a model holds the copies of a whole fleet at once.
    _copy: Option<TempPath>,
}

impl Fetched {
    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Store {
    /// Opens a store: a path, `file:///path`, or `s3://bucket/prefix` where the program was built with the feature `s3`.
    /// A directory is made with the first object. Credentials, region and endpoint of an object store come from the
    /// environment (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT` ...), or from the machine's role.
    ///
    /// # Errors
    /// [`Error::Store`] for an URL that names none.
    pub fn open(url: &str) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| failed(url, format!("cannot start: {error}")))?;
        let (objects, prefix, directory) = match url.split_once("://") {
            None => local(url, Path::new(url))?,
            Some(("file", path)) if path.starts_with('/') => local(url, Path::new(path))?,
            Some(("s3", _)) => s3(url)?,
            Some(_) => return Err(failed(url, "no store; write a path, or s3://bucket/prefix")),
        };
        Ok(Self { url: url.to_owned(), directory, objects, prefix, runtime })
    }

    /// What it was opened by.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Every trace in it, whatever its kind, by path.
    ///
    /// # Errors
    /// [`Error::Store`] where it cannot be reached.
    pub fn list(&self) -> Result<Vec<Object>> {
        let listed = self.runtime.block_on(self.objects.list(Some(&self.prefix)).try_collect::<Vec<_>>());
        let mut objects = Vec::new();
        for object in listed.map_err(|error| self.failed(&error))? {
            // A listing holds whole segments of the prefix only.
            let Some(below) = object.location.prefix_match(&self.prefix) else { continue };
            let path = below.map(|part| part.as_ref().to_owned()).collect::<Vec<_>>().join("/");
            let name = object.location.filename().unwrap_or_default();
            if Path::new(name).extension().is_some_and(|extension| extension == "parquet") && !name.starts_with(TEMPORARY) {
                objects.push(Object { path, bytes: object.size });
            }
        }
        objects.sort();
        Ok(objects)
    }

    /// Puts a file into the store: whole, or not at all. What was there under that path is replaced.
    ///
    /// # Errors
    /// [`Error::Io`] where the file cannot be read; [`Error::Store`].
    pub fn put(&self, path: &str, file: &Path) -> Result<()> {
        let location = self.locate(path)?;
        let mut from = File::open(file).map_err(Error::io(file, "open"))?;
        let mut part = Vec::new();
        let mut next = |from: &mut File| {
            part.clear();
            from.take(PART_BYTES).read_to_end(&mut part).map_err(Error::io(file, "read"))?;
            Ok(PutPayload::from(part.clone()))
        };
        let size = from.metadata().map_err(Error::io(file, "look at"))?.len();
        self.runtime.block_on(async {
            if size <= PART_BYTES {
                let payload = next(&mut from)?;
                return self.objects.put(&location, payload).await.map(drop).map_err(|error| self.failed(&error));
            }
            let mut upload = self.objects.put_multipart(&location).await.map_err(|error| self.failed(&error))?;
            loop {
                let payload = next(&mut from)?;
                if payload.content_length() == 0 {
                    break;
                }
                if let Err(error) = upload.put_part(payload).await {
                    // A failed part fails the upload; what was sent of it need not stay.
                    let _ = upload.abort().await;
                    return Err(self.failed(&error));
                }
            }
            upload.complete().await.map(drop).map_err(|error| self.failed(&error))
        })
    }

    /// Brings an object to this machine. Those of a directory are there already.
    ///
    /// # Errors
    /// [`Error::Store`] where it cannot be had; [`Error::Io`] where there is no room for a copy.
    pub fn fetch(&self, path: &str) -> Result<Fetched> {
        if let Some(directory) = &self.directory {
            return Ok(Fetched { path: directory.join(path), _copy: None });
        }
        let location = self.locate(path)?;
        let mut copy = NamedTempFile::new().map_err(Error::io(&std::env::temp_dir(), "make a file in"))?;
        self.runtime.block_on(async {
            let got = self.objects.get(&location).await.map_err(|error| self.failed(&error))?;
            let mut parts = got.into_stream();
            while let Some(part) = parts.try_next().await.map_err(|error| self.failed(&error))? {
                copy.write_all(&part).map_err(Error::io(copy.path(), "write"))?;
            }
            Ok(())
        })?;
        let copy = copy.into_temp_path();
        Ok(Fetched { path: copy.to_path_buf(), _copy: Some(copy) })
    }

    /// A small object's bytes; `None` where there is none under that path. To be waited for by [`Self::wait`].
    ///
    /// # Errors
    /// [`Error::Store`] where it cannot be had, or is larger than `bytes_max`.
    pub async fn read(&self, path: &str, bytes_max: u64) -> Result<Option<Vec<u8>>> {
        let location = self.locate(path)?;
        let got = match self.objects.get(&location).await {
            Ok(got) => got,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(self.failed(&error)),
        };
        if got.meta.size > bytes_max {
            return Err(failed(&self.url, format!("{path} has {} bytes, more than {bytes_max}", got.meta.size)));
        }
        // What a store says of an object's size need not be so.
        let mut bytes = Vec::new();
        let mut parts = got.into_stream();
        while let Some(part) = parts.try_next().await.map_err(|error| self.failed(&error))? {
            bytes.extend_from_slice(&part);
            if bytes.len() as u64 > bytes_max {
                return Err(failed(&self.url, format!("{path} has more than {bytes_max} bytes")));
            }
        }
        Ok(Some(bytes))
    }

    /// Writes a small object: whole, or not at all. Returns whether it did: with `only_new`, an object that is there under
    /// that path stays. To be waited for by [`Self::wait`].
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn write(&self, path: &str, bytes: Vec<u8>, only_new: bool) -> Result<bool> {
        let location = self.locate(path)?;
        let mode = if only_new { PutMode::Create } else { PutMode::Overwrite };
        match self.objects.put_opts(&location, PutPayload::from(bytes), mode.into()).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::AlreadyExists { .. }) if only_new => Ok(false),
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// Waits for what takes time, in the runtime that the store's connections belong to.
    pub fn wait<F: Future>(&self, what: F) -> F::Output {
        self.runtime.block_on(what)
    }

    fn locate(&self, path: &str) -> Result<ObjectPath> {
        let whole = if self.prefix.as_ref().is_empty() { path.to_owned() } else { format!("{}/{path}", self.prefix) };
        ObjectPath::parse(whole).map_err(|error| failed(&self.url, error.to_string()))
    }

    fn failed(&self, error: &object_store::Error) -> Error {
        failed(&self.url, error.to_string())
    }
}

fn failed(url: &str, what: impl Into<String>) -> Error {
    Error::Store { url: url.to_owned(), what: what.into() }
}

type Opened = (Arc<dyn ObjectStore>, ObjectPath, Option<PathBuf>);

fn local(url: &str, directory: &Path) -> Result<Opened> {
    std::fs::create_dir_all(directory).map_err(Error::io(directory, "make"))?;
    let store = LocalFileSystem::new_with_prefix(directory).map_err(|error| failed(url, error.to_string()))?;
    Ok((Arc::new(store.with_fsync(true)), ObjectPath::default(), Some(directory.to_owned())))
}

#[cfg(feature = "s3")]
fn s3(url: &str) -> Result<Opened> {
    use object_store::aws::AmazonS3Builder;

    let (bucket, prefix) = url.trim_start_matches("s3://").split_once('/').unwrap_or((url.trim_start_matches("s3://"), ""));
    let store = AmazonS3Builder::from_env().with_bucket_name(bucket).build().map_err(|error| failed(url, error.to_string()))?;
    let prefix = ObjectPath::parse(prefix).map_err(|error| failed(url, error.to_string()))?;
    Ok((Arc::new(store), prefix, None))
}

#[cfg(not(feature = "s3"))]
fn s3(url: &str) -> Result<Opened> {
    Err(failed(url, "this program was built without object stores; build it with `--features s3`, or name a directory"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_keeps_what_is_put_into_it() {
        let dir = tempfile::tempdir().unwrap();
        let given = dir.path().join("given");
        let store = Store::open(dir.path().join("store/of/traces").to_str().unwrap()).unwrap();
        let part = usize::try_from(PART_BYTES).unwrap();
        let mut want = Vec::new();
        for (path, bytes) in
            [("a/machine=x%20y/1.parquet", 5), ("a/2.parquet", 0), ("b=c/3.parquet", part), ("b=c/4.parquet", 2 * part + 7)]
        {
            let content: Vec<u8> = (0..bytes).map(|at| u8::try_from(at % 251).unwrap()).collect();
            std::fs::write(&given, &content).unwrap();
            // The second time replaces the first.
            store.put(path, &given).unwrap();
            store.put(path, &given).unwrap();
            assert!(std::fs::read(store.fetch(path).unwrap().path()).unwrap() == content, "{path}");
            want.push(Object { path: path.to_owned(), bytes: bytes as u64 });
        }
        std::fs::write(dir.path().join("store/of/traces/README"), "no trace").unwrap();
        want.sort();
        assert_eq!(store.list().unwrap(), want);
    }

    #[test]
    fn small_objects_are_read_within_their_limit_and_written_over_only_where_wanted() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().to_str().unwrap()).unwrap();
        let read = |path: &str, most| store.wait(store.read(path, most));
        assert_eq!(read("a/1", 9).unwrap(), None);
        for (bytes, only_new, done) in [("one", true, true), ("two", true, false), ("three", false, true)] {
            assert_eq!(store.wait(store.write("a/1", bytes.into(), only_new)).unwrap(), done, "{bytes}");
        }
        assert_eq!(read("a/1", 5).unwrap().as_deref(), Some("three".as_bytes()));
        assert!(read("a/1", 4).unwrap_err().to_string().contains("5 bytes, more than 4"));
        assert!(read("../x", 4).is_err());
    }

    #[test]
    fn what_is_no_store_is_told() {
        let check = |url: &str, piece: &str| {
            let error = Store::open(url).unwrap_err().to_string();
            assert!(error.contains(url) && error.contains(piece), "{error}");
        };
        check("gopher://x", "write a path");
        check("file://relative", "write a path");
        #[cfg(not(feature = "s3"))]
        check("s3://bucket/prefix", "--features s3");
        check("/proc/none", "cannot make");
    }
}

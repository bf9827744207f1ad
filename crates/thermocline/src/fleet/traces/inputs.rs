//! The trace files that a command reads.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use store::{LocalCopy, Store};

use crate::progress::progress;

/// A trace file, local or in a store.
pub(crate) struct Input {
    /// Its path or URL, for messages.
    pub(super) name: String,
    /// Its partitions and name below the store.
    pub(super) below: String,
    /// Its size.
    pub(crate) bytes: u64,
    place: Place,
}

enum Place {
    File(PathBuf),
    Object { store: usize, path: String },
}

/// The files, and the stores that they are in.
pub(crate) struct Inputs {
    stores: Vec<Store>,
    pub(crate) files: Vec<Input>,
}

/// A local file, or a copy that exists while it is used.
pub(crate) enum Local {
    File(PathBuf),
    Fetched(LocalCopy),
}

impl Local {
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::File(path) => path,
            Self::Fetched(fetched) => fetched.path(),
        }
    }
}

impl Inputs {
    /// Every trace that `urls` name, at least one.
    pub(crate) fn find(urls: &[String]) -> Result<Self> {
        let inputs = Self::list(urls)?;
        if inputs.is_empty() {
            bail!("{}", Self::nothing(urls));
        }
        Ok(inputs)
    }

    /// What to do where there is no trace.
    pub(crate) fn nothing(urls: &[String]) -> String {
        format!("no trace in {}; agents write them where trace.store says, each hour", urls.join(", "))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Every trace that `urls` name.
    pub(crate) fn list(urls: &[String]) -> Result<Self> {
        let mut inputs = Self { stores: Vec::new(), files: Vec::new() };
        for url in urls {
            let path = Path::new(url);
            if !url.contains("://") && !path.is_dir() {
                let bytes = path.metadata().with_context(|| format!("cannot open {url}"))?.len();
                let below = path.file_name().map_or_else(|| url.clone(), |name| name.to_string_lossy().into_owned());
                inputs.files.push(Input { name: url.clone(), below, bytes, place: Place::File(path.to_owned()) });
                continue;
            }
            let store = Store::open(url)?;
            for object in store.list(trace::EXTENSION)? {
                let name = format!("{}/{}", url.trim_end_matches('/'), object.path);
                let place = Place::Object { store: inputs.stores.len(), path: object.path.clone() };
                inputs.files.push(Input { name, below: object.path, bytes: object.size.0, place });
            }
            inputs.stores.push(store);
        }
        Ok(inputs)
    }

    /// Local paths of all files; objects are copied to this machine.
    pub(crate) fn all_local(&self) -> Result<Vec<Local>> {
        let progress = progress("files brought", self.files.len() as u64);
        let brought = self.files.iter().map(|input| {
            progress.inc(1);
            self.local(input).with_context(|| format!("cannot bring {} here", input.name))
        });
        brought.collect()
    }

    /// The local path of a file; an object is copied to this machine.
    pub(super) fn local(&self, input: &Input) -> Result<Local> {
        Ok(match &input.place {
            Place::File(path) => Local::File(path.clone()),
            Place::Object { store, path } => Local::Fetched(self.stores[*store].fetch(path)?),
        })
    }
}

/// Writes the file that `make` produces to a path or a URL.
pub(super) fn put<T>(to: &str, make: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    if !to.contains("://") {
        return make(Path::new(to));
    }
    let (store, name) = to
        .rsplit_once('/')
        .filter(|(store, name)| !name.is_empty() && !store.ends_with('/'))
        .context("--to names no file; write s3://bucket/path/file.parquet")?;
    let directory = tempfile::tempdir().context("cannot create a temporary directory")?;
    let file = directory.path().join("made.parquet");
    let made = make(&file)?;
    Store::open(store)?.put(name, &file)?;
    Ok(made)
}

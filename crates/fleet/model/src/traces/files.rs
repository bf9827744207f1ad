//! Finds and identifies trace files.

use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use store::FileError;

use super::error::Error;
use crate::coverage::fingerprint;

/// Bytes at the end of a file that identify it: a Parquet file has its metadata there.
const TAIL_BYTES: u64 = 64 << 10;

/// A trace file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct File {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    pub(super) row_groups: usize,
}

impl File {
    pub(super) fn open(path: PathBuf) -> Result<Self, Error> {
        let metadata = std::fs::metadata(&path).map_err(FileError::at(&path, "read"))?;
        Ok(Self { path, bytes: metadata.len(), row_groups: 0 })
    }

    /// Returns the path from its first partition on, which is independent of the store's location; without partitions,
    /// the name.
    pub(super) fn below(&self) -> Vec<u8> {
        let parts = || self.path.components().map(|part| part.as_os_str().as_encoded_bytes());
        let first = parts().position(|part| part.starts_with(b"cluster=")).unwrap_or_else(|| parts().count().saturating_sub(1));
        parts().skip(first).collect::<Vec<_>>().join(&b'/')
    }

    /// Identifies a file whose path names no machine.
    pub(super) fn fingerprint(&self) -> Result<u64, Error> {
        let tail = || -> std::io::Result<Vec<u8>> {
            let mut file = std::fs::File::open(&self.path)?;
            file.seek(SeekFrom::Start(self.bytes.saturating_sub(TAIL_BYTES)))?;
            let mut tail = Vec::new();
            file.take(TAIL_BYTES).read_to_end(&mut tail)?;
            Ok(tail)
        };
        let tail = tail().map_err(FileError::at(&self.path, "read"))?;
        Ok(fingerprint([self.bytes.to_le_bytes().as_slice(), &tail]))
    }
}

/// Identifies files that are read together and name no machine.
pub(super) fn fingerprint_of_all(files: &[File]) -> Result<u64, Error> {
    let each: Vec<_> = files.iter().map(|file| file.fingerprint().map(u64::to_le_bytes)).collect::<Result<_, _>>()?;
    Ok(fingerprint(each.iter().map(<[u8; 8]>::as_slice)))
}

/// Identifies the set of a machine's files.
pub(super) fn listing(files: &[File]) -> u64 {
    let each: Vec<_> = files.iter().map(|file| (file.below(), file.bytes.to_le_bytes())).collect();
    fingerprint(each.iter().flat_map(|(below, bytes)| [below.as_slice(), bytes]))
}

/// Returns the trace files at or below some paths, sorted.
pub(super) fn find(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Error> {
    let mut files = Vec::new();
    for path in paths {
        let before = files.len();
        collect(path, &mut files)?;
        if files.len() == before {
            return Err(Error::None(path.clone()));
        }
    }
    files.sort();
    files.dedup();
    Ok(files)
}

/// Returns the cluster and machine that a path names.
pub(super) fn machine(path: &Path) -> Option<String> {
    let named = |key: &str| {
        path.components().filter_map(|part| part.as_os_str().to_str()).find(|part| part.starts_with(key)).map(ToOwned::to_owned)
    };
    Some(named("cluster=").unwrap_or_default() + "/" + &named("machine=")?)
}

/// Collects every trace file at or below a path.
pub(super) fn collect(path: &Path, files: &mut Vec<PathBuf>) -> Result<(), Error> {
    let failed = || FileError::at(path, "read");
    if !std::fs::metadata(path).map_err(failed())?.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    for entry in std::fs::read_dir(path).map_err(failed())? {
        let entry = entry.map_err(failed())?;
        let (below, kind) = (entry.path(), entry.file_type().map_err(failed())?);
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        if kind.is_dir() {
            collect(&below, files)?;
        } else if !hidden && below.extension().is_some_and(|extension| extension == trace::EXTENSION) {
            files.push(below);
        }
    }
    Ok(())
}

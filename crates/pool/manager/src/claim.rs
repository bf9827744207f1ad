//! Taking hold of a slice, on its host.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::api::Slice;

/// Why a slice cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Unclaimed {
    /// The manager has given it to somebody else since, or somebody has removed the file.
    #[error("slice {emc}/{index} is not this host's any more: {path} is gone; give the VM's slices back and ask again")]
    Fenced {
        /// The EMC.
        emc: u16,
        /// Its place there.
        index: u32,
        /// Its file.
        path: PathBuf,
    },
    /// Somebody uses it, or the manager is about to take it back.
    #[error("slice {emc}/{index} is in use: another process holds the lock on {path}")]
    InUse {
        /// The EMC.
        emc: u16,
        /// Its place there.
        index: u32,
        /// Its file.
        path: PathBuf,
    },
    /// The file is not what the manager said.
    #[error("{path} has {found} bytes where the slice has {expected}")]
    Size {
        /// Its file.
        path: PathBuf,
        /// As found.
        found: u64,
        /// As said.
        expected: u64,
    },
    /// The system's word.
    #[error("cannot open or lock {path}: {source}")]
    Io {
        /// Its file.
        path: PathBuf,
        /// What it said.
        source: std::io::Error,
    },
}

/// Opens and locks the file of a slice that the manager has given. Hand this very open file, not its path, to the process
/// that maps it: the slice is in use until the last copy of it is closed.
///
/// A slice may be in use for a moment only, while the manager looks whether it is: it does so after a lease was over. Try again
/// for a second.
///
/// # Errors
/// [`Unclaimed`]; nothing is held then.
pub fn claim(slice: &Slice) -> Result<File, Unclaimed> {
    let Slice { emc, index, path, bytes, .. } = slice;
    let (emc, index) = (*emc, *index);
    let fenced = || Unclaimed::Fenced { emc, index, path: path.clone() };
    let io = |source| Unclaimed::Io { path: path.clone(), source };
    let Some(file) = lock(path).map_err(io)? else {
        return Err(if path.exists() { Unclaimed::InUse { emc, index, path: path.clone() } } else { fenced() });
    };
    let about = file.metadata().map_err(io)?;
    // Between opening and locking, the manager may have taken it back.
    if about.nlink() == 0 {
        return Err(fenced());
    }
    if about.len() != bytes.0 {
        return Err(Unclaimed::Size { path: path.clone(), found: about.len(), expected: bytes.0 });
    }
    Ok(file)
}

/// The file at `path`, opened and locked; none if there is none, or somebody has locked it.
pub(crate) fn lock(path: &Path) -> std::io::Result<Option<File>> {
    let file = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(path: PathBuf) -> Slice {
        Slice { emc: 0, index: 3, generation: 1, path, bytes: units::Bytes(4096) }
    }

    #[test]
    fn a_slice_is_claimed_by_one_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("slice-000003.1");
        let slice = slice(path.clone());
        assert!(matches!(claim(&slice), Err(Unclaimed::Fenced { .. })));
        std::fs::write(&path, [0; 4096]).unwrap();
        let held = claim(&slice).unwrap();
        let copy = held.try_clone().unwrap();
        assert!(matches!(claim(&slice), Err(Unclaimed::InUse { .. })));
        drop(held);
        assert!(matches!(claim(&slice), Err(Unclaimed::InUse { .. })), "until the last copy is closed");
        drop(copy);
        assert!(claim(&slice).is_ok());
        File::options().write(true).open(&path).unwrap().set_len(100).unwrap();
        assert!(matches!(claim(&slice), Err(Unclaimed::Size { found: 100, .. })));
    }
}

//! Claiming a slice on its host.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::api::Slice;

/// Why a slice cannot be claimed.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// The slice has another owner since, or its file was removed.
    #[error("slice {emc}/{index} is no longer assigned to this host: {path} does not exist; return the VM's slices and request new ones")]
    Fenced {
        /// The EMC.
        emc: u16,
        /// Index at its EMC.
        index: u32,
        /// The file.
        path: PathBuf,
    },
    /// The slice is a part of a device, which no guest of this machine can be given.
    #[error(
        "slice {emc}/{index} is a part of {path}: `thermocline pool memory` brings it online on a whole machine; a guest needs an EMC whose slices are files"
    )]
    Device {
        /// The EMC.
        emc: u16,
        /// Index at its EMC.
        index: u32,
        /// The device.
        path: PathBuf,
    },
    /// A process uses the slice, or the manager is reclaiming it.
    #[error("slice {emc}/{index} is in use: another process holds the lock on {path}")]
    InUse {
        /// The EMC.
        emc: u16,
        /// Index at its EMC.
        index: u32,
        /// The file.
        path: PathBuf,
    },
    /// The file does not have the size of the slice.
    #[error("{path} has {found} bytes, the slice has {expected}")]
    Size {
        /// The file.
        path: PathBuf,
        /// Size found.
        found: u64,
        /// Size of the slice.
        expected: u64,
    },
    /// The file cannot be opened or locked.
    #[error("cannot open or lock {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
}

/// Opens and locks the file of an assigned slice. Pass this open file, not its path, to the process that maps it: the
/// slice is in use until the last copy is closed.
///
/// After a lease has expired, the manager locks slices briefly to find those that are not in use. Retry for a second.
///
/// # Errors
/// [`ClaimError`]; nothing is locked then.
pub fn claim(slice: &Slice) -> Result<File, ClaimError> {
    let Slice { emc, index, path, bytes, .. } = slice;
    if slice.offset.is_some() {
        return Err(ClaimError::Device { emc: *emc, index: *index, path: path.clone() });
    }
    let (emc, index) = (*emc, *index);
    let fenced = || ClaimError::Fenced { emc, index, path: path.clone() };
    let failed = |source| ClaimError::File { path: path.clone(), source };
    let Some(file) = lock(path).map_err(failed)? else {
        return Err(if path.exists() { ClaimError::InUse { emc, index, path: path.clone() } } else { fenced() });
    };
    let metadata = file.metadata().map_err(failed)?;
    // The manager may have reclaimed the slice between opening and locking.
    if metadata.nlink() == 0 {
        return Err(fenced());
    }
    if metadata.len() != bytes.0 {
        return Err(ClaimError::Size { path: path.clone(), found: metadata.len(), expected: bytes.0 });
    }
    Ok(file)
}

/// Opens and locks the file at `path`; `None` if it does not exist or is locked.
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
        Slice { emc: 0, index: 3, generation: 1, path, offset: None, bytes: units::Bytes(4096) }
    }

    #[test]
    fn a_slice_is_claimed_by_one_process_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("slice-000003.1");
        let slice = slice(path.clone());
        assert!(matches!(claim(&slice), Err(ClaimError::Fenced { .. })));
        std::fs::write(&path, [0; 4096]).unwrap();
        let held = claim(&slice).unwrap();
        let copy = held.try_clone().unwrap();
        assert!(matches!(claim(&slice), Err(ClaimError::InUse { .. })));
        drop(held);
        assert!(matches!(claim(&slice), Err(ClaimError::InUse { .. })), "until the last copy is closed");
        drop(copy);
        assert!(claim(&slice).is_ok());
        File::options().write(true).open(&path).unwrap().set_len(100).unwrap();
        assert!(matches!(claim(&slice), Err(ClaimError::Size { found: 100, .. })));
    }
}

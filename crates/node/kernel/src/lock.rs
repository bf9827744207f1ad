//! One agent per machine: a pid file under an exclusive `flock(2)`.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;

use crate::{Error, Result, file};

/// An exclusive lock on a pid file, held until dropped. The kernel releases it when the process ends, however it
/// ends; the file stays, because removing it would let two holders lock two files of one name.
#[derive(Debug)]
pub struct PidLock {
    _file: File,
}

impl PidLock {
    /// Locks the file at `path`, making it if need be, and writes our pid into it.
    ///
    /// # Errors
    /// [`Error::Busy`] naming the holder; [`Error::Gone`] where the directory does not exist; [`Error::Io`].
    pub fn acquire(path: &Path) -> Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(|source| Error::from_io(path, "open", source))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let holder = file::read_opened(&file, path, file::SMALL)?;
                let holder = match holder.trim() {
                    "" => "another process",
                    pid => &format!("process {pid}"),
                };
                return Err(Error::busy(
                    format!("{} is locked by {holder}", path.display()),
                    "stop that agent first, or talk to it instead of starting a second one",
                ));
            }
            Err(TryLockError::Error(source)) => return Err(Error::from_io(path, "lock", source)),
        }
        file.set_len(0)
            .and_then(|()| file::write_opened(&file, &format!("{}\n", std::process::id())))
            .map_err(|source| Error::from_io(path, "write", source))?;
        Ok(Self { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_holder_is_told_who_the_first_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("agent.pid");
        std::fs::write(&path, "999999999999 left by a dead agent\n").unwrap();
        let lock = PidLock::acquire(&path).unwrap();
        let pid = std::process::id();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{pid}\n"));
        let error = PidLock::acquire(&path).unwrap_err();
        let Error::Busy { what, .. } = error else { panic!("{error}") };
        assert!(what.ends_with(&format!("is locked by process {pid}")), "{what}");
        drop(lock);
        PidLock::acquire(&path).unwrap();
        assert!(PidLock::acquire(&directory.path().join("no/such")).unwrap_err().is_gone());
    }
}

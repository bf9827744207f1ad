//! One daemon per runtime directory: a pid file under an exclusive `flock(2)`.

use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use crate::{Error, Result};

/// Mode of the pid file. Whoever can open the file can lock it, so only its owner may.
const FILE_MODE: u32 = 0o600;

/// Mode of a runtime directory that is created here.
const DIRECTORY_MODE: u32 = 0o700;

/// The most that is read of a pid file.
const PID_BYTES_MAX: u64 = 32;

/// An exclusive lock on a pid file, held until dropped.
///
/// The kernel releases it when the process exits, however it exits. The file stays: removing it would let two processes
/// lock two files of the same name.
#[derive(Debug)]
pub struct PidLock {
    _file: File,
}

impl PidLock {
    /// Locks `directory/name` and writes the pid of this process into it. Creates the file with mode 0600, and the directory
    /// with mode 0700 if it does not exist.
    ///
    /// # Errors
    /// [`Error::Locked`] with the holder's pid if another process holds the lock; [`Error::Insecure`] if another user owns
    /// the file, or could replace it because the directory is writable by others without the sticky bit; [`Error::Io`].
    pub fn acquire(directory: &Path, name: &str) -> Result<Self> {
        prepare_directory(directory)?;
        let path = directory.join(name);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(FILE_MODE)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
            .open(&path)
            .map_err(Error::io(&path, "open"))?;
        restrict(&file, &path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::Locked { holder: holder(&file), path }),
            Err(TryLockError::Error(source)) => return Err(Error::io(&path, "lock")(source)),
        }
        file.set_len(0).map_err(Error::io(&path, "truncate"))?;
        writeln!(&file, "{}", std::process::id()).map_err(Error::io(&path, "write"))?;
        Ok(Self { _file: file })
    }
}

/// Creates the directory if it does not exist, and checks that no other user can replace files in it.
fn prepare_directory(directory: &Path) -> Result<()> {
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(directory).map_err(Error::io(directory, "create"))?;
    let metadata = directory.metadata().map_err(Error::io(directory, "inspect"))?;
    let (mode, owner, user) = (metadata.mode(), metadata.uid(), rustix::process::geteuid().as_raw());
    if owner != user && owner != 0 {
        return Err(Error::Insecure {
            path: directory.to_owned(),
            problem: format!("belongs to user {owner}, who can replace the pid file, and this process runs as user {user}"),
            remedy: "change its owner, or choose another runtime directory".to_owned(),
        });
    }
    if mode & 0o022 != 0 && mode & 0o1000 == 0 {
        return Err(Error::Insecure {
            path: directory.to_owned(),
            problem: format!("has mode {:04o}, so that other users can replace the pid file", mode & 0o7777),
            remedy: format!("run `chmod go-w {}`, or choose another runtime directory", directory.display()),
        });
    }
    Ok(())
}

/// Checks the owner of the pid file, and removes the access of other users that an earlier version or umask left.
fn restrict(file: &File, path: &Path) -> Result<()> {
    let metadata = file.metadata().map_err(Error::io(path, "inspect"))?;
    let user = rustix::process::geteuid().as_raw();
    if metadata.uid() != user {
        return Err(Error::Insecure {
            path: path.to_owned(),
            problem: format!("belongs to user {}, and this process runs as user {user}", metadata.uid()),
            remedy: "remove the file, or run as its owner".to_owned(),
        });
    }
    if metadata.mode() & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(FILE_MODE)).map_err(Error::io(path, "restrict the mode of"))?;
    }
    Ok(())
}

/// Names the process that holds the lock, as far as the file does.
fn holder(file: &File) -> String {
    let mut pid = String::new();
    match file.take(PID_BYTES_MAX).read_to_string(&mut pid) {
        Ok(_) if !pid.trim().is_empty() => format!("process {}", pid.trim()),
        _ => "another process".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().mode() & 0o7777
    }

    #[test]
    fn a_second_process_is_refused_with_the_pid_of_the_first() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("agent.pid");
        std::fs::write(&path, "999999999999 of a killed agent\n").unwrap();
        let lock = PidLock::acquire(directory.path(), "agent.pid").unwrap();
        let pid = std::process::id();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{pid}\n"));
        let error = PidLock::acquire(directory.path(), "agent.pid").unwrap_err();
        let Error::Locked { holder, .. } = error else { panic!("{error}") };
        assert_eq!(holder, format!("process {pid}"));
        drop(lock);
        PidLock::acquire(directory.path(), "agent.pid").unwrap();
    }

    #[test]
    fn only_the_owner_can_open_the_pid_file() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("run");
        let lock = PidLock::acquire(&directory, "agent.pid").unwrap();
        assert_eq!((mode(&directory), mode(&directory.join("agent.pid"))), (0o700, 0o600));
        drop(lock);
        std::fs::set_permissions(directory.join("agent.pid"), Permissions::from_mode(0o666)).unwrap();
        let _lock = PidLock::acquire(&directory, "agent.pid").unwrap();
        assert_eq!(mode(&directory.join("agent.pid")), 0o600);
    }

    #[test]
    fn a_replaceable_pid_file_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("run");
        std::fs::create_dir(&directory).unwrap();
        std::fs::set_permissions(&directory, Permissions::from_mode(0o777)).unwrap();
        let error = PidLock::acquire(&directory, "agent.pid").unwrap_err().to_string();
        assert!(error.contains("mode 0777") && error.contains("chmod go-w"), "{error}");
        std::fs::set_permissions(&directory, Permissions::from_mode(0o1777)).unwrap();
        std::os::unix::fs::symlink("/dev/null", directory.join("link.pid")).unwrap();
        assert!(matches!(PidLock::acquire(&directory, "link.pid"), Err(Error::Io { operation: "open", .. })));
        PidLock::acquire(&directory, "agent.pid").unwrap();
        if std::os::unix::fs::chown(&directory, Some(65_534), None).is_ok() {
            let error = PidLock::acquire(&directory, "agent.pid").unwrap_err().to_string();
            assert!(error.contains("belongs to user 65534"), "{error}");
        }
    }
}

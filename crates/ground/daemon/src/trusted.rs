//! Files of a privileged daemon: created for its user alone, and believed only if no other user can have written them.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use crate::{Error, Result};

/// Creates a directory with its parents, unless it exists. What is created is this user's alone.
///
/// # Errors
/// The I/O error of `mkdir(2)`.
pub fn create_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Opens a file to append to and read, which is created if it does not exist. Other users can neither read nor lock it, whatever an
/// earlier version or umask permitted.
///
/// # Errors
/// The I/O error.
pub fn open_to_append(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().create(true).read(true).append(true).mode(0o600).open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_file() && metadata.mode() & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(file)
}

/// Reads a file that this process wrote earlier; `None` if it does not exist.
///
/// # Errors
/// [`Error::Insecure`] if it is not a regular file, belongs to another user, can be written by others, or is longer than `limit`
/// bytes; [`Error::Io`], also if it is a symbolic link.
pub fn read(path: &Path, limit: u64) -> Result<Option<Vec<u8>>> {
    let Some(file) = open(path)? else { return Ok(None) };
    check(&file, path, limit)?;
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes).map_err(Error::io(path, "read"))?;
    Ok(Some(bytes))
}

/// Reads a file that another program writes, which is not trusted: `None` if it does not exist. A symbolic link is not followed, and
/// a pipe is not waited for.
///
/// # Errors
/// [`Error::Insecure`] if it is not a regular file, or longer than `limit` bytes; [`Error::Io`], also if it is a symbolic link.
pub fn read_foreign(path: &Path, limit: u64) -> Result<Option<Vec<u8>>> {
    let Some(file) = open(path)? else { return Ok(None) };
    let metadata = file.metadata().map_err(Error::io(path, "inspect"))?;
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).map_err(Error::io(path, "read"))?;
    let problem = if !metadata.is_file() {
        "is not a regular file".to_owned()
    } else if u64::try_from(bytes.len()).is_ok_and(|len| len > limit) {
        format!("has more than {limit} bytes")
    } else {
        return Ok(Some(bytes));
    };
    Err(Error::Insecure { path: path.to_owned(), problem, remedy: "check the program that writes it".to_owned() })
}

fn open(path: &Path) -> Result<Option<File>> {
    let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits().cast_signed();
    match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some).map_err(Error::io(path, "open")),
    }
}

fn check(file: &File, path: &Path, limit: u64) -> Result<()> {
    let metadata = file.metadata().map_err(Error::io(path, "inspect"))?;
    let user = rustix::process::geteuid().as_raw();
    let problem = if !metadata.is_file() {
        "is not a regular file".to_owned()
    } else if metadata.uid() != user {
        format!("belongs to user {}, and this process runs as user {user}", metadata.uid())
    } else if metadata.mode() & 0o022 != 0 {
        format!("has mode {:04o}, so that other users may have written it", metadata.mode() & 0o7777)
    } else if metadata.len() > limit {
        format!("has {} bytes, more than the {limit} that are expected at most", metadata.len())
    } else {
        return Ok(());
    };
    let remedy = "check its content, then remove it".to_owned();
    Err(Error::Insecure { path: path.to_owned(), problem, remedy })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::{chown, symlink};

    #[test]
    fn what_is_created_is_private() {
        let parent = tempfile::tempdir().unwrap();
        let (directory, mode) = (parent.path().join("a/b"), |path: &Path| path.metadata().unwrap().mode() & 0o777);
        create_directory(&directory).unwrap();
        create_directory(&directory).unwrap();
        let path = directory.join("journal");
        std::fs::write(&path, "1").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        open_to_append(&path).unwrap().write_all(b"2").unwrap();
        assert_eq!((mode(&parent.path().join("a")), mode(&directory), mode(&path)), (0o700, 0o700, 0o600));
        assert_eq!(std::fs::read(&path).unwrap(), b"12");
    }

    #[test]
    fn only_files_of_this_user_alone_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("undo.json");
        assert_eq!(read(&path, 10).unwrap(), None);
        std::fs::write(&path, "{}").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        assert_eq!(read(&path, 10).unwrap(), Some(b"{}".to_vec()));
        assert!(read(&path, 1).unwrap_err().to_string().contains("more than the 1"));
        std::fs::set_permissions(&path, Permissions::from_mode(0o664)).unwrap();
        assert!(read(&path, 10).unwrap_err().to_string().contains("mode 0664"));
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        let link = directory.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(matches!(read(&link, 10), Err(Error::Io { operation: "open", .. })));
        let fifo = directory.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR).unwrap();
        assert!(read_foreign(&fifo, 10).unwrap_err().to_string().contains("not a regular file"));
        assert!(matches!(read_foreign(&link, 10), Err(Error::Io { operation: "open", .. })));
        assert_eq!(read_foreign(&directory.path().join("missing"), 10).unwrap(), None);
        assert_eq!(read_foreign(&path, 2).unwrap(), Some(b"{}".to_vec()), "whoever may write it");
        assert!(read_foreign(&path, 1).unwrap_err().to_string().contains("more than 1 bytes"));
        assert!(read(&fifo, 10).unwrap_err().to_string().contains("not a regular file"), "and does not wait for a writer");
        if chown(&path, Some(65_534), None).is_ok() {
            assert!(read(&path, 10).unwrap_err().to_string().contains("belongs to user 65534"));
        } else {
            println!("not as root: the owner is not tested");
        }
    }
}

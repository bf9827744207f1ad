//! Files that appear under their names completely written, or not at all.
//!
//! A file is written under a temporary name in the same directory, synced and renamed.

use std::fs::{File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::NamedTempFile;
use units::Bytes;

use crate::error::FileError;

/// Prefix of the names of incomplete files. A process that is killed leaves such a file behind; [`crate::Store::list`]
/// skips it.
pub const TEMPORARY_PREFIX: &str = ".unfinished-";

/// Returns the directory that holds `path`: `.` for a bare file name.
#[must_use]
pub fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Creates a temporary file in the directory of `path`, and the directory if it is missing. [`persist`] renames it to
/// `path`.
///
/// Its permissions are those of a file that a shell creates: 0666 without the bits of the umask.
///
/// # Errors
/// [`FileError`] if the directory or the file cannot be created.
pub fn temporary_for(path: &Path) -> Result<NamedTempFile, FileError> {
    let directory = directory_of(path);
    std::fs::create_dir_all(directory).map_err(FileError::at(directory, "create"))?;
    let mut builder = tempfile::Builder::new();
    builder.prefix(TEMPORARY_PREFIX).permissions(Permissions::from_mode(0o666));
    builder.tempfile_in(directory).map_err(FileError::at(directory, "create a file in"))
}

/// Syncs a temporary file, renames it to `path` and syncs the directory, so that the name survives a power failure.
/// Returns the file's size.
///
/// # Errors
/// [`FileError`]; `path` is then unchanged, unless only the directory could not be synced.
pub fn persist(mut temporary: NamedTempFile, path: &Path) -> Result<Bytes, FileError> {
    temporary.flush().and_then(|()| temporary.as_file().sync_all()).map_err(FileError::at(path, "write"))?;
    let size = temporary.as_file().metadata().map_err(FileError::at(path, "read the size of"))?.len();
    temporary.persist(path).map_err(|error| FileError::at(path, "replace")(error.error))?;
    sync_directory(directory_of(path))?;
    Ok(Bytes(size))
}

/// Writes a file atomically and durably; an existing file is replaced. Only its owner may read it.
///
/// # Errors
/// [`FileError`], as for [`persist`]; also if the directory does not exist.
pub fn replace(path: &Path, contents: &[u8]) -> Result<(), FileError> {
    let directory = directory_of(path);
    let temporary = tempfile::Builder::new().prefix(TEMPORARY_PREFIX).tempfile_in(directory);
    let mut temporary = temporary.map_err(FileError::at(directory, "create a file in"))?;
    temporary.write_all(contents).map_err(FileError::at(path, "write"))?;
    persist(temporary, path).map(drop)
}

fn sync_directory(directory: &Path) -> Result<(), FileError> {
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(FileError::at(directory, "sync"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replace_leaves_the_new_contents_and_no_temporary_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        for contents in ["one", "two"] {
            replace(&path, contents.as_bytes()).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), contents);
        }
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn errors_name_the_operation_and_the_path() {
        let error = replace(Path::new("/proc/none/file"), b"").unwrap_err().to_string();
        assert!(error.starts_with("cannot create a file in /proc/none: "), "{error}");
        assert_eq!(directory_of(Path::new("file")), Path::new("."));
    }
}

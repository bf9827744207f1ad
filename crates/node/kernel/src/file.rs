//! Whole-file reads with a size limit, writes by one `write(2)`, and bulk reads of 64-bit words.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use crate::{Error, Malformed, Result};

/// Size limit of files that describe one object: `memory.stat`, `/proc/PID/stat`, a parameter. In bytes.
pub const SMALL: u64 = 256 << 10;
/// Size limit of files that grow with the machine: `lru_gen`, `/proc/PID/maps`, `cgroup.procs`. In bytes.
pub const LARGE: u64 = 64 << 20;

/// Reads a whole text file of at most `limit` bytes. Bytes that are not UTF-8 become U+FFFD.
///
/// # Errors
/// [`Error::Gone`] if the file or its object does not exist; [`Error::Parse`] if it is longer than `limit`;
/// [`Error::Io`] otherwise.
pub fn read(path: &Path, limit: u64) -> Result<String> {
    let file = File::open(path).map_err(|source| Error::from_io(path, "open", source))?;
    read_opened(&file, path, limit)
}

/// As [`read`], but returns `None` if the file does not exist.
///
/// # Errors
/// As [`read`], except for a file that does not exist.
pub fn read_optional(path: &Path, limit: u64) -> Result<Option<String>> {
    match File::open(path) {
        Ok(file) => read_opened(&file, path, limit).map(Some),
        Err(source) if is_absent(&source) => Ok(None),
        Err(source) => Err(Error::from_io(path, "open", source)),
    }
}

/// Writes `text` to an existing file by one `write(2)`, because the kernel parses each write as one command.
///
/// # Errors
/// [`Error::Gone`] if the file or its object does not exist; [`Error::Io`] otherwise, also if the kernel accepted only a
/// part.
pub fn write(path: &Path, text: &str) -> Result<()> {
    let file =
        OpenOptions::new().write(true).truncate(true).open(path).map_err(|source| Error::from_io(path, "open for writing", source))?;
    write_opened(&file, text).map_err(|source| Error::from_io(path, "write", source))
}

/// Whether an open failed because the file does not exist.
pub(crate) fn is_absent(source: &io::Error) -> bool {
    matches!(source.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR))
}

/// Room for a file that is read at once.
const READ_BYTES: usize = 4096;

pub(crate) fn read_opened(file: &File, path: &Path, limit: u64) -> Result<String> {
    // Most files fit: one call reads them, where an empty buffer would begin with 32 bytes and double with each call.
    let mut bytes = Vec::with_capacity(READ_BYTES);
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(|source| Error::from_io(path, "read", source))?;
    if bytes.len() as u64 > limit {
        let value = format!("more than {limit} bytes");
        return Err(Malformed::new(0, &value, "a file within the limit of its kind").at(path));
    }
    Ok(match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    })
}

pub(crate) fn write_opened(mut file: &File, text: &str) -> io::Result<()> {
    let written = file.write(text.as_bytes())?;
    if written == text.len() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::WriteZero, format!("the kernel accepted {written} of {} bytes", text.len())))
}

/// Opens a directory for [`open_at`], which then does not depend on the directory's path.
pub(crate) fn open_directory(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(path)
}

/// Opens `name` in `directory` for reading, or for writing.
pub(crate) fn open_at(directory: &File, name: &str, writing: bool) -> io::Result<File> {
    let name = CString::new(name)?;
    let flags = libc::O_CLOEXEC | if writing { libc::O_WRONLY | libc::O_TRUNC } else { libc::O_RDONLY };
    // SAFETY: `name` is a NUL-terminated string that outlives the call, `directory` an open descriptor; without
    // O_CREAT the variadic mode is not read.
    let descriptor = unsafe { libc::openat(directory.as_raw_fd(), name.as_ptr(), flags) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: openat has just returned this descriptor, and nothing else owns it.
    Ok(unsafe { File::from_raw_fd(descriptor) })
}

/// Reads 64-bit words in native order from byte `offset` on, until `words` is full or the file ends.
///
/// Returns the number of whole words read; a partial word at the end is dropped. A short `pread(2)` is continued: sysfs
/// returns one page at a time.
pub(crate) fn read_words_at(file: &File, offset: u64, words: &mut [u64]) -> io::Result<usize> {
    // SAFETY: u64 has no padding, every byte pattern is a valid u64, the alignment of u8 is smaller, and the
    // length in bytes is that of the borrowed slice, whose borrow this one replaces.
    let bytes = unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), size_of_val(words)) };
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled / size_of::<u64>())
}

/// Writes 64-bit words in native order from byte `offset` on. Returns the number of whole words written: fewer than given
/// if the file ends.
pub(crate) fn write_words_at(file: &File, offset: u64, words: &[u64]) -> io::Result<usize> {
    // SAFETY: u64 has no padding, so all its bytes are initialised; the length in bytes is that of the slice.
    let bytes = unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), size_of_val(words)) };
    let mut taken = 0;
    while taken < bytes.len() {
        match file.write_at(&bytes[taken..], offset + taken as u64) {
            Ok(0) => break,
            Ok(count) => taken += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // The idle bitmap returns ENXIO for a write that starts past the last page frame.
            Err(error) if taken > 0 && error.raw_os_error() == Some(libc::ENXIO) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(taken / size_of::<u64>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{get, tree};

    #[test]
    fn reads_are_bounded_and_replace_invalid_utf8() {
        let (keep, roots) = tree(&[("proc/x", "12345")]);
        let path = roots.proc.join("x");
        assert_eq!(read(&path, 5).unwrap(), "12345");
        assert!(matches!(read(&path, 4), Err(Error::Parse { line: 0, .. })));
        std::fs::write(keep.path().join("proc/x"), b"a\xffb").unwrap();
        assert_eq!(read(&path, 5).unwrap(), "a\u{fffd}b");
    }

    #[test]
    fn a_missing_file_is_distinguished_from_a_failed_read() {
        let (_keep, roots) = tree(&[("proc/x", "")]);
        for path in [roots.proc.join("y"), roots.proc.join("x/y")] {
            assert_eq!(read_optional(&path, SMALL).unwrap(), None, "{}", path.display());
        }
        assert!(read(&roots.proc.join("y"), SMALL).unwrap_err().is_gone());
        let error = read_optional(&roots.proc, SMALL).unwrap_err();
        assert_eq!(error.errno(), Some(libc::EISDIR), "{error}");
    }

    #[test]
    fn writes_replace_the_content_and_never_create_a_file() {
        let (keep, roots) = tree(&[("proc/x", "134217728\n")]);
        write(&roots.proc.join("x"), "max").unwrap();
        assert_eq!(get(keep.path(), "proc/x"), "max");
        assert!(write(&roots.proc.join("y"), "max").unwrap_err().is_gone());
        assert!(!roots.proc.join("y").exists());
    }
}

//! Reads configuration files, with a limit on their size.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use units::quantity::Invalid;

use crate::problem::Problem;

/// The largest file that is read, in bytes; a configuration file has a few kilobytes.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

/// Reads a file of UTF-8.
///
/// # Errors
/// The file cannot be read, is larger than [`FILE_BYTES_MAX`], or is not UTF-8. [`unreadable`] makes a problem of it.
pub fn read_file(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|len| len > FILE_BYTES_MAX) {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {FILE_BYTES_MAX} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        io::Error::new(io::ErrorKind::InvalidData, format!("not UTF-8: invalid byte at offset {offset}"))
    })
}

/// Returns the problem of a file or directory that cannot be read.
#[must_use]
pub fn unreadable(path: &Path, error: &io::Error) -> Problem {
    let remedy = match error.kind() {
        io::ErrorKind::NotFound => "name a file that exists",
        io::ErrorKind::PermissionDenied => "make it readable to the user that runs this program, or run as root",
        io::ErrorKind::InvalidData => "save it in UTF-8",
        _ => "name a readable file of TOML",
    };
    Problem::of_file(path, Invalid::new(format!("cannot be read: {error}"), remedy))
}

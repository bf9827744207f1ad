//! Files of the repository that are generated from a schema, and the check that they are up to date.

use std::fs;
use std::path::Path;

/// Checks that the file `path` holds `expected`. If the environment variable `UPDATE_DOCS` is set, writes it first.
///
/// # Errors
/// The file cannot be read or written, or differs; the message contains the command that updates it.
pub fn check(path: &Path, expected: &str) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(failed)?;
        }
        fs::write(path, expected).map_err(failed)?;
    }
    if fs::read_to_string(path).map_err(failed)? == expected {
        return Ok(());
    }
    Err(format!("{} differs from its declaration; run this test with UPDATE_DOCS=1", path.display()))
}

//! The file of job rules: replaced as a whole, and only if it changes.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Where the rules are written.
#[derive(Debug)]
pub struct RuleFile {
    path: PathBuf,
    /// What was written last; `None` before the first time, whatever an earlier process left.
    written: Option<String>,
}

const HEAD: &str = "# The rules of this node's pods, written by `thermocline kubernetes`.\n";

impl RuleFile {
    /// The file at `path`, which is not touched yet.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), written: None }
    }

    /// Replaces the rules; returns whether they differ from those before.
    ///
    /// # Errors
    /// The I/O error, with the path.
    pub fn write(&mut self, rules: &str) -> io::Result<bool> {
        let text = format!("{HEAD}{rules}");
        if self.written.as_ref() == Some(&text) && self.path.exists() {
            return Ok(false);
        }
        self.replace(&text).map_err(|error| io::Error::new(error.kind(), format!("cannot write {}: {error}", self.path.display())))?;
        self.written = Some(text);
        Ok(true)
    }

    fn replace(&self, text: &str) -> io::Result<()> {
        let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut file = tempfile::Builder::new().prefix(".rules").tempfile_in(directory)?;
        file.write_all(text.as_bytes())?;
        // Another user, the agent, reads it. It names pods by their UIDs alone.
        fs::set_permissions(file.path(), Permissions::from_mode(0o644))?;
        file.persist(&self.path)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_replaced_only_if_they_change() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rules.toml");
        let mut file = RuleFile::new(&path);
        assert!(file.write("a").unwrap() && !file.write("a").unwrap() && file.write("b").unwrap());
        assert!(fs::read_to_string(&path).unwrap().ends_with("\nb"));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        fs::remove_file(&path).unwrap();
        assert!(file.write("b").unwrap(), "a file that another program removed is written again");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        let error = RuleFile::new(Path::new("/no/such/rules.toml")).write("").unwrap_err().to_string();
        assert!(error.contains("/no/such/rules.toml"), "{error}");
    }
}

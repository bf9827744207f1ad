//! Problems of a configuration file: position, message and remedy.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use units::quantity::Invalid;

/// One problem of a configuration: its position, the cause and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The file, or the name of another source (`command line`).
    pub file: PathBuf,
    /// The line, from 1; `None` if the problem concerns the file as a whole.
    pub line: Option<usize>,
    /// The key with its tables, such as `agent.scan_period`. `None` if no key could be read.
    pub key: Option<String>,
    /// The value found, shortened and without control characters. `None` if the value is not the cause.
    pub value: Option<String>,
    /// The cause.
    pub message: String,
    /// The correction.
    pub remedy: String,
}

impl Problem {
    /// A problem of a whole file.
    #[must_use]
    pub fn of_file(file: &Path, invalid: Invalid) -> Self {
        Self { file: file.to_owned(), line: None, key: None, value: None, message: invalid.message, remedy: invalid.remedy }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ", line {line}")?;
        }
        f.write_str(": ")?;
        match (&self.key, &self.value) {
            (Some(key), Some(value)) => write!(f, "{key} = {value}: ")?,
            (Some(key), None) => write!(f, "{key}: ")?,
            (None, Some(value)) => write!(f, "{value}: ")?,
            (None, None) => {}
        }
        write!(f, "{}; {}", self.message, self.remedy)
    }
}

/// All problems of a configuration, in the order of its files and lines. Never empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(transparent)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

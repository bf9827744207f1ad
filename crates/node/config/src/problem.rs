//! What is wrong with a configuration, all of it at once.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

/// One thing that is wrong: where, what, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The file, or what stands for it (`command line`).
    pub file: PathBuf,
    /// The line, from 1; `None` where the file as a whole is at fault.
    pub line: Option<usize>,
    /// The key, with its tables: `agent.scan_period`. `None` where no key could be read.
    pub key: Option<String>,
    /// The value found, cut to a readable length and free of control characters. `None` where it is not at fault.
    pub value: Option<String>,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub remedy: String,
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

/// Everything that is wrong with a configuration, in the order of its files and lines. Never empty.
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

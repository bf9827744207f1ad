//! What is wrong with a configuration, all of it at once.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

/// The longest piece of a value that a problem shows, in characters.
const VALUE_SHOWN_MAX: usize = 80;

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

impl Problem {
    /// A value, ready to be shown: one line, of bounded length.
    pub(crate) fn shown(value: &str) -> String {
        let mut shown = String::new();
        for c in value.chars().take(VALUE_SHOWN_MAX) {
            if "\"'\\".contains(c) { shown.push(c) } else { shown.extend(c.escape_debug()) }
        }
        if value.chars().nth(VALUE_SHOWN_MAX).is_some() {
            shown.push_str("...");
        }
        shown
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

/// Why a text is no value of its unit, before it is known where the text stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// What is wrong.
    pub message: String,
    /// What to write instead.
    pub remedy: String,
}

impl Invalid {
    pub(crate) fn new(message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { message: message.into(), remedy: remedy.into() }
    }
}

//! Results of the doctor for single items.

use kernel::Error;
use serde::Serialize;

/// State of one item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// In order.
    Ok,
    /// Works, and could work better.
    Advice,
    /// Missing or not usable.
    Missing,
    /// Available, and used by another program.
    Busy,
}

/// Result for one item.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// Name of the item.
    pub name: &'static str,
    /// State of the item.
    pub status: Status,
    /// What was found.
    pub found: String,
    /// Recommended action; empty if none is needed.
    pub remedy: String,
}

impl Check {
    /// Appends a line for a terminal, with the remedy below it.
    pub fn write_to(&self, text: &mut String) {
        use std::fmt::Write;
        let mark = match self.status {
            Status::Ok => "ok     ",
            Status::Advice => "advice ",
            Status::Missing => "missing",
            Status::Busy => "busy   ",
        };
        let _ = writeln!(text, "  {mark}  {:<20} {}", self.name, self.found);
        if !self.remedy.is_empty() {
            let _ = writeln!(text, "           {:<20} -> {}", "", self.remedy);
        }
    }
}

/// The result for one item.
pub(super) fn check(name: &'static str, status: Status, found: impl Into<String>, remedy: impl Into<String>) -> Check {
    Check { name, status, found: found.into(), remedy: remedy.into() }
}

/// The result for an item that an error concerns.
pub(super) fn from_error(name: &'static str, error: &Error) -> Check {
    match error {
        Error::Unsupported { what, remedy } => check(name, Status::Missing, what, remedy),
        Error::Busy { what, remedy } => check(name, Status::Busy, what, remedy),
        other => check(name, Status::Missing, other.to_string(), ""),
    }
}

/// The result for an item that is available, or for the error why not.
pub(super) fn from_result<T>(name: &'static str, result: &kernel::Result<T>, found: &str) -> Check {
    match result {
        Ok(_) => check(name, Status::Ok, found, ""),
        Err(error) => from_error(name, error),
    }
}

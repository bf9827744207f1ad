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

/// What an item's state means for far memory, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rank {
    /// Nothing is offloaded while it is so.
    Blocks,
    /// It costs savings or time, or programs can be killed because of it.
    Costs,
    /// It could be better.
    Better,
    /// In order, or not needed.
    Fine,
}

impl Rank {
    /// All of them, the worst first.
    pub const ALL: [Self; 4] = [Self::Blocks, Self::Costs, Self::Better, Self::Fine];

    /// Its heading.
    #[must_use]
    pub const fn heading(self) -> &'static str {
        match self {
            Self::Blocks => "blocks: nothing is offloaded until this is changed",
            Self::Costs => "costs savings or time",
            Self::Better => "could be better",
            Self::Fine => "in order, or not needed here",
        }
    }
}

/// A change of the kernel's command line, for the next boot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Boot {
    /// Parameters to add.
    pub add: Vec<String>,
    /// Parameters to remove.
    pub remove: Vec<String>,
}

/// Result for one item.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// Name of the item.
    pub name: &'static str,
    /// State of the item.
    pub status: Status,
    /// What that state means.
    pub rank: Rank,
    /// What was found.
    pub found: String,
    /// Recommended action; empty if none is needed.
    pub remedy: String,
    /// The remedy as shell commands for root, to be run in this order; empty if it is not a command.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
    /// The remedy as a change of the kernel's command line, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot: Option<Boot>,
}

impl Check {
    /// The result for one item, without commands. What is not in order could be better, unless [`Check::ranked`] says otherwise.
    #[must_use]
    pub fn new(name: &'static str, status: Status, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        let rank = if status == Status::Ok { Rank::Fine } else { Rank::Better };
        Self { name, status, rank, found: found.into(), remedy: remedy.into(), commands: Vec::new(), boot: None }
    }

    /// The same with another rank, unless it is in order.
    #[must_use]
    pub fn ranked(self, rank: Rank) -> Self {
        let rank = if self.status == Status::Ok { self.rank } else { rank };
        Self { rank, ..self }
    }

    /// The same with the commands of its remedy.
    #[must_use]
    pub(super) fn with_commands(self, commands: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { commands: commands.into_iter().map(Into::into).collect(), ..self }
    }

    /// The same with a change of the kernel's command line.
    #[must_use]
    pub(super) fn with_boot(self, boot: Boot) -> Self {
        Self { boot: Some(boot), ..self }
    }

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
        for command in &self.commands {
            let _ = writeln!(text, "           {:<20} # {command}", "");
        }
        if let Some(Boot { add, remove }) = &self.boot {
            let words = [("with", add), ("without", remove)].into_iter().filter(|(_, parameters)| !parameters.is_empty());
            let words: Vec<_> = words.map(|(word, parameters)| format!("{word} {}", parameters.join(" "))).collect();
            let _ = writeln!(text, "           {:<20} boot {}", "", words.join(", "));
        }
    }
}

/// The result for one item.
pub(super) fn check(name: &'static str, status: Status, found: impl Into<String>, remedy: impl Into<String>) -> Check {
    Check::new(name, status, found, remedy)
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

//! Files of the agent itself, which a lying disk or a full one may have damaged.

use std::path::Path;
use std::time::Duration;

use agent::{history::History, journal, replay, undo::UndoLog};
use kernel::Roots;

use crate::scratch::with_file;

/// A journal, and its replay.
pub(crate) fn journal(bytes: &[u8]) -> bool {
    with_file("journal.jsonl", bytes, |path| {
        let Ok(records) = journal::read(path) else { return false };
        replay::replay(&records).skipped <= records.len() && !records.is_empty()
    })
}

/// An undo list and a history: each is read as both.
pub(crate) fn state(bytes: &[u8]) -> bool {
    let undo = with_file("undo.json", bytes, |path| {
        UndoLog::open(path.to_owned(), &Roots::under(Path::new("/nonexistent"))).is_ok_and(|log| !log.is_empty())
    });
    let history = with_file("history.json", bytes, |path| {
        let directory = path.parent().unwrap_or(path);
        History::load(directory, "boot", Duration::from_secs(120), &[1]).is_ok_and(|history| history.writes().is_some())
    });
    undo || history
}

//! Records and events on their way to the journal.

use std::io;

use crate::journal::{Journal, Record};
use units::UnixMillis;

/// The journal, and the records that are written to it together.
#[derive(Debug, Default)]
pub struct Log {
    journal: Option<Journal>,
    pending: Vec<Record>,
}

impl Log {
    /// A log that writes to `journal`, or that drops its records if there is none.
    #[must_use]
    pub fn new(journal: Option<Journal>) -> Self {
        Self { journal, pending: Vec::new() }
    }

    /// Adds a record to the next batch.
    pub fn push(&mut self, record: Record) {
        self.pending.push(record);
    }

    /// Adds an event to the next batch, and logs it on standard error.
    pub fn event(&mut self, unix_ms: UnixMillis, job: Option<&str>, what: String) {
        log::info!("{}{what}", job.map(|job| format!("{job}: ")).unwrap_or_default());
        self.pending.push(Record::Event { unix_ms, job: job.map(ToOwned::to_owned), what });
    }

    /// The records that are not written yet.
    #[must_use]
    pub fn pending(&self) -> &[Record] {
        &self.pending
    }

    /// Writes the batch. `beginning` is what each file starts with. A full disk costs records, and nothing else.
    pub fn write(&mut self, beginning: impl Fn() -> Vec<Record>) {
        let records = std::mem::take(&mut self.pending);
        let Some(journal) = &mut self.journal else { return };
        if records.is_empty() {
            return;
        }
        if let Err(error) = append(journal, &records, &beginning) {
            log::error!("journal: {error}; {} records lost", records.len());
            // A replay does not know the lost periods: what is written next starts all controllers from their current state.
            self.pending = beginning();
        }
    }
}

fn append(journal: &mut Journal, records: &[Record], beginning: &impl Fn() -> Vec<Record>) -> io::Result<()> {
    journal.append(records)?;
    if journal.rotate_if_full()? { journal.append(&beginning()) } else { Ok(()) }
}

#[cfg(test)]
impl Log {
    /// Replaces the journal and returns the previous one.
    pub(crate) fn replace_journal(&mut self, journal: Option<Journal>) -> Option<Journal> {
        std::mem::replace(&mut self.journal, journal)
    }
}

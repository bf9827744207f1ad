//! The journal: what the agent observed and decided, one JSON object per line.
//!
//! Each file is complete in itself: it begins with the agent's thresholds and every job's parameters and controller state, so
//! that [`crate::replay`] can run the recorded inputs through `policy` and must get the recorded decisions. Records are
//! appended in batches of one write; a process killed at any instruction leaves at most one torn line at the end, which the
//! next start truncates.

mod file;
pub mod lines;
pub mod record;
mod words;

pub use file::Journal;
pub use lines::{Contents, ReadError, read, read_contents};
pub use record::{AgentRecord, JobRecord, Record, SavingsRecord, VERSION};

pub use crate::controllers::cold_age::record::PeriodRecord;
pub use crate::controllers::pressure::record::PressureRecord;
pub use crate::memory::{JobMemory, Outcome};

#[cfg(test)]
mod tests;

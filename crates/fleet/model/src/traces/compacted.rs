//! Reads compacted traces, one day of a job at a time.

use std::ops::Range;
use std::path::Path;

use trace::compact::CompactedTrace;

use super::error::Error;
use super::job::{DayReader, Job};
use crate::fleet::Label;
use crate::series::Series;

/// Calls `each` for the jobs of some row groups. All days of a job are in one row group.
pub(super) fn read(file: &Path, groups: Range<usize>, job: &mut Job, each: &mut dyn FnMut(&Label, &Series)) -> Result<(), Error> {
    let compacted = CompactedTrace::open(file)?;
    let mut days = DayReader::new(job, each);
    for group in groups {
        for day in compacted.group(group)? {
            let day = day?;
            days.push(&day, |sums, numbers| day.unpack_onto(compacted.path(), compacted.basis(), sums, numbers))?;
        }
        days.finish();
    }
    Ok(())
}

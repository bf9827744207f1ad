//! Reads compacted traces, one day of a job at a time.

use std::ops::Range;
use std::path::Path;

use trace::compact::{CompactedTrace, DayEntries, Number};
use units::Millis;

use super::error::Error;
use super::job::{Job, finish_job};
use crate::fleet::Label;
use crate::series::{RowError, Series};

/// Calls `each` for the jobs of some row groups. All days of a job are in one row group.
pub(super) fn read(file: &Path, groups: Range<usize>, job: &mut Job, each: &mut dyn FnMut(&Label, &Series)) -> Result<(), Error> {
    let compacted = CompactedTrace::open(file)?;
    let mut unpacked = DayEntries::default();
    for group in groups {
        let mut last = None;
        for day in compacted.group(group)? {
            let day = day?;
            day.unpack(compacted.path(), compacted.basis(), &mut unpacked)?;
            let failed = |start_unix_ms, source| {
                let (job, machine) = (day.id.job.clone(), day.id.machine.clone());
                Error::Row { job, machine, start_unix_ms, source }
            };
            if day.page_shift > 0 {
                // The largest count has 32 significant bits before the shift.
                return Err(failed(day.day_unix_ms, RowError::Count(1 << (31 + day.page_shift.min(32)))));
            }
            let start = |entry: usize| day.day_unix_ms + Millis(u64::from(unpacked.number(entry, Number::StartMs)));
            if last.as_ref() != Some(&day.id) {
                finish_job(job, each);
                job.begin([&day.id.cluster, &day.id.machine, &day.class], if unpacked.is_empty() { day.day_unix_ms } else { start(0) });
                last = Some(day.id.clone());
            }
            job.push_day(&day.tracker, day.day_unix_ms, &unpacked).map_err(|(entry, source)| failed(start(entry), source))?;
        }
        finish_job(job, each);
        job.series.clear();
    }
    Ok(())
}

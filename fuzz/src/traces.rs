//! Traces and tallies: files from other machines.

use std::num::NonZero;
use std::path::Path;

use model::fleet::{all, run};
use model::partial::Partial;
use model::survey::Survey;
use model::traces::Traces;
use trace::check::{Kind, open};
use twox_hash::XxHash64;
use vmtrace::Trace;

use crate::scratch::with_file;

/// A trace of jobs as the fleet model reads it: our own layout without the Parquet library, and all else with it.
pub(crate) fn modelled(bytes: &[u8]) -> bool {
    with_file("modelled.parquet", bytes, |path| {
        let Ok(traces) = Traces::open(&[path.to_owned()]) else { return false };
        run(&traces, &all(&traces), NonZero::<usize>::MIN, Survey::default, |_| {}).is_ok()
    })
}

/// A trace of jobs, of either form, with all its entries.
pub(crate) fn jobs(bytes: &[u8]) -> bool {
    with_file("jobs.parquet", bytes, |path| match open(path) {
        Ok(Kind::Trace(trace)) => trace.rows().all(|rows| rows.is_ok_and(|rows| rows.entries().count() > 0)),
        Ok(Kind::Compacted(file)) => {
            let groups = (0..file.groups()).map(|group| file.group(group));
            groups.into_iter().all(|days| days.is_ok_and(|mut days| days.all(|day| day.is_ok())))
        }
        Err(_) => false,
    })
}

/// A tally of the fleet model. Its checksum is added here: a fuzzer does not find one.
pub(crate) fn tally(bytes: &[u8]) -> bool {
    let file = [bytes, &XxHash64::oneshot(0, bytes).to_le_bytes()].concat();
    Partial::decode(&file, Path::new("fuzz")).is_ok()
}

/// A trace of VMs.
pub(crate) fn vms(bytes: &[u8]) -> bool {
    with_file("vms.parquet", bytes, |path| Trace::open(path).is_ok_and(|trace| trace.vms().all(|vm| vm.is_ok())))
}

//! Processors that sample memory accesses by themselves: `/sys/bus/event_source/devices`
//! (`Documentation/ABI/testing/sysfs-bus-event_source-devices-events`).
//!
//! Found, not used: rates come from accessed bits on every machine.

use std::fs;

use crate::{Error, Result, Roots, file};

/// What samples accesses on this machine: `cpu/mem-loads/` (PEBS of Intel), `ibs_op` (IBS of AMD) or `arm_spe_0` (SPE of
/// Arm), by name; none on most virtual machines.
///
/// # Errors
/// [`Error::Io`] where the performance monitoring units cannot be listed.
pub fn access_sampling(roots: &Roots) -> Result<Vec<String>> {
    let directory = roots.sys.join("bus/event_source/devices");
    let fail = |source| Error::from_io(&directory, "list", source);
    let entries = match fs::read_dir(&directory) {
        Err(source) if file::is_absent(&source) => return Ok(Vec::new()),
        other => other.map_err(fail)?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(fail)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == "ibs_op" || name.starts_with("arm_spe") {
            found.push(name);
        } else if entry.path().join("events/mem-loads").exists() {
            found.push(format!("{name}/mem-loads/"));
        }
    }
    found.sort_unstable();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tree;

    #[test]
    fn only_units_that_sample_accesses_are_named() {
        let check = |files: &[&str], expected: &[&str]| {
            let files: Vec<_> = files.iter().map(|file| (*file, "")).collect();
            let (_keep, roots) = tree(&files);
            assert_eq!(access_sampling(&roots).unwrap(), expected);
        };
        let intel = "sys/bus/event_source/devices/cpu/events/mem-loads";
        let amd = "sys/bus/event_source/devices/ibs_op/type";
        check(&[], &[]);
        check(&["sys/bus/event_source/devices/cpu/events/cycles", "sys/bus/event_source/devices/software/type"], &[]);
        check(&[intel], &["cpu/mem-loads/"]);
        check(&[amd, "sys/bus/event_source/devices/cpu/events/cycles"], &["ibs_op"]);
        check(&["sys/bus/event_source/devices/arm_spe_0/type"], &["arm_spe_0"]);
        access_sampling(&Roots::host()).unwrap();
    }
}

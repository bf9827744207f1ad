//! The directory of one kdamond: setup, recognition, commands, removal.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::read_number;
use crate::{Error, Result, file};

/// Attempts at a command while another command is in progress: DAMON's sysfs accepts one at a time.
const BUSY_RETRIES: u32 = 20;

/// The pause between two attempts. The kernel has no event to wait for.
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// Time for a kdamond to stop, in addition to two of its intervals.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// The only scheme of each kdamond, below its directory.
pub(super) const SCHEME: &str = "contexts/0/schemes/0";

/// The configuration of a kdamond.
pub(super) struct Form<'a> {
    /// `vaddr` for whole processes, `fvaddr` for given regions.
    pub(super) operations: &'static str,
    pub(super) sample: Duration,
    pub(super) aggregation: Duration,
    pub(super) regions_min: u64,
    pub(super) regions_max: u64,
    pub(super) pids: &'a [i32],
}

/// Writes the configuration and a scheme with the action `stat` that matches every region. Does not start the kdamond.
pub(super) fn set_up(kdamond: &Path, form: &Form<'_>) -> Result<()> {
    let context = kdamond.join("contexts/0");
    let pattern = kdamond.join(SCHEME).join("access_pattern");
    let attributes = context.join("monitoring_attrs");
    file::write(&kdamond.join("contexts/nr_contexts"), "1")?;
    let available = file::read(&context.join("avail_operations"), file::SMALL)?;
    if !available.split_ascii_whitespace().any(|operations| operations == form.operations) {
        return Err(Error::unsupported(
            "this kernel's DAMON cannot watch virtual addresses",
            "boot a kernel with CONFIG_DAMON_VADDR=y, or use another tracker",
        ));
    }
    file::write(&context.join("operations"), form.operations)?;
    for (interval, length) in [("sample_us", form.sample), ("aggr_us", form.aggregation), ("update_us", form.aggregation)] {
        file::write(&attributes.join("intervals").join(interval), &length.as_micros().to_string())?;
    }
    file::write(&attributes.join("nr_regions/max"), &form.regions_max.to_string())?;
    file::write(&attributes.join("nr_regions/min"), &form.regions_min.to_string())?;
    file::write(&context.join("targets/nr_targets"), &form.pids.len().to_string())?;
    for (index, pid) in form.pids.iter().enumerate() {
        file::write(&context.join("targets").join(index.to_string()).join("pid_target"), &pid.to_string())?;
    }
    file::write(&context.join("schemes/nr_schemes"), "1")?;
    file::write(&kdamond.join(SCHEME).join("action"), "stat")?;
    // The upper bounds default to 0, which matches no region.
    file::write(&pattern.join("sz/max"), &u64::MAX.to_string())?;
    file::write(&pattern.join("nr_accesses/max"), &u32::MAX.to_string())?;
    file::write(&pattern.join("age/max"), &u32::MAX.to_string())
}

/// Starts a kdamond that was set up for `pids`. If one of them has exited, the kdamond does not run; this is not an error.
pub(super) fn turn_on(kdamond: &Path, pids: &[i32]) -> Result<()> {
    let has_ended = || pids.iter().any(|pid| !is_running(*pid));
    match file::write(&kdamond.join("state"), "on") {
        Ok(()) => Ok(()),
        // EINVAL: a process has exited, or the kernel rejects an attribute.
        Err(error) if error.errno() == Some(libc::EINVAL) && has_ended() => Ok(()),
        Err(error) if error.is_gone() && has_ended() => Ok(()),
        Err(error) if error.errno() == Some(libc::EBUSY) => Err(Error::busy(
            "the kernel refuses to start a kdamond: DAMON is used by damon_stat, damon_reclaim or damon_lru_sort",
            "switch that module off, or choose another tracker",
        )),
        Err(error) => Err(error),
    }
}

/// Whether there is one kdamond for each of `pids`, configured as by [`set_up`] for that pid.
pub(super) fn are_ours(kdamonds: &Path, pids: &[i32]) -> Result<bool> {
    let count: usize = read_number(&kdamonds.join("nr_kdamonds"))?;
    if count != pids.len() {
        return Ok(false);
    }
    for (index, pid) in pids.iter().enumerate() {
        if !is_ours(&kdamonds.join(index.to_string()), &[*pid])? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether each of the first `count` kdamonds is configured as by [`set_up`] for some of `pids`.
pub(super) fn are_among(kdamonds: &Path, count: usize, pids: &[i32]) -> Result<bool> {
    for index in 0..count {
        if !is_ours(&kdamonds.join(index.to_string()), pids)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a kdamond is configured as by [`set_up`] for some of `pids`, or partially so.
pub(super) fn is_ours(kdamond: &Path, pids: &[i32]) -> Result<bool> {
    let context = kdamond.join("contexts/0");
    match read_number::<u32>(&kdamond.join("contexts/nr_contexts"))? {
        0 => return Ok(true),
        1 => {}
        _ => return Ok(false),
    }
    for index in 0..read_number::<u32>(&context.join("targets/nr_targets"))? {
        let target: i32 = read_number(&context.join("targets").join(index.to_string()).join("pid_target"))?;
        if target != 0 && !pids.contains(&target) {
            return Ok(false);
        }
    }
    Ok(match read_number::<u32>(&context.join("schemes/nr_schemes"))? {
        0 => true,
        1 => file::read(&kdamond.join(SCHEME).join("action"), file::SMALL)?.trim() == "stat",
        _ => false,
    })
}

/// Stops and removes all `count` kdamonds.
pub(super) fn take_down(kdamonds: &Path, count: usize) -> Result<()> {
    for index in 0..count {
        let kdamond = kdamonds.join(index.to_string());
        if is_on(&kdamond)? {
            match command(&kdamond, "off") {
                Ok(()) => {}
                Err(error) if error.is_gone() || error.errno() == Some(libc::EPERM) => {}
                Err(error) => return Err(error),
            }
        }
    }
    for index in 0..count {
        wait_until_off(&kdamonds.join(index.to_string()))?;
    }
    file::write(&kdamonds.join("nr_kdamonds"), "0")
}

/// Whether a kdamond runs; `false` if it does not exist.
pub(super) fn is_on(kdamond: &Path) -> Result<bool> {
    let state = file::read_optional(&kdamond.join("state"), file::SMALL)?;
    Ok(state.is_some_and(|state| state.trim() == "on"))
}

fn wait_until_off(kdamond: &Path) -> Result<()> {
    if !is_on(kdamond)? {
        return Ok(());
    }
    // A kdamond checks once per sampling interval whether it must stop.
    let interval: u64 = read_number(&kdamond.join("contexts/0/monitoring_attrs/intervals/sample_us"))?;
    let patience = Duration::from_micros(interval).saturating_mul(2).saturating_add(STOP_GRACE);
    let begin = Instant::now();
    while is_on(kdamond)? {
        if begin.elapsed() > patience {
            return Err(Error::busy(
                format!("{} has not ended within {} s", kdamond.display(), patience.as_secs()),
                "echo off > state there, then echo 0 > nr_kdamonds above it",
            ));
        }
        thread::sleep(BUSY_PAUSE);
    }
    Ok(())
}

/// Writes a command to a kdamond, and retries while another command is in progress. A kdamond stops when its process exits,
/// which is [`Error::Gone`].
pub(super) fn command(kdamond: &Path, word: &str) -> Result<()> {
    let state = kdamond.join("state");
    for _ in 0..BUSY_RETRIES {
        match file::write(&state, word) {
            Err(error) if error.errno() == Some(libc::EBUSY) => thread::sleep(BUSY_PAUSE),
            Err(_) if !is_on(kdamond)? => return Err(Error::Gone { path: kdamond.to_owned() }),
            other => return other,
        }
    }
    Err(Error::busy(
        format!("DAMON was busy with other commands for {} ms", (BUSY_PAUSE * BUSY_RETRIES).as_millis()),
        "let only one agent use DAMON",
    ))
}

/// Whether a process exists, in any state.
pub(super) fn is_running(pid: i32) -> bool {
    crate::madvise::PidFd::open(pid).is_ok_and(|process| process.is_alive())
}

//! Running kdamonds: setting them up, reading their regions, taking them down.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::{Monitor, Region, read_number};
use crate::{Error, Result, file};

/// Attempts at a command that another kdamond's command holds up: DAMON's sysfs takes one at a time.
const BUSY_RETRIES: u32 = 20;

/// The pause between two of them. The kernel has no event to wait for.
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// How long a kdamond may take to end beyond two of its intervals.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// The one scheme of each kdamond, below its directory.
const SCHEME: &str = "contexts/0/schemes/0";

/// Kdamonds of ours. Dropping it takes them down as [`Session::stop`] does, without telling of errors.
#[derive(Debug)]
pub struct Session {
    kdamonds: PathBuf,
    monitors: Vec<Monitor>,
    stopped: bool,
}

impl Session {
    pub(super) fn start(kdamonds: PathBuf, monitors: &[Monitor]) -> Result<Self> {
        file::write(&kdamonds.join("nr_kdamonds"), &monitors.len().to_string())?;
        let session = Self { kdamonds, monitors: monitors.to_vec(), stopped: false };
        // From here on an early return drops the session and with it what was set up.
        for (index, monitor) in monitors.iter().enumerate() {
            let kdamond = session.kdamond(index);
            set_up(&kdamond, monitor)?;
            match file::write(&kdamond.join("state"), "on") {
                Ok(()) => {}
                // A process that has ended makes EINVAL of it, as does a kernel without vaddr.
                Err(error) if error.errno() == Some(libc::EINVAL) && !is_running(monitor.pid) => {}
                Err(error) if error.is_gone() && !is_running(monitor.pid) => {}
                Err(error) if error.errno() == Some(libc::EBUSY) => {
                    return Err(Error::busy(
                        "the kernel refuses to start a kdamond: DAMON is used by damon_stat, damon_reclaim or damon_lru_sort",
                        "switch that module off, or choose another tracker",
                    ));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(session)
    }

    /// What it was started with, in order.
    #[must_use]
    pub fn monitors(&self) -> &[Monitor] {
        &self.monitors
    }

    /// The regions of the `index`th process, sorted by address, and their moment. Waits up to one interval for the kdamond to reach
    /// the end of its aggregation.
    ///
    /// # Errors
    /// [`Error::Gone`] where the process has ended or there is no such index; [`Error::Busy`] where other commands held
    /// DAMON up for too long; [`Error::Parse`]; [`Error::Io`].
    pub fn snapshot(&self, index: usize) -> Result<(Vec<Region>, Instant)> {
        let kdamond = self.kdamond(index);
        let ours = match self.monitors.get(index) {
            // Once all our kdamonds have ended with their processes, someone else may have set up theirs.
            Some(monitor) => is_ours(&kdamond, &[monitor.pid])?,
            None => false,
        };
        if !ours {
            return Err(Error::Gone { path: kdamond });
        }
        command(&kdamond, "update_schemes_tried_regions")?;
        // To read thousands of regions takes time in which they do not change.
        let taken_at = Instant::now();
        // The regions stay in kernel memory until the next snapshot: to clear them would wait for another interval.
        Ok((read_regions(&kdamond.join(SCHEME).join("tried_regions"))?, taken_at))
    }

    /// The kernel threads that run for this session, to book their processor time.
    #[must_use]
    pub fn kdamond_pids(&self) -> Vec<i32> {
        (0..self.monitors.len()).filter_map(|index| read_number(&self.kdamond(index).join("pid")).ok()).filter(|pid| *pid > 0).collect()
    }

    /// Ends all kdamonds, waits until they have ended, and removes them. May be called again where it failed.
    ///
    /// # Errors
    /// [`Error::Busy`] where one does not end in time; [`Error::Io`].
    pub fn stop(&mut self) -> Result<()> {
        if self.stopped {
            return Ok(());
        }
        let pids: Vec<i32> = self.monitors.iter().map(|monitor| monitor.pid).collect();
        if are_ours(&self.kdamonds, &pids)? {
            take_down(&self.kdamonds, pids.len())?;
        }
        self.stopped = true;
        Ok(())
    }

    fn kdamond(&self, index: usize) -> PathBuf {
        self.kdamonds.join(index.to_string())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // What is left is taken down by the next start, which knows the pids.
        let _ = self.stop();
    }
}

fn set_up(kdamond: &Path, monitor: &Monitor) -> Result<()> {
    let context = kdamond.join("contexts/0");
    let pattern = kdamond.join(SCHEME).join("access_pattern");
    let attributes = context.join("monitoring_attrs");
    let interval_us = monitor.interval.as_micros().to_string();
    file::write(&kdamond.join("contexts/nr_contexts"), "1")?;
    let available = file::read(&context.join("avail_operations"), file::SMALL)?;
    if !available.split_ascii_whitespace().any(|operations| operations == "vaddr") {
        return Err(Error::unsupported(
            "this kernel's DAMON cannot watch virtual addresses",
            "boot a kernel with CONFIG_DAMON_VADDR=y, or use another tracker",
        ));
    }
    file::write(&context.join("operations"), "vaddr")?;
    for interval in ["sample_us", "aggr_us", "update_us"] {
        file::write(&attributes.join("intervals").join(interval), &interval_us)?;
    }
    file::write(&attributes.join("nr_regions/max"), &monitor.regions_max.to_string())?;
    file::write(&attributes.join("nr_regions/min"), &monitor.regions_min.to_string())?;
    file::write(&context.join("targets/nr_targets"), "1")?;
    file::write(&context.join("targets/0/pid_target"), &monitor.pid.to_string())?;
    file::write(&context.join("schemes/nr_schemes"), "1")?;
    file::write(&kdamond.join(SCHEME).join("action"), "stat")?;
    // The upper bounds start at 0, which would match nothing.
    file::write(&pattern.join("sz/max"), &u64::MAX.to_string())?;
    file::write(&pattern.join("nr_accesses/max"), &u32::MAX.to_string())?;
    file::write(&pattern.join("age/max"), &u32::MAX.to_string())
}

/// Whether the kdamonds are as many as `pids`, and each has the form that [`set_up`] gives it for its pid.
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

/// Whether each of the first `count` kdamonds has the form that [`set_up`] gives it for one of `pids`.
pub(super) fn are_among(kdamonds: &Path, count: usize, pids: &[i32]) -> Result<bool> {
    for index in 0..count {
        if !is_ours(&kdamonds.join(index.to_string()), pids)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a kdamond has the form that [`set_up`] gives it for one of `pids`, or is on the way there.
fn is_ours(kdamond: &Path, pids: &[i32]) -> Result<bool> {
    let context = kdamond.join("contexts/0");
    match read_number::<u32>(&kdamond.join("contexts/nr_contexts"))? {
        0 => return Ok(true),
        1 => {}
        _ => return Ok(false),
    }
    match read_number::<u32>(&context.join("targets/nr_targets"))? {
        0 => return Ok(true),
        1 => {}
        _ => return Ok(false),
    }
    let target: i32 = read_number(&context.join("targets/0/pid_target"))?;
    if target != 0 && !pids.contains(&target) {
        return Ok(false);
    }
    Ok(match read_number::<u32>(&context.join("schemes/nr_schemes"))? {
        0 => true,
        1 => file::read(&kdamond.join(SCHEME).join("action"), file::SMALL)?.trim() == "stat",
        _ => false,
    })
}

/// Ends and removes all `count` kdamonds.
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

/// Whether a kdamond runs. One that is not there does not.
fn is_on(kdamond: &Path) -> Result<bool> {
    let state = file::read_optional(&kdamond.join("state"), file::SMALL)?;
    Ok(state.is_some_and(|state| state.trim() == "on"))
}

fn wait_until_off(kdamond: &Path) -> Result<()> {
    if !is_on(kdamond)? {
        return Ok(());
    }
    let interval: u64 = read_number(&kdamond.join("contexts/0/monitoring_attrs/intervals/aggr_us"))?;
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

/// Writes a command to a kdamond, again while another command holds DAMON up. A kdamond that has ended, as it does
/// with its process, is gone.
fn command(kdamond: &Path, word: &str) -> Result<()> {
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

/// Reads the directories 0, 1, ... of tried regions, which the kernel lists in no order.
fn read_regions(directory: &Path) -> Result<Vec<Region>> {
    let fail = |source| Error::from_io(directory, "list", source);
    let mut regions = Vec::new();
    for entry in fs::read_dir(directory).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        // Beside the regions lies total_bytes.
        if !entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit) {
            continue;
        }
        let region = entry.path();
        regions.push(Region {
            start: read_number(&region.join("start"))?,
            end: read_number(&region.join("end"))?,
            nr_accesses: read_number(&region.join("nr_accesses"))?,
            age: read_number(&region.join("age"))?,
        });
    }
    regions.sort_unstable_by_key(|region: &Region| region.start);
    Ok(regions)
}

/// Whether a process exists on this machine, whatever its state.
fn is_running(pid: i32) -> bool {
    crate::madvise::PidFd::open(pid).is_ok_and(|process| process.is_alive())
}

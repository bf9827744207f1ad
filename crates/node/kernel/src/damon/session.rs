//! One kdamond per process over all of its memory; returns regions and their ages.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::kdamond::{self, Form, SCHEME};
use super::{Monitor, Region, read_number};
use crate::{Error, Result, file};

/// Running kdamonds. Dropping it stops them as [`Session::stop`] does, and ignores errors.
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
        // From here on, an early return drops the session, which removes the kdamonds.
        for (index, monitor) in monitors.iter().enumerate() {
            let kdamond = session.kdamond(index);
            let pids = [monitor.pid];
            let form = Form {
                operations: "vaddr",
                sample: monitor.interval,
                aggregation: monitor.interval,
                regions_min: monitor.regions_min,
                regions_max: monitor.regions_max,
                pids: &pids,
            };
            kdamond::set_up(&kdamond, &form)?;
            kdamond::turn_on(&kdamond, &pids)?;
        }
        Ok(session)
    }

    /// The monitors that the session was started with, in order.
    #[must_use]
    pub fn monitors(&self) -> &[Monitor] {
        &self.monitors
    }

    /// The regions of the `index`th process, sorted by address, and the time of the snapshot. Waits up to one interval for the
    /// end of the aggregation.
    ///
    /// # Errors
    /// [`Error::Gone`] if the process has exited or the index does not exist; [`Error::Busy`] if other commands blocked DAMON
    /// for too long; [`Error::Parse`]; [`Error::Io`].
    pub fn snapshot(&self, index: usize) -> Result<(Vec<Region>, Instant)> {
        let kdamond = self.kdamond(index);
        let ours = match self.monitors.get(index) {
            // After all kdamonds of this session have stopped with their processes, another process may have set up its own.
            Some(monitor) => kdamond::is_ours(&kdamond, &[monitor.pid])?,
            None => false,
        };
        if !ours {
            return Err(Error::Gone { path: kdamond });
        }
        kdamond::command(&kdamond, "update_schemes_tried_regions")?;
        // Reading thousands of regions takes time; they do not change meanwhile.
        let taken_at = Instant::now();
        // The regions stay in kernel memory until the next snapshot: clearing them would wait for another interval.
        Ok((read_regions(&kdamond.join(SCHEME).join("tried_regions"))?, taken_at))
    }

    /// The pids of the kdamonds, whose CPU time is charged to this session.
    #[must_use]
    pub fn kdamond_pids(&self) -> Vec<i32> {
        (0..self.monitors.len()).filter_map(|index| read_number(&self.kdamond(index).join("pid")).ok()).filter(|pid| *pid > 0).collect()
    }

    /// Stops all kdamonds, waits until they have stopped, and removes them. May be called again after an error.
    ///
    /// # Errors
    /// [`Error::Busy`] if a kdamond does not stop in time; [`Error::Io`].
    pub fn stop(&mut self) -> Result<()> {
        if self.stopped {
            return Ok(());
        }
        let pids: Vec<i32> = self.monitors.iter().map(|monitor| monitor.pid).collect();
        if kdamond::are_ours(&self.kdamonds, &pids)? {
            kdamond::take_down(&self.kdamonds, pids.len())?;
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
        // The next start removes leftovers: the pids are recorded.
        let _ = self.stop();
    }
}

/// Reads the directories 0, 1, ... of tried regions, which the kernel lists in no order.
fn read_regions(directory: &Path) -> Result<Vec<Region>> {
    let fail = |source| Error::from_io(directory, "list", source);
    let mut regions = Vec::new();
    for entry in fs::read_dir(directory).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        // The directory also holds total_bytes.
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

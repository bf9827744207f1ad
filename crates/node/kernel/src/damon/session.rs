//! One kdamond for each process, over all of its memory, read as regions and their ages.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::kdamond::{self, Form, SCHEME};
use super::{Monitor, Region, read_number};
use crate::{Error, Result, file};

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

    /// What it was started with, in order.
    #[must_use]
    pub fn monitors(&self) -> &[Monitor] {
        &self.monitors
    }

    /// The regions of the `index`th process, sorted by address, and their moment. Waits up to one interval for the kdamond to reach
    /// the end of its aggregation.
    ///
    /// # Errors
    /// [`Error::Gone`] if the process has ended or there is no such index; [`Error::Busy`] if other commands held
    /// DAMON up for too long; [`Error::Parse`]; [`Error::Io`].
    pub fn snapshot(&self, index: usize) -> Result<(Vec<Region>, Instant)> {
        let kdamond = self.kdamond(index);
        let ours = match self.monitors.get(index) {
            // Once all our kdamonds have ended with their processes, someone else may have set up theirs.
            Some(monitor) => kdamond::is_ours(&kdamond, &[monitor.pid])?,
            None => false,
        };
        if !ours {
            return Err(Error::Gone { path: kdamond });
        }
        kdamond::command(&kdamond, "update_schemes_tried_regions")?;
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
    /// [`Error::Busy`] if one does not end in time; [`Error::Io`].
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
        // What is left is taken down by the next start, which knows the pids.
        let _ = self.stop();
    }
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

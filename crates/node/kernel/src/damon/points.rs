//! One kdamond for single pages of several processes; counts the samples that found each page accessed.
//!
//! # Why no region is merged or split
//! DAMON merges and splits regions only at the end of an aggregation, and the aggregation interval is longer than any session.
//! Even otherwise, two regions of one page are merged only if both fit into the total size divided by `regions_min`, and a
//! region is split only while there are at most half of `regions_max` regions and it is longer than two pages. Both limits are
//! the number of points, or [`REGIONS_MIN`] if that is more, as the kernel requires. The regions therefore remain as given and
//! in order. The tried regions do not name their process; the order assigns them.
//!
//! # The number of samples
//! A scheme may be applied more often than once per aggregation (`apply_interval_us`). This one is applied after every sample,
//! so that `nr_accesses` counts since the start. The number of samples follows from the number of regions to which the kernel
//! applied the scheme (`nr_tried`); a clock would also count samples that an overloaded machine skipped. The kernel answers the
//! command for that number after a sample and before it applies the scheme; a command for the regions that follows immediately
//! is answered when it applies the scheme after the next sample. The regions are therefore two samples ahead of the number
//! (`kdamond_fn()` in `mm/damon/core.c`; the callbacks before Linux 6.14 are equivalent).
//!
//! # Accesses that are not counted
//! The kernel clears the accessed bit without a TLB flush: while a translation is cached, accesses do not set the bit again. The
//! count of a page in a small, very hot set may be too low, never too high.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::kdamond::{self, Form, SCHEME};
use super::{REGIONS_MIN, read_number};
use crate::{Error, Result, file, page_size};

/// Samples per aggregation: over a day at one per second. The kernel keeps ten thousand times the count in 32 bits.
const SAMPLES_MAX: u32 = 100_000;

/// How many samples the regions are ahead of the number of samples.
const SAMPLES_AHEAD: u64 = 2;

/// The shortest sampling interval. The number of samples is exact from 500 ms on: before Linux 6.14 the answer to a command is up to
/// 100 ms late, and the next command must still precede the next sample. Below that, samples in between are not counted.
const INTERVAL_MIN: Duration = Duration::from_millis(50);

/// Pages of one process to sample.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Points {
    /// The process.
    pub pid: i32,
    /// The addresses of the pages, strictly ascending.
    pub addresses: Vec<u64>,
}

/// The counts since the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Number of samples of each page.
    pub samples: u32,
    /// For each process, in the order given, the number of samples that found each of its pages accessed, in the order of its
    /// addresses; `None` if the process has exited.
    pub accessed: Vec<Option<Vec<u32>>>,
    /// When the last sample was taken.
    pub taken_at: Instant,
}

/// A running kdamond. Dropping it stops the kdamond as [`PointSession::stop`] does, and ignores errors.
#[derive(Debug)]
pub struct PointSession {
    kdamonds: PathBuf,
    points: Vec<Points>,
    /// Indices of the monitored `points`: those whose process existed at the start.
    watched: Vec<usize>,
    stopped: bool,
}

/// Rejects points that the kernel would reject or interpret differently.
pub(super) fn check(kdamonds: &Path, interval: Duration, points: &[Points]) -> Result<()> {
    if interval < INTERVAL_MIN {
        let (is, least) = (interval.as_millis(), INTERVAL_MIN.as_millis());
        return Err(refused(kdamonds, format!("a sampling interval of {is} ms: at least {least} ms are required")));
    }
    check_addresses(kdamonds, points)
}

fn refused(kdamonds: &Path, why: String) -> Error {
    Error::Io { path: kdamonds.to_owned(), op: "watch by", source: io::Error::new(io::ErrorKind::InvalidInput, why) }
}

/// Rejects addresses that are not ascending pages.
pub(super) fn check_addresses(kdamonds: &Path, points: &[Points]) -> Result<()> {
    let page = page_size().bytes();
    for Points { pid, addresses } in points {
        let ascending = addresses.is_sorted_by(|one, next| one < next);
        if addresses.is_empty() || !ascending || addresses.iter().any(|address| address % page != 0 || *address > u64::MAX - page) {
            let why = format!("the addresses of process {pid}: need pages, ascending, none twice, one at least");
            return Err(refused(kdamonds, why));
        }
    }
    Ok(())
}

impl PointSession {
    pub(super) fn start(kdamonds: PathBuf, interval: Duration, points: &[Points]) -> Result<Self> {
        let watched: Vec<usize> = (0..points.len()).filter(|&index| kdamond::is_running(points[index].pid)).collect();
        if watched.is_empty() {
            let path = points.first().map_or(kdamonds, |points| PathBuf::from(format!("/proc/{}", points.pid)));
            return Err(Error::Gone { path });
        }
        file::write(&kdamonds.join("nr_kdamonds"), "1")?;
        let session = Self { kdamonds, points: points.to_vec(), watched, stopped: false };
        // From here on, an early return drops the session, which removes the kdamond.
        let kdamond = session.kdamond();
        let regions = (session.total(|_| true) as u64).max(REGIONS_MIN);
        let pids: Vec<i32> = session.watched().map(|points| points.pid).collect();
        let form = Form {
            operations: "fvaddr",
            sample: interval,
            aggregation: interval.saturating_mul(SAMPLES_MAX),
            regions_min: regions,
            regions_max: regions,
            pids: &pids,
        };
        kdamond::set_up(&kdamond, &form)?;
        for (target, points) in session.watched().enumerate() {
            write_regions(&kdamond.join("contexts/0/targets").join(target.to_string()).join("regions"), &points.addresses)?;
        }
        let apply_interval = kdamond.join(SCHEME).join("apply_interval_us");
        if !apply_interval.exists() {
            return Err(Error::unsupported(
                "DAMON of this kernel applies schemes only once per aggregation",
                "boot Linux 6.7 or newer, or one with CONFIG_IDLE_PAGE_TRACKING=y",
            ));
        }
        file::write(&apply_interval, &interval.as_micros().to_string())?;
        kdamond::turn_on(&kdamond, &pids)?;
        Ok(session)
    }

    /// The points that the session was started with, in order.
    #[must_use]
    pub fn points(&self) -> &[Points] {
        &self.points
    }

    /// The counts since the start. Waits for two or three samples.
    ///
    /// If a process has exited in the meantime, or the sampling interval is below 500 ms, the number of samples may be too small, never
    /// too large: rates are then overestimated.
    ///
    /// # Errors
    /// [`Error::Gone`] if all processes have exited, or after [`SAMPLES_MAX`] samples: the session is over; [`Error::Busy`] if
    /// other commands blocked DAMON for too long; [`Error::Parse`]; [`Error::Io`].
    pub fn counts(&self) -> Result<Counts> {
        let kdamond = self.kdamond();
        if !kdamond::is_ours(&kdamond, &self.pids())? {
            return Err(Error::Gone { path: kdamond });
        }
        kdamond::command(&kdamond, "update_schemes_stats")?;
        // Read only after the next command, which must not be late.
        kdamond::command(&kdamond, "update_schemes_tried_regions")?;
        let taken_at = Instant::now();
        let tried: u64 = read_number(&kdamond.join(SCHEME).join("stats/nr_tried"))?;
        let accessed = self.read_accessed(&kdamond.join(SCHEME).join("tried_regions"))?;
        let samples = tried / self.total(|_| true) as u64 + SAMPLES_AHEAD;
        let most = accessed.iter().flatten().flatten().max().copied().unwrap_or(0);
        match u32::try_from(samples) {
            Ok(samples) if samples < SAMPLES_MAX => Ok(Counts { samples: samples.max(most), accessed, taken_at }),
            _ => Err(Error::Gone { path: kdamond }),
        }
    }

    /// The pid of the kdamond, whose CPU time is charged to this session.
    #[must_use]
    pub fn kdamond_pid(&self) -> Option<i32> {
        read_number(&self.kdamond().join("pid")).ok().filter(|pid| *pid > 0)
    }

    /// Stops the kdamond, waits up to one sampling interval until it has stopped, and removes it. May be called again after an
    /// error.
    ///
    /// # Errors
    /// [`Error::Busy`] if it does not stop in time; [`Error::Io`].
    pub fn stop(&mut self) -> Result<()> {
        if self.stopped {
            return Ok(());
        }
        let count: usize = read_number(&self.kdamonds.join("nr_kdamonds"))?;
        if count == 1 && kdamond::is_ours(&self.kdamond(), &self.pids())? {
            kdamond::take_down(&self.kdamonds, 1)?;
        }
        self.stopped = true;
        Ok(())
    }

    fn kdamond(&self) -> PathBuf {
        self.kdamonds.join("0")
    }

    fn watched(&self) -> impl Iterator<Item = &Points> {
        self.watched.iter().map(|index| &self.points[*index])
    }

    fn pids(&self) -> Vec<i32> {
        self.watched().map(|points| points.pid).collect()
    }

    /// The number of points of monitored processes for which `counts` holds.
    fn total(&self, counts: impl Fn(i32) -> bool) -> usize {
        self.watched().filter(|points| counts(points.pid)).map(|points| points.addresses.len()).sum()
    }

    fn read_accessed(&self, directory: &Path) -> Result<Vec<Option<Vec<u32>>>> {
        let mut regions = numbers(directory)?.into_iter().map(|number| directory.join(number.to_string()));
        // Some kernels omit the regions of a process that has exited, others list them.
        let complete = regions.len() == self.total(|_| true);
        let shown = |pid| complete || kdamond::is_running(pid);
        let changed = || Error::Gone { path: directory.to_owned() };
        if regions.len() != self.total(shown) {
            return Err(changed());
        }
        let mut accessed = vec![None; self.points.len()];
        for &index in &self.watched {
            let Points { pid, addresses } = &self.points[index];
            if !shown(*pid) {
                continue;
            }
            let mut counts = Vec::with_capacity(addresses.len());
            for (address, region) in addresses.iter().zip(regions.by_ref()) {
                // The order is known. One read per process checks that it still holds: each read has a cost.
                if counts.is_empty() && read_number::<u64>(&region.join("start"))? != *address {
                    return Err(changed());
                }
                counts.push(read_number(&region.join("nr_accesses"))?);
            }
            if kdamond::is_running(*pid) {
                accessed[index] = Some(counts);
            }
        }
        Ok(accessed)
    }
}

impl Drop for PointSession {
    fn drop(&mut self) {
        // The next start removes leftovers: the pids are recorded.
        let _ = self.stop();
    }
}

/// Writes the regions of a target: one page for each address.
pub(super) fn write_regions(directory: &Path, addresses: &[u64]) -> Result<()> {
    let page = page_size().bytes();
    file::write(&directory.join("nr_regions"), &addresses.len().to_string())?;
    for (index, address) in addresses.iter().enumerate() {
        let region = directory.join(index.to_string());
        file::write(&region.join("start"), &address.to_string())?;
        file::write(&region.join("end"), &(address + page).to_string())?;
    }
    Ok(())
}

/// The numeric names in a directory, ascending: the kernel numbers regions in order and lists them in no order.
fn numbers(directory: &Path) -> Result<Vec<u64>> {
    let fail = |source| Error::from_io(directory, "list", source);
    let mut numbers = Vec::new();
    for entry in fs::read_dir(directory).map_err(fail)? {
        numbers.extend(entry.map_err(fail)?.file_name().to_str().and_then(|name| name.parse::<u64>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

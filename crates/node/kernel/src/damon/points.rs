//! One kdamond for single pages of several processes, read as how many looks found each accessed.
//!
//! # Why nothing is merged or split
//! DAMON merges and splits regions at the end of an aggregation only, and one that is longer than any session never ends.
//! Even if it did: two regions of a page are merged only if both fit into the total size divided by `regions_min`, and any
//! region is split only while there are at most half of `regions_max` of them and it is longer than two pages. Both limits
//! are the number of points here, or [`REGIONS_MIN`] if that is more, which the kernel asks for. So the regions stay
//! those that were given, in their order, and the tried regions, which do not name their process, are told apart by that.
//!
//! # How many looks there were
//! A scheme may apply more often than once per aggregation (`apply_interval_us`). This one does so after every look, and
//! `nr_accesses` is a count since the start. The kernel counts the regions that it applied a scheme to (`nr_tried`), so
//! that no clock is needed, which would count looks that a loaded machine never took. It answers the command for that
//! count after a look and before it applies the scheme; the command for the regions, if it comes at once, is answered as
//! it applies the scheme after the next look. So the regions are two looks ahead of the count (`kdamond_fn()` in
//! `mm/damon/core.c`; the callbacks before Linux 6.14 come to the same).
//!
//! # What is not seen
//! The accessed bit is cleared without a flush of the TLB: while a translation stays there, accesses do not set the bit again.
//! A page of a small and very hot set may look less accessed than it is, never more.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::kdamond::{self, Form, SCHEME};
use super::{REGIONS_MIN, read_number};
use crate::{Error, Result, file, page_size};

/// Looks that an aggregation takes: at one per second, over a day. The kernel keeps ten thousand times the count in 32 bits.
const LOOKS_MAX: u32 = 100_000;

/// How far the regions are ahead of the count of looks.
const LOOKS_AHEAD: u64 = 2;

/// The shortest time from look to look. Before Linux 6.14 the answer to a command is late by up to 100 ms, and the next
/// command must not miss a look for that.
const LOOK_MIN: Duration = Duration::from_millis(500);

/// Pages of one process to look at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Points {
    /// The process.
    pub pid: i32,
    /// The first bytes of the pages, ascending, none twice.
    pub addresses: Vec<u64>,
}

/// What was seen since the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    /// How often the accessed bit of each page was looked at.
    pub looks: u32,
    /// For each process, in the order given, how many looks found each of its pages accessed since the look before, in the
    /// order of its addresses; `None` if the process has ended.
    pub accessed: Vec<Option<Vec<u32>>>,
    /// When the last of the looks was.
    pub taken_at: Instant,
}

/// A kdamond of ours. Dropping it takes it down as [`PointSession::stop`] does, without telling of errors.
#[derive(Debug)]
pub struct PointSession {
    kdamonds: PathBuf,
    points: Vec<Points>,
    /// Which of `points` are watched, by index: those whose process had not ended at the start.
    watched: Vec<usize>,
    stopped: bool,
}

/// Refuses what the kernel would refuse, or understand otherwise.
pub(super) fn check(kdamonds: &Path, look: Duration, points: &[Points]) -> Result<()> {
    let page = page_size().bytes();
    let refuse = |why: String| {
        let source = io::Error::new(io::ErrorKind::InvalidInput, why);
        Err(Error::Io { path: kdamonds.to_owned(), op: "watch by", source })
    };
    if look < LOOK_MIN {
        return refuse(format!("a look every {} ms: at least {} are needed", look.as_millis(), LOOK_MIN.as_millis()));
    }
    for Points { pid, addresses } in points {
        let ascending = addresses.is_sorted_by(|one, next| one < next);
        if addresses.is_empty() || !ascending || addresses.iter().any(|address| address % page != 0 || *address > u64::MAX - page) {
            return refuse(format!("the addresses of process {pid}: need pages, ascending, none twice, one at least"));
        }
    }
    Ok(())
}

impl PointSession {
    pub(super) fn start(kdamonds: PathBuf, look: Duration, points: &[Points]) -> Result<Self> {
        let watched: Vec<usize> = (0..points.len()).filter(|&index| kdamond::is_running(points[index].pid)).collect();
        if watched.is_empty() {
            let path = points.first().map_or(kdamonds, |points| PathBuf::from(format!("/proc/{}", points.pid)));
            return Err(Error::Gone { path });
        }
        file::write(&kdamonds.join("nr_kdamonds"), "1")?;
        let session = Self { kdamonds, points: points.to_vec(), watched, stopped: false };
        // From here on an early return drops the session and with it what was set up.
        let kdamond = session.kdamond();
        let regions = (session.total(|_| true) as u64).max(REGIONS_MIN);
        let pids: Vec<i32> = session.watched().map(|points| points.pid).collect();
        let form = Form {
            operations: "fvaddr",
            sample: look,
            aggregation: look.saturating_mul(LOOKS_MAX),
            regions_min: regions,
            regions_max: regions,
            pids: &pids,
        };
        kdamond::set_up(&kdamond, &form)?;
        for (target, points) in session.watched().enumerate() {
            write_regions(&kdamond.join("contexts/0/targets").join(target.to_string()).join("regions"), &points.addresses)?;
        }
        let interval = kdamond.join(SCHEME).join("apply_interval_us");
        if !interval.exists() {
            return Err(Error::unsupported(
                "this kernel's DAMON tells what it saw once per aggregation only",
                "boot Linux 6.7 or newer, or one with CONFIG_IDLE_PAGE_TRACKING=y",
            ));
        }
        file::write(&interval, &look.as_micros().to_string())?;
        kdamond::turn_on(&kdamond, &pids)?;
        Ok(session)
    }

    /// What it was started with, in order.
    #[must_use]
    pub fn points(&self) -> &[Points] {
        &self.points
    }

    /// What was seen since the start. Waits for two looks or three.
    ///
    /// Where a process has ended in the meantime, the number of looks may come out too small, never too large: rates seem
    /// higher then.
    ///
    /// # Errors
    /// [`Error::Gone`] if all processes have ended, or there were [`LOOKS_MAX`] looks: the session is over;
    /// [`Error::Busy`] if other commands held DAMON up for too long; [`Error::Parse`]; [`Error::Io`].
    pub fn counts(&self) -> Result<Counts> {
        let kdamond = self.kdamond();
        if !kdamond::is_ours(&kdamond, &self.pids())? {
            return Err(Error::Gone { path: kdamond });
        }
        kdamond::command(&kdamond, "update_schemes_stats")?;
        // Read only after the next command: that one must not be late.
        kdamond::command(&kdamond, "update_schemes_tried_regions")?;
        let taken_at = Instant::now();
        let tried: u64 = read_number(&kdamond.join(SCHEME).join("stats/nr_tried"))?;
        let accessed = self.read_accessed(&kdamond.join(SCHEME).join("tried_regions"))?;
        let looks = tried / self.total(|_| true) as u64 + LOOKS_AHEAD;
        let most = accessed.iter().flatten().flatten().max().copied().unwrap_or(0);
        match u32::try_from(looks) {
            Ok(looks) if looks < LOOKS_MAX => Ok(Counts { looks: looks.max(most), accessed, taken_at }),
            _ => Err(Error::Gone { path: kdamond }),
        }
    }

    /// The kernel thread that runs for this session, to book its processor time.
    #[must_use]
    pub fn kdamond_pid(&self) -> Option<i32> {
        read_number(&self.kdamond().join("pid")).ok().filter(|pid| *pid > 0)
    }

    /// Ends the kdamond, waits for a look at most until it has ended, and removes it. May be called again where it failed.
    ///
    /// # Errors
    /// [`Error::Busy`] if it does not end in time; [`Error::Io`].
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

    /// How many points the processes have that are watched and for which `counts` holds.
    fn total(&self, counts: impl Fn(i32) -> bool) -> usize {
        self.watched().filter(|points| counts(points.pid)).map(|points| points.addresses.len()).sum()
    }

    fn read_accessed(&self, directory: &Path) -> Result<Vec<Option<Vec<u32>>>> {
        let mut regions = numbers(directory)?.into_iter().map(|number| directory.join(number.to_string()));
        // Some kernels leave out the regions of a process that has ended, others show them.
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
                // The order is known; that it is still ours is checked once per process, for what a read costs.
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
        // What is left is taken down by the next start, which knows the pids.
        let _ = self.stop();
    }
}

/// Gives a target its regions: a page for each address.
fn write_regions(directory: &Path, addresses: &[u64]) -> Result<()> {
    let page = page_size().bytes();
    file::write(&directory.join("nr_regions"), &addresses.len().to_string())?;
    for (index, address) in addresses.iter().enumerate() {
        let region = directory.join(index.to_string());
        file::write(&region.join("start"), &address.to_string())?;
        file::write(&region.join("end"), &(address + page).to_string())?;
    }
    Ok(())
}

/// The names in a directory that are numbers, ascending: the kernel numbers regions in order, and lists them in none.
fn numbers(directory: &Path) -> Result<Vec<u64>> {
    let fail = |source| Error::from_io(directory, "list", source);
    let mut numbers = Vec::new();
    for entry in fs::read_dir(directory).map_err(fail)? {
        numbers.extend(entry.map_err(fail)?.file_name().to_str().and_then(|name| name.parse::<u64>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

//! DAMON through sysfs: `/sys/kernel/mm/damon/admin` (`Documentation/admin-guide/mm/damon/usage.rst`).
//!
//! One kdamond (kernel thread) monitors one process. Each has one context with the `vaddr` operations and one scheme with the
//! action `stat`, which matches every region and changes nothing: its list of tried regions is the snapshot.
//!
//! [`PointSession`] monitors single pages by the `fvaddr` operations, to count accesses; [`PageSession`] does, to learn their ages.
//!
//! # Why the sampling and aggregation intervals are equal
//! DAMON resets the age of a region only if its access count changes by more than a tenth of the maximum, which is the number
//! of samples per aggregation. With the default of twenty samples, one access per aggregation does not reset the age, and
//! memory that is touched every few seconds appears idle. With one sample the count is 0 or 1, every access resets the age,
//! and the age in intervals is the time since the last access.
//!
//! # Ownership of DAMON
//! The interface has no owner: the last writer wins. If another process uses DAMON through sysfs, or one of the modules
//! `damon_stat`, `damon_reclaim` and `damon_lru_sort` is enabled, the result is [`Error::Busy`]; DAMON is never taken over.

mod kdamond;
mod pages;
mod points;
mod session;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use crate::{Error, Result, Roots, file, text};

pub use pages::{PageSession, PageState, reap_trace};
pub use points::{Counts, PointSession, Points};
pub use session::Session;

/// The smallest `regions_min` that the kernel accepts.
pub const REGIONS_MIN: u64 = 3;

/// Kernel modules that use DAMON while their parameter `enabled` is set.
const MODULES: [&str; 3] = ["damon_stat", "damon_reclaim", "damon_lru_sort"];

/// One process to monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Monitor {
    /// The process.
    pub pid: i32,
    /// The sampling and aggregation interval, the unit of [`Region::age`]. Below about half a second the ages become
    /// inaccurate, because the kernel cannot complete each sample in time.
    pub interval: Duration,
    /// The minimum number of regions, at least [`REGIONS_MIN`].
    pub regions_min: u64,
    /// The maximum number of regions. The kernel splits regions until half of the maximum are in use.
    pub regions_max: u64,
}

/// Adjacent addresses with similar access frequency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Region {
    /// Address of the first byte.
    pub start: u64,
    /// Address after the last byte.
    pub end: u64,
    /// 1 if the region was accessed in the last interval, otherwise 0; there is one sample per interval.
    pub nr_accesses: u32,
    /// Intervals since `nr_accesses` last changed; for a region with 0 accesses, the time since its last access.
    pub age: u32,
}

/// DAMON, which no other process used when it was probed.
#[derive(Clone, Debug)]
pub struct Damon {
    kdamonds: PathBuf,
}

impl Damon {
    /// Finds DAMON and checks that no other process or module uses it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on kernels without its sysfs interface or without `vaddr`; [`Error::Busy`] with the name of the
    /// user; [`Error::Parse`]; [`Error::Io`].
    pub fn probe(roots: &Roots) -> Result<Self> {
        let damon = Self::find(roots)?;
        for module in MODULES {
            let switch = roots.sys.join("module").join(module).join("parameters/enabled");
            let Some(text) = file::read_optional(&switch, file::SMALL)? else { continue };
            if crate::zswap::parse_flag(&text).map_err(|malformed| malformed.at(&switch))? {
                return Err(Error::busy(
                    format!("DAMON is used by {module}"),
                    format!("echo N > {} to free it, or choose another tracker", switch.display()),
                ));
            }
        }
        match damon.count()? {
            0 => Ok(damon),
            count => Err(damon.foreign(count)),
        }
    }

    /// Starts one kdamond for each of `monitors`, in order.
    ///
    /// A process that has exited in the meantime does not affect the others: [`Session::snapshot`] returns [`Error::Gone`] for
    /// it.
    ///
    /// # Errors
    /// [`Error::Busy`] if another process has started to use DAMON; [`Error::Io`], `EINVAL` if the region counts are out of
    /// range. After an error, no kdamond is left running.
    pub fn start(&self, monitors: &[Monitor]) -> Result<Session> {
        if let Some(monitor) = monitors.iter().find(|m| m.regions_min < REGIONS_MIN || m.regions_max < m.regions_min) {
            let Monitor { pid, regions_min, regions_max, .. } = monitor;
            let why = format!("regions {regions_min} to {regions_max} for process {pid}: need 3 <= min <= max");
            let source = std::io::Error::new(std::io::ErrorKind::InvalidInput, why);
            return Err(Error::Io { path: self.kdamonds.clone(), op: "watch by", source });
        }
        match self.count()? {
            0 => Session::start(self.kdamonds.clone(), monitors),
            count => Err(self.foreign(count)),
        }
    }

    /// Starts sampling single pages of several processes, once per `interval`. A process that has exited is omitted:
    /// [`PointSession::counts`] reports it.
    ///
    /// Each page costs two file writes here and one file read per [`PointSession::counts`].
    ///
    /// # Errors
    /// [`Error::Gone`] if all processes have exited; [`Error::Busy`] if another process has started to use DAMON;
    /// [`Error::Unsupported`] before Linux 6.7; [`Error::Io`], also if the addresses are not ascending pages or `interval` is
    /// below half a second. After an error, no kdamond is left running.
    pub fn watch_points(&self, interval: Duration, points: &[Points]) -> Result<PointSession> {
        points::check(&self.kdamonds, interval, points)?;
        match self.count()? {
            0 => PointSession::start(self.kdamonds.clone(), interval, points),
            count => Err(self.foreign(count)),
        }
    }

    /// Starts watching the ages of single pages, once per `interval`; at most `pages_max` of all slots together.
    ///
    /// # Errors
    /// [`Error::Gone`] if a process has exited; [`Error::Busy`] if another process uses DAMON or reads our tracing instance;
    /// [`Error::Unsupported`] without tracefs; [`Error::Io`], also if the addresses are not ascending pages or `interval` is below
    /// half a second. After an error, nothing is left running.
    pub fn watch_pages(&self, roots: &Roots, interval: Duration, pages_max: u64, slots: &[Points]) -> Result<PageSession> {
        points::check(&self.kdamonds, interval, slots)?;
        match self.count()? {
            0 => PageSession::start(roots, self.kdamonds.clone(), interval, pages_max, slots),
            count => Err(self.foreign(count)),
        }
    }

    /// Stops and removes the kdamonds that a killed agent left: those that monitor a subset of `expected_pids`, each configured
    /// as by [`Damon::start`] or [`Damon::watch_points`], or not yet configured because the agent was killed during setup.
    ///
    /// A subset, because the agent records the pids before it replaces one set of monitors by another: it may be killed with
    /// either set in place.
    ///
    /// Returns the number of kdamonds removed; 0 if DAMON is idle or absent. Kdamonds of other processes are not changed.
    ///
    /// # Errors
    /// [`Error::Busy`] if other kdamonds exist; [`Error::Parse`]; [`Error::Io`].
    pub fn reap(roots: &Roots, expected_pids: &[i32]) -> Result<usize> {
        let damon = match Self::find(roots) {
            Ok(damon) => damon,
            Err(error) if error.is_unsupported() => return Ok(0),
            Err(error) => return Err(error),
        };
        let count = damon.count()?;
        if count == 0 {
            return Ok(0);
        }
        if count > expected_pids.len() || !kdamond::are_among(&damon.kdamonds, count, expected_pids)? {
            return Err(damon.foreign(count));
        }
        kdamond::take_down(&damon.kdamonds, count)?;
        Ok(count)
    }

    fn find(roots: &Roots) -> Result<Self> {
        const REMEDY: &str = "boot a kernel with CONFIG_DAMON_VADDR=y and CONFIG_DAMON_SYSFS=y, or use another tracker";
        let kdamonds = roots.sys.join("kernel/mm/damon/admin/kdamonds");
        if kdamonds.join("nr_kdamonds").exists() {
            return Ok(Self { kdamonds });
        }
        Err(Error::unsupported("this kernel has no DAMON in sysfs", REMEDY))
    }

    fn count(&self) -> Result<usize> {
        read_number(&self.kdamonds.join("nr_kdamonds"))
    }

    fn foreign(&self, count: usize) -> Error {
        Error::busy(
            format!("DAMON is used by another process: {count} kdamonds in {}", self.kdamonds.display()),
            "stop that tool, then echo 0 > nr_kdamonds there; or choose another tracker",
        )
    }
}

/// Reads a sysfs file that holds a number.
fn read_number<T: std::str::FromStr>(path: &Path) -> Result<T> {
    let text = file::read(path, file::SMALL)?;
    text::only_number(&text, "a whole number").map_err(|malformed| malformed.at(path))
}

//! DAMON through sysfs: `/sys/kernel/mm/damon/admin` (`Documentation/admin-guide/mm/damon/usage.rst`).
//!
//! One kdamond (kernel thread) watches one process. Each has one context with the `vaddr` operations and one scheme
//! of action `stat`, which matches every region and does nothing to it: its list of tried regions is the snapshot.
//!
//! [`PointSession`] is the other way to watch: single pages, by the `fvaddr` operations, to count accesses.
//!
//! # Why the sampling and the aggregation interval are the same
//! DAMON resets the age of a region only when its access count changes by more than a tenth of the largest count
//! possible, samples per aggregation. With the usual twenty samples, one access per aggregation goes unnoticed and
//! memory touched every few seconds looks dead. With one sample the count is 0 or 1, every access resets the age,
//! and the age in intervals is the time since the last access.
//!
//! # Whose DAMON it is
//! The interface has no owner: the one who writes last wins. So a machine on which anyone else uses DAMON (through
//! sysfs or the modules `damon_stat`, `damon_reclaim`, `damon_lru_sort`) is [`Error::Busy`], and never taken over.

mod kdamond;
mod points;
mod session;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use crate::{Error, Result, Roots, file, text};

pub use points::{Counts, PointSession, Points};
pub use session::Session;

/// The smallest `regions_min` that the kernel accepts.
pub const REGIONS_MIN: u64 = 3;

/// The modules that use DAMON by themselves while their parameter `enabled` is set.
const MODULES: [&str; 3] = ["damon_stat", "damon_reclaim", "damon_lru_sort"];

/// One process to watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Monitor {
    /// The process.
    pub pid: i32,
    /// The sampling and aggregation interval, the unit of [`Region::age`]. Below about half a second the ages suffer
    /// from what the kernel cannot keep up with.
    pub interval: Duration,
    /// The fewest regions that it is cut into, at least [`REGIONS_MIN`].
    pub regions_min: u64,
    /// The most regions. The kernel splits until half of them are in use.
    pub regions_max: u64,
}

/// Adjacent addresses that DAMON holds for equally hot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Region {
    /// Its first byte.
    pub start: u64,
    /// The byte past its last.
    pub end: u64,
    /// Whether it was accessed in the last interval: 1 or 0, with one sample per interval.
    pub nr_accesses: u32,
    /// Intervals since `nr_accesses` last changed: for a region with 0, the time since its last access.
    pub age: u32,
}

/// DAMON, found free for us to use.
#[derive(Clone, Debug)]
pub struct Damon {
    kdamonds: PathBuf,
}

impl Damon {
    /// Finds DAMON and makes sure that nobody uses it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on kernels without its sysfs interface or without `vaddr`; [`Error::Busy`] naming who
    /// uses it; [`Error::Parse`]; [`Error::Io`].
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

    /// Starts watching `monitors`, one kdamond each, in their order.
    ///
    /// A process that has ended in the meantime does not keep the others from being watched:
    /// [`Session::snapshot`] answers [`Error::Gone`] for it.
    ///
    /// # Errors
    /// [`Error::Busy`] if someone has come to use DAMON since; [`Error::Io`], `EINVAL` where the region counts are
    /// out of range. Nothing is left running then.
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

    /// Starts looking at single pages of several processes, every `look`. A process that has ended already is left out:
    /// [`PointSession::counts`] says so.
    ///
    /// Every page costs two file writes here and a file read at every [`PointSession::counts`].
    ///
    /// # Errors
    /// [`Error::Gone`] if all processes have ended; [`Error::Busy`] if someone has come to use DAMON since;
    /// [`Error::Unsupported`] before Linux 6.7; [`Error::Io`], also where addresses are not ascending pages or `look` is below
    /// half a second. Nothing is left running then.
    pub fn watch_points(&self, look: Duration, points: &[Points]) -> Result<PointSession> {
        points::check(&self.kdamonds, look, points)?;
        match self.count()? {
            0 => PointSession::start(self.kdamonds.clone(), look, points),
            count => Err(self.foreign(count)),
        }
    }

    /// Takes down what a dead agent left: kdamonds that watch some of `expected_pids`, each in the form that
    /// [`Damon::start`] or [`Damon::watch_points`] gives it, or not yet set up because the agent died while starting them.
    ///
    /// Some, because the agent writes down whom it is about to watch before it exchanges the old set for the new one:
    /// it may die with either in place.
    ///
    /// Returns how many there were; 0 where DAMON is idle or absent. Nobody else's kdamond is touched.
    ///
    /// # Errors
    /// [`Error::Busy`] if the kdamonds are not those; [`Error::Parse`]; [`Error::Io`].
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
            format!("DAMON is used by someone else: {count} kdamonds in {}", self.kdamonds.display()),
            "stop that tool, then echo 0 > nr_kdamonds there; or choose another tracker",
        )
    }
}

/// The number that a sysfs file holds.
fn read_number<T: std::str::FromStr>(path: &Path) -> Result<T> {
    let text = file::read(path, file::SMALL)?;
    text::only_number(&text, "a whole number").map_err(|malformed| malformed.at(path))
}

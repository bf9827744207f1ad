//! One kdamond for a random sample of single pages of many processes; reports when each page was last accessed.
//!
//! # Why the ages are exact
//! Every region is one page, and no two are adjacent: DAMON merges adjacent regions only and splits no region of one page
//! (`damon_merge_regions_of()` and `damon_split_regions_of()` in `mm/damon/core.c`). With one sample per aggregation, a region's age
//! is the number of intervals since the page was last accessed, for as long as the kdamond runs.
//!
//! # How they are read
//! The trace event `damon:damon_aggregated` prints every region at the end of each aggregation. It is read through a tracing
//! instance of our own: one file in place of thousands in sysfs, and the kdamond does not wait for a reader.
//!
//! # Slots
//! The kernel matches processes by position when the list is replaced, and moves a page's age with it. Each process therefore keeps
//! its slot; a new process is appended or gets the slot of one that has exited. A page that is at the same address in the slot's
//! former process keeps that process's age: the caller must not trust an age that is longer than it has watched the page.

use std::path::PathBuf;
use std::time::Duration;

use units::Bytes;

use super::kdamond::{self, Form};
use super::points::{self, Points};
use super::{REGIONS_MIN, read_number};
use crate::tracefs::Instance;
use crate::{Error, Malformed, Result, Roots, file};

/// The tracing instance of [`PageSession`].
const INSTANCE: &str = "thermocline-ages";

/// The event that prints the regions.
const EVENT: &str = "damon/damon_aggregated";

/// Bytes of the trace buffer that one region takes (48 of data with its header, rounded up).
const EVENT_BYTES: u64 = 64;

/// Memory of one region in the kernel, with its directory in sysfs.
const REGION_BYTES: u64 = 1 << 10;

/// Limit of the trace buffer of each CPU: a kdamond moves between CPUs, so each must hold all events.
const BUFFER_MAX: Bytes = Bytes::mib(4);

/// A page at the end of one aggregation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageState {
    /// Time since boot at which the aggregation ended.
    pub at: Duration,
    /// The slot of its process.
    pub slot: usize,
    /// Its address.
    pub address: u64,
    /// Whether it was accessed during the last interval.
    pub accessed: bool,
    /// Intervals since `accessed` last changed.
    pub age: u32,
}

/// A running kdamond over single pages. Dropping it stops the kdamond as [`PageSession::stop`] does, and ignores errors.
#[derive(Debug)]
pub struct PageSession {
    kdamonds: PathBuf,
    trace: Instance,
    /// Size of the trace buffer of each CPU.
    buffer: Bytes,
    slots: Vec<Points>,
    stopped: bool,
}

/// Removes what a killed process left in tracefs. Its kdamonds are removed by [`super::Damon::reap`].
///
/// # Errors
/// [`Error::Busy`] if another process has the instance open; [`Error::Io`].
pub fn reap_trace(roots: &Roots) -> Result<bool> {
    crate::tracefs::reap(roots, INSTANCE)
}

impl PageSession {
    pub(super) fn start(roots: &Roots, kdamonds: PathBuf, interval: Duration, pages_max: u64, slots: &[Points]) -> Result<Self> {
        // Two aggregations more than are expected between two readings, which come every few intervals.
        let buffer = Bytes(pages_max.saturating_mul(EVENT_BYTES).saturating_mul(8)).min(BUFFER_MAX);
        let trace = Instance::create(roots, INSTANCE, EVENT, buffer)?;
        file::write(&kdamonds.join("nr_kdamonds"), "1")?;
        let mut session = Self { kdamonds, trace, buffer, slots: slots.to_vec(), stopped: false };
        // From here on, an early return drops the session, which removes the kdamond.
        let pids = session.pids();
        let form = Form {
            operations: "fvaddr",
            sample: interval,
            aggregation: interval,
            regions_min: REGIONS_MIN,
            // DAMON splits regions only while there are at most half of the maximum.
            regions_max: pages_max.saturating_mul(2).max(REGIONS_MIN),
            pids: &pids,
        };
        kdamond::set_up(&session.kdamond(), &form)?;
        session.write_slots(None)?;
        kdamond::turn_on(&session.kdamond(), &pids)?;
        Ok(session)
    }

    /// The processes and pages, by slot.
    #[must_use]
    pub fn slots(&self) -> &[Points] {
        &self.slots
    }

    /// Replaces the pages. Pages that remain in their slot keep their ages.
    ///
    /// # Errors
    /// [`Error::Gone`] if all processes have exited, or one of a slot that the kernel must find again; the session is then of
    /// no use. [`Error::Io`] `EINVAL` if slots are missing or addresses are not ascending pages.
    pub fn replace(&mut self, slots: Vec<Points>) -> Result<()> {
        points::check_addresses(&self.kdamonds, &slots)?;
        if slots == self.slots {
            return Ok(());
        }
        let before = std::mem::replace(&mut self.slots, slots);
        let kdamond = self.kdamond();
        if !kdamond::is_ours(&kdamond, &before.iter().chain(&self.slots).map(|slot| slot.pid).collect::<Vec<_>>())? {
            return Err(Error::Gone { path: kdamond });
        }
        self.write_slots(Some(&before))?;
        match kdamond::command(&kdamond, "commit") {
            Err(error) if error.errno() == Some(libc::EINVAL) => Err(Error::Gone { path: kdamond }),
            other => other,
        }
    }

    /// Calls `visit` for each page at the end of each aggregation since the last call, in order.
    ///
    /// # Errors
    /// [`Error::Parse`] if the kernel prints the event differently; [`Error::Io`].
    pub fn drain(&mut self, visit: &mut dyn FnMut(PageState)) -> Result<()> {
        let mut wrong = None;
        let slots = self.slots.len();
        self.trace.drain(&mut |line| match parse(line) {
            Ok(Some(state)) if state.slot < slots => visit(state),
            // Slots that were given up since.
            Ok(_) => {}
            Err(malformed) => wrong = Some(malformed),
        })?;
        match wrong {
            Some(malformed) => Err(malformed.at(&PathBuf::from(EVENT))),
            None => Ok(()),
        }
    }

    /// Whether the kdamond runs: it ends with the last of its processes.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn is_running(&self) -> Result<bool> {
        kdamond::is_on(&self.kdamond())
    }

    /// The pid of the kdamond, whose CPU time is charged to this session.
    #[must_use]
    pub fn kdamond_pid(&self) -> Option<i32> {
        read_number(&self.kdamond().join("pid")).ok().filter(|pid| *pid > 0)
    }

    /// Memory of the regions and of the trace buffers of all CPUs, by an upper bound.
    #[must_use]
    pub fn kernel_memory(&self) -> Bytes {
        let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64);
        let regions: u64 = self.slots.iter().map(|slot| slot.addresses.len() as u64).sum();
        Bytes(regions.saturating_mul(REGION_BYTES).saturating_add(self.buffer.0.saturating_mul(cpus)))
    }

    /// Stops the kdamond, waits up to one interval until it has stopped, and removes it. May be called again after an error.
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
        self.trace.stop()?;
        self.stopped = true;
        Ok(())
    }

    fn kdamond(&self) -> PathBuf {
        self.kdamonds.join("0")
    }

    fn pids(&self) -> Vec<i32> {
        self.slots.iter().map(|slot| slot.pid).collect()
    }

    /// Writes the slots that differ from `before`; all of them if their number does, because the kernel then makes new directories.
    fn write_slots(&mut self, before: Option<&[Points]>) -> Result<()> {
        let targets = self.kdamond().join("contexts/0/targets");
        let same_number = before.is_some_and(|before| before.len() == self.slots.len());
        if before.is_some() && !same_number {
            file::write(&targets.join("nr_targets"), &self.slots.len().to_string())?;
        }
        for (index, slot) in self.slots.iter().enumerate() {
            if same_number && before.is_some_and(|before| before[index] == *slot) {
                continue;
            }
            let target = targets.join(index.to_string());
            file::write(&target.join("pid_target"), &slot.pid.to_string())?;
            points::write_regions(&target.join("regions"), &slot.addresses)?;
        }
        Ok(())
    }
}

impl Drop for PageSession {
    fn drop(&mut self) {
        // The next start removes leftovers: the pids are recorded.
        let _ = self.stop();
    }
}

/// Parses a line of `trace_pipe`; `None` for other events and for the kernel's remarks, such as lost events.
///
/// ```text
///      kdamond.0-123     [001] .....  1234.567890: damon_aggregated: target_id=0 nr_regions=3 4096-8192: 0 31
/// ```
fn parse(line: &str) -> Result<Option<PageState>, Malformed> {
    let Some((head, body)) = line.split_once(": damon_aggregated: ") else { return Ok(None) };
    let fields = || -> Option<PageState> {
        let at: f64 = head.rsplit(' ').next()?.parse().ok()?;
        let mut words = body.split_ascii_whitespace();
        let slot = words.next()?.strip_prefix("target_id=")?.parse().ok()?;
        words.next()?.strip_prefix("nr_regions=")?;
        let (start, _end) = words.next()?.strip_suffix(':')?.split_once('-')?;
        let accesses: u32 = words.next()?.parse().ok()?;
        let age = words.next()?.parse().ok()?;
        let at = Duration::try_from_secs_f64(at).ok()?;
        Some(PageState { at, slot, address: start.parse().ok()?, accessed: accesses > 0, age })
    };
    fields().map(Some).ok_or_else(|| Malformed::new(0, line, "target_id=N nr_regions=N START-END: ACCESSES AGE"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traced_region_is_parsed_and_other_lines_are_skipped() {
        let line = "       kdamond.0-71      [001] .....    99.500210: damon_aggregated: target_id=2 nr_regions=3 8192-12288: 1 7";
        let want = PageState { at: Duration::from_secs_f64(99.500_210), slot: 2, address: 8192, accessed: true, age: 7 };
        assert_eq!(parse(line).unwrap(), Some(want));
        assert_eq!(parse("CPU:1 [LOST 12 EVENTS]").unwrap(), None);
        for wrong in ["x 1.5: damon_aggregated: target_id=a", "x y: damon_aggregated: target_id=0 nr_regions=1 1-2: 0 0"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}

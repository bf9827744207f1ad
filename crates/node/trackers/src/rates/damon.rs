//! Rates by DAMON: the kernel itself samples single pages of processes, and reports the counts at the end.
//!
//! One kdamond watches all points. Reporting its counts and stopping take it two or three more sampling intervals: a thread
//! waits for that ([`Pending`]), and [`RateTracker::finish`] returns the result once it is there. A page is sampled through its
//! address in one process, so accesses by other processes are not seen, and a part of a huge page shows the accesses to all of
//! it.

use std::time::{Duration, Instant};

use kernel::damon::{Counts, Damon as Admin, PointSession, Points};
use kernel::{Error, Result, Roots, process};
use policy::slowdown::rate::BitSamples;

use super::pending::{Overdue, Pending};
use super::point::Point;
use super::tracker::{Observation, RateTracker, Watch};
use super::translate;
use crate::kdamond_time::KdamondTime;

/// Upper limit of the points of a watch. Each takes two writes at the start and a read at the end, of small files in sysfs.
const POINTS_MAX: usize = 1 << 13;

/// Lower limit of the sampling interval at which the number of samples is exact ([`kernel::damon::points`]).
const INTERVAL_MIN: Duration = Duration::from_millis(500);

/// Lower limit of the sampling interval of dense samples. Some may not be counted, which overestimates rates.
const DENSE_INTERVAL_MIN: Duration = Duration::from_millis(50);

/// Sampling intervals that the kernel usually takes to report its counts.
const REPORT_INTERVALS: u32 = 3;

/// Sampling intervals within which the kernel reports its counts and stops its thread, unless the machine is overloaded.
const REPORT_INTERVALS_MAX: u32 = 5;

/// Additional time for reading the counts of all points, and for the commands of other users of DAMON.
const TIMEOUT_MARGIN: Duration = Duration::from_secs(10);

/// The tracker for stock kernels.
#[derive(Debug)]
pub struct Damon {
    roots: Roots,
    admin: Admin,
    watched: Option<Watched>,
    kernel_cpu: Duration,
    threads_cpu: Duration,
}

/// A watch under way.
#[derive(Debug)]
struct Watched {
    /// In the order given.
    points: Vec<Point>,
    /// The same points by process.
    by_process: Vec<Points>,
    interval: Duration,
    started_at: Instant,
    state: State,
}

#[derive(Debug)]
enum State {
    /// All processes had exited at the start.
    NoProcess,
    Watching(PointSession),
    /// The kernel has been asked for its counts.
    Reporting(Pending<Report>),
}

/// The end of a session.
#[derive(Debug)]
struct Report {
    /// `None` if the counts were not requested.
    counts: Option<Result<Counts>>,
    /// The session, if it could not be stopped: it is kept, because only its owner can stop the kernel thread later.
    left: Option<(PointSession, Error)>,
    kernel_cpu: Duration,
    thread_cpu: Duration,
}

impl Report {
    /// Waits for the counts if they are requested, and stops the session.
    fn of(mut session: PointSession, with_counts: bool, roots: &Roots) -> Self {
        let counts = with_counts.then(|| session.counts());
        let mut kernel_cpu = KdamondTime::default();
        kernel_cpu.update(roots, session.kdamond_pid().as_slice());
        let left = match session.stop() {
            Err(error) if !error.is_gone() => Some((session, error)),
            _ => None,
        };
        Self { counts, left, kernel_cpu: kernel_cpu.total(), thread_cpu: process::thread_cpu_time().unwrap_or_default() }
    }
}

impl Damon {
    /// Finds DAMON's interface; no kdamond starts before the first watch.
    ///
    /// # Errors
    /// `Unsupported` if the kernel lacks DAMON's sysfs interface, `Busy` if another program uses it.
    pub fn open(roots: &Roots) -> Result<Self> {
        let admin = Admin::probe(roots)?;
        Ok(Self { roots: roots.clone(), admin, watched: None, kernel_cpu: Duration::ZERO, threads_cpu: Duration::ZERO })
    }

    /// Starts a thread that reads the counts, if requested, and stops the session.
    fn request_report(&self, session: PointSession, interval: Duration, with_counts: bool) -> Result<Pending<Report>> {
        let roots = self.roots.clone();
        let timeout = interval.saturating_mul(REPORT_INTERVALS_MAX) + TIMEOUT_MARGIN;
        Pending::spawn("damon-counts", timeout, move || Report::of(session, with_counts, &roots)).map_err(|source| Error::Io {
            path: "/proc/self/task".into(),
            op: "start a thread in",
            source,
        })
    }

    /// Accounts the costs of a report and returns its counts. A session that could not be stopped is kept.
    fn settle(&mut self, mut watched: Watched, report: Report) -> Result<(Watched, Option<Result<Counts>>)> {
        self.kernel_cpu += report.kernel_cpu;
        self.threads_cpu += report.thread_cpu;
        let Some((session, error)) = report.left else { return Ok((watched, report.counts)) };
        watched.state = State::Watching(session);
        self.watched = Some(watched);
        Err(error)
    }
}

impl Watched {
    /// The result if all processes have exited.
    fn empty(&self) -> Observation {
        Observation { samples: vec![None; self.points.len()], window: self.started_at.elapsed() }
    }

    /// The samples of each point.
    fn observation(&self, roots: &Roots, counts: &Counts) -> Result<Observation> {
        let present = translate::entries(roots, &self.points)?;
        let samples = self.points.iter().zip(present).map(|(point, entry)| {
            let accessed = accessed_at(&self.by_process, &counts.accessed, point)?;
            entry.present().then_some(BitSamples { taken: counts.samples, accessed })
        });
        Ok(Observation { samples: samples.collect(), window: counts.taken_at.saturating_duration_since(self.started_at) })
    }
}

fn overdue(Overdue: Overdue) -> Error {
    Error::Busy {
        what: "DAMON has not reported its counts within several sampling intervals".to_owned(),
        remedy: "the machine is overloaded or the kdamond hangs (see dmesg); the next period tries again".to_owned(),
    }
}

/// Groups points by process; the points of each process are sorted and without duplicates.
fn by_process(points: &[Point]) -> Vec<Points> {
    let mut sorted = points.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let of_one = |points: &[Point]| Points { pid: points[0].pid, addresses: points.iter().map(|point| point.address).collect() };
    sorted.chunk_by(|one, next| one.pid == next.pid).map(of_one).collect()
}

/// Returns the count of one point; `None` if its process has exited.
fn accessed_at(points: &[Points], accessed: &[Option<Vec<u32>>], point: &Point) -> Option<u32> {
    let process = points.binary_search_by_key(&point.pid, |points| points.pid).ok()?;
    let page = points[process].addresses.binary_search(&point.address).ok()?;
    accessed.get(process)?.as_ref()?.get(page).copied()
}

impl RateTracker for Damon {
    fn name(&self) -> &'static str {
        "damon"
    }

    fn points_max(&self) -> usize {
        POINTS_MAX
    }

    fn interval_min(&self) -> Duration {
        INTERVAL_MIN
    }

    fn dense_interval_min(&self) -> Duration {
        DENSE_INTERVAL_MIN
    }

    fn report_intervals(&self) -> u32 {
        REPORT_INTERVALS
    }

    fn watch(&mut self, watch: &Watch<'_>) -> Result<()> {
        self.stop()?;
        let points = [watch.repeated, watch.once].concat();
        let interval = watch.interval.max(DENSE_INTERVAL_MIN);
        let by_process = by_process(&points);
        let state = match self.admin.watch_points(interval, &by_process) {
            Err(error) if error.is_gone() => State::NoProcess,
            other => State::Watching(other?),
        };
        self.watched = Some(Watched { points, by_process, interval, started_at: Instant::now(), state });
        Ok(())
    }

    fn sample(&mut self) -> Result<()> {
        Ok(())
    }

    fn finish(&mut self) -> Result<Option<Observation>> {
        let Some(mut watched) = self.watched.take() else { return Ok(Some(Observation::default())) };
        let pending = match watched.state {
            State::NoProcess => return Ok(Some(watched.empty())),
            State::Watching(session) => self.request_report(session, watched.interval, true)?,
            State::Reporting(pending) => pending,
        };
        let report = pending.poll();
        watched.state = State::Reporting(pending);
        let Ok(Some(report)) = report else {
            self.watched = Some(watched);
            return report.map(|_| None).map_err(overdue);
        };
        let (watched, counts) = self.settle(watched, report)?;
        match counts {
            None => Ok(Some(watched.empty())),
            Some(Err(error)) if error.is_gone() => Ok(Some(watched.empty())),
            Some(counts) => watched.observation(&self.roots, &counts?).map(Some),
        }
    }

    fn has_kernel_threads(&self) -> bool {
        true
    }

    fn kdamond_targets(&self) -> Vec<i32> {
        match &self.watched {
            None | Some(Watched { state: State::NoProcess, .. }) => Vec::new(),
            Some(watched) => watched.by_process.iter().map(|points| points.pid).collect(),
        }
    }

    fn kernel_cpu_time(&self) -> Duration {
        self.kernel_cpu
    }

    fn threads_cpu_time(&self) -> Duration {
        self.threads_cpu
    }

    fn stop(&mut self) -> Result<()> {
        let Some(mut watched) = self.watched.take() else { return Ok(()) };
        let pending = match watched.state {
            State::NoProcess => return Ok(()),
            State::Watching(session) => self.request_report(session, watched.interval, false)?,
            State::Reporting(pending) => pending,
        };
        let report = pending.wait();
        watched.state = State::Reporting(pending);
        match report {
            Ok(report) => self.settle(watched, report).map(drop),
            Err(late) => {
                self.watched = Some(watched);
                Err(overdue(late))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_returned_for_the_right_points() {
        let point = |pid, page: u64| Point { pid, address: page << 12 };
        let given = [point(9, 5), point(7, 8), point(9, 1), point(7, 2), point(8, 3), point(7, 8)];
        let points = by_process(&given);
        let addresses = |pages: &[u64]| pages.iter().map(|page| page << 12).collect::<Vec<_>>();
        let want = [(7, addresses(&[2, 8])), (8, addresses(&[3])), (9, addresses(&[1, 5]))];
        assert_eq!(points, want.map(|(pid, addresses)| Points { pid, addresses }));
        // Process 8 has exited.
        let accessed = [Some(vec![72, 78]), None, Some(vec![91, 95])];
        let got = given.map(|point| accessed_at(&points, &accessed, &point));
        assert_eq!(got, [Some(95), Some(78), Some(91), Some(72), None, Some(78)]);
        assert_eq!(accessed_at(&points, &accessed, &point(7, 9)), None);
        assert!(by_process(&[]).is_empty());
    }
}

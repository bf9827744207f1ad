//! Rates by DAMON: the kernel looks at single pages of processes by itself, and hands the counts out at the end.
//!
//! One kdamond watches all points. To hand its counts out, and to end, takes it two or three looks more: a thread waits for
//! that ([`Later`]), and [`RateTracker::finish`] answers once it is done. A page is looked at through its address in one
//! process, so that accesses of others are not seen, and a part of a huge page shows what the whole of it shows.

use std::time::{Duration, Instant};

use kernel::damon::{Counts, Damon as Admin, PointSession, Points};
use kernel::{Error, Result, Roots, process};
use policy::slowdown::rate::Looks;

use super::later::{Later, Overdue};
use super::{Point, RateTracker, Seen, Watch, translate};
use crate::kdamond_time::KdamondTime;

/// Points of one watch. Each takes two writes at the start and a read at the end, of small files in sysfs.
const POINTS_MAX: usize = 1 << 13;

/// The shortest time from look to look that the kernel's interface allows for.
const LOOK_MIN: Duration = Duration::from_millis(500);

/// Looks that it takes the kernel to hand its counts out, as a rule.
const HANDING_OUT: u32 = 3;

/// Looks within which the kernel hands its counts out and ends its thread, on a machine that is not overloaded.
const LOOKS_AFTER: u32 = 5;

/// What it may take longer, for reading the counts of all points and for commands of others.
const PATIENCE: Duration = Duration::from_secs(10);

/// The tracker of stock kernels.
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
    /// As they were given.
    points: Vec<Point>,
    /// The same by process.
    by_process: Vec<Points>,
    look_period: Duration,
    started_at: Instant,
    state: State,
}

#[derive(Debug)]
enum State {
    /// All processes had ended at the start.
    Nobody,
    Watching(PointSession),
    /// The counts are on their way.
    Asked(Later<Answer>),
}

/// What a session came to.
#[derive(Debug)]
struct Answer {
    /// `None` where nobody wants them.
    counts: Option<Result<Counts>>,
    /// It could not be ended: it is kept, for the kernel thread would otherwise outlive whoever could end it.
    left: Option<(PointSession, Error)>,
    kernel_cpu: Duration,
    thread_cpu: Duration,
}

impl Answer {
    /// Waits for the counts if they are wanted, and ends the session.
    fn of(mut session: PointSession, wanted: bool, roots: &Roots) -> Self {
        let counts = wanted.then(|| session.counts());
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
    /// Finds DAMON; nothing starts before the first watch.
    ///
    /// # Errors
    /// `Unsupported` where the kernel lacks DAMON's sysfs interface, `Busy` where somebody uses it.
    pub fn open(roots: &Roots) -> Result<Self> {
        let admin = Admin::probe(roots)?;
        Ok(Self { roots: roots.clone(), admin, watched: None, kernel_cpu: Duration::ZERO, threads_cpu: Duration::ZERO })
    }

    /// Has a thread fetch the counts, if they are wanted, and end the session.
    fn ask(&self, session: PointSession, look_period: Duration, wanted: bool) -> Result<Later<Answer>> {
        let roots = self.roots.clone();
        let patience = look_period.saturating_mul(LOOKS_AFTER) + PATIENCE;
        Later::ask("damon-counts", patience, move || Answer::of(session, wanted, &roots)).map_err(|source| Error::Io {
            path: "/proc/self/task".into(),
            op: "start a thread in",
            source,
        })
    }

    /// Books an answer, and returns what was counted. A session that could not be ended goes on.
    fn settle(&mut self, mut watched: Watched, answer: Answer) -> Result<(Watched, Option<Result<Counts>>)> {
        self.kernel_cpu += answer.kernel_cpu;
        self.threads_cpu += answer.thread_cpu;
        let Some((session, error)) = answer.left else { return Ok((watched, answer.counts)) };
        watched.state = State::Watching(session);
        self.watched = Some(watched);
        Err(error)
    }
}

impl Watched {
    /// What is known where all processes have ended.
    fn nothing(&self) -> Seen {
        Seen { looks: vec![None; self.points.len()], window: self.started_at.elapsed() }
    }

    /// What was counted at each point.
    fn seen(&self, roots: &Roots, counts: &Counts) -> Result<Seen> {
        let present = translate::entries(roots, &self.points)?;
        let looks = self.points.iter().zip(present).map(|(point, entry)| {
            let accessed = accessed_at(&self.by_process, &counts.accessed, point)?;
            entry.present().then_some(Looks { taken: counts.looks, accessed })
        });
        Ok(Seen { looks: looks.collect(), window: counts.taken_at.saturating_duration_since(self.started_at) })
    }
}

fn overdue(Overdue: Overdue) -> Error {
    Error::Busy {
        what: "DAMON has not handed its counts out within several looks".to_owned(),
        remedy: "the machine is overloaded, or its kdamond hangs: see dmesg; the next period tries again".to_owned(),
    }
}

/// Points by process, each process's sorted, none twice.
fn by_process(points: &[Point]) -> Vec<Points> {
    let mut sorted = points.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let of_one = |points: &[Point]| Points { pid: points[0].pid, addresses: points.iter().map(|point| point.address).collect() };
    sorted.chunk_by(|one, next| one.pid == next.pid).map(of_one).collect()
}

/// The count of one point; `None` where its process has ended.
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

    fn look_min(&self) -> Duration {
        LOOK_MIN
    }

    fn looks_after(&self) -> u32 {
        HANDING_OUT
    }

    fn watch(&mut self, watch: &Watch<'_>) -> Result<()> {
        self.stop()?;
        let points = [watch.often, watch.once].concat();
        let look_period = watch.look_period.max(LOOK_MIN);
        let by_process = by_process(&points);
        let state = match self.admin.watch_points(look_period, &by_process) {
            Err(error) if error.is_gone() => State::Nobody,
            other => State::Watching(other?),
        };
        self.watched = Some(Watched { points, by_process, look_period, started_at: Instant::now(), state });
        Ok(())
    }

    fn look(&mut self) -> Result<()> {
        Ok(())
    }

    fn finish(&mut self) -> Result<Option<Seen>> {
        let Some(mut watched) = self.watched.take() else { return Ok(Some(Seen::default())) };
        let later = match watched.state {
            State::Nobody => return Ok(Some(watched.nothing())),
            State::Watching(session) => self.ask(session, watched.look_period, true)?,
            State::Asked(later) => later,
        };
        let answer = later.poll();
        watched.state = State::Asked(later);
        let Ok(Some(answer)) = answer else {
            self.watched = Some(watched);
            return answer.map(|_| None).map_err(overdue);
        };
        let (watched, counts) = self.settle(watched, answer)?;
        match counts {
            None => Ok(Some(watched.nothing())),
            Some(Err(error)) if error.is_gone() => Ok(Some(watched.nothing())),
            Some(counts) => watched.seen(&self.roots, &counts?).map(Some),
        }
    }

    fn has_kernel_threads(&self) -> bool {
        true
    }

    fn kdamond_targets(&self) -> Vec<i32> {
        match &self.watched {
            None | Some(Watched { state: State::Nobody, .. }) => Vec::new(),
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
        let later = match watched.state {
            State::Nobody => return Ok(()),
            State::Watching(session) => self.ask(session, watched.look_period, false)?,
            State::Asked(later) => later,
        };
        let answer = later.wait();
        watched.state = State::Asked(later);
        match answer {
            Ok(answer) => self.settle(watched, answer).map(drop),
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
    fn every_point_gets_its_own_count() {
        let point = |pid, page: u64| Point { pid, address: page << 12 };
        let given = [point(9, 5), point(7, 8), point(9, 1), point(7, 2), point(8, 3), point(7, 8)];
        let points = by_process(&given);
        let addresses = |pages: &[u64]| pages.iter().map(|page| page << 12).collect::<Vec<_>>();
        let want = [(7, addresses(&[2, 8])), (8, addresses(&[3])), (9, addresses(&[1, 5]))];
        assert_eq!(points, want.map(|(pid, addresses)| Points { pid, addresses }));
        // Process 8 has ended.
        let accessed = [Some(vec![72, 78]), None, Some(vec![91, 95])];
        let got = given.map(|point| accessed_at(&points, &accessed, &point));
        assert_eq!(got, [Some(95), Some(78), Some(91), Some(72), None, Some(78)]);
        assert_eq!(accessed_at(&points, &accessed, &point(7, 9)), None);
        assert!(by_process(&[]).is_empty());
    }
}

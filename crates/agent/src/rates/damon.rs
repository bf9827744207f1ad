//! Rates by DAMON: the kernel looks at single pages of processes by itself, and hands the counts out at the end.
//!
//! One kdamond watches all points. To hand its counts out takes it two or three looks more, for which
//! [`RateTracker::finish`] waits. A page is looked at through its address in one process, so that accesses of others are not
//! seen, and a part of a huge page shows what the whole of it shows.

use std::time::{Duration, Instant};

use config::Tracker as Kind;
use kernel::damon::{Damon as Admin, PointSession, Points};
use kernel::{Result, Roots};
use policy::slowdown::rate::Looks;

use super::{Point, RateTracker, Seen, Watch, translate};
use crate::trackers::damon::KdamondTime;

/// Points of one watch. Each takes two writes at the start and a read at the end, of small files in sysfs.
const POINTS_MAX: usize = 1 << 13;

/// The shortest time from look to look that the kernel's interface allows for.
const LOOK_MIN: Duration = Duration::from_millis(500);

/// The tracker of stock kernels.
#[derive(Debug)]
pub struct Damon {
    roots: Roots,
    admin: Admin,
    watched: Option<Watched>,
    cpu: KdamondTime,
}

/// A watch under way.
#[derive(Debug)]
struct Watched {
    /// As they were given.
    points: Vec<Point>,
    /// `None` where all processes had ended at the start.
    session: Option<PointSession>,
    started_at: Instant,
}

impl Damon {
    /// Finds DAMON; nothing starts before the first watch.
    ///
    /// # Errors
    /// `Unsupported` where the kernel lacks DAMON's sysfs interface, `Busy` where somebody uses it.
    pub fn open(roots: &Roots) -> Result<Self> {
        Ok(Self { roots: roots.clone(), admin: Admin::probe(roots)?, watched: None, cpu: KdamondTime::default() })
    }

    /// What the session has counted at each point.
    fn seen(&self, watched: &Watched) -> Result<Seen> {
        let nothing = || Seen { looks: vec![None; watched.points.len()], window: watched.started_at.elapsed() };
        let Some(session) = &watched.session else { return Ok(nothing()) };
        let counts = match session.counts() {
            Err(error) if error.is_gone() => return Ok(nothing()),
            other => other?,
        };
        let present = translate::entries(&self.roots, &watched.points)?;
        let looks = watched.points.iter().zip(present).map(|(point, entry)| {
            let accessed = accessed_at(session.points(), &counts.accessed, point)?;
            entry.present().then_some(Looks { taken: counts.looks, accessed })
        });
        Ok(Seen { looks: looks.collect(), window: counts.taken_at.saturating_duration_since(watched.started_at) })
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
    fn kind(&self) -> Kind {
        Kind::Damon
    }

    fn points_max(&self) -> usize {
        POINTS_MAX
    }

    fn look_min(&self) -> Duration {
        LOOK_MIN
    }

    fn watch(&mut self, watch: &Watch<'_>) -> Result<()> {
        self.stop()?;
        let points = [watch.often, watch.once].concat();
        let session = match self.admin.watch_points(watch.look_period.max(LOOK_MIN), &by_process(&points)) {
            Err(error) if error.is_gone() => None,
            other => Some(other?),
        };
        self.watched = Some(Watched { points, session, started_at: Instant::now() });
        Ok(())
    }

    fn look(&mut self) -> Result<()> {
        Ok(())
    }

    fn finish(&mut self) -> Result<Seen> {
        let seen = match &self.watched {
            Some(watched) => self.seen(watched)?,
            None => return Ok(Seen::default()),
        };
        self.stop()?;
        Ok(seen)
    }

    fn has_kernel_threads(&self) -> bool {
        true
    }

    fn kdamond_targets(&self) -> Vec<i32> {
        let session = self.watched.as_ref().and_then(|watched| watched.session.as_ref());
        session.map_or_else(Vec::new, |session| session.points().iter().map(|points| points.pid).collect())
    }

    fn kernel_cpu_time(&self) -> Duration {
        self.cpu.total()
    }

    fn stop(&mut self) -> Result<()> {
        if let Some(session) = self.watched.as_mut().and_then(|watched| watched.session.as_mut()) {
            self.cpu.update(&self.roots, session.kdamond_pid().as_slice());
            self.cpu.ended();
            // Until it has ended, it stays known: the kernel thread would otherwise outlive whoever could end it.
            match session.stop() {
                Err(error) if !error.is_gone() => return Err(error),
                _ => {}
            }
        }
        self.watched = None;
        Ok(())
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

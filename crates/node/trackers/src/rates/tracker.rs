//! The trait behind which trackers sample accessed bits.

use std::fmt;
use std::time::Duration;

use kernel::Result;
use policy::slowdown::rate::BitSamples;

use super::point::Point;

/// A request to sample points.
#[derive(Clone, Copy, Debug)]
pub struct Watch<'a> {
    /// Points to sample at every interval.
    pub repeated: &'a [Point],
    /// Points to check only for being accessed at all. A tracker may sample them just once, at the end.
    pub once: &'a [Point],
    /// The time between two samples.
    pub interval: Duration,
    /// Number of samples.
    pub samples: u32,
}

/// The result of a watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// The samples of each point: the repeated points first, in the order given. `None` if the page vanished, moved, or
    /// cannot be sampled.
    pub samples: Vec<Option<BitSamples>>,
    /// The time from the first clearing of the bits to the last sample.
    pub window: Duration,
}

/// Samples accessed bits. One watch at a time.
pub trait RateTracker: fmt::Debug {
    /// The tracker's name in reports.
    fn name(&self) -> &'static str;

    /// Upper limit of the points of one watch.
    fn points_max(&self) -> usize;

    /// Lower limit of the sampling interval.
    fn interval_min(&self) -> Duration {
        Duration::ZERO
    }

    /// Lower limit of the sampling interval of a short watch of few points, whose number of samples need not be exact.
    fn dense_interval_min(&self) -> Duration {
        self.interval_min()
    }

    /// Number of sampling intervals that the report of a watch usually takes.
    fn report_intervals(&self) -> u32 {
        0
    }

    /// Begins to watch, and discards an earlier watch.
    ///
    /// [`Watch::repeated`] is sampled at each call of [`RateTracker::sample`], or by the kernel itself.
    ///
    /// # Errors
    /// When the kernel interface fails. A process that has exited is no error.
    fn watch(&mut self, watch: &Watch<'_>) -> Result<()>;

    /// Takes a sample; to be called at every interval.
    ///
    /// # Errors
    /// When the kernel interface fails.
    fn sample(&mut self) -> Result<()>;

    /// Ends the watch and returns its result. `None` while the kernel has not reported yet: call it again. Never waits.
    ///
    /// # Errors
    /// When the kernel interface fails; `Busy` if the report is overdue.
    fn finish(&mut self) -> Result<Option<Observation>>;

    /// Whether watching needs kernel threads, which survive this process if it is killed. The caller must then record the
    /// watched processes before [`RateTracker::watch`], so that the next start can stop the threads
    /// ([`super::sampler::Sampler::pids`]).
    fn has_kernel_threads(&self) -> bool {
        false
    }

    /// Processes that kernel threads watch now.
    fn kdamond_targets(&self) -> Vec<i32> {
        Vec::new()
    }

    /// CPU time of the tracker's kernel threads since it was opened.
    fn kernel_cpu_time(&self) -> Duration {
        Duration::ZERO
    }

    /// CPU time of the tracker's own threads, without the caller's, since it was opened.
    fn threads_cpu_time(&self) -> Duration {
        Duration::ZERO
    }

    /// Ends a watch without a result, and leaves nothing behind in the kernel. Waits for a report that is under way.
    ///
    /// # Errors
    /// What could not be stopped.
    fn stop(&mut self) -> Result<()> {
        Ok(())
    }
}

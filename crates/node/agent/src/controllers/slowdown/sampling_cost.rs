//! What it costs to sample access rates: CPU time, and huge pages that are split meanwhile.
//!
//! A job pays for it in two ways. CPUs that sample do not run the job: [`Costs::rates_cpu_seconds`]. And while one of its huge
//! pages is split or collapsed, every task that touches it waits: [`Costs::rates_held_seconds`] is the whole duration of those
//! calls, an upper bound of that wait. Neither includes the TLB misses of the few pages that are split for two thirds of a
//! period, nor those of accessed bits that the CPU has to set again.

use std::cell::Cell;
use std::time::Duration;

use daemon::Clock;
use kernel::process;
use trackers::rates::RateTracker;

use crate::costs::Costs;

/// Sums since the agent started.
#[derive(Debug, Default)]
pub(super) struct SamplingCost {
    /// Time during which some job was under this policy.
    time: Duration,
    /// The end of that time so far, if it continues.
    last: Option<Duration>,
    /// CPU time of the loop's thread.
    cpu: Duration,
    /// CPU time of closed trackers: of the kernel's threads, and of their own threads.
    kernel_cpu: Duration,
    threads_cpu: Duration,
    pub(super) changes: Changes,
}

/// Huge pages that were split and collapsed.
#[derive(Debug, Default)]
pub(super) struct Changes {
    splits: Cell<u64>,
    collapses: Cell<u64>,
    time: Cell<Duration>,
}

impl Changes {
    /// Splits a huge page by `split`, which returns whether it did.
    pub(super) fn split<E>(&self, clock: &Clock, split: impl FnOnce() -> Result<bool, E>) -> Result<bool, E> {
        self.count(clock, &self.splits, split, |done| u64::from(*done))
    }

    /// Collapses huge pages by `collapse`, which returns how many.
    pub(super) fn collapse<E>(&self, clock: &Clock, collapse: impl FnOnce() -> Result<u64, E>) -> Result<u64, E> {
        self.count(clock, &self.collapses, collapse, |done| *done)
    }

    fn count<T, E>(
        &self,
        clock: &Clock,
        sum: &Cell<u64>,
        work: impl FnOnce() -> Result<T, E>,
        done: impl FnOnce(&T) -> u64,
    ) -> Result<T, E> {
        let begun = clock.now();
        let result = work();
        self.time.set(self.time.get() + clock.now().saturating_sub(begun));
        if let Ok(result) = &result {
            sum.set(sum.get().saturating_add(done(result)));
        }
        result
    }
}

impl SamplingCost {
    /// Some job is under this policy now.
    pub(super) fn resume(&mut self, now: Duration) {
        self.time += now.saturating_sub(self.last.unwrap_or(now));
        self.last = Some(now);
    }

    /// No job is under this policy any more.
    pub(super) fn pause(&mut self) {
        self.last = None;
    }

    /// Charges the CPU time of this thread since it was `before`.
    pub(super) fn charge(&mut self, before: Duration) {
        self.cpu += process::thread_cpu_time().unwrap_or_default().saturating_sub(before);
    }

    /// Keeps the cost of a tracker that is about to be closed.
    pub(super) fn keep(&mut self, tracker: &dyn RateTracker) {
        self.kernel_cpu += tracker.kernel_cpu_time();
        self.threads_cpu += tracker.threads_cpu_time();
    }

    /// CPU time of the kernel's threads, which belongs to no process.
    pub(super) fn kernel_cpu_time(&self, tracker: Option<&dyn RateTracker>) -> Duration {
        self.kernel_cpu + tracker.map_or(Duration::ZERO, RateTracker::kernel_cpu_time)
    }

    /// Writes all sums to `costs`.
    pub(super) fn report(&self, tracker: Option<&dyn RateTracker>, costs: &mut Costs) {
        let threads = self.threads_cpu + tracker.map_or(Duration::ZERO, RateTracker::threads_cpu_time);
        let cpu = self.cpu + threads + self.kernel_cpu_time(tracker);
        let ratio = |part: Duration| if self.time.is_zero() { 0.0 } else { part.as_secs_f64() / self.time.as_secs_f64() };
        let Changes { splits, collapses, time } = &self.changes;
        costs.rates_seconds = self.time.as_secs_f64();
        costs.rates_cpu_seconds = cpu.as_secs_f64();
        costs.rates_cpu_ratio = ratio(cpu);
        costs.rates_held_seconds = time.get().as_secs_f64();
        costs.rates_held_ratio = ratio(time.get());
        costs.rates_splits = splits.get();
        costs.rates_collapses = collapses.get();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trackers::rates::{Observation, Watch};

    /// A tracker with fixed costs.
    #[derive(Debug)]
    struct Costly;

    impl RateTracker for Costly {
        fn name(&self) -> &'static str {
            "costly"
        }
        fn points_max(&self) -> usize {
            0
        }
        fn watch(&mut self, _: &Watch<'_>) -> kernel::Result<()> {
            Ok(())
        }
        fn sample(&mut self) -> kernel::Result<()> {
            Ok(())
        }
        fn finish(&mut self) -> kernel::Result<Option<Observation>> {
            Ok(None)
        }
        fn kernel_cpu_time(&self) -> Duration {
            Duration::from_secs(3)
        }
        fn threads_cpu_time(&self) -> Duration {
            Duration::from_secs(1)
        }
    }

    fn reported(cost: &SamplingCost, tracker: Option<&dyn RateTracker>) -> Costs {
        let mut costs = Costs::default();
        cost.report(tracker, &mut costs);
        costs
    }

    #[test]
    fn costs_are_reported_as_a_share_of_the_sampling_time() {
        let mut cost = SamplingCost::default();
        assert_eq!(reported(&cost, None), Costs::default());
        for second in [100, 110, 300] {
            cost.resume(Duration::from_secs(second));
        }
        cost.pause();
        // Time without a job does not count.
        cost.resume(Duration::from_secs(5_000));
        cost.resume(Duration::from_secs(5_200));
        cost.keep(&Costly);
        let costs = reported(&cost, Some(&Costly));
        assert_eq!((costs.rates_seconds, costs.rates_cpu_seconds, costs.rates_cpu_ratio), (400.0, 8.0, 0.02));
        assert_eq!((cost.kernel_cpu_time(Some(&Costly)), cost.kernel_cpu_time(None)), (Duration::from_secs(6), Duration::from_secs(3)));
    }

    #[test]
    fn only_successful_changes_are_counted_and_all_are_timed() {
        let cost = SamplingCost::default();
        let changes = &cost.changes;
        let clock = Clock::system(Duration::ZERO);
        assert_eq!(changes.split(&clock, || Ok::<_, ()>(true)), Ok(true));
        assert_eq!(changes.split(&clock, || Ok::<_, ()>(false)), Ok(false));
        assert_eq!(changes.split(&clock, || Err(7)), Err(7));
        assert_eq!(changes.collapse(&clock, || Ok::<_, ()>(2)), Ok(2));
        let before = changes.time.get();
        changes.collapse(&clock, || Err::<u64, _>(7)).unwrap_err();
        let costs = reported(&cost, None);
        assert_eq!((costs.rates_splits, costs.rates_collapses), (1, 2));
        assert!(changes.time.get() > before && costs.rates_held_seconds > 0.0);
    }

    #[test]
    fn processor_time_is_that_of_this_thread() {
        let mut cost = SamplingCost::default();
        let before = process::thread_cpu_time().unwrap();
        while process::thread_cpu_time().unwrap() == before {
            std::hint::black_box(0);
        }
        cost.charge(before);
        assert!(reported(&cost, None).rates_cpu_seconds > 0.0);
        cost.charge(Duration::MAX);
        assert!(cost.cpu < Duration::from_secs(60), "the CPU time never decreases");
    }
}

//! What it costs to learn how often memory is accessed: processor time, and huge pages taken apart meanwhile.
//!
//! A job pays for it in two ways. Processors that look do not run the job: [`Costs::rates_cpu_seconds`]. And while a huge page
//! of its is split or put together again, whoever touches it waits: [`Costs::rates_held_seconds`] is the whole length of
//! those calls, so the most that this may be. What is not in either are the TLB misses of the few pages that are split for
//! two thirds of a period, and those of accessed bits that the processor has to set anew.

use std::cell::Cell;
use std::time::{Duration, Instant};

use kernel::process;

use super::super::Costs;
use trackers::rates::RateTracker;

/// Sums since the agent started.
#[derive(Debug, Default)]
pub(super) struct Looking {
    /// Time under way: as long as some job was to be looked at.
    time: Duration,
    /// The last moment of that, if it goes on.
    last: Option<Duration>,
    /// Of the loop's thread.
    cpu: Duration,
    /// Of trackers that are gone: the kernel's for them, and that of their threads.
    kernel_cpu: Duration,
    threads_cpu: Duration,
    pub(super) changes: Changes,
}

/// Huge pages that were taken apart and put together.
#[derive(Debug, Default)]
pub(super) struct Changes {
    splits: Cell<u64>,
    collapses: Cell<u64>,
    time: Cell<Duration>,
}

impl Changes {
    /// Splits one, by `split`, which says whether it did.
    pub(super) fn split<E>(&self, split: impl FnOnce() -> Result<bool, E>) -> Result<bool, E> {
        self.count(&self.splits, split, |done| u64::from(*done))
    }

    /// Puts some together, by `collapse`, which says how many.
    pub(super) fn collapse<E>(&self, collapse: impl FnOnce() -> Result<u64, E>) -> Result<u64, E> {
        self.count(&self.collapses, collapse, |done| *done)
    }

    fn count<T, E>(&self, sum: &Cell<u64>, work: impl FnOnce() -> Result<T, E>, done: impl FnOnce(&T) -> u64) -> Result<T, E> {
        let begun = Instant::now();
        let result = work();
        self.time.set(self.time.get() + begun.elapsed());
        if let Ok(result) = &result {
            sum.set(sum.get().saturating_add(done(result)));
        }
        result
    }
}

impl Looking {
    /// Some job is to be looked at, at this moment.
    pub(super) fn goes_on(&mut self, now: Duration) {
        self.time += now.saturating_sub(self.last.unwrap_or(now));
        self.last = Some(now);
    }

    /// No job is to be looked at any more.
    pub(super) fn pauses(&mut self) {
        self.last = None;
    }

    /// Books the processor time of this thread since it had used `before`.
    pub(super) fn book(&mut self, before: Duration) {
        self.cpu += process::thread_cpu_time().unwrap_or_default().saturating_sub(before);
    }

    /// Takes over what a tracker has cost that goes.
    pub(super) fn keep(&mut self, tracker: &dyn RateTracker) {
        self.kernel_cpu += tracker.kernel_cpu_time();
        self.threads_cpu += tracker.threads_cpu_time();
    }

    /// Processor time that is no process's of ours: that of the kernel's threads.
    pub(super) fn kernel_cpu_time(&self, tracker: Option<&dyn RateTracker>) -> Duration {
        self.kernel_cpu + tracker.map_or(Duration::ZERO, RateTracker::kernel_cpu_time)
    }

    /// Writes all sums down.
    pub(super) fn tell(&self, tracker: Option<&dyn RateTracker>, costs: &mut Costs) {
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

    /// A tracker that has cost so much.
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

    fn told(looking: &Looking, tracker: Option<&dyn RateTracker>) -> Costs {
        let mut costs = Costs::default();
        looking.tell(tracker, &mut costs);
        costs
    }

    #[test]
    fn what_looking_costs_is_told_as_a_share_of_the_time_of_looking() {
        let mut looking = Looking::default();
        assert_eq!(told(&looking, None), Costs::default());
        for second in [100, 110, 300] {
            looking.goes_on(Duration::from_secs(second));
        }
        looking.pauses();
        // What passes now is not of looking.
        looking.goes_on(Duration::from_secs(5_000));
        looking.goes_on(Duration::from_secs(5_200));
        looking.keep(&Costly);
        let costs = told(&looking, Some(&Costly));
        assert_eq!((costs.rates_seconds, costs.rates_cpu_seconds, costs.rates_cpu_ratio), (400.0, 8.0, 0.02));
        assert_eq!(
            (looking.kernel_cpu_time(Some(&Costly)), looking.kernel_cpu_time(None)),
            (Duration::from_secs(6), Duration::from_secs(3))
        );
    }

    #[test]
    fn huge_pages_are_counted_when_they_change_and_the_time_in_any_case() {
        let looking = Looking::default();
        let changes = &looking.changes;
        assert_eq!(changes.split(|| Ok::<_, ()>(true)), Ok(true));
        assert_eq!(changes.split(|| Ok::<_, ()>(false)), Ok(false));
        assert_eq!(changes.split(|| Err(7)), Err(7));
        assert_eq!(changes.collapse(|| Ok::<_, ()>(2)), Ok(2));
        let before = changes.time.get();
        changes.collapse(|| Err::<u64, _>(7)).unwrap_err();
        let costs = told(&looking, None);
        assert_eq!((costs.rates_splits, costs.rates_collapses), (1, 2));
        assert!(changes.time.get() > before && costs.rates_held_seconds > 0.0);
    }

    #[test]
    fn processor_time_is_that_of_this_thread() {
        let mut looking = Looking::default();
        let before = process::thread_cpu_time().unwrap();
        while process::thread_cpu_time().unwrap() == before {
            std::hint::black_box(0);
        }
        looking.book(before);
        assert!(told(&looking, None).rates_cpu_seconds > 0.0);
        looking.book(Duration::MAX);
        assert!(looking.cpu < Duration::from_secs(60), "no clock goes back");
    }
}

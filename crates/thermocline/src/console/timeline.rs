//! Sums over time in a bounded number of equal steps.

use std::ops::AddAssign;

/// Far memory over time: bytes times seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Sums {
    /// Seconds of all entries together: two jobs at the same time count twice.
    pub(crate) seconds: f64,
    pub(crate) memory: f64,
    pub(crate) cold: f64,
    pub(crate) far: f64,
    /// Net of compressed copies; page cache and slow memory are included.
    pub(crate) saved: f64,
}

impl AddAssign for Sums {
    fn add_assign(&mut self, other: Self) {
        self.seconds += other.seconds;
        self.memory += other.memory;
        self.cold += other.cold;
        self.far += other.far;
        self.saved += other.saved;
    }
}

impl Sums {
    /// Far memory as a share of cold memory (SDFM section 6.1), as `trace show` prints it; `None` without cold memory.
    pub(crate) fn coverage(&self) -> Option<f64> {
        (self.cold > 0.0).then(|| (self.far / self.cold).min(1.0))
    }
}

/// Sums by time. A step is one hour at first and doubles whenever there are more than `steps_max`.
#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    steps_max: u64,
    step_ms: u64,
    /// By the number of the step since the epoch, ascending.
    steps: Vec<(u64, Sums)>,
}

const HOUR_MS: u64 = 3_600_000;

impl Timeline {
    pub(crate) fn new(steps_max: u64) -> Self {
        Self { steps_max, step_ms: HOUR_MS, steps: Vec::new() }
    }

    /// Adds what happened around a time.
    pub(crate) fn add(&mut self, unix_ms: u64, sums: Sums) {
        let number = |step_ms| unix_ms / step_ms;
        while self.span_with(number(self.step_ms)) > self.steps_max {
            self.step_ms *= 2;
            let mut joined: Vec<(u64, Sums)> = Vec::with_capacity(self.steps.len());
            for &(step, sums) in &self.steps {
                match joined.last_mut().filter(|last| last.0 == step / 2) {
                    Some(last) => last.1 += sums,
                    None => joined.push((step / 2, sums)),
                }
            }
            self.steps = joined;
        }
        let step = number(self.step_ms);
        match self.steps.binary_search_by_key(&step, |found| found.0) {
            Ok(at) => self.steps[at].1 += sums,
            Err(at) => self.steps.insert(at, (step, sums)),
        }
    }

    /// How many steps there are from the first to the last one, if this one is added.
    fn span_with(&self, step: u64) -> u64 {
        let first = self.steps.first().map_or(step, |found| found.0.min(step));
        let last = self.steps.last().map_or(step, |found| found.0.max(step));
        last - first + 1
    }

    pub(crate) fn step_seconds(&self) -> u64 {
        self.step_ms / 1_000
    }

    /// The steps that have sums: their start in seconds since the epoch, and the sums.
    pub(crate) fn steps(&self) -> impl Iterator<Item = (u64, &Sums)> {
        self.steps.iter().map(|(step, sums)| (step * self.step_ms / 1_000, sums))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: f64) -> Sums {
        Sums { seconds, ..Sums::default() }
    }

    #[test]
    fn steps_are_joined_and_lose_nothing() {
        let mut timeline = Timeline::new(4);
        for hour in [10u64, 11, 12, 13, 17, 9] {
            timeline.add(hour * HOUR_MS + 1, seconds(1.0));
        }
        let steps: Vec<_> = timeline.steps().map(|(start, sums)| (start / 3_600, sums.seconds)).collect();
        assert_eq!((timeline.step_seconds(), steps), (4 * 3_600, vec![(8, 3.0), (12, 2.0), (16, 1.0)]));
    }

    #[test]
    fn any_times_stay_within_the_bound() {
        let mut timeline = Timeline::new(96);
        for at in (0..1_000u64).map(|n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 12).chain([0, u64::MAX]) {
            timeline.add(at, seconds(1.0));
            assert!(timeline.steps().count() <= 96);
        }
        assert_eq!(timeline.steps().map(|(_, sums)| sums.seconds).sum::<f64>(), 1_002.0);
    }

    #[test]
    fn coverage_is_a_share_of_cold_memory() {
        assert_eq!(Sums { cold: 0.0, far: 1.0, ..Sums::default() }.coverage(), None);
        assert_eq!(Sums { cold: 8.0, far: 2.0, ..Sums::default() }.coverage(), Some(0.25));
        assert_eq!(Sums { cold: 1.0, far: 2.0, ..Sums::default() }.coverage(), Some(1.0));
    }
}

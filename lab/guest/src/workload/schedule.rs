//! The schedule of accesses: a pure heap of deadlines. Time is an argument, in nanoseconds of any clock.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::spec::{Pattern, Poisson, Zipf};

/// Interval between batches of random accesses.
const ZIPF_BATCH_NS: u64 = 10_000_000;
/// Interval between batches of accesses at random times: well below the shortest sampling period of trackers.
const POISSON_BATCH_NS: u64 = 4_000_000;
const MS: u64 = 1_000_000;

/// A task that is due.
#[derive(Debug, PartialEq)]
pub(super) enum Task {
    /// Access all pages of this region, after `missed` missed periods.
    Sweep { region: usize, missed: u64 },
    /// Access `touches` random pages of this region.
    Random { region: usize, touches: u64, zipf: Zipf },
    /// Make the accesses of this region that became due since this phase, the `phase`-th one, began.
    Arrivals { region: usize, phase: u64, began_ns: u64, poisson: Poisson },
    /// Phase change number `number` of this region.
    Phase { region: usize, number: u64 },
}

/// The schedule of all regions.
pub(super) struct Schedule {
    regions: Vec<Motion>,
    deadlines: BinaryHeap<Reverse<Deadline>>,
}

/// Fields are in order of comparison: a phase change precedes accesses that are due at the same time.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Deadline {
    at_ns: u64,
    access: bool,
    region: usize,
    /// The phase that created this deadline; a deadline of an earlier phase is ignored.
    phase: u64,
}

struct Motion {
    pattern: Pattern,
    /// Number of phase changes so far.
    phase: u64,
    phase_began_ns: u64,
    /// Random accesses that became due in this phase so far.
    touches: u64,
}

impl Motion {
    fn current(&self) -> &Pattern {
        match &self.pattern {
            Pattern::Phases(phases) => {
                let index = self.phase % (phases.len() as u64).max(1);
                phases.get(usize::try_from(index).unwrap_or(0)).map_or(&self.pattern, |phase| &phase.pattern)
            }
            steady => steady,
        }
    }

    /// Returns the duration of the current phase; `None` without phases.
    fn phase_ns(&self) -> Option<u64> {
        let Pattern::Phases(phases) = &self.pattern else { return None };
        let index = usize::try_from(self.phase % (phases.len() as u64).max(1)).unwrap_or(0);
        phases.get(index).map(|phase| crate::rounding::floor(phase.for_s * 1e9))
    }
}

impl Schedule {
    /// Starts all regions at `now_ns`, with their first phase and an access at once.
    pub(super) fn new(patterns: impl IntoIterator<Item = Pattern>, now_ns: u64) -> Self {
        let motion = |pattern| Motion { pattern, phase: 0, phase_began_ns: now_ns, touches: 0 };
        let mut schedule = Self { regions: patterns.into_iter().map(motion).collect(), deadlines: BinaryHeap::new() };
        for region in 0..schedule.regions.len() {
            schedule.begin_phase(region, now_ns);
        }
        schedule
    }

    /// Returns when the next task is due; `None` if none will ever be.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.deadlines.peek().map(|Reverse(deadline)| deadline.at_ns)
    }

    /// Returns one task that is due at `now_ns`; `None` if there is none, or if a deadline was ignored.
    pub(super) fn pop(&mut self, now_ns: u64) -> Option<Task> {
        if self.next_ns()? > now_ns {
            return None;
        }
        let Reverse(Deadline { at_ns, access, region, phase }) = self.deadlines.pop()?;
        let motion = &mut self.regions[region];
        if motion.phase != phase {
            return None;
        }
        if !access {
            motion.phase += 1;
            let number = motion.phase;
            self.begin_phase(region, at_ns);
            return Some(Task::Phase { region, number });
        }
        let (task, next_ns) = match *motion.current() {
            Pattern::PeriodMs(period) => {
                let period_ns = period * MS;
                let missed = (now_ns - at_ns) / period_ns;
                (Task::Sweep { region, missed }, at_ns + (missed + 1) * period_ns)
            }
            Pattern::Zipf(zipf) => {
                let elapsed_s = (now_ns - motion.phase_began_ns) as f64 / 1e9;
                let due = crate::rounding::floor(elapsed_s * zipf.touches_per_s);
                let touches = due.saturating_sub(motion.touches);
                motion.touches = due;
                (Task::Random { region, touches, zipf }, now_ns + ZIPF_BATCH_NS)
            }
            Pattern::Poisson(poisson) => {
                (Task::Arrivals { region, phase, began_ns: motion.phase_began_ns, poisson }, now_ns + POISSON_BATCH_NS)
            }
            Pattern::Never(_) | Pattern::Requests(_) | Pattern::Phases(_) => return None,
        };
        self.deadlines.push(Reverse(Deadline { at_ns: next_ns, access: true, region, phase }));
        Some(task)
    }

    /// Ends the current phase of every region with phases.
    pub(super) fn jump(&mut self, now_ns: u64) -> Vec<Task> {
        let with_phases = (0..self.regions.len()).filter(|&region| self.regions[region].phase_ns().is_some());
        let tasks: Vec<Task> = with_phases.map(|region| Task::Phase { region, number: self.regions[region].phase + 1 }).collect();
        for task in &tasks {
            if let Task::Phase { region, number } = *task {
                self.regions[region].phase = number;
                self.begin_phase(region, now_ns);
            }
        }
        tasks
    }

    fn begin_phase(&mut self, region: usize, at_ns: u64) {
        let motion = &mut self.regions[region];
        (motion.phase_began_ns, motion.touches) = (at_ns, 0);
        let phase = motion.phase;
        if !matches!(motion.current(), Pattern::Never(_) | Pattern::Requests(_)) {
            self.deadlines.push(Reverse(Deadline { at_ns, access: true, region, phase }));
        }
        if let Some(phase_ns) = motion.phase_ns() {
            self.deadlines.push(Reverse(Deadline { at_ns: at_ns + phase_ns, access: false, region, phase }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::spec::Phase;
    use super::*;

    /// Advances time in steps of `step_ms` up to `end_ms`, jumps to the next phase at `jump_ms`, and checks the tasks:
    /// `time:region` for a sweep, `+missed`, `time:region*touches`, `time:region~phase@began`, `time:region#phase`.
    fn check(patterns: &[Pattern], step_ms: u64, end_ms: u64, jump_ms: Option<u64>, expected: &str) {
        let mut schedule = Schedule::new(patterns.iter().cloned(), 0);
        let mut done = Vec::new();
        for now_ms in (0..=end_ms).step_by(usize::try_from(step_ms).unwrap()) {
            let now_ns = now_ms * MS;
            let mut tasks = if jump_ms == Some(now_ms) { schedule.jump(now_ns) } else { Vec::new() };
            while schedule.next_ns().is_some_and(|next| next <= now_ns) {
                tasks.extend(schedule.pop(now_ns));
            }
            done.extend(tasks.into_iter().map(|task| match task {
                Task::Sweep { region, missed: 0 } => format!("{now_ms}:{region}"),
                Task::Sweep { region, missed } => format!("{now_ms}:{region}+{missed}"),
                Task::Random { region, touches, .. } => format!("{now_ms}:{region}*{touches}"),
                Task::Arrivals { region, phase, began_ns, .. } => format!("{now_ms}:{region}~{phase}@{}", began_ns / MS),
                Task::Phase { region, number } => format!("{now_ms}:{region}#{number}"),
            }));
        }
        assert_eq!(done.join(" "), expected, "{patterns:?}");
    }

    fn phases() -> Pattern {
        Pattern::Phases(vec![Phase { for_s: 0.25, pattern: Pattern::PeriodMs(100) }, Phase { for_s: 0.2, pattern: Pattern::Never(true) }])
    }

    #[test]
    fn sweeps_follow_their_periods() {
        check(&[Pattern::PeriodMs(100), Pattern::PeriodMs(250)], 10, 500, None, "0:0 0:1 100:0 200:0 250:1 300:0 400:0 500:0 500:1");
        check(&[Pattern::Never(true)], 10, 500, None, "");
    }

    #[test]
    fn missed_periods_are_counted_and_the_phase_is_kept() {
        check(&[Pattern::PeriodMs(100)], 350, 1050, None, "0:0 350:0+2 700:0+3 1050:0+2");
        check(&[Pattern::PeriodMs(100)], 130, 520, None, "0:0 130:0 260:0 390:0 520:0+1");
    }

    #[test]
    fn random_accesses_follow_their_rate() {
        let zipf = Pattern::Zipf(Zipf { exponent: 1.0, touches_per_s: 150.0 });
        check(&[zipf], 10, 40, None, "0:0*0 10:0*1 20:0*2 30:0*1 40:0*2");
    }

    #[test]
    fn random_times_are_drawn_in_batches_and_restart_in_each_phase() {
        let poisson = |draw| Pattern::Poisson(Poisson { least: 1.0, most: 9.0, idle: 0.0, parts: 1, exponent: 0.0, draw });
        let phases = Pattern::Phases(vec![Phase { for_s: 0.006, pattern: poisson(0) }, Phase { for_s: 1.0, pattern: poisson(1) }]);
        check(&[poisson(0)], 2, 8, None, "0:0~0@0 4:0~0@0 8:0~0@0");
        check(&[phases], 2, 10, None, "0:0~0@0 4:0~0@0 6:0#1 6:0~1@6 10:0~1@6");
    }

    #[test]
    fn phases_change_and_repeat() {
        check(&[phases()], 50, 700, None, "0:0 100:0 200:0 250:0#1 450:0#2 450:0 550:0 650:0 700:0#3");
    }

    #[test]
    fn jumps_end_a_phase_early_and_start_a_full_next_one() {
        check(&[phases(), Pattern::PeriodMs(200)], 50, 450, Some(100), "0:0 0:1 100:0#1 200:1 300:0#2 300:0 400:0 400:1");
    }
}

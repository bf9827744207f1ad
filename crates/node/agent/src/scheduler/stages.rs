//! What the loop did lately: the cause of a missed deadline.

use std::collections::VecDeque;
use std::time::Duration;

/// Shorter stages delay nothing.
const SHORTEST: Duration = Duration::from_millis(20);

/// Stages that are kept.
const KEPT: usize = 32;

/// A stage of the loop that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stage {
    name: &'static str,
    began: Duration,
    ended: Duration,
}

/// The latest stages of the loop that took long. Times are since boot.
#[derive(Debug, Default)]
pub(super) struct Stages {
    latest: VecDeque<Stage>,
    /// The end of the stage before.
    ended: Duration,
}

impl Stages {
    /// A stage begins, and the time before it belongs to none.
    pub(super) fn begin(&mut self, now: Duration) {
        self.ended = now;
    }

    /// The stage that began at the end of the one before is over.
    pub(super) fn end(&mut self, name: &'static str, now: Duration) {
        let began = std::mem::replace(&mut self.ended, now);
        if now.saturating_sub(began) < SHORTEST {
            return;
        }
        if self.latest.len() == KEPT {
            self.latest.pop_front();
        }
        self.latest.push_back(Stage { name, began, ended: now });
    }

    /// What delayed a step that was due at `due` until `now`: the stage with the longest time in between, and that time.
    ///
    /// Without one, other programs had the processor, or the step's own stage is not over yet.
    pub(super) fn cause(&self, due: Duration, now: Duration) -> Option<(&'static str, Duration)> {
        let within = |stage: &Stage| stage.ended.min(now).saturating_sub(stage.began.max(due));
        let longest = self.latest.iter().max_by_key(|stage| within(stage))?;
        (within(longest) > Duration::ZERO).then(|| (longest.name, longest.ended.saturating_sub(longest.began)))
    }
}

/// The message about a step that was late.
pub(super) fn missed(what: &str, late: Duration, cause: Option<(&'static str, Duration)>) -> String {
    let late = late.as_secs_f64();
    match cause {
        Some((stage, took)) => format!("{what} came {late:.2} s late: {stage} took {:.2} s", took.as_secs_f64()),
        None => format!("{what} came {late:.2} s late: the agent did not get the processor"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_stage_since_the_deadline_is_the_cause() {
        let at = Duration::from_millis;
        let mut stages = Stages::default();
        stages.begin(at(1_000));
        for (name, now) in [("discovery", 1_900), ("control", 2_000), ("journal", 2_010), ("publishing", 2_700)] {
            stages.end(name, at(now));
        }
        assert_eq!(stages.cause(at(1_000), at(2_700)), Some(("discovery", at(900))));
        assert_eq!(stages.cause(at(1_850), at(2_700)), Some(("publishing", at(690))), "before the deadline it delayed nothing");
        assert_eq!(stages.cause(at(2_700), at(3_000)), None);
        assert_eq!(missed("guard", at(1_500), stages.cause(at(1_000), at(2_700))), "guard came 1.50 s late: discovery took 0.90 s");
        for _ in 0..100 {
            stages.end("control", stages.ended + at(50));
        }
        assert_eq!(stages.latest.len(), KEPT);
    }
}

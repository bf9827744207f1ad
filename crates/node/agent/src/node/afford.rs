//! Whether a tracker costs more than the agent may use. `auto` then takes the next one.

use std::time::Duration;

use config::Tracker;
use units::RatioPpm;

use super::Agent;

/// Scans over the budget, one after the other, until a tracker is given up: the first scans of a job cost more.
const SCANS_OVER_MAX: u32 = 3;

/// The cost of one tracker's scans so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Affordance {
    over: u32,
}

impl Affordance {
    /// Takes one scan's CPU time in; says whether the tracker is to be given up.
    fn judge(&mut self, cpu: Duration, scan_period: Duration, budget: RatioPpm) -> bool {
        let allowed = scan_period.as_nanos() * u128::from(budget.0) / 1_000_000;
        self.over = if cpu.as_nanos() > allowed { self.over + 1 } else { 0 };
        self.over >= SCANS_OVER_MAX
    }
}

impl Agent {
    /// Judges what a scan with `kind` cost. Jobs that `auto` gave to it go to the next best tracker where it costs too
    /// much; a tracker that the operator chose stays, and the budget holds offloading back instead.
    pub(super) fn judge_cost(&mut self, kind: Tracker, cpu: Duration) {
        let (period, budget) = (self.config.agent.scan_period, self.config.agent.cpu_budget);
        if !self.affordances.entry(kind).or_default().judge(cpu, period, budget) {
            return;
        }
        self.affordances.remove(&kind);
        let Some((next, _)) = self.offer.next_after(kind) else { return };
        let moved: Vec<String> = self
            .jobs
            .values_mut()
            .filter(|job| job.tracker.0 == kind && job.tracker.1 != trackers::ages::choose::CONFIGURED)
            .map(|job| {
                job.tracker = (next, "the better tracker costs more than agent.cpu_budget");
                job.scan = None;
                job.plan = None;
                job.path().to_owned()
            })
            .collect();
        if moved.is_empty() {
            return;
        }
        self.offer.exclude(kind);
        let (cost, kind, next) = (cpu.as_secs_f64(), kind.as_str(), next.as_str());
        self.event(None, format!("{kind} took {cost:.2} s of CPU per scan, over agent.cpu_budget; {} jobs go to {next}", moved.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lasting_cost_counts() {
        let (period, budget) = (Duration::from_secs(120), RatioPpm(100_000));
        let mut affordance = Affordance::default();
        let verdicts = [13, 13, 12, 13, 13, 13].map(|s| affordance.judge(Duration::from_secs(s), period, budget));
        assert_eq!(verdicts, [false, false, false, false, false, true]);
    }
}

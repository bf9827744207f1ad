//! Whether a tracker costs more than the agent may use.

use std::time::Duration;

use units::RatioPpm;

/// Scans in a row over the budget until a tracker is too expensive: the first scans of a job cost more.
const SCANS_OVER_MAX: u32 = 3;

/// The cost of one tracker's scans so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Affordance {
    over: u32,
}

impl Affordance {
    /// Accounts one scan's CPU time. Returns whether the tracker is too expensive.
    pub fn judge(&mut self, cpu: Duration, scan_period: Duration, budget: RatioPpm) -> bool {
        let allowed = scan_period.as_nanos() * u128::from(budget.0) / 1_000_000;
        self.over = if cpu.as_nanos() > allowed { self.over + 1 } else { 0 };
        self.over >= SCANS_OVER_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lasting_cost_counts() {
        let (period, budget) = (Duration::from_secs(120), RatioPpm(100_000));
        let mut affordance = Affordance::default();
        let verdicts = [13, 13, 12, 13, 13, 13].map(|s| affordance.judge(Duration::from_secs(s), period, budget));
        assert_eq!(verdicts, [false, false, false, false, false, true]);
    }
}

//! Pressure stalls as the kernel reports them (`Documentation/accounting/psi.rst`): a total, and averages over 10 and 60 seconds.

/// Share of time below which the kernel prints 0.00 %.
const SMALLEST: f64 = 0.000_05;

/// One pressure file: the line `some`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stall {
    /// Stalled time, ever, in microseconds.
    pub total_us: u64,
    avg10: f64,
    avg60: f64,
}

impl Stall {
    /// Adds an interval of which so many microseconds were stalled; more than the interval is the interval.
    ///
    /// An average decays by `exp(-t / window)`, as the kernel's (`kernel/sched/psi.c`, `calc_avgs`). The windows are the kernel's:
    /// they are not compressed, whatever the trace stands for.
    pub fn add(&mut self, stalled_us: u64, interval_ms: u64) {
        let interval_us = interval_ms.saturating_mul(1_000).max(1);
        let stalled_us = stalled_us.min(interval_us);
        self.total_us += stalled_us;
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let (share, seconds) = (stalled_us as f64 / interval_us as f64, interval_ms as f64 / 1e3);
        let follow = |average: f64, window: f64| {
            let kept = libm::exp(-seconds / window);
            average * kept + share * (1.0 - kept)
        };
        (self.avg10, self.avg60) = (follow(self.avg10, 10.0), follow(self.avg60, 60.0));
    }

    /// The averages over 10 and 60 seconds, as shares of time, in the resolution of the file.
    #[must_use]
    pub fn averages(&self) -> (f64, f64) {
        let printed = |average: f64| if average < SMALLEST { 0.0 } else { average };
        (printed(self.avg10), printed(self.avg60))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_approach_the_share_and_decay() {
        let mut stall = Stall::default();
        for _ in 0..600 {
            stall.add(10_000, 1_000);
        }
        let (ten, sixty) = stall.averages();
        assert!((ten - 0.01).abs() < 1e-6 && (sixty - 0.01).abs() < 1e-6, "{ten} {sixty}");
        assert_eq!(stall.total_us, 6_000_000);
        for _ in 0..60 {
            stall.add(0, 1_000);
        }
        let (ten, sixty) = stall.averages();
        assert!(ten == 0.0 && (0.0035..0.0038).contains(&sixty), "{ten} {sixty}");
        stall.add(u64::MAX, 1_000);
        assert_eq!(stall.total_us, 7_000_000, "an interval at most");
    }
}

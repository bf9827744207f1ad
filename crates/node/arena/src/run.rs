//! One law on one trace.

use units::Bytes;

use crate::kernel::{Costs, Kernel};
use crate::law::Law;
use crate::trace::Trace;
use crate::view::View;

/// What a law did to a program in the measured intervals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Bytes that the program occupies less, net of zswap's pool, summed over the intervals.
    pub saved_byte_intervals: u64,
    /// Intervals.
    pub intervals: u64,
    /// What accesses waited for returns, in microseconds.
    pub lost_us: u64,
    /// The most of it within a tenth of the measured time.
    pub worst_lost_us: u64,
    /// The measured time, in microseconds.
    pub measured_us: u64,
    /// Groups that returned from zswap.
    pub zswap_returns: u64,
    /// Groups that returned from a device, page cache included.
    pub device_returns: u64,
}

impl Outcome {
    /// The mean of what is saved.
    #[must_use]
    pub fn saved(&self) -> Bytes {
        Bytes(self.saved_byte_intervals / self.intervals.max(1))
    }

    /// Time lost, as a share of the measured time. It exceeds one if requests wait in parallel.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    pub fn lost_ratio(&self) -> f64 {
        self.lost_us as f64 / self.measured_us.max(1) as f64
    }

    /// The same for the worst tenth of the measured time.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    pub fn worst_lost_ratio(&self) -> f64 {
        self.worst_lost_us as f64 * 10.0 / self.measured_us.max(1) as f64
    }
}

/// Runs a law on a trace. Deterministic.
#[must_use]
pub fn run(trace: &Trace, costs: Costs, law: &mut dyn Law) -> Outcome {
    let mut kernel = Kernel::new(trace, costs);
    let mut outcome = Outcome { intervals: trace.measured(), measured_us: trace.measured_us(), ..Outcome::default() };
    let window = usize::try_from(trace.measured().div_ceil(10)).unwrap_or(usize::MAX).max(1);
    let mut lost = Vec::new();
    for at in 0..trace.intervals.len() {
        let before = kernel.counters();
        kernel.access();
        let requests = law.step(&View::new(&kernel));
        for request in requests {
            kernel.carry_out(&request);
        }
        if at >= trace.settle as usize {
            let after = kernel.counters();
            outcome.saved_byte_intervals += kernel.saved().0;
            outcome.zswap_returns += after.zswap_returns - before.zswap_returns;
            outcome.device_returns += after.device_returns - before.device_returns;
            lost.push(after.lost_us - before.lost_us);
        }
        kernel.next_interval();
    }
    outcome.lost_us = lost.iter().sum();
    outcome.worst_lost_us = lost.windows(window.min(lost.len().max(1))).map(|part| part.iter().sum()).max().unwrap_or(0);
    outcome
}

//! The constants of our own laws: the agent's defaults by class, in the time of a trace.

use config::{Class, Config};
use policy::thresholds::Thresholds;
use policy::{cold_age, pressure, refaults, tiering, writeback};
use units::{Millis, PageSize, RatioPpm};

use crate::trace::Trace;

/// Which of our policies decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// `cold_age`: promotions stay within a share of the working set.
    ColdAge,
    /// `auto`: what returns stays within a stall target.
    Auto,
    /// `pressure`: stalls stay within a target.
    Pressure,
}

/// All constants of our laws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Constants {
    /// `[cold_age]`, for anonymous memory.
    pub cold_age: cold_age::Params,
    /// `[cold_age]`, for page cache.
    pub refaults: refaults::Params,
    /// `[pressure]`.
    pub pressure: pressure::Params,
    /// `[tier]`.
    pub tiering: tiering::Params,
    /// `tier.by_saving`.
    pub by_saving: bool,
    /// `[writeback]`.
    pub writeback: writeback::Params,
    /// The cold ages that a threshold is chosen from.
    pub thresholds: Thresholds,
    /// `agent.scan_period`, in milliseconds of the trace.
    pub scan_ms: u64,
    /// `agent.control_period`, in milliseconds of the trace.
    pub control_ms: u64,
    /// `pressure.period`, in milliseconds of the trace.
    pub pressure_ms: u64,
}

impl Constants {
    /// The agent's defaults for a class. Times are divided by the trace's compression, and the promotion rate is multiplied by it.
    #[must_use]
    pub fn of(class: Class, trace: &Trace) -> Self {
        let config = Config::default();
        let of_class = config.cold_age_for(class);
        let (mut cold_age, mut refaults, mut pressure) = (of_class.params(), of_class.refaults(), config.pressure_for(class));
        let by_compression = |rate: RatioPpm| RatioPpm(rate.0.saturating_mul(trace.compression).min(RatioPpm::ONE.0));
        cold_age.promotion_rate_max = by_compression(cold_age.promotion_rate_max);
        refaults.promotion_rate_max = by_compression(refaults.promotion_rate_max);
        let compressed = |time: Millis| Millis(trace.compressed_ms(time.0));
        cold_age.warmup_ms = compressed(cold_age.warmup_ms);
        refaults.warmup_ms = compressed(refaults.warmup_ms);
        pressure.warmup_ms = compressed(pressure.warmup_ms);
        if cold_age.half_life_ms > Millis::ZERO {
            cold_age.half_life_ms = compressed(cold_age.half_life_ms);
        }
        let mut writeback = config.writeback.params(PageSize::X86_64);
        writeback.after_min_ms = compressed(writeback.after_min_ms);
        Self {
            cold_age,
            refaults,
            pressure,
            tiering: config.tiering_for(class),
            by_saving: config.tier.by_saving,
            writeback,
            thresholds: Thresholds::log_spaced(config.cold_age.thresholds as usize)
                .unwrap_or_else(|_| unreachable!("its range is checked")),
            scan_ms: trace.compressed_ms(units::millis(config.agent.scan_period)),
            control_ms: trace.compressed_ms(units::millis(config.agent.control_period)),
            pressure_ms: trace.compressed_ms(units::millis(config.pressure.period)),
        }
    }

    /// The same with this stall target, for memory and for I/O.
    #[must_use]
    pub fn with_stall_target(mut self, target: RatioPpm) -> Self {
        (self.pressure.stall_target, self.pressure.io_stall_target) = (target, target);
        self
    }
}

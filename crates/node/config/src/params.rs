//! Converts the configuration to the parameters of the controllers, whose times are whole milliseconds, rounded down.

use policy::slowdown::bounds::Bounds;
use units::{Bytes, Millis, RatioPpm};

use crate::choice::Class;
use crate::config::Config;
use crate::table::{Aggressive, Background, ColdAge, Conservative, Incompressible, Pressure, Slow, Swap, Tiers, Writeback};

impl Config {
    /// Returns the value for jobs of a class: the general one, or the one that the class overrides.
    fn by_class<T>(
        &self,
        class: Class,
        standard: T,
        conservative: impl FnOnce(&Conservative) -> T,
        aggressive: impl FnOnce(&Aggressive) -> T,
    ) -> T {
        match class {
            Class::Off | Class::Observe | Class::Standard => standard,
            Class::Conservative => conservative(&self.classes.conservative),
            Class::Aggressive => aggressive(&self.classes.aggressive),
        }
    }

    /// Returns the cold-age settings of a class.
    #[must_use]
    pub fn cold_age_for(&self, class: Class) -> ColdAge {
        let ColdAge { promotion_rate, percentile, warmup, .. } = self.cold_age;
        let (promotion_rate, percentile, warmup) = self.by_class(
            class,
            (promotion_rate, percentile, warmup),
            |class| (class.promotion_rate, class.percentile, class.warmup),
            |class| (class.promotion_rate, class.percentile, class.warmup),
        );
        ColdAge { promotion_rate, percentile, warmup, ..self.cold_age }
    }

    /// Returns the parameters of the pressure controller for a class.
    #[must_use]
    pub fn pressure_for(&self, class: Class) -> policy::pressure::Params {
        let Pressure { ratio, stall_target, io_stall_target, step_max, floor, warmup, .. } = self.pressure;
        let (stall_target, io_stall_target) = self.by_class(
            class,
            (stall_target, io_stall_target),
            |class| (class.stall_target, class.io_stall_target),
            |class| (class.stall_target, class.io_stall_target),
        );
        policy::pressure::Params { ratio, stall_target, io_stall_target, step_max, floor, warmup_ms: Millis::from(warmup) }
    }

    /// Returns the requirements of a class on tiers.
    #[must_use]
    pub fn tiering_for(&self, class: Class) -> policy::tiering::Params {
        // `by_saving` is applied where the input of a decision is read.
        let Tiers { compressed_max, latency_max, swap_cost, by_saving: _ } = self.tier;
        let latency_max = self.by_class(class, latency_max, |class| class.latency_max, |class| class.latency_max);
        let latency_max_us = u32::try_from(latency_max.as_micros()).unwrap_or(u32::MAX);
        policy::tiering::Params { compressed_max, latency_max_us, swap_cost }
    }

    /// Returns the slowdown that a class tolerates.
    #[must_use]
    pub fn slowdown_tolerated(&self, class: Class) -> RatioPpm {
        self.by_class(class, self.slow.slowdown, |class| class.slowdown, |class| class.slowdown)
    }

    /// Returns the parameters of the slowdown controller for a class, with slow memory of this latency in nanoseconds. A job's bounds are
    /// those of its rule.
    #[must_use]
    pub fn slowdown_for(&self, class: Class, latency_ns: u64) -> policy::slowdown::Params {
        let slowdown = self.slowdown_tolerated(class);
        policy::slowdown::Params { slowdown, latency_ns, sample: self.slow.sample, bounds: Bounds::default() }
    }
}

impl Slow {
    /// Returns the configured latency of an access, in nanoseconds; `None` if the firmware's value is used.
    #[must_use]
    pub fn latency_ns(&self) -> Option<u64> {
        u64::try_from(self.latency.as_nanos()).ok().filter(|&nanos| nanos > 0)
    }

    /// Returns how much memory may be moved in a period.
    #[must_use]
    pub fn step_max(&self) -> Bytes {
        Bytes(u64::try_from(u128::from(self.move_rate.0) * self.period.as_millis() / 1000).unwrap_or(u64::MAX))
    }
}

impl Swap {
    /// Returns the write budget of the machine.
    #[must_use]
    pub fn endurance(&self) -> policy::endurance::Params {
        policy::endurance::Params { bytes_per_day: self.write_budget, burst: self.burst }
    }

    /// Returns the write budget of one job.
    #[must_use]
    pub fn job_endurance(&self) -> policy::endurance::Params {
        let share = |bytes: Bytes| Bytes(self.job_share.share_of(bytes.0));
        policy::endurance::Params { bytes_per_day: share(self.write_budget), burst: share(self.burst) }
    }
}

impl Writeback {
    /// Returns the parameters of the policy.
    #[must_use]
    pub fn params(&self, page: units::PageSize) -> policy::writeback::Params {
        policy::writeback::Params { after_min_ms: Millis::from(self.after_min), pages_max: self.period_max.to_pages(page) }
    }
}

impl Background {
    /// Returns the parameters of the policy.
    #[must_use]
    pub fn params(&self) -> policy::background::Params {
        policy::background::Params {
            settle_ms: Millis::from(self.settle),
            idle_ms: Millis::from(self.idle),
            pressure_max: self.pressure_max,
            available_min: self.available_min,
            prefetch: self.prefetch,
        }
    }
}

impl ColdAge {
    /// Returns the parameters of the controller.
    #[must_use]
    pub fn params(&self) -> policy::cold_age::Params {
        policy::cold_age::Params {
            promotion_rate_max: self.promotion_rate,
            percentile: self.percentile,
            warmup_ms: Millis::from(self.warmup),
            half_life_ms: Millis::from(self.half_life),
            spikes: self.spikes,
            bound: self.bound,
            partial: self.partial,
            returns: self.partial,
            mean: self.mean,
        }
    }

    /// Returns the parameters for page cache.
    #[must_use]
    pub fn refaults(&self) -> policy::refaults::Params {
        policy::refaults::Params {
            promotion_rate_max: self.promotion_rate,
            percentile: self.percentile,
            warmup_ms: Millis::from(self.warmup),
            floor: policy::refaults::LEAST,
        }
    }
}

impl Incompressible {
    /// Returns the parameters of the controller.
    #[must_use]
    pub fn params(&self) -> policy::incompressible::Params {
        policy::incompressible::Params { ratio_max: self.ratio, share_max: self.share, retry_ms: Millis::from(self.retry) }
    }
}

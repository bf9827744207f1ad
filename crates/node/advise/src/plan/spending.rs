//! Savings of the spending on DRAM by slow memory.
//!
//! Slow memory at the share `c` of DRAM's price per byte saves `1 - c` of the price of the memory placed there. If the
//! share `s` of a job's memory is cold, `s (1 - c)` of the spending is saved (Thermostat section 5.3, table 4). The
//! share is the mean over all periods, as in the paper (section 5): far memory including reclaimed page cache, memory
//! placed by policy `slowdown`, and memory that an observed job could offload, relative to the job's memory without far
//! memory.
//!
//! Prices of servers, links and sockets for slow memory are not included, nor the cost of a slowdown in CPU time.

use serde::Serialize;
use units::{Bytes, RatioPpm};

/// Saving at one price.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Saving {
    /// Price of slow memory, as a fraction of DRAM's price.
    pub tier_cost_ratio: f64,
    /// Saved share of the spending on DRAM, as a fraction of one.
    pub saved_ratio: f64,
}

/// Cold memory by location, in bytes or as fractions of all memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Cold<T> {
    /// In far memory: compressed, on a swap device, or reclaimed page cache.
    pub far: T,
    /// In slow memory, which is accessed directly.
    pub slow: T,
    /// In DRAM, and could be offloaded if the job were not only observed.
    pub potential: T,
}

/// Cold memory and all memory, summed over periods of equal weight.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Share {
    cold: Cold<u128>,
    all: u128,
}

impl Share {
    /// Adds one period.
    pub(super) fn add(&mut self, cold: Cold<Bytes>, all: Bytes) {
        let mut left = all;
        let mut add = |sum: &mut u128, bytes: Bytes| {
            let bytes = bytes.min(left);
            left = left - bytes;
            *sum += u128::from(bytes.0);
        };
        add(&mut self.cold.far, cold.far);
        add(&mut self.cold.slow, cold.slow);
        add(&mut self.cold.potential, cold.potential);
        self.all += u128::from(all.0);
    }

    /// Returns the cold share, as a fraction of one; zero if there is no memory.
    pub(super) fn ratio(self) -> f64 {
        self.of(self.cold.far + self.cold.slow + self.cold.potential)
    }

    /// Returns the cold share by location.
    pub(super) fn by_tier(self) -> Cold<f64> {
        Cold { far: self.of(self.cold.far), slow: self.of(self.cold.slow), potential: self.of(self.cold.potential) }
    }

    #[expect(clippy::cast_precision_loss, reason = "printed with few digits")]
    fn of(self, part: u128) -> f64 {
        part as f64 / self.all.max(1) as f64
    }

    /// Returns the saving at each of these prices.
    pub(super) fn savings(self, tier_costs: &[RatioPpm]) -> Vec<Saving> {
        tier_costs.iter().map(|cost| saving(self.ratio(), cost.as_f64())).collect()
    }
}

fn saving(cold: f64, tier_cost: f64) -> Saving {
    Saving { tier_cost_ratio: tier_cost, saved_ratio: cold * (1.0 - tier_cost) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Thermostat table 4, in whole percent: savings for cold shares, at a third, a quarter and a fifth of the price.
    #[test]
    fn savings_are_those_of_the_paper() {
        for (program, cold, saved) in [
            ("Aerospike", 0.15, [10.0, 11.0, 12.0]),
            ("Cassandra", 0.40, [27.0, 30.0, 32.0]),
            ("MySQL-TPCC", 0.40, [27.0, 30.0, 32.0]),
            ("Web-search", 0.40, [27.0, 30.0, 32.0]),
            // The paper's text reports 10 % for Redis, its table is based on 25 %.
            ("Redis", 0.25, [17.0, 19.0, 20.0]),
        ] {
            for (cost, want) in [0.33, 0.25, 0.2].into_iter().zip(saved) {
                let got = saving(cold, cost).saved_ratio * 100.0;
                assert!((got - want).abs() < 0.5, "{program} at {cost}: {got}%");
            }
        }
    }

    #[test]
    fn a_share_is_the_mean_over_time_and_at_most_one() {
        let mut share = Share::default();
        assert_eq!((share.ratio(), share.savings(&[RatioPpm(250_000)])[0].saved_ratio), (0.0, 0.0));
        let far = |far| Cold { far: Bytes(far), ..Cold::default() };
        share.add(far(10), Bytes(100));
        share.add(far(70), Bytes(100));
        assert_eq!(share.ratio(), 0.4);
        share.add(Cold { far: Bytes(50), slow: Bytes(30), potential: Bytes(90) }, Bytes(100));
        share.add(Cold { slow: Bytes(40), ..Cold::default() }, Bytes(100));
        assert_eq!(share.by_tier(), Cold { far: 0.325, slow: 0.175, potential: 0.05 });
        assert_eq!(share.ratio(), 0.55);
        share.add(far(u64::MAX), Bytes(u64::MAX - 1));
        assert!(share.ratio() <= 1.0);
    }
}

//! What slow memory would save of the money spent on DRAM.
//!
//! Slow memory that costs the share `c` of DRAM's price, byte for byte, saves `1 - c` of the price of what is put there.
//! Where the share `s` of a job's memory is cold, `s (1 - c)` of the spending is saved (002 section 5.3, table 4). The share is
//! the mean over all periods, as in the paper (section 5): what is in far memory, page cache that has left included, what
//! policy `slowdown` has placed in slow memory, and what an observed job would let go, of what the job would take without
//! far memory.
//!
//! The price of the servers, links and sockets that slow memory needs is not in it, nor what a slowdown costs in CPU time.

use serde::Serialize;
use units::{Bytes, RatioPpm};

/// The net saving at one price.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Saving {
    /// What slow memory costs, as a fraction of DRAM's price.
    pub tier_cost_ratio: f64,
    /// What is saved of the spending on DRAM, as a fraction of one.
    pub saved_ratio: f64,
}

/// Cold memory by where it is, or its shares of all memory as fractions of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Cold<T> {
    /// In far memory: compressed, on a swap device, or page cache that was reclaimed and has not come back.
    pub far: T,
    /// In slow memory, which is loaded directly.
    pub slow: T,
    /// In DRAM, and would be let go by a job that is only observed.
    pub potential: T,
}

/// Cold memory against all memory, summed over periods of equal weight.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Share {
    cold: Cold<u128>,
    all: u128,
}

impl Share {
    /// One period.
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

    /// The cold share, as a fraction of one; zero where there is no memory at all.
    pub(super) fn ratio(self) -> f64 {
        self.of(self.cold.far + self.cold.slow + self.cold.potential)
    }

    /// The same by where it is.
    pub(super) fn by_tier(self) -> Cold<f64> {
        Cold { far: self.of(self.cold.far), slow: self.of(self.cold.slow), potential: self.of(self.cold.potential) }
    }

    #[expect(clippy::cast_precision_loss, reason = "shown to people")]
    fn of(self, part: u128) -> f64 {
        part as f64 / self.all.max(1) as f64
    }

    /// The net saving at each of these prices.
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

    /// 002 table 4, in whole percent: what is saved where so much is cold, at a third, a quarter and a fifth of the price.
    #[test]
    fn as_in_the_paper() {
        for (program, cold, saved) in [
            ("Aerospike", 0.15, [10.0, 11.0, 12.0]),
            ("Cassandra", 0.40, [27.0, 30.0, 32.0]),
            ("MySQL-TPCC", 0.40, [27.0, 30.0, 32.0]),
            ("Web-search", 0.40, [27.0, 30.0, 32.0]),
            // Its text says 10 % of Redis, its table counts with 25 %.
            ("Redis", 0.25, [17.0, 19.0, 20.0]),
        ] {
            for (cost, want) in [0.33, 0.25, 0.2].into_iter().zip(saved) {
                let got = saving(cold, cost).saved_ratio * 100.0;
                assert!((got - want).abs() < 0.5, "{program} at {cost}: {got}%");
            }
        }
    }

    #[test]
    fn a_share_is_the_mean_over_time_and_never_more_than_all() {
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

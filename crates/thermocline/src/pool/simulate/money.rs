//! Whether a pool pays: the price of the DRAM that it saves, less that of the hardware that it requires.
//!
//! A pool needs a port, cables and possibly a retimer for each server, and devices and switches for each pool. Their prices can
//! exceed that of the DRAM saved: with switches the cost of a pool outweighs its savings, according to Levis, Lin and Tai (A Case
//! Against CXL Memory Pooling, HotNets 2023). Prices are the operator's; no default is known to be right.

use serde::Serialize;
use simulator::provision::Provisioned;
use units::Bytes;

use crate::values::price;

/// Prices, in any currency.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Prices {
    /// A GiB of DRAM in a server.
    pub(crate) dram_gib: f64,
    /// A GiB of DRAM in a pool.
    pub(crate) pool_gib: f64,
    /// What connects one server to its pool: ports, cables, retimers.
    pub(crate) server: f64,
    /// The devices and switches of one pool, without DRAM.
    pub(crate) pool: f64,
    /// One controller of a pool, or one device of a sparse pod, without DRAM.
    pub(crate) device: f64,
}

impl Prices {
    /// Reads `dram=PRICE,pool_dram=PRICE,server=PRICE,pool=PRICE,device=PRICE`. The price of pool DRAM is that of DRAM by default, the others are 0.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (mut dram, mut pool_dram, mut server, mut pool, mut device) = (None, None, 0.0, 0.0, 0.0);
        for part in text.split(',') {
            let (key, value) =
                part.split_once('=').ok_or_else(|| format!("{part:?} has no price; write it as KEY=PRICE, such as dram=3"))?;
            let value = price(value).map_err(|words| format!("{key}={value} is not a price; {words}"))?;
            match key {
                "dram" => dram = Some(value),
                "pool_dram" => pool_dram = Some(value),
                "server" => server = value,
                "pool" => pool = value,
                "device" => device = value,
                _ => return Err(format!("{key:?} is not known; there are dram, pool_dram, server, pool and device")),
            }
        }
        let dram = dram.filter(|price| *price > 0.0).ok_or("give the price of a GiB of DRAM, such as dram=3")?;
        Ok(Self { dram_gib: dram, pool_gib: pool_dram.unwrap_or(dram), server, pool, device })
    }
}

/// The answer to whether a pool should be bought.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    /// It saves money: the whole interval is above zero.
    Buy,
    /// It costs money, or no pool of any size saves DRAM: no part of the interval is above zero.
    DoNotBuy,
    /// The interval contains zero, or there are too few clusters for one.
    Undecided,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Buy => "buy",
            Self::DoNotBuy => "do not buy",
            Self::Undecided => "undecided",
        })
    }
}

/// What a pool saves, as prices per server.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Money {
    /// DRAM saved, less the hardware of the pool; mean over clusters.
    pub(super) saved_per_server: f64,
    /// The 95 % confidence interval of that mean, by Student's t over clusters; `None` for fewer than three clusters.
    pub(super) interval: Option<[f64; 2]>,
    /// The price of all hardware of a pool for each of its servers at which it neither saves nor costs.
    pub(super) break_even_per_server: f64,
    /// The answer.
    pub(super) verdict: Verdict,
}

/// Number of clusters without which there is no interval.
const CLUSTERS_MIN: usize = 3;
/// The normal distribution's 97.5 % quantile.
const NORMAL: f64 = 1.959_964;

impl Money {
    /// Computes the money from the memory of each cluster.
    #[expect(clippy::cast_precision_loss, reason = "numbers of clusters and servers")]
    pub(super) fn of(prices: &Prices, clusters: &[Provisioned]) -> Self {
        let gib = |bytes: Bytes| bytes.0 as f64 / f64::from(1 << 30);
        let count = clusters.len().max(1) as f64;
        let (mut saved, mut break_even) = (Vec::with_capacity(clusters.len()), 0.0);
        for of in clusters {
            let servers = of.servers.max(1) as f64;
            let local = gib(of.bytes) - gib(of.pool_bytes);
            let dram = (gib(of.local_only_bytes) - local) * prices.dram_gib - gib(of.pool_bytes) * prices.pool_gib;
            let devices = of.pools as f64 * prices.pool + of.devices as f64 * prices.device;
            let hardware = of.pooled_servers as f64 * prices.server + devices;
            saved.push((dram - hardware) / servers);
            break_even += dram / servers / count;
        }
        let mean = saved.iter().sum::<f64>() / count;
        let interval = (clusters.len() >= CLUSTERS_MIN).then(|| {
            let squares: f64 = saved.iter().map(|saved| (saved - mean) * (saved - mean)).sum();
            let error = (squares / (count - 1.0) / count).sqrt();
            let half = rollout::sequential::student(NORMAL, count - 1.0) * error;
            [mean - half, mean + half]
        });
        let unused = clusters.iter().all(|of| of.pools == 0);
        let verdict = match interval {
            _ if unused => Verdict::DoNotBuy,
            Some([low, _]) if low > 0.0 => Verdict::Buy,
            Some([_, high]) if high <= 0.0 => Verdict::DoNotBuy,
            _ => Verdict::Undecided,
        };
        Self { saved_per_server: mean, interval, break_even_per_server: break_even, verdict }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cluster of 8 servers and one pool of two devices, with GiB without pools, of local memory and of the pool.
    fn cluster(without: u64, local: u64, pool: u64) -> Provisioned {
        let pooled = u64::from(pool > 0);
        Provisioned {
            local_only_bytes: Bytes::gib(without),
            bytes: Bytes::gib(local + pool),
            pool_bytes: Bytes::gib(pool),
            servers: 8,
            pooled_servers: 8 * pooled,
            pools: pooled,
            devices: 2 * pooled,
            ..Provisioned::default()
        }
    }

    #[test]
    fn the_answer_follows_from_prices() {
        let check = |prices: &str, clusters: &[Provisioned], saved: f64, break_even: f64, verdict: Verdict| {
            let money = Money::of(&Prices::parse(prices).unwrap(), clusters);
            assert!((money.saved_per_server - saved).abs() < 1e-9, "{prices}: {money:?}");
            assert!((money.break_even_per_server - break_even).abs() < 1e-9, "{prices}: {money:?}");
            assert_eq!(money.verdict, verdict, "{prices}: {money:?}");
        };
        let saves = [cluster(1_600, 1_200, 240), cluster(1_600, 1_200, 224), cluster(1_600, 1_184, 224)];
        // 160, 176 and 192 GiB of 8 servers.
        check("dram=2", &saves, 44.0, 44.0, Verdict::Buy);
        check("dram=2,server=20,pool=80", &saves, 14.0, 44.0, Verdict::Buy);
        check("dram=2,server=20,pool=40,device=20", &saves, 14.0, 44.0, Verdict::Buy);
        check("dram=2,server=43", &saves, 1.0, 44.0, Verdict::Undecided);
        check("dram=2,server=60", &saves, -16.0, 44.0, Verdict::DoNotBuy);
        // Pool memory at 2.5 times the price costs more than it saves.
        check("dram=2,pool_dram=5", &saves, -42.0, -42.0, Verdict::DoNotBuy);
        check("dram=2", &saves[..2], 42.0, 42.0, Verdict::Undecided);
        check("dram=2,server=1", &[cluster(1_600, 1_600, 0), cluster(1_600, 1_600, 0)], 0.0, 0.0, Verdict::DoNotBuy);
    }

    #[test]
    fn the_interval_is_students() {
        let money = Money::of(
            &Prices::parse("dram=1").unwrap(),
            &[cluster(1_600, 1_200, 240), cluster(1_600, 1_200, 224), cluster(1_600, 1_184, 224)],
        );
        // 20, 22 and 24: a deviation of 2, and a quantile of 4.303 with two degrees of freedom.
        let [low, high] = money.interval.unwrap();
        let half = 4.302_653 * 2.0 / 3f64.sqrt();
        assert!((low - (22.0 - half)).abs() < 0.01 && (high - (22.0 + half)).abs() < 0.01, "{money:?}");
    }

    #[test]
    fn prices_are_read_or_refused() {
        let prices = Prices::parse("dram=3,server=100,pool=2000,pool_dram=4,device=50").unwrap();
        assert_eq!(prices, Prices { dram_gib: 3.0, pool_gib: 4.0, server: 100.0, pool: 2_000.0, device: 50.0 });
        for (text, words) in [
            ("server=3", "price of a GiB of DRAM"),
            ("dram=0", "price of a GiB of DRAM"),
            ("dram=-1", "not a price"),
            ("dram=nan", "not a price"),
            ("dram=3,luck=1", "pool_dram"),
            ("dram", "has no price"),
        ] {
            let error = Prices::parse(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}

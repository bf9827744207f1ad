//! `thermocline model --tiers`: the same far memory in zswap, CXL memory and on an SSD.

use std::time::Duration;

use model::tally::{Total, ratio};
use model::tiers::{Step, Tier};
use serde::Serialize;
use units::{Bytes, nanos};

use crate::values::{key_value, latency, price};

/// The tier whose pages stay in DRAM, compressed.
const ZSWAP: &str = "zswap";

/// Tiers, what one returning page costs in nanoseconds, and the price of a byte as a share of DRAM's. Latencies and the price of flash
/// are those that agents assume before they have measured any.
///
/// - zswap: the 90th percentile (TMO section 2.5). Its price is that of the DRAM that the pool takes, which is subtracted.
/// - cxl: 64 cache lines of 4 KiB that take 90 ns more each, from a pool of 16 sockets (Pond section 4.1 and figure 7), without overlap:
///   an upper bound of one pass over the page. The price is an assumption: none is published.
/// - ssd: the slower end of flash devices (TMO figure 5), at about 3 % of the price of DRAM (TMO figure 1).
const DEFAULTS: [(&str, u64, f64); 3] = [(ZSWAP, 40_000, 0.0), ("cxl", 64 * 90, 0.5), ("ssd", 1_000_000, 0.03)];

/// A tier as `--tier` gives it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GivenTier {
    name: String,
    latency: Duration,
    price_ratio: Option<f64>,
}

/// Parses NAME=LATENCY[,PRICE].
pub(crate) fn given(text: &str) -> Result<GivenTier, String> {
    let (name, rest) = key_value(text).map_err(|_| "write it as NAME=LATENCY or NAME=LATENCY,PRICE, such as ssd=80us,0.1".to_owned())?;
    let (time, ratio) = rest.split_once(',').map_or((rest.as_str(), None), |(time, ratio)| (time, Some(ratio)));
    let price_ratio = ratio.map(price).transpose()?;
    if name == ZSWAP && price_ratio.is_some() {
        return Err("zswap has no price: the DRAM that its pool takes is subtracted; write zswap=LATENCY".to_owned());
    }
    let default = |name: &str| DEFAULTS.iter().any(|(known, ..)| *known == name);
    if price_ratio.is_none() && !default(&name) {
        return Err(format!("{name:?} needs a price, as a share of that of DRAM; write {name}={time},0.5"));
    }
    Ok(GivenTier { name, latency: latency(time)?, price_ratio })
}

/// The tiers to compare: the known ones, with what was given in their place, and further ones.
fn tiers(given: &[GivenTier]) -> Vec<Tier> {
    let known = |&(name, latency_ns, price_ratio): &(&str, u64, f64)| Tier {
        name: name.to_owned(),
        latency_ns,
        price_ratio,
        compressed: name == ZSWAP,
    };
    let mut tiers: Vec<Tier> = DEFAULTS.iter().map(known).collect();
    for GivenTier { name, latency, price_ratio } in given {
        let latency_ns = nanos(*latency);
        match tiers.iter_mut().find(|tier| tier.name == *name) {
            Some(tier) => (tier.latency_ns, tier.price_ratio) = (latency_ns, price_ratio.unwrap_or(tier.price_ratio)),
            None => tiers.push(Tier { name: name.clone(), latency_ns, price_ratio: price_ratio.unwrap_or(1.0), compressed: false }),
        }
    }
    tiers
}

/// A tier with the result of a pair.
#[derive(Debug, Serialize)]
pub(crate) struct TierRow {
    pub(super) tier: String,
    pub(super) latency_seconds: f64,
    /// As a share of the price of DRAM; `null` for zswap, whose pool is DRAM.
    pub(super) price_ratio: Option<f64>,
    /// The best pair, or without one the configured one.
    pub(super) at: TierStep,
    /// Pairs that save most for the time that they cost, by time.
    pub(super) steps: Vec<TierStep>,
}

/// A pair in a tier.
#[derive(Debug, Serialize)]
pub(crate) struct TierStep {
    pub(super) percentile_ratio: f64,
    pub(super) warmup_seconds: f64,
    pub(super) saved_bytes: f64,
    /// Less what the tier costs, as DRAM of that price.
    pub(super) net_bytes: f64,
    /// Of all jobs.
    pub(super) lost_milliseconds_per_second: f64,
    /// DRAM for the last of these milliseconds per second; `null` if no time is lost.
    pub(super) marginal_bytes_per_millisecond: Option<f64>,
}

impl TierStep {
    fn of(step: &Step<'_>) -> Self {
        Self {
            percentile_ratio: step.total.percentile.as_f64(),
            warmup_seconds: ratio(u128::from(step.total.warmup.0), 1_000),
            saved_bytes: step.saved_bytes,
            net_bytes: step.net_bytes,
            lost_milliseconds_per_second: step.lost_ms_per_second,
            marginal_bytes_per_millisecond: step.marginal_bytes,
        }
    }
}

/// The result of each tier, of the pairs that some entry measured. `at` is the pair that is in effect.
pub(super) fn rows(totals: &[Total], at: &Total, page: Bytes, given: &[GivenTier]) -> Vec<TierRow> {
    let row = |tier: &Tier| {
        let hull = tier.hull(totals, page);
        TierRow {
            tier: tier.name.clone(),
            latency_seconds: ratio(u128::from(tier.latency_ns), 1_000_000_000),
            price_ratio: (!tier.compressed).then_some(tier.price_ratio),
            at: TierStep::of(&tier.at(at, &hull, page)),
            steps: hull.iter().map(TierStep::of).collect(),
        }
    };
    tiers(given).iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_takes_the_place_of_what_is_known() {
        let check = |text: &[&str], expected: &[(&str, u64, f64)]| {
            let given: Vec<_> = text.iter().map(|text| given(text).unwrap()).collect();
            let found = tiers(&given);
            let found: Vec<_> = found.iter().map(|tier| (&*tier.name, tier.latency_ns, tier.price_ratio)).collect();
            assert_eq!(found, expected);
        };
        check(&[], &DEFAULTS);
        check(&["ssd=80us"], &[DEFAULTS[0], DEFAULTS[1], ("ssd", 80_000, 0.03)]);
        check(&["zswap=30us", "nvm=1us,0.4"], &[(ZSWAP, 30_000, 0.0), DEFAULTS[1], DEFAULTS[2], ("nvm", 1_000, 0.4)]);
        for wrong in ["ssd", "ssd=", "ssd=80", "ssd=80us,-1", "nvm=1us", "zswap=1us,0.2", "ssd=2s"] {
            assert!(given(wrong).is_err(), "{wrong}");
        }
    }
}

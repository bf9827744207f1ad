//! What fails when: drawn from a seed, before the run.

use fastrand::Rng;
use pool::Ns;
use serde::{Deserialize, Serialize};

/// How often what fails. Times between failures are exponential, each thing for itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Faults {
    /// Mean time between failures of one EMC; none if they do not fail.
    pub emc_every: Option<Ns>,
    /// The same of one host.
    pub host_every: Option<Ns>,
    /// The same of one pool's manager.
    pub manager_every: Option<Ns>,
    /// How long whatever failed is away.
    pub back_after: Ns,
    /// Of a million releases of a slice, how many a host cannot do at first.
    pub stuck_ppm: u32,
}

/// Something that fails, or works again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thing {
    /// An EMC of a pool.
    Emc {
        /// Which pool.
        pool: u32,
        /// Which of its EMCs.
        emc: u16,
    },
    /// A server.
    Host {
        /// Which.
        server: u32,
    },
    /// A pool's manager.
    Manager {
        /// Which pool.
        pool: u32,
    },
}

/// Failures that a thing has at most: what is planned is bounded, however long a trace and however short the times.
const FAILURES_MAX: usize = 1_000;

/// All faults of a run: when, what, and whether it fails or is back.
#[must_use]
pub fn plan(faults: &Faults, seed: u64, servers: u32, pools: u32, emcs: u16, until: Ns) -> Vec<(Ns, Thing, bool)> {
    let managers = (0..pools).map(|pool| (Thing::Manager { pool }, faults.manager_every));
    let hosts = (0..servers).map(|server| (Thing::Host { server }, faults.host_every));
    let emcs = (0..pools).flat_map(|pool| (0..emcs).map(move |emc| (Thing::Emc { pool, emc }, faults.emc_every)));
    let mut planned = Vec::new();
    for (stream, (thing, every)) in (1u64..).zip(managers.chain(hosts).chain(emcs)) {
        let Some(every) = every.filter(|every| every.0 > 0) else { continue };
        // Each thing has its own stream, so that more servers do not change when the first one fails.
        let mut random = Rng::with_seed(seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut now = 0u64;
        for _ in 0..FAILURES_MAX {
            now = now.saturating_add(exponential(&mut random, every.0));
            if now >= until.0 {
                break;
            }
            planned.push((Ns(now), thing, true));
            now = now.saturating_add(faults.back_after.0.max(1));
            planned.push((Ns(now), thing, false));
        }
    }
    planned
}

/// A time from an exponential distribution.
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, and is positive")]
fn exponential(random: &mut Rng, mean_ns: u64) -> u64 {
    (-libm::log(1.0 - random.f64()) * mean_ns as f64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_come_as_often_as_asked_and_end() {
        let day = 86_400_000_000_000;
        let faults = Faults { host_every: Some(Ns(10 * day)), back_after: Ns(day / 24), ..Faults::default() };
        let planned = plan(&faults, 1, 100, 7, 2, Ns(1_000 * day));
        let fails = planned.iter().filter(|(_, _, fails)| *fails).count();
        assert!((9_500..10_500).contains(&fails), "{fails}: a hundred hosts, a hundred times each");
        assert_eq!(planned.len(), 2 * fails, "what fails comes back");
        assert!(planned.iter().all(|(_, thing, _)| matches!(thing, Thing::Host { .. })));
        assert_eq!(planned, plan(&faults, 1, 100, 7, 2, Ns(1_000 * day)));
        assert_ne!(planned, plan(&faults, 2, 100, 7, 2, Ns(1_000 * day)));
        assert_eq!(planned[..10], plan(&faults, 1, 50, 7, 2, Ns(1_000 * day))[..10]);
        let often = Faults { manager_every: Some(Ns(1)), ..Faults::default() };
        assert_eq!(plan(&often, 1, 1, 1, 1, Ns(day)).len(), 2 * FAILURES_MAX);
        assert!(plan(&Faults::default(), 1, 100, 7, 2, Ns(day)).is_empty());
    }
}

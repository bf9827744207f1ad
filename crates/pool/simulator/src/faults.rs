//! Faults to inject, drawn from a seed before the run.

use fastrand::Rng;
use pool::Ns;
use serde::{Deserialize, Serialize};
use units::RatioPpm;

/// Failure rates. Times between failures are exponentially distributed and independent for each component.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Faults {
    /// Mean time between failures of one EMC; `None` if EMCs do not fail.
    pub emc_every: Option<Ns>,
    /// Mean time between failures of one host; `None` if hosts do not fail.
    pub host_every: Option<Ns>,
    /// Mean time between failures of one pool's manager; `None` if managers do not fail.
    pub manager_every: Option<Ns>,
    /// Time until a failed component works again.
    pub back_after: Ns,
    /// Releases of a slice that fail at the first attempt, in parts per million.
    pub stuck_ppm: RatioPpm,
}

/// A component that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    /// An EMC.
    Emc {
        /// Number of its ledger: its pool, or in a sparse pod the device itself.
        ledger: u32,
        /// Number of the EMC within the ledger.
        emc: u16,
    },
    /// A server.
    Host {
        /// Number of the server.
        server: u32,
    },
    /// A pool's manager.
    Manager {
        /// Number of the pool.
        pool: u32,
    },
}

/// A component fails, or works again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultEvent {
    /// Time of the event.
    pub at: Ns,
    /// The component.
    pub component: Component,
    /// Whether it fails; otherwise it works again.
    pub fails: bool,
}

/// Upper bound of the failures of one component. It bounds the schedule for long traces and short failure intervals.
const FAILURES_MAX: usize = 1_000;

/// Numbers of components that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Components {
    /// Servers.
    pub servers: u32,
    /// Pools, each with a manager.
    pub pools: u32,
    /// Ledgers of all pools ([`Component::Emc`]).
    pub ledgers: u32,
    /// EMCs of each ledger.
    pub emcs: u16,
}

/// Returns all fault events of a run, grouped by component.
#[must_use]
pub fn schedule(faults: &Faults, seed: u64, of: Components, until: Ns) -> Vec<FaultEvent> {
    let managers = (0..of.pools).map(|pool| (Component::Manager { pool }, faults.manager_every));
    let hosts = (0..of.servers).map(|server| (Component::Host { server }, faults.host_every));
    let emc = |ledger| (0..of.emcs).map(move |emc| (Component::Emc { ledger, emc }, faults.emc_every));
    let emcs = (0..of.ledgers).flat_map(emc);
    let mut events = Vec::new();
    for (stream, (component, every)) in (1u64..).zip(managers.chain(hosts).chain(emcs)) {
        let Some(every) = every.filter(|every| every.0 > 0) else { continue };
        // Each component has its own random stream, so that adding servers does not change the faults of the first one.
        let mut random = Rng::with_seed(seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut now = 0u64;
        for _ in 0..FAILURES_MAX {
            now = now.saturating_add(exponential(&mut random, every.0));
            if now >= until.0 {
                break;
            }
            events.push(FaultEvent { at: Ns(now), component, fails: true });
            now = now.saturating_add(faults.back_after.0.max(1));
            events.push(FaultEvent { at: Ns(now), component, fails: false });
        }
    }
    events
}

/// Draws a time from an exponential distribution.
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, and is positive")]
fn exponential(random: &mut Rng, mean_ns: u64) -> u64 {
    (-libm::log(1.0 - random.f64()) * mean_ns as f64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_have_the_requested_rate_and_end() {
        let day = 86_400_000_000_000;
        let faults = Faults { host_every: Some(Ns(10 * day)), back_after: Ns(day / 24), ..Faults::default() };
        let hosts = |servers| Components { servers, pools: 7, ledgers: 7, emcs: 2 };
        let events = schedule(&faults, 1, hosts(100), Ns(1_000 * day));
        let failures = events.iter().filter(|event| event.fails).count();
        assert!((9_500..10_500).contains(&failures), "{failures} failures; expected 100 for each of 100 hosts");
        assert_eq!(events.len(), 2 * failures, "every failed component works again");
        assert!(events.iter().all(|event| matches!(event.component, Component::Host { .. })));
        assert_eq!(events, schedule(&faults, 1, hosts(100), Ns(1_000 * day)));
        assert_ne!(events, schedule(&faults, 2, hosts(100), Ns(1_000 * day)));
        assert_eq!(events[..10], schedule(&faults, 1, hosts(50), Ns(1_000 * day))[..10]);
        let frequent = Faults { manager_every: Some(Ns(1)), ..Faults::default() };
        let one = Components { servers: 1, pools: 1, ledgers: 1, emcs: 1 };
        assert_eq!(schedule(&frequent, 1, one, Ns(day)).len(), 2 * FAILURES_MAX);
        assert!(schedule(&Faults::default(), 1, hosts(100), Ns(day)).is_empty());
    }
}

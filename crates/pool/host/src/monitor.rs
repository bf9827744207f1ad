//! The QoS monitor (Pond section 4.3 B): whether a guest has too much pool memory, and whether that is mitigated. Pure.
//!
//! A guest's pool memory is sized to stay untouched. A guest that touches it was mispredicted. One that also keeps
//! accessing it loses performance, unless it is insensitive to memory latency.

use serde::{Deserialize, Serialize};
use units::{Bytes, RatioPpm};

use crate::accesses::Seen;
use crate::driver::Usage;

/// Tolerances, and limits of mitigation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Share of its pool memory that a guest may touch and still be as predicted.
    pub touched: RatioPpm,
    /// Share of the memory accessed in a period that may be pool memory.
    pub accessed: RatioPpm,
    /// Share of all guests started that may be mitigated (Pond: 1 %). The first is always within the budget.
    pub budget: RatioPpm,
    /// Attempts to mitigate one guest before the host gives up. A successful one is the last.
    pub attempts: u32,
}

/// State of one guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guest {
    /// Its pool memory; zero once it is mitigated.
    pub pool_bytes: Bytes,
    /// Whether the model predicts that it is insensitive to latency: from its current counters if they were sampled,
    /// otherwise from the request.
    pub insensitive: bool,
    /// Whether it was mitigated.
    pub mitigated: bool,
    /// Whether a part of it was moved home. It counts as mitigated, so that the budget does not keep it from being moved whole.
    pub in_part: bool,
    /// Failed attempts.
    pub failures: u32,
}

/// State of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// Guests ever started.
    pub started: u64,
    /// Guests ever mitigated.
    pub mitigated: u64,
    /// Whether the cooldown after the last mitigation is over.
    pub cooled_down: bool,
    /// Local memory that no guest occupies.
    pub free_local_bytes: Bytes,
    /// Local memory that the mitigation of this guest requires.
    pub mitigation_bytes: Bytes,
}

/// The monitor's verdict on a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// No action: it has no pool memory.
    NoPool,
    /// No action: it touched no more than predicted.
    AsPredicted,
    /// No action: it touched more than predicted, and no instrument sees whether it accesses that.
    NotVisible,
    /// No action: it touched more than predicted, and does not access it.
    TouchedOnce,
    /// No action: it accesses the pool, and is predicted to be insensitive.
    Insensitive,
    /// Mitigation is required, but attempts have failed too often.
    AttemptsSpent,
    /// Mitigation is required, but too many guests were mitigated.
    BudgetSpent,
    /// Mitigation is required, and waits for the cooldown after the last one.
    Cooldown,
    /// Mitigation is required, and waits for free local memory.
    NoLocalMemory,
    /// Mitigation starts now.
    Mitigate,
    /// No action: its accesses to the pool cost it less than the permitted slowdown.
    WithinSlowdown,
    /// The hot part of its pool memory moves home now.
    MoveHot,
}

impl Verdict {
    /// Whether the guest is mispredicted and sensitive to latency.
    #[must_use]
    pub fn is_mispredicted(self) -> bool {
        matches!(self, Self::AttemptsSpent | Self::BudgetSpent | Self::Cooldown | Self::NoLocalMemory | Self::Mitigate)
    }
}

/// Decides on a guest by the memory that it touched and, in the last period, accessed.
#[must_use]
pub fn judge(settings: &Settings, guest: &Guest, usage: &Usage, host: &Host) -> Verdict {
    if let Some(verdict) = tolerated(settings, guest, usage) {
        return verdict;
    }
    if guest.insensitive {
        return Verdict::Insensitive;
    }
    if guest.failures >= settings.attempts {
        return Verdict::AttemptsSpent;
    }
    if !guest.in_part && mitigations_left(settings, host.started, host.mitigated) == 0 {
        return Verdict::BudgetSpent;
    }
    if !host.cooled_down {
        return Verdict::Cooldown;
    }
    if host.free_local_bytes < host.mitigation_bytes {
        return Verdict::NoLocalMemory;
    }
    Verdict::Mitigate
}

/// The verdict on a guest whose pool accesses are within the tolerance, whether or not it is sensitive. `None` if they
/// exceed it.
#[must_use]
pub fn tolerated(settings: &Settings, guest: &Guest, usage: &Usage) -> Option<Verdict> {
    if guest.pool_bytes == Bytes::ZERO || guest.mitigated {
        return Some(Verdict::NoPool);
    }
    if !exceeds(usage.pool_touched_bytes, guest.pool_bytes, settings.touched) {
        return Some(Verdict::AsPredicted);
    }
    if let Seen::Not(_) = usage.seen {
        return Some(Verdict::NotVisible);
    }
    let accessed = usage.pool_accessed_bytes + usage.local_accessed_bytes;
    (!exceeds(usage.pool_accessed_bytes, accessed, settings.accessed)).then_some(Verdict::TouchedOnce)
}

/// How many more guests may be mitigated. The first is always within the budget.
#[must_use]
pub fn mitigations_left(settings: &Settings, started: u64, mitigated: u64) -> u64 {
    settings.budget.share_of(started).max(1).saturating_sub(mitigated)
}

/// Whether `part` exceeds this share of `whole`.
fn exceeds(part: Bytes, whole: Bytes, share: RatioPpm) -> bool {
    u128::from(part.0) * 1_000_000 > u128::from(whole.0) * u128::from(share.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::accesses::Unseen;

    const SETTINGS: Settings = Settings { touched: RatioPpm(50_000), accessed: RatioPpm(5_000), budget: RatioPpm(10_000), attempts: 2 };
    const GUEST: Guest = Guest { pool_bytes: Bytes(1000), insensitive: false, mitigated: false, in_part: false, failures: 0 };
    const HOST: Host = Host { started: 500, mitigated: 3, cooled_down: true, free_local_bytes: Bytes(5000), mitigation_bytes: Bytes(4000) };

    fn usage(touched: u64, accessed: u64, local: u64) -> Usage {
        Usage {
            pool_touched_bytes: Bytes(touched),
            pool_accessed_bytes: Bytes(accessed),
            local_accessed_bytes: Bytes(local),
            local_touched_bytes: Bytes(3000),
            ..Usage::default()
        }
    }

    #[test]
    fn mispredicted_guests_are_mitigated_within_the_limits() {
        let check = |guest: Guest, usage: Usage, host: Host, expected| {
            assert_eq!(judge(&SETTINGS, &guest, &usage, &host), expected, "{guest:?} {usage:?} {host:?}");
        };
        let bad = usage(300, 100, 900);
        check(GUEST, bad, HOST, Verdict::Mitigate);
        check(Guest { pool_bytes: Bytes::ZERO, ..GUEST }, bad, HOST, Verdict::NoPool);
        check(Guest { mitigated: true, ..GUEST }, bad, HOST, Verdict::NoPool);
        check(GUEST, usage(50, 50, 0), HOST, Verdict::AsPredicted);
        check(GUEST, usage(51, 51, 0), HOST, Verdict::Mitigate);
        check(GUEST, usage(300, 5, 995), HOST, Verdict::TouchedOnce);
        check(GUEST, usage(300, 6, 994), HOST, Verdict::Mitigate);
        check(GUEST, usage(300, 0, 0), HOST, Verdict::TouchedOnce);
        // What is not seen is not "not accessed".
        let unseen = |touched| Usage { seen: Seen::Not(Unseen::Kvm), ..usage(touched, 0, 0) };
        check(GUEST, unseen(300), HOST, Verdict::NotVisible);
        check(GUEST, unseen(50), HOST, Verdict::AsPredicted);
        check(Guest { insensitive: true, ..GUEST }, bad, HOST, Verdict::Insensitive);
        check(Guest { failures: 1, ..GUEST }, bad, HOST, Verdict::Mitigate);
        check(Guest { failures: 2, ..GUEST }, bad, HOST, Verdict::AttemptsSpent);
        // 1 % of 500 is five.
        check(GUEST, bad, Host { mitigated: 4, ..HOST }, Verdict::Mitigate);
        check(GUEST, bad, Host { mitigated: 5, ..HOST }, Verdict::BudgetSpent);
        check(Guest { in_part: true, ..GUEST }, bad, Host { mitigated: 5, ..HOST }, Verdict::Mitigate);
        // The first is within any budget.
        check(GUEST, bad, Host { started: 1, mitigated: 0, ..HOST }, Verdict::Mitigate);
        check(GUEST, bad, Host { started: 2, mitigated: 1, ..HOST }, Verdict::BudgetSpent);
        check(GUEST, bad, Host { cooled_down: false, ..HOST }, Verdict::Cooldown);
        check(GUEST, bad, Host { free_local_bytes: Bytes(3999), ..HOST }, Verdict::NoLocalMemory);
    }

    proptest! {
        #[test]
        fn mitigations_stay_within_the_budget(started in 1u64..100_000, ppm in 0u32..1_000_000) {
            let settings = Settings { budget: RatioPpm(ppm), ..SETTINGS };
            let mut mitigated = 0;
            while judge(&settings, &GUEST, &usage(300, 100, 900), &Host { started, mitigated, ..HOST }) == Verdict::Mitigate {
                mitigated += 1;
                prop_assert!(mitigated <= started);
            }
            prop_assert!(mitigated == 1 || u128::from(mitigated) * 1_000_000 <= u128::from(started) * u128::from(ppm));
        }

        #[test]
        fn more_accesses_never_make_the_verdict_milder(touched in 0u64..=1000, accessed in 0u64..=1000, more in 0u64..1000) {
            let is_bad = |touched, accessed| judge(&SETTINGS, &GUEST, &usage(touched, accessed, 900), &HOST).is_mispredicted();
            prop_assert!(!is_bad(touched, accessed) || is_bad(touched + more, accessed + more));
        }
    }
}

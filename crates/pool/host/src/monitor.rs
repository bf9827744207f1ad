//! The QoS monitor (Pond, section 4.3 B): whether a guest was given too much pool memory, and whether that is repaired. Pure.
//!
//! A guest's pool memory was sized so that it is never touched. A guest that touches it has been predicted wrong; one that
//! also keeps accessing it pays for that, unless it is of those that do not notice.

use serde::{Deserialize, Serialize};

use crate::driver::Usage;

/// What is tolerated, and how much may be repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Millionths of a guest's pool memory that it may touch and still be as predicted.
    pub touched_ppm: u32,
    /// Millionths of the memory that it accesses in a period that may lie in the pool.
    pub accessed_ppm: u32,
    /// Millionths of all guests started that may be repaired (Pond: 1 %). The first is always within.
    pub budget_ppm: u32,
    /// Attempts to repair one guest. One that succeeds is the last.
    pub attempts: u32,
}

/// What is known of one guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guest {
    /// Its memory in the pool; none any more once it was repaired.
    pub pool_bytes: u64,
    /// The model says that it does not notice: by its counters of now, where there are any, else by those that it was started by.
    pub insensitive: bool,
    /// It was repaired.
    pub repaired: bool,
    /// Attempts that failed.
    pub failures: u32,
}

/// What is known of all guests of this host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// Guests ever started.
    pub started: u64,
    /// Guests ever repaired.
    pub repaired: u64,
    /// Whether the last repair was long enough ago.
    pub rested: bool,
    /// Local memory that no guest has.
    pub free_local_bytes: u64,
    /// What of it the repair of this guest takes: as much as it has in all, for the time of its move to another process, or
    /// what it has in the pool, where its pages move under it.
    pub repair_bytes: u64,
}

/// What is to be done about a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Nothing: it has no memory in the pool.
    NoPool,
    /// Nothing: it touches no more than predicted.
    AsPredicted,
    /// Nothing: it has touched more, and does not access it.
    TouchedOnce,
    /// Nothing: it accesses the pool, and does not notice, by the model.
    Insensitive,
    /// It would be repaired, but attempts have failed too often.
    AttemptsSpent,
    /// It would be repaired, but too many guests were.
    BudgetSpent,
    /// It is to be repaired, but another one was just now.
    Resting,
    /// It is to be repaired as soon as there is local memory.
    NoLocalMemory,
    /// It is to be repaired now.
    Repair,
}

impl Verdict {
    /// Whether the guest was predicted wrong and suffers from it.
    #[must_use]
    pub fn suffers(self) -> bool {
        matches!(self, Self::AttemptsSpent | Self::BudgetSpent | Self::Resting | Self::NoLocalMemory | Self::Repair)
    }
}

/// Judges a guest by what it touched and, in the last period, accessed.
#[must_use]
pub fn judge(settings: &Settings, guest: &Guest, usage: &Usage, host: &Host) -> Verdict {
    if let Some(verdict) = at_ease(settings, guest, usage) {
        return verdict;
    }
    if guest.insensitive {
        return Verdict::Insensitive;
    }
    if guest.failures >= settings.attempts {
        return Verdict::AttemptsSpent;
    }
    if repairs_left(settings, host.started, host.repaired) == 0 {
        return Verdict::BudgetSpent;
    }
    if !host.rested {
        return Verdict::Resting;
    }
    if host.free_local_bytes < host.repair_bytes {
        return Verdict::NoLocalMemory;
    }
    Verdict::Repair
}

/// The verdict on a guest that hardly accesses the pool, whatever it would notice; none on one that does.
#[must_use]
pub fn at_ease(settings: &Settings, guest: &Guest, usage: &Usage) -> Option<Verdict> {
    if guest.pool_bytes == 0 || guest.repaired {
        return Some(Verdict::NoPool);
    }
    if !over(usage.pool_touched_bytes, guest.pool_bytes, settings.touched_ppm) {
        return Some(Verdict::AsPredicted);
    }
    let accessed = usage.pool_accessed_bytes.saturating_add(usage.local_accessed_bytes);
    (!over(usage.pool_accessed_bytes, accessed, settings.accessed_ppm)).then_some(Verdict::TouchedOnce)
}

/// How many more guests may be repaired. The first is always within the budget.
#[must_use]
pub fn repairs_left(settings: &Settings, started: u64, repaired: u64) -> u64 {
    let allowed = u128::from(started) * u128::from(settings.budget_ppm) / 1_000_000;
    u64::try_from(allowed).unwrap_or(u64::MAX).max(1).saturating_sub(repaired)
}

/// Whether `part` is more than so many millionths of `whole`.
fn over(part: u64, whole: u64, ppm: u32) -> bool {
    u128::from(part) * 1_000_000 > u128::from(whole) * u128::from(ppm)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SETTINGS: Settings = Settings { touched_ppm: 50_000, accessed_ppm: 5_000, budget_ppm: 10_000, attempts: 2 };
    const GUEST: Guest = Guest { pool_bytes: 1000, insensitive: false, repaired: false, failures: 0 };
    const HOST: Host = Host { started: 500, repaired: 3, rested: true, free_local_bytes: 5000, repair_bytes: 4000 };

    fn usage(touched: u64, accessed: u64, local: u64) -> Usage {
        Usage { pool_touched_bytes: touched, pool_accessed_bytes: accessed, local_accessed_bytes: local, local_touched_bytes: 3000 }
    }

    #[test]
    fn who_suffers_is_repaired_within_what_is_allowed() {
        let check = |guest: Guest, usage: Usage, host: Host, want| {
            assert_eq!(judge(&SETTINGS, &guest, &usage, &host), want, "{guest:?} {usage:?} {host:?}");
        };
        let bad = usage(300, 100, 900);
        check(GUEST, bad, HOST, Verdict::Repair);
        check(Guest { pool_bytes: 0, ..GUEST }, bad, HOST, Verdict::NoPool);
        check(Guest { repaired: true, ..GUEST }, bad, HOST, Verdict::NoPool);
        check(GUEST, usage(50, 50, 0), HOST, Verdict::AsPredicted);
        check(GUEST, usage(51, 51, 0), HOST, Verdict::Repair);
        check(GUEST, usage(300, 5, 995), HOST, Verdict::TouchedOnce);
        check(GUEST, usage(300, 6, 994), HOST, Verdict::Repair);
        check(GUEST, usage(300, 0, 0), HOST, Verdict::TouchedOnce);
        check(Guest { insensitive: true, ..GUEST }, bad, HOST, Verdict::Insensitive);
        check(Guest { failures: 1, ..GUEST }, bad, HOST, Verdict::Repair);
        check(Guest { failures: 2, ..GUEST }, bad, HOST, Verdict::AttemptsSpent);
        // 1 % of 500 are five.
        check(GUEST, bad, Host { repaired: 4, ..HOST }, Verdict::Repair);
        check(GUEST, bad, Host { repaired: 5, ..HOST }, Verdict::BudgetSpent);
        // The first is within any budget.
        check(GUEST, bad, Host { started: 1, repaired: 0, ..HOST }, Verdict::Repair);
        check(GUEST, bad, Host { started: 2, repaired: 1, ..HOST }, Verdict::BudgetSpent);
        check(GUEST, bad, Host { rested: false, ..HOST }, Verdict::Resting);
        check(GUEST, bad, Host { free_local_bytes: 3999, ..HOST }, Verdict::NoLocalMemory);
    }

    proptest! {
        #[test]
        fn no_more_guests_are_repaired_than_the_budget_has(started in 1u64..100_000, ppm in 0u32..1_000_000) {
            let settings = Settings { budget_ppm: ppm, ..SETTINGS };
            let mut repaired = 0;
            while judge(&settings, &GUEST, &usage(300, 100, 900), &Host { started, repaired, ..HOST }) == Verdict::Repair {
                repaired += 1;
                prop_assert!(repaired <= started);
            }
            prop_assert!(repaired == 1 || u128::from(repaired) * 1_000_000 <= u128::from(started) * u128::from(ppm));
        }

        #[test]
        fn who_touches_and_accesses_more_is_judged_no_milder(touched in 0u64..=1000, accessed in 0u64..=1000, more in 0u64..1000) {
            let suffers = |touched, accessed| judge(&SETTINGS, &GUEST, &usage(touched, accessed, 900), &HOST).suffers();
            prop_assert!(!suffers(touched, accessed) || suffers(touched + more, accessed + more));
        }
    }
}

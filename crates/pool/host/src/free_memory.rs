//! Whether a running guest has enough free memory to give up its pool memory. Pure.
//!
//! A guest that is asked for memory that it needs neither refuses nor complies: its kernel kills programs for lack of
//! memory. So the host estimates the guest's free memory before it asks.

use serde::{Deserialize, Serialize};
use units::{Bytes, RatioPpm};

use crate::driver::{GuestMemory, Usage};

/// Memory that must stay free in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Margin {
    /// Share of the memory that the guest keeps.
    pub ratio: RatioPpm,
    /// Lower bound.
    pub min: Bytes,
}

impl Margin {
    fn of(&self, local: Bytes) -> Bytes {
        Bytes(self.ratio.share_of(local.0)).max(self.min)
    }
}

/// Source of an estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// Memory use that the guest's balloon driver reports.
    Balloon,
    /// Memory that the guest ever touched: an upper bound of its use.
    Touched,
}

/// An estimate of a guest's memory without its slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreeMemory {
    /// Memory that the guest uses, at most.
    pub used_bytes: Bytes,
    /// Memory that must stay free.
    pub margin_bytes: Bytes,
    /// Memory that the guest would keep.
    pub left_bytes: Bytes,
    /// Source of the estimate.
    pub by: By,
}

impl FreeMemory {
    /// Whether the guest can give up its slices.
    #[must_use]
    pub fn is_enough(&self) -> bool {
        self.used_bytes + self.margin_bytes <= self.left_bytes
    }
}

/// Estimates the memory of a guest with `local` memory without its `pool` memory.
#[must_use]
pub fn estimate(local: Bytes, pool: Bytes, usage: &Usage, guest: Option<GuestMemory>, margin: Margin) -> FreeMemory {
    let margin_bytes = margin.of(local);
    match guest {
        Some(GuestMemory { total_bytes, available_bytes }) => FreeMemory {
            used_bytes: total_bytes.saturating_sub(available_bytes),
            margin_bytes,
            // Part of what the guest's kernel manages: neither figure includes what the kernel itself occupies of node
            // 0.
            left_bytes: total_bytes.saturating_sub(pool),
            by: By::Balloon,
        },
        None => FreeMemory {
            used_bytes: usage.local_touched_bytes + usage.pool_touched_bytes,
            margin_bytes,
            left_bytes: local,
            by: By::Touched,
        },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MARGIN: Margin = Margin { ratio: RatioPpm(100_000), min: Bytes(32) };

    fn usage(local: u64, pool: u64) -> Usage {
        Usage { local_touched_bytes: Bytes(local), pool_touched_bytes: Bytes(pool), ..Usage::default() }
    }

    #[test]
    fn free_memory_is_what_is_left_minus_what_is_used() {
        let check = |local, pool, usage: Usage, guest: Option<(u64, u64)>, enough: bool| {
            let guest = guest.map(|(total, available)| GuestMemory { total_bytes: Bytes(total), available_bytes: Bytes(available) });
            let free = estimate(Bytes(local), Bytes(pool), &usage, guest, MARGIN);
            assert_eq!(free.is_enough(), enough, "{free:?}");
        };
        // By touched memory: 10 % of 1000 must stay free.
        check(1000, 500, usage(700, 200), None, true);
        check(1000, 500, usage(700, 201), None, false);
        // The guest's report is exact: it has freed memory that it touched.
        check(1000, 500, usage(1000, 500), Some((1400, 600)), true);
        check(1000, 500, usage(1000, 500), Some((1400, 599)), false);
        // Lower bound of the margin.
        check(100, 500, usage(68, 0), None, true);
        check(100, 500, usage(69, 0), None, false);
        // An inconsistent report counts as no free memory.
        check(1000, 500, usage(0, 0), Some((400, u64::MAX)), false);
    }

    proptest! {
        #[test]
        fn free_memory_falls_as_use_rises(local in 1u64..1 << 40, pool in 0u64..1 << 40, used in 0u64..1 << 40, more in 0u64..1 << 40) {
            let of = |used| estimate(Bytes(local), Bytes(pool), &usage(used, 0), None, MARGIN).is_enough();
            prop_assert!(of(used) || !of(used + more));
        }

        #[test]
        fn used_memory_fits_into_what_is_left(total in 0u64..1 << 40, available in 0u64..1 << 40, pool in 0u64..1 << 40) {
            let guest = Some(GuestMemory { total_bytes: Bytes(total), available_bytes: Bytes(available) });
            let free = estimate(Bytes(1 << 30), Bytes(pool), &Usage::default(), guest, MARGIN);
            prop_assert!(!free.is_enough() || total.saturating_sub(available) + pool <= total);
        }
    }
}

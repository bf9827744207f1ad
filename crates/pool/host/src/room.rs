//! Whether a running guest can do without its pool memory. Pure.
//!
//! A guest that is asked for memory that it has no room for neither refuses nor complies: it ends its own programs for want of
//! memory. So the question is answered here, before the guest hears of it.

use serde::{Deserialize, Serialize};

use crate::driver::{Inside, Usage};

/// How much must be left free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Margin {
    /// Millionths of the memory that the guest will have left.
    pub ratio_ppm: u32,
    /// And at least this.
    pub least_bytes: u64,
}

impl Margin {
    fn of(&self, local_bytes: u64) -> u64 {
        let part = u128::from(local_bytes) * u128::from(self.ratio_ppm) / 1_000_000;
        u64::try_from(part).unwrap_or(u64::MAX).max(self.least_bytes)
    }
}

/// What the answer rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// What the guest says that it uses.
    Balloon,
    /// What it ever touched, which is at least what it uses.
    Touched,
}

/// The answer, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// What the guest uses, at most.
    pub used_bytes: u64,
    /// What must stay free beside that.
    pub margin_bytes: u64,
    /// What it will have.
    pub left_bytes: u64,
    /// How that is known.
    pub by: By,
}

impl Room {
    /// Whether it is enough.
    #[must_use]
    pub fn is_enough(&self) -> bool {
        self.used_bytes.saturating_add(self.margin_bytes) <= self.left_bytes
    }
}

/// What a guest would have left without its `pool_bytes`.
#[must_use]
pub fn room(local_bytes: u64, pool_bytes: u64, usage: &Usage, inside: Option<Inside>, margin: Margin) -> Room {
    let margin_bytes = margin.of(local_bytes);
    match inside {
        Some(Inside { total_bytes, available_bytes }) => Room {
            used_bytes: total_bytes.saturating_sub(available_bytes),
            margin_bytes,
            // Of what its kernel manages: what the kernel itself takes of node 0 is in neither figure.
            left_bytes: total_bytes.saturating_sub(pool_bytes),
            by: By::Balloon,
        },
        None => Room {
            used_bytes: usage.local_touched_bytes.saturating_add(usage.pool_touched_bytes),
            margin_bytes,
            left_bytes: local_bytes,
            by: By::Touched,
        },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MARGIN: Margin = Margin { ratio_ppm: 100_000, least_bytes: 32 };

    fn usage(local: u64, pool: u64) -> Usage {
        Usage { local_touched_bytes: local, pool_touched_bytes: pool, ..Usage::default() }
    }

    #[test]
    fn room_is_what_is_left_beside_what_is_used() {
        let check = |local, pool, usage: Usage, inside: Option<(u64, u64)>, enough: bool| {
            let inside = inside.map(|(total_bytes, available_bytes)| Inside { total_bytes, available_bytes });
            let room = room(local, pool, &usage, inside, MARGIN);
            assert_eq!(room.is_enough(), enough, "{room:?}");
        };
        // By what was touched: 10 % of 1000 must stay free.
        check(1000, 500, usage(700, 200), None, true);
        check(1000, 500, usage(700, 201), None, false);
        // The guest knows better: what it touched once it has given up since.
        check(1000, 500, usage(1000, 500), Some((1400, 600)), true);
        check(1000, 500, usage(1000, 500), Some((1400, 599)), false);
        // The least margin.
        check(100, 500, usage(68, 0), None, true);
        check(100, 500, usage(69, 0), None, false);
        // Nonsense of a guest's is no room.
        check(1000, 500, usage(0, 0), Some((400, u64::MAX)), false);
    }

    proptest! {
        #[test]
        fn who_uses_more_has_no_more_room(local in 1u64..1 << 40, pool in 0u64..1 << 40, used in 0u64..1 << 40, more in 0u64..1 << 40) {
            let of = |used| room(local, pool, &usage(used, 0), None, MARGIN).is_enough();
            prop_assert!(of(used) || !of(used + more));
        }

        #[test]
        fn what_is_used_always_fits_into_what_is_left(total in 0u64..1 << 40, available in 0u64..1 << 40, pool in 0u64..1 << 40) {
            let inside = Some(Inside { total_bytes: total, available_bytes: available });
            let room = room(1 << 30, pool, &Usage::default(), inside, MARGIN);
            prop_assert!(!room.is_enough() || total.saturating_sub(available) + pool <= total);
        }
    }
}

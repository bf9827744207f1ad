//! What was seen of a block, as a rate.

use std::time::Duration;

use policy::slowdown::rate::{self, Estimate, Looks, Parts};

use crate::rates::blocks::Block;

/// A block with its rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rated {
    /// The block.
    pub block: Block,
    /// How often it is accessed.
    pub estimate: Estimate,
    /// What the estimate rests on: looks at the block as a whole, or at all parts together.
    pub looks: Looks,
    /// Where it was looked at in parts: how many it had, and how many of them were touched at all.
    pub parts: Option<(u32, u32)>,
}

/// A block that was looked at in parts.
pub(super) struct Counted<'a> {
    pub(super) of: u32,
    pub(super) touched: u32,
    pub(super) touch_window_us: u64,
    pub(super) parts: &'a [Looks],
}

impl Counted<'_> {
    /// From looks that much apart.
    pub(super) fn rate(&self, block: Block, interval_us: u64) -> Rated {
        let &Self { of, touched, touch_window_us, parts: looks } = self;
        let estimate = rate::parts(&Parts { of, touched, touch_window_us, looks, interval_us });
        let sum = |count: fn(&Looks) -> u32| looks.iter().map(count).fold(0, u32::saturating_add);
        let looks = Looks { taken: sum(|looks| looks.taken), accessed: sum(|looks| looks.accessed) };
        Rated { block, estimate, looks, parts: Some((of, touched)) }
    }
}

/// The mean time from look to look.
pub(super) fn interval_us(window: Duration, looks: &[Looks]) -> u64 {
    let taken = looks.iter().map(|looks| looks.taken).max().unwrap_or(0);
    micros(window) / u64::from(taken.max(1))
}

pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

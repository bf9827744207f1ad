//! Frees the swap cache that paging out to a device leaves behind.
//!
//! `MADV_PAGEOUT` to a device starts the write and returns; the pages stay in DRAM, clean in the end, until they are reclaimed.
//! The kernel must not be asked for more than is clean, nor for nearly all of it, or it reclaims file pages, which are to stay.
//! It does so as well while the clean pages are of its youngest generations. So what it took is measured; if that was other
//! memory, it is asked again only after a while, and a limited number of times.

use std::time::Duration;

use policy::balance::AnonFileBias;
use units::Bytes;

use crate::actuators::lru::ANON_FIRST;
use crate::context::{Context, PACE_WAIT};
use crate::job::Job;
use crate::reclaim::{charge, count, reclaim};

/// Swap cache that may wait for a device; while there is more, no page is paged out.
const CACHED_MAX: Bytes = Bytes::mib(32);

/// The least swap cache that is worth a request.
const REQUEST_MIN: Bytes = Bytes(256 << 10);

/// The first and the largest request.
const REQUEST_FIRST: Bytes = Bytes::mib(1);
const REQUEST_MAX: Bytes = Bytes::mib(8);

/// Requests that took other memory, [`MISSED_WAIT`] apart, until the rest is left to the kernel.
const MISSED_MAX: u32 = 3;
const MISSED_WAIT: Duration = Duration::from_secs(2);

/// Checks of a device that takes nothing, [`PACE_WAIT`] apart, until the drain ends: 10 s.
const WAITED_MAX: u32 = 200;

/// The state of one drain. It runs beside paging out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Drain {
    /// Whether nothing more is requested.
    pub over: bool,
    /// The last request after which the kernel took swap cache.
    asked: Bytes,
    /// Requests in a row after which the kernel took other memory.
    missed: u32,
    /// Checks in a row at which the device had taken nothing.
    waited: u32,
    /// Time since boot before which nothing is requested.
    not_before: Duration,
}

impl Drain {
    /// Whether the device has taken nothing for too long.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        self.waited > WAITED_MAX
    }

    /// One request. `last` is whether all pages are paged out. Returns how long to wait before the next step; `None` if paging
    /// out may continue.
    pub(super) fn step(&mut self, job: &mut Job, context: &mut Context, last: bool) -> kernel::Result<Option<Duration>> {
        let now = context.clock.now();
        let before = count(job, context)?;
        let clean = before.cached - before.writeback;
        if last && before.cached < REQUEST_MIN {
            self.over = true;
            return Ok(None);
        }
        if !last && before.cached < CACHED_MAX {
            return Ok(None);
        }
        if now < self.not_before {
            return Ok(Some(self.not_before - now));
        }
        if clean < REQUEST_MIN {
            self.waited += 1;
            return Ok(Some(PACE_WAIT));
        }
        let ask = Bytes(self.asked.0.saturating_mul(2)).clamp(REQUEST_FIRST, REQUEST_MAX).min(Bytes(clean.0 / 2));
        reclaim(job, context, ask, AnonFileBias::Swappiness(ANON_FIRST))?;
        let after = count(job, context)?;
        let offloaded = (after.swapped - before.swapped).to_pages(kernel::page_size());
        charge(job, context, &before, &after);
        job.account_reclaim(offloaded, before.file - after.file);
        let others = (before.anon + before.file) - (after.anon + after.file);
        if others > before.cached - after.cached {
            let missed = self.missed + 1;
            *self = Self { over: missed >= MISSED_MAX, missed, not_before: now + MISSED_WAIT, ..Self::default() };
        } else {
            *self = Self { asked: ask, ..Self::default() };
        }
        Ok(Some(Duration::ZERO))
    }
}

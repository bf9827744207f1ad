//! No request for swap-backed memory takes page cache instead.
//!
//! A request with swappiness 200 prefers anonymous memory. Where the kernel cannot swap, it reclaims page cache to the amount that was
//! asked for: swap space is full, `memory.swap.max` of the job or an ancestor is reached, or zswap refuses pages that may not be
//! written to the device: its pool is full, or `memory.zswap.max` is reached. (MGLRU does the same with `swappiness=max` before a fix of August 2026.) So a request is limited to the room in
//! swap beforehand ([`limit`]), and what left DRAM is compared by kind afterwards ([`took_page_cache`]), because not all of the kernel's
//! reasons can be read.

use kernel::{Result, meminfo};
use units::{Bytes, Pages};

use crate::context::Context;
use crate::controllers::tiering::refused::PERIODS;
use crate::job::Job;
use crate::reclaim::{Counted, stays_in_zswap};

/// The kernel may reclaim twice what it was asked for.
const OVERSHOOT: u64 = 2;

/// Less room than this is not used: the kernel allocates swap slots in clusters for each CPU, so the last ones are not free to all.
const ROOM_MIN: Bytes = Bytes::mib(1);

/// Less room than this in zswap is not used: a request would be for fewer pages than the kernel isolates at once.
const ZSWAP_ROOM_MIN: Bytes = Bytes(512 << 10);

/// The largest request for swap-backed memory of a job, up to `wanted`; zero if swap has no room for it beyond the share that stays
/// free on the machine ([`Killers::swap_reserve`](crate::killers::Killers::swap_reserve)).
///
/// # Errors
/// Any error of the cgroup's files or `/proc/meminfo`.
pub fn limit(job: &Job, context: &Context, wanted: Pages) -> Result<Pages> {
    let free = meminfo::read(&context.kernel.roots)?.swap_free;
    let room = job.cgroup.swap_room()?.min(free);
    let usable = if room < ROOM_MIN { Bytes::ZERO } else { room.min(free - context.machine.swap_reserve_bytes) };
    // Compressed, a page takes no more than its size.
    let in_zswap = if stays_in_zswap(job, context)? { job.cgroup.zswap_room()? } else { Bytes(u64::MAX) };
    let usable = if in_zswap < ZSWAP_ROOM_MIN { Bytes::ZERO } else { usable.min(in_zswap) };
    let most = Bytes(usable.0 / OVERSHOOT);
    Ok(wanted.min(most.to_pages(kernel::page_size())))
}

/// Notes that swap has no room for a job's memory.
pub fn is_full(job: &mut Job, context: &mut Context) {
    let now = context.clock.now();
    if !job.tiering.refused.holds(now) {
        job.tiering.refused.rest_at_once(now, context.config.agent.control_period);
        let what = format!(
            "swap has no room: memory.swap.max or memory.zswap.max of the job or of a cgroup above it is reached, or the swap devices are \
             full; tried again in {PERIODS} control periods"
        );
        context.event(Some(job.path()), what);
    }
}

/// Notes what a request for `asked` of a job's swap-backed memory took. Returns whether the plan must end, because it was page cache.
pub fn took_page_cache(job: &mut Job, context: &mut Context, asked: Bytes, before: &Counted, after: &Counted) -> bool {
    let Some(file) = job.tiering.refused.note(asked, after.swapped - before.swapped, before.file - after.file) else { return false };
    let now = context.clock.now();
    if job.tiering.refused.rest(now, context.config.agent.control_period) {
        let what = format!(
            "asked for {asked} of anonymous memory, the kernel took {file} of page cache instead: swap or zswap is full or refuses it; \
             nothing is asked for in the next {PERIODS} control periods"
        );
        context.event(Some(job.path()), what);
    }
    true
}

//! Moving a job's memory out, with the kernel's counters read before and after: what several controllers share.

use kernel::zswap::Zswap;
use policy::balance::AnonFileBias;
use policy::incompressible::Stored;
use units::{Bytes, Pages};

use crate::actuators::reclaimer::Request;
use crate::context::Context;
use crate::controllers::tiering;
use crate::job::Job;
use crate::savings::Requests;

/// The kernel's counters before or after a step.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    /// `memory.current`.
    current: Bytes,
    /// Charged to swap, including zswap, without what zswap refused: that stays in DRAM.
    pub swapped: Bytes,
    /// DRAM of the compressed pool.
    pool: Bytes,
    /// Uncompressed size of what the pool holds.
    zswapped: Bytes,
    /// Of `zswapped` and of the pool, pages that zswap stored as they are because they did not compress (Linux 7.1).
    incompressible: Bytes,
    /// What zswap has written back to a device, ever.
    written_back: Bytes,
    /// Anonymous and shared memory.
    pub anon: Bytes,
    /// Shared memory.
    shared: Bytes,
    /// Page cache.
    pub file: Bytes,
    /// The swap cache, without what zswap refused.
    pub cached: Bytes,
    /// The swap cache of a job whose pages may not go past zswap: what zswap refused, and what was swapped in.
    pub refused: Bytes,
    /// Swap-backed memory in DRAM that no process maps.
    pub unmapped: Bytes,
    /// Memory under writeback, to swap devices as well.
    pub writeback: Bytes,
    /// Pages that zswap refused, ever.
    rejected: u64,
}

/// Reads the counters.
///
/// # Errors
/// Any error of the cgroup's files.
pub fn count(job: &Job, context: &Context) -> kernel::Result<Counted> {
    let stat = job.cgroup.stat()?;
    let in_cache = stat.swapcached.unwrap_or_default();
    // Where pages may go to a device, they are on their way there, and leave DRAM later.
    let (cached, refused) = if stays_in_zswap(job, context)? { (Bytes::ZERO, in_cache) } else { (in_cache, Bytes::ZERO) };
    let rejected = Zswap::probe(&context.kernel.roots).and_then(|zswap| zswap.rejected()).unwrap_or_default();
    Ok(Counted {
        current: job.cgroup.current()?,
        swapped: job.cgroup.swap_current()?.unwrap_or_default() - refused,
        pool: stat.zswap.unwrap_or_default(),
        zswapped: stat.zswapped.unwrap_or_default(),
        incompressible: stat.zswap_incomp.unwrap_or_default(),
        written_back: Pages(stat.zswpwb.unwrap_or(0)).to_bytes(kernel::page_size()),
        // Shared memory is swapped, although the kernel accounts it as page cache.
        anon: stat.anon.unwrap_or_default() + stat.shmem.unwrap_or_default(),
        shared: stat.shmem.unwrap_or_default(),
        file: stat.file.unwrap_or_default() - stat.shmem.unwrap_or_default(),
        cached,
        refused,
        unmapped: stat.unmapped(),
        writeback: stat.file_writeback.unwrap_or_default(),
        rejected,
    })
}

/// Whether a page of the job that zswap does not store stays in DRAM. The kernel keeps it in the swap cache then, and charges it to swap.
///
/// # Errors
/// Any error of the cgroup's files.
pub fn stays_in_zswap(job: &Job, context: &Context) -> kernel::Result<bool> {
    Ok(context.machine.zswap_enabled && !job.cgroup.may_pass_zswap()?)
}

/// Accounts what a step moved, and charges what it wrote to the write budgets: at once, so that the next step stays within them.
pub fn charge(job: &mut Job, context: &mut Context, before: &Counted, after: &Counted) {
    account(&mut job.counters.requests, before, after);
    // What zswap took in, and what it wrote back since, was not written past it.
    let compressed = (after.zswapped + after.written_back) - (before.zswapped + before.written_back);
    let now = context.clock.now();
    context.tiers.charge_writes(&context.kernel.roots, now);
    job.account_write(context.tiers.ram_disks().worn_by((after.swapped - before.swapped) - compressed));
    tiering::charge(job, now);
}

/// Accounts what a step moved out of DRAM, by kind.
fn account(requests: &mut Requests, before: &Counted, after: &Counted) {
    let shared = before.shared - after.shared;
    requests.shared += shared;
    requests.anonymous += (before.anon - after.anon) - shared;
    // Pages in the swap cache are still in DRAM, and the compressed copies are charged to the job.
    let out = (after.swapped - after.cached) - (before.swapped - before.cached);
    requests.accounted += (out + (before.file - after.file)) - (after.pool - before.pool);
    requests.freed += before.current - after.current;
}

/// Notes what zswap made of a step, for policy `incompressible`.
pub fn note_stored(job: &mut Job, before: &Counted, after: &Counted) {
    add_stored(&mut job.tiering.stored, before, after);
}

fn add_stored(stored: &mut Stored, before: &Counted, after: &Counted) {
    // A page that is stored as it is saves nothing, like one that was refused.
    let in_vain = after.incompressible - before.incompressible;
    stored.original += (after.zswapped - before.zswapped) - in_vain;
    stored.compressed += (after.pool - before.pool) - in_vain;
    stored.rejected += Pages(after.rejected.saturating_sub(before.rejected)) + in_vain.to_pages(kernel::page_size());
}

/// Asks the kernel to reclaim `amount` of a job's memory, of the kind that `bias` names.
///
/// # Errors
/// If the request cannot be made.
pub fn reclaim(job: &Job, context: &mut Context, amount: Bytes, bias: AnonFileBias) -> kernel::Result<()> {
    let swappiness = match bias {
        AnonFileBias::FileOnly => 0,
        AnonFileBias::Swappiness(swappiness) => swappiness,
    };
    let request = Request { cgroup: job.path(), id: job.cgroup.id(), amount, swappiness };
    let asked = context.kernel.reclaimer.ask(request);
    asked.map_err(|source| kernel::Error::Io { path: job.cgroup.path().to_owned(), op: "reclaim from", source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_zswap_stores_as_they_are_count_as_refused() {
        let mut stored = Stored::default();
        let before = Counted { pool: Bytes::mib(1), zswapped: Bytes::mib(3), rejected: 7, ..Counted::default() };
        // 4 MiB that shrink to one, and 8 that do not shrink; one page was refused.
        let after = Counted { pool: Bytes::mib(10), zswapped: Bytes::mib(15), incompressible: Bytes::mib(8), rejected: 8, ..before };
        add_stored(&mut stored, &before, &after);
        let expected = Stored { original: Bytes::mib(4), compressed: Bytes::mib(1), rejected: Pages(2049) };
        assert_eq!(stored, expected);
        // Some of them returned.
        add_stored(&mut stored, &after, &Counted { incompressible: Bytes::mib(2), zswapped: Bytes::mib(9), pool: Bytes::mib(4), ..after });
        assert_eq!(stored, expected);
    }
}

//! Moving a job's memory out, with the kernel's counters read before and after: what several controllers share.

use kernel::zswap::Zswap;
use policy::balance::AnonFileBias;
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
    /// Charged to swap, including zswap.
    pub swapped: Bytes,
    /// DRAM of the compressed pool.
    pool: Bytes,
    /// Uncompressed size of what the pool holds.
    zswapped: Bytes,
    /// What zswap has written back to a device, ever.
    written_back: Bytes,
    /// Anonymous and shared memory.
    pub anon: Bytes,
    /// Shared memory.
    shared: Bytes,
    /// Page cache.
    pub file: Bytes,
    /// The swap cache.
    pub cached: Bytes,
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
    let rejected = Zswap::probe(&context.kernel.roots).and_then(|zswap| zswap.rejected()).unwrap_or_default();
    Ok(Counted {
        current: job.cgroup.current()?,
        swapped: job.cgroup.swap_current()?.unwrap_or_default(),
        pool: stat.zswap.unwrap_or_default(),
        zswapped: stat.zswapped.unwrap_or_default(),
        written_back: Pages(stat.zswpwb.unwrap_or(0)).to_bytes(kernel::page_size()),
        // Shared memory is swapped, although the kernel accounts it as page cache.
        anon: stat.anon.unwrap_or_default() + stat.shmem.unwrap_or_default(),
        shared: stat.shmem.unwrap_or_default(),
        file: stat.file.unwrap_or_default() - stat.shmem.unwrap_or_default(),
        cached: stat.swapcached.unwrap_or_default(),
        writeback: stat.file_writeback.unwrap_or_default(),
        rejected,
    })
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
    let stored = &mut job.tiering.stored;
    stored.original += after.zswapped - before.zswapped;
    stored.compressed += after.pool - before.pool;
    stored.rejected += Pages(after.rejected.saturating_sub(before.rejected));
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

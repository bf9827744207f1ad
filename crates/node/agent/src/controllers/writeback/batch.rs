//! Carries out a plan, one batch in a turn.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use policy::balance::AnonFileBias;
use units::{Bytes, Pages};

use super::{BATCH_BLOCKS, Plan, Writeback, gate, obstacle};
use crate::actuators::lru::ANON_FIRST;
use crate::actuators::writeback::{Moved, Process, WrittenBack};
use crate::context::{Context, PACE_WAIT};
use crate::controllers::tiering;
use crate::job::Job;
use crate::reclaim::reclaim;
use crate::swap_gate;

/// Swap cache of a plan's batches that waits to be reclaimed; while there is more, no batch begins.
const CACHED_MAX: Bytes = Bytes::mib(2);

/// The least that is worth a request for reclaim.
const REQUEST_MIN: Bytes = Bytes(256 << 10);

/// Turns, [`PACE_WAIT`] apart, that a plan waits for a device that takes nothing: 5 s.
const WAITED_MAX: u32 = 100;

/// What a batch has done.
#[derive(Clone, Copy, Debug, Default)]
struct Batch {
    pages: Pages,
    spilled: bool,
}

impl Writeback {
    /// One batch, or one request that frees the swap cache. Returns what was moved, and how long to wait; an error ends the plan.
    pub(super) fn step_plan(&mut self, job: &mut Job, context: &mut Context, limit: Pages) -> kernel::Result<(Bytes, Duration)> {
        let Some(mut plan) = self.plan.take() else { return Ok((Bytes::ZERO, Duration::ZERO)) };
        if !context.may_act(job) {
            return Ok((Bytes::ZERO, Duration::ZERO));
        }
        if plan.cached >= CACHED_MAX || (plan.left.is_empty() && plan.cached >= REQUEST_MIN) {
            let wait = free(job, context, &mut plan)?;
            self.plan = Some(plan);
            return Ok((Bytes::ZERO, wait));
        }
        let writable = tiering::writable_past(job, context, context.clock.now()).to_pages(kernel::page_size());
        if plan.left.is_empty() || limit.min(writable) == Pages::ZERO || obstacle(job, context)?.is_some() {
            return Ok((Bytes::ZERO, Duration::ZERO));
        }
        let batch = self.batch(job, context, &mut plan, limit.min(writable))?;
        let moved = batch.pages.to_bytes(kernel::page_size());
        plan.cached += moved;
        self.written += moved;
        self.total += moved;
        if batch.spilled {
            self.spilled = true;
            plan.left.clear();
            context.event(
                Some(job.path()),
                "the kernel wrote other memory from zswap to the device; nothing more is moved for now".to_owned(),
            );
        }
        self.plan = Some(plan);
        Ok((moved, Duration::ZERO))
    }

    /// Moves the next blocks, with the job's counters read before and after.
    fn batch(&mut self, job: &mut Job, context: &mut Context, plan: &mut Plan, limit: Pages) -> kernel::Result<Batch> {
        let before = job.cgroup.stat()?;
        swap_gate::open(job, context, limit);
        let mut batch = Batch::default();
        let outcome = gate::with_zswap_closed(job, context, |context| self.move_blocks(job, context, plan, limit, &mut batch));
        swap_gate::close(job, context);
        job.account_own_reads(batch.pages);
        let after = job.cgroup.stat()?;
        // Without a counter nothing can be compared.
        let rose = |before: Option<u64>, after: Option<u64>| before.zip(after).is_none_or(|(before, after)| after > before);
        batch.spilled |= rose(before.zswpwb, after.zswpwb) || rose(before.zswpout, after.zswpout);
        let now = context.clock.now();
        context.tiers.charge_writes(&context.kernel.roots, now);
        // Those that were on the device already are written again or not; they are charged.
        job.account_write(context.tiers.ram_disks().worn_by(batch.pages.to_bytes(kernel::page_size())));
        tiering::charge(job, now);
        outcome.map(|()| batch)
    }

    fn move_blocks(&mut self, job: &Job, context: &Context, plan: &mut Plan, limit: Pages, batch: &mut Batch) -> kernel::Result<()> {
        let roots = &context.kernel.roots;
        let Some(mut written_back) = WrittenBack::open(roots)? else {
            plan.left.clear();
            return Ok(());
        };
        let mut processes: BTreeMap<i32, Option<Process>> = BTreeMap::new();
        for _ in 0..BATCH_BLOCKS {
            let Some((pid, start)) = plan.left.pop() else { break };
            let Some(block) = self.blocks.get_mut(pid, start) else { continue };
            if batch.pages + block.found.pages() > limit {
                break;
            }
            let process = match processes.entry(pid) {
                Entry::Occupied(pinned) => pinned.into_mut(),
                Entry::Vacant(new) => new.insert(Process::pin(roots, pid, job.path())?),
            };
            let Some(process) = process else { continue };
            let Some(Moved { pages, found, spilled }) = process.move_block(&mut written_back, start, block.found)? else { continue };
            batch.pages += pages;
            if let Some(found) = found.filter(|_| !spilled) {
                (block.found, block.written) = (found, true);
            }
            batch.spilled = spilled;
            if spilled {
                break;
            }
        }
        Ok(())
    }
}

/// Frees what the batches have left in the swap cache and the device has taken.
///
/// Half of it is asked for at a time: for nearly all of it, or while the pages are of its youngest generations, the kernel would
/// reclaim other memory. Where it takes page cache all the same, the rest is left to it.
fn free(job: &mut Job, context: &mut Context, plan: &mut Plan) -> kernel::Result<Duration> {
    let before = job.cgroup.stat()?;
    let in_cache = before.swapcached.unwrap_or_default();
    let clean = plan.cached.min(in_cache - before.file_writeback.unwrap_or_default());
    if clean < REQUEST_MIN {
        plan.waited += 1;
        if in_cache < REQUEST_MIN || plan.waited > WAITED_MAX {
            plan.cached = Bytes::ZERO;
        }
        return Ok(PACE_WAIT);
    }
    plan.waited = 0;
    let asked = Bytes(clean.0 / 2);
    reclaim(job, context, asked, AnonFileBias::Swappiness(ANON_FIRST))?;
    plan.cached = plan.cached - asked;
    let after = job.cgroup.stat()?;
    let cache = |stat: &kernel::cgroup::MemoryStat| stat.file.unwrap_or_default() - stat.shmem.unwrap_or_default();
    let file = cache(&before) - cache(&after);
    job.account_reclaim(Pages::ZERO, file);
    if file > in_cache - after.swapcached.unwrap_or_default() {
        plan.cached = Bytes::ZERO;
    }
    Ok(Duration::ZERO)
}

//! Chooses zswap's compressor by what it makes of the jobs' cold pages (`policy::compressor`), while nothing else uses zswap.

use config::Policy;
use kernel::zswap::Zswap;
use policy::compressor::{self, Accepted, Offer};
use policy::tiering::row::Accounting;
use std::path::PathBuf;
use trackers::compressibility::{Family, Measurement};
use units::{Age, Bytes, Millis, RatioPpm};

use super::Agent;
use super::state::{Stored, ZswapCompressor};
use crate::controllers::tiering;
use crate::job::Job;
use crate::now::Now;

/// The value of `zswap.compressor` that leaves the choice to the agent.
const AUTO: &str = "auto";

/// What others may keep in zswap for its compressor to be the agent's choice, as a share of all that is there.
const OTHERS_MAX: RatioPpm = RatioPpm(100_000);

/// Less than this does not count as use of zswap.
const OTHERS_MIN: Bytes = Bytes::mib(4);

/// What compression by the chosen compressor may take of the time of all processors, when most is stored.
const COMPRESS_MAX: RatioPpm = RatioPpm(50_000);

/// Control periods whose highest rate of stores counts.
const STORED_PERIODS: usize = 10;

/// The jobs' pages that zswap holds or may get, with what each compressor would make of them.
#[derive(Debug, Default)]
struct Tried {
    pages: Bytes,
    /// DRAM of what zswap holds of all jobs.
    pool: Bytes,
    /// What the agent has offloaded of all jobs since it has known them.
    offloaded: Bytes,
    offers: [Option<Offer>; 3],
    latency_max_us: Option<u32>,
    /// Whether one of the jobs returns as a whole.
    at_once: bool,
    newest: Millis,
}

impl Tried {
    fn of<'a>(jobs: impl Iterator<Item = &'a Job>) -> Self {
        let mut tried = Self::default();
        for job in jobs {
            tried.pool += job.memory.pool_dram();
            tried.offloaded += job.counters.totals.offloaded;
            tried.at_once |= job.treatment.policy == Policy::Background;
            let in_zswap = job.tiering.tier().is_none_or(|tier| tier.accounting == Accounting::Compressed);
            if let Some(measured) = job.tiering.measured.as_ref().filter(|_| in_zswap) {
                tried.add(job, measured);
            }
        }
        tried
    }

    fn add(&mut self, job: &Job, measured: &Measurement) {
        let cold = job.scan.as_ref().map(|scan| scan.resident.at_least(Age(1)).to_bytes(kernel::page_size()));
        let pages = cold.unwrap_or_default() + job.memory.far;
        self.pages += pages;
        self.newest = self.newest.max(job.tiering.sampled_at_ms.unwrap_or_default());
        let accepted = job.tiering.start().params.latency_max_us;
        self.latency_max_us = Some(self.latency_max_us.map_or(accepted, |least| least.min(accepted)));
        for (offer, family) in self.offers.iter_mut().zip(Family::ALL) {
            let tried = measured.of(family);
            let before = offer.unwrap_or(Offer { stored: Bytes::ZERO, decompress_us: 0, compress_us: 0 });
            *offer = Some(Offer {
                stored: before.stored + Bytes(tried.ratio.share_of(pages.0)),
                decompress_us: before.decompress_us.max(tried.decompress_us),
                compress_us: before.compress_us.max(tried.compress_us),
            });
        }
    }
}

impl Stored {
    /// Pages that were stored after `self` and until `next`, because the kernel was short of memory. What the agent asked for is
    /// bounded by its own processor time, and no task waits for it. Otherwise the memory that is cold when the agent starts, and is
    /// offloaded in one go, would be in a weaker compressor for as long as it stays cold.
    fn for_the_kernel(self, next: Self) -> u64 {
        next.pages.saturating_sub(self.pages).saturating_sub(next.by_agent.saturating_sub(self.by_agent))
    }
}

impl ZswapCompressor {
    /// The longest time to compress a page, by the highest rate at which the kernel stored pages by itself in the last control
    /// periods.
    fn compress_max_us(&mut self, now: Stored) -> u64 {
        if self.stored.len() > STORED_PERIODS {
            self.stored.pop_front();
        }
        self.stored.push_back(now);
        let processors = std::thread::available_parallelism().map_or(1, |processors| processors.get() as u64);
        let of = |(before, after): (&Stored, &Stored)| {
            let time_ms = Millis(u64::try_from(after.at.saturating_sub(before.at).as_millis()).unwrap_or(u64::MAX));
            Accepted::compress_max_us(before.for_the_kernel(*after), time_ms, processors, COMPRESS_MAX)
        };
        let is_period = |(before, after): &(&Stored, &Stored)| after.at > before.at;
        self.stored.iter().zip(self.stored.iter().skip(1)).filter(is_period).map(of).min().unwrap_or(u64::MAX)
    }
}

impl Agent {
    /// The compressor that is in use, or would be if this agent moved memory.
    pub(super) fn family(&self) -> Family {
        self.compressor.chosen.unwrap_or_else(|| tiering::family(&self.context))
    }

    /// Chooses zswap's compressor again, if there are new samples, or leaves it to others that use zswap.
    pub(super) fn choose_compressor(&mut self, now: Now) {
        let (config, machine) = (&self.context.config, &self.context.machine);
        if config.zswap.compressor != AUTO || !tiering::reckons_with_zswap(&self.context) || machine.compressor.is_empty() {
            return;
        }
        // Who else uses zswap is unknown where debugfs is not mounted. No process uses it while it is off.
        if !config.zswap.manage && machine.zswap_enabled && !self.pool_is_known() {
            return;
        }
        let tried = Tried::of(self.jobs.values().map(|entry| &entry.job));
        if !config.zswap.manage && is_used_by_others(machine.pool_bytes, tried.pool) {
            return self.leave_compressor();
        }
        let by_agent = tried.offloaded.to_pages(kernel::page_size()).0;
        let stored = Stored { at: now.since_boot, pages: machine.reclaim.stored_pages, by_agent };
        let compress_max_us = self.compressor.compress_max_us(stored);
        let [Some(lzo), Some(lz4), Some(zstd)] = tried.offers else { return };
        let (offers, used) = ([lzo, lz4, zstd], Family::of_compressor(&machine.compressor));
        // One that takes too much time is replaced at once; the one in its place is kept for as long as any choice.
        let is_slow = self.compressor.changed_at.is_some() && offers[used as usize].compress_us > compress_max_us;
        let recent = self.compressor.changed_at.is_some_and(|then| now.since_boot < then + config.incompressible.retry);
        if !is_slow && (recent || tried.newest <= self.compressor.sampled_at) {
            return;
        }
        self.compressor.sampled_at = tried.newest;
        let latency_max_us = tried.latency_max_us.unwrap_or_default();
        let accepted = Accepted { latency_max_us, at_once: tried.at_once, compress_max_us };
        let chosen = Family::ALL[compressor::choose(&offers, used as usize, tried.pages, accepted)];
        self.compressor.chosen = Some(chosen).filter(|&chosen| chosen != used);
        if chosen != used && !self.context.options.dry_run {
            self.compressor.changed_at = Some(now.since_boot);
            let to = |family: Family| RatioPpm::of(offers[family as usize].stored.0, tried.pages.0).unwrap_or_default();
            self.set_compressor(chosen, (to(used), to(chosen)));
        }
    }

    fn pool_is_known(&self) -> bool {
        let counters = Zswap::probe(&self.context.kernel.roots).and_then(|zswap| zswap.counters());
        counters.is_ok_and(|counters| counters.is_some_and(|counters| counters.pool_total_size.is_some()))
    }

    fn set_compressor(&mut self, chosen: Family, (before, after): (RatioPpm, RatioPpm)) {
        let name = chosen.as_str();
        match self.context.undo.set(&self.compressor_file(), name) {
            Ok(()) => {
                let former = std::mem::replace(&mut self.context.machine.compressor, name.to_owned());
                self.compressor.chosen = None;
                let percent = |ratio: RatioPpm| ratio.as_f64() * 100.0;
                let (after, before) = (percent(after), percent(before));
                let why = format!("cold pages of its jobs shrink to {after:.0} %, and to {before:.0} % by {former}");
                self.context.event(None, format!("zswap compresses by {name} while the agent runs: {why}"));
            }
            Err(error) => self.context.event(None, format!("zswap's compressor cannot be set to {name}: {error}")),
        }
    }

    /// Restores the compressor, if the agent has changed it: others keep pages in zswap, too.
    fn leave_compressor(&mut self) {
        self.compressor.chosen = None;
        if self.compressor.changed_at.take().is_some() && self.context.undo.restore(&self.compressor_file()).is_some() {
            self.context.event(None, "zswap's compressor is restored: other cgroups keep memory in zswap".to_owned());
        }
    }

    fn compressor_file(&self) -> PathBuf {
        self.context.kernel.roots.sys.join("module/zswap/parameters/compressor")
    }
}

/// Whether cgroups that are no jobs keep memory in zswap, by the size of the pool and the jobs' part of it.
fn is_used_by_others(pool: Bytes, of_jobs: Bytes) -> bool {
    let others = pool - of_jobs;
    others > OTHERS_MIN && others.0 > OTHERS_MAX.share_of(pool.0)
}

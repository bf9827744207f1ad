//! Where each job's swap-backed memory goes: chosen by evidence, set in the job's cgroup, undone on exit.

use std::time::Duration;

use kernel::priority::IdlePriority;
use policy::incompressible::{self, Verdict};
use policy::tiering::{self, Choice, Tier, Why};
use policy::veto::Veto;
use units::{Age, Bytes, RatioPpm, millis};

use super::Agent;
use crate::job::Job;
use crate::job::pressed::Costs;
use crate::tiers::{self, Placed};
use trackers::compressibility::{self, Family};

/// Nothing is written to a device for less than this: a request reclaims in batches.
const WRITE_MIN: Bytes = Bytes::mib(1);

/// What compresses to nothing less.
const WHOLE: RatioPpm = RatioPpm(1_000_000);

/// The files of a job's cgroup that say where its memory may go.
const ZSWAP_MAX: &str = "memory.zswap.max";
const WRITEBACK: &str = "memory.zswap.writeback";

impl Agent {
    /// Chooses a job's tier anew and sets it. Returns why nothing swap-backed may leave DRAM, if so.
    pub(super) fn place(&mut self, job: &mut Job, now: Duration) -> Option<Veto> {
        self.book_writes(job, now);
        // A full pool concerns what is to stay in it: the rest goes to a device, or zswap makes room by writing to one.
        let full = self.machine.pool_full;
        if self.machine.no_far_memory.is_some() && !full {
            job.tier = None;
            return Some(Veto::NoFarMemory);
        }
        let compressed = self.compressed(job, now);
        let offer = self.offer(job, now);
        let placed = match tiers::wanted(job.treatment.tier) {
            Some(tier) => Placed { choice: by_operator(tier, &offer), by_operator: true },
            None => {
                let input = tiering::Input { compressed, offer, previous: job.tier.and_then(|placed| placed.tier()) };
                Placed { choice: tiering::choose(&self.config.tiering_for(job.treatment.class), &input), by_operator: false }
            }
        };
        if job.tier.map(|placed| placed.choice) != Some(placed.choice) {
            let (tier, why) = tiers::words(Some(placed));
            self.event(Some(job.path()), format!("tier {}: {why}", tier.unwrap_or("none")));
        }
        job.tier = Some(placed);
        match placed.choice {
            Choice::Use { tier, .. } => {
                if self.may_act(job) {
                    self.realise(job, tier);
                }
                (full && tier == Tier::Zswap).then_some(Veto::NoFarMemory)
            }
            Choice::Hold { why: Why::DoesNotCompress } => Some(Veto::Incompressible),
            Choice::Hold { why: Why::WritesSpent } => Some(Veto::WritesSpent),
            Choice::Hold { .. } => Some(Veto::NoFarMemory),
        }
    }

    /// What the return of a page costs a job.
    pub(super) fn costs_of(&self, job: &Job) -> Costs {
        self.tiers.costs(job.tier.and_then(|placed| placed.tier()))
    }

    /// What may be written to devices for a job now; `None` where its tier writes nothing.
    pub(super) fn writable(&self, job: &Job, now: Duration) -> Option<Bytes> {
        match job.tier.and_then(|placed| placed.tier())? {
            Tier::Zswap => None,
            Tier::Swap | Tier::Both if !self.tiers.offer.device => None,
            Tier::Swap | Tier::Both => {
                let own = job.writes.available(&self.config.swap.job_endurance(), millis(now));
                Some(own.min(self.tiers.writable(now)))
            }
        }
    }

    /// Takes what a job wrote to devices from what it may write.
    pub(super) fn book_writes(&self, job: &mut Job, now: Duration) {
        let bytes = std::mem::take(&mut job.unbooked);
        job.written += bytes;
        job.writes.spend(&self.config.swap.job_endurance(), millis(now), bytes);
    }

    fn offer(&self, job: &Job, now: Duration) -> tiering::Offer {
        let there = self.tiers.offer;
        let own = job.writes.available(&self.config.swap.job_endurance(), millis(now));
        tiering::Offer {
            zswap: there.compressed,
            swap: there.device,
            writeback: there.device && there.shrinker && job.cgroup.zswap_writeback().ok().flatten().is_some(),
            swap_latency_us: self.tiers.swap_us(),
            zswap_latency_us: self.tiers.zswap_us(),
            writes_left: own.min(self.tiers.writable(now)) >= WRITE_MIN,
        }
    }

    /// Has the kernel put a job's memory where it was decided. Where a kernel lacks a file, it does what it always does:
    /// compress first, and write what does not fit or shrink.
    fn realise(&mut self, job: &Job, tier: Tier) {
        if !self.machine.zswap_enabled {
            return;
        }
        let (zswap_max, writeback) = match tier {
            Tier::Zswap => (None, Some("0")),
            Tier::Swap => (Some("0"), None),
            Tier::Both => (None, None),
        };
        for (name, value) in [(ZSWAP_MAX, zswap_max), (WRITEBACK, writeback)] {
            let file = job.cgroup.path().join(name);
            let done = match value {
                Some(value) if file.exists() => self.undo.set(&file, value),
                Some(_) => Ok(()),
                None => {
                    self.undo.restore(&file);
                    Ok(())
                }
            };
            if let Err(error) = done {
                log::warn!("{}: {error}", file.display());
            }
        }
    }

    /// Takes back where a job's memory was sent.
    pub(super) fn release_tier(&mut self, job: &Job) {
        for name in [ZSWAP_MAX, WRITEBACK] {
            self.undo.restore(&job.cgroup.path().join(name));
        }
    }

    /// What a job's cold pages compress to: nothing at all where the kernel's counters or a sample said so.
    ///
    /// A job's first offload is preceded by a sample, so that nothing is compressed in vain to find out; later ones tell
    /// whether its memory has changed.
    fn compressed(&mut self, job: &mut Job, now: Duration) -> Option<RatioPpm> {
        let params = self.config.incompressible.params();
        let (now_ms, page) = (millis(now), kernel::page_size().bytes());
        let stored = std::mem::take(&mut job.stored);
        let (state, mut verdict) = incompressible::step(&params, job.incompressible, now_ms, page, stored, None);
        job.incompressible = state;
        let warmup_ms = job.pressed.as_ref().map_or(job.params.warmup_ms, |pressed| pressed.params.warmup_ms);
        let warm = now_ms.saturating_sub(millis(job.seen_at)) >= warmup_ms;
        let old = job.sampled_at_ms.is_none_or(|then| now_ms.saturating_sub(then) >= params.retry_ms);
        // A sample reads the job's memory: of one that is only looked at, not even that.
        if self.may_act(job)
            && (verdict == Verdict::SampleDue || (warm && old))
            && let Some(sample) = self.sample(job, now_ms)
        {
            let (state, judged) = incompressible::step(&params, job.incompressible, now_ms, page, stored, Some(sample));
            (job.incompressible, verdict) = (state, judged);
            if verdict == Verdict::Incompressible {
                let (bad, all) = (sample.incompressible, sample.pages);
                self.event(Some(job.path()), format!("{bad} of {all} sampled pages do not compress; zswap is not for it"));
            }
        }
        if verdict == Verdict::Compressible { job.compressed } else { Some(WHOLE) }
    }

    /// Compresses some of a job's cold pages as a test; `None` where none can be read.
    fn sample(&mut self, job: &mut Job, now_ms: u64) -> Option<incompressible::Sample> {
        let knobs = &self.config.incompressible;
        let family = Family::of_compressor(&self.machine.compressor);
        let wanted = compressibility::Request {
            threshold: Age(1),
            pages: usize::try_from(knobs.sample_pages).unwrap_or(usize::MAX),
            ratio_max: knobs.ratio,
            family,
        };
        let ages = self.trackers.get(&job.tracker.0).and_then(|tracker| tracker.page_ages());
        let idle = IdlePriority::enter();
        let measured = compressibility::measure(&self.roots, &mut self.walker, &job.pids, ages, &wanted).ok();
        drop(idle);
        let measured = measured.filter(|measured| measured.sample.pages > 0)?;
        let shrunk = measured.of(family);
        job.sampled_at_ms = Some(now_ms);
        job.compressed = Some(shrunk.ratio);
        job.measured = Some(measured);
        self.tiers.decompressed_in(u32::try_from(shrunk.decompress_us).unwrap_or(u32::MAX));
        let of = |family| measured.of(family).ratio;
        let (pages, lzo, lz4, zstd) = (measured.sample.pages, of(Family::Lzo), of(Family::Lz4), of(Family::Zstd));
        log::info!("{}: {pages} cold pages shrink to {lzo} by lzo, {lz4} by lz4, {zstd} by zstd", job.path());
        Some(measured.sample)
    }
}

/// The operator's tier, as far as the machine has it and may write to it.
fn by_operator(tier: Tier, offer: &tiering::Offer) -> Choice {
    let has = match tier {
        Tier::Zswap | Tier::Both => offer.zswap,
        Tier::Swap => offer.swap,
    };
    match tier {
        _ if !has => Choice::Hold { why: Why::NoTier },
        Tier::Swap if !offer.writes_left => Choice::Hold { why: Why::WritesSpent },
        // Warm memory is compressed on; nothing more is written.
        Tier::Both if !offer.swap => Choice::Use { tier: Tier::Zswap, why: Why::NoDevice },
        Tier::Both if !offer.writes_left => Choice::Use { tier: Tier::Zswap, why: Why::WritesSpent },
        Tier::Both if !offer.writeback => Choice::Use { tier, why: Why::NoShrinker },
        tier => Choice::Use { tier, why: Why::OnlyTier },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operators_choice_is_kept_as_far_as_the_machine_goes() {
        let check = |tier, [zswap, swap, writeback, writes_left]: [bool; 4], want: Choice| {
            let offer = tiering::Offer { zswap, swap, writeback, swap_latency_us: None, zswap_latency_us: None, writes_left };
            assert_eq!(by_operator(tier, &offer), want, "{tier:?} {offer:?}");
        };
        let keep = |tier, why| Choice::Use { tier, why };
        let hold = |why| Choice::Hold { why };
        check(Tier::Zswap, [true; 4], keep(Tier::Zswap, Why::OnlyTier));
        check(Tier::Zswap, [true, false, false, false], keep(Tier::Zswap, Why::OnlyTier));
        check(Tier::Zswap, [false, true, true, true], hold(Why::NoTier));
        check(Tier::Swap, [false, true, false, true], keep(Tier::Swap, Why::OnlyTier));
        check(Tier::Swap, [true, false, false, true], hold(Why::NoTier));
        check(Tier::Swap, [true, true, true, false], hold(Why::WritesSpent));
        check(Tier::Both, [true; 4], keep(Tier::Both, Why::OnlyTier));
        check(Tier::Both, [true, true, false, true], keep(Tier::Both, Why::NoShrinker));
        check(Tier::Both, [true, false, false, true], keep(Tier::Zswap, Why::NoDevice));
        check(Tier::Both, [true, true, true, false], keep(Tier::Zswap, Why::WritesSpent));
        check(Tier::Both, [false, true, false, true], hold(Why::NoTier));
    }
}

//! Where each job's swap-backed memory goes: chosen by evidence, set in the job's cgroup, undone on exit.

use std::time::Duration;

use config::Class;
use policy::tiering::{self, Choice, Tier, Why};
use policy::units::{Bytes, RatioPpm};
use policy::veto::Veto;

use super::Agent;
use crate::job::pressed::Costs;
use crate::job::{Job, millis};
use crate::tiers::{self, Placed};

/// Nothing is written to a device for less than this: a request reclaims in batches.
const WRITE_MIN: Bytes = Bytes::mib(1);

/// The files of a job's cgroup that say where its memory may go.
const ZSWAP_MAX: &str = "memory.zswap.max";
const WRITEBACK: &str = "memory.zswap.writeback";

impl Agent {
    /// Chooses a job's tier anew and sets it. Returns why nothing swap-backed may leave DRAM, if so.
    pub(super) fn place(&mut self, job: &mut Job, now: Duration) -> Option<Veto> {
        self.book_writes(job, now);
        if self.machine.no_far_memory.is_some() {
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
                None
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

    /// What a job's cold pages compress to; everything where they were found not to compress.
    fn compressed(&mut self, job: &mut Job, now: Duration) -> Option<RatioPpm> {
        if matches!(job.treatment.class, Class::Off | Class::Observe) {
            return job.compressed;
        }
        if self.compresses(job, now) { job.compressed } else { Some(RatioPpm(1_000_000)) }
    }
}

/// The operator's tier, as far as the machine has it and may write to it.
fn by_operator(tier: Tier, offer: &tiering::Offer) -> Choice {
    let has = match tier {
        Tier::Zswap => offer.zswap,
        Tier::Swap => offer.swap,
        Tier::Both => offer.zswap && offer.swap,
    };
    match tier {
        _ if !has => Choice::Hold { why: Why::NoTier },
        Tier::Swap if !offer.writes_left => Choice::Hold { why: Why::WritesSpent },
        // Warm memory is compressed on; nothing more is written.
        Tier::Both if !offer.writes_left => Choice::Use { tier: Tier::Zswap, why: Why::WritesSpent },
        tier => Choice::Use { tier, why: Why::OnlyTier },
    }
}

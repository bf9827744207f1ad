//! `memory.min` for protected jobs whose `memory.low` the kernel does not keep.
//!
//! In Linux 6.12, MGLRU passes over a cgroup below its `memory.low` once in each round over all cgroups. If it returns to it before it
//! has found enough elsewhere, it reclaims there (`shrink_one()` in `mm/vmscan.c`), and counts that as `low` in `memory.events`; later
//! kernels count such events, too. On a machine that stays short of memory there are several rounds in a second, and working sets are
//! swapped out as without protection. `memory.min` is always kept.
//!
//! It could do harm: an allocation that finds nothing else to reclaim has a process killed, where `memory.low` would have given way.
//! Therefore it is set only where `memory.low` is not enough: the kernel reclaims below it, and what it takes returns at a rate that the
//! job feels ([`Losses`]). And only as far as the kernel can take as much elsewhere: other cgroups have memory whose reclaim frees that
//! much, and swap has room for it besides its reserve. No cgroup above may have a limit, at which its children alone would have to
//! give. Nor while programs grow: on Linux 7.2 a program that grew on a machine that was short of memory was killed in three of nine runs
//! beside a job with `memory.min`, although it had 240 MiB in memory and swap was half empty, and in none beside one with `memory.low`.
//! After a kill it is restored, and not set again for an hour.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use config::Class;
use kernel::cgroup::{self, Cgroup};
use kernel::{meminfo, vmstat};
use units::{Bytes, Pages, RatioPpm, millis};

use super::{claim, cover_ancestors, own_value, setting};
use crate::context::Context;
use crate::context::claims::{Strength, above};
use crate::controllers::slots::Jobs;
use crate::discover::Rules;

/// How often the kernel's counters are compared.
const WAIT: Duration = Duration::from_secs(2);

/// Protection is hardened only if this part of it is left besides.
const SPARE_PARTS: u64 = 4;

/// In a second, one part in this many of a job's protected memory may return after reclaim without being counted as lost. With
/// `memory.low` alone 0.13 % a second returned on Linux 7.2, which keeps it well enough, and 0.4 % and more on 6.12.
const TOLERATED_PARTS: u64 = 512;

/// Protection is hardened once more than one part in this many of it is lost.
const LOST_PARTS: u64 = 64;

/// For so long after a process was killed for lack of memory, protection is not hardened.
const REST_AFTER_KILL: Duration = Duration::from_secs(3600);

/// Programs grow if what only swap can take of them grew by more than one part in this many of the machine's memory between two checks.
const GROWTH_PARTS: u64 = 256;

/// For so long after that, protection is not hard.
const REST_AFTER_GROWTH: Duration = Duration::from_secs(4);

/// The share of what goes to zswap that is expected to stay in DRAM while the pool is empty.
const STORED_SHARE: RatioPpm = RatioPpm(500_000);

/// On a machine with more cgroups than this, what other cgroups could give is not known, and counts as nothing.
const CGROUPS_MAX: usize = 5_000;

/// What the kernel reclaimed, and where it broke a soft protection.
#[derive(Debug, Default)]
pub struct Watch {
    checked: Option<Duration>,
    /// Pages that the kernel reclaimed by itself since boot.
    reclaimed: Option<u64>,
    /// When that last grew, as time since boot.
    reclaimed_at: Option<Duration>,
    /// What protected jobs lost since the kernel was last at rest, by the kernel's id of the cgroup.
    losses: BTreeMap<u64, Losses>,
    /// Jobs that lost more than is tolerated since then.
    broken: BTreeSet<String>,
    /// Memory that only swap can take from programs.
    swap_backed: Option<Bytes>,
    /// When that last grew, as time since boot.
    grew_at: Option<Duration>,
    /// Processes killed for lack of memory since boot.
    kills: Option<u64>,
    /// When that last grew, as time since boot.
    killed_at: Option<Duration>,
}

/// What a protected job loses to the kernel's reclaim.
///
/// Whether the kernel reclaims below the protection says little: of what it takes, most may be memory that is not used. What returns
/// was used. A leaky bucket sums the refaults, and lets out what is tolerated in the same time.
#[derive(Clone, Copy, Debug, Default)]
struct Losses {
    /// `low` of the job's `memory.events`.
    breaks: u64,
    /// Whether it grew since the kernel was last at rest.
    broken: bool,
    /// The job's refaults since its start.
    refaults: Pages,
    /// Refaults beyond what is tolerated.
    lost: Pages,
}

impl Losses {
    /// Takes in the counters after `elapsed`. Returns whether more is lost of a protection of `claimed` than is tolerated.
    fn take_in(&mut self, breaks: u64, refaults: Pages, claimed: Pages, elapsed: Duration) -> bool {
        self.broken |= breaks > self.breaks;
        let tolerated = Pages(claimed.0.saturating_mul(millis(elapsed)) / (1_000 * TOLERATED_PARTS));
        self.lost = self.lost + (refaults - self.refaults) - tolerated;
        (self.breaks, self.refaults) = (breaks, refaults);
        self.broken && self.lost > Pages(claimed.0 / LOST_PARTS)
    }
}

impl Watch {
    /// How long until the next check; `None` if there is nothing to harden or to soften.
    #[must_use]
    pub fn wait(&self, context: &Context) -> Option<Duration> {
        let may_harden = context.config.agent.hard_protection;
        context.claims.jobs(if may_harden { Strength::Soft } else { Strength::Hard }).next()?;
        Some(self.checked.map_or(Duration::ZERO, |last| (last + WAIT).saturating_sub(context.clock.now())))
    }

    /// [`Watch::check`], if it is time.
    pub fn check_if_due(&mut self, jobs: &mut Jobs, context: &mut Context, rules: &Rules) {
        if self.wait(context).is_some_and(|wait| wait == Duration::ZERO) {
            self.check(jobs, context, rules);
        }
    }

    /// Compares the counters: hardens what the kernel breaks, and softens it when the kernel is at rest for a control period, or when
    /// the room is gone that makes it harmless.
    pub fn check(&mut self, jobs: &mut Jobs, context: &mut Context, rules: &Rules) {
        let now = context.clock.now();
        let elapsed = now.saturating_sub(self.checked.replace(now).unwrap_or(now));
        self.read_counters(context, now);
        let why_none = self.why_none(context, now);
        self.note_losses(jobs, context, elapsed);
        if why_none.is_some() {
            self.broken.clear();
            self.losses.values_mut().for_each(|losses| (losses.broken, losses.lost) = (false, Pages::ZERO));
        }
        let granted = if self.broken.is_empty() { BTreeSet::new() } else { self.grant(jobs, context) };
        let held: BTreeSet<String> = context.claims.jobs(Strength::Hard).map(str::to_owned).collect();
        if held == granted {
            return;
        }
        for path in held.difference(&granted) {
            soften(path, jobs, context, why_none.unwrap_or("other cgroups or swap could run out, or a cgroup above has a limit"));
        }
        for path in granted.difference(&held) {
            harden(path, jobs, context);
        }
        context.flush_settings();
        cover_ancestors(jobs, context, rules);
        context.flush_settings();
        context.publish_due = true;
    }

    /// Notes whether the kernel reclaimed by itself since the last check, whether it killed, and whether programs grew.
    fn read_counters(&mut self, context: &Context, now: Duration) {
        let Ok(stat) = vmstat::read(&context.kernel.roots) else { return };
        let reclaimed = stat.pgsteal_kswapd.unwrap_or(0).saturating_add(stat.pgsteal_direct.unwrap_or(0));
        if self.reclaimed.replace(reclaimed).is_some_and(|before| before != reclaimed) {
            self.reclaimed_at = Some(now);
        }
        let kills = stat.oom_kill.unwrap_or(0);
        if self.kills.replace(kills).is_some_and(|before| before != kills) {
            self.killed_at = Some(now);
        }
        let Ok(info) = meminfo::read(&context.kernel.roots) else { return };
        let grew = self
            .swap_backed
            .replace(info.swap_backed())
            .is_some_and(|before| info.swap_backed() - before > Bytes(info.total.0 / GROWTH_PARTS));
        if grew {
            self.grew_at = Some(now);
        }
    }

    /// Why no protection may be hard now.
    fn why_none(&self, context: &Context, now: Duration) -> Option<&'static str> {
        let within = |event: Option<Duration>, time: Duration| event.is_some_and(|at| now < at + time);
        if !context.config.agent.hard_protection {
            return Some("agent.hard_protection is false");
        }
        if within(self.killed_at, REST_AFTER_KILL) {
            return Some("a process was killed for lack of memory; memory.low alone for an hour");
        }
        if within(self.grew_at, REST_AFTER_GROWTH) {
            return Some("programs grow, and the kernel must find memory for them");
        }
        (!within(self.reclaimed_at, context.config.agent.control_period)).then_some("the kernel no longer reclaims")
    }

    fn note_losses(&mut self, jobs: &Jobs, context: &Context, elapsed: Duration) {
        let mut losses = BTreeMap::new();
        for path in context.claims.jobs(Strength::Soft) {
            let (Some(entry), Some(claimed)) = (jobs.get(path), context.claims.of(Strength::Soft, path)) else { continue };
            let cgroup = &entry.job.cgroup;
            let (Ok(events), Ok(stat)) = (cgroup.events(), cgroup.stat()) else { continue };
            let refaults = stat.workingset_refault_anon.unwrap_or(0).saturating_add(stat.workingset_refault_file.unwrap_or(0));
            // What was counted before the first check is not known to be recent.
            let new = Losses { breaks: events.low, refaults: Pages(refaults), ..Losses::default() };
            let mut of_job = self.losses.get(&cgroup.id()).copied().unwrap_or(new);
            if of_job.take_in(events.low, Pages(refaults), claimed.to_pages(kernel::page_size()), elapsed) {
                self.broken.insert(path.to_owned());
            }
            losses.insert(cgroup.id(), of_job);
        }
        self.losses = losses;
    }

    /// The jobs whose protection may be hard now, of those where it was broken: first those of the class that tolerates least.
    fn grant(&mut self, jobs: &Jobs, context: &Context) -> BTreeSet<String> {
        self.broken.retain(|path| context.claims.of(Strength::Soft, path).is_some() && jobs.contains_key(path));
        let mut left = room(context, &self.broken);
        let mut wanted: Vec<&String> = self.broken.iter().collect();
        wanted.sort_by_key(|path| jobs.get(*path).map_or(Class::Aggressive, |entry| entry.job.treatment.class));
        let mut granted = BTreeSet::new();
        for path in wanted {
            let claimed = context.claims.of(Strength::Soft, path).unwrap_or_default();
            // A new one needs some room to spare, so that it is not given and taken back in turn.
            let spare = if context.claims.of(Strength::Hard, path).is_some() { Bytes::ZERO } else { Bytes(claimed.0 / SPARE_PARTS) };
            if claimed + spare <= left && !has_limit_above(jobs, path) {
                left = left - claimed;
                granted.insert(path.clone());
            }
        }
        granted
    }
}

fn harden(path: &str, jobs: &Jobs, context: &mut Context) {
    let (Some(entry), Some(in_use)) = (jobs.get(path), context.claims.of(Strength::Soft, path)) else { return };
    claim(&entry.job, context, Strength::Hard, in_use);
    if context.claims.of(Strength::Hard, path).is_some() {
        let what = format!("memory.min protects {in_use}: the kernel reclaimed in spite of memory.low, and what it took returned");
        context.event(Some(path), what);
    }
}

fn soften(path: &str, jobs: &Jobs, context: &mut Context, why: &str) {
    context.claims.remove(Strength::Hard, path);
    let Some(entry) = jobs.get(path) else { return };
    context.undo.restore(&entry.job.cgroup.path().join(Strength::Hard.file()));
    context.event(Some(path), format!("memory.min is restored: {why}"));
}

/// Whether a cgroup above a job has a limit, or cannot be read.
fn has_limit_above(jobs: &Jobs, path: &str) -> bool {
    // The first level is the job itself.
    jobs.get(path).is_none_or(|entry| entry.job.cgroup.limit_levels().map_or(true, |levels| levels.len() > 1))
}

/// What the kernel could reclaim of a cgroup.
#[derive(Clone, Copy, Debug, Default)]
struct Reclaimable {
    swap_backed: Bytes,
    cache: Bytes,
}

/// How much the kernel can free elsewhere: what cgroups outside of `jobs` have that can be reclaimed, without what stays in DRAM of it
/// in zswap, and no more than fits in swap.
fn room(context: &Context, jobs: &BTreeSet<String>) -> Bytes {
    let Ok(info) = meminfo::read(&context.kernel.roots) else { return Bytes::ZERO };
    let swap = info.swap_free - context.machine.swap_reserve_bytes;
    let names = cgroup::list(&context.kernel.cgroups, CGROUPS_MAX).unwrap_or_default();
    if names.len() == CGROUPS_MAX {
        return Bytes::ZERO;
    }
    let freed = freed(context);
    let mut elsewhere = Bytes::ZERO;
    let mut children: BTreeMap<&str, Reclaimable> = BTreeMap::new();
    // A parent is listed before its children.
    for name in names.iter().rev() {
        let below = children.remove(name.as_str());
        let given = if jobs.contains(name) { Reclaimable::default() } else { reclaimable(context, name, below).unwrap_or_default() };
        match above(name).next() {
            Some(parent) => {
                let sum = children.entry(parent).or_default();
                (sum.swap_backed, sum.cache) = (sum.swap_backed + given.swap_backed, sum.cache + given.cache);
            }
            // `memory.min` is in effect up to that of the cgroup at the top of the path.
            None => {
                let kept = operators_min(context, name);
                let cache = given.cache - kept;
                let swap_backed = given.swap_backed - (kept - given.cache);
                elsewhere += cache + Bytes(freed.share_of(swap_backed.0));
            }
        }
    }
    swap.min(elsewhere)
}

/// The share of swap-backed memory that its reclaim frees: in zswap a part of it stays in DRAM, as a share of what is stored now.
fn freed(context: &Context) -> RatioPpm {
    let machine = &context.machine;
    if !machine.zswap_enabled {
        return RatioPpm::ONE;
    }
    let stays = RatioPpm::of(machine.pool_bytes.0, machine.stored_bytes.0).unwrap_or(STORED_SHARE);
    RatioPpm(RatioPpm::ONE.0.saturating_sub(stays.0))
}

/// What the kernel could reclaim of a cgroup: that of its children, `below`, or without any its own. What may not be swapped at one
/// level may not be at those below.
fn reclaimable(context: &Context, name: &str, below: Option<Reclaimable>) -> kernel::Result<Reclaimable> {
    let cgroup = Cgroup::open(&context.kernel.cgroups, name)?;
    let whole = match below {
        Some(below) => below,
        None => {
            let stat = cgroup.stat()?;
            // Shared memory is on these lists, locked memory is not.
            let swap_backed = stat.inactive_anon.unwrap_or_default() + stat.active_anon.unwrap_or_default();
            Reclaimable { swap_backed, cache: stat.reclaimable() }
        }
    };
    Ok(Reclaimable { swap_backed: whole.swap_backed.min(cgroup.own_swap_room()?), ..whole })
}

/// What the operator has the kernel keep of a cgroup.
fn operators_min(context: &Context, name: &str) -> Bytes {
    let Ok(cgroup) = Cgroup::open(&context.kernel.cgroups, name) else { return Bytes::ZERO };
    let usage = cgroup.current().unwrap_or_default();
    let file = cgroup.path().join(Strength::Hard.file());
    setting(&cgroup, Strength::Hard).map_or(usage, |current| own_value(context, &file, current).min(usage))
}

//! `memory.min` for protected jobs whose `memory.low` the kernel does not keep.
//!
//! In Linux 6.12, MGLRU passes over a cgroup below its `memory.low` once in each round over all cgroups. If it returns to it before it
//! has found enough elsewhere, it reclaims there (`shrink_one()` in `mm/vmscan.c`), and counts that as `low` in `memory.events`; later
//! kernels count such events, too. On a machine that stays short of memory there are several rounds in a second, and working sets are
//! swapped out as without protection. `memory.min` is always kept.
//!
//! It could do harm: an allocation that finds nothing else to reclaim has a process killed, where `memory.low` would have given way.
//! Therefore it is set only while the kernel reclaims below `memory.low`, and only as far as it can take as much elsewhere: other
//! cgroups have that much which can be reclaimed, and swap has room for it besides its reserve. No cgroup above may have a limit, at
//! which its children alone would have to give.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use config::Class;
use kernel::cgroup::{self, Cgroup, CgroupRoot, Limit};
use kernel::vmstat;
use units::Bytes;

use super::{claim, cover_ancestors, own_value, setting};
use crate::context::Context;
use crate::context::claims::{Strength, above};
use crate::controllers::slots::Jobs;
use crate::discover::Rules;

/// How often the kernel's counters are compared.
const WAIT: Duration = Duration::from_secs(2);

/// Protection is hardened only if this part of it is left besides.
const SPARE_PARTS: u64 = 4;

/// On a machine with more cgroups than this, what other cgroups could give is not known, and counts as nothing.
const CGROUPS_MAX: usize = 5_000;

/// What the kernel reclaimed, and where it broke a soft protection.
#[derive(Debug, Default)]
pub struct Watch {
    checked: Option<Duration>,
    /// Memory that the kernel reclaimed by itself since boot.
    reclaimed: Option<Bytes>,
    /// When that last grew, as time since boot.
    reclaimed_at: Option<Duration>,
    /// `low` of the jobs' `memory.events`, by the kernel's id of the cgroup.
    breaks: BTreeMap<u64, u64>,
    /// Jobs below whose protection the kernel reclaimed since it was last at rest.
    broken: BTreeSet<String>,
}

impl Watch {
    /// How long until the next check; `None` if no job is protected.
    #[must_use]
    pub fn wait(&self, context: &Context) -> Option<Duration> {
        context.claims.jobs(Strength::Soft).next()?;
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
        self.checked = Some(now);
        let reclaims = self.kernel_reclaims(context, now);
        if reclaims {
            self.note_breaks(jobs, context);
        }
        let resting = self.reclaimed_at.is_none_or(|last| now >= last + context.config.agent.control_period);
        if resting || !context.config.agent.hard_protection {
            self.broken.clear();
        }
        let granted = if self.broken.is_empty() { BTreeSet::new() } else { self.grant(jobs, context) };
        let held: BTreeSet<String> = context.claims.jobs(Strength::Hard).map(str::to_owned).collect();
        if held == granted {
            return;
        }
        for path in held.difference(&granted) {
            soften(path, jobs, context, if resting { "the kernel no longer reclaims" } else { "other memory or swap could run out" });
        }
        for path in granted.difference(&held) {
            harden(path, jobs, context);
        }
        context.flush_settings();
        cover_ancestors(jobs, context, rules);
        context.flush_settings();
        context.publish_due = true;
    }

    /// Whether the kernel reclaimed by itself since the last check.
    fn kernel_reclaims(&mut self, context: &Context, now: Duration) -> bool {
        let Ok(stat) = vmstat::read(&context.kernel.roots) else { return false };
        let pages = stat.pgsteal_kswapd.unwrap_or(0).saturating_add(stat.pgsteal_direct.unwrap_or(0));
        let reclaimed = Bytes(pages.saturating_mul(kernel::page_size().bytes()));
        let grew = self.reclaimed.replace(reclaimed).is_some_and(|before| before != reclaimed);
        if grew {
            self.reclaimed_at = Some(now);
        }
        grew
    }

    fn note_breaks(&mut self, jobs: &Jobs, context: &Context) {
        let mut breaks = BTreeMap::new();
        for path in context.claims.jobs(Strength::Soft) {
            let Some(entry) = jobs.get(path) else { continue };
            let Ok(events) = entry.job.cgroup.events() else { continue };
            let id = entry.job.cgroup.id();
            if self.breaks.get(&id).is_some_and(|&before| events.low > before) {
                self.broken.insert(path.to_owned());
            }
            breaks.insert(id, events.low);
        }
        self.breaks = breaks;
    }

    /// The jobs whose protection may be hard now, of those where it was broken: first those of the class that tolerates least.
    fn grant(&mut self, jobs: &Jobs, context: &Context) -> BTreeSet<String> {
        self.broken.retain(|path| context.claims.of(Strength::Soft, path).is_some() && jobs.contains_key(path));
        let mut left = room(&context.kernel.cgroups, context, &self.broken);
        let mut wanted: Vec<&String> = self.broken.iter().collect();
        wanted.sort_by_key(|path| jobs.get(*path).map_or(Class::Aggressive, |entry| entry.job.treatment.class));
        let mut granted = BTreeSet::new();
        for path in wanted {
            let claimed = context.claims.of(Strength::Soft, path).unwrap_or_default();
            // A new one needs some room to spare, so that it is not given and taken back in turn.
            let spare = if context.claims.of(Strength::Hard, path).is_some() { Bytes::ZERO } else { Bytes(claimed.0 / SPARE_PARTS) };
            if claimed + spare <= left && !is_limited(&context.kernel.cgroups, path) {
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
        let what = format!("memory.min protects {in_use}: the kernel reclaimed in spite of memory.low");
        context.event(Some(path), what);
    }
}

fn soften(path: &str, jobs: &Jobs, context: &mut Context, why: &str) {
    context.claims.remove(Strength::Hard, path);
    let Some(entry) = jobs.get(path) else { return };
    context.undo.restore(&entry.job.cgroup.path().join(Strength::Hard.file()));
    context.event(Some(path), format!("memory.min is restored: {why}"));
}

/// Whether a cgroup above has a limit of its own, or cannot be read.
fn is_limited(cgroups: &CgroupRoot, path: &str) -> bool {
    let free = |limit: kernel::Result<Limit>| limit.is_ok_and(|limit| limit == Limit::Max);
    above(path).any(|path| !Cgroup::open(cgroups, path).is_ok_and(|cgroup| free(cgroup.max()) && free(cgroup.high())))
}

/// How much the kernel can take elsewhere: what cgroups outside of `jobs` have that can be reclaimed, and no more than fits in swap.
fn room(cgroups: &CgroupRoot, context: &Context, jobs: &BTreeSet<String>) -> Bytes {
    let Ok(info) = kernel::meminfo::read(&context.kernel.roots) else { return Bytes::ZERO };
    let swap = info.swap_free - context.machine.swap_reserve_bytes;
    let Ok(names) = cgroup::list(cgroups, CGROUPS_MAX) else { return Bytes::ZERO };
    if names.len() == CGROUPS_MAX {
        return Bytes::ZERO;
    }
    let within = |name: &str| jobs.contains(name) || above(name).any(|path| jobs.contains(path));
    let parents: BTreeSet<&str> = names.iter().filter_map(|name| above(name).next()).collect();
    let leaves = names.iter().map(String::as_str).filter(|name| !parents.contains(name) && !within(name));
    let elsewhere: Bytes = leaves.map(|name| reclaimable(cgroups, name)).sum();
    // A cgroup's `memory.min` is in effect up to that of the one at the top of its path.
    let tops = names.iter().map(String::as_str).filter(|name| above(name).next().is_none() && !within(name));
    let kept = tops.map(|name| operators_min(cgroups, context, name)).sum();
    swap.min(elsewhere - kept)
}

/// What the operator has the kernel keep of a cgroup.
fn operators_min(cgroups: &CgroupRoot, context: &Context, name: &str) -> Bytes {
    let Ok(cgroup) = Cgroup::open(cgroups, name) else { return Bytes::ZERO };
    let usage = cgroup.current().unwrap_or_default();
    let file = cgroup.path().join(Strength::Hard.file());
    setting(&cgroup, Strength::Hard).map_or(usage, |current| own_value(context, &file, current).min(usage))
}

/// What the kernel could reclaim of a cgroup without children: page cache, and anonymous memory if it may be swapped out.
fn reclaimable(cgroups: &CgroupRoot, name: &str) -> Bytes {
    let Ok(cgroup) = Cgroup::open(cgroups, name) else { return Bytes::ZERO };
    let Ok(stat) = cgroup.stat() else { return Bytes::ZERO };
    let anon = stat.anon.unwrap_or_default() + stat.shmem.unwrap_or_default();
    let cache = stat.file.unwrap_or_default() - stat.shmem.unwrap_or_default();
    // What cannot be swapped at one level cannot be at those below.
    let swap = std::iter::once(name).chain(above(name)).map(|name| swap_left(cgroups, name)).min().unwrap_or_default();
    (anon.min(swap) + cache) - stat.unevictable.unwrap_or_default()
}

fn swap_left(cgroups: &CgroupRoot, name: &str) -> Bytes {
    let Ok(cgroup) = Cgroup::open(cgroups, name) else { return Bytes::ZERO };
    match cgroup.swap_max() {
        Ok(Some(Limit::Max)) => Bytes(u64::MAX),
        Ok(Some(Limit::Bytes(max))) => max - cgroup.swap_current().ok().flatten().unwrap_or_default(),
        Ok(None) | Err(_) => Bytes::ZERO,
    }
}

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
use kernel::cgroup::{self, Cgroup};
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
    /// Pages that the kernel reclaimed by itself since boot.
    reclaimed: Option<u64>,
    /// When that last grew, as time since boot.
    reclaimed_at: Option<Duration>,
    /// `low` of the jobs' `memory.events`, by the kernel's id of the cgroup.
    breaks: BTreeMap<u64, u64>,
    /// Jobs below whose protection the kernel reclaimed since it was last at rest.
    broken: BTreeSet<String>,
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
        self.checked = Some(now);
        let reclaims = self.kernel_reclaims(context, now);
        if reclaims {
            self.note_breaks(jobs, context);
        }
        let resting = self.reclaimed_at.is_none_or(|last| now >= last + context.config.agent.control_period);
        let why_none = match (context.config.agent.hard_protection, resting) {
            (false, _) => Some("agent.hard_protection is false"),
            (true, true) => Some("the kernel no longer reclaims"),
            (true, false) => None,
        };
        if why_none.is_some() {
            self.broken.clear();
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

    /// Whether the kernel reclaimed by itself since the last check.
    fn kernel_reclaims(&mut self, context: &Context, now: Duration) -> bool {
        let Ok(stat) = vmstat::read(&context.kernel.roots) else { return false };
        let reclaimed = stat.pgsteal_kswapd.unwrap_or(0).saturating_add(stat.pgsteal_direct.unwrap_or(0));
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

/// How much the kernel can take elsewhere: what cgroups outside of `jobs` have that can be reclaimed, and no more than fits in swap.
fn room(context: &Context, jobs: &BTreeSet<String>) -> Bytes {
    let Ok(info) = kernel::meminfo::read(&context.kernel.roots) else { return Bytes::ZERO };
    let swap = info.swap_free - context.machine.swap_reserve_bytes;
    let names = cgroup::list(&context.kernel.cgroups, CGROUPS_MAX).unwrap_or_default();
    if names.len() == CGROUPS_MAX {
        return Bytes::ZERO;
    }
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
            None => elsewhere += (given.swap_backed + given.cache) - operators_min(context, name),
        }
    }
    swap.min(elsewhere)
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

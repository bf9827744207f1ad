//! `memory.low` for the working sets of jobs, and for the cgroups above them; `memory.min` where the kernel does not keep it
//! (`hard.rs`).
//!
//! The kernel bounds a cgroup's protection by that of each ancestor, and divides an ancestor's among its children by their claims
//! (`kernel::cgroup::ProtectionTree`). So each ancestor needs what all of its children claim, those that are no jobs included. All
//! values are on the undo list. An ancestor's value covers its children only; it never falls below the operator's own.

use std::collections::BTreeMap;
use std::path::PathBuf;

use config::Class;
use kernel::cgroup::{Cgroup, Limit, ProtectionTree};
use trackers::ages::Kind;
use units::{Age, Bytes, Pages};

use crate::context::Context;
use crate::context::claims::Strength;
use crate::controllers::slots::{Entry, Jobs};
use crate::discover::Rules;
use crate::job::Job;

pub mod hard;

/// A setting is lowered only if it is more than one part in this many above what is required: each change is first written to the
/// undo list on disk.
const CHANGE_PARTS: u64 = 8;

/// It is raised if it is more than one part in this many below. What is missing is reclaimed first when the machine runs short.
const MISSING_PARTS: u64 = 64;

/// While the machine is short of memory, a claim falls by at most one part in this many in a control period: what was reclaimed of a
/// working set does not count as used, so that protection would give way to the reclaim that it is against.
const HELD_PARTS: u64 = 256;

/// An ancestor is given one part of this many more than its children claim, because claims grow with usage between two periods.
const MARGIN_PARTS: u64 = 16;

/// Protects a job's working set while the machine runs out of memory (the soft limit of SDFM section 5.1): the swap-backed pages
/// in use, the page cache in use, and what the kernel holds for the job. Its ancestors follow in [`cover_ancestors`].
pub fn protect(job: &Job, context: &mut Context, working_set: Pages) {
    // The lowest class gives memory first.
    if !context.config.agent.protect_working_set || job.treatment.class == Class::Aggressive {
        return release(job, context);
    }
    let in_use = working_set.to_bytes(kernel::page_size()) + beside_working_set(job, context);
    claim(job, context, Strength::Soft, in_use);
    if context.claims.of(Strength::Hard, job.path()).is_some() {
        claim(job, context, Strength::Hard, in_use);
    }
}

/// Has a job claim what it uses, and at least what the operator gave it.
fn claim(job: &Job, context: &mut Context, strength: Strength, in_use: Bytes) {
    let Some(current) = setting(&job.cgroup, strength) else { return };
    let file = job.cgroup.path().join(strength.file());
    // The operator's own protection is never lowered.
    let own = own_value(context, &file, current);
    let held = context.claims.of(strength, job.path()).filter(|_| context.machine.is_short()).unwrap_or_default();
    let required = in_use.max(held - Bytes(held.0.div_ceil(HELD_PARTS))).max(own);
    context.claims.insert(strength, job.path(), required);
    let (missing, spare) = (required - current, current - required);
    if missing.0 > required.0 / MISSING_PARTS || spare.0 > current.0 / CHANGE_PARTS {
        set(context, file, required, own);
    }
}

/// What a cgroup has; `None` if it is removed, or has `max`, to which nothing can be added.
fn setting(cgroup: &Cgroup, strength: Strength) -> Option<Bytes> {
    let limit = match strength {
        Strength::Soft => cgroup.low(),
        Strength::Hard => cgroup.min(),
    };
    match limit {
        Ok(Limit::Bytes(bytes)) => Some(bytes),
        Ok(Limit::Max) | Err(_) => None,
    }
}

/// Restores a job's own values. Its ancestors follow in [`cover_ancestors`].
pub fn release(job: &Job, context: &mut Context) {
    for strength in Strength::ALL {
        context.claims.remove(strength, job.path());
        context.undo.restore(&job.cgroup.path().join(strength.file()));
    }
}

/// The protection that the operator gave a job, whichever is larger; what the agent set does not count.
///
/// # Errors
/// Any error of the cgroup's files.
pub fn operators(job: &Job, context: &Context) -> kernel::Result<Bytes> {
    let own = |strength: Strength, limit: Limit| match limit {
        Limit::Bytes(current) => own_value(context, &job.cgroup.path().join(strength.file()), current),
        Limit::Max => Bytes(u64::MAX),
    };
    Ok(own(Strength::Soft, job.cgroup.low()?).max(own(Strength::Hard, job.cgroup.min()?)))
}

/// What a job uses beside its swap-backed working set: page cache in use, and memory of the kernel, the zswap pool included.
fn beside_working_set(job: &Job, context: &mut Context) -> Bytes {
    let Ok(stat) = job.cgroup.stat() else { return Bytes::ZERO };
    let scan = job.scan.as_ref().filter(|_| matches!(job.tracker.0, Kind::PageIdle | Kind::SampledFrames));
    // Other trackers know page cache by the kernel's generations only, in which pages in use grow old until the next ageing.
    let cache = scan.map_or(stat.active_file.unwrap_or_default(), |scan| scan.file.at(Age(0)).to_bytes(kernel::page_size()));
    context.claims.cache(job.path(), cache) + stat.kernel.unwrap_or_default() + stat.sock.unwrap_or_default()
}

/// The operator's value of a file that now reads `current`.
fn own_value(context: &Context, file: &std::path::Path, current: Bytes) -> Bytes {
    context.undo.operators(file, &current.0.to_string()).parse().map_or(Bytes(u64::MAX), Bytes)
}

fn set(context: &mut Context, file: PathBuf, required: Bytes, own: Bytes) {
    // The kernel keeps whole pages: another value would read back as one that another program has set.
    let page = kernel::page_size().bytes();
    let required = if required == own { own } else { Bytes(required.0.div_ceil(page).saturating_mul(page)) };
    if required == own {
        context.undo.restore(&file);
    } else {
        context.undo.defer(file, required.0.to_string());
    }
}

/// Gives the ancestors of protected jobs what their children claim, from the bottom up, and restores those that no longer have a
/// protected job below. A cgroup of class `off` is left alone. Then notes what each job's protection is in effect.
pub fn cover_ancestors(jobs: &mut Jobs, context: &mut Context, rules: &Rules) {
    let recursive = kernel::cgroup::is_recursive(&context.kernel.roots).unwrap_or(false);
    for strength in Strength::ALL {
        let mut covered = BTreeMap::new();
        for name in context.claims.ancestors(strength) {
            let Ok(cgroup) = Cgroup::open(&context.kernel.cgroups, &name) else { continue };
            if rules.is_off(&name) {
                continue;
            }
            let Some(required) = cover(&cgroup, context, strength, &covered, recursive) else { continue };
            covered.insert(name, required);
        }
        for name in context.claims.cover(strength, covered.into_keys()) {
            context.undo.restore(&context.kernel.cgroups.path().join(name.trim_start_matches('/')).join(strength.file()));
        }
    }
    let mut tree = ProtectionTree::new(&context.kernel.cgroups, recursive);
    for (path, Entry { job, .. }) in jobs.iter_mut() {
        job.protection = tree.of(&job.cgroup).unwrap_or_default();
        job.hard_protection = context.claims.of(Strength::Hard, path).is_some();
    }
}

/// Sets one ancestor's protection. Returns what it then claims of its own parent.
fn cover(cgroup: &Cgroup, context: &mut Context, strength: Strength, below: &BTreeMap<String, Bytes>, recursive: bool) -> Option<Bytes> {
    let current = setting(cgroup, strength)?;
    let file = cgroup.path().join(strength.file());
    let own = own_value(context, &file, current);
    let (mut all, mut ours) = (Bytes::ZERO, Bytes::ZERO);
    for child in cgroup.children().ok()? {
        let claimed = below.get(child.name()).copied().or_else(|| context.claims.of(strength, child.name()));
        ours += claimed.unwrap_or_default();
        all += claimed.unwrap_or_else(|| child.claim(strength.file()));
    }
    // What the operator gave this cgroup is shared by all of its children on such a mount: no other child loses its part.
    let required = if recursive && own > Bytes::ZERO { all.max(own + ours) } else { all.max(own) };
    let with_margin = if required == own { own } else { required + Bytes(required.0 / MARGIN_PARTS) };
    let fits = current >= required && current.0 - required.0 <= required.0 / CHANGE_PARTS;
    if !fits || with_margin == own {
        set(context, file, with_margin, own);
    }
    Some(with_margin)
}

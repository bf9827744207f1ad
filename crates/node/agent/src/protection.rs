//! `memory.low` for the working sets of jobs, and for the cgroups above them.
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
use crate::controllers::slots::{Entry, Jobs};
use crate::discover::Rules;
use crate::job::Job;

const LOW: &str = "memory.low";

/// `memory.low` is changed only if what is required has changed by more than one part of this many: each change is first
/// written to the undo list on disk.
const CHANGE_PARTS: u64 = 8;

/// An ancestor is given one part of this many more than its children claim, because claims grow with usage between two periods.
const MARGIN_PARTS: u64 = 16;

/// Protects a job's working set while the machine runs out of memory (the soft limit of SDFM section 5.1): the swap-backed pages
/// in use, the page cache in use, and what the kernel holds for the job. Its ancestors follow in [`cover_ancestors`].
pub fn protect(job: &Job, context: &mut Context, working_set: Pages) {
    // The lowest class gives memory first.
    if !context.config.agent.protect_working_set || job.treatment.class == Class::Aggressive {
        return release(job, context);
    }
    let Ok(Limit::Bytes(current)) = job.cgroup.low() else { return };
    let file = job.cgroup.path().join(LOW);
    // The operator's own protection is never lowered.
    let own = own_low(context, &file, current);
    let in_use = working_set.to_bytes(kernel::page_size()) + beside_working_set(job, context);
    let required = in_use.max(own);
    context.claims.insert(job.path(), required);
    if required.0.abs_diff(current.0) <= required.max(current).0 / CHANGE_PARTS {
        return;
    }
    set(context, file, required, own);
}

/// Restores a job's own value. Its ancestors follow in [`cover_ancestors`].
pub fn release(job: &Job, context: &mut Context) {
    context.claims.remove(job.path());
    context.undo.restore(&job.cgroup.path().join(LOW));
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
fn own_low(context: &Context, file: &std::path::Path, current: Bytes) -> Bytes {
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
    let mut covered = BTreeMap::new();
    for name in context.claims.ancestors() {
        let Ok(cgroup) = Cgroup::open(&context.kernel.cgroups, &name) else { continue };
        if rules.is_off(&name) {
            continue;
        }
        let Some(required) = cover(&cgroup, context, &covered, recursive) else { continue };
        covered.insert(name, required);
    }
    for name in context.claims.cover(covered.into_keys()) {
        context.undo.restore(&context.kernel.cgroups.path().join(name.trim_start_matches('/')).join(LOW));
    }
    let mut tree = ProtectionTree::new(&context.kernel.cgroups, recursive);
    for Entry { job, .. } in jobs.values_mut() {
        job.protection = tree.of(&job.cgroup).unwrap_or_default();
    }
}

/// Sets one ancestor's `memory.low`. Returns what it then claims of its own parent.
fn cover(cgroup: &Cgroup, context: &mut Context, below: &BTreeMap<String, Bytes>, recursive: bool) -> Option<Bytes> {
    let Ok(Limit::Bytes(current)) = cgroup.low() else { return None };
    let file = cgroup.path().join(LOW);
    let own = own_low(context, &file, current);
    let (mut all, mut ours) = (Bytes::ZERO, Bytes::ZERO);
    for child in cgroup.children().ok()? {
        let claimed = below.get(child.name()).copied().or_else(|| context.claims.of(child.name()));
        ours += claimed.unwrap_or_default();
        all += claimed.unwrap_or_else(|| child.claim(LOW));
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

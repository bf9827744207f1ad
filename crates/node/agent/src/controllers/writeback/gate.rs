//! The settings of a job's cgroup during a batch: nothing is stored in zswap, and pages may be written to the device.
//!
//! Both are on the undo list before they are set, and are set back within the same turn of the loop. An operator's values are never
//! changed.

use std::path::PathBuf;

use kernel::cgroup::{Cgroup, Limit};
use policy::writeback::Obstacle;

use crate::context::Context;
use crate::job::Job;

const ZSWAP_MAX: &str = "memory.zswap.max";
const WRITEBACK: &str = "memory.zswap.writeback";

fn path(job: &Job, name: &str) -> PathBuf {
    job.cgroup.path().join(name)
}

/// The operator's value of a file of the job's cgroup that now contains `now`.
fn operators(job: &Job, context: &Context, name: &str, now: &str) -> String {
    context.undo.operators(&path(job, name), now)
}

/// Which of the operator's settings forbids a batch.
///
/// # Errors
/// Any error of the cgroup's files.
pub(super) fn obstacle(job: &Job, context: &Context) -> kernel::Result<Option<Obstacle>> {
    let max = job.cgroup.zswap_max()?.unwrap_or(Limit::Max);
    if operators(job, context, ZSWAP_MAX, &max.to_string()) != "max" {
        return Ok(Some(Obstacle::OperatorsLimit));
    }
    let own = job.cgroup.zswap_writeback()?.is_none_or(|on| on || operators(job, context, WRITEBACK, "0") == "1");
    let above = match job.path().rsplit_once('/') {
        Some((parent, _)) if !parent.is_empty() => Cgroup::open(&context.kernel.cgroups, parent)?.may_pass_zswap()?,
        _ => true,
    };
    Ok((!own || !above).then_some(Obstacle::NoWriteback))
}

/// Runs `batch` with zswap closed to the job and the device open.
///
/// # Errors
/// Any error of the settings, and those of `batch`; the settings are set back in any case.
pub(super) fn with_zswap_closed<T>(
    job: &Job,
    context: &mut Context,
    batch: impl FnOnce(&mut Context) -> kernel::Result<T>,
) -> kernel::Result<T> {
    let closes = job.cgroup.zswap_max()? == Some(Limit::Max);
    let opens = job.cgroup.zswap_writeback()? == Some(false);
    let mut outcome = set(job, context, ZSWAP_MAX, "0", closes);
    if outcome.is_ok() {
        outcome = set(job, context, WRITEBACK, "1", opens);
    }
    let outcome = outcome.and_then(|()| batch(context));
    // The tier of the job has its own value of the one, and none of the other while it is not `0`.
    let back = set(job, context, WRITEBACK, "0", opens);
    if closes {
        context.undo.restore(&path(job, ZSWAP_MAX));
        context.flush_settings();
    }
    outcome.and_then(|done| back.map(|()| done))
}

fn set(job: &Job, context: &mut Context, name: &'static str, value: &str, changes: bool) -> kernel::Result<()> {
    if !changes {
        return Ok(());
    }
    let path = path(job, name);
    context.undo.set(&path, value).map_err(|source| kernel::Error::Io { path, op: "set", source })
}

//! What protects a job and its neighbours besides offloading: `memory.low` for its working set.

use config::Class;
use kernel::cgroup::Limit;
use units::Pages;

use crate::context::Context;
use crate::job::Job;

const LOW: &str = "memory.low";

/// `memory.low` is changed only if the working set has changed by more than one part of this many: each change is first
/// written to the undo list on disk.
const LOW_CHANGE_PARTS: u64 = 8;

/// Protects the working set while the machine runs out of memory (the soft limit of SDFM section 5.1).
pub(super) fn protect(job: &Job, context: &mut Context, working_set: Pages) {
    // The lowest class gives memory first.
    if !context.config.agent.protect_working_set || job.treatment.class == Class::Aggressive {
        return;
    }
    let Ok(Limit::Bytes(current)) = job.cgroup.low() else { return };
    let file = job.cgroup.path().join(LOW);
    // The operator's own protection is never lowered.
    let own = context.undo.original(&file).and_then(|text| text.parse().ok()).unwrap_or(current.0);
    let required = working_set.to_bytes(kernel::page_size()).0.max(own);
    if required.abs_diff(current.0) <= required.max(current.0) / LOW_CHANGE_PARTS {
        return;
    }
    if required == own {
        context.undo.restore(&file);
    } else if let Err(error) = context.undo.set(&file, &required.to_string()) {
        log::warn!("{}: {error}", file.display());
    }
}

/// Restores the operator's value.
pub(super) fn release(job: &Job, context: &mut Context) {
    context.undo.restore(&job.cgroup.path().join(LOW));
}

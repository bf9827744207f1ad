//! `at_limit = "fail_fast"`: swap is closed to a job, but for the agent's own requests.
//!
//! `memory.swap.max` is kept at what the job has in swap, so that the kernel swaps nothing more of it out by itself, neither at
//! the job's limit nor when the machine is short. For each of its own requests the agent raises it by what is asked. The
//! original value is on the undo list.

use std::path::PathBuf;

use config::AtLimit;
use kernel::cgroup::Limit;
use units::{Bytes, Pages};

use crate::context::Context;
use crate::job::Job;

fn file(job: &Job) -> PathBuf {
    job.cgroup.path().join("memory.swap.max")
}

/// Closes swap at the job's current use, if the operator chose that; otherwise restores what an earlier configuration closed.
pub fn close(job: &Job, context: &mut Context) {
    if context.config.agent.at_limit == AtLimit::FailFast && context.may_act(job) {
        limit_to(job, context, Bytes::ZERO);
    } else {
        release(job, context);
    }
}

/// Opens swap for a request of `pages`, if it is closed.
pub fn open(job: &Job, context: &mut Context, pages: Pages) {
    if context.undo.original(&file(job)).is_some() {
        limit_to(job, context, pages.to_bytes(kernel::page_size()));
    }
}

/// Restores the operator's value.
pub fn release(job: &Job, context: &mut Context) {
    context.undo.restore(&file(job));
}

fn limit_to(job: &Job, context: &mut Context, more: Bytes) {
    let path = file(job);
    let Ok(Some(used)) = job.cgroup.swap_current() else { return };
    // The operator's own limit holds for the agent's requests as well.
    let now = match job.cgroup.swap_max() {
        Ok(Some(Limit::Bytes(now))) => now.0.to_string(),
        _ => "max".to_owned(),
    };
    let own = context.undo.operators(&path, &now).parse().map_or(Bytes(u64::MAX), Bytes);
    if own <= used && more == Bytes::ZERO && context.undo.original(&path).is_none() {
        return;
    }
    let first = context.undo.original(&path).is_none();
    match context.undo.set(&path, &used.0.saturating_add(more.0).min(own.0).to_string()) {
        Ok(()) if first => context.event(Some(job.path()), format!("swap is closed at {used}, but for the agent's requests: fail_fast")),
        Ok(()) => {}
        Err(error) => log::warn!("{}: {error}", path.display()),
    }
}

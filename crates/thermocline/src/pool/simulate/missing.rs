//! Properties that a trace lacks, and which policies cannot be simulated without them.

use anyhow::{Result, bail};
use serde::Serialize;
use simulator::site::Cluster;
use vmtrace::Vm;

use super::arguments::{Simulate, Split};

/// Numbers of VMs with an unknown property.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Missing {
    /// Untouched memory unknown: an oracle predicts none, and all memory on a pool counts as touched.
    untouched_vms: u64,
    /// Slowdown unknown: never predicted insensitive, and never counted as too slow.
    slowdown_vms: u64,
    /// Customer unknown: models predict nothing.
    customer_vms: u64,
    /// Not recorded by a scheduler: all memory is local by `recorded` and `requested`.
    recorded_vms: u64,
}

const REMEDY: &str =
    "`pool show` lists what a trace has; --assume-published draws untouched memory and slowdowns from published distributions";

/// Counts missing properties and logs warnings.
///
/// # Errors
/// If a policy is requested and the trace has none of its inputs, so that all memory would stay local.
pub(super) fn check(clusters: &[Cluster], arguments: &Simulate) -> Result<Missing> {
    let vms = || clusters.iter().flat_map(|cluster| &cluster.vms);
    let count = |of: fn(&&Vm) -> bool| vms().filter(of).count() as u64;
    let all = vms().count() as u64;
    let lacking = Missing {
        untouched_vms: count(|vm| vm.untouched_ratio.is_none()),
        slowdown_vms: count(|vm| vm.slowdown_64ns.is_none() && vm.slowdown_140ns.is_none()),
        customer_vms: count(|vm| vm.customer.is_none()),
        recorded_vms: count(|vm| vm.recorded.is_none()),
    };
    let Missing { untouched_vms, slowdown_vms, customer_vms, recorded_vms } = lacking;
    let requested = |split| arguments.memory.contains(&split);
    let with_truth = requested(Split::Pond) || requested(Split::Oracle);
    if with_truth && untouched_vms == all && slowdown_vms == all {
        bail!("--memory pond and oracle need ground truth, and the trace has neither untouched memory nor slowdowns; {REMEDY}");
    }
    if requested(Split::Models) && customer_vms == all {
        bail!("--memory models predicts from customers' past VMs, and the trace has no customers; `pool generate` writes traces that do");
    }
    if requested(Split::Recorded) || requested(Split::Requested) {
        if recorded_vms == all {
            bail!(
                "--memory recorded and requested need what a scheduler recorded, and the trace has no pool_bytes; import a scheduler's log by \
                 `pool import scheduler.log`"
            );
        }
        if recorded_vms > 0 {
            log::warn!("{recorded_vms} of {all} VMs were not recorded by a scheduler: recorded and requested keep their memory local");
        }
    }
    if with_truth && untouched_vms + slowdown_vms > 0 {
        log::warn!(
            "of {all} VMs, {untouched_vms} have no untouched memory and {slowdown_vms} no slowdown in the trace: pond and oracle keep their memory local; {REMEDY}"
        );
    }
    if slowdown_vms > 0 && arguments.memory.iter().any(|split| *split != Split::AllLocal) {
        log::warn!("{slowdown_vms} of {all} VMs have no known slowdown and never count as too slow; {REMEDY}");
    }
    Ok(lacking)
}

//! What a trace does not tell, and what of the question it therefore does not answer.

use anyhow::{Result, bail};
use serde::Serialize;
use simulator::site::Cluster;
use vmtrace::Vm;

use super::arguments::{Simulate, Split};

/// VMs of which something is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Lacking {
    /// How much of their memory stays untouched: no oracle foretells it, and all that spills counts as touched.
    untouched_vms: u64,
    /// How much slow memory slows them: they are never called insensitive, and never count as too slow.
    slowdown_vms: u64,
    /// Whose they are: no model foretells anything of them.
    customer_vms: u64,
}

const REMEDY: &str = "`pool show` tells what a trace has; --assume-published draws untouched memory and slowdowns as published for others";

/// Counts, and warns of what the answer does not mean.
///
/// # Errors
/// When `pond` or `models` is asked of a trace by which it could do nothing but keep all memory local.
pub(super) fn check(clusters: &[Cluster], arguments: &Simulate) -> Result<Lacking> {
    let vms = || clusters.iter().flat_map(|cluster| &cluster.vms);
    let count = |of: fn(&&Vm) -> bool| vms().filter(of).count() as u64;
    let all = vms().count() as u64;
    let lacking = Lacking {
        untouched_vms: count(|vm| vm.untouched_ratio.is_none()),
        slowdown_vms: count(|vm| vm.slowdown_64ns.is_none() && vm.slowdown_140ns.is_none()),
        customer_vms: count(|vm| vm.customer.is_none()),
    };
    let Lacking { untouched_vms, slowdown_vms, customer_vms } = lacking;
    let asked = |split| arguments.memory.contains(&split);
    if asked(Split::Pond) && untouched_vms == all && slowdown_vms == all {
        bail!("--memory pond needs the truth to foretell by, and the trace tells neither untouched memory nor slowdowns; {REMEDY}");
    }
    if asked(Split::Models) && customer_vms == all {
        bail!("--memory models foretells by customers' past VMs, and the trace names no customer; `pool generate` makes up traces that do");
    }
    if asked(Split::Pond) && untouched_vms + slowdown_vms > 0 {
        log::warn!(
            "of {all} VMs, the trace does not tell the untouched memory of {untouched_vms} and the slowdown of {slowdown_vms}: pond leaves that local; {REMEDY}"
        );
    }
    if slowdown_vms > 0 && arguments.memory.iter().any(|split| *split != Split::AllLocal) {
        log::warn!("{slowdown_vms} of {all} VMs have no known slowdown and never count as too slow; {REMEDY}");
    }
    Ok(lacking)
}

//! The report of `thermocline pool simulate`, as printed in JSON.

use std::path::Path;

use serde::Serialize;
use simulator::Site;
use simulator::oracle::Accuracy;
use simulator::pod::Overlap;
use simulator::predictions::Quality;
use simulator::study::Outcome;
use units::Bytes;

use super::missing::Missing;
use super::money::Money;

/// The report of `thermocline pool simulate`.
#[derive(Debug, Serialize)]
pub(super) struct Report<'a> {
    pub(super) trace: &'a Path,
    pub(super) origin: &'a str,
    pub(super) generated: bool,
    /// Second of the trace at which the simulation begins, if it leaves out VMs from before the first model.
    pub(super) begins: Option<i64>,
    /// Errors of models that were left out.
    pub(super) model_faults: &'a [String],
    /// Simulated VMs.
    pub(super) vms: u64,
    /// VMs with properties missing in the trace.
    pub(super) missing: Missing,
    pub(super) clusters: usize,
    pub(super) servers: u64,
    /// VMs with untouched memory or slowdowns drawn from published distributions.
    pub(super) assumed: u64,
    /// VMs that fit on no server; left out of all other figures.
    pub(super) rejected: u64,
    /// VMs on more than one NUMA node, without pools.
    pub(super) spanning_ratio: f64,
    /// Memory on another node than its VM's cores, without pools.
    pub(super) remote_ratio: f64,
    /// DRAM without pools: the sum of the peak of each server.
    pub(super) required_bytes: Bytes,
    /// The same with equal servers within a cluster.
    pub(super) uniform_required_bytes: Bytes,
    pub(super) site: &'a Site,
    /// Events of all runs.
    pub(super) events: u64,
    /// Of these, events of the runs without pools.
    pub(super) events_without_pools: u64,
    pub(super) results: Vec<Row<'a>>,
}

/// One configuration.
#[derive(Debug, Serialize)]
pub(super) struct Row<'a> {
    pub(super) pool_sockets: u32,
    /// A sparse pod of this size; null unless requested.
    pub(super) pod: Option<Overlap>,
    pub(super) memory: String,
    pub(super) added_ns: u32,
    /// Assumed accuracy of the predictions; only for pond and oracle.
    pub(super) accuracy: Option<Accuracy>,
    /// Accuracy of the trained models; null for other policies.
    pub(super) prediction_quality: Option<&'a Quality>,
    /// Share of memory on pools, mean over time.
    pub(super) pool_ratio: f64,
    /// Share of VMs that exceed the margin.
    pub(super) mispredicted_ratio: f64,
    /// Whether the provisioned pool pays; null without prices.
    pub(super) money: Option<Money>,
    #[serde(flatten)]
    pub(super) outcome: Outcome,
}

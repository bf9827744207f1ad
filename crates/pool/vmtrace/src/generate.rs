//! Synthetic VM traces that resemble Azure's published distributions (Pond).
//!
//! # Purpose
//! No public trace has customers, types, guest systems and regions of VMs together with their untouched memory and their
//! slowdown on slower memory. Predictions and placement need such a trace for tests. [`fit`] compares a generated trace with
//! every published figure that can be computed from it, row by row.
//!
//! # Model
//! A trace has clusters, each in a region, in which customers deploy VMs (`cluster`). Deployments follow a daily rhythm and a
//! demand that drifts over weeks. A customer (`customer`) has a few workloads. A workload has a sensitivity to latency, which
//! makes some types and guest systems more likely, and a share of memory that it leaves untouched. Customer, type, guest
//! system, region and cluster shift that share, and VMs of one workload differ at random. The trace therefore contains
//! variation that a model can learn and variation that it cannot.
//!
//! # Properties
//! The same settings give the same trace on every machine. VMs are generated in order of arrival. Memory is bounded by the
//! number of clusters and customers, not of VMs.

mod cluster;
mod customer;
pub mod fit;
mod kinds;
mod random;
mod settings;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::Path;

use crate::error::Result;
use crate::vm::Vm;
use crate::write::{Writer, Written};

use cluster::{Cluster, Drawn};
use fit::Tally;

pub use settings::Settings;

/// Writes a trace and returns its size and its statistics. Calls `step` for each VM.
///
/// # Errors
/// Any error of writing.
pub fn generate(settings: &Settings, to: &Path, step: &mut dyn FnMut()) -> Result<(Written, Tally)> {
    let mut writer = Writer::create(to)?;
    let mut tally = Tally::new(settings.clusters);
    for (id, drawn) in (0..).zip(Stream::new(*settings)) {
        let drawn = Drawn { vm: Vm { id, ..drawn.vm }, ..drawn };
        tally.count(&drawn);
        writer.push(&drawn.vm)?;
        step();
    }
    Ok((writer.finish(&settings.about())?, tally))
}

/// The VMs of all clusters in order of arrival, without ids.
struct Stream {
    ends: i64,
    clusters: Vec<Cluster>,
    heads: Vec<Option<Drawn>>,
    order: BinaryHeap<Reverse<(i64, usize)>>,
}

impl Stream {
    fn new(settings: Settings) -> Self {
        let mut clusters = cluster::all(&settings);
        let mut order = BinaryHeap::new();
        let ends = settings.ends();
        let heads: Vec<_> = clusters.iter_mut().map(|cluster| cluster.next(ends)).collect();
        for (index, head) in heads.iter().enumerate() {
            order.extend(head.as_ref().map(|drawn| Reverse((drawn.vm.arrival, index))));
        }
        Self { ends, clusters, heads, order }
    }
}

impl Iterator for Stream {
    type Item = Drawn;

    fn next(&mut self) -> Option<Drawn> {
        let Reverse((_, index)) = self.order.pop()?;
        let next = self.clusters[index].next(self.ends);
        self.order.extend(next.as_ref().map(|drawn| Reverse((drawn.vm.arrival, index))));
        std::mem::replace(&mut self.heads[index], next)
    }
}

#[cfg(test)]
mod tests;

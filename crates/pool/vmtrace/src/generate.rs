//! VMs that never were, which taken together look like what 004 published of Azure's.
//!
//! # Why
//! No public trace tells customer, type, guest system and region of a VM together with how much memory it left untouched and
//! what slower memory would cost it. Predictions and placement have to be tried on something. [`fit`] compares what is
//! generated with every published figure that such a trace has, row by row.
//!
//! # What it is made of
//! Clusters, each of a region, in which customers deploy VMs ([`cluster`]): by a daily rhythm, under a demand that wanders for
//! weeks. A customer ([`customer`]) has a few workloads. A workload has a sensitivity to latency, which makes some types and
//! systems likelier than others, and memory that it leaves untouched more or less; customer, type, system, region and cluster move
//! that, and a VM differs from the next of its kind. What a model can learn is in there, and what it cannot.
//!
//! # Properties
//! The same settings give the same trace on every machine. VMs come out by arrival. Memory is bounded by clusters and
//! customers, not by VMs.

mod cluster;
mod customer;
pub mod fit;
mod kinds;
mod random;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::Path;

use serde::Serialize;

use crate::about::{About, Words};
use crate::error::Result;
use crate::vm::Vm;
use crate::write::{Writer, Written};

use cluster::{Cluster, Drawn};
use fit::Tally;
use kinds::{GUEST_SYSTEMS, TYPES};

/// Seconds of a day.
const DAY: f64 = 86_400.0;
/// Clusters of one region, in the mean: 100 clusters are in 20 regions.
const CLUSTERS_PER_REGION: u32 = 5;

/// What is to be generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Settings {
    /// Which of all traces.
    pub seed: u64,
    /// VMs that arrive, about. There are also those that ran when the trace began.
    pub vms: u64,
    /// Clusters.
    pub clusters: u32,
    /// Days.
    pub days: u32,
}

impl Settings {
    /// Regions.
    #[must_use]
    pub fn regions(&self) -> u32 {
        self.clusters.div_ceil(CLUSTERS_PER_REGION).max(1)
    }

    fn ends(&self) -> i64 {
        i64::from(self.days) * 86_400
    }

    fn about(&self) -> About {
        let words = Words {
            vm_types: TYPES.iter().map(|of| of.name()).collect(),
            guest_os: GUEST_SYSTEMS.iter().map(|of| of.name.to_owned()).collect(),
            locations: (1..=self.regions()).map(|region| format!("region-{region:02}")).collect(),
        };
        let Self { seed, vms, clusters, days } = self;
        let origin = format!("generated: {vms} VMs, {clusters} clusters, {days} days, seed {seed}");
        About { origin, generated: true, ends: self.ends(), unix_time: false, words }
    }
}

/// Writes a trace, and tells what it holds. `step` is called for each VM.
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

/// The VMs of all clusters, by arrival. Their ids are still to be given.
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

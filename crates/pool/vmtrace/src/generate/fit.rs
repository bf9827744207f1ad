//! How well a generated trace fits the published figures (Pond).
//!
//! P rows are figures of Pond; the numbers are those of the project's list of published figures. [`NOT_SHOWN`] lists the
//! figures that cannot be computed from a VM trace, with the reason.

use std::collections::HashMap;

use serde::Serialize;

use super::cluster::{Drawn, WITHIN};
use super::random::share;
use crate::stranding::Stranding;
use crate::stranding::bins::Bin;

/// One published figure beside the generated one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Number in the list of published figures.
    pub id: &'static str,
    /// Description of the figure.
    pub what: &'static str,
    /// Lowest and highest published value; equal if one value is published.
    pub published: (f64, f64),
    /// Value of the generated trace.
    pub generated: f64,
    /// Generated value divided by the closest published one: 1 within the published range.
    pub ratio: f64,
}

/// Published figures that cannot be computed from a generated trace, with the reason.
pub const NOT_SHOWN: &[(&str, &str)] = &[
    ("P01, P07, P25, P26, P28", "results of placement on pools: see `thermocline pool simulate`"),
    ("P02, P14-P20", "cost, latency and speed of machines: measured on them"),
    ("P06", "spanning of NUMA nodes, which placement decides"),
    ("P12, P13", "workloads by name and class, which VMs do not have"),
    ("P21", "results of a model of counters, which VMs do not have"),
    ("P22, P27", "restatements of P23 and P21"),
];

/// Safety margins of predictions below the median, in standard deviations, that [`Tally`] evaluates.
const CAUTIONS: [f64; 24] = {
    let mut cautions = [0.0; 24];
    let mut at = 0;
    while at < cautions.len() {
        #[expect(clippy::cast_precision_loss, reason = "below 24")]
        let caution = 0.25 + 0.125 * at as f64;
        cautions[at] = caution;
        at += 1;
    }
    cautions
};

/// Statistics of a generated trace.
#[derive(Clone, Debug)]
pub struct Tally {
    vms: u64,
    /// VMs by untouched share, in steps of 0.1 %.
    untouched: Vec<u64>,
    /// For each cluster: its VMs, and those with more than 20 % untouched.
    clusters: Vec<(u64, u64)>,
    /// VMs below 1 %, below 5 % and above 25 % slowdown, at 182 % and 222 % of local latency.
    slow: [[u64; 3]; 2],
    with_history: u64,
    /// Arrival of the first VM of each customer, type and region.
    histories: HashMap<(u64, u16, u16), i64>,
    /// For each margin: the sum of predictions, and the number of overpredictions.
    predicted: [(f64, u64); CAUTIONS.len()],
}

impl Tally {
    pub(super) fn new(clusters: u32) -> Self {
        Self {
            vms: 0,
            untouched: vec![0; 1_001],
            clusters: vec![(0, 0); usize::try_from(clusters).unwrap_or(0)],
            slow: [[0; 3]; 2],
            with_history: 0,
            histories: HashMap::new(),
            predicted: [(0.0, 0); CAUTIONS.len()],
        }
    }

    pub(super) fn count(&mut self, drawn: &Drawn) {
        let vm = &drawn.vm;
        self.vms += 1;
        let untouched = vm.untouched_ratio.unwrap_or(0.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1,000")]
        let place = libm::floor(untouched * 1_000.0) as usize;
        self.untouched[place.min(1_000)] += 1;
        if let Some(cluster) = usize::try_from(vm.cluster).ok().and_then(|at| self.clusters.get_mut(at)) {
            cluster.0 += 1;
            cluster.1 += u64::from(untouched > 0.2);
        }
        for (counts, slowdown) in self.slow.iter_mut().zip([vm.slowdown_64ns, vm.slowdown_140ns]) {
            let slowdown = slowdown.unwrap_or(0.0);
            for (count, is) in counts.iter_mut().zip([slowdown < 0.01, slowdown < 0.05, slowdown > 0.25]) {
                *count += u64::from(is);
            }
        }
        let key = (vm.customer.unwrap_or(0), vm.vm_type.unwrap_or(0), vm.location.unwrap_or(0));
        let first = *self.histories.entry(key).or_insert(vm.arrival);
        // VMs of the same deployment do not count as history.
        self.with_history += u64::from(first < vm.arrival);
        if let Some(middle) = drawn.expected {
            for (sum, caution) in self.predicted.iter_mut().zip(CAUTIONS) {
                let predicted = share(middle - caution * WITHIN);
                sum.0 += predicted;
                sum.1 += u64::from(predicted > untouched);
            }
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "shares")]
    fn of_vms(&self, count: u64) -> f64 {
        count as f64 / self.vms.max(1) as f64
    }

    /// Returns the share of VMs with less than `thousandths` untouched.
    fn below(&self, thousandths: usize) -> f64 {
        self.of_vms(self.untouched.iter().take(thousandths).sum())
    }

    fn median(&self) -> f64 {
        let mut up_to = 0;
        let place = self.untouched.iter().position(|&count| {
            up_to += count;
            up_to * 2 >= self.vms
        });
        #[expect(clippy::cast_precision_loss, reason = "0 to 1,000")]
        place.map_or(0.0, |place| place as f64 / 1_000.0)
    }

    #[expect(clippy::cast_precision_loss, reason = "shares")]
    fn worst_cluster(&self) -> f64 {
        let shares = self.clusters.iter().filter(|(vms, _)| *vms > 0).map(|&(vms, untouched)| untouched as f64 / vms as f64);
        shares.min_by(f64::total_cmp).unwrap_or(0.0)
    }

    /// Returns the untouched memory that an ideal predictor, which knows each VM's distribution, finds within a share of
    /// overpredictions.
    #[expect(clippy::cast_precision_loss, reason = "shares")]
    fn found(&self, overpredicted: f64) -> f64 {
        let within = self.predicted.iter().filter(|(_, over)| self.of_vms(*over) <= overpredicted);
        within.map(|(sum, _)| sum / self.vms.max(1) as f64).fold(0.0, f64::max)
    }

    /// Returns the rows of the fit. The rows about stranding require `stranding`.
    #[must_use]
    pub fn rows(&self, stranding: Option<&Stranding>) -> Vec<Row> {
        let [at_182, at_222] = self.slow.map(|counts| counts.map(|count| self.of_vms(count)));
        let mut rows = stranding.map(of_stranding).unwrap_or_default();
        rows.extend([
            row("P08", "untouched memory, median of VMs", (0.5, 0.5), self.median()),
            row("P09", "worst cluster: VMs with more than 20% untouched, over", (0.5, 0.5), self.worst_cluster()),
            row("P10", "182%: VMs slowed down by less than 1%", (0.26, 0.26), at_182[0]),
            row("P10", "182%: by less than 5%", (0.43, 0.43), at_182[1]),
            row("P10", "182%: by more than 25%", (0.21, 0.21), at_182[2]),
            row("P11", "222%: VMs slowed down by less than 1%", (0.23, 0.23), at_222[0]),
            row("P11", "222%: by less than 5%", (0.37, 0.37), at_222[1]),
            row("P11", "222%: by more than 25%", (0.37, 0.38), at_222[2]),
            row("P23", "VMs with less than 20% untouched (static OP)", (0.12, 0.12), self.below(200)),
            row("P27", "VMs with less than 15% untouched", (0.10, 0.10), self.below(150)),
            row("P24", "untouched found at 4% OP: by a model; at best", (0.25, 0.25), self.found(0.04)),
            row("P29", "VMs with an earlier one of customer, type, region", (0.8, 0.8), self.of_vms(self.with_history)),
        ]);
        rows
    }
}

/// Returns the rows of (Pond figure 2) for which the trace has samples.
fn of_stranding(of: &Stranding) -> Vec<Row> {
    let at = |scheduled: f64| of.bins.iter().find(|bin| (bin.scheduled_ratio - scheduled).abs() < 0.01);
    let median = |bin: &Bin| bin.stranded_median;
    // A 95th percentile requires enough samples in the bin.
    let p95 = of.bins.iter().filter(|bin| bin.scheduled_ratio >= 0.8 && bin.samples >= 100).map(|bin| bin.stranded_p95).reduce(f64::max);
    let rows = [
        at(0.75).map(|bin| row("P03", "DRAM stranded at 75% of cores, median", (0.06, 0.06), median(bin))),
        at(0.85).map(|bin| row("P04", "DRAM stranded at 85% of cores, median, over", (0.10, 0.10), median(bin))),
        p95.map(|p95| row("P05", "DRAM stranded at 80% of cores or more, p95", (0.25, 0.27), p95)),
    ];
    rows.into_iter().flatten().collect()
}

fn row(id: &'static str, what: &'static str, published: (f64, f64), generated: f64) -> Row {
    let nearest = generated.clamp(published.0, published.1);
    Row { id, what, published, generated, ratio: if nearest == 0.0 { 1.0 } else { generated / nearest } }
}

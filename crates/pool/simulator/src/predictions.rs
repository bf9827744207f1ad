//! Predictions of trained models for the VMs of a trace, each from what was known when the VM arrived.
//!
//! The trace is read once, in order of arrival. VMs that have left by then are their customers' history; every night's model
//! is used from the end of its training; earlier VMs of the same customer, type and region say whether a VM is sensitive to
//! latency (Pond section 4.4, [`predict::Workloads`]). Predictions do not depend on where VMs are placed, so one pass serves all configurations of a latency.
//!
//! No model exists before the first night: VMs that have left by then only contribute history, and VMs that still run are
//! predicted at that moment. The simulation begins with them ([`Models::valid_from`]).

mod counters;
mod models;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use predict::{Evidence, Latency, Limits, Predictor, Reason, Request, Tally, Workloads};
use serde::Serialize;
use units::Bytes;
use vmtrace::{CategoryNames, Vm};

use crate::latency::slowdown;
use crate::memory::{Predict, Prediction};

pub use counters::{Counters, CountersError};
pub use models::{Models, ModelsError};

/// The predictions for all VMs of a trace.
#[derive(Clone, Debug)]
pub struct Predictions {
    by_vm: HashMap<u64, Prediction>,
    /// Accuracy of the predictions.
    pub quality: Quality,
}

impl Predict for Predictions {
    fn predict(&self, vm: &Vm) -> Prediction {
        self.by_vm.get(&vm.id).copied().unwrap_or_default()
    }
}

/// Accuracy of predictions. Ratios are of all predicted VMs unless stated otherwise.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Quality {
    /// Predicted VMs.
    pub vms: u64,
    /// VMs of whose workload enough earlier VMs were known to decide.
    pub with_counters_ratio: f64,
    /// VMs predicted insensitive.
    pub insensitive_ratio: f64,
    /// VMs predicted insensitive that are not.
    pub false_positive_ratio: f64,
    /// Memory predicted to stay untouched, of VMs not predicted insensitive, as a share of the memory of all VMs.
    pub untouched_ratio: f64,
    /// VMs whose predicted untouched memory exceeds the actual.
    pub overpredicted_ratio: f64,
    /// The same for the predicted memory rounded down to whole slices.
    pub overpredicted_in_slices_ratio: f64,
    /// Decisions by reason.
    pub reasons: Tally,
    /// Causes of safe answers that are too frequent.
    pub alerts: Vec<predict::Alert>,
}

/// Input of [`predict`].
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The VMs of all clusters, ordered by arrival.
    pub vms: &'a [Vm],
    /// The category names of the trace.
    pub names: &'a CategoryNames,
    /// Source of the VMs' counters; `None` disables the latency model.
    pub counters: Option<&'a Counters>,
    /// Added latency of an access to pool memory, in nanoseconds.
    pub added_ns: u32,
    /// The largest slowdown that a VM may have, as a ratio.
    pub margin: f64,
    /// The earlier VMs that decide about a workload.
    pub evidence: Evidence,
}

/// Predicts every VM that still runs when the first model becomes valid, or arrives later.
#[must_use]
pub fn predict(models: &Models, input: Input<'_>) -> Predictions {
    let mut pass = Pass {
        input,
        predictor: models.predictor(input.added_ns),
        workloads: Workloads::new(input.evidence),
        running: BinaryHeap::new(),
        sums: Sums::default(),
    };
    let begins = models.valid_from();
    let mut nights = models.nights().iter().peekable();
    let mut by_vm = HashMap::new();
    for (index, vm) in input.vms.iter().enumerate() {
        let now = vm.arrival.max(begins);
        while let Some(night) = nights.next_if(|night| *night.valid().start() <= now) {
            pass.predictor.replace_models(Ok(night.clone()), models.insensitive(input.added_ns));
        }
        pass.record_departures(now);
        if vm.departure.is_none_or(|departure| departure > begins) {
            by_vm.insert(vm.id, pass.predict(vm, now));
        }
        pass.record_arrival(index, vm);
    }
    Predictions { by_vm, quality: pass.quality() }
}

/// Customer, type and region: VMs with the same values are assumed to run the same workload.
type Workload = (u64, Option<u16>, Option<u16>);

struct Pass<'a> {
    input: Input<'a>,
    predictor: Predictor,
    workloads: Workloads<Workload>,
    /// Running VMs by departure, and by id for equal departures: the order that the trainer uses.
    running: BinaryHeap<Reverse<(i64, u64, usize)>>,
    sums: Sums,
}

#[derive(Default)]
struct Sums {
    vms: u64,
    with_counters: u64,
    insensitive: u64,
    false_positives: u64,
    bytes: f64,
    untouched_bytes: f64,
    overpredicted: u64,
    overpredicted_in_slices: u64,
}

impl Pass<'_> {
    /// Records the untouched memory of all VMs that have left by `now` in the customers' history.
    fn record_departures(&mut self, now: i64) {
        while self.running.peek().is_some_and(|Reverse((departure, ..))| *departure <= now) {
            let Some(Reverse((departure, _, index))) = self.running.pop() else { return };
            let vm = &self.input.vms[index];
            if let (Some(customer), Some(untouched)) = (vm.customer, vm.untouched_ratio) {
                self.predictor.history().record(customer, departure, untouched);
            }
        }
    }

    fn record_arrival(&mut self, index: usize, vm: &Vm) {
        if let Some(departure) = vm.departure {
            self.running.push(Reverse((departure, vm.id, index)));
        }
        if let Some(workload) = workload(vm) {
            let counters = self.input.counters.and_then(|all| all.of(vm, self.input.added_ns));
            self.workloads.record(workload, vm.arrival, self.predictor.latency(counters));
        }
    }

    fn predict(&mut self, vm: &Vm, now: i64) -> Prediction {
        let name = |names: &[String], number: Option<u16>| names.get(usize::from(number?)).cloned();
        let names = self.input.names;
        let unknown = Latency::NoAnswer(predict::NoAnswer::NoHistory);
        let latency = workload(vm).map_or(unknown, |workload| self.workloads.latency(&workload, now));
        let request = Request {
            customer: vm.customer,
            vm_type: name(&names.vm_types, vm.vm_type),
            guest_os: name(&names.guest_os, vm.guest_os),
            location: name(&names.locations, vm.location),
            cores: vm.cores,
            memory_bytes: vm.memory_bytes,
            arrival: now,
            history: None,
            own_past: None,
            counters: None,
        };
        let decision = self.predictor.decide_for(&request, latency);
        let insensitive = decision.reason == Reason::Insensitive;
        let untouched_ratio = decision.untouched_ratio.unwrap_or(0.0);
        self.count(
            vm,
            matches!(latency, Latency::Sensitive(_) | Latency::Insensitive(_)),
            insensitive,
            untouched_ratio,
            decision.pool_bytes,
        );
        Prediction { insensitive, untouched_ratio }
    }

    #[expect(clippy::cast_precision_loss, reason = "sums of memory for ratios")]
    fn count(&mut self, vm: &Vm, with_counters: bool, insensitive: bool, untouched_ratio: f64, pool_bytes: Bytes) {
        let sums = &mut self.sums;
        let memory = vm.memory_bytes.0 as f64;
        sums.vms += 1;
        sums.with_counters += u64::from(with_counters);
        sums.bytes += memory;
        if insensitive {
            let slow = slowdown(vm, self.input.added_ns).is_some_and(|slowdown| slowdown > self.input.margin);
            sums.insensitive += 1;
            sums.false_positives += u64::from(slow);
            return;
        }
        sums.untouched_bytes += untouched_ratio * memory;
        if let Some(actual) = vm.untouched_ratio {
            sums.overpredicted += u64::from(untouched_ratio > actual);
            sums.overpredicted_in_slices += u64::from(pool_bytes.0 as f64 > actual * memory);
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "ratios")]
    fn quality(&self) -> Quality {
        let Sums { vms, with_counters, insensitive, false_positives, bytes, untouched_bytes, overpredicted, overpredicted_in_slices } =
            self.sums;
        let of_vms = |count: u64| count as f64 / vms.max(1) as f64;
        let reasons = self.predictor.counts().tally();
        Quality {
            vms,
            with_counters_ratio: of_vms(with_counters),
            insensitive_ratio: of_vms(insensitive),
            false_positive_ratio: of_vms(false_positives),
            untouched_ratio: if bytes > 0.0 { untouched_bytes / bytes } else { 0.0 },
            overpredicted_ratio: of_vms(overpredicted),
            overpredicted_in_slices_ratio: of_vms(overpredicted_in_slices),
            alerts: reasons.alerts_since(&Tally::default(), &Limits::default()),
            reasons,
        }
    }
}

fn workload(vm: &Vm) -> Option<Workload> {
    Some((vm.customer?, vm.vm_type, vm.location))
}

#[cfg(test)]
mod tests;

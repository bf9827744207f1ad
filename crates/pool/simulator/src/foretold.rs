//! What trained models foretell of a trace's VMs, each asked with no more than was known when it came.
//!
//! The trace is walked once, in the order of arrival: VMs that have ended by then are their customers' history, every night's
//! model comes into force when its training ended, and a VM has the counters of the latest earlier VM of its customer, type and
//! region (Pond, section 4.4). What models say does not depend on where VMs are placed, so that one walk serves every
//! configuration of a latency.
//!
//! There is nothing to foretell by before the first night: VMs that have left by then only give history, and those that
//! still run then are asked about at that moment, so that what is simulated begins with them ([`Models::begins`]).

mod counters;
mod models;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use predict::{Limits, Predictor, Reason, Request, Tally};
use serde::Serialize;
use vmtrace::{Vm, Words};

use crate::latency::slowdown;
use crate::memory::{Predict, Prediction};

pub use counters::{Counters, Damaged};
pub use models::{Models, NoModels};

/// What models said of every VM.
#[derive(Clone, Debug)]
pub struct Foretold {
    by_vm: HashMap<u64, Prediction>,
    /// How good it was.
    pub quality: Quality,
}

impl Predict for Foretold {
    fn predict(&self, vm: &Vm) -> Prediction {
        self.by_vm.get(&vm.id).copied().unwrap_or_default()
    }
}

/// How good predictions were. Shares are of all VMs that were asked about, if nothing else is said.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Quality {
    /// VMs that were asked about.
    pub vms: u64,
    /// VMs that came with counters of an earlier one.
    pub with_counters_ratio: f64,
    /// VMs that were called insensitive.
    pub insensitive_ratio: f64,
    /// VMs that were called insensitive and are not.
    pub false_positive_ratio: f64,
    /// The share of all memory that was foretold to stay untouched, of VMs that were not called insensitive.
    pub untouched_ratio: f64,
    /// VMs of which more was foretold to stay untouched than did.
    pub overpredicted_ratio: f64,
    /// The same for what is handed out, which is rounded down to whole slices.
    pub overpredicted_in_slices_ratio: f64,
    /// Decisions by reason.
    pub reasons: Tally,
    /// What somebody should look at, and the share of decisions that it is about.
    pub alerts: Vec<predict::Alert>,
}

/// What is asked about.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// By arrival, of all clusters together.
    pub vms: &'a [Vm],
    /// The words behind their numbers.
    pub words: &'a Words,
    /// Where counters of VMs come from; without them, the latency model is never asked.
    pub counters: Option<&'a Counters>,
    /// What an access to the pool takes longer.
    pub added_ns: u32,
    /// The slowdown that a VM may have.
    pub margin: f64,
}

/// Asks models about every VM that still runs when the first of them comes into force, or comes later.
#[must_use]
pub fn foretell(models: &Models, asked: Asked<'_>) -> Foretold {
    let mut walk = Walk {
        asked,
        predictor: models.predictor(asked.added_ns),
        workloads: HashMap::new(),
        running: BinaryHeap::new(),
        sums: Sums::default(),
    };
    let begins = models.begins();
    let mut nights = models.nights().iter().peekable();
    let mut by_vm = HashMap::new();
    for (index, vm) in asked.vms.iter().enumerate() {
        let now = vm.arrival.max(begins);
        while let Some(night) = nights.next_if(|night| *night.valid().start() <= now) {
            walk.predictor.renew(Ok(night.clone()), models.insensitive(asked.added_ns));
        }
        walk.end_until(now);
        if vm.departure.is_none_or(|departure| departure > begins) {
            by_vm.insert(vm.id, walk.ask(vm, now));
        }
        walk.remember(index, vm);
    }
    Foretold { by_vm, quality: walk.quality() }
}

/// Whose VMs are taken for the same workload.
type Workload = (u64, Option<u16>, Option<u16>);

struct Walk<'a> {
    asked: Asked<'a>,
    predictor: Predictor,
    /// Which VM of a workload came last.
    workloads: HashMap<Workload, usize>,
    /// VMs by departure, and by id among those that leave together: the order in which the trainer takes them.
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

impl Walk<'_> {
    /// Notes what the VMs left untouched that have ended by a time.
    fn end_until(&mut self, now: i64) {
        while self.running.peek().is_some_and(|Reverse((departure, ..))| *departure <= now) {
            let Some(Reverse((departure, _, index))) = self.running.pop() else { return };
            let vm = &self.asked.vms[index];
            if let (Some(customer), Some(untouched)) = (vm.customer, vm.untouched_ratio) {
                self.predictor.history().record(customer, departure, untouched);
            }
        }
    }

    fn remember(&mut self, index: usize, vm: &Vm) {
        if let Some(departure) = vm.departure {
            self.running.push(Reverse((departure, vm.id, index)));
        }
        if let Some(workload) = workload(vm) {
            self.workloads.insert(workload, index);
        }
    }

    fn ask(&mut self, vm: &Vm, now: i64) -> Prediction {
        let word = |words: &[String], number: Option<u16>| words.get(usize::from(number?)).cloned();
        let words = self.asked.words;
        let earlier = workload(vm).and_then(|workload| self.workloads.get(&workload)).map(|&index| &self.asked.vms[index]);
        let counters = earlier.zip(self.asked.counters).and_then(|(earlier, all)| all.of(earlier, self.asked.added_ns));
        let request = Request {
            customer: vm.customer,
            vm_type: word(&words.vm_types, vm.vm_type),
            guest_os: word(&words.guest_os, vm.guest_os),
            location: word(&words.locations, vm.location),
            cores: vm.cores,
            memory_bytes: vm.memory_bytes,
            arrival: now,
            history: None,
            counters: counters.cloned(),
        };
        let decision = self.predictor.decide(&request);
        let insensitive = decision.reason == Reason::Insensitive;
        let untouched_ratio = decision.untouched_ratio.unwrap_or(0.0);
        self.count(vm, request.counters.is_some(), insensitive, untouched_ratio, decision.pool_bytes);
        Prediction { insensitive, untouched_ratio }
    }

    #[expect(clippy::cast_precision_loss, reason = "sums of memory, for ratios")]
    fn count(&mut self, vm: &Vm, with_counters: bool, insensitive: bool, untouched_ratio: f64, pool_bytes: u64) {
        let sums = &mut self.sums;
        let memory = vm.memory_bytes as f64;
        sums.vms += 1;
        sums.with_counters += u64::from(with_counters);
        sums.bytes += memory;
        if insensitive {
            let slow = slowdown(vm, self.asked.added_ns).is_some_and(|slowdown| slowdown > self.asked.margin);
            sums.insensitive += 1;
            sums.false_positives += u64::from(slow);
            return;
        }
        sums.untouched_bytes += untouched_ratio * memory;
        if let Some(truth) = vm.untouched_ratio {
            sums.overpredicted += u64::from(untouched_ratio > truth);
            sums.overpredicted_in_slices += u64::from(pool_bytes as f64 > truth * memory);
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

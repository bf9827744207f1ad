//! An oracle that errs at given rates: what models of a given accuracy would save.

use fastrand::Rng;
use serde::{Deserialize, Serialize};
use vmtrace::Vm;

use crate::latency::slowdown;
use crate::memory::{Predict, Prediction};

/// Accuracy of predictions. Ratios are of all VMs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Accuracy {
    /// Share of VMs that are predicted to be insensitive.
    pub insensitive: f64,
    /// Share of VMs that are predicted to be insensitive and are not.
    pub false_positives: f64,
    /// Mean predicted untouched memory, as a share of a VM's memory.
    pub untouched: f64,
    /// Share of VMs whose predicted untouched memory exceeds the actual.
    pub overpredictions: f64,
}

impl Accuracy {
    /// A point on the curves of (Pond figures 17 and 19) at 182 % latency: 25 % untouched at 4 % overpredictions, and enough
    /// VMs predicted insensitive for 44 % of memory on the pool (Pond figure 18), with half of the allowed mispredictions.
    pub const AT_182: Self = Self { insensitive: 0.25, false_positives: 0.01, untouched: 0.25, overpredictions: 0.04 };
    /// The same at 222 %, for 35 % of memory: 20 % untouched at 2.5 % overpredictions.
    pub const AT_222: Self = Self { insensitive: 0.19, false_positives: 0.01, untouched: 0.20, overpredictions: 0.025 };
    /// Predictions without any error: the upper bound for every model.
    pub const PERFECT: Self = Self { insensitive: 1.0, false_positives: 0.0, untouched: 1.0, overpredictions: 0.0 };
}

/// An oracle for one population of VMs. It knows the actual values of each VM and errs at the given rates.
#[derive(Clone, Copy, Debug)]
pub struct Oracle {
    seed: u64,
    added_ns: u32,
    margin: f64,
    /// Probability that an insensitive VM is predicted insensitive.
    hit: f64,
    /// Probability that a sensitive VM is predicted insensitive.
    miss: f64,
    /// Predicted untouched memory as a share of the actual.
    caution: f64,
    overpredictions: f64,
}

impl Oracle {
    /// Creates an oracle for these VMs. If the population cannot have the requested accuracy (fewer VMs are insensitive than
    /// are to be predicted so), the oracle comes as close as possible; report the accuracy it had, not the requested one.
    #[must_use]
    pub fn new<'a>(vms: impl IntoIterator<Item = &'a Vm>, accuracy: &Accuracy, added_ns: u32, margin: f64, seed: u64) -> Self {
        let (mut all, mut insensitive, mut sensitive, mut untouched) = (0.0f64, 0.0f64, 0.0f64, 0.0f64);
        for vm in vms {
            all += 1.0;
            match slowdown(vm, added_ns) {
                Some(slowdown) if slowdown <= margin => insensitive += 1.0,
                Some(_) => sensitive += 1.0,
                None => {}
            }
            untouched += vm.untouched_ratio.unwrap_or(0.0);
        }
        let chance = |share: f64, of: f64| if of > 0.0 { (share * all / of).clamp(0.0, 1.0) } else { 0.0 };
        Self {
            seed,
            added_ns,
            margin,
            hit: chance(accuracy.insensitive - accuracy.false_positives, insensitive),
            miss: chance(accuracy.false_positives, sensitive),
            caution: if untouched > 0.0 { (accuracy.untouched * all / untouched).clamp(0.0, 1.0) } else { 0.0 },
            overpredictions: accuracy.overpredictions,
        }
    }
}

impl Predict for Oracle {
    fn predict(&self, vm: &Vm) -> Prediction {
        let mut random = Rng::with_seed(self.seed ^ vm.id.wrapping_mul(0xd6e8_feb8_6659_fd93));
        let (verdict, over, excess) = (random.f64(), random.f64(), random.f64());
        let insensitive = match slowdown(vm, self.added_ns) {
            Some(slowdown) if slowdown <= self.margin => verdict < self.hit,
            Some(_) => verdict < self.miss,
            None => false,
        };
        let untouched_ratio = match vm.untouched_ratio {
            // The excess is at most half of the memory that the VM touches: a plausible error.
            Some(truth) if over < self.overpredictions => truth + (1.0 - truth) * excess / 2.0,
            Some(truth) => truth * self.caution,
            None => 0.0,
        };
        Prediction { insensitive, untouched_ratio }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::cast_precision_loss, reason = "a test")]
    fn the_oracle_errs_at_the_given_rates() {
        let mut random = Rng::with_seed(5);
        let vms: Vec<Vm> = (0..40_000)
            .map(|id| Vm { id, untouched_ratio: Some(random.f64()), slowdown_64ns: Some(random.f64() * 0.12), ..Vm::default() })
            .collect();
        let accuracy = Accuracy::AT_182;
        let oracle = Oracle::new(&vms, &accuracy, 64, 0.05, 9);
        let share = |is: &dyn Fn(&Vm, Prediction) -> bool| vms.iter().filter(|vm| is(vm, oracle.predict(vm))).count() as f64 / 40_000.0;
        let near = |got: f64, want: f64| assert!((got - want).abs() < 0.005, "{got}, expected {want}");
        near(share(&|_, predicted| predicted.insensitive), accuracy.insensitive);
        near(share(&|vm, predicted| predicted.insensitive && vm.slowdown_64ns > Some(0.05)), accuracy.false_positives);
        near(share(&|vm, predicted| Some(predicted.untouched_ratio) > vm.untouched_ratio), accuracy.overpredictions);
        let mean = vms.iter().map(|vm| oracle.predict(vm).untouched_ratio).sum::<f64>() / 40_000.0;
        assert!((mean - accuracy.untouched).abs() < 0.03, "{mean}");
        assert_eq!(oracle.predict(&vms[7]), oracle.predict(&vms[7]));
    }

    #[test]
    fn a_vm_without_recorded_values_stays_local() {
        let vms = [Vm::default()];
        let oracle = Oracle::new(&vms, &Accuracy::AT_182, 64, 0.05, 9);
        assert_eq!(oracle.predict(&vms[0]), Prediction::default());
    }
}

//! Lifetimes of VMs by type, estimated from one trace and drawn for another that lacks them.
//!
//! # Problem
//! A trace that begins empty and ends after a few days contains the end of short lifetimes but only the beginning of long
//! ones. Drawing from the completed lifetimes would exclude the long ones.
//!
//! # Method
//! The product-limit estimator (Kaplan and Meier, 1958) for each type: the share of VMs of age `t` that ended at that age,
//! where censored VMs count until they were last seen. The distribution beyond the longest completed lifetime is unknown: such
//! a draw returns no lifetime, and the VM keeps running.

use std::collections::BTreeMap;

use crate::about::About;
use crate::error::Result;
use crate::read::Trace;
use crate::vm::Vm;

/// Number of VMs that ended, and that were still running, by age in seconds.
type Lives = BTreeMap<i64, (u64, u64)>;

/// Lifetime in seconds, and the share of VMs that ended within it.
type Curve = Vec<(i64, f64)>;

/// Lifetimes by type.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lifetimes {
    types: BTreeMap<String, Curve>,
    all: Curve,
}

/// Resolution of lifetimes below a day. Longer ones are counted by the hour, which bounds the number of distinct values.
const STEP_SECONDS: i64 = 300;

impl Lifetimes {
    /// Estimates the lifetimes of a trace.
    ///
    /// # Errors
    /// Any error of reading it.
    pub fn of(trace: &Trace) -> Result<Self> {
        let vms = trace.vms();
        let mut counted = Counted::default();
        for vm in vms {
            counted.count(&vm?, trace.about());
        }
        Ok(counted.curves())
    }

    /// Returns the lifetime in seconds of a VM of this type (of any type if it is unknown) for a uniform draw from 0 to 1.
    /// Returns `None` if it is longer than the longest completed lifetime.
    #[must_use]
    pub fn draw(&self, vm_type: Option<&str>, uniform: f64) -> Option<i64> {
        let curve = vm_type.and_then(|name| self.types.get(name)).unwrap_or(&self.all);
        let at = curve.partition_point(|&(_, over)| over <= uniform);
        curve.get(at).map(|&(seconds, _)| seconds)
    }
}

#[derive(Default)]
struct Counted {
    types: BTreeMap<String, Lives>,
    all: Lives,
}

impl Counted {
    fn count(&mut self, vm: &Vm, about: &About) {
        let ended = vm.departure.is_some();
        let seconds = vm.departure.unwrap_or(about.ends.max(vm.arrival)) - vm.arrival;
        // A coarser resolution for long lifetimes keeps the number of distinct values small.
        let step = if seconds < 86_400 { STEP_SECONDS } else { 3_600 };
        let seconds = seconds - seconds.rem_euclid(step);
        let name = vm.vm_type.and_then(|vm_type| about.names.vm_types.get(usize::from(vm_type)));
        let lives = name.map(|name| self.types.entry(name.clone()).or_default());
        for lives in lives.into_iter().chain([&mut self.all]) {
            let count = lives.entry(seconds).or_default();
            if ended {
                count.0 += 1;
            } else {
                count.1 += 1;
            }
        }
    }

    fn curves(self) -> Lifetimes {
        Lifetimes { types: self.types.into_iter().map(|(name, lives)| (name, curve(&lives))).collect(), all: curve(&self.all) }
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of VMs")]
fn curve(lives: &Lives) -> Curve {
    let mut at_risk: u64 = lives.values().map(|(ended, going)| ended + going).sum();
    let mut alive = 1.0;
    let mut curve = Vec::new();
    for (&seconds, &(ended, going)) in lives {
        if ended > 0 {
            alive *= 1.0 - ended as f64 / at_risk as f64;
            curve.push((seconds, 1.0 - alive));
        }
        at_risk -= ended + going;
    }
    curve
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lifetimes(lives: &[(i64, bool)]) -> Lifetimes {
        let mut counted = Counted::default();
        let about = About { ends: 1_000_000, ..About::default() };
        for &(seconds, ended) in lives {
            let arrival = if ended { 0 } else { about.ends - seconds };
            counted.count(&Vm { arrival, departure: ended.then_some(seconds), ..Vm::default() }, &about);
        }
        counted.curves()
    }

    #[test]
    fn censored_vms_count_until_they_were_last_seen() {
        // Of four VMs, one ends at 300 and one is last seen at 600. Of the two left, one ends at 900, the other is censored.
        let of = lifetimes(&[(300, true), (600, false), (900, true), (1_200, false)]);
        let check = |uniform: f64, want: Option<i64>| assert_eq!(of.draw(None, uniform), want, "{uniform}");
        check(0.0, Some(300));
        check(0.24, Some(300));
        check(0.26, Some(900));
        // 1 - 3/4 * 1/2
        check(0.62, Some(900));
        check(0.63, None);
        check(0.99, None);
    }

    #[test]
    fn an_empty_estimate_draws_no_lifetime() {
        assert_eq!(Lifetimes::default().draw(Some("a"), 0.5), None);
        assert_eq!(lifetimes(&[(300, true)]).draw(Some("unknown"), 0.999), Some(300));
    }
}

//! How long VMs of each type live, from a trace that tells, for one that does not.
//!
//! # Problem
//! A split that begins empty and ends after a few days sees short lives end and long ones only begin. To draw from the
//! lives that ended would leave the long ones out.
//!
//! # Method
//! The product-limit estimate (Kaplan and Meier, 1958) per type: of those that had lived to `t`, which share ended then, where
//! the censored count as long as they were seen. What has not ended by the longest seen life has no known lifetime: such a draw
//! gives none, and the VM is taken to run on.

use std::collections::BTreeMap;

use crate::about::About;
use crate::error::Result;
use crate::read::Trace;
use crate::vm::Vm;

/// Lives that ended, and that were still going on, by length in seconds.
type Lives = BTreeMap<i64, (u64, u64)>;

/// Length, and the share that is over by then.
type Curve = Vec<(i64, f64)>;

/// Lifetimes by type.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lifetimes {
    types: BTreeMap<String, Curve>,
    all: Curve,
}

/// Distinct lengths that are kept for each type: longer ones are then counted by the minute, and so on.
const STEP_SECONDS: i64 = 300;

impl Lifetimes {
    /// The lifetimes in a trace.
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

    /// A lifetime in seconds of a VM of this type (of any, where it is unknown), for a uniform draw from 0 to 1. `None`: longer than
    /// any that was seen to end.
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
        // Within a day, five minutes; beyond it, an hour: lengths stay few.
        let step = if seconds < 86_400 { STEP_SECONDS } else { 3_600 };
        let seconds = seconds - seconds.rem_euclid(step);
        let name = vm.vm_type.and_then(|vm_type| about.words.vm_types.get(usize::from(vm_type)));
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
    fn the_censored_count_as_long_as_they_were_seen() {
        // Of four, one ends at 300. One is last seen at 600. Of the two left, one ends at 900; the other outlives us.
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
    fn without_lives_nothing_is_drawn() {
        assert_eq!(Lifetimes::default().draw(Some("a"), 0.5), None);
        assert_eq!(lifetimes(&[(300, true)]).draw(Some("of no trace"), 0.999), Some(300));
    }
}

//! How much a VM is slowed down if part of the memory that it touches is on the pool.
//!
//! The guest fills its local node first (Pond section 4.2). What does not fit is its *spill*, a share of the memory that it
//! touches. The slowdown is that of the VM with all its memory on the pool, times `spill^exponent`: 0 without a spill, all of it
//! at 1, and more than in proportion between the two. The reason is what remains local: the pages that were touched first, those
//! of boot and start-up, and not the pages that are accessed most. (Pond section 6.3, finding 3) has it for 158 workloads: many
//! are slowed down by a small spill, and some as much by 20 % as by 75 %.
//!
//! [`PUBLISHED`] is fitted to (Pond section 6.5): with a static share of 15 %, one VM in ten touches the pool, and a quarter of
//! those are slowed down by more than 5 %. Of 421,197 generated VMs, 12 % touch it. The exponents 1, 0.8, 0.7 and 0.6 slow down
//! 0.8, 1.7, 2.3 and 3.1 % of all VMs by more than that at 182 %, and 2.3, 3.3, 3.7 and 4.0 % at 222 %; the paper names no
//! latency, and with 0.7 the mean of both is 3.0 %, a quarter of 12 %. Redis with 5, 23 and 53 % of its touched memory on the pool
//! has 6, 31 and 65 % of its accesses there (scenario `pool_znuma`): exponents of 0.98, 0.80 and 0.68.

use pool::{SLICE, Slices};
use serde::Serialize;
use vmtrace::Vm;

use crate::latency::slowdown;

/// The exponent that (Pond section 6.5) leads to.
pub const PUBLISHED: Spill = Spill(0.7);

/// The exponent of the curve, above 0 and at most 1; 1 is a slowdown in proportion to the spill.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spill(pub f64);

impl Spill {
    /// Returns a VM's slowdown with `slices` of its memory on a pool that adds `added_ns`, as a ratio; `None` if the trace has no
    /// slowdown of it. Memory that the trace does not call untouched counts as touched.
    #[must_use]
    pub fn slowdown(self, vm: &Vm, slices: Slices, added_ns: u32) -> Option<f64> {
        slowdown(vm, added_ns).map(|all| all * libm::pow(spilled(vm, slices), self.0))
    }

    /// Returns whether a VM with this split exceeds the margin; `false` if its slowdown is unknown.
    #[must_use]
    pub fn exceeds(self, vm: &Vm, slices: Slices, added_ns: u32, margin: f64) -> bool {
        self.slowdown(vm, slices, added_ns).is_some_and(|slowdown| slowdown > margin)
    }
}

/// Returns the share of a VM's touched memory that lies on the pool.
#[expect(clippy::cast_precision_loss, reason = "memory sizes")]
fn spilled(vm: &Vm, slices: Slices) -> f64 {
    let memory = vm.memory_bytes.0 as f64;
    let touched = memory * (1.0 - vm.untouched_ratio.unwrap_or(0.0));
    let local = memory - slices.bytes(SLICE).0 as f64;
    if touched <= 0.0 { 0.0 } else { ((touched - local.max(0.0)) / touched).clamp(0.0, 1.0) }
}

#[cfg(test)]
mod tests {
    use units::Bytes;

    use super::*;

    fn vm(untouched: f64) -> Vm {
        Vm { memory_bytes: Bytes(8 * SLICE.0), untouched_ratio: Some(untouched), slowdown_64ns: Some(0.2), ..Vm::default() }
    }

    #[test]
    fn only_touched_pool_memory_slows_a_vm_down() {
        let check = |untouched, slices, want| {
            assert_eq!(Spill(1.0).exceeds(&vm(untouched), Slices(slices), 64, 0.05), want, "{untouched} {slices}");
        };
        check(0.5, 0, false);
        check(0.5, 4, false);
        // A quarter of the touched memory is on the pool: a slowdown of 5 %, which does not exceed the margin.
        check(0.5, 5, false);
        check(0.5, 6, true);
        check(0.0, 8, true);
        check(1.0, 8, false);
        let unknown = Vm { memory_bytes: Bytes(8 * SLICE.0), ..Vm::default() };
        assert!(!PUBLISHED.exceeds(&unknown, Slices(8), 64, 0.05), "an unknown slowdown does not count as a misprediction");
    }

    #[test]
    fn a_small_spill_slows_down_by_more_than_its_share_and_a_whole_one_by_all() {
        let at = |slices| PUBLISHED.slowdown(&vm(0.0), Slices(slices), 64).unwrap();
        assert!((at(8) - 0.2).abs() < 1e-12 && at(0) == 0.0);
        // An eighth of the memory: 0.125^0.7 = 23 % of the slowdown.
        assert!((at(1) / 0.2 - 0.2333).abs() < 1e-3, "{}", at(1));
        let steps: Vec<f64> = (1..8).map(|slices| at(slices + 1) - at(slices)).collect();
        assert!(steps.windows(2).all(|pair| pair[1] < pair[0] && pair[1] > 0.0), "concave: {steps:?}");
    }
}

//! How a VM's memory is split between its server and the pool.

use pool::{SLICE, Slices};
use serde::{Deserialize, Serialize};
use units::{Bytes, RatioPpm};
use vmtrace::{Recorded, Vm};

/// A prediction for a VM before it starts (Pond section 4.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// Whether its slowdown stays within the margin with pool memory only.
    pub insensitive: bool,
    /// Share of its memory that it will never touch, 0 to 1.
    pub untouched_ratio: f64,
}

/// A source of predictions: a model, or an oracle with given error rates. A VM about which nothing is known gets
/// [`Prediction::default`]: all its memory local.
pub trait Predict: Sync {
    /// Returns the prediction for a VM, always the same for the same VM.
    fn predict(&self, vm: &Vm) -> Prediction;
}

/// A policy that splits a VM's memory.
#[derive(Clone, Copy)]
pub enum MemoryPolicy<'a> {
    /// All memory is local.
    AllLocal,
    /// The same share of every VM's memory on the pool. Slices are whole: the number of slices is rounded up at random, with
    /// the probability of its fractional part, so that the share also holds for small VMs.
    Static {
        /// The share.
        share: RatioPpm,
        /// Seed of the random rounding.
        seed: u64,
    },
    /// Pond: all memory of a VM that is predicted insensitive goes to the pool; of any other VM, the memory that is predicted
    /// to stay untouched, rounded down to whole slices.
    Pond(&'a dyn Predict),
    /// The slices that a scheduler gave the VM, by [`vmtrace::Recorded`]; none if the trace does not have it.
    Recorded,
    /// The slices that were requested for the VM, whether it got them or not.
    Requested,
}

impl std::fmt::Debug for MemoryPolicy<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AllLocal => f.write_str("AllLocal"),
            Self::Static { share, .. } => write!(f, "Static({} ppm)", share.0),
            Self::Pond(_) => f.write_str("Pond"),
            Self::Recorded => f.write_str("Recorded"),
            Self::Requested => f.write_str("Requested"),
        }
    }
}

/// Returns a VM's memory in MiB, rounded up.
#[must_use]
pub fn mib(vm: &Vm) -> u32 {
    u32::try_from(vm.memory_bytes.to_mib_ceil()).unwrap_or(u32::MAX)
}

impl MemoryPolicy<'_> {
    /// Returns how many slices of a VM's memory go to the pool, at most the whole slices that it has.
    #[must_use]
    pub fn slices(&self, vm: &Vm) -> Slices {
        let whole = Slices(u32::try_from(vm.memory_bytes.0 / SLICE.0).unwrap_or(u32::MAX));
        match self {
            Self::AllLocal => Slices::ZERO,
            Self::Static { share, seed } => {
                let slices_ppm = u128::from(vm.memory_bytes.0) * u128::from(share.0) / u128::from(SLICE.0);
                let draw = fastrand::Rng::with_seed(seed ^ vm.id.wrapping_mul(0x9e37_79b9_7f4a_7c15)).u32(0..1_000_000);
                let up = slices_ppm % 1_000_000 > u128::from(draw);
                Slices(u32::try_from(slices_ppm / 1_000_000 + u128::from(up)).unwrap_or(u32::MAX)).min(whole)
            }
            Self::Pond(predict) => {
                let Prediction { insensitive, untouched_ratio } = predict.predict(vm);
                if insensitive { whole } else { share_of(vm.memory_bytes, untouched_ratio).min(whole) }
            }
            Self::Recorded => recorded(vm, |of| of.pool_bytes).min(whole),
            Self::Requested => recorded(vm, |of| of.requested_bytes).min(whole),
        }
    }
}

/// Returns the whole slices in a recorded amount; 0 if the trace does not have it.
fn recorded(vm: &Vm, of: fn(&Recorded) -> Bytes) -> Slices {
    Slices(vm.recorded.as_deref().map_or(0, |recorded| u32::try_from(of(recorded).0 / SLICE.0).unwrap_or(u32::MAX)))
}

/// Returns the whole slices in a share of memory; 0 if the share is not a number.
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most 2^20 slices, clamped")]
fn share_of(Bytes(bytes): Bytes, ratio: f64) -> Slices {
    if ratio.is_nan() { Slices::ZERO } else { Slices((bytes as f64 * ratio.clamp(0.0, 1.0) / SLICE.0 as f64) as u32) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = SLICE.0;

    struct Fixed(Prediction);

    impl Predict for Fixed {
        fn predict(&self, _: &Vm) -> Prediction {
            self.0
        }
    }

    #[test]
    fn pond_rounds_down_and_clamps_invalid_predictions() {
        let check = |memory_bytes, insensitive, untouched_ratio, want| {
            let fixed = Fixed(Prediction { insensitive, untouched_ratio });
            assert_eq!(
                MemoryPolicy::Pond(&fixed).slices(&Vm { memory_bytes: Bytes(memory_bytes), ..Vm::default() }),
                Slices(want),
                "{memory_bytes} {untouched_ratio}"
            );
        };
        check(8 * GIB, false, 0.49, 3);
        check(8 * GIB, false, 0.5, 4);
        check(8 * GIB, false, 0.0, 0);
        check(8 * GIB, true, 0.0, 8);
        check(GIB * 7 / 4, true, 0.0, 1);
        check(GIB * 3 / 4, true, 1.0, 0);
        check(8 * GIB, false, 7.0, 8);
        check(8 * GIB, false, -1.0, 0);
        check(8 * GIB, false, f64::NAN, 0);
    }

    #[test]
    fn recorded_memory_is_rounded_down_to_slices() {
        let check = |recorded: Option<(u64, u64)>, want: (u32, u32)| {
            let recorded = recorded.map(|(got, requested)| {
                let (pool_bytes, requested_bytes) = (Bytes(got), Bytes(requested));
                Box::new(Recorded { pool_bytes, requested_bytes, ..Recorded::default() })
            });
            let vm = Vm { memory_bytes: Bytes(8 * GIB), recorded, ..Vm::default() };
            assert_eq!((MemoryPolicy::Recorded.slices(&vm), MemoryPolicy::Requested.slices(&vm)), (Slices(want.0), Slices(want.1)));
        };
        check(Some((0, 4 * GIB)), (0, 4));
        check(Some((3 * GIB, 4 * GIB - 1)), (3, 3));
        check(None, (0, 0));
    }

    #[test]
    fn a_static_share_holds_for_small_vms_too() {
        for (memory, share_ppm) in [(GIB * 7 / 4, 100_000), (8 * GIB, 150_000), (28 * GIB, 500_000)] {
            let policy = MemoryPolicy::Static { share: RatioPpm(share_ppm), seed: 1 };
            let slices: Slices = (0..20_000).map(|id| policy.slices(&Vm { id, memory_bytes: Bytes(memory), ..Vm::default() })).sum();
            #[expect(clippy::cast_precision_loss, reason = "a test")]
            let share = f64::from(slices.0) * GIB as f64 / 20_000.0 / memory as f64;
            assert!((share / f64::from(share_ppm) * 1e6 - 1.0).abs() < 0.05, "{share} of {share_ppm} ppm");
        }
        let all = MemoryPolicy::Static { share: RatioPpm::ONE, seed: 1 };
        assert_eq!(all.slices(&Vm { memory_bytes: Bytes(GIB * 7 / 4), ..Vm::default() }), Slices(1), "at most the slices that the VM has");
    }
}

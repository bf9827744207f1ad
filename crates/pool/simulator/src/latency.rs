//! The latency that pool memory adds to an access, and the slowdown that it causes.

use serde::{Deserialize, Serialize};
use vmtrace::Vm;

/// Nanoseconds that a pool of at most so many sockets adds to an access to NUMA-local memory (Pond section 4.1 and figure 7).
/// Up to 8 sockets a multi-headed controller adds 70 ns, and at 16 sockets, with retimers, 90 ns. A switch, for larger pools,
/// adds more than 180 ns; 180 is used, so that the latency of larger pools is not overstated.
const BY_SOCKETS: [(u32, u32); 3] = [(8, 70), (16, 90), (u32::MAX, 180)];

/// NUMA-local latency of the Intel machines of (Pond section 6.1), the base of the third added in (Pond figure 8).
const LOCAL_NS: u32 = 78;

/// The latency that an access to pool memory adds to one to local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Latency {
    /// A fixed number of nanoseconds: 64 and 140 are the 182 % and 222 % of (Pond sections 3.3 and 6.5).
    AddedNs(u32),
    /// The latency of a pool of that size behind multi-headed controllers (Pond figure 7).
    ByPoolSize,
    /// The latency of a pool of that size behind switches only (Pond figure 8): 1.5 times, local latency included.
    SwitchOnly,
}

impl Latency {
    /// Returns the nanoseconds that a pool of so many sockets adds.
    #[must_use]
    pub fn added_ns(self, pool_sockets: u32) -> u32 {
        let by_size = BY_SOCKETS.iter().find(|(most, _)| pool_sockets <= *most).map_or(0, |&(_, ns)| ns);
        match self {
            Self::AddedNs(ns) => ns,
            Self::ByPoolSize => by_size,
            Self::SwitchOnly => (LOCAL_NS + by_size) * 3 / 2 - LOCAL_NS,
        }
    }
}

/// Returns how much slower a VM runs with all its memory on a pool that adds `added_ns`, as a ratio. Interpolates linearly
/// between zero and the trace's values at 64 and 140 ns. `None` if the trace has neither value.
#[must_use]
pub fn slowdown(vm: &Vm, added_ns: u32) -> Option<f64> {
    let added = f64::from(added_ns);
    match (vm.slowdown_64ns, vm.slowdown_140ns) {
        (Some(at_64), Some(at_140)) if added > 64.0 => Some(at_64 + (at_140 - at_64) * (added - 64.0) / 76.0),
        (Some(at_64), _) => Some(at_64 * added / 64.0),
        (None, Some(at_140)) => Some(at_140 * added / 140.0),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_pools_are_slower_and_switches_slower_still() {
        for (sockets, by_size, switched) in [(2, 70, 144), (8, 70, 144), (16, 90, 174), (32, 180, 309), (64, 180, 309)] {
            assert_eq!(Latency::ByPoolSize.added_ns(sockets), by_size);
            assert_eq!(Latency::SwitchOnly.added_ns(sockets), switched);
            assert_eq!(Latency::AddedNs(64).added_ns(sockets), 64);
        }
    }

    #[test]
    fn slowdowns_are_interpolated_between_the_recorded_values() {
        let check = |at_64, at_140, added, want: Option<f64>| {
            let vm = Vm { slowdown_64ns: at_64, slowdown_140ns: at_140, ..Vm::default() };
            let got = slowdown(&vm, added);
            assert!(
                got.zip(want).is_none_or(|(got, want)| (got - want).abs() < 1e-12) && got.is_some() == want.is_some(),
                "{got:?} {want:?}"
            );
        };
        check(Some(0.1), Some(0.4), 0, Some(0.0));
        check(Some(0.1), Some(0.4), 32, Some(0.05));
        check(Some(0.1), Some(0.4), 64, Some(0.1));
        check(Some(0.1), Some(0.4), 102, Some(0.25));
        check(Some(0.1), Some(0.4), 140, Some(0.4));
        check(Some(0.1), Some(0.4), 216, Some(0.7));
        check(Some(0.1), None, 128, Some(0.2));
        check(None, Some(0.4), 70, Some(0.2));
        check(None, None, 64, None);
    }
}

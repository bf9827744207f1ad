//! Values that a trace lacks, drawn from published distributions.
//!
//! No public trace records how much memory a VM leaves untouched, or how much slower it would run on pool memory. To
//! estimate what pooling would save for the VMs of such a trace, each VM gets random values from published distributions. The
//! result holds for VMs with these distributions, not for the VMs of the trace.

use fastrand::Rng;
use vmtrace::Vm;

/// A distribution: values at increasing shares of the population, interpolated linearly.
type Quantiles = [(f64, f64)];

/// Untouched memory: half of the VMs leave half of their memory untouched (Pond section 3.2); no other point is published.
const UNTOUCHED: &Quantiles = &[(0.0, 0.0), (1.0, 1.0)];
/// Slowdown at 182 % of local latency (Pond section 3.3 and figure 5); at most 50 % (Pond figure 16).
const SLOWDOWN_64NS: &Quantiles = &[(0.0, 0.0), (0.26, 0.01), (0.43, 0.05), (0.79, 0.25), (1.0, 0.5)];
/// The same at 222 %. The maximum is not published; it is scaled with the added latency.
const SLOWDOWN_140NS: &Quantiles = &[(0.0, 0.0), (0.23, 0.01), (0.37, 0.05), (0.63, 0.25), (1.0, 1.09)];

/// Fills in the values that the trace lacks for a VM. Returns whether any was missing. The same VM always gets the same
/// values.
pub fn fill_missing(vm: &mut Vm, seed: u64) -> bool {
    let mut random = Rng::with_seed(seed ^ vm.id.wrapping_mul(0xa076_1d64_78bd_642f));
    let (untouched, sensitivity) = (random.f64(), random.f64());
    let missing = vm.untouched_ratio.is_none() || vm.slowdown_64ns.is_none() || vm.slowdown_140ns.is_none();
    vm.untouched_ratio.get_or_insert_with(|| at(UNTOUCHED, untouched));
    // One draw for both: a VM that is sensitive to a little added latency is more sensitive to more (Pond section 3.3).
    vm.slowdown_64ns.get_or_insert_with(|| at(SLOWDOWN_64NS, sensitivity));
    vm.slowdown_140ns.get_or_insert_with(|| at(SLOWDOWN_140NS, sensitivity));
    missing
}

/// Delays a VM's arrival and departure by independent random times below `seconds`, for traces with timestamps of that
/// resolution. Without this, all events of an interval of five minutes coincide, and every pool holds both the VMs that just
/// left and the ones that just arrived.
pub fn spread_times(vm: &mut Vm, seconds: i64, seed: u64) {
    let mut random = Rng::with_seed(seed ^ vm.id.wrapping_mul(0x8ebc_6af0_9c88_c6e3));
    let (arrival, departure) = (random.i64(0..seconds.max(1)), random.i64(0..seconds.max(1)));
    vm.arrival = vm.arrival.saturating_add(arrival);
    vm.departure = vm.departure.map(|left| left.saturating_add(departure).max(vm.arrival));
}

/// Returns the value at a share of the population.
fn at(quantiles: &Quantiles, share: f64) -> f64 {
    let mut values = quantiles.iter().zip(quantiles.iter().skip(1));
    let between = values.find(|(_, (until, _))| share <= *until);
    between.map_or(0.0, |(&(from, low), &(until, high))| low + (high - low) * (share - from) / (until - from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::cast_precision_loss, reason = "a test")]
    fn filled_values_follow_the_published_distributions() {
        let vms: Vec<Vm> = (0..50_000)
            .map(|id| {
                let mut vm = Vm { id, ..Vm::default() };
                assert!(fill_missing(&mut vm, 3));
                vm
            })
            .collect();
        let check = |of: fn(&Vm) -> Option<f64>, value: f64, want: f64| {
            let share = vms.iter().filter(|vm| of(vm) <= Some(value)).count() as f64 / 50_000.0;
            assert!((share - want).abs() < 0.01, "{share} at most {value}, not {want}");
        };
        check(|vm| vm.untouched_ratio, 0.5, 0.5);
        for (value, want) in [(0.01, 0.26), (0.05, 0.43), (0.25, 0.79)] {
            check(|vm| vm.slowdown_64ns, value, want);
        }
        for (value, want) in [(0.01, 0.23), (0.05, 0.37), (0.25, 0.63)] {
            check(|vm| vm.slowdown_140ns, value, want);
        }
        assert!(vms.iter().all(|vm| vm.slowdown_64ns <= vm.slowdown_140ns), "a higher latency gives a higher slowdown");
    }

    #[test]
    fn times_move_by_less_than_the_spread_and_stay_in_order() {
        for id in 0..1_000 {
            let mut vm = Vm { id, arrival: 600, departure: (id % 3 > 0).then_some(600), ..Vm::default() };
            spread_times(&mut vm, 300, 5);
            assert!((600..900).contains(&vm.arrival) && vm.departure.is_none_or(|left| (vm.arrival..900).contains(&left)), "{vm:?}");
            assert_eq!(vm.departure.is_some(), id % 3 > 0);
        }
    }

    #[test]
    fn recorded_values_are_kept() {
        let known = Vm { untouched_ratio: Some(0.125), slowdown_64ns: Some(0.25), slowdown_140ns: Some(0.5), ..Vm::default() };
        let mut vm = known.clone();
        assert!(!fill_missing(&mut vm, 1) && vm == known);
        let mut vm = Vm { slowdown_140ns: None, ..known.clone() };
        assert!(fill_missing(&mut vm, 1) && vm.untouched_ratio == known.untouched_ratio && vm.slowdown_140ns.is_some());
    }
}

//! What any law can save at most at a given loss, with knowledge of the future.
//!
//! # Derivation
//! Between two accesses to a group lies a gap. At the end of each of the gap's intervals the group is in DRAM or out of it; a law that
//! takes it out saves at most its bytes in all of them, and pays once for the access that ends the gap. So a gap of n intervals
//! offers three choices: nothing; zswap, which saves `n * (size - compressed)` for the latency of zswap; the device, which saves
//! `n * size` for that of the device. A gap that the trace or `free` ends costs nothing. Only measured intervals and measured
//! accesses count.
//!
//! Choices of different gaps are independent, so the most that can be saved for a loss is a knapsack: its linear relaxation takes
//! the steps of all gaps in the order of saved bytes per microsecond, the last one in part. That is an upper bound, it is concave in
//! the loss, and so lies above all lines between points of laws, too (Belady's rule is the case of equal sizes and costs).

use std::collections::BTreeMap;

use crate::kernel::Costs;
use crate::trace::{Group, Kind, Trace};

/// The bound for one trace.
#[derive(Clone, Debug)]
pub struct Oracle {
    /// Saved bytes times intervals, and microseconds lost, cumulative; both ascend.
    hull: Vec<(u128, u128)>,
    intervals: u64,
    measured_us: u64,
}

impl Oracle {
    /// Computes the bound.
    #[must_use]
    pub fn new(trace: &Trace, costs: Costs) -> Self {
        let mut steps: BTreeMap<(u64, u64), u64> = BTreeMap::new();
        for_each_gap(trace, |group, intervals, returned| {
            for (saved, cost) in choices(trace, &group, intervals, costs, returned).into_iter().flatten() {
                *steps.entry((saved, cost)).or_default() += 1;
            }
        });
        let mut steps: Vec<_> = steps.into_iter().collect();
        // Most saved per microsecond first; what costs nothing before all.
        steps.sort_by(|((saved, cost), _), ((other_saved, other_cost), _)| {
            let (one, other) = (u128::from(*saved) * u128::from(*other_cost), u128::from(*other_saved) * u128::from(*cost));
            other.cmp(&one).then(cost.cmp(other_cost)).then(saved.cmp(other_saved))
        });
        let mut hull = vec![(0, 0)];
        let (mut saved_all, mut cost_all) = (0, 0);
        for ((saved, cost), count) in steps {
            saved_all += u128::from(saved) * u128::from(count);
            cost_all += u128::from(cost) * u128::from(count);
            hull.push((saved_all, cost_all));
        }
        Self { hull, intervals: trace.measured(), measured_us: trace.measured_us() }
    }

    /// The most bytes that can be saved, in the mean, if this share of the time may be lost.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a bound in double precision; sums are below 2^60")]
    pub fn saved_at(&self, lost_ratio: f64) -> f64 {
        let budget = lost_ratio * self.measured_us as f64;
        let within = self.hull.partition_point(|&(_, cost)| cost as f64 <= budget);
        let (saved, cost) = self.hull[within - 1];
        let part = self
            .hull
            .get(within)
            .map_or(0.0, |&(next_saved, next_cost)| (next_saved - saved) as f64 * (budget - cost as f64) / (next_cost - cost) as f64);
        (saved as f64 + part) / self.intervals.max(1) as f64
    }
}

/// The steps of a gap: from nothing to its first choice, and from that to the second one. Ratios of saved bytes to cost fall from
/// step to step; a choice that is above no line between others is left out.
fn choices(trace: &Trace, group: &Group, intervals: u64, costs: Costs, returned: Option<Return>) -> [Option<(u64, u64)>; 2] {
    let (size, pages) = (trace.group_bytes().0, u64::from(trace.group_pages));
    let device = (intervals * size, pages * u64::from(costs.device_us));
    let Some(Return { adjacent }) = returned else {
        return [Some((device.0, 0)), None];
    };
    if group.kind == Kind::File {
        let by_one_read = (adjacent * pages).min(u64::from(costs.readahead_pages)).max(1);
        return [Some((device.0, device.1 / by_one_read)), None];
    }
    if !group.compresses() {
        return [Some(device), None];
    }
    let zswap = (intervals * (size - group.compressed.share_of(size)), pages * u64::from(costs.zswap_us));
    let by_device_better = u128::from(device.0) * u128::from(zswap.1) >= u128::from(zswap.0) * u128::from(device.1);
    if by_device_better || device.1 <= zswap.1 {
        return [Some(device), None];
    }
    [Some(zswap), Some((device.0 - zswap.0, device.1 - zswap.1))]
}

/// A measured access that ends a gap.
#[derive(Clone, Copy, Debug)]
struct Return {
    /// Groups of page cache that are accessed in the same interval and have adjacent numbers, this one included.
    adjacent: u64,
}

/// For each access of an interval, the length of the run of adjacent groups of page cache that it is in; one for anonymous memory.
fn adjacent(trace: &Trace, accessed: &[u32]) -> Vec<u64> {
    let is_file = |group: u32| trace.groups[group as usize].kind == Kind::File;
    let runs = accessed.chunk_by(|&one, &next| next == one + 1 && is_file(one) && is_file(next));
    runs.flat_map(|run| std::iter::repeat_n(run.len() as u64, run.len())).collect()
}

/// Calls `take` with each gap: its group, its measured intervals, and the measured access that ends it, if one does.
fn for_each_gap(trace: &Trace, mut take: impl FnMut(Group, u64, Option<Return>)) {
    let settle = trace.settle;
    let mut last: Vec<Option<u32>> = vec![None; trace.groups.len()];
    // At the end of interval `from` the group may be out for the first time; at the end of `until` no more.
    let measured = |from: u32, until: u32| u64::from(until.saturating_sub(from.max(settle)));
    let mut now = 0;
    for interval in &trace.intervals {
        for (&group, adjacent) in interval.accessed.iter().zip(adjacent(trace, &interval.accessed)) {
            if let Some(from) = last[group as usize].replace(now)
                && measured(from, now) > 0
            {
                take(trace.groups[group as usize], measured(from, now), Some(Return { adjacent }));
            }
        }
        for &group in &interval.freed {
            if let Some(from) = last[group as usize].take()
                && measured(from, now) > 0
            {
                take(trace.groups[group as usize], measured(from, now), None);
            }
        }
        now += 1;
    }
    for (group, from) in trace.groups.iter().zip(last) {
        if let Some(from) = from
            && measured(from, now) > 0
        {
            take(*group, measured(from, now), None);
        }
    }
}

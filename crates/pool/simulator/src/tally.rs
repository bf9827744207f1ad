//! The results of a run, and the memory that would have to be bought.

use pool::{SLICE, Slices};
use serde::Serialize;
use units::Bytes;

/// Counters of a run. Tallies of several clusters can be added.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Tally {
    /// Events that were handled.
    pub events: u64,
    /// VMs that started.
    pub started: u64,
    /// VMs that no server could hold.
    pub rejected: u64,
    /// VMs on another server than without a pool, because their own could not hold them.
    pub moved: u64,
    /// VMs that got only local memory because no pool had enough free slices.
    pub fell_back: u64,
    /// VMs with cores or memory on more than one NUMA node of their server.
    pub spanning: u64,
    /// VMs with pool memory.
    pub pooled: u64,
    /// VMs that would exceed the margin with the memory they got: scheduling mispredictions (Pond section 6.4.3).
    pub mispredicted: u64,
    /// Mispredicted VMs that were moved to local memory.
    pub mitigated: u64,
    /// Mispredicted VMs that were not moved: over the limit of mitigations, or too little free memory on their server.
    pub left_slow: u64,
    /// VMs lost with their host.
    pub lost_with_host: u64,
    /// VMs lost with an EMC.
    pub lost_with_emc: u64,
    /// Of these, the most that were lost with one failure.
    pub lost_with_emc_max: u64,
    /// Failures of EMCs.
    pub emc_failures: u64,
    /// Failures of hosts, EMCs and managers.
    pub faults: u64,
    /// Messages that were delivered late because the pool's manager had failed.
    pub deferred: u64,
    /// Memory of all VMs, integrated over time.
    pub memory_gib_hours: f64,
    /// Pool memory of all VMs, integrated over time.
    pub pool_gib_hours: f64,
    /// Local memory on another node than the VM's cores, integrated over time.
    pub remote_gib_hours: f64,
    /// VM starts that required slices to be released faster than 1 GiB/s (Pond finding 10).
    pub starts_above_1_gib_per_s: u64,
    /// VM starts that required slices to be released faster than 10 GiB/s.
    pub starts_above_10_gib_per_s: u64,
    /// The highest release speed that a VM start required.
    pub release_gib_per_s_max: f64,
    /// Memory that would have to be bought.
    pub required: Required,
    /// Peak local memory of each server, in MiB.
    #[serde(skip)]
    pub server_peaks_mib: Vec<u64>,
    /// Peak use of each pool, or of each device of sparse pods.
    #[serde(skip)]
    pub pool_peaks: Vec<PoolPeak>,
}

/// Peak numbers of slices of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolPeak {
    /// Unavailable slices: assigned to VMs, or being released.
    pub in_use: Slices,
    /// Slices assigned to VMs.
    pub online: Slices,
}

/// DRAM that must be bought for a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Required {
    /// Local memory if every server has its own peak (Pond sections 3.1 and 6.5).
    pub local_bytes: Bytes,
    /// Pool memory if every pool has its own peak and its buffer.
    pub pool_bytes: Bytes,
    /// Pool memory if slices were released instantly: only slices assigned to VMs.
    pub online_pool_bytes: Bytes,
    /// Local memory if all servers of a cluster are alike, as machines are bought: each has the highest peak.
    pub uniform_local_bytes: Bytes,
    /// Pool memory if all pools of a cluster are alike. A pool of fewer servers gets a proportional part.
    pub uniform_pool_bytes: Bytes,
}

impl Required {
    /// Returns the total by Pond's rule.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.local_bytes + self.pool_bytes
    }

    /// Returns the total by Pond's rule if slices were released instantly; Pond's simulator does not distinguish the two.
    #[must_use]
    pub fn online_bytes(&self) -> Bytes {
        self.local_bytes + self.online_pool_bytes
    }

    /// Returns the total if all servers and all pools of a cluster are alike.
    #[must_use]
    pub fn uniform_bytes(&self) -> Bytes {
        self.uniform_local_bytes + self.uniform_pool_bytes
    }

    /// Adds the memory of another cluster.
    fn add(&mut self, other: &Self) {
        let Self { local_bytes, pool_bytes, online_pool_bytes, uniform_local_bytes, uniform_pool_bytes } = *other;
        self.local_bytes += local_bytes;
        self.pool_bytes += pool_bytes;
        self.online_pool_bytes += online_pool_bytes;
        self.uniform_local_bytes += uniform_local_bytes;
        self.uniform_pool_bytes += uniform_pool_bytes;
    }

    /// Computes the memory from the peaks of one cluster, which has `ratio.0` pools, or devices of sparse pods, for `ratio.1` servers.
    #[must_use]
    pub fn of(server_peaks_mib: &[u64], pool_peaks: &[PoolPeak], buffer: Slices, ratio: (u32, u32)) -> Self {
        let bytes = |slices: Slices| slices.bytes(SLICE);
        let with_buffer = |peak: &PoolPeak| if peak.in_use > Slices::ZERO { peak.in_use + buffer } else { Slices::ZERO };
        let of_pools = || pool_peaks.iter().map(|peak| bytes(with_buffer(peak)));
        let servers = server_peaks_mib.len() as u64;
        let most = of_pools().max().unwrap_or_default();
        let proportional = u128::from(most.0) * u128::from(servers) * u128::from(ratio.0) / u128::from(ratio.1.max(1));
        Self {
            local_bytes: Bytes::mib(server_peaks_mib.iter().sum()),
            pool_bytes: of_pools().sum(),
            online_pool_bytes: pool_peaks.iter().map(|peak| bytes(peak.online)).sum(),
            uniform_local_bytes: Bytes::mib(server_peaks_mib.iter().max().copied().unwrap_or(0) * servers),
            uniform_pool_bytes: Bytes(u64::try_from(proportional).unwrap_or(u64::MAX)),
        }
    }
}

impl Tally {
    /// Adds the tally of another cluster. Peaks of single servers and pools are not added; [`Tally::required`] contains them.
    pub fn add(&mut self, other: &Self) {
        let Self { events, started, rejected, moved, fell_back, spanning, pooled, mispredicted, mitigated, left_slow, .. } = other;
        let Self {
            lost_with_host, lost_with_emc, emc_failures, faults, deferred, starts_above_1_gib_per_s, starts_above_10_gib_per_s, ..
        } = other;
        for (sum, more) in [
            (&mut self.events, events),
            (&mut self.started, started),
            (&mut self.rejected, rejected),
            (&mut self.moved, moved),
            (&mut self.fell_back, fell_back),
            (&mut self.spanning, spanning),
            (&mut self.pooled, pooled),
            (&mut self.mispredicted, mispredicted),
            (&mut self.mitigated, mitigated),
            (&mut self.left_slow, left_slow),
            (&mut self.lost_with_host, lost_with_host),
            (&mut self.lost_with_emc, lost_with_emc),
            (&mut self.emc_failures, emc_failures),
            (&mut self.faults, faults),
            (&mut self.deferred, deferred),
            (&mut self.starts_above_1_gib_per_s, starts_above_1_gib_per_s),
            (&mut self.starts_above_10_gib_per_s, starts_above_10_gib_per_s),
        ] {
            *sum += more;
        }
        self.required.add(&other.required);
        self.memory_gib_hours += other.memory_gib_hours;
        self.pool_gib_hours += other.pool_gib_hours;
        self.remote_gib_hours += other.remote_gib_hours;
        self.lost_with_emc_max = self.lost_with_emc_max.max(other.lost_with_emc_max);
        self.release_gib_per_s_max = self.release_gib_per_s_max.max(other.release_gib_per_s_max);
    }

    /// Returns the share of all VMs' memory that was on pools, over time.
    #[must_use]
    pub fn pool_ratio(&self) -> f64 {
        if self.memory_gib_hours > 0.0 { self.pool_gib_hours / self.memory_gib_hours } else { 0.0 }
    }
}

/// Returns what `required` saves against `reference`, as a share of `reference`; 0 if that is 0.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "a ratio")]
pub fn saved(required: Bytes, reference: Bytes) -> f64 {
    if reference == Bytes::ZERO { 0.0 } else { 1.0 - required.0 as f64 / reference.0 as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn required_memory_is_the_sum_of_peaks() {
        let peaks = [4, 2].map(|in_use| PoolPeak { in_use: Slices(in_use), online: Slices(in_use - 1) });
        let required = Required::of(&[1_024, 3_072, 2_048, 0], &peaks, Slices(1), (1, 2));
        let gib = Bytes::gib;
        assert_eq!(required.online_bytes(), gib(10));
        assert_eq!((required.local_bytes, required.pool_bytes), (gib(6), gib(8)));
        assert_eq!((required.uniform_local_bytes, required.uniform_pool_bytes), (gib(12), gib(10)));
        // The last pool has one server of two.
        assert_eq!(Required::of(&[0, 0, 0], &peaks, Slices::ZERO, (1, 2)).uniform_pool_bytes, gib(6));
        // Devices of a sparse pod: 3 for each server, of 2 ports.
        assert_eq!(Required::of(&[0, 0], &peaks, Slices::ZERO, (3, 2)).uniform_pool_bytes, gib(12));
        assert_eq!(
            Required::of(&[1_024], &[PoolPeak::default()], Slices(5), (1, 1)).pool_bytes,
            Bytes::ZERO,
            "an unused pool needs no buffer"
        );
        assert_eq!((saved(Bytes(75), Bytes(100)), saved(Bytes(1), Bytes::ZERO)), (0.25, 0.0));
    }
}

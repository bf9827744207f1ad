//! What a law may see of the simulated kernel: files of a cgroup, debugfs's `lru_gen`, and what trackers of accesses report.

use units::{Bytes, Pages, RatioPpm};

use crate::generations::Generation;
use crate::kernel::{Costs, Counters, Kernel, Place, Touch};
use crate::stalls::Stall;
use crate::trace::Kind;

/// The kernel as a law sees it.
#[derive(Clone, Copy, Debug)]
pub struct View<'a>(&'a Kernel<'a>);

impl<'a> View<'a> {
    /// A view of a kernel.
    #[must_use]
    pub fn new(kernel: &'a Kernel<'a>) -> Self {
        Self(kernel)
    }

    /// The number of this interval.
    #[must_use]
    pub fn interval(&self) -> u32 {
        self.0.now()
    }

    /// Length of an interval, in milliseconds.
    #[must_use]
    pub fn interval_ms(&self) -> u64 {
        self.0.trace().interval_ms
    }

    /// Time since the job started, at the end of this interval, in milliseconds.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.0.now_ms()
    }

    /// Size of a group.
    #[must_use]
    pub fn group_bytes(&self) -> Bytes {
        self.0.trace().group_bytes()
    }

    /// Pages of a group.
    #[must_use]
    pub fn group_pages(&self) -> u64 {
        u64::from(self.0.trace().group_pages)
    }

    /// The number of groups.
    #[must_use]
    pub fn groups(&self) -> u32 {
        u32::try_from(self.0.trace().groups.len()).unwrap_or(u32::MAX)
    }

    /// `memory.stat`: resident memory of a kind.
    #[must_use]
    pub fn resident(&self, kind: Kind) -> Bytes {
        self.0.resident(kind)
    }

    /// `memory.zswap.current`: the job's share of zswap's pool.
    #[must_use]
    pub fn pool(&self) -> Bytes {
        self.0.pool()
    }

    /// `memory.current`: resident memory and the share of the pool.
    #[must_use]
    pub fn current(&self) -> Bytes {
        self.resident(Kind::Anon) + self.resident(Kind::File) + self.pool()
    }

    /// `memory.pressure`, line `some`.
    #[must_use]
    pub fn memory_stall(&self) -> Stall {
        self.0.memory_stall()
    }

    /// `io.pressure`, line `some`.
    #[must_use]
    pub fn io_stall(&self) -> Stall {
        self.0.io_stall()
    }

    /// Counters since the job started.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.0.counters()
    }

    /// What a return takes, by tier; measured by agents that measure it.
    #[must_use]
    pub fn costs(&self) -> Costs {
        self.0.costs()
    }

    /// debugfs's `lru_gen`, oldest generation first.
    pub fn generations(&self) -> impl Iterator<Item = Generation> + 'a {
        self.0.generations()
    }

    /// `memory.stat`, `inactive_anon` and `inactive_file`: all but the two youngest generations (`lru_gen_is_active`).
    #[must_use]
    pub fn inactive(&self) -> Bytes {
        let youngest = self.generations().last().map_or(0, |generation| generation.seq);
        let old = self.generations().filter(|generation| generation.seq + 1 < youngest);
        let groups: u64 = old.flat_map(|generation| generation.groups).sum();
        Bytes(groups.saturating_mul(self.group_bytes().0))
    }

    /// The accesses of this interval. For trackers only: no counter of the kernel has them.
    #[must_use]
    pub fn touches(&self) -> &'a [Touch] {
        self.0.touches()
    }

    /// Whether a resident group was accessed in this interval: its accessed bit, or its idle flag if it is not mapped.
    #[must_use]
    pub fn is_accessed(&self, group: u32) -> bool {
        self.last_access(group) == Some(self.interval())
    }

    /// The interval of the last access to a group that exists, resident or far: what a tracker has recorded of it.
    #[must_use]
    pub fn last_access(&self, group: u32) -> Option<u32> {
        self.0.last_access(group)
    }

    /// Where a group is.
    #[must_use]
    pub fn place(&self, group: u32) -> Place {
        self.0.place(group)
    }

    /// What a group is: mapping, or page flags.
    #[must_use]
    pub fn kind(&self, group: u32) -> Kind {
        self.0.trace().groups[group as usize].kind
    }

    /// Its compressed size, which an agent learns by compressing a copy.
    #[must_use]
    pub fn compressed(&self, group: u32) -> RatioPpm {
        self.0.trace().groups[group as usize].compressed
    }

    /// Pages in so many groups.
    #[must_use]
    pub fn pages(&self, groups: u64) -> Pages {
        Pages(groups.saturating_mul(self.group_pages()))
    }
}

//! The memory limits that apply to a cgroup: its own, and those of its ancestors.

use units::Bytes;

use super::{Cgroup, Limit, MemoryEvents, parse_events, parse_limit};
use crate::Result;

/// One level of the hierarchy at which memory is limited, and what is charged to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitLevel {
    /// The kernel's id of the cgroup.
    pub id: u64,
    /// The smaller of `memory.max` and `memory.high`.
    pub limit: Limit,
    /// `memory.current`.
    pub current: Bytes,
    /// What the kernel can reclaim of it without swap.
    pub reclaimable: Bytes,
    /// How often its limits were reached. An ancestor's events are its own only: another job's limit is none of this job.
    pub events: MemoryEvents,
    /// Time in which some of its tasks stalled on memory, in microseconds; zero if the kernel does not account it.
    pub stall_us: u64,
}

impl Cgroup {
    /// The cgroup itself, and each ancestor with a limit, from the bottom up.
    ///
    /// # Errors
    /// As [`Cgroup::current`], for the cgroup itself or an ancestor with a limit.
    pub fn limit_levels(&self) -> Result<Vec<LimitLevel>> {
        let mut levels = vec![self.limit_level(self.own_limit()?, "memory.events")?];
        let mut name = self.name.as_str();
        while let Some((parent, _)) = name.rsplit_once('/').filter(|(parent, _)| !parent.is_empty()) {
            let ancestor = Self::open(&self.root, parent)?;
            let limit = ancestor.own_limit()?;
            if limit != Limit::Max {
                levels.push(ancestor.limit_level(limit, "memory.events.local")?);
            }
            name = parent;
        }
        Ok(levels)
    }

    /// Swap that the cgroup may still use by `memory.swap.max`, its own and its ancestors'; `Bytes(u64::MAX)` without a limit.
    ///
    /// # Errors
    /// As [`Cgroup::current`], for the cgroup itself or an ancestor.
    pub fn swap_room(&self) -> Result<Bytes> {
        let mut room = Bytes(u64::MAX);
        self.at_each_level(|level| {
            room = room.min(level.own_swap_room()?);
            Ok(())
        })?;
        Ok(room)
    }

    /// Whether pages of the cgroup that zswap does not store may be written to a swap device: `memory.zswap.writeback`, its own and its
    /// ancestors'. Applies while zswap is enabled (`mem_cgroup_zswap_writeback_enabled` in `mm/memcontrol.c`).
    ///
    /// # Errors
    /// As [`Cgroup::swap_room`].
    pub fn may_pass_zswap(&self) -> Result<bool> {
        let mut passes = true;
        self.at_each_level(|level| {
            passes = passes && level.zswap_writeback()?.unwrap_or(true);
            Ok(())
        })?;
        Ok(passes)
    }

    /// Compressed pages that zswap may still store of the cgroup by `memory.zswap.max`, its own and its ancestors'; `Bytes(u64::MAX)`
    /// without a limit.
    ///
    /// # Errors
    /// As [`Cgroup::swap_room`].
    pub fn zswap_room(&self) -> Result<Bytes> {
        let mut room = Bytes(u64::MAX);
        self.at_each_level(|level| {
            if let Some(Limit::Bytes(limit)) = level.zswap_max()? {
                room = room.min(limit - level.zswap_current()?.unwrap_or_default());
            }
            Ok(())
        })?;
        Ok(room)
    }

    /// Reads the cgroup, then its ancestors below the machine's root cgroup, which has none of these files.
    fn at_each_level(&self, mut read: impl FnMut(&Self) -> Result<()>) -> Result<()> {
        read(self)?;
        let mut name = self.name.as_str();
        while let Some((parent, _)) = name.rsplit_once('/').filter(|(parent, _)| !parent.is_empty()) {
            read(&Self::open(&self.root, parent)?)?;
            name = parent;
        }
        Ok(())
    }

    /// The same by its own `memory.swap.max` alone.
    ///
    /// # Errors
    /// As [`Cgroup::current`].
    pub fn own_swap_room(&self) -> Result<Bytes> {
        match self.swap_max()? {
            Some(Limit::Bytes(limit)) => Ok(limit - self.swap_current()?.unwrap_or_default()),
            Some(Limit::Max) | None => Ok(Bytes(u64::MAX)),
        }
    }

    fn own_limit(&self) -> Result<Limit> {
        let max = self.read("memory.max", parse_limit)?.unwrap_or(Limit::Max);
        Ok(max.min(self.read("memory.high", parse_limit)?.unwrap_or(Limit::Max)))
    }

    fn limit_level(&self, limit: Limit, events: &str) -> Result<LimitLevel> {
        let events = match self.read(events, parse_events)? {
            Some(events) => events,
            // `memory.events.local` exists since Linux 5.2.
            None => self.events()?,
        };
        Ok(LimitLevel {
            id: self.id,
            limit,
            current: self.current()?,
            reclaimable: self.stat()?.reclaimable(),
            events,
            stall_us: self.pressure().map_or(0, |memory| memory.some.total_us),
        })
    }
}

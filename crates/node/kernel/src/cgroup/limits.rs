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
        let mut room = self.own_swap_room()?;
        let mut name = self.name.as_str();
        while let Some((parent, _)) = name.rsplit_once('/').filter(|(parent, _)| !parent.is_empty()) {
            room = room.min(Self::open(&self.root, parent)?.own_swap_room()?);
            name = parent;
        }
        Ok(room)
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

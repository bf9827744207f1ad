//! Whether a job is at its memory limit, judged at each level of the hierarchy.
//!
//! Page cache fills every limit sooner or later, and the kernel reclaims it without swap: a limit is reached when memory that
//! cannot be reclaimed fills it, or when tasks wait for the reclaim that it causes.

use std::collections::BTreeMap;
use std::time::Duration;

use config::{AtLimit, Class};
use kernel::Result;
use kernel::cgroup::{Cgroup, Limit, LimitLevel, MemoryEvents};

/// A limit is full from this much on: all but one part of this many.
const FULL_PARTS: u64 = 100;

/// Reaching a limit counts if some task waited for memory during at least one part of this many of the time since the last
/// reading. A job that streams files reaches its limit all the time, and waits little.
const WAITED_PARTS: u64 = 10;

/// How a job stands to its memory limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// There is room, or page cache that can be reclaimed.
    #[default]
    Below,
    /// A limit is full of memory that cannot be reclaimed without swap, or tasks wait at it.
    Full,
    /// Allocations failed at a limit: the kernel found nothing more to reclaim, swap included.
    Failing,
}

impl Standing {
    /// Whether it forbids offloading, by what the operator chose for jobs at their limit.
    #[must_use]
    pub fn forbids(self, chosen: AtLimit, class: Class) -> bool {
        match self {
            Self::Below => false,
            Self::Failing => true,
            Self::Full => match chosen {
                AtLimit::Auto => class == Class::Conservative,
                AtLimit::Offload => false,
                AtLimit::Stop | AtLimit::FailFast => true,
            },
        }
    }
}

/// Reads a job's limits for one controller. Events are counted from its own last reading: what one controller reads is not lost
/// for another.
#[derive(Clone, Debug, Default)]
pub struct LimitReader {
    /// Events and stall in microseconds at the last reading, by the kernel's id of the cgroup.
    last: BTreeMap<u64, (MemoryEvents, u64)>,
    read_at: Option<Duration>,
}

impl LimitReader {
    /// Reads all levels at `now`, as time since boot.
    ///
    /// # Errors
    /// Any error of the cgroup's files.
    pub fn read(&mut self, cgroup: &Cgroup, now: Duration) -> Result<Standing> {
        let levels = cgroup.limit_levels()?;
        let elapsed = self.read_at.replace(now).map_or(Duration::ZERO, |then| now.saturating_sub(then));
        let waited_min = elapsed.as_micros() / u128::from(WAITED_PARTS);
        let before = std::mem::take(&mut self.last);
        let mut standing = Standing::Below;
        for level in levels {
            let last = before.get(&level.id);
            standing = standing.max(of(&level, last, waited_min));
            self.last.insert(level.id, (level.events, level.stall_us));
        }
        Ok(standing)
    }
}

fn of(level: &LimitLevel, last: Option<&(MemoryEvents, u64)>, waited_min: u128) -> Standing {
    let full = match level.limit {
        Limit::Max => false,
        Limit::Bytes(limit) => (level.current - level.reclaimable).0 >= limit.0 - limit.0 / FULL_PARTS,
    };
    let Some((events, stall_us)) = last else { return if full { Standing::Full } else { Standing::Below } };
    if level.events.oom > events.oom {
        return Standing::Failing;
    }
    let reached = level.events.max > events.max || level.events.high > events.high;
    let waited = u128::from(level.stall_us.saturating_sub(*stall_us));
    if full || (reached && waited > 0 && waited >= waited_min) { Standing::Full } else { Standing::Below }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Machine;

    /// Sets `memory.events` and `memory.pressure`.
    fn events(machine: &Machine, cgroup: &str, (max, oom): (u64, u64), stall_us: u64) {
        let text = format!("low 0\nhigh 0\nmax {max}\noom {oom}\noom_kill 0");
        machine.set(cgroup, "memory.events", &text);
        machine.set(cgroup, "memory.events.local", &text);
        let line = |kind| format!("{kind} avg10=0.00 avg60=0.00 avg300=0.00 total={stall_us}");
        machine.set(cgroup, "memory.pressure", &format!("{}\n{}", line("some"), line("full")));
    }

    #[test]
    fn a_limit_full_of_page_cache_is_not_reached() {
        let machine = Machine::new();
        let job = machine.cgroup("/a");
        let check = |current: u64, stat: &str, max: &str, expected: Standing| {
            machine.set("/a", "memory.current", &current.to_string());
            machine.set("/a", "memory.stat", stat);
            machine.set("/a", "memory.max", max);
            assert_eq!(LimitReader::default().read(&job, Duration::ZERO).unwrap(), expected, "{current} of {max}, {stat}");
        };
        check(1_000_000, "anon 1000000", "max", Standing::Below);
        check(989_999, "anon 989999", "1000000", Standing::Below);
        check(990_000, "anon 990000", "1000000", Standing::Full);
        check(0, "anon 0", "0", Standing::Full);
        check(1_000_000, "anon 400000\ninactive_file 500000\nactive_file 100000", "1000000", Standing::Below);
        check(1_000_000, "anon 400000\nslab_reclaimable 600000", "1000000", Standing::Below);
        // Shared memory and locked page cache cannot be reclaimed without swap.
        check(1_000_000, "anon 0\nfile 1000000\nshmem 1000000", "1000000", Standing::Full);
        check(1_000_000, "file 1000000\nunevictable 1000000", "1000000", Standing::Full);
    }

    #[test]
    fn reaching_a_limit_counts_if_tasks_wait_and_failing_always() {
        let machine = Machine::new();
        let job = machine.cgroup("/a");
        let mut reader = LimitReader::default();
        let mut at = 0;
        let mut check = |max: u64, oom: u64, stall_us: u64, expected: Standing| {
            at += 10;
            events(&machine, "/a", (max, oom), stall_us);
            let found = reader.read(&job, Duration::from_secs(at)).unwrap();
            assert_eq!(found, expected, "{max} and {oom} events, {stall_us} us");
        };
        check(5, 1, 7_000_000, Standing::Below);
        check(9, 1, 7_999_999, Standing::Below);
        check(12, 1, 8_999_999, Standing::Full);
        check(12, 1, 11_000_000, Standing::Below);
        check(12, 2, 11_000_000, Standing::Failing);
        check(12, 2, 11_000_000, Standing::Below);
    }

    #[test]
    fn the_limits_of_ancestors_count_and_those_of_other_jobs_do_not() {
        let machine = Machine::new();
        for name in ["/s", "/s/t"] {
            machine.cgroup(name);
        }
        let job = machine.cgroup("/s/t/a");
        let read = || LimitReader::default().read(&job, Duration::ZERO).unwrap();
        machine.set("/s", "memory.current", "1000000");
        assert_eq!(read(), Standing::Below);
        machine.set("/s", "memory.high", "1000000");
        assert_eq!(read(), Standing::Full, "memory.high of an ancestor");
        machine.set("/s", "memory.stat", "inactive_file 20000");
        assert_eq!(read(), Standing::Below);
        // An ancestor's `memory.events` includes those of all jobs below it.
        events(&machine, "/s", (0, 0), 0);
        let mut reader = LimitReader::default();
        reader.read(&job, Duration::ZERO).unwrap();
        machine.set("/s", "memory.events", "low 0\nhigh 0\nmax 7\noom 7\noom_kill 0");
        assert_eq!(reader.read(&job, Duration::from_secs(1)).unwrap(), Standing::Below);
        events(&machine, "/s", (7, 7), 0);
        assert_eq!(reader.read(&job, Duration::from_secs(2)).unwrap(), Standing::Failing);
    }

    #[test]
    fn readers_do_not_consume_each_others_events() {
        let machine = Machine::new();
        let job = machine.cgroup("/a");
        let (mut one, mut other) = (LimitReader::default(), LimitReader::default());
        events(&machine, "/a", (0, 0), 0);
        one.read(&job, Duration::ZERO).unwrap();
        other.read(&job, Duration::ZERO).unwrap();
        events(&machine, "/a", (0, 1), 0);
        for reader in [&mut one, &mut other] {
            assert_eq!(reader.read(&job, Duration::from_secs(6)).unwrap(), Standing::Failing);
        }
    }

    #[test]
    fn the_class_decides_at_a_full_limit_and_none_offloads_where_allocations_fail() {
        let check = |chosen, expected: [bool; 3]| {
            let found = [Class::Conservative, Class::Standard, Class::Aggressive].map(|class| Standing::Full.forbids(chosen, class));
            assert_eq!(found, expected, "{chosen:?}");
            assert!(Standing::Failing.forbids(chosen, Class::Aggressive) && !Standing::Below.forbids(chosen, Class::Conservative));
        };
        check(AtLimit::Auto, [true, false, false]);
        check(AtLimit::Offload, [false; 3]);
        check(AtLimit::Stop, [true; 3]);
        check(AtLimit::FailFast, [true; 3]);
    }
}

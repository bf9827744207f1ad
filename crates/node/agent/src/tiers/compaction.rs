//! Fragmentation of zram.
//!
//! Its allocator keeps compressed pages of similar size in groups of page frames. A group whose pages were mostly freed keeps all of its
//! frames, until the kernel is short of memory and moves the rest together (`zs_shrinker_scan()` in `mm/zsmalloc.c`). The agent
//! does not wait for that where much would be gained. zswap has the same allocator, and no such request.

use std::time::Duration;

use units::{Bytes, RatioPpm};

use super::areas::{Area, Areas};

/// Less unused memory than this is not worth the CPU time.
const UNUSED_MIN: Bytes = Bytes::mib(16);

/// A device is compacted if this share of its memory is unused.
const UNUSED_RATIO: RatioPpm = RatioPpm(250_000);

/// Time between two requests: one that gained little is not repeated at once.
const EVERY: Duration = Duration::from_mins(10);

/// When the devices were last compacted.
#[derive(Debug, Default)]
pub(super) struct Compaction(Option<Duration>);

impl Compaction {
    /// Compacts the devices that are worth it. Returns what was done, in words.
    pub(super) fn run(&mut self, areas: &Areas, now: Duration) -> Vec<String> {
        if self.0.is_some_and(|then| now.saturating_sub(then) < EVERY) {
            return Vec::new();
        }
        let done: Vec<String> = areas.all().iter().filter(|area| is_worth_it(area.memory, area.unused)).filter_map(compacted).collect();
        if !done.is_empty() {
            self.0 = Some(now);
        }
        done
    }
}

fn is_worth_it(memory: Bytes, unused: Bytes) -> bool {
    unused >= UNUSED_MIN && unused.0 >= UNUSED_RATIO.share_of(memory.0)
}

/// Compacts a device; `None` if it is not zram.
fn compacted(area: &Area) -> Option<String> {
    let zram = area.zram.as_ref()?;
    Some(match zram.compact().and_then(|()| zram.memory()) {
        Ok(stat) => format!("{}: compacted from {} to {}", area.id, area.memory, stat.memory),
        Err(error) => format!("{}: cannot be compacted: {error}", area.id),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Machine;

    #[test]
    fn memory_is_returned_where_it_is_worth_it() {
        let check = |memory, unused, expected| assert_eq!(is_worth_it(Bytes::mib(memory), Bytes::mib(unused)), expected);
        check(64, 16, true);
        check(60, 15, false);
        check(100, 24, false);
        check(0, 0, false);
    }

    #[test]
    fn a_fragmented_device_is_compacted_at_most_every_ten_minutes() {
        let machine = Machine::new();
        let put = |name: &str, text: &str| machine.put(&format!("sys/class/block/zram0/{name}"), text);
        for (name, text) in [("stat", "0 0 0 0 0 0 0 0\n"), ("comp_algorithm", "[lz4]\n"), ("compact", "")] {
            put(name, text);
        }
        machine.put("proc/swaps", "Filename Type Size Used Priority\n/dev/zram0 partition 1048576 0 100\n");
        let active = kernel::swap::read(&machine.roots).unwrap();
        let (mut areas, mut compaction) = (Areas::default(), Compaction::default());
        let mut asked = |compressed: u64, at: u64| {
            put("mm_stat", &format!("0 {} {} 0 0 0 0\n", compressed << 20, 100 << 20));
            put("compact", "");
            assert_eq!(areas.read(&machine.roots, &active), [""; 0]);
            let done = compaction.run(&areas, Duration::from_secs(at));
            assert_eq!(
                std::fs::read_to_string(machine.roots.sys.join("class/block/zram0/compact")).unwrap() == "1",
                !done.is_empty(),
                "{done:?}"
            );
            done.len()
        };
        assert_eq!(asked(80, 0), 0);
        assert_eq!(asked(70, 60), 1);
        assert_eq!(asked(70, 659), 0);
        assert_eq!(asked(70, 660), 1);
    }
}

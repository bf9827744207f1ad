//! Files of the kernel. A guest or a container decides about part of them: names of processes and mappings, sizes, counters.

use kernel::cgroup::{parse_events, parse_limit, parse_stat};
use kernel::{block, capability, cxl, hotplug, kmsg, lru_gen, maps, meminfo, numa, numa_maps, process, psi, smaps, swap, thp, vmstat};
use kernel::{zoneinfo, zram, zswap};

use crate::text;

/// A reader; it returns whether the text was valid.
type Reader = fn(&str) -> bool;

/// The readers, by the first byte of an input.
const READERS: [Reader; 28] = [
    |text| maps::parse(text).is_ok(),
    |text| smaps::parse(text).is_ok(),
    |text| meminfo::parse(text).is_ok(),
    |text| zoneinfo::parse(text).is_ok(),
    |text| vmstat::parse(text).is_ok(),
    |text| lru_gen::parse(text).is_ok(),
    |text| parse_stat(text).is_ok(),
    |text| numa_maps::parse(text).is_ok(),
    |text| psi::parse(text).is_ok(),
    |text| parse_events(text).is_ok(),
    |text| parse_limit(text).is_ok(),
    |text| process::parse_stat(text).is_ok(),
    |text| block::parse_stat(text).is_ok(),
    |text| capability::parse(text).is_ok(),
    |text| capability::parse_lockdown(text).is_ok(),
    |text| swap::parse(text).is_ok(),
    |text| zram::parse_memory_stat(text).is_ok(),
    |text| zram::parse_backing_stat(text).is_ok(),
    |text| zram::parse_algorithm(text).is_ok(),
    |text| zswap::parse_flag(text).is_ok(),
    |text| kmsg::parse(text).is_some(),
    |text| numa::parse_list(text).is_ok_and(|nodes| numa::parse_distances(text, &nodes).is_ok() || !nodes.is_empty()),
    |text| numa::parse_meminfo(text).is_ok() || numa::parse_demotion(text).is_ok(),
    |text| thp::parse_enabled(text).is_ok() || thp::parse_anon_huge(text).is_ok(),
    |text| hotplug::parse_auto_online(text).is_ok() || hotplug::parse_block_size(text).is_ok(),
    |text| lru_gen::parse_enabled(text).is_ok(),
    |text| cxl::parse_size(text).is_ok(),
    |text| cxl::mailbox::parse_logs(text.as_bytes()).is_ok() || cxl::mailbox::parse_effects(text.as_bytes()).is_ok(),
];

/// Reads one file.
pub(crate) fn run(bytes: &[u8]) -> bool {
    let Some((&which, rest)) = bytes.split_first() else { return false };
    let reader = READERS[usize::from(which) % READERS.len()];
    text(rest).is_some_and(reader)
}

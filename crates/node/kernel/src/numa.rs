//! NUMA nodes, memory tiers and automatic balancing: `/sys/devices/system/node`
//! (`Documentation/ABI/stable/sysfs-devices-node`), `/sys/devices/virtual/memory_tiering`
//! (`Documentation/ABI/testing/sysfs-kernel-mm-memory-tiers`), `/sys/kernel/mm/numa` and `kernel.numa_balancing`.
//!
//! A node without processors is slow memory: CXL memory, persistent memory, or memory of another machine. Firmware describes its
//! latency and bandwidth in the HMAT table; without one, only the distances are known.

use std::fs;
use std::path::Path;

use serde::Serialize;
use units::Bytes;

use crate::{Error, Malformed, Result, Roots, file, text};

/// The highest node number of any architecture (`CONFIG_NODES_SHIFT` is 10 at most).
const ID_MAX: u32 = 1023;

/// The longest list of processors or nodes: more than `NR_CPUS` of any kernel.
const LIST_MAX: usize = 1 << 16;

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Node {
    /// The node's number.
    pub id: u32,
    /// Online processors; empty for a node with memory only.
    pub cpus: Vec<u32>,
    /// Total memory; zero for a node with processors only.
    pub total: Bytes,
    /// Free memory.
    pub free: Bytes,
    /// Memory in file pages, most of which are reclaimable.
    pub files: Bytes,
    /// Distance to every node, 10 to itself (ACPI SLIT).
    pub distances: Vec<(u32, u32)>,
    /// Latency and bandwidth from the nearest processors; `None` if firmware does not describe them in an HMAT.
    pub access: Option<Access>,
}

/// The speed of a node's memory for its best initiators (`node*/access0/initiators`, from HMAT).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Access {
    /// Read latency in nanoseconds.
    pub read_latency_ns: Option<u64>,
    /// Write latency in nanoseconds.
    pub write_latency_ns: Option<u64>,
    /// Read bandwidth in MiB/s.
    pub read_bandwidth_mib: Option<u64>,
    /// Write bandwidth in MiB/s.
    pub write_bandwidth_mib: Option<u64>,
}

impl Node {
    /// The distance to `other`; `None` if the kernel does not report it.
    #[must_use]
    pub fn distance_to(&self, other: u32) -> Option<u32> {
        self.distances.iter().find(|(id, _)| *id == other).map(|(_, distance)| *distance)
    }

    /// Read latency of the node's memory in nanoseconds, according to firmware.
    #[must_use]
    pub fn read_latency_ns(&self) -> Option<u64> {
        self.access.and_then(|access| access.read_latency_ns)
    }

    /// The distance to the nearest of `nodes` with processors.
    fn distance_to_cpus(&self, nodes: &[Node]) -> Option<u32> {
        nodes.iter().filter(|node| !node.cpus.is_empty()).filter_map(|node| self.distance_to(node.id)).min()
    }
}

/// The slow nodes, which have memory and no processors, slowest first. Ordered by latency if firmware reports it for all of
/// them, otherwise by distance to the nearest processors.
#[must_use]
pub fn slow_nodes(nodes: &[Node]) -> Vec<&Node> {
    let mut slow: Vec<_> = nodes.iter().filter(|node| node.cpus.is_empty() && node.total > Bytes::ZERO).collect();
    let timed = slow.iter().all(|node| node.read_latency_ns().is_some());
    // A stable sort: of equal nodes, the lowest number is first.
    slow.sort_by_key(|node| {
        let latency = if timed { node.read_latency_ns() } else { None };
        std::cmp::Reverse((latency, node.distance_to_cpus(nodes)))
    });
    slow
}

/// The fast node of a slow node, to which its pages are promoted: the nearest node with processors and memory.
#[must_use]
pub fn fast_node<'a>(nodes: &'a [Node], slow: &Node) -> Option<&'a Node> {
    let homes = nodes.iter().filter(|node| node.id != slow.id && !node.cpus.is_empty() && node.total > Bytes::ZERO);
    homes.min_by_key(|node| (slow.distance_to(node.id).unwrap_or(u32::MAX), node.id))
}

/// Parses a list of processors or nodes: `0-2,5`; empty text is the empty list.
///
/// # Errors
/// [`Malformed`] if a part is neither a number nor a range, or the list exceeds every kernel's limit.
pub fn parse_list(text: &str) -> Result<Vec<u32>, Malformed> {
    const EXPECTED: &str = "a list such as 0-2,5";
    let mut list = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (text::number(Some(first), 1, EXPECTED)?, text::number(Some(last), 1, EXPECTED)?);
        if last < first || (last - first) as usize >= LIST_MAX - list.len() {
            return Err(Malformed::new(1, part, EXPECTED));
        }
        list.extend(first..=last);
    }
    Ok(list)
}

/// The memory of a node, from its `meminfo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Total memory.
    pub total: Bytes,
    /// Free memory.
    pub free: Bytes,
    /// File pages.
    pub files: Bytes,
}

/// Parses a node's `meminfo`, whose lines are `Node 0 MemTotal:  2014332 kB`.
///
/// # Errors
/// [`Malformed`] if `MemTotal` or `MemFree` is missing, or a value is not a number of kB.
pub fn parse_meminfo(text: &str) -> Result<Memory, Malformed> {
    let (mut total, mut free, mut active, mut inactive) = (None, None, None, None);
    for (line, row) in text::lines(text) {
        let (key, value) = row.split_once(':').ok_or_else(|| Malformed::new(line, row, "a key and a colon"))?;
        let slot = match key.rsplit(' ').next() {
            Some("MemTotal") => &mut total,
            Some("MemFree") => &mut free,
            Some("Active(file)") => &mut active,
            Some("Inactive(file)") => &mut inactive,
            _ => continue,
        };
        let kib: u64 = text::number(value.trim().strip_suffix(" kB"), line, "a number of kB")?;
        *slot = Some(Bytes(kib.saturating_mul(1024)));
    }
    let required = |slot: Option<Bytes>, expected| slot.ok_or_else(|| Malformed::new(0, "end of file", expected));
    let files = [active, inactive].into_iter().flatten().fold(0, |sum: u64, bytes| sum.saturating_add(bytes.0));
    Ok(Memory { total: required(total, "MemTotal")?, free: required(free, "MemFree")?, files: Bytes(files) })
}

/// Parses a node's `distance`: one number for each of `nodes`, in their order.
///
/// # Errors
/// [`Malformed`] if the number of distances differs from the number of nodes, or a distance is not a number.
pub fn parse_distances(text: &str, nodes: &[u32]) -> Result<Vec<(u32, u32)>, Malformed> {
    let distances: Vec<u32> =
        text.split_ascii_whitespace().map(|distance| text::number(Some(distance), 1, "a distance")).collect::<Result<_, _>>()?;
    if distances.len() != nodes.len() {
        return Err(Malformed::new(1, text.trim(), "a distance for every node that is online"));
    }
    Ok(nodes.iter().copied().zip(distances).collect())
}

/// The online nodes of this machine, by number; empty on a kernel without NUMA.
///
/// # Errors
/// [`Error::Gone`] if a node goes offline during the reading; [`Error::Parse`]; [`Error::Io`].
pub fn nodes(roots: &Roots) -> Result<Vec<Node>> {
    let directory = roots.sys.join("devices/system/node");
    let ids = numbered(&directory, "node")?;
    ids.iter().map(|&id| node(&directory.join(format!("node{id}")), id, &ids)).collect()
}

fn node(directory: &Path, id: u32, ids: &[u32]) -> Result<Node> {
    let Memory { total, free, files } = parsed(&directory.join("meminfo"), parse_meminfo)?;
    let initiators = directory.join("access0/initiators");
    let value = |name| {
        let path = initiators.join(name);
        let Some(text) = file::read_optional(&path, file::SMALL)? else { return Ok::<_, Error>(None) };
        // The kernel shows 0 for values that firmware does not provide.
        let number = text::only_number(&text, "a whole number").map_err(|malformed| malformed.at(&path))?;
        Ok(Some(number).filter(|number| *number > 0))
    };
    let access = Access {
        read_latency_ns: value("read_latency")?,
        write_latency_ns: value("write_latency")?,
        read_bandwidth_mib: value("read_bandwidth")?,
        write_bandwidth_mib: value("write_bandwidth")?,
    };
    Ok(Node {
        id,
        cpus: parsed(&directory.join("cpulist"), parse_list)?,
        total,
        free,
        files,
        distances: parsed(&directory.join("distance"), |text| parse_distances(text, ids))?,
        access: Some(access).filter(|access| *access != Access::default()),
    })
}

/// A memory tier: nodes of similar speed. The kernel demotes pages to tiers with higher numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryTier {
    /// The tier's number; higher is slower.
    pub id: u32,
    /// The nodes of the tier.
    pub nodes: Vec<u32>,
}

/// The memory tiers, fastest first; empty before Linux 6.1.
///
/// # Errors
/// [`Error::Parse`]; [`Error::Io`].
pub fn tiers(roots: &Roots) -> Result<Vec<MemoryTier>> {
    let directory = roots.sys.join("devices/virtual/memory_tiering");
    let tier = |&id: &u32| Ok(MemoryTier { id, nodes: parsed(&directory.join(format!("memory_tier{id}/nodelist")), parse_list)? });
    numbered(&directory, "memory_tier")?.iter().map(tier).collect()
}

/// The kernel's own migration between nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Balancing {
    /// The bits of `kernel.numa_balancing`: 1 migrates pages to the accessing node, 2 promotes accessed pages from slow to fast
    /// memory; `None` on kernels built without it.
    pub mode: Option<u32>,
    /// Whether reclaim demotes pages to slower tiers instead of swapping them out; `None` on kernels without demotion.
    pub demotion: Option<bool>,
}

/// Parses `/sys/kernel/mm/numa/demotion_enabled`: `true` or `false`.
///
/// # Errors
/// [`Malformed`] for anything else.
pub fn parse_demotion(text: &str) -> Result<bool, Malformed> {
    match text.trim() {
        "true" => Ok(true),
        "false" => Ok(false),
        other => Err(Malformed::new(1, other, "true or false")),
    }
}

/// Reads the settings of the kernel's own migration.
///
/// # Errors
/// [`Error::Parse`]; [`Error::Io`].
pub fn balancing(roots: &Roots) -> Result<Balancing> {
    let mode = roots.proc.join("sys/kernel/numa_balancing");
    let mode_number = |text: &str| text::only_number(text, "0, 1, 2 or 3");
    let demotion = roots.sys.join("kernel/mm/numa/demotion_enabled");
    Ok(Balancing { mode: parsed_optional(&mode, mode_number)?, demotion: parsed_optional(&demotion, parse_demotion)? })
}

fn parsed<T>(path: &Path, parse: impl Fn(&str) -> Result<T, Malformed>) -> Result<T> {
    parse(&file::read(path, file::SMALL)?).map_err(|malformed| malformed.at(path))
}

fn parsed_optional<T>(path: &Path, parse: impl Fn(&str) -> Result<T, Malformed>) -> Result<Option<T>> {
    file::read_optional(path, file::SMALL)?.map(|text| parse(&text).map_err(|malformed| malformed.at(path))).transpose()
}

/// The numbers after `prefix` in the names of a directory, ascending; empty if the directory does not exist.
fn numbered(directory: &Path, prefix: &str) -> Result<Vec<u32>> {
    let fail = |source| Error::from_io(directory, "list", source);
    let entries = match fs::read_dir(directory) {
        Err(source) if file::is_absent(&source) => return Ok(Vec::new()),
        other => other.map_err(fail)?,
    };
    let mut numbers = Vec::new();
    for entry in entries {
        let name = entry.map_err(fail)?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(prefix)?.parse::<u32>().ok());
        numbers.extend(number.filter(|number| *number <= ID_MAX));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

#[cfg(test)]
mod tests;

//! The multi-generational LRU through debugfs: `/sys/kernel/debug/lru_gen`
//! (`Documentation/admin-guide/mm/multigen_lru.rst`).
//!
//! ```text
//! memcg     2 /a
//!  node     0
//!           3      60210      20979          0
//!           4      12030      16384          0
//!           5        940      16388         80
//! ```
//! A generation line holds its number, its age in milliseconds, and its anonymous and file pages. The number after `memcg` is an
//! internal id or the inode number of the cgroup, depending on the kernel: it is read from the file and passed back in commands,
//! never computed.

use std::path::PathBuf;

use serde::Serialize;

use crate::{Error, Malformed, Result, Roots, file, text};

/// One memory cgroup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Memcg {
    /// The kernel's id of the cgroup in this file.
    pub id: u64,
    /// The path below the cgroup mount point, with a leading slash; empty on kernels without memory cgroups. A removed cgroup may
    /// remain under its old path, in addition to a new one of the same name.
    pub path: String,
    /// Generations by NUMA node.
    pub nodes: Vec<Node>,
}

impl Memcg {
    /// Whether it is the cgroup at `path`, or below it.
    #[must_use]
    pub fn belongs(&self, path: &str) -> bool {
        self.path.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// The generations of one cgroup on one NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Node {
    /// The NUMA node.
    pub nid: u32,
    /// The generations, oldest first: at most four.
    pub gens: Vec<Gen>,
}

impl Node {
    /// The number of the youngest generation, an argument of [`LruGen::age`].
    #[must_use]
    pub fn max_seq(&self) -> Option<u64> {
        self.gens.iter().map(|generation| generation.seq).max()
    }
}

/// One generation: pages whose last observed access precedes the next generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Gen {
    /// The generation's number; the youngest has the highest.
    pub seq: u64,
    /// Age in milliseconds.
    pub age_ms: u64,
    /// Anonymous pages. The kernel's count is briefly inexact; negative counts are read as zero.
    pub anon_pages: u64,
    /// File pages.
    pub file_pages: u64,
}

/// Parses `lru_gen`. Statistics lines of `lru_gen_full` are ignored.
///
/// # Errors
/// [`Malformed`] if a line is of none of the three types, or precedes its cgroup or node.
pub fn parse(text: &str) -> Result<Vec<Memcg>, Malformed> {
    let mut memcgs: Vec<Memcg> = Vec::new();
    for (line, row) in text::lines(text) {
        let malformed = |expected| Malformed::new(line, row, expected);
        if let Some(heading) = row.strip_prefix("memcg ") {
            let (id, path) = heading.trim_start().split_once(' ').unwrap_or((heading.trim(), ""));
            let id = text::number(Some(id), line, "the number of a cgroup")?;
            memcgs.push(Memcg { id, path: path.to_owned(), nodes: Vec::new() });
            continue;
        }
        let memcg = memcgs.last_mut().ok_or_else(|| malformed("memcg ID PATH"))?;
        if let Some(nid) = row.strip_prefix(" node ") {
            let nid = text::number(Some(nid), line, "the number of a node")?;
            memcg.nodes.push(Node { nid, gens: Vec::new() });
            continue;
        }
        let node = memcg.nodes.last_mut().ok_or_else(|| malformed("node NUMBER"))?;
        if let Some(generation) = parse_generation(row, line)? {
            node.gens.push(generation);
        }
    }
    Ok(memcgs)
}

/// Parses a generation line; `None` for a statistics line, which has a deeper indentation.
fn parse_generation(row: &str, line: usize) -> Result<Option<Gen>, Malformed> {
    const STATISTICS_INDENT: &str = "            ";
    if row.starts_with(STATISTICS_INDENT) {
        return Ok(None);
    }
    let mut fields = row.split_ascii_whitespace();
    let seq = text::number(fields.next(), line, "the number of a generation")?;
    let age_ms = text::number(fields.next(), line, "an age in milliseconds")?;
    let mut pages = || {
        // The count of a generation that is no longer evictable is marked with an x.
        let count = fields.next().map(|count| count.trim_end_matches('x'));
        let count: i64 = text::number(count, line, "a number of pages")?;
        Ok(u64::try_from(count).unwrap_or(0))
    };
    Ok(Some(Gen { seq, age_ms, anon_pages: pages()?, file_pages: pages()? }))
}

/// The result of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The command was executed; an aging command with an old generation number has no effect and is `Done`, too.
    Done,
    /// `EINVAL`: the cgroup no longer exists, or the generation is too young for the command.
    Refused,
}

/// The enabled components of the multi-generational LRU (`/sys/kernel/mm/lru_gen/enabled`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Enabled {
    /// Whether generations are maintained.
    pub core: bool,
    /// Whether accessed bits of leaf page table entries are cleared in batches.
    pub mm_walk: bool,
    /// Whether accessed bits of non-leaf entries are used.
    pub nonleaf_young: bool,
}

/// Parses the mask in `/sys/kernel/mm/lru_gen/enabled`: `0x0007`.
///
/// # Errors
/// [`Malformed`] if it is not a hexadecimal number.
pub fn parse_enabled(text: &str) -> Result<Enabled, Malformed> {
    let digits = text.trim().strip_prefix("0x");
    let mask = text::hexadecimal(digits, 1, "a mask such as 0x0007")?;
    Ok(Enabled { core: mask & 1 != 0, mm_walk: mask & 2 != 0, nonleaf_young: mask & 4 != 0 })
}

/// The multi-generational LRU of this machine.
#[derive(Clone, Debug)]
pub struct LruGen {
    path: PathBuf,
    enabled: Enabled,
}

impl LruGen {
    /// Finds the multi-generational LRU and its debugfs file.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the kernel lacks it, it is disabled, or debugfs is not mounted;
    /// [`Error::Parse`]; [`Error::Io`].
    pub fn probe(roots: &Roots) -> Result<Self> {
        let switch = roots.sys.join("kernel/mm/lru_gen/enabled");
        let Some(text) = file::read_optional(&switch, file::SMALL)? else {
            return Err(Error::unsupported(
                "this kernel has no multi-generational LRU",
                "boot a kernel with CONFIG_LRU_GEN=y (Linux 6.1 or newer)",
            ));
        };
        let enabled = parse_enabled(&text).map_err(|malformed| malformed.at(&switch))?;
        if !enabled.core {
            return Err(Error::unsupported("the multi-generational LRU is disabled", format!("echo y > {}", switch.display())));
        }
        let path = roots.debug.join("lru_gen");
        if !path.exists() {
            return Err(Error::unsupported(
                format!("{} cannot be seen", path.display()),
                format!("mount -t debugfs none {} as root; kernel lockdown and debugfs=off forbid it", roots.debug.display()),
            ));
        }
        Ok(Self { path, enabled })
    }

    /// The components that were enabled at the time of probing.
    #[must_use]
    pub fn enabled(&self) -> Enabled {
        self.enabled
    }

    /// Reads the generations of all cgroups of the machine.
    ///
    /// # Errors
    /// [`Error::Parse`]; [`Error::Io`].
    pub fn read(&self) -> Result<Vec<Memcg>> {
        parse(&file::read(&self.path, file::LARGE)?).map_err(|malformed| malformed.at(&self.path))
    }

    /// Starts a new generation: the kernel walks the page tables of the cgroup and moves pages that were accessed since the last
    /// walk into it. `max_gen` is the youngest generation of the last reading; if the kernel has started a newer one since, the
    /// command has no effect.
    ///
    /// # Errors
    /// [`Error::Gone`]; [`Error::Io`].
    pub fn age(&self, id: u64, nid: u32, max_gen: u64) -> Result<Outcome> {
        // can_swap=1: age anonymous pages, too; force_scan=1: walk all page tables, without the kernel's bloom filter.
        self.command(&format!("+ {id} {nid} {max_gen} 1 1"))
    }

    /// Evicts about `nr_pages` pages at most from the generations up to `min_gen`. `swappiness` ranges from 0 (file pages only) to
    /// 200 (anonymous pages first). Blocks until done.
    ///
    /// # Errors
    /// [`Error::Gone`]; [`Error::Io`].
    pub fn evict(&self, id: u64, nid: u32, min_gen: u64, swappiness: u8, nr_pages: u64) -> Result<Outcome> {
        self.command(&format!("- {id} {nid} {min_gen} {swappiness} {nr_pages}"))
    }

    fn command(&self, command: &str) -> Result<Outcome> {
        match file::write(&self.path, command) {
            Ok(()) => Ok(Outcome::Done),
            Err(error) if error.errno() == Some(libc::EINVAL) => Ok(Outcome::Refused),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{cut_everywhere, get, tree};

    const CAPTURED: &str = include_str!("testdata/lru_gen-6.12");

    #[test]
    fn captured_files_are_parsed() {
        for text in [CAPTURED, include_str!("testdata/lru_gen-7.2")] {
            let memcgs = parse(text).unwrap();
            let job = memcgs.iter().find(|memcg| memcg.path == "/job").unwrap();
            let [node] = job.nodes.as_slice() else { panic!("{job:?}") };
            assert_eq!((node.nid, node.gens.len(), node.max_seq()), (0, 4, Some(6)));
            assert!(node.gens.is_sorted_by(|older, younger| older.seq < younger.seq && older.age_ms > younger.age_ms));
            assert_eq!(memcgs[0].path, "/");
            cut_everywhere(text, parse);
        }
    }

    #[test]
    fn negative_and_marked_counts_are_parsed() {
        let check = |row: &str, expected: Option<(u64, u64)>| {
            let memcgs = parse(&format!("memcg 18446744073709551615 /a b\n node     1\n{row}\n")).unwrap();
            let node = &memcgs[0].nodes[0];
            assert_eq!((memcgs[0].id, memcgs[0].path.as_str(), node.nid), (u64::MAX, "/a b", 1));
            assert_eq!(node.gens.first().map(|generation| (generation.anon_pages, generation.file_pages)), expected, "{row:?}");
        };
        check("          3      60210      20979          7 ", Some((20_979, 7)));
        check("          3      60210        -12          7 ", Some((0, 7)));
        check("          3      60210         12x         7 ", Some((12, 7)));
        check("                     0          0          0          0          0 ", None);
    }

    #[test]
    fn descendants_belong_to_a_cgroup_and_common_prefixes_do_not() {
        let belongs = |path: &str, to: &str| Memcg { id: 1, path: path.to_owned(), nodes: Vec::new() }.belongs(to);
        assert!(belongs("/a", "/a") && belongs("/a/b", "/a"));
        assert!(!belongs("/ab", "/a") && !belongs("/", "/a"));
    }

    #[test]
    fn misplaced_rows_are_rejected() {
        for (text, line) in [(" node 0\n", 1), ("memcg 1 /\n 1 2 3 4\n", 2), ("memcg 1 /\n node 0\n 1 2 3\n", 3), ("memcg x /\n", 1)] {
            assert_eq!(parse(text).unwrap_err().line, line, "{text:?}");
        }
        assert_eq!(parse("").unwrap(), []);
    }

    #[test]
    fn commands_have_the_kernels_format() {
        let (keep, roots) = tree(&[("sys/kernel/mm/lru_gen/enabled", "0x0007\n"), ("sys/kernel/debug/lru_gen", CAPTURED)]);
        let lru_gen = LruGen::probe(&roots).unwrap();
        assert_eq!(lru_gen.enabled(), Enabled { core: true, mm_walk: true, nonleaf_young: true });
        assert_eq!(lru_gen.read().unwrap(), parse(CAPTURED).unwrap());
        assert_eq!(lru_gen.age(28, 0, 6).unwrap(), Outcome::Done);
        assert_eq!(get(keep.path(), "sys/kernel/debug/lru_gen"), "+ 28 0 6 1 1");
        assert_eq!(lru_gen.evict(28, 0, 3, 200, 512).unwrap(), Outcome::Done);
        assert_eq!(get(keep.path(), "sys/kernel/debug/lru_gen"), "- 28 0 3 200 512");
    }

    #[test]
    fn missing_interfaces_are_reported_with_a_remedy() {
        let check = |files: &[(&str, &str)], remedy: &str| {
            let (_keep, roots) = tree(files);
            let error = LruGen::probe(&roots).unwrap_err();
            assert!(error.is_unsupported() && error.to_string().contains(remedy), "{error}");
        };
        check(&[("sys/x", "")], "CONFIG_LRU_GEN=y");
        check(&[("sys/kernel/mm/lru_gen/enabled", "0x0000\n")], "echo y >");
        check(&[("sys/kernel/mm/lru_gen/enabled", "0x0001\n")], "mount -t debugfs");
        assert_eq!(parse_enabled("7").unwrap_err().expected, "a mask such as 0x0007");
    }
}

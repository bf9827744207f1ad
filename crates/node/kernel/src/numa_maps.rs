//! Memory policies of a process's mappings, and the nodes of their pages: `/proc/PID/numa_maps` (`numa(7)`). Counts are in pages
//! of `kernelpagesize_kB`.
//!
//! ```text
//! 7f2365a7a000 bind:1 file=/memfd:memory-backend-memfd\040(deleted) dirty=27244 active=0 N1=27244 kernelpagesize_kB=4
//! 7f23662fd000 default file=/memfd:memory-backend-memfd\040(deleted)
//! ```

use crate::{Malformed, Result, Roots, file, numa, text};

/// The memory policy of one mapping, and the nodes of its pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Start address of the mapping.
    pub start: u64,
    /// Nodes to which the mapping is bound; empty if it is not bound.
    pub bound: Vec<u32>,
    /// Whether the policy has the flag `MPOL_F_STATIC_NODES`.
    pub is_static: bool,
    /// Resident bytes by node. Pages in swap are not counted.
    pub resident: Vec<(u32, u64)>,
}

impl Policy {
    /// Resident bytes on a node.
    #[must_use]
    pub fn on(&self, node: u32) -> u64 {
        self.resident.iter().filter(|(on, _)| *on == node).map(|(_, bytes)| bytes).sum()
    }
}

/// Parses `/proc/PID/numa_maps`.
///
/// # Errors
/// [`Malformed`] if a line lacks its address, policy or page size, or has a malformed list of nodes.
pub fn parse(text: &str) -> Result<Vec<Policy>, Malformed> {
    text::lines(text).map(|(line, row)| parse_line(line, row)).collect()
}

fn parse_line(line: usize, row: &str) -> Result<Policy, Malformed> {
    let mut words = row.split(' ').peekable();
    let start = text::hexadecimal(words.next(), line, "the address of a mapping")?;
    let name = words.next().filter(|name| !name.is_empty()).ok_or_else(|| Malformed::new(line, row, "a policy"))?;
    // The name of one mode contains a space, and modes may have flags: `bind=static:1`, `prefer (many)=static|balancing:0-1`.
    let mode = words.next_if(|word| name == "prefer" && word.starts_with("(many)")).unwrap_or(name);
    let (mode, nodes) = mode.split_once(':').unwrap_or((mode, ""));
    let (mode, flags) = mode.split_once('=').unwrap_or((mode, ""));
    let bound = if mode == "bind" {
        numa::parse_list(nodes).map_err(|mut malformed| {
            malformed.line = line;
            malformed
        })?
    } else {
        Vec::new()
    };
    let (mut pages, mut kib) = (Vec::new(), None);
    for (key, value) in words.filter_map(|word| word.split_once('=')) {
        if let Some(node) = key.strip_prefix('N').and_then(|node| node.parse::<u32>().ok()) {
            pages.push((node, text::number::<u64>(Some(value), line, "a number of pages")?));
        } else if key == "kernelpagesize_kB" {
            kib = Some(text::number::<u64>(Some(value), line, "the size of a page in kB")?);
        }
    }
    let kib = match kib {
        None if !pages.is_empty() => return Err(Malformed::new(line, row, "a page size, kernelpagesize_kB")),
        kib => kib.unwrap_or_default(),
    };
    let resident = pages.into_iter().map(|(node, pages)| (node, pages.saturating_mul(kib).saturating_mul(1024))).collect();
    Ok(Policy { start, bound, is_static: flags.split('|').any(|flag| flag == "static"), resident })
}

/// Reads `/proc/PID/numa_maps`; `None` if the kernel was built without NUMA.
///
/// # Errors
/// [`crate::Error::Parse`]; [`crate::Error::Io`], `EACCES` without `CAP_SYS_PTRACE`.
pub fn read(roots: &Roots, pid: i32) -> Result<Option<Vec<Policy>>> {
    let path = roots.of_process(pid, "numa_maps");
    let Some(text) = file::read_optional(&path, file::LARGE)? else { return Ok(None) };
    parse(&text).map(Some).map_err(|malformed| malformed.at(&path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{cut_everywhere, tree};

    const CAPTURED: &str = include_str!("testdata/numa_maps");

    #[test]
    fn bound_mappings_are_parsed() {
        let (_keep, roots) = tree(&[("proc/7/numa_maps", CAPTURED)]);
        let bound: Vec<_> = read(&roots, 7).unwrap().unwrap().into_iter().map(|policy| (policy.start, policy.bound)).collect();
        let expected = [
            (0x557e_0340_1000, vec![]),
            (0x557e_034a_6000, vec![]),
            (0x7f23_65a7_a000, vec![0]),
            (0x7f23_662f_d000, vec![]),
            (0x7ffd_c3f9_d000, vec![]),
        ];
        assert_eq!(bound, expected);
        assert!(read(&roots, 8).unwrap().is_none());
        cut_everywhere(CAPTURED, parse);
    }

    #[test]
    fn preferred_nodes_are_not_bindings() {
        let check = |row: &str, want: Result<Vec<u32>, ()>| {
            let found = parse(row).map(|policies| policies[0].bound.clone()).map_err(drop);
            assert_eq!(found, want, "{row}");
        };
        check("7f00 bind:1-2,5 anon=1 N1=1 kernelpagesize_kB=4", Ok(vec![1, 2, 5]));
        check("7f00 bind=static:3", Ok(vec![3]));
        check("7f00 prefer:1 anon=1", Ok(vec![]));
        check("7f00 prefer (many):1-2", Ok(vec![]));
        check("7f00 interleave:0-3", Ok(vec![]));
        check("7f00", Err(()));
        check("xyz default", Err(()));
        check("7f00 bind:a", Err(()));
    }

    #[test]
    fn pages_are_counted_by_node_and_static_policies_are_recognized() {
        let check = |row: &str, is_static: bool, resident: &[(u32, u64)]| {
            let policy = parse(row).unwrap().remove(0);
            assert_eq!((policy.is_static, &policy.resident[..]), (is_static, resident), "{row}");
        };
        check(
            "7f00 bind=static:0 file=/memfd:a\\040(deleted) dirty=3 active=0 N0=1 N1=2 kernelpagesize_kB=4",
            true,
            &[(0, 4096), (1, 8192)],
        );
        check("7f00 prefer (many)=static:0-1 file=/memfd:a N1=2 kernelpagesize_kB=2048", true, &[(1, 4 << 20)]);
        check("7f00 prefer (many)=relative|static:0", true, &[]);
        check("7f00 prefer (many):0", false, &[]);
        check("7f00 bind:0 Nx=1 file=/N0=static", false, &[]);
        assert!(parse("7f00 bind:0 N0=1").is_err() && parse("7f00 bind:0 N0=a kernelpagesize_kB=4").is_err());
        let policy = parse("7f00 default N0=1 N2=3 kernelpagesize_kB=4").unwrap().remove(0);
        assert_eq!((policy.on(2), policy.on(1)), (3 << 12, 0));
    }

    #[test]
    fn mappings_of_this_process_have_policies() {
        let me = i32::try_from(std::process::id()).unwrap();
        if let Some(policies) = read(&Roots::host(), me).unwrap() {
            assert!(policies.len() > 3);
        }
    }
}

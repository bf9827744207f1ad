//! Which NUMA nodes a process's mappings are bound to: `/proc/PID/numa_maps` (`numa(7)`).
//!
//! ```text
//! 7f2365a7a000 bind:1 file=/memfd:memory-backend-memfd\040(deleted) dirty=27244 active=0 N1=27244 kernelpagesize_kB=4
//! 7f23662fd000 default file=/memfd:memory-backend-memfd\040(deleted)
//! ```

use crate::{Malformed, Result, Roots, file, numa, text};

/// One mapping's policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The first byte of the mapping.
    pub start: u64,
    /// Nodes that its pages may come from and no others; none where the kernel is free to choose.
    pub bound: Vec<u32>,
}

/// Reads the text of `/proc/PID/numa_maps`.
///
/// # Errors
/// [`Malformed`] where a line has no address, no policy, or a strange list of nodes.
pub fn parse(text: &str) -> Result<Vec<Policy>, Malformed> {
    let policy = |(line, row): (usize, &str)| {
        let mut words = row.split(' ');
        let start = text::hexadecimal(words.next(), line, "the address of a mapping")?;
        let name = words.next().filter(|name| !name.is_empty()).ok_or_else(|| Malformed::new(line, row, "a policy"))?;
        // A mode may have flags: `bind=static:1`.
        let bound = match name.split_once(':') {
            Some((mode, nodes)) if mode == "bind" || mode.starts_with("bind=") => numa::parse_list(nodes).map_err(|mut malformed| {
                malformed.line = line;
                malformed
            })?,
            _ => Vec::new(),
        };
        Ok(Policy { start, bound })
    };
    text::lines(text).map(policy).collect()
}

/// Reads `/proc/PID/numa_maps`; `None` where the kernel was built without NUMA.
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
    fn what_is_bound_to_a_node_reads() {
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
    fn policies_that_only_prefer_bind_nothing() {
        let check = |row: &str, want: Result<Vec<u32>, ()>| {
            let found = parse(row).map(|policies| policies[0].bound.clone()).map_err(drop);
            assert_eq!(found, want, "{row}");
        };
        check("7f00 bind:1-2,5 anon=1 N1=1", Ok(vec![1, 2, 5]));
        check("7f00 bind=static:3", Ok(vec![3]));
        check("7f00 prefer:1 anon=1", Ok(vec![]));
        check("7f00 prefer (many):1-2", Ok(vec![]));
        check("7f00 interleave:0-3", Ok(vec![]));
        check("7f00", Err(()));
        check("xyz default", Err(()));
        check("7f00 bind:a", Err(()));
    }

    #[test]
    fn our_own_mappings_have_policies() {
        let me = i32::try_from(std::process::id()).unwrap();
        if let Some(policies) = read(&Roots::host(), me).unwrap() {
            assert!(policies.len() > 3);
        }
    }
}

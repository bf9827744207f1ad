//! Resident and referenced memory of a process by mapping, in KiB: `/proc/PID/smaps` and `/proc/PID/clear_refs`
//! (`Documentation/filesystems/proc.rst`).
//!
//! ```text
//! 7f1e30000000-7f1e40000000 rw-s 00000000 00:30 48                         /dev/shm/pool/slice-000000
//! Size:             262144 kB
//! Rss:              108976 kB
//! Referenced:       101408 kB
//! VmFlags: rd wr sh mr mw me ms sd
//! ```

use serde::Serialize;

use crate::maps::{self, Vma};
use crate::{Malformed, Result, Roots, file, text};

/// A mapping with its resident and referenced memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mapping {
    /// The mapping, as in `/proc/PID/maps`.
    pub vma: Vma,
    /// Resident bytes: those in the process's page tables.
    pub rss: u64,
    /// Resident bytes whose accessed bit is set since [`clear_referenced`], or since they became resident.
    pub referenced: u64,
    /// Bytes that are swapped out.
    pub swap: u64,
    /// Whether it consists of huge pages of hugetlbfs, which `rss` and `referenced` leave out.
    pub hugetlb: bool,
}

/// Parses `/proc/PID/smaps`. Unknown keys are ignored: every kernel release adds some.
///
/// # Errors
/// [`Malformed`] if the line of a mapping or one of its values is malformed.
pub fn parse(text: &str) -> Result<Vec<Mapping>, Malformed> {
    let mut mappings: Vec<Mapping> = Vec::new();
    for (line, row) in text::lines(text) {
        // `Rss:` and its like against `7f1e30000000-7f1e40000000`.
        let Some((key, value)) = row.split_once(':').filter(|(key, _)| !key.contains('-')) else {
            let vma = maps::parse_line(row, line)?;
            mappings.push(Mapping { vma, rss: 0, referenced: 0, swap: 0, hugetlb: false });
            continue;
        };
        let Some(mapping) = mappings.last_mut() else { return Err(Malformed::new(line, row, "a mapping before its values")) };
        let figure = match key {
            "Rss" => &mut mapping.rss,
            "Referenced" => &mut mapping.referenced,
            "Swap" => &mut mapping.swap,
            "VmFlags" => {
                mapping.hugetlb = value.split_ascii_whitespace().any(|flag| flag == "ht");
                continue;
            }
            _ => continue,
        };
        let kib: u64 = text::number(value.trim_end().strip_suffix("kB"), line, "a value in kB")?;
        *figure = kib.saturating_mul(1024);
    }
    Ok(mappings)
}

/// Reads `/proc/PID/smaps`. The kernel walks all page tables of the process: about 10 ms per GiB in base pages.
///
/// # Errors
/// [`crate::Error::Gone`]; [`crate::Error::Parse`]; [`crate::Error::Io`], `EACCES` without `CAP_SYS_PTRACE`.
pub fn read(roots: &Roots, pid: i32) -> Result<Vec<Mapping>> {
    let path = roots.of_process(pid, "smaps");
    parse(&file::read(&path, file::LARGE)?).map_err(|malformed| malformed.at(&path))
}

/// Clears the accessed bits of a process's pages. This also affects the kernel's reclaim and other users of accessed bits.
///
/// # Errors
/// [`crate::Error::Gone`]; [`crate::Error::Io`].
pub fn clear_referenced(roots: &Roots, pid: i32) -> Result<()> {
    file::write(&roots.of_process(pid, "clear_refs"), "1")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{cut_everywhere, tree};

    const CAPTURED: &str = include_str!("testdata/smaps");

    #[test]
    fn mappings_of_a_virtual_machine_are_parsed() {
        let (_keep, roots) = tree(&[("proc/7/smaps", CAPTURED)]);
        let mappings = read(&roots, 7).unwrap();
        let found: Vec<_> = mappings.iter().map(|m| (m.vma.path.as_str(), m.vma.inode, m.rss, m.referenced)).collect();
        let expected = [
            ("/dev/shm/pool/slice-000001", 48, 0, 0),
            ("/dev/shm/pool/slice-000000", 47, 108_976 << 10, 101_408 << 10),
            ("/memfd:memory-backend-memfd (deleted)", 1028, 523_820 << 10, 196_540 << 10),
            ("[vsyscall]", 0, 0, 0),
        ];
        assert_eq!(found, expected);
        cut_everywhere(CAPTURED, parse);
    }

    #[test]
    fn huge_pages_of_hugetlbfs_are_marked() {
        let text = "7f0000000000-7f0000200000 rw-s 00000000 00:18 9 /dev/hugepages/a\nRss: 0 kB\nVmFlags: rd wr sh mr mw me ms ht \n";
        assert!(parse(text).unwrap()[0].hugetlb);
        assert!(parse(CAPTURED).unwrap().iter().all(|mapping| !mapping.hugetlb));
    }

    #[test]
    fn values_without_a_mapping_or_a_unit_are_rejected() {
        let check = |text: &str| assert!(parse(text).is_err(), "{text:?}");
        check("Rss: 4 kB\n");
        check("00400000-00401000 r-xp 00000000 00:00 0\nRss: 4\n");
        check("00400000-00401000 r-xp 00000000 00:00 0\nReferenced: x kB\n");
    }

    #[test]
    fn accesses_of_this_process_are_reported() {
        let me = i32::try_from(std::process::id()).unwrap();
        let roots = Roots::host();
        clear_referenced(&roots, me).unwrap();
        // Pages that are mapped after the clearing are referenced. A page accessed before may not be: the processor does not set the
        // bit again while the TLB holds its translation.
        let size = 16 << 20;
        let memory = std::hint::black_box(vec![1_u8; size]);
        let mappings = read(&roots, me).unwrap();
        let referenced = mappings.iter().map(|mapping| mapping.referenced).max();
        assert!(referenced >= Some(16 << 20), "{referenced:?} of {} bytes", memory.len());
        assert!(read(&roots, i32::MAX).unwrap_err().is_gone());
    }
}

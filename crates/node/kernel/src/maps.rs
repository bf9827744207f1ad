//! The mappings of a process: `/proc/PID/maps` (`Documentation/filesystems/proc.rst`).
//!
//! ```text
//! 55d0c0e00000-55d0c0e21000 rw-p 00000000 00:00 0                          [heap]
//! 7f1e2c000000-7f1e2c021000 rw-p 00000000 00:00 0
//! 7f1e30a26000-7f1e30b9c000 r-xp 00026000 fe:01 131105                     /usr/lib/libc.so.6
//! ```

use std::ops::Range;

use serde::Serialize;

use crate::{Malformed, Result, Roots, file, text};

/// One mapping (virtual memory area).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Vma {
    /// Address of the first byte.
    pub start: u64,
    /// Address after the last byte.
    pub end: u64,
    /// Access permissions.
    pub perms: Perms,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Inode number of the file; 0 for anonymous memory.
    pub inode: u64,
    /// Path of the file, or the kernel's name in brackets, with newlines as `\012`; empty for anonymous memory.
    pub path: String,
    /// Type of the memory.
    pub kind: Kind,
}

impl Vma {
    /// The address range.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.start..self.end
    }

    /// The size in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether the mapping is private: writes are not visible to other processes.
    #[must_use]
    pub fn private(&self) -> bool {
        !self.perms.shared
    }

    /// Whether the mapping is empty; the kernel lists no empty mappings.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The permissions of a mapping: the letters `rwxs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Perms {
    /// `r`.
    pub read: bool,
    /// `w`.
    pub write: bool,
    /// `x`.
    pub execute: bool,
    /// `s` instead of `p`: writes are visible to all processes that map the memory.
    pub shared: bool,
}

/// The type of a mapping's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Private anonymous memory.
    Anon,
    /// `[heap]`, grown by `brk(2)`.
    Heap,
    /// `[stack]` of the first thread.
    Stack,
    /// A file. Written pages of a private mapping are anonymous.
    File,
    /// Shared memory, which is swappable: `MAP_SHARED` without a file, `memfd_create(2)`, System V, and files in `/dev/shm`.
    /// Files of another tmpfs cannot be distinguished from files on disk and are [`Kind::File`].
    Shared,
    /// The kernel's pages (`[vdso]`, `[vvar]`, `[vsyscall]`, `[uprobes]`) and hugetlbfs, which cannot be paged out.
    Special,
}

/// Parses `/proc/PID/maps`, which is sorted by address.
///
/// # Errors
/// [`Malformed`] if a line does not have its five fields.
pub fn parse(text: &str) -> Result<Vec<Vma>, Malformed> {
    text::lines(text).map(|(line, row)| parse_line(row, line)).collect()
}

pub(crate) fn parse_line(row: &str, line: usize) -> Result<Vma, Malformed> {
    let malformed = |expected| Malformed::new(line, row, expected);
    // The path is the rest of the line after the fifth field, spaces included.
    let mut fields = row.splitn(6, ' ');
    let (start, end) = fields.next().and_then(|range| range.split_once('-')).ok_or_else(|| malformed("START-END in front"))?;
    let start = text::hexadecimal(Some(start), line, "an address in base 16")?;
    let end = text::hexadecimal(Some(end), line, "an address in base 16")?;
    if end < start {
        return Err(malformed("an end that is not below the start"));
    }
    let perms = match fields.next().map(str::as_bytes) {
        Some(&[read, write, execute, shared]) => {
            Perms { read: read == b'r', write: write == b'w', execute: execute == b'x', shared: shared == b's' }
        }
        _ => return Err(malformed("four letters of permissions")),
    };
    let offset = text::hexadecimal(fields.next(), line, "an offset in base 16")?;
    fields.next().filter(|device| device.contains(':')).ok_or_else(|| malformed("a device MAJOR:MINOR"))?;
    let inode = text::number(fields.next(), line, "an inode number")?;
    let path = fields.next().unwrap_or("").trim_start();
    Ok(Vma { start, end, perms, offset, inode, path: path.to_owned(), kind: kind_of(path, perms, inode) })
}

/// Prefixes of paths of shared memory.
const SHARED_MEMORY: [&str; 4] = ["/dev/zero (deleted)", "/memfd:", "/SYSV", "/dev/shm/"];

fn kind_of(path: &str, perms: Perms, inode: u64) -> Kind {
    match path {
        "[heap]" => Kind::Heap,
        _ if path.starts_with("[stack") => Kind::Stack,
        _ if path.starts_with("[anon_shmem") => Kind::Shared,
        _ if path.starts_with("[anon") => Kind::Anon,
        _ if path.starts_with('[') || path.starts_with("/anon_hugepage") => Kind::Special,
        _ if perms.shared && SHARED_MEMORY.iter().any(|start| path.starts_with(start)) => Kind::Shared,
        _ if inode != 0 => Kind::File,
        _ => Kind::Anon,
    }
}

/// Reads `/proc/PID/maps`; empty for a kernel thread or a process that is exiting.
///
/// # Errors
/// [`crate::Error::Gone`]; [`crate::Error::Parse`]; [`crate::Error::Io`], `EACCES` without `CAP_SYS_PTRACE`.
pub fn read(roots: &Roots, pid: i32) -> Result<Vec<Vma>> {
    let path = roots.of_process(pid, "maps");
    parse(&file::read(&path, file::LARGE)?).map_err(|malformed| malformed.at(&path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{cut_everywhere, tree};

    const CAPTURED: &str = include_str!("testdata/maps");

    #[test]
    fn every_kind_of_mapping_is_classified() {
        let (_keep, roots) = tree(&[("proc/7/maps", CAPTURED)]);
        let vmas = read(&roots, 7).unwrap();
        let kinds: Vec<_> = vmas.iter().map(|vma| (vma.kind, vma.path.as_str())).collect();
        let expected = [
            (Kind::File, "/usr/bin/a program (deleted)"),
            (Kind::Heap, "[heap]"),
            (Kind::Anon, ""),
            (Kind::Anon, "[anon:glibc: malloc]"),
            (Kind::Special, "/anon_hugepage (deleted)"),
            (Kind::Shared, "/dev/zero (deleted)"),
            (Kind::Shared, "/memfd:buffer (deleted)"),
            (Kind::Shared, "/SYSV00000000 (deleted)"),
            (Kind::Shared, "/dev/shm/segment"),
            (Kind::File, "/usr/lib/x86_64-linux-gnu/gconv/gconv-modules.cache"),
            (Kind::Special, "[vvar]"),
            (Kind::Special, "[vdso]"),
            (Kind::Stack, "[stack]"),
            (Kind::Special, "[vsyscall]"),
        ];
        assert_eq!(kinds, expected);
        let first = &vmas[0];
        assert_eq!((first.range(), first.len(), first.offset, first.inode), (0x555a_5c55_0000..0x555a_5c55_2000, 8192, 0x2000, 247_278));
        assert_eq!(first.perms, Perms { read: true, write: false, execute: true, shared: false });
        assert!(first.private() && !vmas[9].private() && !first.is_empty());
        cut_everywhere(CAPTURED, parse);
    }

    #[test]
    fn mappings_of_this_process_are_parsed() {
        let me = i32::try_from(std::process::id()).unwrap();
        let vmas = read(&Roots::host(), me).unwrap();
        let local = std::ptr::from_ref(&me).addr() as u64;
        assert!(vmas.iter().any(|vma| vma.range().contains(&local) && vma.perms.write));
        assert!(read(&Roots::host(), i32::MAX).unwrap_err().is_gone());
    }
}

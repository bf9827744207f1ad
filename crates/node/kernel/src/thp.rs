//! Transparent huge pages: `/sys/kernel/mm/transparent_hugepage` and `split_huge_pages` in debugfs
//! (`Documentation/admin-guide/mm/transhuge.rst`). Small pages are
//! collapsed by [`PidFd::advise_collapse`](crate::madvise::PidFd::advise_collapse).

use std::ops::Range;
use std::path::PathBuf;

use serde::Serialize;
use units::Bytes;

use crate::{Error, Malformed, Result, Roots, file, text, vmstat};

/// The size of a PMD-mapped huge page on x86-64, and on arm64 with base pages of 4 KiB, in bytes. [`Settings::size`] is the
/// size that the kernel reports.
pub const HUGE_PAGE: u64 = 2 << 20;

/// The memory for which the kernel allocates huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Enabled {
    /// All memory.
    Always,
    /// Memory with the advice `MADV_HUGEPAGE`.
    Madvise,
    /// No memory; [`PidFd::advise_collapse`](crate::madvise::PidFd::advise_collapse) still creates huge pages.
    Never,
}

/// The kernel's settings of huge pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Settings {
    /// Memory for which huge pages are allocated.
    pub enabled: Enabled,
    /// Effort of a page fault to allocate a huge page: `always`, `defer`, `defer+madvise`, `madvise` or `never`.
    pub defrag: String,
    /// Whether a kernel thread collapses small pages in the background, unless `enabled` is `never`.
    pub khugepaged: bool,
    /// The size of a huge page.
    pub size: Bytes,
}

/// Returns the word in brackets, the current setting: `always [madvise] never`.
fn marked(text: &str) -> Option<&str> {
    text.split_ascii_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))
}

/// Large pages of anonymous and shared memory that the kernel has split since boot: `thp_split_page` in `/proc/vmstat` for huge pages,
/// and `hugepages-*kB/stats/split` for smaller ones (Linux 6.10), which only anonymous memory is counted in. `None` if the kernel does
/// not count.
///
/// # Errors
/// [`Error::Parse`]; [`Error::Io`].
pub fn splits(roots: &Roots) -> Result<Option<u64>> {
    let Some(mut sum) = vmstat::read(roots)?.thp_split_page else { return Ok(None) };
    let directory = roots.sys.join("kernel/mm/transparent_hugepage");
    for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
        let path = entry.path().join("stats/split");
        if let Some(text) = file::read_optional(&path, file::SMALL)? {
            let count: u64 = text::only_number(&text, "a number of pages").map_err(|malformed| malformed.at(&path))?;
            sum = sum.saturating_add(count);
        }
    }
    Ok(Some(sum))
}

/// Parses `/sys/kernel/mm/transparent_hugepage/enabled`.
///
/// # Errors
/// [`Malformed`] if no known setting is in brackets.
pub fn parse_enabled(text: &str) -> Result<Enabled, Malformed> {
    match marked(text) {
        Some("always") => Ok(Enabled::Always),
        Some("madvise") => Ok(Enabled::Madvise),
        Some("never") => Ok(Enabled::Never),
        _ => Err(Malformed::new(1, text.trim(), "[always], [madvise] or [never]")),
    }
}

/// Reads the settings of huge pages; `None` on a kernel built without them.
///
/// # Errors
/// [`Error::Parse`]; [`Error::Io`].
pub fn settings(roots: &Roots) -> Result<Option<Settings>> {
    let directory = roots.sys.join("kernel/mm/transparent_hugepage");
    let path = directory.join("enabled");
    let Some(enabled) = file::read_optional(&path, file::SMALL)? else { return Ok(None) };
    let enabled = parse_enabled(&enabled).map_err(|malformed| malformed.at(&path))?;
    let path = directory.join("defrag");
    let defrag = file::read(&path, file::SMALL)?;
    let defrag = marked(&defrag).ok_or_else(|| Malformed::new(1, defrag.trim(), "a word in brackets").at(&path))?;
    let path = directory.join("hpage_pmd_size");
    let size = file::read(&path, file::SMALL)?;
    Ok(Some(Settings {
        enabled,
        defrag: defrag.to_owned(),
        khugepaged: directory.join("khugepaged").exists(),
        size: Bytes(text::only_number(&size, "a size in bytes").map_err(|malformed| malformed.at(&path))?),
    }))
}

/// Reads for which memory huge pages are allocated; `None` on a kernel built without them.
///
/// # Errors
/// [`Error::Parse`]; [`Error::Io`].
pub fn enabled(roots: &Roots) -> Result<Option<Enabled>> {
    Ok(settings(roots)?.map(|settings| settings.enabled))
}

/// The sum of `AnonHugePages` in `/proc/PID/smaps` or `smaps_rollup`.
///
/// # Errors
/// [`Malformed`] if a value is not a number of kB.
pub fn parse_anon_huge(text: &str) -> Result<Bytes, Malformed> {
    let mut sum = Bytes::ZERO;
    for (line, row) in text::lines(text) {
        let Some(value) = row.strip_prefix("AnonHugePages:") else { continue };
        let kib: u64 = text::number(value.trim().strip_suffix(" kB"), line, "a number of kB")?;
        sum += Bytes(kib.saturating_mul(1024));
    }
    Ok(sum)
}

/// The anonymous memory of a process in huge pages (`/proc/PID/smaps_rollup`). The kernel walks the page tables of the
/// process.
///
/// # Errors
/// [`Error::Gone`] if the process has exited; [`Error::Parse`]; [`Error::Io`].
pub fn anon_huge(roots: &Roots, pid: i32) -> Result<Bytes> {
    let path = roots.of_process(pid, "smaps_rollup");
    parse_anon_huge(&file::read(&path, file::SMALL)?).map_err(|malformed| malformed.at(&path))
}

/// The command file that splits huge pages (`/sys/kernel/debug/split_huge_pages`, `mm/huge_memory.c`).
#[derive(Clone, Debug)]
pub struct Splitter {
    path: PathBuf,
}

impl Splitter {
    /// Opens the command file.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if debugfs is not mounted or lacks the file.
    pub fn open(roots: &Roots) -> Result<Self> {
        let path = roots.debug.join("split_huge_pages");
        if path.exists() {
            return Ok(Self { path });
        }
        Err(Error::unsupported(
            format!("{} does not exist, so that huge pages cannot be split", path.display()),
            "run as root, mount debugfs (mount -t debugfs none /sys/kernel/debug), and boot a kernel with CONFIG_DEBUG_FS=y and \
             CONFIG_TRANSPARENT_HUGEPAGE=y",
        ))
    }

    /// Splits the huge pages of the process that overlap the addresses `range`. The kernel does not report the result: a huge
    /// page that is pinned or in use stays whole.
    ///
    /// # Errors
    /// [`Error::Gone`] if the process has exited; [`Error::Unsupported`] under kernel lockdown; [`Error::Io`], `EINVAL`
    /// for a process without memory, such as a kernel thread.
    pub fn split(&self, pid: i32, range: &Range<u64>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let command = format!("{pid},{:#x},{:#x}", range.start, range.end);
        match file::write(&self.path, &command) {
            // The file exists: ENOENT and ESRCH refer to the process.
            Err(Error::Gone { .. }) if self.path.exists() => Err(Error::Gone { path: PathBuf::from(format!("/proc/{pid}")) }),
            Err(error) if error.errno() == Some(libc::EPERM) => Err(Error::unsupported(
                format!("{} cannot be written", self.path.display()),
                "boot without kernel lockdown (lockdown=none), which prevents writes to debugfs",
            )),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{cut_everywhere, get, own_pid, tree};

    const ROLLUP: &str = "55d0c0000000-7ffd0ee9f000 ---p 00000000 00:00 0    [rollup]\nRss:  4196 kB\nAnonHugePages:      2048 kB\n\
                          ShmemPmdMapped:        0 kB\n";

    #[test]
    fn settings_are_parsed() {
        let files = [
            ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
            ("sys/kernel/mm/transparent_hugepage/defrag", "always defer [defer+madvise] madvise never\n"),
            ("sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "2097152\n"),
            ("sys/kernel/mm/transparent_hugepage/khugepaged/defrag", "1\n"),
        ];
        let (_keep, roots) = tree(&files);
        let expected = Settings { enabled: Enabled::Madvise, defrag: "defer+madvise".into(), khugepaged: true, size: Bytes::mib(2) };
        assert_eq!((settings(&roots).unwrap(), enabled(&roots).unwrap()), (Some(expected), Some(Enabled::Madvise)));
        let (_keep, roots) = tree(&files[..1]);
        assert!(settings(&roots).unwrap_err().is_gone());
        let (_keep, roots) = tree(&[("sys/kernel/mm/x", "")]);
        assert_eq!(settings(&roots).unwrap(), None);
        cut_everywhere(files[0].1, parse_enabled);
        for (text, expected) in [("[always] madvise never", Enabled::Always), ("always madvise [never]", Enabled::Never)] {
            assert_eq!(parse_enabled(text).unwrap(), expected);
        }
    }

    #[test]
    fn splits_of_all_sizes_are_summed() {
        let files = [
            ("proc/vmstat", "thp_split_page 40\nthp_split_pmd 7\n"),
            ("sys/kernel/mm/transparent_hugepage/hugepages-64kB/stats/split", "2\n"),
            ("sys/kernel/mm/transparent_hugepage/hugepages-32kB/enabled", "never\n"),
        ];
        assert_eq!(splits(&tree(&files).1).unwrap(), Some(42));
        let (_keep, roots) = tree(&files[..1]);
        assert_eq!(splits(&roots).unwrap(), Some(40), "before Linux 6.10");
        let (_keep, roots) = tree(&[("proc/vmstat", "pgfault 1\n")]);
        assert_eq!(splits(&roots).unwrap(), None);
    }

    #[test]
    fn anonymous_huge_pages_are_summed() {
        let (_keep, roots) = tree(&[("proc/7/smaps_rollup", ROLLUP)]);
        assert_eq!(anon_huge(&roots, 7).unwrap(), Bytes::mib(2));
        assert!(anon_huge(&roots, 8).unwrap_err().is_gone());
        assert_eq!(parse_anon_huge(&ROLLUP.repeat(3)).unwrap(), Bytes::mib(6));
        cut_everywhere(ROLLUP, parse_anon_huge);
        anon_huge(&Roots::host(), own_pid()).unwrap();
    }

    #[test]
    fn the_command_holds_process_and_range() {
        let (keep, roots) = tree(&[("sys/kernel/debug/split_huge_pages", "")]);
        let splitter = Splitter::open(&roots).unwrap();
        splitter.split(42, &(0x7f00_0020_0000..0x7f00_0040_0000)).unwrap();
        assert_eq!(get(keep.path(), "sys/kernel/debug/split_huge_pages"), "42,0x7f0000200000,0x7f0000400000");
        splitter.split(43, &(4096..4096)).unwrap();
        assert!(get(keep.path(), "sys/kernel/debug/split_huge_pages").starts_with("42,"), "nothing to split");
        let (_keep, roots) = tree(&[("sys/kernel/debug/x", "")]);
        let error = Splitter::open(&roots).unwrap_err();
        assert!(error.is_unsupported() && error.to_string().contains("mount -t debugfs"), "{error}");
    }
}

//! The machine's memory: `/proc/meminfo` (`Documentation/filesystems/proc.rst`). Values are in KiB, printed as `kB`.
//!
//! ```text
//! MemTotal:       24684084 kB
//! MemFree:        20011892 kB
//! Zswap:                 0 kB
//! ```

use serde::Serialize;
use units::Bytes;

use crate::{Malformed, Result, Roots, file, text};

/// The fields of `/proc/meminfo` that Thermocline uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemInfo {
    /// Usable memory.
    pub total: Bytes,
    /// Unused memory.
    pub free: Bytes,
    /// The kernel's estimate of the memory available to new programs without swapping.
    pub available: Bytes,
    /// Memory without files that is mapped by programs; zero if the kernel does not print it.
    pub anon: Bytes,
    /// Shared memory and files of tmpfs; zero if the kernel does not print it.
    pub shmem: Bytes,
    /// Pages in memory that still have their place in swap; zero if the kernel does not print it.
    pub swap_cached: Bytes,
    /// Total swap space.
    pub swap_total: Bytes,
    /// Unused swap space.
    pub swap_free: Bytes,
    /// Compressed size of the zswap pool; `None` on kernels built without zswap.
    pub zswap: Option<Bytes>,
    /// Uncompressed size of the pages in zswap.
    pub zswapped: Option<Bytes>,
}

impl MemInfo {
    /// Memory that only swap can take from programs, in memory or in swap already: it grows when they ask for more.
    #[must_use]
    pub fn swap_backed(&self) -> Bytes {
        self.anon + self.shmem + (self.swap_total - self.swap_free) - self.swap_cached
    }
}

/// Parses `/proc/meminfo`. Unknown keys are ignored.
///
/// # Errors
/// [`Malformed`] if a known value is not a number of kB, or a field that every kernel prints is missing.
pub fn parse(text: &str) -> Result<MemInfo, Malformed> {
    let (mut total, mut free, mut available, mut swap_total, mut swap_free) = (None, None, None, None, None);
    let (mut zswap, mut zswapped, mut anon, mut shmem, mut swap_cached) = (None, None, None, None, None);
    for (line, row) in text::lines(text) {
        let (key, value) = row.split_once(':').ok_or_else(|| Malformed::new(line, row, "a key and a colon"))?;
        let slot = match key {
            "MemTotal" => &mut total,
            "MemFree" => &mut free,
            "MemAvailable" => &mut available,
            "AnonPages" => &mut anon,
            "Shmem" => &mut shmem,
            "SwapCached" => &mut swap_cached,
            "SwapTotal" => &mut swap_total,
            "SwapFree" => &mut swap_free,
            "Zswap" => &mut zswap,
            "Zswapped" => &mut zswapped,
            _ => continue,
        };
        let kib: u64 = text::number(value.trim().strip_suffix(" kB"), line, "a number of kB")?;
        *slot = Some(Bytes(kib.saturating_mul(1024)));
    }
    let required = |slot: Option<Bytes>, expected| slot.ok_or_else(|| Malformed::new(0, "end of file", expected));
    Ok(MemInfo {
        total: required(total, "MemTotal")?,
        free: required(free, "MemFree")?,
        available: required(available, "MemAvailable")?,
        anon: anon.unwrap_or_default(),
        shmem: shmem.unwrap_or_default(),
        swap_cached: swap_cached.unwrap_or_default(),
        swap_total: required(swap_total, "SwapTotal")?,
        swap_free: required(swap_free, "SwapFree")?,
        zswap,
        zswapped,
    })
}

/// Reads `/proc/meminfo`.
///
/// # Errors
/// [`crate::Error::Parse`], [`crate::Error::Io`].
pub fn read(roots: &Roots) -> Result<MemInfo> {
    let path = roots.proc.join("meminfo");
    parse(&file::read(&path, file::SMALL)?).map_err(|malformed| malformed.at(&path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{cut_everywhere, tree};

    const CAPTURED: &str = include_str!("testdata/meminfo");

    #[test]
    fn a_captured_file_is_parsed() {
        let (_keep, roots) = tree(&[("proc/meminfo", CAPTURED)]);
        let info = read(&roots).unwrap();
        assert!(info.total > info.available && info.available >= info.free && info.free > Bytes::ZERO);
        assert_eq!((info.swap_total, info.zswap, info.zswapped), (Bytes::ZERO, Some(Bytes::ZERO), Some(Bytes::ZERO)));
        assert_eq!(info.swap_backed(), info.anon + info.shmem);
        let swapped = "MemTotal: 99 kB\nMemFree: 9 kB\nMemAvailable: 9 kB\nAnonPages: 30 kB\nShmem: 5 kB\nSwapCached: 7 kB\nSwapTotal: 50 kB\nSwapFree: 30 kB\n";
        assert_eq!(parse(swapped).unwrap().swap_backed(), Bytes(48 << 10));
        cut_everywhere(CAPTURED, parse);
    }

    #[test]
    fn values_are_converted_to_bytes_and_zswap_may_be_absent() {
        let text = "MemTotal: 4 kB\nMemFree: 3 kB\nMemAvailable: 2 kB\nSwapTotal: 1 kB\nSwapFree: 0 kB\nHugePages_Total:       0\n";
        let info = parse(text).unwrap();
        assert_eq!((info.total, info.swap_total, info.zswap), (Bytes(4096), Bytes(1024), None));
        assert_eq!(parse(&text.replace("MemAvailable", "Other")).unwrap_err().expected, "MemAvailable");
        assert_eq!(parse(&text.replace("3 kB", "3 MB")).unwrap_err().line, 2);
    }
}

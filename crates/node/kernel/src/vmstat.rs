//! The machine's event counters: `/proc/vmstat`, `key value` lines; each counts pages or events since boot.

use std::fs::File;
use std::io::Seek;
use std::path::PathBuf;

use serde::Serialize;

use crate::text::FlatKeyed;
use crate::{Error, Malformed, Result, Roots, file};

/// The counters of `/proc/vmstat` that Thermocline uses; `None` if the kernel does not print it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VmStat {
    /// Pages read from swap devices.
    pub pswpin: Option<u64>,
    /// Pages written to swap devices.
    pub pswpout: Option<u64>,
    /// Pages brought back out of zswap.
    pub zswpin: Option<u64>,
    /// Pages stored in zswap.
    pub zswpout: Option<u64>,
    /// Pages that zswap wrote back to the swap device.
    pub zswpwb: Option<u64>,
    /// Allocations that had to reclaim memory themselves, in all zones.
    pub allocstall: Option<u64>,
    /// Pages that the kernel's reclaim thread freed.
    pub pgsteal_kswapd: Option<u64>,
    /// Pages that allocations freed themselves.
    pub pgsteal_direct: Option<u64>,
    /// Page faults.
    pub pgfault: Option<u64>,
    /// Page faults that had to wait for I/O or decompression.
    pub pgmajfault: Option<u64>,
    /// Refaults of anonymous pages.
    pub workingset_refault_anon: Option<u64>,
    /// Refaults of file pages.
    pub workingset_refault_file: Option<u64>,
    /// Processes that the out-of-memory killer ended.
    pub oom_kill: Option<u64>,
    /// Huge pages that were split.
    pub thp_split_page: Option<u64>,
}

/// Parses `/proc/vmstat`. Unknown keys are ignored.
///
/// # Errors
/// [`Malformed`] if a line has no value, or that of a known key is not a number.
pub fn parse(text: &str) -> Result<VmStat, Malformed> {
    let table = FlatKeyed::split(text)?;
    Ok(VmStat {
        pswpin: table.get("pswpin")?,
        pswpout: table.get("pswpout")?,
        zswpin: table.get("zswpin")?,
        zswpout: table.get("zswpout")?,
        zswpwb: table.get("zswpwb")?,
        allocstall: allocstall(&table)?,
        pgsteal_kswapd: table.get("pgsteal_kswapd")?,
        pgsteal_direct: table.get("pgsteal_direct")?,
        pgfault: table.get("pgfault")?,
        pgmajfault: table.get("pgmajfault")?,
        workingset_refault_anon: table.get("workingset_refault_anon")?,
        workingset_refault_file: table.get("workingset_refault_file")?,
        oom_kill: table.get("oom_kill")?,
        thp_split_page: table.get("thp_split_page")?,
    })
}

/// The kernel counts `allocstall` by zone, and has only the zones that it was built with.
fn allocstall(table: &FlatKeyed) -> Result<Option<u64>, Malformed> {
    let mut sum = None;
    for zone in ["dma", "dma32", "normal", "highmem", "movable", "device"] {
        if let Some(count) = table.get(&format!("allocstall_{zone}"))? {
            sum = Some(sum.unwrap_or(0_u64).saturating_add(count));
        }
    }
    Ok(sum)
}

/// Reads `/proc/vmstat`.
///
/// # Errors
/// [`crate::Error::Parse`], [`crate::Error::Io`].
pub fn read(roots: &Roots) -> Result<VmStat> {
    VmStatFile::open(roots)?.read()
}

/// `/proc/vmstat`, opened once to be read several times.
#[derive(Debug)]
pub struct VmStatFile {
    file: File,
    path: PathBuf,
}

impl VmStatFile {
    /// Opens it.
    ///
    /// # Errors
    /// [`crate::Error::Io`].
    pub fn open(roots: &Roots) -> Result<Self> {
        let path = roots.proc.join("vmstat");
        let file = File::open(&path).map_err(|source| Error::from_io(&path, "open", source))?;
        Ok(Self { file, path })
    }

    /// Reads the counters as they are now: a read at offset 0 makes the kernel count again (`seq_read()` in `fs/seq_file.c`).
    ///
    /// # Errors
    /// [`crate::Error::Parse`], [`crate::Error::Io`].
    pub fn read(&self) -> Result<VmStat> {
        (&self.file).rewind().map_err(|source| Error::from_io(&self.path, "rewind", source))?;
        parse(&file::read_opened(&self.file, &self.path, file::SMALL)?).map_err(|malformed| malformed.at(&self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{cut_everywhere, tree};

    const CAPTURED: &str = include_str!("testdata/vmstat");

    #[test]
    fn a_captured_file_is_parsed() {
        let (_keep, roots) = tree(&[("proc/vmstat", CAPTURED)]);
        let stat = read(&roots).unwrap();
        assert!(stat.pgfault > stat.pgmajfault, "{stat:?}");
        assert_eq!((stat.pswpin, stat.zswpout), (Some(0), Some(0)));
        cut_everywhere(CAPTURED, parse);
    }

    #[test]
    fn an_open_file_shows_the_counters_of_each_read() {
        let (_keep, roots) = tree(&[("proc/vmstat", "zswpwb 1\n")]);
        let file = VmStatFile::open(&roots).unwrap();
        assert_eq!(file.read().unwrap().zswpwb, Some(1));
        std::fs::write(roots.proc.join("vmstat"), "zswpwb 2\npgfault 7\n").unwrap();
        assert_eq!(file.read().unwrap().zswpwb, Some(2));
        let host = VmStatFile::open(&Roots::host()).unwrap();
        let before = host.read().unwrap().pgfault;
        drop(vec![1_u8; 64 << 20]);
        assert!(host.read().unwrap().pgfault > before, "the kernel's own file counts on");
    }

    #[test]
    fn missing_counters_are_none() {
        let stat = parse("pgfault 7\nnr_new_thing 12 34\n").unwrap();
        assert_eq!(stat, VmStat { pgfault: Some(7), ..VmStat::default() });
        assert_eq!(parse("pgfault 7\npswpin x\n").unwrap_err().line, 2);
    }

    #[test]
    fn allocation_stalls_are_summed_over_the_zones() {
        let check = |text, expected| assert_eq!(parse(text).map(|stat| stat.allocstall), expected, "{text:?}");
        check("pgfault 7\n", Ok(None));
        check("allocstall_dma 0\nallocstall_normal 5\nallocstall_movable 2\n", Ok(Some(7)));
        check("allocstall_normal 1\nallocstall_device 18446744073709551615\n", Ok(Some(u64::MAX)));
        assert_eq!(parse("allocstall_normal -1\n").unwrap_err().line, 1);
    }
}

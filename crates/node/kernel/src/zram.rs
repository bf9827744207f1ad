//! zram, a block device that stores its pages compressed in DRAM (`Documentation/admin-guide/blockdev/zram.rst`): files in
//! `/sys/block/zramN`.
//!
//! `mm_stat` is one line of at least seven counters. All but `same_pages` and those after it are in bytes:
//! ```text
//! orig_data_size compr_data_size mem_used_total mem_limit mem_used_max same_pages pages_compacted huge_pages huge_pages_since
//!      104857600        31457280       33554432         0     33554432          3               0          7                9
//! ```
//! `bd_stat` exists on kernels with CONFIG_ZRAM_WRITEBACK. It counts in units of 4 KiB:
//! ```text
//! bd_count bd_reads bd_writes
//!      256       12       268
//! ```

use serde::Serialize;
use units::Bytes;

use crate::block::{BlockDevice, BlockStat};
use crate::{Malformed, Result, text};

/// Unit of `bd_stat`.
const BACKING_UNIT: u64 = 4096;

/// The counters of `mm_stat` that Thermocline uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryStat {
    /// Uncompressed size of what the device stores, including what it has written back.
    pub stored: Bytes,
    /// Compressed size of what it stores in DRAM.
    pub compressed: Bytes,
    /// DRAM that it occupies, with the allocator's overhead.
    pub memory: Bytes,
    /// The limit of that; zero without one. Beyond it, writes fail.
    pub limit: Bytes,
    /// Pages that do not compress and are stored as they are; zero if the kernel does not count them (before Linux 4.19).
    pub incompressible_pages: u64,
}

/// The counters of `bd_stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BackingStat {
    /// What is stored on the backing device now.
    pub stored: Bytes,
    /// What was read from it.
    pub read: Bytes,
    /// What was written to it.
    pub written: Bytes,
}

/// Parses `mm_stat`.
///
/// # Errors
/// [`Malformed`] if one of the first seven counters is missing, or a counter is not a number.
pub fn parse_memory_stat(text: &str) -> Result<MemoryStat, Malformed> {
    let mut fields = text.split_ascii_whitespace();
    let mut next = || text::number(fields.next(), 1, "at least seven counters");
    let (stored, compressed, memory, limit) = (next()?, next()?, next()?, next()?);
    let (_memory_max, _same_filled, _compacted): (u64, u64, u64) = (next()?, next()?, next()?);
    let incompressible_pages = fields.next().map_or(Ok(0), |field| text::number(Some(field), 1, "a number of huge pages"))?;
    let [stored, compressed, memory, limit] = [stored, compressed, memory, limit].map(Bytes);
    Ok(MemoryStat { stored, compressed, memory, limit, incompressible_pages })
}

/// Parses `bd_stat`.
///
/// # Errors
/// [`Malformed`] unless there are three counters.
pub fn parse_backing_stat(text: &str) -> Result<BackingStat, Malformed> {
    let mut fields = text.split_ascii_whitespace();
    let mut next = || {
        let units: u64 = text::number(fields.next(), 1, "three counters")?;
        Ok(Bytes(units.saturating_mul(BACKING_UNIT)))
    };
    Ok(BackingStat { stored: next()?, read: next()?, written: next()? })
}

/// Parses `comp_algorithm`: all algorithms, with the one in use in brackets.
///
/// # Errors
/// [`Malformed`] if none is in brackets.
pub fn parse_algorithm(text: &str) -> Result<String, Malformed> {
    let mut names = text.split_ascii_whitespace();
    let chosen = names.find_map(|name| name.strip_prefix('[')?.strip_suffix(']').filter(|name| !name.is_empty()));
    chosen.map(ToOwned::to_owned).ok_or_else(|| Malformed::new(1, text.trim(), "an algorithm in brackets"))
}

/// Parses `backing_dev`: a path, or `none`.
fn parse_backing_device(text: &str) -> Option<String> {
    Some(text.trim()).filter(|path| !path.is_empty() && *path != "none").map(ToOwned::to_owned)
}

/// One zram device.
#[derive(Clone, Debug)]
pub struct Zram {
    device: BlockDevice,
}

impl Zram {
    /// The zram device that a block device is or is part of; `None` if it is another device.
    ///
    /// # Errors
    /// As [`BlockDevice::stat`].
    pub fn of(device: BlockDevice) -> Result<Option<Self>> {
        Ok(device.is_compressed_ram()?.then_some(Self { device }))
    }

    /// The device's kernel name, such as `zram0`.
    #[must_use]
    pub fn name(&self) -> &str {
        self.device.name()
    }

    /// Its memory.
    ///
    /// # Errors
    /// As [`BlockDevice::stat`].
    pub fn memory(&self) -> Result<MemoryStat> {
        self.device.require_of_disk("mm_stat", parse_memory_stat)
    }

    /// The compression algorithm in use.
    ///
    /// # Errors
    /// As [`BlockDevice::stat`].
    pub fn algorithm(&self) -> Result<String> {
        self.device.require_of_disk("comp_algorithm", parse_algorithm)
    }

    /// The size that it was set up with; zero before.
    ///
    /// # Errors
    /// As [`BlockDevice::stat`].
    pub fn disk_size(&self) -> Result<Bytes> {
        self.device.require_of_disk("disksize", |text| text::only_number(text, "a number of bytes")).map(Bytes)
    }

    /// The device or file that it can write pages back to; `None` without one, or if the kernel has no writeback.
    ///
    /// # Errors
    /// As [`BlockDevice::stat`].
    pub fn backing_device(&self) -> Result<Option<String>> {
        Ok(self.device.read_of_disk("backing_dev", |text| Ok(parse_backing_device(text)))?.flatten())
    }

    /// What it has written back; `None` if the kernel has no writeback (CONFIG_ZRAM_WRITEBACK).
    ///
    /// # Errors
    /// As [`BlockDevice::stat`].
    pub fn backing(&self) -> Result<Option<BackingStat>> {
        self.device.read_of_disk("bd_stat", parse_backing_stat)
    }

    /// Moves what it stores together, and returns the page frames that become empty (`zs_compact()` in `mm/zsmalloc.c`).
    ///
    /// # Errors
    /// [`crate::Error::Gone`]; [`crate::Error::Io`].
    pub fn compact(&self) -> Result<()> {
        self.device.write_of_disk("compact", "1")
    }

    /// Its I/O counters. What was written to it went to DRAM.
    ///
    /// # Errors
    /// As [`BlockDevice::stat`].
    pub fn io(&self) -> Result<BlockStat> {
        self.device.stat()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::Roots;
    use crate::swap::{SwapArea, SwapKind};
    use crate::testing::{cut_everywhere, tree};

    const MM_STAT: &str = "104857600 31457280 33554432    67108864 33554432        3        0        7        9\n";

    const MACHINE: [(&str, &str); 8] = [
        ("sys/devices/virtual/block/zram0/mm_stat", MM_STAT),
        ("sys/devices/virtual/block/zram0/bd_stat", "     256       12      268\n"),
        ("sys/devices/virtual/block/zram0/comp_algorithm", "lzo-rle [lz4] zstd\n"),
        ("sys/devices/virtual/block/zram0/disksize", "268435456\n"),
        ("sys/devices/virtual/block/zram0/backing_dev", "/dev/vdc\n"),
        ("sys/devices/virtual/block/zram0/stat", "10 0 80 1 20 0 160 2 0 3 3\n"),
        ("sys/devices/virtio1/block/vdb/stat", "0 0 0 0 0 0 0 0 0 0 0\n"),
        ("sys/class/block/README", ""),
    ];

    fn device(roots: &Roots, name: &str, target: &str) -> BlockDevice {
        let link = roots.sys.join("class/block").join(name);
        if !link.exists() {
            symlink(format!("../../devices/{target}"), link).unwrap();
        }
        let area =
            SwapArea { name: format!("/dev/{name}"), kind: SwapKind::Partition, size: Bytes::ZERO, used: Bytes::ZERO, priority: 100 };
        BlockDevice::under_swap(roots, &area).unwrap()
    }

    #[test]
    fn counters_are_parsed_in_bytes() {
        let expected = MemoryStat {
            stored: Bytes(104_857_600),
            compressed: Bytes(31_457_280),
            memory: Bytes(33_554_432),
            limit: Bytes(67_108_864),
            incompressible_pages: 7,
        };
        assert_eq!(parse_memory_stat(MM_STAT).unwrap(), expected);
        assert_eq!(parse_memory_stat("1 2 3 4 5 6 7").unwrap().incompressible_pages, 0, "Linux before 4.19");
        assert_eq!(parse_memory_stat("1 2 3 4 5 6").unwrap_err().expected, "at least seven counters");
        cut_everywhere(MM_STAT, parse_memory_stat);
        cut_everywhere("256 12 268\n", parse_backing_stat);
    }

    #[test]
    fn a_device_is_asked_to_compact() {
        let (_directory, roots) = tree(&MACHINE);
        let zram = Zram::of(device(&roots, "zram0", "virtual/block/zram0")).unwrap().unwrap();
        assert!(zram.compact().unwrap_err().is_gone(), "no file is created");
        let file = roots.sys.join("devices/virtual/block/zram0/compact");
        std::fs::write(&file, "").unwrap();
        zram.compact().unwrap();
        assert_eq!(std::fs::read_to_string(file).unwrap(), "1");
    }

    #[test]
    fn the_algorithm_in_use_is_in_brackets() {
        assert_eq!(parse_algorithm("lzo-rle [lz4] zstd\n").unwrap(), "lz4");
        for text in ["lzo zstd", "[]", "", "[lz4"] {
            assert_eq!(parse_algorithm(text).unwrap_err().expected, "an algorithm in brackets", "{text:?}");
        }
    }

    #[test]
    fn a_device_is_found_by_its_files() {
        let (_keep, roots) = tree(&MACHINE);
        let zram = Zram::of(device(&roots, "zram0", "virtual/block/zram0")).unwrap().unwrap();
        assert_eq!((zram.name(), zram.algorithm().unwrap().as_str(), zram.disk_size().unwrap()), ("zram0", "lz4", Bytes::mib(256)));
        assert_eq!(zram.memory().unwrap().memory, Bytes::mib(32));
        assert_eq!(zram.backing_device().unwrap().as_deref(), Some("/dev/vdc"));
        let backing = BackingStat { stored: Bytes::mib(1), read: Bytes(12 << 12), written: Bytes(268 << 12) };
        assert_eq!(zram.backing().unwrap(), Some(backing));
        assert_eq!(zram.io().unwrap().write_bytes, Bytes(160 * 512));
        assert!(Zram::of(device(&roots, "vdb", "virtio1/block/vdb")).unwrap().is_none());
    }

    #[test]
    fn a_kernel_without_writeback_has_no_backing_device() {
        let without: Vec<_> =
            MACHINE.into_iter().filter(|(path, _)| !path.ends_with("bd_stat") && !path.ends_with("backing_dev")).collect();
        let (keep, roots) = tree(&without);
        let zram = Zram::of(device(&roots, "zram0", "virtual/block/zram0")).unwrap().unwrap();
        assert_eq!((zram.backing_device().unwrap(), zram.backing().unwrap()), (None, None));
        crate::testing::put(keep.path(), "sys/devices/virtual/block/zram0/backing_dev", "none\n");
        assert_eq!(zram.backing_device().unwrap(), None);
        crate::testing::put(keep.path(), "sys/devices/virtual/block/zram0/mm_stat", "many\n");
        assert!(zram.memory().unwrap_err().to_string().contains("mm_stat"));
        std::fs::remove_dir_all(keep.path().join("sys/devices/virtual/block/zram0")).unwrap();
        assert!(zram.memory().unwrap_err().is_gone());
    }
}

//! Block devices of swap areas: `/sys/dev/block/MAJOR:MINOR` and the directory that it links to
//! (`Documentation/ABI/stable/sysfs-block`, `Documentation/block/stat.rst`).
//!
//! `stat` is one line of at least eleven counters. A sector is 512 bytes on every device; times are in milliseconds:
//! ```text
//! reads merged sectors ms   writes merged sectors ms   in_flight io_ms queue_ms ...
//!   512      0    4096 1130      0      0       0  0           0   1131     1130
//! ```

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde::Serialize;
use units::Bytes;

use crate::cgroup::parse_switch;
use crate::swap::{SwapArea, SwapKind, unescape};
use crate::{Error, Malformed, Result, Roots, file, text};

/// Bytes per sector in the kernel's counters (`SECTOR_SIZE`).
const SECTOR: u64 = 512;

/// The counters of `stat` that Thermocline uses. They count completed requests since the device appeared and never
/// decrease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BlockStat {
    /// Completed reads, after merging.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: Bytes,
    /// The sum of the latencies of all reads, queueing included, in milliseconds.
    pub read_ms: u64,
    /// Completed writes, after merging.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: Bytes,
    /// The sum of the latencies of all writes, queueing included, in milliseconds.
    pub write_ms: u64,
}

impl BlockStat {
    /// The mean latency of reads since `earlier`, in microseconds, rounded up. The kernel's sums are in milliseconds, so the
    /// mean of few reads is coarse.
    ///
    /// `None` if no read completed in between, or if a counter decreased: then it is a different device.
    #[must_use]
    pub fn mean_read_us_since(&self, earlier: &Self) -> Option<u64> {
        let reads = self.reads.checked_sub(earlier.reads).filter(|reads| *reads > 0)?;
        let spent_ms = self.read_ms.checked_sub(earlier.read_ms)?;
        Some(spent_ms.saturating_mul(1000).div_ceil(reads))
    }
}

/// Parses `stat`. Counters after the eighth are ignored; newer kernels have more.
///
/// # Errors
/// [`Malformed`] if one of the first eight is missing or not a number.
pub fn parse_stat(text: &str) -> Result<BlockStat, Malformed> {
    let mut fields = text.split_ascii_whitespace();
    let mut next = || text::number(fields.next(), 1, "at least eight counters");
    let (reads, _merged, read_sectors, read_ms) = (next()?, next()?, next()?, next()?);
    let (writes, _merged, write_sectors, write_ms) = (next()?, next()?, next()?, next()?);
    let bytes = |sectors: u64| Bytes(sectors.saturating_mul(SECTOR));
    Ok(BlockStat { reads, read_bytes: bytes(read_sectors), read_ms, writes, write_bytes: bytes(write_sectors), write_ms })
}

/// A disk, a partition, or a stacked device (device mapper, md, loop).
///
/// Identified by the inode number of its sysfs directory: a new device under the name of a removed one is a different device,
/// and the old one remains [`Error::Gone`].
#[derive(Clone, Debug)]
pub struct BlockDevice {
    directory: PathBuf,
    id: u64,
    name: String,
    /// Path from the directory to that of the whole disk, which has `queue`: empty, or `../` for a partition.
    disk: &'static str,
}

impl BlockDevice {
    /// The device of a swap partition, or the device that the file system of a swap file is mounted from.
    ///
    /// If the device node is not visible, as in a container with its own `/dev`, the device is found by the kernel's name. For
    /// a file system on several devices, it is the one named by the mount.
    ///
    /// # Errors
    /// [`Error::Gone`] if the device or file has vanished; [`Error::Unsupported`] if the file is not on a block device;
    /// [`Error::Parse`]; [`Error::Io`].
    pub fn under_swap(roots: &Roots, area: &SwapArea) -> Result<Self> {
        match area.kind {
            SwapKind::Partition => Self::of_node(roots, &area.name),
            SwapKind::File => Self::of_file(roots, &area.name),
        }
    }

    /// The device with this major and minor number, as printed in the kernel's log.
    ///
    /// # Errors
    /// [`Error::Gone`] if it does not exist; [`Error::Io`].
    pub fn of_number(roots: &Roots, (major, minor): (u32, u32)) -> Result<Self> {
        Self::at(&by_number(roots, libc::makedev(major, minor)))
    }

    /// The device's kernel name, such as `vdb` or `dm-0`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The kernel name of the whole disk; the device's name unless it is a partition.
    #[must_use]
    pub fn disk_name(&self) -> &str {
        let whole = if self.disk.is_empty() { None } else { self.directory.parent() };
        whole.and_then(Path::file_name).and_then(OsStr::to_str).unwrap_or(&self.name)
    }

    /// The device's I/O counters.
    ///
    /// # Errors
    /// [`Error::Gone`] if the device has vanished; [`Error::Parse`]; [`Error::Io`].
    pub fn stat(&self) -> Result<BlockStat> {
        self.require("stat", parse_stat)
    }

    /// The device's size.
    ///
    /// # Errors
    /// As [`BlockDevice::stat`].
    pub fn size(&self) -> Result<Bytes> {
        let sectors: u64 = self.require("size", |text| text::only_number(text, "a number of sectors"))?;
        Ok(Bytes(sectors.saturating_mul(SECTOR)))
    }

    /// Whether the device reports rotational media (`queue/rotational`); for a virtual disk, the host's configuration decides.
    /// `None` if the file does not exist.
    ///
    /// # Errors
    /// As [`BlockDevice::stat`].
    pub fn is_rotational(&self) -> Result<Option<bool>> {
        self.read_of_disk("queue/rotational", parse_switch)
    }

    /// Whether the device's requests are counted and timed (`queue/iostats`); otherwise [`BlockDevice::stat`] is constant.
    /// `None` if the file does not exist.
    ///
    /// # Errors
    /// As [`BlockDevice::stat`].
    pub fn counts_io(&self) -> Result<Option<bool>> {
        self.read_of_disk("queue/iostats", parse_switch)
    }

    /// Whether the device is zram, which stores compressed pages in DRAM. Detected by `comp_algorithm`, which no other driver
    /// has.
    ///
    /// # Errors
    /// As [`BlockDevice::stat`].
    pub fn is_compressed_ram(&self) -> Result<bool> {
        Ok(self.read_of_disk("comp_algorithm", |_| Ok(()))?.is_some())
    }

    fn of_node(roots: &Roots, name: &str) -> Result<Self> {
        let below_dev = name.strip_prefix("/dev/");
        let node = below_dev.map_or_else(|| in_root(roots, name), |below| roots.dev.join(below));
        match fs::metadata(&node) {
            Ok(metadata) if metadata.file_type().is_block_device() => Self::at(&by_number(roots, metadata.rdev())),
            // sysfs replaces a slash in the kernel's name by an exclamation mark.
            _ => Self::at(&roots.sys.join("class/block").join(below_dev.unwrap_or(name).trim_matches('/').replace('/', "!"))),
        }
    }

    fn of_file(roots: &Roots, name: &str) -> Result<Self> {
        let path = in_root(roots, name);
        let number = fs::metadata(&path).map_err(|source| Error::from_io(&path, "stat", source))?.dev();
        match Self::at(&by_number(roots, number)) {
            // The device number of some file systems (btrfs) is anonymous: the mount names a device.
            Err(error) if error.is_gone() => {}
            found => return found,
        }
        let mounts = roots.proc.join("self/mountinfo");
        let text = file::read(&mounts, file::LARGE)?;
        match parse_mount_source(&text, name).map_err(|malformed| malformed.at(&mounts))? {
            Some(source) if source.starts_with("/dev/") => Self::of_node(roots, &source),
            _ => Err(Error::unsupported(
                format!("the swap file {name} is not on a block device of this machine"),
                "swap on a partition, or on a file in a file system of a local disk",
            )),
        }
    }

    /// The device that a symbolic link in sysfs points to.
    fn at(link: &Path) -> Result<Self> {
        let fail = |source: io::Error| Error::from_io(link, "find the block device of", source);
        let directory = fs::canonicalize(link).map_err(fail)?;
        let id = fs::metadata(&directory).map_err(fail)?.ino();
        let name = directory.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let disk = if directory.join("partition").exists() { "../" } else { "" };
        Ok(Self { directory, id, name, disk })
    }

    /// Reads a file of the whole disk; `None` if the device exists and the file does not.
    pub(crate) fn read_of_disk<T>(&self, name: &str, parse: impl FnOnce(&str) -> Result<T, Malformed>) -> Result<Option<T>> {
        self.read(&format!("{}{name}", self.disk), parse)
    }

    /// Reads a file that every disk of this kind has.
    pub(crate) fn require_of_disk<T>(&self, name: &str, parse: impl FnOnce(&str) -> Result<T, Malformed>) -> Result<T> {
        self.require(&format!("{}{name}", self.disk), parse)
    }

    /// Writes to a file of the whole disk.
    pub(crate) fn write_of_disk(&self, name: &str, text: &str) -> Result<()> {
        let path = self.directory.join(format!("{}{name}", self.disk));
        let fail = |source| Error::from_io(&path, "write", source);
        let directory = file::open_directory(&self.directory).map_err(fail)?;
        if directory.metadata().map_err(fail)?.ino() != self.id {
            return Err(Error::Gone { path: self.directory.clone() });
        }
        let file = file::open_at(&directory, &format!("{}{name}", self.disk), true).map_err(fail)?;
        file::write_opened(&file, text).map_err(fail)
    }

    /// Reads a file of the device; `None` if the device exists and the file does not.
    fn read<T>(&self, name: &str, parse: impl FnOnce(&str) -> Result<T, Malformed>) -> Result<Option<T>> {
        let path = self.directory.join(name);
        let fail = |source| Error::from_io(&path, "open", source);
        let directory = file::open_directory(&self.directory).map_err(fail)?;
        if directory.metadata().map_err(fail)?.ino() != self.id {
            return Err(Error::Gone { path: self.directory.clone() });
        }
        let file = match file::open_at(&directory, name, false) {
            Ok(file) => file,
            // While a device is removed, its files vanish before its directory.
            Err(source) if file::is_absent(&source) => match fs::metadata(&self.directory) {
                Ok(now) if now.ino() == self.id => return Ok(None),
                _ => return Err(Error::Gone { path: self.directory.clone() }),
            },
            Err(source) => return Err(fail(source)),
        };
        let text = file::read_opened(&file, &path, file::SMALL)?;
        parse(&text).map(Some).map_err(|malformed| malformed.at(&path))
    }

    /// Reads a file that every block device has.
    fn require<T>(&self, name: &str, parse: impl FnOnce(&str) -> Result<T, Malformed>) -> Result<T> {
        self.read(name, parse)?.ok_or_else(|| Error::Gone { path: self.directory.join(name) })
    }
}

/// The disks of the machine, by name, without partitions and zram devices. Disks that vanish during the listing are
/// omitted.
///
/// # Errors
/// [`Error::Io`] if sysfs cannot be listed.
pub fn disks(roots: &Roots) -> Result<Vec<BlockDevice>> {
    let list = roots.sys.join("class/block");
    let fail = |source| Error::from_io(&list, "list", source);
    let mut disks = Vec::new();
    for entry in fs::read_dir(&list).map_err(fail)? {
        match BlockDevice::at(&entry.map_err(fail)?.path()) {
            Ok(device) if device.disk.is_empty() && !device.is_compressed_ram().unwrap_or(true) => disks.push(device),
            _ => {}
        }
    }
    disks.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(disks)
}

fn by_number(roots: &Roots, number: u64) -> PathBuf {
    roots.sys.join(format!("dev/block/{}:{}", libc::major(number), libc::minor(number)))
}

/// Converts a path of the kernel to one below the injected root.
fn in_root(roots: &Roots, name: &str) -> PathBuf {
    roots.root.join(name.trim_start_matches('/'))
}

/// The source of the mount that holds `path`, from `/proc/self/mountinfo`: the second field after the single hyphen, in the
/// line whose mount point (fifth field) is the longest prefix of `path`. Of two mounts on one point, the later one covers the
/// other. `None` if no mount holds the path.
fn parse_mount_source(text: &str, path: &str) -> Result<Option<String>, Malformed> {
    let mut found: Option<(usize, String)> = None;
    for (line, row) in text::lines(text) {
        let mut fields = row.split(' ');
        let point = fields.nth(4).ok_or_else(|| Malformed::new(line, row, "a mount point in the fifth field"))?;
        let source = fields.skip_while(|field| *field != "-").nth(2);
        let source = source.ok_or_else(|| Malformed::new(line, row, "a source after a hyphen"))?;
        let point = unescape(point);
        let depth = point.len();
        if Path::new(path).starts_with(&point) && found.as_ref().is_none_or(|(deepest, _)| *deepest <= depth) {
            found = Some((depth, unescape(source)));
        }
    }
    Ok(found.map(|(_, source)| source))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::testing::{cut_everywhere, put, tree};

    const STAT: &str = "     512        0     4096     1130       20        3      240       71        0     1131     1201        0        0        0        0        0        0\n";

    /// A machine with the disk `vdb`, its partition `vdb1`, and `zram0`.
    const MACHINE: [(&str, &str); 11] = [
        ("sys/devices/virtio1/block/vdb/stat", STAT),
        ("sys/devices/virtio1/block/vdb/size", "2097152\n"),
        ("sys/devices/virtio1/block/vdb/queue/rotational", "1\n"),
        ("sys/devices/virtio1/block/vdb/queue/iostats", "1\n"),
        ("sys/devices/virtio1/block/vdb/vdb1/partition", "1\n"),
        ("sys/devices/virtio1/block/vdb/vdb1/stat", STAT),
        ("sys/devices/virtio1/block/vdb/vdb1/size", "2048\n"),
        ("sys/devices/virtual/block/zram0/comp_algorithm", "lzo-rle [lz4] zstd\n"),
        ("sys/devices/virtual/block/zram0/size", "0\n"),
        ("sys/class/block/README", ""),
        ("sys/dev/block/README", ""),
    ];

    fn machine() -> (tempfile::TempDir, Roots) {
        let (keep, roots) = tree(&MACHINE);
        for (name, target) in [
            ("vdb", "virtio1/block/vdb"),
            ("vdb1", "virtio1/block/vdb/vdb1"),
            ("zram0", "virtual/block/zram0"),
            ("c!d0", "virtio1/block/vdb"),
        ] {
            symlink(format!("../../devices/{target}"), roots.sys.join("class/block").join(name)).unwrap();
        }
        (keep, roots)
    }

    fn area(name: &str, kind: SwapKind) -> SwapArea {
        SwapArea { name: name.into(), kind, size: Bytes::ZERO, used: Bytes::ZERO, priority: -2 }
    }

    #[test]
    fn counters_are_in_bytes_and_milliseconds() {
        let stat = parse_stat(STAT).unwrap();
        let expected =
            BlockStat { reads: 512, read_bytes: Bytes(2_097_152), read_ms: 1130, writes: 20, write_bytes: Bytes(122_880), write_ms: 71 };
        assert_eq!(stat, expected);
        cut_everywhere(STAT, parse_stat);
        assert_eq!(parse_stat("1 2 3 4 5 6 7").unwrap_err().expected, "at least eight counters");
    }

    #[test]
    fn reads_take_what_was_spent_over_what_completed() {
        let check = |(reads, read_ms), (reads_then, read_ms_then), expected| {
            let at = |reads, read_ms| BlockStat { reads, read_ms, ..BlockStat::default() };
            assert_eq!(at(reads, read_ms).mean_read_us_since(&at(reads_then, read_ms_then)), expected);
        };
        check((512, 1130), (0, 0), Some(2208));
        check((512, 1130), (500, 1130), Some(0));
        check((10, 7), (10, 7), None);
        check((9, 7), (10, 7), None);
        check((11, 6), (10, 7), None);
        check((u64::MAX, u64::MAX), (0, 0), Some(1));
    }

    #[test]
    fn disks_are_listed_without_partitions_and_compressed_ram() {
        let (_keep, roots) = machine();
        std::fs::remove_file(roots.sys.join("class/block/README")).unwrap();
        std::fs::remove_file(roots.sys.join("class/block/c!d0")).unwrap();
        let names: Vec<_> = disks(&roots).unwrap().into_iter().map(|disk| disk.name).collect();
        assert_eq!(names, ["vdb"]);
        std::fs::remove_dir_all(roots.sys.join("class")).unwrap();
        assert!(disks(&roots).is_err());
    }

    #[test]
    fn a_swap_area_resolves_to_its_device() {
        let (_keep, roots) = machine();
        let check = |name: &str, expected: [&str; 2], size, rotational, compressed| {
            let device = BlockDevice::under_swap(&roots, &area(name, SwapKind::Partition)).unwrap();
            assert_eq!(([device.name(), device.disk_name()], device.size().unwrap()), (expected, Bytes(size)));
            assert_eq!((device.is_rotational().unwrap(), device.is_compressed_ram().unwrap()), (rotational, compressed));
            assert_eq!(device.counts_io().unwrap(), rotational);
        };
        check("/dev/vdb", ["vdb", "vdb"], 1 << 30, Some(true), false);
        check("/dev/vdb1", ["vdb1", "vdb"], 1 << 20, Some(true), false);
        check("/dev/zram0", ["zram0", "zram0"], 0, None, true);
        check("/dev/c/d0", ["vdb", "vdb"], 1 << 30, Some(true), false);
    }

    #[test]
    fn a_device_node_is_resolved_by_its_number() {
        let Ok(entries) = fs::read_dir("/dev") else { return };
        let is_block = |path: &PathBuf| fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device());
        let Some(node) = entries.filter_map(|entry| Some(entry.ok()?.path())).find(is_block) else {
            return println!("skipped: no block device in /dev");
        };
        let (_keep, roots) = machine();
        fs::create_dir_all(&roots.dev).unwrap();
        symlink(&node, roots.dev.join("other")).unwrap();
        let swap = area("/dev/other", SwapKind::Partition);
        assert!(BlockDevice::under_swap(&roots, &swap).unwrap_err().is_gone());
        symlink(roots.sys.join("class/block/vdb"), by_number(&roots, fs::metadata(&node).unwrap().rdev())).unwrap();
        assert_eq!(BlockDevice::under_swap(&roots, &swap).unwrap().name(), "vdb");
    }

    #[test]
    fn a_swap_file_resolves_to_the_device_of_its_file_system() {
        let (_keep, roots) = machine();
        put(&roots.root, "var/swap", "");
        let swap = area("/var/swap", SwapKind::File);
        let mounts = |rows: &str| put(&roots.root, "proc/self/mountinfo", rows);
        mounts("22 1 0:21 / /var rw - nfs4 server:/export rw\n");
        let error = BlockDevice::under_swap(&roots, &swap).unwrap_err();
        assert!(error.is_unsupported() && error.to_string().contains("/var/swap"), "{error}");
        mounts("22 1 0:21 / / rw - btrfs /dev/vdb1 rw\n");
        assert_eq!(BlockDevice::under_swap(&roots, &swap).unwrap().name(), "vdb1");
        let number = fs::metadata(roots.root.join("var/swap")).unwrap().dev();
        symlink(roots.sys.join("class/block/vdb"), by_number(&roots, number)).unwrap();
        assert_eq!(BlockDevice::under_swap(&roots, &swap).unwrap().name(), "vdb");
        assert!(BlockDevice::under_swap(&roots, &area("/var/none", SwapKind::File)).unwrap_err().is_gone());
    }

    #[test]
    fn the_deepest_mount_point_is_chosen() {
        const MOUNTS: &str = "22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n\
                              30 22 0:40 /sub /var rw shared:2 master:1 - btrfs /dev/vdb rw\n\
                              31 30 0:41 / /var/a\\040b rw - xfs /dev/vdc rw\n\
                              32 30 0:42 / /var rw - btrfs /dev/a\\040b rw\n";
        let check = |path, expected: Option<&str>| assert_eq!(parse_mount_source(MOUNTS, path), Ok(expected.map(str::to_owned)), "{path}");
        check("/swap", Some("/dev/vda1"));
        check("/variable/swap", Some("/dev/vda1"));
        check("/var/swap", Some("/dev/a b"));
        check("/var/a b/swap", Some("/dev/vdc"));
        check("relative", None);
        cut_everywhere(MOUNTS, |text| parse_mount_source(text, "/var/swap"));
    }

    #[test]
    fn a_removed_device_stays_gone_if_its_name_is_reused() {
        let (_keep, roots) = machine();
        let swap = area("/dev/vdb", SwapKind::Partition);
        let device = BlockDevice::under_swap(&roots, &swap).unwrap();
        let directory = roots.sys.join("devices/virtio1/block/vdb");
        fs::rename(&directory, roots.sys.join("moved")).unwrap();
        for error in [device.stat().unwrap_err(), BlockDevice::under_swap(&roots, &swap).unwrap_err()] {
            assert!(error.is_gone() && error.to_string().contains("vdb"), "{error}");
        }
        put(&directory, "stat", STAT);
        assert!(device.stat().unwrap_err().is_gone());
        assert!(BlockDevice::under_swap(&roots, &swap).unwrap().stat().is_ok());
    }

    #[test]
    fn a_malformed_counter_is_reported_with_its_file() {
        let (_keep, roots) = machine();
        put(&roots.sys, "devices/virtio1/block/vdb/stat", "1 2 x\n");
        let error = BlockDevice::under_swap(&roots, &area("/dev/vdb", SwapKind::Partition)).unwrap().stat().unwrap_err();
        assert!(matches!(&error, Error::Parse { path, value, .. } if path.ends_with("vdb/stat") && value == "x"), "{error}");
    }
}

//! CXL memory and DAX devices: `/sys/bus/cxl/devices`
//! (`Documentation/ABI/testing/sysfs-bus-cxl`), `/sys/bus/dax/devices` (`Documentation/ABI/testing/sysfs-bus-dax`).
//!
//! An expander (`memN`) is part of a region, a region becomes a DAX device, and a DAX device bound to the driver `kmem` becomes
//! the memory of a NUMA node. This module only reads the state; the operator configures it. Sizes are in bytes.

use std::fs;
use std::path::Path;

use serde::Serialize;
use units::Bytes;

use crate::{Error, Malformed, Result, Roots, file};

pub mod mailbox;
mod topology;

pub use topology::{Dax, Memory, Region, Topology, Window, topology};

/// A memory expander, a region, or a DAX device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Device {
    /// Name: `mem0`, `region0`, `dax0.0`.
    pub name: String,
    /// Size; `None` if the kernel does not report it.
    pub size: Option<Bytes>,
    /// For a DAX device, the NUMA node of its memory, also before it is online.
    pub target_node: Option<u32>,
    /// For a DAX device, its driver: `kmem` for memory of a NUMA node, `device_dax` for memory mapped by a program.
    pub driver: Option<String>,
}

/// Parses a size, which drivers print in decimal or, with `0x`, in hexadecimal.
///
/// # Errors
/// [`Malformed`] if it is neither.
pub fn parse_size(text: &str) -> Result<Bytes, Malformed> {
    let digits = text.trim();
    let size = match digits.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => digits.parse(),
    };
    size.map(Bytes).map_err(|_| Malformed::new(1, digits, "a size in bytes"))
}

/// Lists expanders, then regions, then DAX devices, by name.
///
/// # Errors
/// [`Error::Gone`] if a device is removed during the listing; [`Error::Parse`]; [`Error::Io`].
pub fn devices(roots: &Roots) -> Result<Vec<Device>> {
    let (cxl, dax) = (roots.sys.join("bus/cxl/devices"), roots.sys.join("bus/dax/devices"));
    let mut found = Vec::new();
    for (directory, prefix, size) in [(&cxl, "mem", "ram/size"), (&cxl, "region", "size"), (&dax, "dax", "size")] {
        for name in names(directory, prefix)? {
            found.push(device(&directory.join(&name), name, size)?);
        }
    }
    Ok(found)
}

fn device(directory: &Path, name: String, size: &str) -> Result<Device> {
    let path = directory.join(size);
    let size = file::read_optional(&path, file::SMALL)?.map(|text| parse_size(&text).map_err(|malformed| malformed.at(&path)));
    // -1: the memory belongs to no node.
    let target_node = file::read_optional(&directory.join("target_node"), file::SMALL)?.and_then(|text| text.trim().parse().ok());
    let driver = fs::read_link(directory.join("driver")).ok();
    let driver = driver.and_then(|driver| Some(driver.file_name()?.to_string_lossy().into_owned()));
    Ok(Device { name, size: size.transpose()?, target_node, driver })
}

/// The names in a directory that consist of `prefix` and a number, sorted; empty if the directory does not exist.
fn names(directory: &Path, prefix: &str) -> Result<Vec<String>> {
    let fail = |source| Error::from_io(directory, "list", source);
    let entries = match fs::read_dir(directory) {
        Err(source) if file::is_absent(&source) => return Ok(Vec::new()),
        other => other.map_err(fail)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(fail)?.file_name().to_string_lossy().into_owned();
        if name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit())) {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{cut_everywhere, tree};

    #[test]
    fn devices_are_listed() {
        let (keep, roots) = tree(&[
            ("sys/bus/cxl/devices/mem0/ram/size", "0x10000000\n"),
            ("sys/bus/cxl/devices/region0/size", "0x10000000\n"),
            ("sys/bus/cxl/devices/decoder0.0/size", "0x10000000\n"),
            ("sys/bus/dax/devices/dax0.0/size", "268435456\n"),
            ("sys/bus/dax/devices/dax0.0/target_node", "1\n"),
            ("sys/bus/dax/devices/dax1.0/target_node", "-1\n"),
            ("sys/bus/dax/drivers/kmem/x", ""),
        ]);
        std::os::unix::fs::symlink("../../drivers/kmem", keep.path().join("sys/bus/dax/devices/dax0.0/driver")).unwrap();
        let device = |name: &str, size| Device { name: name.to_owned(), size, target_node: None, driver: None };
        let size = Some(Bytes::mib(256));
        let bound = Device { target_node: Some(1), driver: Some("kmem".into()), ..device("dax0.0", size) };
        assert_eq!(devices(&roots).unwrap(), [device("mem0", size), device("region0", size), bound, device("dax1.0", None)]);
        let (_keep, roots) = tree(&[("sys/bus/x", "")]);
        assert_eq!(devices(&roots).unwrap(), []);
        devices(&Roots::host()).unwrap();
    }

    #[test]
    fn sizes_parse_in_decimal_and_hexadecimal() {
        assert_eq!((parse_size("0x1000\n").unwrap(), parse_size("4096").unwrap()), (Bytes(4096), Bytes(4096)));
        cut_everywhere("0x1000\n", parse_size);
        cut_everywhere("4096", parse_size);
    }
}

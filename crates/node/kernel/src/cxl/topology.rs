//! The configuration of CXL memory, from expanders to NUMA nodes, from the files that `cxl list` and `daxctl list` use.

use std::fs;
use std::path::Path;

use serde::Serialize;
use units::Bytes;

use super::{device, names, parse_size};
use crate::{Error, Malformed, Result, Roots, file};

/// An expander (`memN`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Name: `mem0`.
    pub name: String,
    /// Volatile memory, which can become memory of a NUMA node.
    pub ram: Bytes,
    /// Persistent memory, which cannot.
    pub persistent: Bytes,
    /// The serial number.
    pub serial: Option<u64>,
    /// The NUMA node whose processors are nearest.
    pub near_node: Option<u32>,
    /// Whether the device is bound to the driver `cxl_mem`.
    pub enabled: bool,
    /// Memory that its decoders map, into regions or by firmware.
    pub mapped: Bytes,
}

/// A window of the physical address space that firmware reserves for CXL memory (a root decoder, `decoder0.0`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Window {
    /// Name: `decoder0.0`.
    pub name: String,
    /// Size.
    pub size: Bytes,
    /// Whether volatile memory may be mapped in the window.
    pub ram: bool,
    /// Whether this kernel can create regions of volatile memory in the window.
    pub makes_regions: bool,
}

/// A range of the physical address space that is backed by one or more expanders (`region0`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Region {
    /// Name: `region0`.
    pub name: String,
    /// Size; 0 while the region is incomplete.
    pub size: Bytes,
    /// Whether its decoders are programmed (`commit`).
    pub committed: bool,
    /// The expanders that back it.
    pub memories: Vec<String>,
}

/// A DAX device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Dax {
    /// Name: `dax0.0`.
    pub name: String,
    /// Its size.
    pub size: Bytes,
    /// Physical start address; `None` without root.
    pub start: Option<u64>,
    /// The NUMA node of its memory, also before it is online.
    pub target_node: Option<u32>,
    /// The driver: `kmem` for memory of a NUMA node, `device_dax` for memory mapped by a program.
    pub driver: Option<String>,
    /// The region that backs it; `None` if the memory is not CXL memory.
    pub region: Option<String>,
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Topology {
    /// Whether firmware describes a CXL hierarchy (ACPI0017).
    pub platform: bool,
    /// PCI addresses of CXL memory devices without a driver.
    pub idle_pci: Vec<String>,
    /// Expanders.
    pub memories: Vec<Memory>,
    /// Windows of the address space.
    pub windows: Vec<Window>,
    /// Regions.
    pub regions: Vec<Region>,
    /// DAX devices, of CXL and other memory.
    pub dax: Vec<Dax>,
}

/// Reads the CXL topology; empty on a machine without CXL memory.
///
/// # Errors
/// [`Error::Gone`] if a device is removed during the reading; [`Error::Parse`]; [`Error::Io`].
pub fn topology(roots: &Roots) -> Result<Topology> {
    let cxl = roots.sys.join("bus/cxl/devices");
    let mapped = decoders(&cxl)?;
    let mut memories = Vec::new();
    for name in names(&cxl, "mem")? {
        memories.push(memory(&cxl.join(&name), name, &mapped)?);
    }
    let mut regions = Vec::new();
    for name in names(&cxl, "region")? {
        regions.push(region(&cxl.join(&name), name, &mapped)?);
    }
    let directory = roots.sys.join("bus/dax/devices");
    let mut dax = Vec::new();
    for name in names(&directory, "dax")? {
        dax.push(dax_device(&directory.join(&name), name)?);
    }
    let platform = !names(&roots.sys.join("bus/acpi/devices"), "ACPI0017:")?.is_empty();
    Ok(Topology { platform, idle_pci: idle_pci(roots)?, memories, windows: windows(&cxl)?, regions, dax })
}

/// A decoder of an expander that maps a part of its memory.
struct Mapped {
    decoder: String,
    memory: String,
    bytes: Bytes,
}

fn decoders(cxl: &Path) -> Result<Vec<Mapped>> {
    let mut mapped = Vec::new();
    for endpoint in names(cxl, "endpoint")? {
        // Only the name is left of a device that was disabled during the listing.
        let Some(memory) = link(&cxl.join(&endpoint).join("uport")) else { continue };
        let number = endpoint.trim_start_matches("endpoint");
        for decoder in names(cxl, &format!("decoder{number}."))? {
            let bytes = size(&cxl.join(&decoder).join("dpa_size"))?.unwrap_or(Bytes::ZERO);
            mapped.push(Mapped { decoder, memory: memory.clone(), bytes });
        }
    }
    Ok(mapped)
}

fn memory(directory: &Path, name: String, mapped: &[Mapped]) -> Result<Memory> {
    let of = |part: &str| Ok::<_, Error>(size(&directory.join(part).join("size"))?.unwrap_or(Bytes::ZERO));
    // Printed in hexadecimal.
    let serial = size(&directory.join("serial"))?.map(|number| number.0);
    let near_node = file::read_optional(&directory.join("numa_node"), file::SMALL)?.and_then(|text| text.trim().parse().ok());
    let mapped = mapped.iter().filter(|decoder| decoder.memory == name).map(|decoder| decoder.bytes).sum();
    Ok(Memory {
        ram: of("ram")?,
        persistent: of("pmem")?,
        serial,
        near_node,
        enabled: link(&directory.join("driver")).is_some(),
        mapped,
        name,
    })
}

fn windows(cxl: &Path) -> Result<Vec<Window>> {
    let mut windows = Vec::new();
    for name in names(cxl, "decoder")? {
        let directory = cxl.join(&name);
        let kind = file::read_optional(&directory.join("devtype"), file::SMALL)?;
        if kind.is_none_or(|kind| kind.trim() != "cxl_decoder_root") {
            continue;
        }
        let ram = file::read_optional(&directory.join("cap_ram"), file::SMALL)?.is_some_and(|text| text.trim() == "1");
        let size = size(&directory.join("size"))?.unwrap_or(Bytes::ZERO);
        windows.push(Window { size, ram, makes_regions: directory.join("create_ram_region").exists(), name });
    }
    Ok(windows)
}

fn region(directory: &Path, name: String, mapped: &[Mapped]) -> Result<Region> {
    let committed = file::read_optional(&directory.join("commit"), file::SMALL)?.is_some_and(|text| text.trim() == "1");
    let mut memories = Vec::new();
    for target in names(directory, "target")? {
        let decoder = file::read_optional(&directory.join(target), file::SMALL)?.unwrap_or_default();
        let memory = mapped.iter().find(|mapped| mapped.decoder == decoder.trim());
        memories.extend(memory.map(|mapped| mapped.memory.clone()));
    }
    Ok(Region { size: size(&directory.join("size"))?.unwrap_or(Bytes::ZERO), committed, memories, name })
}

fn dax_device(directory: &Path, name: String) -> Result<Dax> {
    let found = device(directory, name, "size")?;
    let start = match file::read_optional(&directory.join("resource"), file::SMALL) {
        Ok(text) => text.map(|text| parse_size(&text)).transpose().map_err(|malformed| malformed.at(&directory.join("resource")))?,
        // Readable only by root.
        Err(Error::Io { .. }) => None,
        Err(error) => return Err(error),
    };
    // Its region is an ancestor in the device tree.
    let path = fs::canonicalize(directory).map_err(|source| Error::from_io(directory, "resolve", source))?;
    let above = path.components().map(|part| part.as_os_str().to_string_lossy());
    let region = above.rev().find(|part| is_numbered(part, "region")).map(std::borrow::Cow::into_owned);
    let (target_node, driver) = (found.target_node, found.driver);
    // The kernel prints 0 to users without permission.
    let start = start.map(|start| start.0).filter(|start| *start > 0);
    Ok(Dax { size: found.size.unwrap_or(Bytes::ZERO), start, target_node, driver, region, name: found.name })
}

/// PCI class of CXL memory devices, without the programming interface.
const CLASS: &str = "0x0502";

fn idle_pci(roots: &Roots) -> Result<Vec<String>> {
    let directory = roots.sys.join("bus/pci/devices");
    let mut idle = Vec::new();
    for address in names(&directory, "")? {
        let device = directory.join(&address);
        let class = file::read_optional(&device.join("class"), file::SMALL)?;
        if class.is_some_and(|class| class.starts_with(CLASS)) && link(&device.join("driver")).is_none() {
            idle.push(address);
        }
    }
    Ok(idle)
}

/// The last component of a symbolic link's target; `None` without a link.
fn link(path: &Path) -> Option<String> {
    Some(fs::read_link(path).ok()?.file_name()?.to_string_lossy().into_owned())
}

fn size(path: &Path) -> Result<Option<Bytes>> {
    let at = |malformed: Malformed| malformed.at(path);
    file::read_optional(path, file::SMALL)?.map(|text| parse_size(&text).map_err(at)).transpose()
}

fn is_numbered(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::testing::{put, tree};

    /// A machine whose only expander is partly in a region, as presented by Linux 6.12.
    const MACHINE: [(&str, &str); 22] = [
        ("sys/bus/acpi/devices/ACPI0017:00/hid", "ACPI0017\n"),
        ("sys/bus/pci/devices/0000:0d:00.0/class", "0x050210\n"),
        ("sys/bus/pci/devices/0000:0e:00.0/class", "0x050210\n"),
        ("sys/bus/pci/devices/0000:00:00.0/class", "0x060000\n"),
        ("sys/bus/cxl/devices/mem0/ram/size", "0x40000000\n"),
        ("sys/bus/cxl/devices/mem0/pmem/size", "0x0\n"),
        ("sys/bus/cxl/devices/mem0/serial", "0x1\n"),
        ("sys/bus/cxl/devices/mem0/numa_node", "0\n"),
        ("sys/bus/cxl/devices/decoder0.0/devtype", "cxl_decoder_root\n"),
        ("sys/bus/cxl/devices/decoder0.0/size", "0x100000000\n"),
        ("sys/bus/cxl/devices/decoder0.0/cap_ram", "1\n"),
        ("sys/bus/cxl/devices/decoder0.0/create_ram_region", "region1\n"),
        ("sys/bus/cxl/devices/decoder1.0/devtype", "cxl_decoder_switch\n"),
        ("sys/bus/cxl/devices/decoder2.0/devtype", "cxl_decoder_endpoint\n"),
        ("sys/bus/cxl/devices/decoder2.0/dpa_size", "0x20000000\n"),
        ("sys/bus/cxl/devices/decoder2.1/dpa_size", "0x0\n"),
        ("sys/bus/cxl/devices/endpoint2/devtype", "cxl_port\n"),
        ("sys/bus/cxl/devices/region0/size", "0x20000000\n"),
        ("sys/bus/cxl/devices/region0/commit", "1\n"),
        ("sys/bus/cxl/devices/region0/target0", "decoder2.0\n"),
        ("sys/devices/platform/root0/decoder0.0/region0/dax_region0/dax0.0/size", "536870912\n"),
        ("sys/bus/dax/drivers/kmem/x", ""),
    ];

    #[test]
    fn the_chain_from_expander_to_dax_device_is_read() {
        let (keep, roots) = tree(&MACHINE);
        let at = |path: &str| keep.path().join("sys/bus").join(path);
        let dax = "sys/devices/platform/root0/decoder0.0/region0/dax_region0/dax0.0";
        for (name, text) in [("resource", "0x190000000\n"), ("target_node", "1\n")] {
            put(keep.path(), &format!("{dax}/{name}"), text);
        }
        fs::create_dir_all(at("dax/devices")).unwrap();
        let links = [
            ("../../../devices/platform/root0/decoder0.0/region0/dax_region0/dax0.0", "dax/devices/dax0.0"),
            ("../../../../../../../bus/dax/drivers/kmem", "dax/devices/dax0.0/driver"),
            ("../../../drivers/cxl_pci", "pci/devices/0000:0d:00.0/driver"),
            ("../../drivers/cxl_mem", "cxl/devices/mem0/driver"),
            ("../mem0", "cxl/devices/endpoint2/uport"),
        ];
        for (to, from) in links {
            symlink(to, at(from)).unwrap();
        }
        let (half, text) = (Bytes::mib(512), str::to_owned);
        let mem0 = Memory {
            name: text("mem0"),
            ram: Bytes::mib(1024),
            serial: Some(1),
            near_node: Some(0),
            enabled: true,
            mapped: half,
            ..Memory::default()
        };
        let window = Window { name: text("decoder0.0"), size: Bytes::mib(4096), ram: true, makes_regions: true };
        let region = Region { name: text("region0"), size: half, committed: true, memories: vec![text("mem0")] };
        let dax = Dax {
            name: text("dax0.0"),
            size: half,
            start: Some(0x1_9000_0000),
            target_node: Some(1),
            driver: Some(text("kmem")),
            region: Some(text("region0")),
        };
        let want = Topology {
            platform: true,
            idle_pci: vec![text("0000:0e:00.0")],
            memories: vec![mem0],
            windows: vec![window],
            regions: vec![region],
            dax: vec![dax],
        };
        assert_eq!(topology(&roots).unwrap(), want);
    }

    #[test]
    fn a_machine_without_cxl_is_empty_and_malformed_files_are_reported() {
        let (_keep, roots) = tree(&[("sys/bus/x", "")]);
        assert_eq!(topology(&roots).unwrap(), Topology::default());
        topology(&Roots::host()).unwrap();
        for path in ["mem0/ram/size", "mem0/serial", "region0/size"] {
            let (_keep, roots) = tree(&[(&format!("sys/bus/cxl/devices/{path}"), "many\n")]);
            assert!(matches!(topology(&roots), Err(Error::Parse { .. })), "{path}");
        }
        // An unfinished region, a device whose driver is gone.
        let (_keep, roots) = tree(&[("sys/bus/cxl/devices/region0/commit", "0\n"), ("sys/bus/cxl/devices/mem0/x", "")]);
        let found = topology(&roots).unwrap();
        assert_eq!(found.regions, [Region { name: "region0".to_owned(), ..Region::default() }]);
        assert_eq!(found.memories, [Memory { name: "mem0".to_owned(), ..Memory::default() }]);
    }
}

//! The state of the machine's CXL devices and memory nodes, as read from the kernel.

use anyhow::Result;
use kernel::cxl::{self, Dax, Memory, Region, Topology, Window, mailbox};
use kernel::hotplug::{self, Hotplug, Online};
use kernel::numa::{self, Node};
use kernel::{Roots, file, modules};
use serde::Serialize;

/// Drivers between a device and the memory of a node: module, path in sysfs when loaded, and kernel configuration option.
const DRIVERS: [(&str, &str, &str); 6] = [
    ("cxl_acpi", "bus/platform/drivers/cxl_acpi", "CONFIG_CXL_ACPI"),
    ("cxl_pci", "bus/pci/drivers/cxl_pci", "CONFIG_CXL_PCI"),
    ("cxl_port", "bus/cxl/drivers/cxl_port", "CONFIG_CXL_BUS"),
    ("cxl_mem", "bus/cxl/drivers/cxl_mem", "CONFIG_CXL_MEM"),
    ("dax_cxl", "bus/cxl/drivers/cxl_dax_region", "CONFIG_DEV_DAX_CXL"),
    ("kmem", "bus/dax/drivers/kmem", "CONFIG_DEV_DAX_KMEM"),
];

/// Availability of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum DriverState {
    /// The driver is loaded.
    Loaded,
    /// `modprobe` can load the driver.
    Loadable,
    /// This kernel was built without the driver.
    Absent,
}

/// A driver of this kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Driver {
    pub(super) module: &'static str,
    pub(super) option: &'static str,
    pub(super) state: DriverState,
}

/// A memory expander, with its capabilities.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Expander {
    #[serde(flatten)]
    pub(super) memory: Memory,
    /// Whether its memory can be added and removed at run time; `None` if unknown.
    pub(super) dynamic_capacity: Option<bool>,
    /// Whether several hosts can use it at once; `None` if unknown.
    pub(super) multi_headed: Option<bool>,
    /// Why its capabilities are unknown.
    pub(super) error: Option<String>,
}

/// A DAX device, and its memory that is online.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Device {
    #[serde(flatten)]
    pub(super) dax: Dax,
    /// `system-ram` or `devdax`, as in `daxctl`; `None` without a driver.
    pub(super) mode: Option<&'static str>,
    /// Its memory that is online; `None` if the kernel does not report its address.
    pub(super) online: Option<Online>,
}

/// This machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Machine {
    pub(super) kernel: String,
    /// Whether firmware describes a CXL hierarchy.
    pub(super) platform: bool,
    /// Whether the machine is a virtual machine.
    pub(super) virtual_machine: bool,
    /// PCI addresses of CXL memory devices without a driver.
    pub(super) idle_pci: Vec<String>,
    pub(super) drivers: Vec<Driver>,
    pub(super) expanders: Vec<Expander>,
    pub(super) windows: Vec<Window>,
    pub(super) regions: Vec<Region>,
    pub(super) dax: Vec<Device>,
    /// Nodes with memory and without cores.
    pub(super) far_nodes: Vec<Node>,
    pub(super) hotplug: Option<Hotplug>,
    /// Memory file systems that are bound to a node: mount point and node.
    pub(super) bound: Vec<(String, u32)>,
}

impl Machine {
    /// Reads the state of the machine.
    pub(super) fn read(roots: &Roots) -> Result<Self> {
        let Topology { platform, idle_pci, memories, windows, regions, dax } = cxl::topology(roots)?;
        let hotplug = hotplug::hotplug(roots)?;
        let nodes = numa::nodes(roots)?;
        let cpus = file::read_optional(&roots.proc.join("cpuinfo"), file::LARGE)?.unwrap_or_default();
        let flags = cpus.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
        let mounts = file::read_optional(&roots.proc.join("mounts"), file::LARGE)?.unwrap_or_default();
        Ok(Self {
            kernel: modules::release(roots),
            platform,
            virtual_machine: flags.split_ascii_whitespace().any(|flag| flag == "hypervisor"),
            idle_pci,
            drivers: drivers(roots)?,
            expanders: memories.into_iter().map(|memory| expander(roots, memory)).collect(),
            windows,
            regions,
            dax: dax.into_iter().map(|dax| device(roots, hotplug.as_ref(), dax)).collect::<Result<_>>()?,
            far_nodes: numa::slow_nodes(&nodes).into_iter().cloned().collect(),
            hotplug,
            bound: bound(&mounts),
        })
    }

    /// Returns whether the machine has any CXL hardware or platform support.
    pub(super) fn has_cxl(&self) -> bool {
        self.platform || !self.idle_pci.is_empty() || !self.expanders.is_empty() || !self.windows.is_empty()
    }
}

fn drivers(roots: &Roots) -> Result<Vec<Driver>> {
    let read = |(module, path, option): (&'static str, &str, &'static str)| {
        let state = match roots.sys.join(path).exists() {
            true => DriverState::Loaded,
            false if modules::can_load(roots, module)? => DriverState::Loadable,
            false => DriverState::Absent,
        };
        Ok(Driver { module, option, state })
    };
    DRIVERS.into_iter().map(read).collect()
}

fn expander(roots: &Roots, memory: Memory) -> Expander {
    let (known, error) = match mailbox::commands(roots, &memory.name) {
        Ok(commands) => (Some(commands), None),
        Err(error) => (None, Some(error.to_string())),
    };
    let supports = |command| known.as_ref().map(|commands| commands.contains(&command));
    Expander { dynamic_capacity: supports(mailbox::DYNAMIC_CAPACITY), multi_headed: supports(mailbox::MULTI_HEADED), memory, error }
}

fn device(roots: &Roots, hotplug: Option<&Hotplug>, dax: Dax) -> Result<Device> {
    let mode = match dax.driver.as_deref() {
        Some("kmem") => Some("system-ram"),
        Some("device_dax") => Some("devdax"),
        _ => None,
    };
    let place = hotplug.zip(dax.start);
    let online = place.map(|(hotplug, start)| hotplug::online(roots, hotplug, start, dax.size)).transpose()?;
    Ok(Device { dax, mode, online })
}

/// Returns the memory file systems of `/proc/mounts` (`device mount-point type options 0 0`) that are bound to one node.
fn bound(mounts: &str) -> Vec<(String, u32)> {
    let of = |line: &str| {
        let mut fields = line.split(' ').skip(1);
        let (place, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        let node = options.split(',').find_map(|option| option.strip_prefix("mpol=bind:")?.parse().ok());
        Some((place.to_owned(), node?)).filter(|_| kind == "tmpfs")
    };
    mounts.lines().filter_map(of).collect()
}

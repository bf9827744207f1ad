//! What is there, before anything is made of it.

use anyhow::Result;
use kernel::cxl::{self, Dax, Memory, Region, Topology, Window, mailbox};
use kernel::hotplug::{self, Hotplug, Online};
use kernel::numa::{self, Node};
use kernel::{Roots, file, modules};
use serde::Serialize;

/// A driver on the way from a device to memory of a node: its module, where it shows itself, what it is built by.
const DRIVERS: [(&str, &str, &str); 6] = [
    ("cxl_acpi", "bus/platform/drivers/cxl_acpi", "CONFIG_CXL_ACPI"),
    ("cxl_pci", "bus/pci/drivers/cxl_pci", "CONFIG_CXL_PCI"),
    ("cxl_port", "bus/cxl/drivers/cxl_port", "CONFIG_CXL_BUS"),
    ("cxl_mem", "bus/cxl/drivers/cxl_mem", "CONFIG_CXL_MEM"),
    ("dax_cxl", "bus/cxl/drivers/cxl_dax_region", "CONFIG_DEV_DAX_CXL"),
    ("kmem", "bus/dax/drivers/kmem", "CONFIG_DEV_DAX_KMEM"),
];

/// Whether a driver can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Had {
    /// It is at work.
    Loaded,
    /// `modprobe` would load it.
    Loadable,
    /// This kernel was built without it.
    Absent,
}

/// A driver of this kernel's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Driver {
    pub(super) module: &'static str,
    pub(super) option: &'static str,
    pub(super) state: Had,
}

/// An expander, with what it says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Expander {
    #[serde(flatten)]
    pub(super) memory: Memory,
    /// It can be given and taken memory at run time; `None` where it cannot be asked.
    pub(super) dynamic_capacity: Option<bool>,
    /// It is several hosts' at once.
    pub(super) multi_headed: Option<bool>,
    /// Why it could not be asked.
    pub(super) trouble: Option<String>,
}

/// A DAX device, and what of it is memory of its node now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Device {
    #[serde(flatten)]
    pub(super) dax: Dax,
    /// `system-ram` or `devdax`, as `daxctl` has it; `None` where no driver holds it.
    pub(super) mode: Option<&'static str>,
    /// Memory of it that is online; `None` where the kernel does not tell where it is.
    pub(super) online: Option<Online>,
}

/// This machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Machine {
    pub(super) kernel: String,
    /// Firmware describes a CXL hierarchy.
    pub(super) platform: bool,
    /// It is a virtual machine itself.
    pub(super) virtual_machine: bool,
    /// CXL memory on the PCI bus that no driver holds, by address.
    pub(super) idle_pci: Vec<String>,
    pub(super) drivers: Vec<Driver>,
    pub(super) expanders: Vec<Expander>,
    pub(super) windows: Vec<Window>,
    pub(super) regions: Vec<Region>,
    pub(super) dax: Vec<Device>,
    /// Nodes with memory and without cores.
    pub(super) far_nodes: Vec<Node>,
    pub(super) hotplug: Option<Hotplug>,
    /// Memory file systems that are bound to a node: where, and the node.
    pub(super) bound: Vec<(String, u32)>,
}

impl Machine {
    /// Looks at everything.
    pub(super) fn look(roots: &Roots) -> Result<Self> {
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

    /// Whether there is anything of CXL.
    pub(super) fn has_cxl(&self) -> bool {
        self.platform || !self.idle_pci.is_empty() || !self.expanders.is_empty() || !self.windows.is_empty()
    }
}

fn drivers(roots: &Roots) -> Result<Vec<Driver>> {
    let look = |(module, path, option): (&'static str, &str, &'static str)| {
        let state = match roots.sys.join(path).exists() {
            true => Had::Loaded,
            false if modules::can_load(roots, module)? => Had::Loadable,
            false => Had::Absent,
        };
        Ok(Driver { module, option, state })
    };
    DRIVERS.into_iter().map(look).collect()
}

fn expander(roots: &Roots, memory: Memory) -> Expander {
    let (known, trouble) = match mailbox::commands(roots, &memory.name) {
        Ok(commands) => (Some(commands), None),
        Err(error) => (None, Some(error.to_string())),
    };
    let knows = |command| known.as_ref().map(|commands| commands.contains(&command));
    Expander { dynamic_capacity: knows(mailbox::DYNAMIC_CAPACITY), multi_headed: knows(mailbox::MULTI_HEADED), memory, trouble }
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

/// Of `/proc/mounts`, `device place kind options 0 0`: memory file systems whose memory is all of one node.
fn bound(mounts: &str) -> Vec<(String, u32)> {
    let of = |line: &str| {
        let mut words = line.split(' ').skip(1);
        let (place, kind, options) = (words.next()?, words.next()?, words.next()?);
        let node = options.split(',').find_map(|option| option.strip_prefix("mpol=bind:")?.parse().ok());
        Some((place.to_owned(), node?)).filter(|_| kind == "tmpfs")
    };
    mounts.lines().filter_map(of).collect()
}

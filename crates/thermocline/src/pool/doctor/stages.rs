//! The stages from a device to pool memory: the state of each, and the commands that advance it. Pure.

use advise::doctor::{Check, Status};
use kernel::hotplug::{AutoOnline, Online};
use kernel::numa::Node;
use units::Bytes;

use super::machine::{Device, Driver, DriverState, Expander, Machine};

/// The result of a check, with the commands that lead to the next stage.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) check: Check,
    /// Empty if no command helps or none is needed.
    pub(super) commands: Vec<String>,
}

fn good(name: &'static str, found: impl Into<String>) -> Found {
    finding(name, Status::Ok, found, "")
}

/// A result with a remedy that is not a command.
fn finding(name: &'static str, status: Status, found: impl Into<String>, remedy: impl Into<String>) -> Found {
    Found { check: Check::new(name, status, found, remedy), commands: Vec::new() }
}

fn to_do(name: &'static str, status: Status, found: impl Into<String>, commands: Vec<String>) -> Found {
    Found { commands: commands.clone(), ..finding(name, status, found, commands.join("; ")) }
}

/// Returns the results of all stages, in order.
pub(super) fn all(machine: &Machine) -> Vec<Found> {
    let mut found = vec![platform(machine)];
    found.extend(machine.idle_pci.iter().map(|address| {
        let text = format!("{address} on the PCI bus is CXL memory without a driver");
        finding(
            "cxl_memory",
            Status::Missing,
            text,
            "load cxl_pci; if it is loaded, check its messages about this device: dmesg | grep cxl_pci",
        )
    }));
    found.extend(drivers(machine));
    found.push(hotplug(machine));
    found.extend(machine.expanders.iter().flat_map(|expander| [Some(memory(machine, expander)), special(expander)].into_iter().flatten()));
    found.extend(windows(machine));
    found.extend(regions(machine));
    found.extend(machine.dax.iter().map(dax));
    found.extend(machine.far_nodes.iter().map(|node| far_node(machine, node)));
    if machine.far_nodes.is_empty() {
        found.push(finding(
            "node",
            Status::Missing,
            "no node has memory and no cores",
            "see above; a pool can also be tested with files of ordinary memory",
        ));
    }
    found
}

fn platform(machine: &Machine) -> Found {
    if machine.platform {
        return good("cxl_platform", "firmware describes a CXL hierarchy (ACPI0017)");
    }
    let remedy = "if the machine has CXL memory, enable CXL in the firmware's settings, or update the firmware";
    finding("cxl_platform", Status::Advice, "firmware describes no CXL hierarchy (ACPI0017)", remedy)
}

/// Missing drivers are a problem only on a machine with CXL hardware.
fn drivers(machine: &Machine) -> Vec<Found> {
    let status = if machine.has_cxl() { Status::Missing } else { Status::Advice };
    let of = |state| machine.drivers.iter().filter(move |driver| driver.state == state);
    let mut found = Vec::new();
    let loaded: Vec<_> = of(DriverState::Loaded).map(|driver| driver.module).collect();
    if !loaded.is_empty() {
        found.push(good("drivers", loaded.join(", ")));
    }
    let loadable: Vec<_> = of(DriverState::Loadable).map(|driver| driver.module).collect();
    if !loadable.is_empty() {
        let text = format!("{} can be loaded", loadable.join(", "));
        let commands = loadable.iter().map(|module| format!("modprobe {module}")).collect();
        let loading = to_do("drivers", status, text, commands);
        // Without CXL hardware there is no need to load drivers.
        found.push(if machine.has_cxl() { loading } else { Found { commands: Vec::new(), ..loading } });
    }
    let absent: Vec<_> = of(DriverState::Absent).collect();
    if !absent.is_empty() {
        let list = |of: fn(&Driver) -> String| absent.iter().map(|driver| of(driver)).collect::<Vec<_>>().join(", ");
        let text = format!("this kernel has no {}", list(|driver| driver.module.to_owned()));
        let remedy = format!("boot a kernel with {}, such as a distribution's kernel", list(|driver| format!("{}=m", driver.option)));
        found.push(finding("drivers", status, text, remedy));
    }
    found
}

fn hotplug(machine: &Machine) -> Found {
    const NAME: &str = "memory_hotplug";
    let Some(hotplug) = machine.hotplug else {
        let remedy = "boot a kernel with CONFIG_MEMORY_HOTPLUG=y and CONFIG_MEMORY_HOTREMOVE=y";
        return finding(NAME, Status::Missing, "this kernel does not support memory hotplug", remedy);
    };
    let block = hotplug.block;
    let consequence = "so that the kernel may put unmovable allocations there";
    let movable = vec!["echo online_movable > /sys/devices/system/memory/auto_online_blocks".to_owned()];
    match hotplug.auto_online {
        AutoOnline::OnlineMovable => good(NAME, format!("blocks of {block} come online automatically, as movable memory")),
        AutoOnline::Offline => good(NAME, format!("blocks of {block} stay offline until daxctl sets them online")),
        AutoOnline::Online => {
            let advice = to_do(NAME, Status::Advice, format!("blocks of {block} come online automatically, {consequence}"), movable);
            // Memory that is already online does not change, so the command would have no effect.
            if machine.has_cxl() && machine.far_nodes.is_empty() { advice } else { Found { commands: Vec::new(), ..advice } }
        }
        AutoOnline::OnlineKernel => {
            to_do(NAME, Status::Advice, format!("blocks of {block} come online as kernel memory, which cannot be removed"), movable)
        }
    }
}

fn memory(machine: &Machine, expander: &Expander) -> Found {
    const NAME: &str = "cxl_memory";
    let memory = &expander.memory;
    let mut text = format!("{}: {}", memory.name, memory.ram);
    if memory.persistent > Bytes::ZERO {
        text += &format!(", and {} of persistent memory, which cannot be memory of a node", memory.persistent);
    }
    if let Some(serial) = memory.serial {
        text += &format!(", serial {serial:#x}");
    }
    if let Some(node) = memory.near_node {
        text += &format!(", near node {node}");
    }
    if !memory.enabled {
        return match machine.drivers.iter().all(|driver| driver.state == DriverState::Loaded) {
            true => to_do(NAME, Status::Missing, text + "; it is disabled", vec![format!("cxl enable-memdev {}", memory.name)]),
            false => finding(NAME, Status::Missing, text + "; no driver is bound to it", "load the drivers first"),
        };
    }
    let left = Bytes(memory.ram.0.saturating_sub(memory.mapped.0));
    if left == Bytes::ZERO {
        return good(NAME, text + "; all of it is mapped");
    }
    let unmapped = format!("{text}; {left} of it is not mapped");
    // One region for each expander, so that a failure affects one expander only.
    match machine.windows.iter().find(|window| window.ram && window.makes_regions) {
        Some(window) => {
            to_do(NAME, Status::Advice, unmapped, vec![format!("cxl create-region -m -t ram -d {} -w 1 {}", window.name, memory.name)])
        }
        None => finding(NAME, Status::Missing, unmapped, "there is no window for it"),
    }
}

/// Reports capabilities that current kernels do not support.
fn special(expander: &Expander) -> Option<Found> {
    let name = &expander.memory.name;
    if let Some(error) = &expander.error {
        let text = format!("the capabilities of {name} (dynamic capacity, several heads) are unknown: {error}");
        return Some(finding("cxl_special", Status::Advice, text, "run as root, on a kernel without lockdown"));
    }
    let what = match (expander.dynamic_capacity, expander.multi_headed) {
        (Some(true), Some(true)) => "is a multi-headed device with dynamic capacity (DCD)",
        (Some(true), _) => "has dynamic capacity (DCD)",
        (_, Some(true)) => "is a multi-headed device",
        _ => return None,
    };
    let text = format!("{name} {what}, which is not supported by current kernels");
    Some(finding("cxl_special", Status::Advice, text, "its static memory can be used"))
}

fn windows(machine: &Machine) -> Vec<Found> {
    const NAME: &str = "cxl_window";
    if machine.windows.is_empty() && !machine.expanders.is_empty() {
        let remedy = "load cxl_acpi; if it is loaded, firmware has reserved no address space (CFMWS): check its settings";
        return vec![finding(NAME, Status::Missing, "no address space is reserved for CXL memory", remedy)];
    }
    let of = |window: &kernel::cxl::Window| {
        let text = format!("{}: {}", window.name, window.size);
        match (window.ram, window.makes_regions) {
            (false, _) => finding(NAME, Status::Advice, text + ", not for volatile memory", "check the firmware's settings"),
            (true, false) => finding(
                NAME,
                Status::Missing,
                text + "; this kernel cannot create regions of volatile memory",
                "boot Linux 6.3 or newer with CONFIG_CXL_REGION=y",
            ),
            (true, true) => good(NAME, text + " for volatile memory"),
        }
    };
    machine.windows.iter().map(of).collect()
}

fn regions(machine: &Machine) -> Vec<Found> {
    const NAME: &str = "cxl_region";
    let mut found: Vec<_> = Vec::new();
    let any = machine.expanders.iter().any(|expander| expander.memory.enabled);
    if any && machine.regions.is_empty() && machine.virtual_machine {
        let text = "this is a virtual machine: its kernel must not flush processor caches, and refuses to create a region";
        let remedy =
            "assign the memory of one of the host's regions to the guest; for tests in QEMU, hide the hypervisor: -cpu max,-hypervisor";
        found.push(finding(NAME, Status::Advice, text, remedy));
    }
    found.extend(machine.regions.iter().map(|region| {
        let text = format!("{}: {} of {}", region.name, region.size, region.memories.join(", "));
        let again = || vec![format!("cxl destroy-region -f {}", region.name)];
        let device = machine.dax.iter().any(|device| device.dax.region.as_deref() == Some(region.name.as_str()));
        if region.size == Bytes::ZERO || !region.committed {
            return to_do(NAME, Status::Missing, format!("{}: not fully created", region.name), again());
        }
        if device {
            return good(NAME, text);
        }
        finding(NAME, Status::Missing, text + "; it has no DAX device", format!("load dax_cxl, then: cxl enable-region {}", region.name))
    }));
    found
}

fn dax(device: &Device) -> Found {
    const NAME: &str = "dax";
    let name = &device.dax.name;
    let mut text = format!("{name}: {}", device.dax.size);
    if let Some(region) = &device.dax.region {
        text += &format!(" of {region}");
    }
    if let Some(node) = device.dax.target_node {
        text += &format!(", node {node}");
    }
    match device.mode {
        None => to_do(NAME, Status::Missing, text + "; no driver is bound to it", vec![format!("daxctl enable-device {name}")]),
        Some("devdax") => {
            let devdax = text + ", mode devdax: used by one program, not memory of a node";
            to_do(NAME, Status::Advice, devdax, vec![format!("daxctl reconfigure-device --mode=system-ram {name}")])
        }
        Some(mode) => system_ram(name, device.online.as_ref(), format!("{text}, mode {mode}")),
    }
}

fn system_ram(name: &str, online: Option<&Online>, text: String) -> Found {
    const NAME: &str = "dax";
    match online {
        None => good(NAME, text),
        Some(Online { all: Bytes::ZERO, .. }) => {
            to_do(NAME, Status::Missing, text + ", all of it offline", vec![format!("daxctl online-memory {name}")])
        }
        Some(Online { all, movable }) if movable < all => {
            let partly = format!("{text}, {all} online, of which only {movable} is movable; the rest may not be removable");
            let remedy = format!("daxctl offline-memory {name}, which may fail, then daxctl online-memory {name}");
            finding(NAME, Status::Advice, partly, remedy)
        }
        Some(Online { all, .. }) => good(NAME, format!("{text}, {all} online and movable")),
    }
}

/// The smallest slice: slices consist of whole memory blocks.
const SLICE: u64 = 128 << 20;

fn far_node(machine: &Machine, node: &Node) -> Found {
    const NAME: &str = "node";
    let mut text = format!("{}: no cores, {}, {} free", node.id, node.total, node.free);
    for (other, distance) in node.distances.iter().filter(|(other, _)| *other != node.id) {
        text += &format!("; distance {distance} to node {other}");
    }
    if let Some(latency) = node.read_latency_ns() {
        text += &format!("; read latency {latency} ns (HMAT)");
    }
    if let Some((place, _)) = machine.bound.iter().find(|(_, bound)| *bound == node.id) {
        return good(NAME, format!("{text}; {place} is a file system in its memory, for a manager's pool_dir"));
    }
    let size = node.total.0 / SLICE * (SLICE >> 20);
    if size == 0 {
        return finding(NAME, Status::Advice, text, "the node is too small for a slice");
    }
    let place = "/run/thermocline-pool";
    let commands = vec![
        format!("mkdir -p {place}"),
        format!("mount -t tmpfs -o size={size}M,mode=0750,mpol=bind:{} thermocline-pool {place}", node.id),
    ];
    to_do(NAME, Status::Ok, text, commands)
}

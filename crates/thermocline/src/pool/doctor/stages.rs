//! The way from a device to pool memory, stage by stage: how each stands, and the commands that lead on. Pure.

use advise::doctor::{Check, Status};
use kernel::hotplug::{AutoOnline, Online};
use kernel::numa::Node;
use units::Bytes;

use super::machine::{Device, Driver, Expander, Had, Machine};

/// One thing that was looked at, and what leads on from there.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) check: Check,
    /// Empty where no command helps, or none is needed.
    pub(super) commands: Vec<String>,
}

fn good(name: &'static str, found: impl Into<String>) -> Found {
    told(name, Status::Ok, found, "")
}

/// With something that no command mends.
fn told(name: &'static str, status: Status, found: impl Into<String>, remedy: impl Into<String>) -> Found {
    Found { check: Check { name, status, found: found.into(), remedy: remedy.into() }, commands: Vec::new() }
}

fn to_do(name: &'static str, status: Status, found: impl Into<String>, commands: Vec<String>) -> Found {
    Found { commands: commands.clone(), ..told(name, status, found, commands.join("; ")) }
}

/// All stages, in the order in which they are gone through.
pub(super) fn all(machine: &Machine) -> Vec<Found> {
    let mut found = vec![platform(machine)];
    found.extend(machine.idle_pci.iter().map(|address| {
        let text = format!("{address} on the PCI bus is CXL memory, and no driver holds it");
        told("cxl_memory", Status::Missing, text, "load cxl_pci; if it is there, see what it says of this device: dmesg | grep cxl_pci")
    }));
    found.extend(drivers(machine));
    found.push(hotplug(machine));
    found.extend(machine.expanders.iter().flat_map(|expander| [Some(memory(machine, expander)), special(expander)].into_iter().flatten()));
    found.extend(windows(machine));
    found.extend(regions(machine));
    found.extend(machine.dax.iter().map(dax));
    found.extend(machine.far_nodes.iter().map(|node| far_node(machine, node)));
    if machine.far_nodes.is_empty() {
        found.push(told(
            "node",
            Status::Missing,
            "no node has memory and no cores",
            "see above; a pool can also be tried out on files of ordinary memory",
        ));
    }
    found
}

fn platform(machine: &Machine) -> Found {
    if machine.platform {
        return good("cxl_platform", "firmware describes a CXL hierarchy (ACPI0017)");
    }
    let remedy = "where there is CXL memory all the same, switch CXL on in the firmware's settings, and look for a newer firmware";
    told("cxl_platform", Status::Advice, "firmware describes no CXL hierarchy (ACPI0017)", remedy)
}

/// What is missing is no fault of a machine that has nothing to be driven.
fn drivers(machine: &Machine) -> Vec<Found> {
    let status = if machine.has_cxl() { Status::Missing } else { Status::Advice };
    let of = |state| machine.drivers.iter().filter(move |driver| driver.state == state);
    let mut found = Vec::new();
    let loaded: Vec<_> = of(Had::Loaded).map(|driver| driver.module).collect();
    if !loaded.is_empty() {
        found.push(good("drivers", loaded.join(", ")));
    }
    let loadable: Vec<_> = of(Had::Loadable).map(|driver| driver.module).collect();
    if !loadable.is_empty() {
        let text = format!("{} could be loaded", loadable.join(", "));
        let commands = loadable.iter().map(|module| format!("modprobe {module}")).collect();
        let waiting = to_do("drivers", status, text, commands);
        // Nobody is to load drivers for what is not there.
        found.push(if machine.has_cxl() { waiting } else { Found { commands: Vec::new(), ..waiting } });
    }
    let absent: Vec<_> = of(Had::Absent).collect();
    if !absent.is_empty() {
        let list = |of: fn(&Driver) -> String| absent.iter().map(|driver| of(driver)).collect::<Vec<_>>().join(", ");
        let text = format!("this kernel has no {}", list(|driver| driver.module.to_owned()));
        let remedy = format!("boot a kernel with {}, such as a distribution's own", list(|driver| format!("{}=m", driver.option)));
        found.push(told("drivers", status, text, remedy));
    }
    found
}

fn hotplug(machine: &Machine) -> Found {
    const NAME: &str = "memory_hotplug";
    let Some(hotplug) = machine.hotplug else {
        let remedy = "boot a kernel with CONFIG_MEMORY_HOTPLUG=y and CONFIG_MEMORY_HOTREMOVE=y";
        return told(NAME, Status::Missing, "this kernel takes no memory while it runs", remedy);
    };
    let block = hotplug.block;
    let way_back = "and the kernel may put there what it cannot move away again";
    let movable = vec!["echo online_movable > /sys/devices/system/memory/auto_online_blocks".to_owned()];
    match hotplug.auto_online {
        AutoOnline::OnlineMovable => good(NAME, format!("blocks of {block} come online by themselves, and can go again")),
        AutoOnline::Offline => good(NAME, format!("blocks of {block} stay offline until daxctl brings them online")),
        AutoOnline::Online => {
            let advice = to_do(NAME, Status::Advice, format!("blocks of {block} come online by themselves, {way_back}"), movable);
            // What is online already stays as it is: there is nothing to be gained by it any more.
            if machine.has_cxl() && machine.far_nodes.is_empty() { advice } else { Found { commands: Vec::new(), ..advice } }
        }
        AutoOnline::OnlineKernel => to_do(NAME, Status::Advice, format!("blocks of {block} come online for the kernel's own use"), movable),
    }
}

fn memory(machine: &Machine, expander: &Expander) -> Found {
    const NAME: &str = "cxl_memory";
    let memory = &expander.memory;
    let mut text = format!("{}: {}", memory.name, memory.ram);
    if memory.persistent > Bytes::ZERO {
        text += &format!(", and {} that is persistent and no memory of a node", memory.persistent);
    }
    if let Some(serial) = memory.serial {
        text += &format!(", serial {serial:#x}");
    }
    if let Some(node) = memory.near_node {
        text += &format!(", near node {node}");
    }
    if !memory.enabled {
        return match machine.drivers.iter().all(|driver| driver.state == Had::Loaded) {
            true => to_do(NAME, Status::Missing, text + "; it is disabled", vec![format!("cxl enable-memdev {}", memory.name)]),
            false => told(NAME, Status::Missing, text + "; no driver holds it", "load the drivers first"),
        };
    }
    let left = Bytes(memory.ram.0.saturating_sub(memory.mapped.0));
    if left == Bytes::ZERO {
        return good(NAME, text + "; all of it is mapped");
    }
    let found = format!("{text}; {left} of it is mapped nowhere");
    // One region for each expander, so that one's failure is not another's.
    match machine.windows.iter().find(|window| window.ram && window.makes_regions) {
        Some(window) => {
            to_do(NAME, Status::Advice, found, vec![format!("cxl create-region -m -t ram -d {} -w 1 {}", window.name, memory.name)])
        }
        None => told(NAME, Status::Missing, found, "there is no window for it"),
    }
}

/// What no kernel of today can make use of.
fn special(expander: &Expander) -> Option<Found> {
    let name = &expander.memory.name;
    if let Some(trouble) = &expander.trouble {
        let text = format!("{name} was not asked whether it has dynamic capacity or several heads: {trouble}");
        return Some(told("cxl_special", Status::Advice, text, "ask as root, on a kernel without lockdown"));
    }
    let what = match (expander.dynamic_capacity, expander.multi_headed) {
        (Some(true), Some(true)) => "is a multi-headed device with dynamic capacity (DCD)",
        (Some(true), _) => "has dynamic capacity (DCD)",
        (_, Some(true)) => "is a multi-headed device",
        _ => return None,
    };
    let text = format!("{name} {what}, which is not supported: today's kernels make no use of it");
    Some(told("cxl_special", Status::Advice, text, "its static memory can be used"))
}

fn windows(machine: &Machine) -> Vec<Found> {
    const NAME: &str = "cxl_window";
    if machine.windows.is_empty() && !machine.expanders.is_empty() {
        let remedy = "load cxl_acpi; if it is there, firmware has set no address space apart (CFMWS): see its settings";
        return vec![told(NAME, Status::Missing, "there is no address space for CXL memory", remedy)];
    }
    let of = |window: &kernel::cxl::Window| {
        let text = format!("{}: {}", window.name, window.size);
        match (window.ram, window.makes_regions) {
            (false, _) => told(NAME, Status::Advice, text + ", not for volatile memory", "see the firmware's settings"),
            (true, false) => told(
                NAME,
                Status::Missing,
                text + "; this kernel makes no regions of volatile memory",
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
        let text = "this is a virtual machine: its kernel may not flush the processors' caches, and refuses to make a region";
        let remedy = "pass the memory of a region of the host on to it; to try regions out in QEMU, hide that: -cpu max,-hypervisor";
        found.push(told(NAME, Status::Advice, text, remedy));
    }
    found.extend(machine.regions.iter().map(|region| {
        let text = format!("{}: {} of {}", region.name, region.size, region.memories.join(", "));
        let again = || vec![format!("cxl destroy-region -f {}", region.name)];
        let device = machine.dax.iter().any(|device| device.dax.region.as_deref() == Some(region.name.as_str()));
        if region.size == Bytes::ZERO || !region.committed {
            return to_do(NAME, Status::Missing, format!("{}: begun and not finished", region.name), again());
        }
        if device {
            return good(NAME, text);
        }
        told(
            NAME,
            Status::Missing,
            text + "; there is no DAX device of it",
            format!("load dax_cxl, then: cxl enable-region {}", region.name),
        )
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
        None => to_do(NAME, Status::Missing, text + "; no driver holds it", vec![format!("daxctl enable-device {name}")]),
        Some("devdax") => {
            let found = text + ", mode devdax: one program's own, and no memory of a node";
            to_do(NAME, Status::Advice, found, vec![format!("daxctl reconfigure-device --mode=system-ram {name}")])
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
            let found =
                format!("{text}, {all} online; only {movable} of it is sure to go again: in the rest the kernel may have put its own");
            let remedy = format!("daxctl offline-memory {name}, which may fail, then daxctl online-memory {name}");
            told(NAME, Status::Advice, found, remedy)
        }
        Some(Online { all, .. }) => good(NAME, format!("{text}, {all} online, which can go again")),
    }
}

/// Slices are whole blocks, of 128 MiB at least.
const SLICE: u64 = 128 << 20;

fn far_node(machine: &Machine, node: &Node) -> Found {
    const NAME: &str = "node";
    let mut text = format!("{}: no cores, {}, {} free", node.id, node.total, node.free);
    for (other, distance) in node.distances.iter().filter(|(other, _)| *other != node.id) {
        text += &format!("; distance {distance} to node {other}");
    }
    if let Some(latency) = node.read_latency_ns() {
        text += &format!("; a read takes {latency} ns, as firmware says (HMAT)");
    }
    if let Some((place, _)) = machine.bound.iter().find(|(_, bound)| *bound == node.id) {
        return good(NAME, format!("{text}; {place} is a file system of its memory, for a manager's pool_dir"));
    }
    let size = node.total.0 / SLICE * (SLICE >> 20);
    if size == 0 {
        return told(NAME, Status::Advice, text, "it is too small for a slice");
    }
    let place = "/run/thermocline-pool";
    let commands = vec![
        format!("mkdir -p {place}"),
        format!("mount -t tmpfs -o size={size}M,mode=0750,mpol=bind:{} thermocline-pool {place}", node.id),
    ];
    to_do(NAME, Status::Ok, text, commands)
}

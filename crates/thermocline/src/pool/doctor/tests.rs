use std::os::unix::fs::symlink;
use std::path::Path;

use advise::doctor::Status;
use kernel::Roots;

use super::machine::{Expander, Machine};
use super::{report, text};

type Files = Vec<(String, String)>;

const DAX: &str = "sys/devices/platform/root0/decoder0.0/region0/dax_region0/dax0.0";

fn files(some: &[(&str, &str)]) -> Files {
    some.iter().map(|&(path, text)| (path.to_owned(), text.to_owned())).collect()
}

/// A machine with CXL memory and no drivers.
fn cold() -> Files {
    files(&[
        ("proc/sys/kernel/osrelease", "6.12.1-amd64\n"),
        ("proc/cpuinfo", "processor : 0\nflags : fpu sse2\n"),
        (
            "lib/modules/6.12.1-amd64/modules.dep",
            "a/cxl_acpi.ko:\na/cxl_pci.ko:\na/cxl_port.ko:\na/cxl_mem.ko:\na/dax_cxl.ko:\na/kmem.ko:\n",
        ),
        ("sys/bus/acpi/devices/ACPI0017:00/hid", "ACPI0017\n"),
        ("sys/bus/pci/devices/0000:0d:00.0/class", "0x050210\n"),
        ("sys/devices/system/memory/block_size_bytes", "8000000\n"),
        ("sys/devices/system/memory/auto_online_blocks", "offline\n"),
        ("sys/devices/system/node/node0/cpulist", "0-1\n"),
        ("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 1048576 kB\nNode 0 MemFree: 524288 kB\n"),
        ("sys/devices/system/node/node0/distance", "10\n"),
    ])
}

/// A machine with drivers.
fn driven() -> Files {
    let mut all = cold();
    all.extend(files(&[
        ("sys/bus/platform/drivers/cxl_acpi/bind", ""),
        ("sys/bus/pci/drivers/cxl_pci/bind", ""),
        ("sys/bus/cxl/drivers/cxl_port/bind", ""),
        ("sys/bus/cxl/drivers/cxl_mem/bind", ""),
        ("sys/bus/cxl/drivers/cxl_dax_region/bind", ""),
        ("sys/bus/dax/drivers/kmem/bind", ""),
        ("sys/bus/pci/devices/0000:0d:00.0/driver", "-> ../../drivers/cxl_pci"),
        ("sys/bus/cxl/devices/mem0/ram/size", "0x40000000\n"),
        ("sys/bus/cxl/devices/mem0/serial", "0x1\n"),
        ("sys/bus/cxl/devices/mem0/driver", "-> ../../drivers/cxl_mem"),
        ("sys/bus/cxl/devices/endpoint2/uport", "-> ../mem0"),
        ("sys/bus/cxl/devices/decoder0.0/devtype", "cxl_decoder_root\n"),
        ("sys/bus/cxl/devices/decoder0.0/size", "0x100000000\n"),
        ("sys/bus/cxl/devices/decoder0.0/cap_ram", "1\n"),
        ("sys/bus/cxl/devices/decoder0.0/create_ram_region", "region0\n"),
    ]));
    all
}

/// A machine with a region whose memory is offline.
fn mapped() -> Files {
    let mut all = driven();
    all.extend(files(&[
        ("sys/bus/cxl/devices/decoder2.0/dpa_size", "0x40000000\n"),
        ("sys/bus/cxl/devices/region0/size", "0x40000000\n"),
        ("sys/bus/cxl/devices/region0/commit", "1\n"),
        ("sys/bus/cxl/devices/region0/target0", "decoder2.0\n"),
        (&format!("{DAX}/size"), "1073741824\n"),
        (&format!("{DAX}/resource"), "0x180000000\n"),
        (&format!("{DAX}/target_node"), "1\n"),
        ("sys/bus/dax/devices/dax0.0", "-> ../../../devices/platform/root0/decoder0.0/region0/dax_region0/dax0.0"),
        (&format!("{DAX}/driver"), "-> ../../../../../../../bus/dax/drivers/kmem"),
    ]));
    all
}

/// A machine whose CXL memory is a node.
fn ready() -> Files {
    let mut all = mapped();
    for block in 48..56 {
        let of = |name: &str| format!("sys/devices/system/memory/memory{block}/{name}");
        all.extend([(of("state"), "online\n".to_owned()), (of("valid_zones"), "Movable\n".to_owned())]);
    }
    all.extend(files(&[
        ("sys/devices/system/node/node0/distance", "10 20\n"),
        ("sys/devices/system/node/node1/cpulist", "\n"),
        ("sys/devices/system/node/node1/meminfo", "Node 1 MemTotal: 1048576 kB\nNode 1 MemFree: 1048000 kB\n"),
        ("sys/devices/system/node/node1/distance", "20 10\n"),
    ]));
    all
}

/// Creates a machine from files. The last file of each name counts; `->` is a link.
fn machine(files: &Files) -> Machine {
    let keep = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = keep.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        match text.strip_prefix("-> ") {
            Some(to) => symlink(Path::new(to), &path).unwrap(),
            None => std::fs::write(&path, text).unwrap(),
        }
    }
    Machine::read(&Roots::under(keep.path())).unwrap()
}

/// Checks a result's status and words, and the next commands.
fn check(machine: &Machine, able: bool, name: &str, status: Status, words: &[&str], next: &[&str]) {
    let report = report(machine);
    let fits = |check: &advise::doctor::Check| {
        let line = format!("{} -> {}", check.found, check.remedy);
        check.name == name && check.status == status && words.iter().all(|word| line.contains(word))
    };
    assert!(report.checks.iter().any(fits), "{name} {words:?}: {:#?}", report.checks);
    assert_eq!(report.able, able, "{}", text(&report));
    assert_eq!(report.next, next, "{}", text(&report));
    for command in next {
        assert!(text(&report).contains(command));
    }
}

#[test]
fn each_stage_prints_the_commands_for_the_next() {
    use Status::{Advice, Missing, Ok};
    let modprobe = ["cxl_acpi", "cxl_pci", "cxl_port", "cxl_mem", "dax_cxl", "kmem"].map(|module| format!("modprobe {module}"));
    let modprobe: Vec<_> = modprobe.iter().map(String::as_str).collect();
    check(&machine(&cold()), false, "cxl_memory", Missing, &["0000:0d:00.0", "without a driver"], &modprobe);
    let create = ["cxl create-region -m -t ram -d decoder0.0 -w 1 mem0"];
    check(&machine(&driven()), false, "cxl_memory", Advice, &["mem0: 1.0 GiB, serial 0x1", "1.0 GiB of it is not mapped"], &create);
    check(&machine(&driven()), false, "cxl_window", Ok, &["decoder0.0: 4.0 GiB for volatile"], &create);
    let online = ["daxctl online-memory dax0.0"];
    check(&machine(&mapped()), false, "dax", Missing, &["dax0.0: 1.0 GiB of region0, node 1, mode system-ram, all of it offline"], &online);
    let mount =
        ["mkdir -p /run/thermocline-pool", "mount -t tmpfs -o size=1024M,mode=0750,mpol=bind:1 thermocline-pool /run/thermocline-pool"];
    let whole = machine(&ready());
    check(&whole, true, "cxl_region", Ok, &["region0: 1.0 GiB of mem0"], &mount);
    check(&whole, true, "dax", Ok, &["mode system-ram, 1.0 GiB online"], &mount);
    check(&whole, true, "node", Ok, &["1: no cores, 1.0 GiB", "distance 20 to node 0"], &mount);
    let mut done = ready();
    done.extend(files(&[("proc/mounts", "thermocline-pool /run/thermocline-pool tmpfs rw,size=1048576k,mode=750,mpol=bind:1 0 0\n")]));
    check(&machine(&done), true, "node", Ok, &["/run/thermocline-pool is a file system in its memory"], &[]);
}

#[test]
fn obstacles_are_reported_with_a_remedy() {
    use Status::{Advice, Missing};
    let with = |mut all: Files, more: &[(&str, &str)]| {
        // A replacement must come before the file or link that it replaces.
        all.retain(|(path, _)| more.iter().all(|(other, _)| path != other));
        all.extend(files(more).into_iter().filter(|(_, text)| text != "gone"));
        machine(&all)
    };
    let create = ["cxl create-region -m -t ram -d decoder0.0 -w 1 mem0"];
    let guest = [("proc/cpuinfo", "flags : fpu hypervisor\n")];
    check(&with(driven(), &guest), false, "cxl_region", Advice, &["virtual machine", "-cpu max,-hypervisor"], &create);
    let disabled = [("sys/bus/cxl/devices/mem0/driver", "gone")];
    check(&with(driven(), &disabled), false, "cxl_memory", Missing, &["it is disabled"], &["cxl enable-memdev mem0"]);
    let old = [("sys/bus/cxl/devices/decoder0.0/create_ram_region", "gone")];
    check(&with(driven(), &old), false, "cxl_window", Missing, &["CONFIG_CXL_REGION"], &[]);
    let none = [("sys/bus/cxl/devices/decoder0.0/devtype", "gone")];
    check(&with(driven(), &none), false, "cxl_window", Missing, &["no address space is reserved", "CFMWS"], &[]);
    let no_kmem = [("sys/bus/dax/drivers/kmem/bind", "gone"), ("lib/modules/6.12.1-amd64/modules.dep", "gone")];
    check(&with(driven(), &no_kmem), false, "drivers", Missing, &["no kmem", "CONFIG_DEV_DAX_KMEM=m"], &create);
    let no_hotplug = [("sys/devices/system/memory/auto_online_blocks", "gone")];
    check(&with(driven(), &no_hotplug), false, "memory_hotplug", Missing, &["CONFIG_MEMORY_HOTPLUG"], &create);
    let sticks = [("sys/devices/system/memory/auto_online_blocks", "online\n")];
    let movable = ["echo online_movable > /sys/devices/system/memory/auto_online_blocks"];
    check(&with(driven(), &sticks), false, "memory_hotplug", Advice, &["unmovable allocations"], &movable);
    let begun = [("sys/bus/cxl/devices/region0/commit", "0\n")];
    check(&with(mapped(), &begun), false, "cxl_region", Missing, &["not fully created"], &["cxl destroy-region -f region0"]);
    let no_device = [("sys/bus/dax/devices/dax0.0", "gone")];
    check(&with(mapped(), &no_device), false, "cxl_region", Missing, &["no DAX device", "cxl enable-region region0"], &[]);
    let normal = [("sys/devices/system/memory/memory50/valid_zones", "Normal\n"), ("proc/mounts", "x /pool tmpfs mpol=bind:1 0 0\n")];
    check(&with(ready(), &normal), true, "dax", Advice, &["1.0 GiB online, of which only 896.0 MiB is movable"], &[]);
    let driver = format!("{DAX}/driver");
    let own = [(driver.as_str(), "-> ../../../../../../../bus/dax/drivers/device_dax")];
    let mode = ["daxctl reconfigure-device --mode=system-ram dax0.0"];
    check(&with(mapped(), &own), false, "dax", Advice, &["mode devdax"], &mode);
    check(&with(mapped(), &[(driver.as_str(), "gone")]), false, "dax", Missing, &["no driver"], &["daxctl enable-device dax0.0"]);
}

#[test]
fn unsupported_capabilities_are_reported() {
    let with = |dynamic, heads| {
        let mut machine = machine(&driven());
        let Expander { dynamic_capacity, multi_headed, error, .. } = &mut machine.expanders[0];
        (*dynamic_capacity, *multi_headed, *error) = (Some(dynamic), Some(heads), None);
        machine
    };
    let create = ["cxl create-region -m -t ram -d decoder0.0 -w 1 mem0"];
    for (dynamic, heads, words) in [
        (true, false, "has dynamic capacity (DCD)"),
        (false, true, "is a multi-headed device"),
        (true, true, "multi-headed device with dynamic"),
    ] {
        check(&with(dynamic, heads), false, "cxl_special", Status::Advice, &[words, "not supported"], &create);
    }
    assert!(report(&with(false, false)).checks.iter().all(|check| check.name != "cxl_special"));
    // The fixture's files are not devices, so the capabilities cannot be read.
    check(&machine(&driven()), false, "cxl_special", Status::Advice, &["are unknown", "/cxl/mem0"], &create);
}

#[test]
fn a_machine_without_cxl_needs_no_drivers() {
    let mut none = cold();
    none.retain(|(path, _)| !path.contains("ACPI0017") && !path.contains("pci"));
    let machine = machine(&none);
    check(&machine, false, "drivers", Status::Advice, &["can be loaded"], &[]);
    check(&machine, false, "node", Status::Missing, &["no node", "files of ordinary memory"], &[]);
    let json = serde_json::to_value(report(&machine)).unwrap();
    assert!(json["able"] == false && json["hotplug"]["auto_online"] == "offline" && json["drivers"][0]["state"] == "loadable", "{json}");
}

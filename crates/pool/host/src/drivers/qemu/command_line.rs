//! QEMU's command line.

use std::path::Path;

use super::confinement::SANDBOX;
use super::memory_device::Kind;
use super::settings::Settings;
use super::virtio_mem;
use crate::driver::Machine;

/// Id of node 0's memory backend. It is the same in the process that a guest is moved to.
pub(super) const LOCAL: &str = "local";

/// The options that do not depend on whether the guest is started or moved. Slices are added later, as devices of type
/// `kind`.
pub(super) fn build(settings: &Settings, machine: &Machine, kind: Kind) -> Vec<String> {
    let mut argv: Vec<String> = Vec::new();
    let mut add = |words: &[&str]| argv.extend(words.iter().map(|&word| word.to_owned()));
    let Machine { name, cores, local_bytes, slices, .. } = machine;
    add(&["-name", &escaped(Path::new(name)), "-machine", "q35", "-accel", &settings.accelerator, "-cpu", &settings.cpu]);
    add(&["-smp", &cores.to_string(), "-nodefaults", "-no-user-config", "-display", "none"]);
    let mut memory = format!("size={}B", local_bytes.0);
    if !slices.is_empty() {
        // QEMU adds address space for alignment by itself.
        memory += &format!(",slots={},maxmem={}B", slices.len(), (*local_bytes + machine.pool_bytes()).0);
    }
    let backend = format!("memory-backend-memfd,id={LOCAL},size={},share=on", local_bytes.0);
    add(&["-m", &memory, "-object", &backend]);
    add(&["-numa", &format!("node,nodeid=0,cpus=0-{},memdev={LOCAL}", cores.saturating_sub(1))]);
    if !slices.is_empty() {
        let distance = settings.distance;
        add(&["-numa", "node,nodeid=1"]);
        for (from, to) in [(0, 1), (1, 0)] {
            add(&["-numa", &format!("dist,src={from},dst={to},val={distance}")]);
        }
    }
    if settings.balloon {
        add(&["-device", "virtio-balloon-pci,id=balloon"]);
    }
    if kind == Kind::VirtioMem {
        for port in virtio_mem::ports(slices.len()) {
            add(&["-device", &port]);
        }
    }
    if settings.confine {
        add(&["-sandbox", SANDBOX]);
    }
    argv
}

/// A path within a comma-separated list of options.
pub(super) fn escaped(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use manager::api::Slice;
    use units::Bytes;

    use super::*;

    fn line(slices: u32, balloon: bool, kind: Kind) -> String {
        let settings = Settings { balloon, ..Settings::example() };
        let slice = |index| Slice { emc: 0, index, generation: 1, path: "/pool/a".into(), offset: None, bytes: Bytes(1 << 30) };
        let machine = Machine {
            name: "vm,1".to_owned(),
            cores: 4,
            local_bytes: Bytes(3 << 30),
            slices: (0..slices).map(slice).collect(),
            description: None,
        };
        build(&settings, &machine, kind).join(" ")
    }

    #[test]
    fn the_pool_is_a_node_without_cores() {
        let with = line(2, true, Kind::Dimm);
        for words in [
            "-name vm,,1",
            "-m size=3221225472B,slots=2,maxmem=5368709120B",
            "-numa node,nodeid=0,cpus=0-3,memdev=local -numa node,nodeid=1 ",
            "-numa dist,src=0,dst=1,val=28 -numa dist,src=1,dst=0,val=28",
            "-device virtio-balloon-pci,id=balloon",
        ] {
            assert!(with.contains(words), "{words} in {with}");
        }
        assert!(!with.contains("pcie-root-port") && !with.contains("-sandbox"), "{with}");
        let without = line(0, false, Kind::VirtioMem);
        assert!(!without.contains("nodeid=1") && !without.contains("slots") && !without.contains("balloon"), "{without}");
        assert!(!without.contains("pcie-root-port"), "{without}");
    }

    #[test]
    fn each_virtio_mem_device_has_its_own_port() {
        let with = line(10, false, Kind::VirtioMem);
        for words in [
            "-device pcie-root-port,id=slices0,chassis=1,addr=10.0,multifunction=on,io-reserve=0 ",
            "-device pcie-root-port,id=slices7,chassis=8,addr=10.7,io-reserve=0 ",
            "-device pcie-root-port,id=slices8,chassis=9,addr=11.0,multifunction=on,io-reserve=0 ",
            "-device pcie-root-port,id=slices9,chassis=10,addr=11.1,io-reserve=0",
        ] {
            assert!(with.contains(words), "{words} in {with}");
        }
        // The last slot of the bus that the chipset does not use.
        let most = u32::try_from(virtio_mem::SLICES_MAX).unwrap();
        assert!(line(most, false, Kind::VirtioMem).contains(",addr=17.7,"));
    }
}

//! QEMU's command line.

use std::path::{Path, PathBuf};

use super::slices::Way;
use super::virtio_mem;
use crate::driver::Machine;

/// How QEMU is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The program.
    pub program: PathBuf,
    /// What runs the guest's instructions, such as `kvm` or `tcg`.
    pub accelerator: String,
    /// The processor that guests see.
    pub cpu: String,
    /// The distance of the pool's node; node 0 is at 10 from itself.
    pub distance: u8,
    /// Whether guests have a balloon, by which they tell how much memory they use. It is never inflated.
    pub balloon: bool,
    /// As what guests that start get their slices. Those that run keep theirs as they have them.
    pub slices: Way,
    /// How long a guest may stand still while it is moved, as QEMU is told to aim for.
    pub pause: std::time::Duration,
}

/// Where QEMU keeps what belongs to one process.
pub(super) struct Files {
    pub(super) pid: PathBuf,
    pub(super) qmp: PathBuf,
    pub(super) log: PathBuf,
}

/// The name of node 0's memory, by which a moved guest's is found again.
pub(super) const LOCAL: &str = "local";

/// All but what hangs on how the guest begins. Slices are added later, in the way that is told.
pub(super) fn of(settings: &Settings, machine: &Machine, way: Way, files: &Files) -> Vec<String> {
    let mut argv: Vec<String> = Vec::new();
    let mut add = |words: &[&str]| argv.extend(words.iter().map(|&word| word.to_owned()));
    let Machine { name, cores, local_bytes, slices, .. } = machine;
    add(&["-name", &escaped(Path::new(name)), "-machine", "q35", "-accel", &settings.accelerator, "-cpu", &settings.cpu]);
    add(&["-smp", &cores.to_string(), "-nodefaults", "-no-user-config", "-display", "none"]);
    let mut memory = format!("size={local_bytes}B");
    if !slices.is_empty() {
        // QEMU adds room for alignment by itself.
        memory += &format!(",slots={},maxmem={}B", slices.len(), local_bytes + machine.pool_bytes());
    }
    let backend = format!("memory-backend-memfd,id={LOCAL},size={local_bytes},share=on");
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
    if way == Way::VirtioMem {
        for port in virtio_mem::ports(slices.len()) {
            add(&["-device", &port]);
        }
    }
    add(&["-qmp", &format!("unix:{},server=on,wait=off", escaped(&files.qmp))]);
    // In the background it outlives whoever started it; what keeps it from starting is said before.
    let (pid, log) = (files.pid.to_string_lossy(), files.log.to_string_lossy());
    add(&["-daemonize", "-pidfile", &pid, "-D", &log]);
    argv
}

/// A path within a comma-separated list of options.
pub(super) fn escaped(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use manager::api::Slice;

    use super::*;

    fn line(slices: u32, balloon: bool, way: Way) -> String {
        let settings = Settings {
            program: "qemu".into(),
            accelerator: "kvm".to_owned(),
            cpu: "host".to_owned(),
            distance: 28,
            balloon,
            slices: Way::Dimm,
            pause: std::time::Duration::from_millis(50),
        };
        let slice = |index| Slice { emc: 0, index, turn: 1, path: "/pool/a".into(), bytes: 1 << 30 };
        let machine = Machine {
            name: "vm,1".to_owned(),
            cores: 4,
            local_bytes: 3 << 30,
            slices: (0..slices).map(slice).collect(),
            arguments: Vec::new(),
            domain: None,
        };
        let files = Files { pid: "/run/vm.pid".into(), qmp: "/run/a,b.qmp".into(), log: "/run/vm.log".into() };
        of(&settings, &machine, way, &files).join(" ")
    }

    #[test]
    fn a_guest_sees_the_pool_as_a_node_without_cores() {
        let with = line(2, true, Way::Dimm);
        for words in [
            "-name vm,,1",
            "-m size=3221225472B,slots=2,maxmem=5368709120B",
            "-numa node,nodeid=0,cpus=0-3,memdev=local -numa node,nodeid=1 ",
            "-numa dist,src=0,dst=1,val=28 -numa dist,src=1,dst=0,val=28",
            "-device virtio-balloon-pci,id=balloon",
            "-qmp unix:/run/a,,b.qmp,server=on,wait=off",
        ] {
            assert!(with.contains(words), "{words} in {with}");
        }
        assert!(!with.contains("pcie-root-port"), "{with}");
        let without = line(0, false, Way::VirtioMem);
        assert!(!without.contains("nodeid=1") && !without.contains("slots") && !without.contains("balloon"), "{without}");
        assert!(!without.contains("pcie-root-port"), "{without}");
    }

    #[test]
    fn each_virtio_mem_device_has_a_port_of_its_own() {
        let with = line(10, false, Way::VirtioMem);
        for words in [
            "-device pcie-root-port,id=slices0,chassis=1,addr=10.0,multifunction=on,io-reserve=0 ",
            "-device pcie-root-port,id=slices7,chassis=8,addr=10.7,io-reserve=0 ",
            "-device pcie-root-port,id=slices8,chassis=9,addr=11.0,multifunction=on,io-reserve=0 ",
            "-device pcie-root-port,id=slices9,chassis=10,addr=11.1,io-reserve=0 -qmp",
        ] {
            assert!(with.contains(words), "{words} in {with}");
        }
        // The last place of the bus that is not the chipset's.
        let most = u32::try_from(virtio_mem::SLICES_MAX).unwrap();
        assert!(line(most, false, Way::VirtioMem).contains(",addr=17.7,"));
    }
}

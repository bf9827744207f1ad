//! QEMU's command line.

use std::path::{Path, PathBuf};

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

/// All but what hangs on how the guest begins. Slices are added later.
pub(super) fn of(settings: &Settings, machine: &Machine, files: &Files) -> Vec<String> {
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

    fn line(slices: u32, balloon: bool) -> String {
        let settings = Settings {
            program: "qemu".into(),
            accelerator: "kvm".to_owned(),
            cpu: "host".to_owned(),
            distance: 28,
            balloon,
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
        of(&settings, &machine, &files).join(" ")
    }

    #[test]
    fn a_guest_sees_the_pool_as_a_node_without_cores() {
        let with = line(2, true);
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
        let without = line(0, false);
        assert!(!without.contains("nodeid=1") && !without.contains("slots") && !without.contains("balloon"), "{without}");
    }
}

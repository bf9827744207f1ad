//! The driver with a script in place of QEMU, and a confined guest with a real one. Users and capabilities require root; without it or QEMU, the lab's scenario
//! `confined` is the only check.

use std::fs::DirEntry;
use std::os::unix::fs::OpenOptionsExt;

use super::*;
use crate::drivers::libvirt;

const SLICE: Bytes = Bytes::mib(2);

fn status(process: &Process, key: &str) -> Vec<String> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid)).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).unwrap();
    line.split_ascii_whitespace().map(ToOwned::to_owned).collect()
}

fn private(path: &Path, bytes: u64) -> File {
    let file = std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(path).unwrap();
    file.set_len(bytes).unwrap();
    file
}

/// Kills the process, also if the test fails.
struct Killed(Process);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill(&Roots::host());
    }
}

#[test]
fn a_confined_guest_maps_its_slice_without_access_to_directories() {
    let is_root = kernel::capability::credentials(&Roots::host()).unwrap().is_root();
    let program = Path::new("/usr/bin/qemu-system-x86_64");
    if !is_root || !program.exists() {
        println!("not checked: needs root and {}", program.display());
        return;
    }
    // Mode 0700, as the directories of the pool and of the host.
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let settings = Settings {
        program: program.to_owned(),
        accelerator: "tcg".to_owned(),
        cpu: "max".to_owned(),
        confine: true,
        cgroup: path("guests"),
        ..Settings::example()
    };
    let slice = Slice { emc: 0, index: 1, generation: 1, path: path("slice"), offset: None, bytes: SLICE };
    let lock = private(&slice.path, SLICE.0);
    lock.lock().unwrap();
    drop(private(&path("disk"), 1 << 20));
    let disk = ["-drive", "file=/dev/fdset/1,if=virtio,format=raw"].map(ToOwned::to_owned);
    let description = Description::Qemu(guest::Guest { arguments: disk.to_vec(), files: vec![path("disk")] });
    let machine = Machine {
        name: "vm".to_owned(),
        cores: 1,
        local_bytes: Bytes::mib(64),
        slices: vec![slice.clone()],
        description: Some(description),
    };
    let driver = Qemu::new(settings.clone(), directory.path().to_owned());
    let process = driver.start(&machine, vec![lock]).unwrap();
    let _killed = Killed(process);
    // Another program may have the first users already.
    let user = status(&process, "Uid").swap_remove(0);
    assert!((settings.first_user..settings.first_user + settings.users).contains(&user.parse().unwrap()), "{user}");
    assert_eq!(status(&process, "Uid"), [user.as_str(); 4]);
    assert_eq!(status(&process, "Gid"), [user.as_str(); 4]);
    assert!(status(&process, "Groups").is_empty());
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(status(&process, set), ["0000000000000000"], "{set}");
    }
    assert_eq!((status(&process, "NoNewPrivs"), status(&process, "Seccomp")), (vec!["1".to_owned()], vec!["2".to_owned()]));
    let read = |name: &str| std::fs::read_to_string(path(name)).unwrap();
    assert_eq!(read("guests/vm.1/cgroup.procs"), process.pid.to_string());
    assert_eq!(read("guests/vm.1/memory.max"), (Bytes::mib(66) + settings.overhead).0.to_string());
    // Two descriptors are left of the slice: its lock, and that of the mapping. The one that was passed is closed.
    // QEMU closes others of its descriptors while they are listed.
    let open = std::fs::read_dir(format!("/proc/{}/fd", process.pid)).unwrap();
    let is_slice = |entry: &DirEntry| std::fs::read_link(entry.path()).is_ok_and(|to| to == slice.path);
    assert_eq!(open.filter(|entry| is_slice(entry.as_ref().unwrap())).count(), 2);
    // The next daemon finds the process, and the slice is returned with its lock.
    let next = Qemu::new(settings, directory.path().to_owned());
    assert_eq!(next.resume(&machine, None).unwrap(), Some(process));
    let reopened = File::open(&slice.path).unwrap();
    assert!(reopened.try_lock().is_err(), "the guest holds the lock");
    next.stop(&machine, &process, Duration::ZERO).unwrap();
    assert!(!next.is_alive(&process));
    // Another test may be starting a process, which has copies of all descriptors for a moment.
    let until = Instant::now() + Duration::from_secs(5);
    while reopened.try_lock().is_err() {
        assert!(Instant::now() < until, "the lock ends with the guest");
        std::thread::yield_now();
    }
}

/// A driver that runs a script in place of QEMU.
fn qemu(directory: &Path, script: &str) -> Qemu {
    let program = crate::testing::script(directory, "qemu", script);
    Qemu::new(Settings { program, ..Settings::example() }, directory.to_owned())
}

#[test]
fn start_errors_contain_the_messages_of_qemu() {
    let directory = tempfile::tempdir().unwrap();
    let machine = Machine { name: "a".to_owned(), cores: 1, local_bytes: Bytes(1 << 28), slices: Vec::new(), description: None };
    let check = |script: &str, why: &str| {
        let error = qemu(directory.path(), script).start(&machine, Vec::new()).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    };
    check("echo 'qemu: no KVM here' >&2; exit 1", "exit status: 1: qemu: no KVM here");
    check("exit 0", "exit status: 0");
    let missing = Qemu::new(Settings { program: "/nowhere/qemu".into(), ..Settings::example() }, directory.path().to_owned());
    assert!(missing.start(&machine, Vec::new()).unwrap_err().to_string().contains("install it"));
    assert_eq!(missing.resume(&machine, None).unwrap(), None);
    let slice = |index| Slice { emc: 0, index, generation: 1, path: "/pool/a".into(), offset: None, bytes: Bytes(1 << 30) };
    let large = Machine { slices: (0..65).map(slice).collect(), ..machine.clone() };
    let mut many = qemu(directory.path(), "exit 0");
    many.launcher.settings.slices = Kind::VirtioMem;
    assert!(many.start(&large, Vec::new()).unwrap_err().to_string().contains("65 slices as virtio-mem devices"));
}

#[test]
fn descriptions_of_other_drivers_and_forbidden_options_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let driver = qemu(directory.path(), "exit 0");
    let check = |description: Description, why: &str| {
        assert!(driver.check(Some(&description)).unwrap_err().contains(why));
        let machine =
            Machine { name: "a".to_owned(), cores: 1, local_bytes: Bytes(1 << 28), slices: Vec::new(), description: Some(description) };
        assert!(driver.start(&machine, Vec::new()).unwrap_err().to_string().contains(why));
    };
    assert_eq!(driver.check(None), Ok(()));
    check(Description::Libvirt(libvirt::guest::Guest { domain: "<domain/>".to_owned() }), "[libvirt] table");
    check(Description::Qemu(guest::Guest { arguments: vec!["--m".to_owned(), "8G".to_owned()], files: Vec::new() }), "not allowed");
}

#[test]
fn old_balloon_statistics_are_ignored() {
    let check = |update: u64, available: u64, now: u64, expected: Option<u64>| {
        let stats = json!({ "stats": { "stat-total-memory": 800, "stat-available-memory": available }, "last-update": update });
        assert_eq!(guest_memory(&stats, now).map(|memory| memory.available_bytes.0), expected, "{update} {available} {now}");
    };
    check(1000, 300, 1002, Some(300));
    check(1000, 300, 1031, None);
    // QEMU's reply before the guest has reported.
    check(0, u64::MAX, 1000, None);
    check(1000, u64::MAX, 1000, None);
    assert_eq!(guest_memory(&json!({}), 1000), None);
}

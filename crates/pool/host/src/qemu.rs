//! The driver of QEMU, 7.2 or newer.
//!
//! A slice is a memory device on node 1, which has no cores and nothing else: a pc-dimm, or a virtio-mem device, as the host is
//! configured when the guest starts; a guest that runs is asked for what QEMU says it has. It is added before the guest's first
//! instruction, so that the guest finds it while it boots and brings it online by its own rule (`memhp_default_state`, or a udev rule). A node
//! that is there from the start would need nothing of the guest, but boot allocations begin at the end of memory, and so in the
//! pool: 91 and 145 MiB of 256 MiB were touched before the first program ran, on Linux 6.12.
//!
//! QEMU opens a slice by path, and maps it. What is handed over beside it (`getfd`) is the open file that holds the lock; QEMU
//! keeps it until `closefd` or its end, also over the end of the conversation.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kernel::Roots;
use manager::api::Slice;
use serde_json::{Value, json};

use crate::driver::{self, BALLOON_OLD_SECONDS, Driver, Error, GONE_WITHIN, Inside, Machine, Moved, Offline, Process, Usage, unix_seconds};
use crate::qmp::Qmp;

mod arguments;
mod dimm;
mod migrate;
mod slices;
mod virtio_mem;

pub use arguments::Settings;
pub use slices::Way;

/// How long QEMU may take until it is ready to run a guest, and how much of its complaints is read.
const SET_UP_WITHIN: Duration = Duration::from_secs(60);
const SAID_MAX: u64 = 16 << 10;
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// How often the balloon's driver in a guest is asked, in seconds.
const BALLOON_SECONDS: u64 = 2;
const BALLOON: &str = "/machine/peripheral/balloon";

/// Starts and drives QEMU processes.
#[derive(Debug)]
pub struct Qemu {
    settings: Settings,
    runtime: PathBuf,
    roots: Roots,
}

impl Qemu {
    /// A driver that keeps sockets and pid files in `runtime`, a directory that exists.
    #[must_use]
    pub fn new(settings: Settings, runtime: PathBuf) -> Self {
        Self { settings, runtime, roots: Roots::host() }
    }

    fn path(&self, name: &str, generation: u32, what: &str) -> PathBuf {
        self.runtime.join(format!("{name}.{generation}.{what}"))
    }

    fn connect(&self, machine: &Machine, process: &Process) -> Result<Qmp, Error> {
        Ok(Qmp::connect(&self.path(&machine.name, process.generation, "qmp"))?)
    }

    /// Starts QEMU, which goes into the background once it is set up, and does not run the guest yet.
    fn spawn(&self, machine: &Machine, generation: u32, way: Way, more: &[String]) -> Result<Process, Error> {
        let failed = |why: String| Error::Start { program: self.settings.program.clone(), guest: machine.name.clone(), why };
        if machine.domain.is_some() {
            return Err(failed("its file names a domain, which is libvirt's; give QEMU arguments".to_owned()));
        }
        let pid_file = self.path(&machine.name, generation, "pid");
        let files = arguments::Files {
            pid: pid_file.clone(),
            qmp: self.path(&machine.name, generation, "qmp"),
            log: self.path(&machine.name, generation, "log"),
        };
        // Of an earlier guest of this name: its process is gone.
        for left in [&files.pid, &files.qmp] {
            match std::fs::remove_file(left) {
                Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Error::Io { op: "remove", path: left.clone(), source });
                }
                _ => {}
            }
        }
        let mut argv = arguments::of(&self.settings, machine, way, &files);
        argv.extend_from_slice(more);
        argv.extend(machine.arguments.iter().cloned());
        let mut child = Command::new(&self.settings.program)
            .args(&argv)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| failed(format!("{error}; install it, or name another program")))?;
        if let Err(why) = set_up(&mut child) {
            if let Some(process) = self.read_pid(&pid_file, generation) {
                process.kill(&self.roots);
            }
            return Err(failed(why));
        }
        self.read_pid(&pid_file, generation).ok_or_else(|| failed("it has left no pid file, or ended at once".to_owned()))
    }

    fn read_pid(&self, path: &Path, generation: u32) -> Option<Process> {
        let pid = std::fs::read_to_string(path).ok()?.trim().parse().ok()?;
        let path = path.as_os_str().as_encoded_bytes();
        Process::with_argument(&self.roots, pid, generation, |word| word == path)
    }

    /// Adds the slices and has the guest run.
    fn set_up(&self, machine: &Machine, process: &Process, held: Vec<File>) -> Result<(), Error> {
        let mut qmp = self.connect(machine, process)?;
        let way = self.settings.slices;
        if way == Way::VirtioMem
            && !held.is_empty()
            && let Some(why) = virtio_mem::lacking(&mut qmp)?
        {
            return Err(Error::Start { program: self.settings.program.clone(), guest: machine.name.clone(), why });
        }
        for (ordinal, (slice, file)) in machine.slices.iter().zip(held).enumerate() {
            slices::add(&mut qmp, way, ordinal, slice, file.as_fd())?;
        }
        if self.settings.balloon {
            let interval = json!({ "path": BALLOON, "property": "guest-stats-polling-interval", "value": BALLOON_SECONDS });
            qmp.ask("qom-set", &interval)?;
        }
        qmp.ask("cont", &json!({}))?;
        Ok(())
    }

    /// Has a guest keep what a caller that died had asked it for. Who still wants it asks again, once there is room.
    fn take_back(&self, machine: &Machine, process: &Process) {
        if machine.slices.is_empty() {
            return;
        }
        let taken = self.connect(machine, process).and_then(|mut qmp| Ok(virtio_mem::take_back(&mut qmp, &machine.slices)?));
        match taken {
            Ok(0) => {}
            Ok(slices) => log::info!("guest {}: was asked for slices by somebody who is gone, and keeps them: {slices}", machine.name),
            Err(error) => log::warn!("guest {}: {error}; it may still be asked for slices", machine.name),
        }
    }
}

impl Driver for Qemu {
    fn start(&self, machine: &Machine, held: Vec<File>) -> Result<Process, Error> {
        if self.settings.slices == Way::VirtioMem
            && let Some(why) = virtio_mem::unfit(&machine.slices)
        {
            return Err(Error::Start { program: self.settings.program.clone(), guest: machine.name.clone(), why });
        }
        let process = self.spawn(machine, 1, self.settings.slices, &["-S".to_owned()])?;
        if let Err(error) = self.set_up(machine, &process, held) {
            process.kill(&self.roots);
            return Err(error);
        }
        Ok(process)
    }

    fn resume(&self, machine: &Machine, known: Option<Process>) -> Result<Option<Process>, Error> {
        let find = |generation| self.read_pid(&self.path(&machine.name, generation, "pid"), generation);
        let first = known.filter(|process| process.generation == 1 && self.is_alive(process)).or_else(|| find(1));
        let found = match (first, find(2)) {
            (Some(first), Some(second)) => Some(migrate::settle(self, machine, first, second)?),
            (first, second) => second.or(first),
        };
        if let Some(process) = &found {
            self.take_back(machine, process);
        }
        Ok(found)
    }

    fn is_alive(&self, process: &Process) -> bool {
        process.is_alive(&self.roots)
    }

    fn usage(&self, machine: &Machine, process: &Process) -> Result<Usage, Error> {
        driver::look(&self.roots, process, |mapping| {
            let path = Path::new(&mapping.vma.path);
            // Not what is mapped now: the kernel may have taken pages out of the page tables that the file still has.
            machine.slices.iter().any(|slice| slice.path == path).then(|| touched(path).unwrap_or(mapping.rss))
        })
    }

    fn inside(&self, machine: &Machine, process: &Process) -> Result<Option<Inside>, Error> {
        if !self.settings.balloon {
            return Ok(None);
        }
        let told = self.connect(machine, process)?.ask("qom-get", &json!({ "path": BALLOON, "property": "guest-stats" }))?;
        Ok(inside(&told, unix_seconds()))
    }

    fn offline(&self, machine: &Machine, process: &Process, slice: &Slice, within: Duration) -> Result<Offline, Error> {
        Ok(slices::remove(&mut self.connect(machine, process)?, slice, Instant::now() + within)?)
    }

    fn repair_bytes(&self, machine: &Machine) -> u64 {
        // For the time of the move there are two of it.
        machine.local_bytes + machine.pool_bytes()
    }

    fn to_local(&self, machine: &Machine, process: &Process, within: Duration) -> Result<Moved, Error> {
        migrate::to_local(self, machine, process, within)
    }

    fn stop(&self, machine: &Machine, process: &Process, grace: Duration) -> Result<(), Error> {
        if !self.is_alive(process) {
            return Ok(());
        }
        // A monitor that does not answer must not keep a guest alive.
        let asked = self.connect(machine, process).and_then(|mut qmp| {
            if !grace.is_zero() {
                qmp.ask("system_powerdown", &json!({}))?;
                if process.gone(&self.roots, grace) {
                    return Ok(());
                }
            }
            Ok(qmp.ask("quit", &json!({})).map(drop)?)
        });
        if let Err(error) = asked {
            log::warn!("guest {}: {error}", machine.name);
        } else if process.gone(&self.roots, GONE_WITHIN) {
            return Ok(());
        }
        process.kill(&self.roots);
        Ok(())
    }
}

/// Waits until QEMU is in the background; otherwise tells why it is not, and leaves no child.
fn set_up(child: &mut Child) -> Result<(), String> {
    let deadline = Instant::now() + SET_UP_WITHIN;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => {
                let mut said = String::new();
                if let Some(errors) = child.stderr.take() {
                    // What cannot be read is not told.
                    let _ = errors.take(SAID_MAX).read_to_string(&mut said);
                }
                return Err(format!("{status}: {}", said.trim()));
            }
            Ok(None) if Instant::now() < deadline => std::thread::sleep(LOOK_EVERY),
            Ok(None) => {
                let _ = child.kill().and_then(|()| child.wait());
                return Err(format!("it was not set up within {} s; does anybody listen where it connects?", SET_UP_WITHIN.as_secs()));
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// Bytes of a slice's file that anybody has touched since it was scrubbed.
fn touched(path: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).ok().map(|about| about.blocks().saturating_mul(512))
}

/// What the balloon's driver said, if it said it lately.
fn inside(told: &Value, now: u64) -> Option<Inside> {
    let said_at = told.get("last-update")?.as_u64()?;
    if said_at == 0 || now.saturating_sub(said_at) > BALLOON_OLD_SECONDS {
        return None;
    }
    // A figure that the driver does not tell is -1.
    let figure = |name: &str| told.get("stats")?.get(name)?.as_u64().filter(|&bytes| bytes != u64::MAX);
    Some(Inside { total_bytes: figure("stat-total-memory")?, available_bytes: figure("stat-available-memory")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program in QEMU's place.
    fn qemu(directory: &Path, script: &str) -> Qemu {
        use std::os::unix::fs::PermissionsExt;
        let program = directory.join("qemu");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let settings = Settings {
            program,
            accelerator: "kvm".to_owned(),
            cpu: "host".to_owned(),
            distance: 28,
            balloon: false,
            slices: Way::Dimm,
            pause: Duration::from_millis(50),
        };
        Qemu::new(settings, directory.to_owned())
    }

    #[test]
    fn why_a_guest_does_not_start_is_told_in_qemus_words() {
        let directory = tempfile::tempdir().unwrap();
        let machine =
            Machine { name: "a".to_owned(), cores: 1, local_bytes: 1 << 28, slices: Vec::new(), arguments: Vec::new(), domain: None };
        let check = |script: &str, why: &str| {
            let told = qemu(directory.path(), script).start(&machine, Vec::new()).unwrap_err().to_string();
            assert!(told.contains(why), "{told}");
        };
        check("echo 'qemu: no KVM here' >&2; exit 1", "exit status: 1: qemu: no KVM here");
        check("exit 0", "has left no pid file");
        // The number of a process that is not its.
        check(&format!("echo {} > {}/a.1.pid", std::process::id(), directory.path().display()), "has left no pid file");
        let nobody =
            Qemu::new(Settings { program: "/nowhere/qemu".into(), ..qemu(directory.path(), "").settings }, directory.path().to_owned());
        assert!(nobody.start(&machine, Vec::new()).unwrap_err().to_string().contains("install it"));
        assert_eq!(nobody.resume(&machine, None).unwrap(), None);
        let slice = |index| Slice { emc: 0, index, turn: 1, path: "/pool/a".into(), bytes: 1 << 30 };
        let large = Machine { slices: (0..65).map(slice).collect(), ..machine.clone() };
        let mut many = qemu(directory.path(), "exit 0");
        many.settings.slices = Way::VirtioMem;
        assert!(many.start(&large, Vec::new()).unwrap_err().to_string().contains("65 slices as virtio-mem devices"));
        let domain = Machine { domain: Some("<domain/>".to_owned()), ..machine };
        assert!(nobody.start(&domain, Vec::new()).unwrap_err().to_string().contains("which is libvirt's"));
    }

    #[test]
    fn a_balloon_is_believed_while_it_speaks() {
        let check = |update: u64, available: u64, now: u64, want: Option<u64>| {
            let told = json!({ "stats": { "stat-total-memory": 800, "stat-available-memory": available }, "last-update": update });
            assert_eq!(inside(&told, now).map(|inside| inside.available_bytes), want, "{update} {available} {now}");
        };
        check(1000, 300, 1002, Some(300));
        check(1000, 300, 1031, None);
        // QEMU's answer before any guest has spoken.
        check(0, u64::MAX, 1000, None);
        check(1000, u64::MAX, 1000, None);
        assert_eq!(inside(&json!({}), 1000), None);
    }
}

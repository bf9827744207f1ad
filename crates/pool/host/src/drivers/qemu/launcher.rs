//! QEMU processes: start, identity, connection and end.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kernel::Roots;
use serde_json::json;

use super::command_line;
use super::memory_device::Kind;
use super::qmp::Qmp;
use super::settings::Settings;
use crate::driver::{Error, Machine};
use crate::drivers::description::Description;
use crate::process::{EXIT_TIMEOUT, Process};

/// How long QEMU may take to be ready.
const SETUP_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Most bytes of QEMU's error messages that are read.
const ERRORS_MAX: u64 = 16 << 10;

/// Starts and finds QEMU processes.
#[derive(Debug)]
pub(super) struct Launcher {
    pub(super) settings: Settings,
    /// Directory of sockets, pid files and logs.
    pub(super) runtime: PathBuf,
    pub(super) roots: Roots,
}

impl Launcher {
    /// A file of a guest's process.
    pub(super) fn path(&self, name: &str, generation: u32, extension: &str) -> PathBuf {
        self.runtime.join(format!("{name}.{generation}.{extension}"))
    }

    pub(super) fn connect(&self, machine: &Machine, process: &Process) -> Result<Qmp, Error> {
        Ok(Qmp::connect(&self.path(&machine.name, process.generation, "qmp"))?)
    }

    pub(super) fn failed(&self, machine: &Machine, why: String) -> Error {
        Error::Start { program: self.settings.program.clone(), guest: machine.name.clone(), why }
    }

    /// Starts QEMU, which goes into the background once it is ready, and does not run the guest yet.
    pub(super) fn spawn(&self, machine: &Machine, generation: u32, kind: Kind, more: &[String]) -> Result<Process, Error> {
        let failed = |why: String| self.failed(machine, why);
        let arguments = arguments(machine.description.as_ref()).map_err(failed)?;
        let pid_file = self.path(&machine.name, generation, "pid");
        let files = command_line::Files {
            pid: pid_file.clone(),
            qmp: self.path(&machine.name, generation, "qmp"),
            log: self.path(&machine.name, generation, "log"),
        };
        // Files of an earlier guest with this name, whose process has exited.
        for stale in [&files.pid, &files.qmp] {
            match std::fs::remove_file(stale) {
                Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Error::File { op: "remove", path: stale.clone(), source });
                }
                _ => {}
            }
        }
        let mut argv = command_line::build(&self.settings, machine, kind, &files);
        argv.extend_from_slice(more);
        argv.extend(arguments.iter().cloned());
        let mut child = Command::new(&self.settings.program)
            .args(&argv)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| failed(format!("{error}; install it, or set another program")))?;
        if let Err(why) = wait_until_ready(&mut child) {
            if let Some(process) = self.read_pid(&pid_file, generation) {
                process.kill(&self.roots);
            }
            return Err(failed(why));
        }
        self.read_pid(&pid_file, generation).ok_or_else(|| failed("no pid file was written, or the process exited at once".to_owned()))
    }

    /// The guest's running process of this generation.
    pub(super) fn find(&self, name: &str, generation: u32) -> Option<Process> {
        self.read_pid(&self.path(name, generation, "pid"), generation)
    }

    fn read_pid(&self, path: &Path, generation: u32) -> Option<Process> {
        let pid = std::fs::read_to_string(path).ok()?.trim().parse().ok()?;
        let path = path.as_os_str().as_encoded_bytes();
        Process::with_argument(&self.roots, pid, generation, |word| word == path)
    }

    /// Stops a process: shuts the guest down within `grace`, quits QEMU, and kills it if it does not exit.
    pub(super) fn stop(&self, machine: &Machine, process: &Process, grace: Duration) {
        if !process.is_alive(&self.roots) {
            return;
        }
        // A monitor that does not answer must not keep a guest running.
        let asked = self.connect(machine, process).and_then(|mut qmp| {
            if !grace.is_zero() {
                qmp.execute("system_powerdown", &json!({}))?;
                if process.wait(&self.roots, grace) {
                    return Ok(());
                }
            }
            Ok(qmp.execute("quit", &json!({})).map(drop)?)
        });
        if let Err(error) = asked {
            log::warn!("guest {}: {error}", machine.name);
        } else if process.wait(&self.roots, EXIT_TIMEOUT) {
            return;
        }
        process.kill(&self.roots);
    }
}

/// The options of a guest's description.
///
/// # Errors
/// The description is for another driver, or has an option that is not allowed.
pub(super) fn arguments(description: Option<&Description>) -> Result<&[String], String> {
    match description {
        None => Ok(&[]),
        Some(Description::Qemu(guest)) => match guest.check() {
            Ok(()) => Ok(&guest.arguments),
            Err((key, invalid)) => Err(format!("qemu.{key}: {invalid}")),
        },
        Some(other) => Err(format!("this host starts QEMU; the guest file has a [{}] table, write [qemu] instead", other.table())),
    }
}

/// Waits until QEMU is in the background. On failure returns its error messages, and no child is left.
fn wait_until_ready(child: &mut Child) -> Result<(), String> {
    let deadline = Instant::now() + SETUP_TIMEOUT;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => {
                let mut messages = String::new();
                if let Some(errors) = child.stderr.take() {
                    // A read error leaves the messages incomplete.
                    let _ = errors.take(ERRORS_MAX).read_to_string(&mut messages);
                }
                return Err(format!("{status}: {}", messages.trim()));
            }
            Ok(None) if Instant::now() < deadline => std::thread::sleep(POLL_INTERVAL),
            Ok(None) => {
                let _ = child.kill().and_then(|()| child.wait());
                let seconds = SETUP_TIMEOUT.as_secs();
                return Err(format!("not ready within {seconds} s; check that a process listens on each socket that it connects to"));
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

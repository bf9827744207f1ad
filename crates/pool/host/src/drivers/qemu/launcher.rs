//! QEMU processes: start, identity, connection and end.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kernel::Roots;
use serde_json::json;

use super::cgroups::{self, Cgroups, Limits};
use super::command_line;
use super::confinement::{self, User, Users};
use super::files::{self, Inherited};
use super::guest::Guest;
use super::memory_device::Kind;
use super::qmp::Qmp;
use super::settings::Settings;
use crate::driver::{Error, Machine};
use crate::drivers::description::Description;
use crate::process::{EXIT_TIMEOUT, Process};

/// How long QEMU may take to be ready.
const SETUP_TIMEOUT: Duration = Duration::from_secs(60);
/// Most bytes of QEMU's error messages that are read.
const ERRORS_MAX: u64 = 16 << 10;

/// Starts and finds QEMU processes.
#[derive(Debug)]
pub(super) struct Launcher {
    pub(super) settings: Settings,
    /// Directory of sockets, pid files and logs.
    pub(super) runtime: PathBuf,
    pub(super) roots: Roots,
    users: Users,
    cgroups: Cgroups,
}

/// A process that is ready, and the user that it has if it is confined.
#[derive(Debug)]
pub(super) struct Started<'a> {
    pub(super) process: Process,
    pub(super) user: Option<User<'a>>,
}

impl Launcher {
    pub(super) fn new(settings: Settings, runtime: PathBuf, roots: Roots) -> Self {
        let (users, cgroups) = (Users::new(&settings), Cgroups::new(settings.cgroup.clone()));
        Self { settings, runtime, roots, users, cgroups }
    }

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

    /// Starts QEMU, which is ready when it answers and does not run the guest yet. If the daemon is killed before the
    /// process id is written, a process stays that has no slices and runs no guest.
    pub(super) fn spawn(&self, machine: &Machine, generation: u32, kind: Kind, more: &[String]) -> Result<Started<'_>, Error> {
        let failed = |why: String| self.failed(machine, why);
        let guest = description(machine.description.as_ref()).map_err(failed)?;
        let file = |extension: &str| self.path(&machine.name, generation, extension);
        let (pid_file, monitor, log) = (file("pid"), file("qmp"), file("log"));
        // Files of an earlier guest with this name, whose process has exited.
        for stale in [&pid_file, &monitor] {
            match std::fs::remove_file(stale) {
                Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Error::File { op: "remove", path: stale.clone(), source });
                }
                _ => {}
            }
        }
        let mut inherited = Inherited::default();
        inherited.monitor(&monitor).map_err(|source| Error::File { op: "listen at", path: monitor.clone(), source })?;
        for (index, path) in guest.iter().flat_map(|guest| &guest.files).enumerate() {
            inherited.file(index + 1, path).map_err(failed)?;
        }
        let errors = files::log(&log).map_err(|source| Error::File { op: "open", path: log.clone(), source })?;
        let user = self.settings.confine.then(|| self.users.reserve(&self.roots)).transpose().map_err(failed)?;
        let mut command = Command::new(&self.settings.program);
        command.args(command_line::build(&self.settings, machine, kind)).args(&inherited.argv).args(more);
        command.args(guest.iter().flat_map(|guest| &guest.arguments));
        command.process_group(0).current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
        let mut child = self.execute(machine, generation, &mut command, &inherited, user.as_ref())?;
        drop(inherited);
        match self.until_ready(&child, &pid_file, &monitor, generation) {
            Ok(process) => Ok(Started { process, user }),
            Err(why) => {
                let _ = child.kill();
                let status = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
                self.cgroups.remove(&Self::cgroup(machine, generation));
                Err(failed(format!("{status}: {}; {why}", messages(&log))))
            }
        }
    }

    /// Executes QEMU with the descriptors; with `user`, confined.
    fn execute(
        &self,
        machine: &Machine,
        generation: u32,
        command: &mut Command,
        inherited: &Inherited,
        user: Option<&User<'_>>,
    ) -> Result<Child, Error> {
        let failed = |why: String| self.failed(machine, why);
        let cgroup = match user {
            Some(_) => {
                let memory = machine.local_bytes + machine.pool_bytes() + self.settings.overhead;
                let limits = Limits { memory, cores: machine.cores };
                Some(self.cgroups.create(&Self::cgroup(machine, generation), limits).map_err(failed)?)
            }
            None => None,
        };
        let time = inherited.inheritable().map_err(|error| failed(error.to_string()))?;
        let started = match user {
            Some(user) => confinement::spawn(command, user, &confinement::groups(&self.settings, Path::new("/dev/kvm"))),
            None => command.spawn(),
        };
        drop(time);
        let mut child = started.map_err(|error| failed(format!("{error}; install it, or set another program")))?;
        // Its memory is allocated later: when the guest runs, and in the cgroup.
        if let Some(Err(why)) = cgroup.map(|cgroup| cgroups::enter(&cgroup, child.id())) {
            let _ = child.kill().and_then(|()| child.wait());
            return Err(failed(why));
        }
        Ok(child)
    }

    /// Writes down which process it is, and waits until it answers.
    fn until_ready(&self, child: &Child, pid_file: &Path, monitor: &Path, generation: u32) -> Result<Process, String> {
        let pid = i32::try_from(child.id()).map_err(|error| error.to_string())?;
        let process = Process::now(&self.roots, pid, generation).ok_or("it has exited at once")?;
        std::fs::write(pid_file, format!("{pid} {}\n", process.starttime)).map_err(|error| format!("{}: {error}", pid_file.display()))?;
        Qmp::connect_within(monitor, SETUP_TIMEOUT).map_err(|error| error.to_string())?;
        Ok(process)
    }

    fn cgroup(machine: &Machine, generation: u32) -> String {
        format!("{}.{generation}", machine.name)
    }

    /// Removes what a process that has exited leaves behind.
    pub(super) fn clean_up(&self, machine: &Machine, process: &Process) {
        if self.settings.confine {
            self.cgroups.remove(&Self::cgroup(machine, process.generation));
        }
    }

    /// The guest's running process of this generation.
    pub(super) fn find(&self, name: &str, generation: u32) -> Option<Process> {
        self.read_pid(&self.path(name, generation, "pid"), generation)
    }

    fn read_pid(&self, path: &Path, generation: u32) -> Option<Process> {
        let text = std::fs::read_to_string(path).ok()?;
        let mut words = text.split_ascii_whitespace();
        let pid = words.next()?.parse().ok()?;
        if let Some(starttime) = words.next() {
            let process = Process { pid, starttime: starttime.parse().ok()?, generation };
            return process.is_alive(&self.roots).then_some(process);
        }
        // Written by QEMU itself, for a version that started it with this path as an option.
        let path = path.as_os_str().as_encoded_bytes();
        Process::with_argument(&self.roots, pid, generation, |word| word == path)
    }

    /// Stops a process: shuts the guest down within `grace`, quits QEMU, and kills it if it does not exit.
    pub(super) fn stop(&self, machine: &Machine, process: &Process, grace: Duration) {
        self.end(machine, process, grace);
        self.clean_up(machine, process);
    }

    fn end(&self, machine: &Machine, process: &Process, grace: Duration) {
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

/// The guest's description.
///
/// # Errors
/// The description is for another driver, or has an option that is not allowed.
pub(super) fn description(description: Option<&Description>) -> Result<Option<&Guest>, String> {
    match description {
        None => Ok(None),
        Some(Description::Qemu(guest)) => match guest.check() {
            Ok(()) => Ok(Some(guest)),
            Err((key, invalid)) => Err(format!("qemu.{key}: {invalid}")),
        },
        Some(other) => Err(format!("this host starts QEMU; the guest file has a [{}] table, write [qemu] instead", other.table())),
    }
}

/// QEMU's messages in its log.
fn messages(log: &Path) -> String {
    let mut messages = String::new();
    // A read error leaves the messages incomplete.
    let _ = std::fs::File::open(log).and_then(|file| file.take(ERRORS_MAX).read_to_string(&mut messages));
    messages.trim().to_owned()
}

//! Starts, monitors and reaps child processes.
//!
//! One thread reaps all children of this process. Process 1 of a guest inherits orphans and must therefore wait for any
//! child, so no other code may wait for a specific one.

use std::collections::{BTreeMap, HashMap};
use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context, Result, bail};

use crate::linux::child::{self, Exit};

use super::channel::{Outbox, output_file};
use super::protocol::{self, Fields, Run, Spawn};

/// Search path for programs if the environment has none, as in a guest that has just started.
const PATH_DEFAULT: &str = "/lab:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Recipient of a child's exit.
enum Watcher {
    /// The other end of the channel, by an event.
    Channel,
    /// A `run` operation.
    Operation(SyncSender<Exit>),
}

/// The children that are running.
pub(super) struct Processes {
    /// Locked while a child is started, so that the reaper never sees a child that is not listed yet.
    running: Mutex<HashMap<i32, Watcher>>,
    started: Condvar,
    outbox: Arc<Outbox>,
}

impl Processes {
    /// Returns an empty list and starts its reaper.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn new(outbox: Arc<Outbox>) -> Result<Arc<Self>> {
        let processes = Arc::new(Self { running: Mutex::default(), started: Condvar::new(), outbox });
        let reaper = Arc::clone(&processes);
        thread::Builder::new().name("reaper".to_owned()).spawn(move || reaper.reap())?;
        Ok(processes)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<i32, Watcher>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reap(&self) {
        loop {
            // The child is reaped under the lock: a child whose `exec` failed is reaped by the thread that started it.
            let ended = child::wait_any();
            let mut running = self.lock();
            let Ok(pid) = ended else {
                while running.is_empty() {
                    running = self.started.wait(running).unwrap_or_else(PoisonError::into_inner);
                }
                continue;
            };
            let Some(exit) = child::reap(pid) else { continue };
            match running.remove(&pid) {
                Some(Watcher::Channel) => self.outbox.send(&protocol::exit_event(pid, &exit)),
                // The operation may have timed out.
                Some(Watcher::Operation(sender)) => drop(sender.try_send(exit)),
                None => {} // an orphan
            }
        }
    }

    /// Kills every spawned process group that is still running.
    pub(super) fn kill_all(&self) {
        for pid in self.lock().keys() {
            // An error means that the group has exited already.
            let _ = child::kill(-pid, libc::SIGKILL);
        }
    }

    /// Starts a program, replies under `id`, and leaves it running. The reply is sent before the exit event.
    ///
    /// # Errors
    /// The program, its output files or its cgroup cannot be opened; then nothing was sent.
    pub(super) fn spawn(&self, id: u64, request: &Spawn) -> Result<()> {
        let mut command = command(&request.argv, &request.env, request.cgroup.as_deref())?;
        let output = |path: Option<&Path>| path.map_or(Ok(Stdio::null()), |path| output_file(path).map(Stdio::from));
        command.stdin(Stdio::null());
        command.stdout(output(request.stdout.as_deref())?).stderr(output(request.stderr.as_deref())?);
        let mut running = self.lock();
        let pid = start(&mut command)?.pid;
        running.insert(pid, Watcher::Channel);
        self.started.notify_one();
        self.outbox.send(&protocol::reply(Some(id), Ok(Fields::from_iter([("pid".to_owned(), pid.into())]))));
        Ok(())
    }

    /// Starts a program with piped output; its exit is sent to the receiver.
    ///
    /// # Errors
    /// The program or its cgroup cannot be opened.
    pub(super) fn start_piped(&self, request: &Run) -> Result<(Started, Receiver<Exit>)> {
        let mut command = command(&request.argv, &request.env, request.cgroup.as_deref())?;
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.stdin(if request.stdin.is_empty() { Stdio::null() } else { Stdio::piped() });
        let (sender, receiver) = sync_channel(1);
        let mut running = self.lock();
        let started = start(&mut command)?;
        running.insert(started.pid, Watcher::Operation(sender));
        self.started.notify_one();
        Ok((started, receiver))
    }
}

/// A child that was just started, and this end of its pipes.
pub(super) struct Started {
    /// Its process id, which is also the id of its process group.
    pub(super) pid: i32,
    pub(super) stdin: Option<ChildStdin>,
    pub(super) stdout: Option<ChildStdout>,
    pub(super) stderr: Option<ChildStderr>,
    /// Readable once the child has exited.
    pub(super) ended: OwnedFd,
}

/// Returns a command that leads its own process group and enters `cgroup` before it executes.
fn command(argv: &[String], env: &BTreeMap<String, String>, cgroup: Option<&Path>) -> Result<Command> {
    let Some((program, arguments)) = argv.split_first() else { bail!("\"argv\" is empty: it needs at least a program") };
    let mut command = Command::new(program);
    command.args(arguments).process_group(0);
    if std::env::var_os("PATH").is_none() {
        command.env("PATH", PATH_DEFAULT);
    }
    command.envs(env);
    if let Some(cgroup) = cgroup {
        let path = cgroup.join("cgroup.procs");
        let procs = OpenOptions::new()
            .write(true)
            .open(&path)
            .with_context(|| format!("cannot open {}; check that the cgroup v2 directory exists", path.display()))?;
        child::enter_cgroup(&mut command, procs);
    }
    Ok(command)
}

/// Starts the command; the caller holds the lock on the running children.
fn start(command: &mut Command) -> Result<Started> {
    let mut child =
        command.spawn().with_context(|| format!("cannot start {:?} or move it to its cgroup", command.get_program().to_string_lossy()))?;
    let pid = i32::try_from(child.id()).context("process id out of range")?;
    let ended = child::pidfd(pid).inspect_err(|_| {
        // Without a pidfd its exit would not be noticed.
        let _ = child::kill(-pid, libc::SIGKILL);
    });
    Ok(Started {
        pid,
        stdin: child.stdin.take(),
        stdout: child.stdout.take(),
        stderr: child.stderr.take(),
        ended: ended.with_context(|| format!("cannot open a pidfd of process {pid}"))?,
    })
}

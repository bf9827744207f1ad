//! The driver of libvirt, 9.0 or newer, for pools whose memory is a NUMA node of the host.
//!
//! libvirt's XML has no place for a slice's file, so that here a slice is a right and no memory: for each that a guest has it gets a
//! module of that size, bound to the pool's node. The slice's file stays empty. What stays as it is everywhere is its lock, which
//! the hypervisor's process is handed before the guest's first instruction, and holds as long as it can touch the memory.
//! A guest that is repaired stays in its process, and its modules become local memory: as long as it lives, they are as large.
//!
//! A guest's domain is transient: with its process it is gone from libvirt, and what it was is remembered here.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use kernel::{Roots, numa_maps};
use manager::api::Slice;
use serde_json::json;

use crate::driver::{self, BALLOON_OLD_SECONDS, Driver, Error, Inside, Machine, Moved, Offline, Process, Usage, is_memfd, unix_seconds};

mod domain;
mod local;
mod virsh;

use virsh::Virsh;

/// A guest that found a module while it booted may not hear the first time that it is to give it up.
const ASK_AGAIN_EVERY: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How libvirt is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Its shell.
    pub program: PathBuf,
    /// Which libvirt.
    pub uri: String,
    /// Where it writes the pid files of its guests.
    pub pids: PathBuf,
    /// The NUMA node of this host that is the pool.
    pub pool_node: u32,
    /// The nodes that guests' other memory comes from, as `0-1`; none: as the host's kernel likes.
    pub local_nodes: Option<String>,
    /// The distance of the pool's node in the guest; node 0 is at 10 from itself.
    pub distance: u8,
    /// Whether guests have a balloon, by which they tell how much memory they use. It is never inflated.
    pub balloon: bool,
}

/// Starts guests by libvirt.
#[derive(Debug)]
pub struct Libvirt {
    settings: Settings,
    virsh: Virsh,
    roots: Roots,
}

impl Libvirt {
    /// A driver; nothing is asked of libvirt yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let virsh = Virsh { program: settings.program.clone(), uri: settings.uri.clone() };
        Self { settings, virsh, roots: Roots::host() }
    }

    /// The process of a guest, by the file that libvirt keeps.
    fn find(&self, name: &str) -> Option<Process> {
        let pid = std::fs::read_to_string(self.settings.pids.join(format!("{name}.pid"))).ok()?.trim().parse().ok()?;
        // The id may be another process's by now.
        let argument = format!("guest={name},");
        Process::with_argument(&self.roots, pid, 1, |word| word.starts_with(argument.as_bytes()))
    }

    /// Gives libvirt the domain, which it starts and does not run yet.
    fn create(&self, machine: &Machine) -> Result<Process, Error> {
        let failed = |why: String| Error::Start { program: self.settings.program.clone(), guest: machine.name.clone(), why };
        if !machine.arguments.is_empty() {
            return Err(failed("its file has arguments for QEMU; on a host of libvirt its domain says what it has".to_owned()));
        }
        let xml = domain::written(machine, &self.settings).map_err(failed)?;
        let file = || -> std::io::Result<File> {
            let mut file = tempfile::tempfile()?;
            file.write_all(xml.as_bytes())?;
            Ok(file)
        };
        let file = file().map_err(|error| failed(format!("cannot write its domain: {error}")))?;
        self.virsh.ask_with(&["create", "--paused", "/dev/stdin"], Some(file)).map_err(|error| failed(error.to_string()))?;
        self.find(&machine.name).ok_or_else(|| {
            let pids = self.settings.pids.display();
            failed(format!("libvirt has started it, and {pids} does not have its pid file; say libvirt.pids"))
        })
    }

    fn set_up(&self, machine: &Machine, held: Vec<File>) -> Result<(), Error> {
        for (slice, file) in machine.slices.iter().zip(held) {
            let command = json!({ "execute": "getfd", "arguments": { "fdname": lock(slice) } });
            self.virsh.monitor(&machine.name, &command, Some(file))?;
        }
        self.virsh.ask(&["resume", &machine.name]).map(drop)
    }

    fn destroy(&self, name: &str) {
        if let Err(error) = self.virsh.ask(&["destroy", name]) {
            log::warn!("guest {name}: {error}");
        }
    }

    /// Has a guest's process close the file of a slice, by which it holds the lock.
    fn let_go(&self, name: &str, slice: &Slice) -> Result<(), Error> {
        match self.virsh.monitor(name, &json!({ "execute": "closefd", "arguments": { "fdname": lock(slice) } }), None) {
            // Said before.
            Err(Error::Libvirt { said, .. }) if said.contains("not found") => Ok(()),
            other => other,
        }
    }

    fn running(&self, name: &str) -> Result<domain::Running, Error> {
        let xml = self.virsh.ask(&["dumpxml", name])?;
        domain::running(&xml).map_err(|said| Error::Libvirt { asked: "dumpxml".to_owned(), said })
    }
}

/// The name of the file that holds a slice's lock, in its hypervisor.
fn lock(slice: &Slice) -> String {
    format!("lock{}-{}", slice.emc, slice.index)
}

impl Driver for Libvirt {
    fn start(&self, machine: &Machine, held: Vec<File>) -> Result<Process, Error> {
        // One that is there already is not touched, whosever it is: what is ended below is what was half started here.
        if self.running(&machine.name).is_ok() {
            let why = "libvirt has a domain of that name, which runs; stop it, or choose another name".to_owned();
            return Err(Error::Start { program: self.settings.program.clone(), guest: machine.name.clone(), why });
        }
        let process = match self.create(machine) {
            Err(error) => {
                if self.running(&machine.name).is_ok_and(|running| running.ours) {
                    self.destroy(&machine.name);
                }
                return Err(error);
            }
            Ok(process) => process,
        };
        if let Err(error) = self.set_up(machine, held) {
            self.destroy(&machine.name);
            return Err(error);
        }
        Ok(process)
    }

    fn resume(&self, machine: &Machine, known: Option<Process>) -> Result<Option<Process>, Error> {
        let found = match known {
            Some(known) => self.is_alive(&known).then_some(known),
            None => match self.running(&machine.name) {
                Ok(running) if running.ours => self.find(&machine.name),
                Ok(_) => None,
                Err(error) if virsh::is_unknown(&error) => None,
                Err(error) => return Err(error),
            },
        };
        found.map(|process| local::settle(self, machine, process)).transpose()
    }

    fn is_alive(&self, process: &Process) -> bool {
        process.is_alive(&self.roots)
    }

    fn usage(&self, _: &Machine, process: &Process) -> Result<Usage, Error> {
        let policies = numa_maps::read(&self.roots, process.pid)?.unwrap_or_default();
        // Memory that was moved is local, once that has come to its end.
        let here = |policy: &numa_maps::Policy| process.generation == 1 && local::is_module(policy, self.settings.pool_node);
        let of_pool = |start| policies.iter().any(|policy| policy.start == start && here(policy));
        driver::look(&self.roots, process, |mapping| (is_memfd(&mapping.vma.path) && of_pool(mapping.vma.start)).then_some(mapping.rss))
    }

    fn inside(&self, machine: &Machine, _: &Process) -> Result<Option<Inside>, Error> {
        if !self.settings.balloon {
            return Ok(None);
        }
        let told = self.virsh.ask(&["dommemstat", &machine.name])?;
        Ok(virsh::inside(&told, unix_seconds(), BALLOON_OLD_SECONDS))
    }

    fn offline(&self, machine: &Machine, _: &Process, slice: &Slice, within: Duration) -> Result<Offline, Error> {
        let (name, alias) = (machine.name.as_str(), domain::alias(slice));
        let deadline = Instant::now() + within;
        let mut ask_at = Instant::now();
        let mut state = "the guest has not given it up".to_owned();
        // `detach-device` says that it is detached when the guest has heard of it. What counts is what libvirt still has.
        while self.running(name)?.modules.contains(&alias) {
            let now = Instant::now();
            if now >= deadline {
                return Ok(Offline::NotYet(state));
            }
            if now >= ask_at {
                ask_at = now + ASK_AGAIN_EVERY;
                // Refused while the last word is still with the guest.
                if let Err(error) = self.virsh.ask(&["detach-device-alias", name, &alias, "--live"]) {
                    state = error.to_string();
                }
            }
            std::thread::sleep(LOOK_EVERY);
        }
        self.let_go(name, slice).map(|()| Offline::Done)
    }

    fn repair_bytes(&self, machine: &Machine) -> u64 {
        machine.pool_bytes()
    }

    fn to_local(&self, machine: &Machine, process: &Process, within: Duration) -> Result<Moved, Error> {
        local::to_local(self, machine, process, within)
    }

    fn stop(&self, machine: &Machine, process: &Process, grace: Duration) -> Result<(), Error> {
        if !process.is_alive(&self.roots) {
            return Ok(());
        }
        // A libvirt that does not answer must not keep a guest alive.
        if !grace.is_zero() {
            match self.virsh.ask(&["shutdown", &machine.name]) {
                Ok(_) if process.gone(&self.roots, grace) => return Ok(()),
                Ok(_) => {}
                Err(error) => log::warn!("guest {}: {error}", machine.name),
            }
        }
        self.destroy(&machine.name);
        process.kill(&self.roots);
        Ok(())
    }
}

#[cfg(test)]
impl Settings {
    /// As a short configuration has it.
    pub(crate) fn example() -> Self {
        Self {
            program: "virsh".into(),
            uri: "qemu:///system".to_owned(),
            pids: "/run/libvirt/qemu".into(),
            pool_node: 1,
            local_nodes: None,
            distance: 28,
            balloon: true,
        }
    }
}

//! The libvirt driver, for libvirt 9.0 or newer and pools whose memory is a NUMA node of the host.
//!
//! libvirt's XML cannot name a file for a slice. Here a slice is a right to memory: for each of its slices a guest gets
//! a memory module of that size, bound to the pool's node. The slice's file stays empty. Its lock works as everywhere:
//! the guest's process receives it before the guest's first instruction, and holds it for as long as it can access the
//! memory. A mitigated guest stays in its process, and its modules become local memory of the same size.
//!
//! A guest's domain is transient: it disappears from libvirt when its process exits, and its description is kept by the
//! host.

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::time::{Duration, Instant};

use kernel::{Roots, numa_maps};
use manager::api::Slice;
use serde_json::json;
use units::Bytes;

use super::description::Description;
use super::sampling;
use crate::accesses::{self, Blocks};
use crate::driver::{Driver, Error, GuestMemory, Machine, Moved, Offline, Usage};
use crate::process::Process;

mod blocks;
mod connection;
mod domain;
pub mod guest;
mod mitigate;
mod settings;
mod virsh;

use connection::Connection;
pub use settings::Settings;
use virsh::Virsh;

/// A guest that found a module during boot may miss the first removal request.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Starts guests by libvirt.
#[derive(Debug)]
pub struct Libvirt {
    connection: Connection,
}

impl Libvirt {
    /// A driver. libvirt is not contacted yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let virsh = Virsh { program: settings.program.clone(), uri: settings.uri.clone() };
        Self { connection: Connection { settings, virsh, roots: Roots::host() } }
    }

    /// The process of a guest, by libvirt's pid file.
    fn find(&self, name: &str) -> Option<Process> {
        let path = self.connection.settings.pids.join(format!("{name}.pid"));
        let pid = std::fs::read_to_string(path).ok()?.trim().parse().ok()?;
        // The id may belong to another process by now.
        let argument = format!("guest={name},");
        Process::with_argument(&self.connection.roots, pid, 1, |word| word.starts_with(argument.as_bytes()))
    }

    fn failed(&self, machine: &Machine, why: String) -> Error {
        Error::Start { program: self.connection.settings.program.clone(), guest: machine.name.clone(), why }
    }

    /// Creates the domain, paused.
    fn create(&self, machine: &Machine) -> Result<Process, Error> {
        let failed = |why: String| self.failed(machine, why);
        let template = domain_of(machine.description.as_ref()).map_err(failed)?;
        let xml = domain::build(template, machine, &self.connection.settings).map_err(failed)?;
        let file = || -> std::io::Result<File> {
            let mut file = tempfile::tempfile()?;
            file.write_all(xml.as_bytes())?;
            Ok(file)
        };
        let file = file().map_err(|error| failed(format!("cannot write its domain: {error}")))?;
        let command = ["create", "--paused", "/dev/stdin"];
        self.connection.virsh.run_with(&command, Some(file)).map_err(|error| failed(error.to_string()))?;
        self.find(&machine.name).ok_or_else(|| {
            let pids = self.connection.settings.pids.display();
            failed(format!("libvirt has started it, but {pids} has no pid file of it; set libvirt.pids"))
        })
    }

    /// Passes the locks and runs the guest.
    fn set_up(&self, machine: &Machine, locks: Vec<File>) -> Result<(), Error> {
        let virsh = &self.connection.virsh;
        for (slice, file) in machine.slices.iter().zip(locks) {
            let command = json!({ "execute": "getfd", "arguments": { "fdname": Connection::lock_name(slice) } });
            virsh.monitor(&machine.name, &command, Some(file))?;
        }
        Ok(virsh.run(&["resume", &machine.name]).map(drop)?)
    }

    /// The guest's memory, by the node that each mapping is bound to.
    fn memory(&self, process: &Process) -> Result<sampling::Memory, Error> {
        let roots = &self.connection.roots;
        let policies = numa_maps::read(roots, process.pid)?.unwrap_or_default();
        // The modules of a guest that was moved are local memory.
        let in_pool =
            |policy: &numa_maps::Policy| process.generation == 1 && mitigate::is_module(policy, self.connection.settings.pool_node);
        let starts_in_pool = |start| policies.iter().any(|policy| policy.start == start && in_pool(policy));
        sampling::Memory::read(roots, process, |mapping| {
            (sampling::is_memfd(&mapping.vma.path) && starts_in_pool(mapping.vma.start)).then_some(Bytes(mapping.rss))
        })
    }

    fn destroy(&self, name: &str) {
        if let Err(error) = self.connection.virsh.run(&["destroy", name]) {
            log::warn!("guest {name}: {error}");
        }
    }
}

impl Driver for Libvirt {
    fn check(&self, description: Option<&Description>) -> Result<(), String> {
        domain_of(description).map(drop)
    }

    fn start(&self, machine: &Machine, locks: Vec<File>) -> Result<Process, Error> {
        // An existing domain is not changed, whoever started it; only the domain created below is destroyed on failure.
        if self.connection.running(&machine.name).is_ok() {
            let why = "libvirt already runs a domain of that name; stop it, or choose another name".to_owned();
            return Err(self.failed(machine, why));
        }
        let process = match self.create(machine) {
            Err(error) => {
                if self.connection.running(&machine.name).is_ok_and(|running| running.ours) {
                    self.destroy(&machine.name);
                }
                return Err(error);
            }
            Ok(process) => process,
        };
        if let Err(error) = self.set_up(machine, locks) {
            self.destroy(&machine.name);
            return Err(error);
        }
        Ok(process)
    }

    fn resume(&self, machine: &Machine, known: Option<Process>) -> Result<Option<Process>, Error> {
        let found = match known {
            Some(known) => self.is_alive(&known).then_some(known),
            None => match self.connection.running(&machine.name) {
                Ok(running) if running.ours => self.find(&machine.name),
                Ok(_) => None,
                Err(error) if error.is_unknown_domain() => None,
                Err(error) => return Err(error.into()),
            },
        };
        found.map(|process| mitigate::settle(&self.connection, machine, process)).transpose()
    }

    fn end_samples(&self, processes: &[Process]) -> Result<(), Error> {
        sampling::end(&self.connection.roots, processes)
    }

    fn is_alive(&self, process: &Process) -> bool {
        process.is_alive(&self.connection.roots)
    }

    fn touched(&self, _: &Machine, process: &Process) -> Result<Usage, Error> {
        Ok(self.memory(process)?.touched)
    }

    fn usage(&self, _: &Machine, process: &Process, how: &accesses::Settings) -> Result<Usage, Error> {
        self.memory(process)?.usage(&self.connection.roots, process, how)
    }

    fn guest_memory(&self, machine: &Machine, _: &Process) -> Result<Option<GuestMemory>, Error> {
        if !self.connection.settings.balloon {
            return Ok(None);
        }
        let stats = self.connection.virsh.run(&["dommemstat", &machine.name])?;
        Ok(virsh::guest_memory(&stats, sampling::unix_seconds()))
    }

    fn offline(&self, machine: &Machine, _: &Process, slice: &Slice, timeout: Duration) -> Result<Offline, Error> {
        let (name, alias) = (machine.name.as_str(), domain::alias(slice));
        let deadline = Instant::now() + timeout;
        let mut retry_at = Instant::now();
        let mut state = "the guest has not released it".to_owned();
        // `detach-device` succeeds as soon as the guest has received the request. The domain's devices decide.
        while self.connection.running(name)?.modules.contains(&alias) {
            let now = Instant::now();
            if now >= deadline {
                return Ok(Offline::Pending(state));
            }
            if now >= retry_at {
                retry_at = now + RETRY_INTERVAL;
                // Refused while the guest still processes the previous request.
                if let Err(error) = self.connection.virsh.run(&["detach-device-alias", name, &alias, "--live"]) {
                    state = error.to_string();
                }
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        self.connection.release_lock(name, slice).map(|()| Offline::Done)
    }

    fn mitigation_bytes(&self, machine: &Machine) -> Bytes {
        machine.pool_bytes()
    }

    fn move_to_local(&self, machine: &Machine, process: &Process, timeout: Duration) -> Result<Moved, Error> {
        mitigate::move_to_local(&self.connection, machine, process, timeout)
    }

    fn blocks(&self, _: &Machine, process: &Process, window: Duration) -> Result<Blocks, Error> {
        blocks::see(&self.connection, process, window)
    }

    fn move_blocks(
        &self,
        machine: &Machine,
        process: &Process,
        blocks: &[Range<u64>],
        limit: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, Error> {
        blocks::move_home(&self.connection, machine, process, blocks, limit, timeout)
    }

    fn stop(&self, machine: &Machine, process: &Process, grace: Duration) -> Result<(), Error> {
        let roots = &self.connection.roots;
        if !process.is_alive(roots) {
            return Ok(());
        }
        // A libvirt that does not answer must not keep a guest running.
        if !grace.is_zero() {
            match self.connection.virsh.run(&["shutdown", &machine.name]) {
                Ok(_) if process.wait(roots, grace) => return Ok(()),
                Ok(_) => {}
                Err(error) => log::warn!("guest {}: {error}", machine.name),
            }
        }
        self.destroy(&machine.name);
        process.kill(roots);
        Ok(())
    }
}

/// The domain XML of a guest's description.
///
/// # Errors
/// The description is missing or for another driver.
fn domain_of(description: Option<&Description>) -> Result<&str, String> {
    match description {
        Some(Description::Libvirt(guest)) => Ok(&guest.domain),
        None => Err("the guest's file names no domain; give [libvirt] with domain = \"guest.xml\"".to_owned()),
        Some(other) => Err(format!("this host uses libvirt; the guest's file has a [{}] table, give [libvirt] instead", other.table())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::qemu;

    #[test]
    fn a_domain_is_required() {
        let driver = Libvirt::new(Settings::example());
        assert!(driver.check(None).unwrap_err().contains("names no domain"));
        let other = Description::Qemu(qemu::guest::Guest::default());
        assert!(driver.check(Some(&other)).unwrap_err().contains("[qemu] table"));
        assert_eq!(driver.check(Some(&Description::Libvirt(guest::Guest { domain: "<domain/>".to_owned() }))), Ok(()));
    }
}

//! The QEMU driver, for QEMU 7.2 or newer.
//!
//! A slice is a memory device on node 1, which has no cores and no other memory: a `pc-dimm`, or a virtio-mem device,
//! as the host is configured when the guest starts. For a running guest, QEMU's list of devices decides. Slices are
//! added before the guest's first instruction, so that the guest finds them during boot and brings them online by its
//! own policy (`memhp_default_state`, or a udev rule). A node with memory from the start would not depend on the
//! guest's policy, but boot allocations start at the end of memory, and thus in the pool: with Linux 6.12, 91 and 145
//! MiB of 256 MiB were touched before the first program ran.
//!
//! QEMU receives (`getfd`) the open file that holds a slice's lock, and keeps it until `closefd` or its exit, also after
//! the monitor connection ends. It maps the slice by opening the same file by its descriptor. The monitor's socket and
//! the files of a guest's description are opened by the host and inherited, so that a confined process needs no
//! directory of the host.

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kernel::Roots;
use manager::api::Slice;
use serde_json::{Value, json};
use units::Bytes;

use super::description::Description;
use super::sampling;
use crate::accesses::{self, Blocks};
use crate::driver::{Driver, Error, GuestMemory, Machine, Moved, Offline, Usage};
use crate::process::Process;

mod cgroups;
mod command_line;
mod confinement;
mod dimm;
mod files;
pub mod guest;
mod launcher;
mod memory_device;
mod mitigate;
mod options;
mod qmp;
mod settings;
mod slices;
mod virtio_mem;

use launcher::{Launcher, Started};
pub use memory_device::Kind;
pub use settings::Settings;

/// How often the guest's balloon driver reports, in seconds.
const BALLOON_SECONDS: u64 = 2;
const BALLOON: &str = "/machine/peripheral/balloon";

/// Starts and controls QEMU processes.
#[derive(Debug)]
pub struct Qemu {
    launcher: Launcher,
}

impl Qemu {
    /// A driver with sockets and pid files in `runtime`, an existing directory.
    #[must_use]
    pub fn new(settings: Settings, runtime: PathBuf) -> Self {
        Self { launcher: Launcher::new(settings, runtime, Roots::host()) }
    }

    /// Adds the slices and runs the guest.
    fn set_up(&self, machine: &Machine, started: &Started<'_>, locks: Vec<File>) -> Result<(), Error> {
        let mut qmp = self.launcher.connect(machine, &started.process)?;
        let kind = self.launcher.settings.slices;
        if kind == Kind::VirtioMem
            && !locks.is_empty()
            && let Some(why) = virtio_mem::unsupported_qemu(&mut qmp)?
        {
            return Err(self.launcher.failed(machine, why));
        }
        let mut passed = Vec::with_capacity(locks.len());
        for (ordinal, (slice, lock)) in machine.slices.iter().zip(locks).enumerate() {
            if let Some(user) = &started.user {
                confinement::give(&lock, user).map_err(|source| Error::File { op: "give access to", path: slice.path.clone(), source })?;
            }
            passed.push(slices::add(&mut qmp, kind, ordinal, slice, lock.as_fd())?);
        }
        if self.launcher.settings.balloon {
            let interval = json!({ "path": BALLOON, "property": "guest-stats-polling-interval", "value": BALLOON_SECONDS });
            qmp.execute("qom-set", &interval)?;
        }
        qmp.execute("cont", &json!({}))?;
        passed.iter().try_for_each(|file| qmp.remove_file(file))?;
        Ok(())
    }

    /// The guest's memory, by the files that its process maps.
    fn memory(&self, machine: &Machine, process: &Process) -> Result<sampling::Memory, Error> {
        sampling::Memory::read(&self.launcher.roots, process, |mapping| {
            let path = Path::new(&mapping.vma.path);
            // The resident size is not enough: the kernel may have unmapped pages that the file still has.
            machine.slices.iter().any(|slice| slice.path == path).then(|| touched(path).unwrap_or(Bytes(mapping.rss)))
        })
    }

    /// Withdraws requests for slices that a daemon made before it exited. They are made again if the manager still
    /// requires them and the guest has enough free memory.
    fn withdraw_requests(&self, machine: &Machine, process: &Process) {
        if machine.slices.is_empty() {
            return;
        }
        let withdrawn =
            self.launcher.connect(machine, process).and_then(|mut qmp| Ok(virtio_mem::withdraw_requests(&mut qmp, &machine.slices)?));
        match withdrawn {
            Ok(0) => {}
            Ok(slices) => log::info!("guest {}: withdrew the requests of an earlier daemon for {slices} slices", machine.name),
            Err(error) => log::warn!("guest {}: requests for slices may still be open: {error}", machine.name),
        }
    }
}

impl Driver for Qemu {
    fn check(&self, description: Option<&Description>) -> Result<(), String> {
        launcher::description(description).map(drop)
    }

    fn start(&self, machine: &Machine, locks: Vec<File>) -> Result<Process, Error> {
        let kind = self.launcher.settings.slices;
        if kind == Kind::VirtioMem
            && let Some(why) = virtio_mem::unsupported_slices(&machine.slices)
        {
            return Err(self.launcher.failed(machine, why));
        }
        let started = self.launcher.spawn(machine, 1, kind, &["-S".to_owned()])?;
        if let Err(error) = self.set_up(machine, &started, locks) {
            started.process.kill(&self.launcher.roots);
            self.launcher.clean_up(machine, &started.process);
            return Err(error);
        }
        Ok(started.process)
    }

    fn resume(&self, machine: &Machine, known: Option<Process>) -> Result<Option<Process>, Error> {
        let find = |generation| self.launcher.find(&machine.name, generation);
        let first = known.filter(|process| process.generation == 1 && self.is_alive(process)).or_else(|| find(1));
        let found = match (first, find(2)) {
            (Some(first), Some(second)) => Some(mitigate::settle(&self.launcher, machine, first, second)?),
            (first, second) => second.or(first),
        };
        if let Some(process) = &found {
            self.withdraw_requests(machine, process);
        }
        Ok(found)
    }

    fn end_samples(&self, processes: &[Process]) -> Result<(), Error> {
        sampling::end(&self.launcher.roots, processes)
    }

    fn is_alive(&self, process: &Process) -> bool {
        process.is_alive(&self.launcher.roots)
    }

    fn touched(&self, machine: &Machine, process: &Process) -> Result<Usage, Error> {
        Ok(self.memory(machine, process)?.touched)
    }

    fn usage(&self, machine: &Machine, process: &Process, how: &accesses::Settings) -> Result<Usage, Error> {
        self.memory(machine, process)?.usage(&self.launcher.roots, process, how)
    }

    fn guest_memory(&self, machine: &Machine, process: &Process) -> Result<Option<GuestMemory>, Error> {
        if !self.launcher.settings.balloon {
            return Ok(None);
        }
        let get = json!({ "path": BALLOON, "property": "guest-stats" });
        let stats = self.launcher.connect(machine, process)?.execute("qom-get", &get)?;
        Ok(guest_memory(&stats, sampling::unix_seconds()))
    }

    fn offline(&self, machine: &Machine, process: &Process, slice: &Slice, timeout: Duration) -> Result<Offline, Error> {
        Ok(slices::remove(&mut self.launcher.connect(machine, process)?, slice, Instant::now() + timeout)?)
    }

    fn mitigation_bytes(&self, machine: &Machine) -> Bytes {
        // During the move the host has both copies.
        machine.local_bytes + machine.pool_bytes()
    }

    fn move_to_local(&self, machine: &Machine, process: &Process, timeout: Duration) -> Result<Moved, Error> {
        mitigate::move_to_local(&self.launcher, machine, process, timeout)
    }

    fn blocks(&self, _: &Machine, _: &Process, _: Duration) -> Result<Blocks, Error> {
        Ok(Blocks::none(WHOLE))
    }

    fn move_blocks(&self, machine: &Machine, _: &Process, _: &[Range<u64>], _: Bytes, _: Duration) -> Result<Bytes, Error> {
        Err(Error::Move { guest: machine.name.clone(), why: WHOLE.to_owned() })
    }

    fn stop(&self, machine: &Machine, process: &Process, grace: Duration) -> Result<(), Error> {
        self.launcher.stop(machine, process, grace);
        Ok(())
    }
}

/// A slice is a file that the guest's process maps. Its memory is the pool's, on whichever node it is, and only another process can have
/// other memory in its place.
const WHOLE: &str = "a slice is a file, whose memory is the pool's: a migration moves the guest as a whole";

/// Bytes of a slice's file that were touched since it was scrubbed: its allocated blocks.
fn touched(path: &Path) -> Option<Bytes> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).ok().map(|metadata| Bytes(metadata.blocks().saturating_mul(512)))
}

/// The balloon driver's statistics; `None` if they are too old or incomplete.
fn guest_memory(stats: &Value, now: u64) -> Option<GuestMemory> {
    if !sampling::is_recent(stats.get("last-update")?.as_u64()?, now) {
        return None;
    }
    // A statistic that the driver does not report is -1.
    let value = |name: &str| stats.get("stats")?.get(name)?.as_u64().filter(|&bytes| bytes != u64::MAX).map(Bytes);
    Some(GuestMemory { total_bytes: value("stat-total-memory")?, available_bytes: value("stat-available-memory")? })
}

#[cfg(test)]
mod tests;

//! What a host asks of its hypervisor.

use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kernel::{Roots, process, smaps};
use manager::api::Slice;
use serde::{Deserialize, Serialize};

/// How long a process may take to be gone after it was told to end. Unmapping tmpfs takes a second per some GiB.
pub(crate) const GONE_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How old a balloon's word may be, in seconds.
pub(crate) const BALLOON_OLD_SECONDS: u64 = 30;

/// A guest as its hypervisor sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Its name, which names its files too.
    pub name: String,
    /// Its cores.
    pub cores: u32,
    /// Memory beside its cores: node 0.
    pub local_bytes: u64,
    /// Memory in slices of the pool: node 1, without cores. None, and it has one node.
    pub slices: Vec<Slice>,
    /// What is added to the hypervisor's command line: disks, networks, kernels.
    pub arguments: Vec<String>,
    /// The domain that it is made from, where libvirt starts it: XML.
    #[serde(default)]
    pub domain: Option<String>,
}

impl Machine {
    /// All of node 1.
    #[must_use]
    pub fn pool_bytes(&self) -> u64 {
        self.slices.iter().map(|slice| slice.bytes).sum()
    }
}

/// A process, named for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its id.
    pub pid: i32,
    /// When it started, in clock ticks since boot: another process of this id has another time.
    pub starttime: u64,
    /// 1 as it started, 2 after it was moved: a second process, or the same one with other memory.
    pub generation: u32,
}

impl Process {
    /// The process of this id, if it runs and has such an argument: its id may be another's by now.
    pub(crate) fn with_argument(roots: &Roots, pid: i32, generation: u32, is_its: impl Fn(&[u8]) -> bool) -> Option<Self> {
        let stat = process::stat(roots, pid).ok()?;
        let process = Self { pid, starttime: stat.starttime, generation };
        let line = std::fs::read(roots.proc.join(pid.to_string()).join("cmdline")).ok()?;
        (line.split(|&byte| byte == 0).any(is_its) && process.is_alive(roots)).then_some(process)
    }

    pub(crate) fn is_alive(&self, roots: &Roots) -> bool {
        process::stat(roots, self.pid).is_ok_and(|stat| stat.starttime == self.starttime && !matches!(stat.state, 'Z' | 'X'))
    }

    /// Waits for its end; false if it does not end.
    pub(crate) fn gone(&self, roots: &Roots, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        while self.is_alive(roots) {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        true
    }

    /// Ends it at once.
    pub(crate) fn kill(&self, roots: &Roots) {
        if self.is_alive(roots) {
            process::signal(self.pid, 9);
            if !self.gone(roots, GONE_WITHIN) {
                log::error!("process {} does not end, though it was killed", self.pid);
            }
        }
    }
}

/// Whether a mapping of this path is memory that QEMU made for its guest, of no file that anybody else has.
pub(crate) fn is_memfd(path: &str) -> bool {
    path.starts_with("/memfd:memory-backend-memfd")
}

/// What a guest's process maps, summed up; forgets what was accessed. `pool_touched` tells of a mapping that is the pool's how many
/// bytes of it were ever touched, and none of any other.
///
/// # Errors
/// [`enum@Error`]: the process is gone, or the kernel does not tell.
pub(crate) fn look(roots: &Roots, process: &Process, pool_touched: impl Fn(&smaps::Mapping) -> Option<u64>) -> Result<Usage, Error> {
    let mut usage = Usage::default();
    for mapping in smaps::read(roots, process.pid)? {
        if let Some(touched) = pool_touched(&mapping) {
            usage.pool_accessed_bytes += mapping.referenced;
            usage.pool_touched_bytes += touched;
        } else if is_memfd(&mapping.vma.path) {
            usage.local_accessed_bytes += mapping.referenced;
            usage.local_touched_bytes += mapping.rss;
        }
    }
    smaps::clear_referenced(roots, process.pid)?;
    Ok(usage)
}

/// What time it is, in seconds since 1970: what balloons tell is dated so.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// What a guest holds, as seen from outside. Bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Ever touched, of the slices.
    pub pool_touched_bytes: u64,
    /// Accessed since the last look, of the slices.
    pub pool_accessed_bytes: u64,
    /// Ever touched, of node 0.
    pub local_touched_bytes: u64,
    /// Accessed since the last look, of node 0.
    pub local_accessed_bytes: u64,
}

/// What a guest says of itself, where it has a balloon's driver. Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inside {
    /// What its kernel manages.
    pub total_bytes: u64,
    /// What it could give to a new program without swapping.
    pub available_bytes: u64,
}

/// What became of taking a slice away from a running guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offline {
    /// The guest does without it, and the hypervisor has let go of its file.
    Done,
    /// The guest said no.
    Refused(String),
    /// The guest is still at it; it may end well later.
    NotYet(String),
}

/// A guest's move to local memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Moved {
    /// What the guest runs in now.
    pub process: Process,
    /// How long the guest stood still, as the hypervisor measures it; nothing where nobody stops it.
    pub pause_seconds: f64,
    /// How long it took in all.
    pub total_seconds: f64,
    /// What was copied, or migrated.
    pub copied_bytes: u64,
}

/// What went wrong with a hypervisor.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It did not start.
    #[error("{program} did not start guest {guest}: {why}")]
    Start {
        /// The hypervisor's program.
        program: PathBuf,
        /// Whose.
        guest: String,
        /// Its words.
        why: String,
    },
    /// It does not do as it is told.
    #[error(transparent)]
    Qmp(#[from] crate::qmp::Error),
    /// libvirt does not do as it is told.
    #[error("libvirt refuses {asked}: {said}")]
    Libvirt {
        /// What was asked.
        asked: String,
        /// Its words.
        said: String,
    },
    /// The kernel does not tell of it.
    #[error(transparent)]
    Kernel(#[from] kernel::Error),
    /// A file of ours.
    #[error("cannot {op} {path}: {source}")]
    Io {
        /// What was attempted.
        op: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The guest could not be moved; it runs on where it was.
    #[error("guest {guest} was not moved to local memory and runs on as before: {why}")]
    Move {
        /// Whose.
        guest: String,
        /// What happened.
        why: String,
    },
}

/// A hypervisor. Calls block; those about one guest are never made at the same time.
pub trait Driver: Send + Sync {
    /// Starts a guest. `held` are the opened and locked files of its slices, in their order: they stay locked as long as the
    /// guest's process can touch them, whatever becomes of the caller.
    ///
    /// # Errors
    /// [`enum@Error`]; no process is left then.
    fn start(&self, machine: &Machine, held: Vec<File>) -> Result<Process, Error>;

    /// Takes over a guest that an earlier caller has left, who may have died at any moment: before it knew of the process that
    /// it started, or in the midst of a move. Of two processes only the one that the guest is in is left.
    ///
    /// # Errors
    /// [`enum@Error`]
    fn resume(&self, machine: &Machine, known: Option<Process>) -> Result<Option<Process>, Error>;

    /// Whether it still runs.
    fn is_alive(&self, process: &Process) -> bool;

    /// Looks at what a guest holds, and forgets what it accessed.
    ///
    /// # Errors
    /// [`enum@Error`]
    fn usage(&self, machine: &Machine, process: &Process) -> Result<Usage, Error>;

    /// What the guest says of itself; none where it says nothing.
    ///
    /// # Errors
    /// [`enum@Error`]
    fn inside(&self, machine: &Machine, process: &Process) -> Result<Option<Inside>, Error>;

    /// Takes a slice away from a running guest, and waits for it.
    ///
    /// # Errors
    /// [`enum@Error`]
    fn offline(&self, machine: &Machine, process: &Process, slice: &Slice, within: Duration) -> Result<Offline, Error>;

    /// How much local memory a move takes, beside what the guest has of it.
    fn repair_bytes(&self, machine: &Machine) -> u64;

    /// Moves a running guest to memory that is all local, on this host. What it sees stays as it is. After that, no process
    /// holds its slices.
    ///
    /// # Errors
    /// [`enum@Error`]; it runs on where it was.
    fn to_local(&self, machine: &Machine, process: &Process, within: Duration) -> Result<Moved, Error>;

    /// Ends a guest: asks it to switch itself off, and after `grace` ends its process.
    ///
    /// # Errors
    /// [`enum@Error`]
    fn stop(&self, machine: &Machine, process: &Process, grace: Duration) -> Result<(), Error>;
}

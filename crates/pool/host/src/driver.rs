//! The interface of a hypervisor driver.

use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use manager::api::Slice;
use serde::{Deserialize, Serialize};
use units::Bytes;

use crate::accesses::{self, Blocks, Seen};
use crate::drivers::description::Description;
use crate::process::Process;

/// A guest as its driver starts it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Guest name, also the prefix of the guest's files.
    pub name: String,
    /// Virtual cores.
    pub cores: u32,
    /// Local memory: node 0, with all cores.
    pub local_bytes: Bytes,
    /// Pool memory: node 1, without cores. Without slices the guest has one node.
    pub slices: Vec<Slice>,
    /// Disks, networks and boot options, in the form of the driver. `None`: the guest's file has none.
    pub description: Option<Description>,
}

impl Machine {
    /// Size of node 1.
    #[must_use]
    pub fn pool_bytes(&self) -> Bytes {
        self.slices.iter().map(|slice| slice.bytes).sum()
    }
}

/// Memory of a guest, measured from outside the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Pool memory that the guest ever touched.
    pub pool_touched_bytes: Bytes,
    /// Pool memory that was accessed; a lower bound where pages are sampled, so that no guest is moved by chance.
    pub pool_accessed_bytes: Bytes,
    /// Local memory that the guest ever touched.
    pub local_touched_bytes: Bytes,
    /// Local memory that was accessed.
    pub local_accessed_bytes: Bytes,
    /// How accesses were seen. Without that the two values above are zero.
    #[serde(default)]
    pub seen: Seen,
    /// CPU time of the kernel's threads that saw them, as far as it can be read.
    #[serde(skip)]
    pub kernel_cpu: Duration,
}

/// Memory statistics that the guest's balloon driver reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestMemory {
    /// Memory that the guest's kernel manages.
    pub total_bytes: Bytes,
    /// Memory available to a new program without swapping (`MemAvailable`).
    pub available_bytes: Bytes,
}

/// Outcome of taking a slice from a running guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offline {
    /// The guest has given up the slice, and the hypervisor has closed its file.
    Done,
    /// The guest refused; its reason.
    Refused(String),
    /// The guest has not finished in time, and may still finish later; how far it is.
    Pending(String),
}

/// A completed move of a guest to local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The process that the guest runs in now.
    pub process: Process,
    /// How long the guest was paused, as the hypervisor measures it. Zero if the driver does not pause the guest.
    pub pause: Duration,
    /// Duration of the move.
    pub total: Duration,
    /// Memory that was copied or migrated.
    pub copied: Bytes,
}

/// An error of a driver.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The guest did not start.
    #[error("{program} did not start guest {guest}: {why}")]
    Start {
        /// Program of the hypervisor.
        program: PathBuf,
        /// Guest name.
        guest: String,
        /// Message of the hypervisor.
        why: String,
    },
    /// The hypervisor refused a command or did not answer.
    #[error(transparent)]
    Hypervisor(Box<dyn std::error::Error + Send + Sync>),
    /// A kernel interface failed.
    #[error(transparent)]
    Kernel(#[from] kernel::Error),
    /// An operation on a file failed.
    #[error("cannot {op} {path}: {source}")]
    File {
        /// The operation.
        op: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The guest could not be moved to local memory; it still runs where it was.
    #[error("guest {guest} was not moved to local memory and continues to run: {why}")]
    Move {
        /// Guest name.
        guest: String,
        /// The cause.
        why: String,
    },
}

/// A hypervisor. Calls block. The caller never makes two calls for one guest at the same time.
pub trait Driver: Send + Sync {
    /// Checks whether this driver can start a guest with this description.
    ///
    /// # Errors
    /// The reason why not.
    fn check(&self, description: Option<&Description>) -> Result<(), String>;

    /// Starts a guest. `locks` are the opened and locked files of its slices, in their order. They stay locked for as
    /// long as the guest's process can access them, even if the caller exits.
    ///
    /// # Errors
    /// [`enum@Error`]; no process is left running then.
    fn start(&self, machine: &Machine, locks: Vec<File>) -> Result<Process, Error>;

    /// Adopts a guest of an earlier daemon, which may have exited at any point: before it saved the process that it
    /// started, or during a move. If two processes exist for the guest, the one that does not run it is killed. Returns
    /// the guest's process; `None` if it has exited.
    ///
    /// # Errors
    /// [`enum@Error`]
    fn resume(&self, machine: &Machine, known: Option<Process>) -> Result<Option<Process>, Error>;

    /// Ends what a killed daemon has left of a sample of one of these processes.
    ///
    /// # Errors
    /// [`enum@Error`]
    fn end_samples(&self, processes: &[Process]) -> Result<(), Error>;

    /// Whether the process is alive.
    fn is_alive(&self, process: &Process) -> bool;

    /// The memory that the guest ever touched. Accesses are left out, and what an instrument has of them is not changed.
    ///
    /// # Errors
    /// [`enum@Error`]
    fn touched(&self, machine: &Machine, process: &Process) -> Result<Usage, Error>;

    /// The memory that the guest ever touched, and what it accesses: for as long as the window of `how` where pages are sampled,
    /// otherwise since the previous call.
    ///
    /// # Errors
    /// [`enum@Error`]
    fn usage(&self, machine: &Machine, process: &Process, how: &accesses::Settings) -> Result<Usage, Error>;

    /// The guest's own memory statistics; `None` if it has no balloon driver or the statistics are too old.
    ///
    /// # Errors
    /// [`enum@Error`]
    fn guest_memory(&self, machine: &Machine, process: &Process) -> Result<Option<GuestMemory>, Error>;

    /// Takes a slice from a running guest, and waits for the outcome.
    ///
    /// # Errors
    /// [`enum@Error`]
    fn offline(&self, machine: &Machine, process: &Process, slice: &Slice, timeout: Duration) -> Result<Offline, Error>;

    /// Free local memory that a move of the guest requires.
    fn mitigation_bytes(&self, machine: &Machine) -> Bytes;

    /// Moves a running guest to local memory on this host. The guest's view of its hardware does not change. Afterwards
    /// no process holds its slices.
    ///
    /// # Errors
    /// [`enum@Error`]; the guest continues to run where it was.
    fn move_to_local(&self, machine: &Machine, process: &Process, timeout: Duration) -> Result<Moved, Error>;

    /// How much each block of the guest's pool memory is accessed, as seen for `window`; or why its blocks cannot be seen, or not be moved
    /// without the rest.
    ///
    /// # Errors
    /// [`enum@Error`]
    fn blocks(&self, machine: &Machine, process: &Process, window: Duration) -> Result<Blocks, Error>;

    /// Moves blocks of a running guest's pool memory to local memory, in their order, up to `limit`. Its slices stay mapped. Returns how much
    /// was moved, which is less if pages are in use.
    ///
    /// # Errors
    /// [`enum@Error`]; some of the blocks may have been moved, `limit` at most, and the guest continues to run.
    fn move_blocks(
        &self,
        machine: &Machine,
        process: &Process,
        blocks: &[Range<u64>],
        limit: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, Error>;

    /// Stops a guest: requests a shutdown from the guest, and kills its process after `grace`.
    ///
    /// # Errors
    /// [`enum@Error`]
    fn stop(&self, machine: &Machine, process: &Process, grace: Duration) -> Result<(), Error>;
}

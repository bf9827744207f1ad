//! The state of a run.

use fastrand::Rng;
use placement::{Fleet, Placement, PoolSpace};
use pool::{Command, Ns, Pool, Slices};

use super::batches::{BatchDone, Batches};
use super::groups::Groups;
use crate::faults::FaultEvent;
use crate::queue::Queue;
use crate::site::{Cluster, Setup, Site};
use crate::tally::Tally;
use crate::topology::Topology;

/// Nanoseconds of a second, the unit of time in traces.
pub(crate) const SECOND: u64 = 1_000_000_000;

/// Events of a run. VMs are named by their index in the cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    Arrives(u32),
    Leaves(u32),
    /// The monitor detects that a VM exceeds its margin.
    SlowdownDetected(u32),
    /// A VM's pool memory has been copied to local memory; its slices can be returned.
    CopyDone(u32),
    BatchDone(BatchDone),
    Tick {
        ledger: u32,
    },
    Fault(FaultEvent),
    Change(Change),
}

/// A running VM.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunningVm {
    pub(crate) placement: Placement,
    pub(crate) slices: Slices,
    /// Time of the last change, until which the VM's memory has been counted.
    pub(crate) since: Ns,
}

/// A change of what VMs can get, as a scheduler recorded it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A server gets new VMs, or none. Its VMs stay.
    Server {
        /// Number of the server.
        server: u32,
        /// Whether it gets new VMs.
        up: bool,
    },
    /// The most slices that a pool can give to one VM, beside what it has free.
    Grantable {
        /// Number of the pool.
        pool: u32,
        /// The most slices.
        slices: Slices,
    },
}

/// Why a VM ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Left,
    Lost(pool::Cause),
}

/// A run of one setup on one cluster, event by event.
#[derive(Debug)]
pub struct Run<'a> {
    pub(crate) site: &'a Site,
    pub(crate) setup: Setup<'a>,
    pub(crate) cluster: &'a Cluster,
    /// The servers of VMs in the baseline, which are tried first.
    pub(crate) servers: Option<&'a [Option<u32>]>,
    /// Whether the placement policy chooses a server for every VM, and its server in the baseline is ignored.
    pub(crate) scheduled: bool,
    pub(crate) topology: Topology,
    /// Whether pools have a fixed size.
    pub(crate) bounded: bool,
    pub(crate) random: Rng,
    pub(crate) queue: Queue<Event>,
    pub(crate) fleet: Fleet,
    /// The ledgers of the topology.
    pub(crate) pools: Vec<Pool>,
    /// Free pool memory that each server reaches.
    pub(crate) spaces: Vec<PoolSpace>,
    /// The most slices that each pool can give to one VM; see [`Change::Grantable`].
    pub(crate) limits: Vec<Slices>,
    pub(crate) running: Vec<Option<RunningVm>>,
    pub(crate) batches: Batches,
    /// Commands for each ledger whose manager has failed, to be submitted when it works again.
    pub(crate) deferred: Vec<Vec<Command>>,
    /// Whether a tick of each ledger is scheduled.
    pub(crate) ticks: Vec<bool>,
    /// VMs that should not fail together.
    pub(crate) groups: Groups,
    /// Local memory in use on each server, in MiB.
    pub(crate) used_mib: Vec<u64>,
    pub(crate) now: Ns,
    pub(crate) tally: Tally,
}

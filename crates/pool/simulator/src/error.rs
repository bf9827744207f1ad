//! Errors of a study.

use thiserror::Error;
use units::RatioPpm;

/// Errors of a study.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// The servers' shape is invalid.
    #[error(
        "a server has 1 to {} NUMA nodes, and at most 4294967295 cores and MiB of memory; change the sockets, cores or memory",
        placement::NODES_MAX
    )]
    Servers,
    /// A cluster has too many VMs.
    #[error("a cluster has {0} VMs, and at most 4294967294 can be simulated; distribute the trace over more clusters")]
    TooManyVms(usize),
    /// No amount of memory keeps the service level.
    #[error(
        "a cluster of {servers} servers cannot place its {vms} VMs at a service level of {share}, however much memory a server has: \
         cores are too few, or the rule permits no moves; lower the peak fill, or raise the service level's share"
    )]
    ServiceLevel {
        /// Servers of the cluster.
        servers: u32,
        /// VMs that the run without pools started.
        vms: u64,
        /// The share that may be refused.
        share: RatioPpm,
    },
    /// The system has no more threads.
    #[error("the system does not start {0} threads; ask for fewer with --threads")]
    Threads(usize),
}

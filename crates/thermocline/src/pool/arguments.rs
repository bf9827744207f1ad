//! The command line of `thermocline pool`.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use placement::Strategy;
use units::{Bytes, RatioPpm};

use crate::values::{ratio, size};

#[derive(Debug, Subcommand)]
pub(crate) enum PoolCommand {
    /// Check whether this machine has memory for a pool (CXL devices, regions, nodes without cores), and print the next
    /// commands
    Doctor,
    /// See what a running virtual machine accesses of its memory, as the monitor of a host does
    Accesses(super::accesses::Accesses),
    /// Import a public VM trace (Azure V1 and V2 vmtable, AzureTracesForPacking2020, Bitbrains) or the guests of pool hosts that
    /// have ended (lives.jsonl). The format is recognized
    Import(Import),
    /// Generate a VM trace that resembles the published distributions of a cloud, and show how well it fits
    Generate(Generate),
    /// Show the contents of a VM trace: VMs, sizes, lifetimes, and missing values
    Show(Show),
    /// Compute how much DRAM is stranded behind rented cores when a VM trace is packed onto servers
    Stranding(Stranding),
    /// Compute what sharing memory between servers would save, by simulating a VM trace on servers with pools of several
    /// sizes under several policies. Changes nothing
    Simulate(Box<super::simulate::arguments::Simulate>),
    /// Measure a workload on local and on slow memory, with its counters, as a sample for training the latency model
    Characterise(super::characterise::Characterise),
    /// Predict how much of a VM's memory would come from the pool
    Predict(super::predict::Predict),
    /// Collect the records of guests that have ended, on which models are trained
    #[command(subcommand)]
    Lives(super::lives::Lives),
    /// Publish signed models for the hosts of a pool, and fetch them on a host
    #[command(subcommand)]
    Models(super::models::Models),
    /// Run the manager of a pool, which assigns slices to hosts and records them in a durable ledger
    Manager(super::manager::Manager),
    /// Create certificates for a manager, its hosts and its operators, signed by a new authority
    Certificates(super::manager::Certificates),
    /// Show the pool of a running manager: slices, hosts and their leases, and stuck slices
    Status(super::status::Status),
    /// Mark an EMC of a running manager as failed or repaired
    #[command(subcommand)]
    Emc(super::status::Emc),
    /// Report to a running manager that the machine of a host is off, or cannot access the pool's devices any more: its slices of
    /// devices are zeroed and assigned to others
    Fenced(super::status::Fenced),
    /// Use slices of devices that several machines see as memory of this machine
    Memory(super::memory::Memory),
    /// Run the scheduler of a cluster with pools, which chooses the host of each VM by the rules of `simulate`, and its clients
    Scheduler(super::scheduler::Scheduler),
    /// Run a host of a pool: start guests with pool memory, monitor them, and mitigate mispredictions
    Host(super::host::Host),
    /// Manage the guests of the host daemon on this machine
    Vm(super::vm::Vm),
}

#[derive(Debug, Args)]
pub(crate) struct Import {
    /// Source files, plain or compressed by gzip, whose times have the same origin
    #[arg(value_name = "FROM", required_unless_present = "store")]
    pub(crate) from: Vec<PathBuf>,
    /// Also import the guests that hosts have sent to this store by `pool lives send`: a directory, or s3://bucket/prefix
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// The Parquet file to write
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// Draw lifetimes from this VM trace, by type, for rows of a source without lifetimes
    #[arg(long, value_name = "FILE")]
    pub(crate) lifetimes: Option<PathBuf>,
    /// Seed of the drawn lifetimes
    #[arg(long, default_value_t = 1, requires = "lifetimes")]
    pub(crate) seed: u64,
    /// Cores of a machine of AzureTracesForPacking2020, in which types are shares of a machine
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) machine_cores: u32,
    /// Memory of such a machine
    #[arg(long, value_name = "SIZE", default_value = "512GiB", value_parser = size)]
    pub(crate) machine_memory: Bytes,
    /// Exit with 1 if any row is invalid, or a file of the store is not a record of guests
    #[arg(long)]
    pub(crate) strict: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Generate {
    /// Approximate number of VMs that arrive
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) vms: u64,
    /// Number of clusters, five per region
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) clusters: u32,
    /// Number of days
    #[arg(long, value_name = "N", default_value_t = 75, value_parser = clap::value_parser!(u32).range(1..=3_650))]
    pub(crate) days: u32,
    /// Random seed
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// The Parquet file to write
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// The VM trace
    pub(crate) trace: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Stranding {
    /// A VM trace written by `pool import` or `pool generate`
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: PathBuf,
    /// Cores of a server, all sockets together
    #[arg(long, value_name = "N", default_value_t = 48, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub(crate) server_cores: u32,
    /// DRAM of a server per core; several values are compared [default: the mean memory that the trace rents per core, and
    /// 10 %, 20 % and 40 % more]
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', value_parser = dram)]
    pub(crate) dram_per_core: Vec<Bytes>,
    /// Share of a cluster's cores that its peak fills; a lower share gives more servers
    #[arg(long, value_name = "RATIO", default_value = "95%", value_parser = fill)]
    pub(crate) peak_fill: RatioPpm,
    /// Placement policy
    #[arg(long, value_name = "POLICY", default_value = "best_fit", value_parser = PossibleValuesParser::new(Strategy::NAMES))]
    pub(crate) placement: String,
    /// Seed of the policy `random`
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(crate) seed: u64,
}

fn dram(text: &str) -> Result<Bytes, String> {
    let bytes = size(text)?;
    if bytes < Bytes(1 << 20) || bytes > Bytes(1 << 44) {
        return Err("give 1MiB to 16TiB per core, such as 4GiB".to_owned());
    }
    Ok(bytes)
}

fn fill(text: &str) -> Result<RatioPpm, String> {
    let ratio = ratio(text)?;
    if ratio < RatioPpm(10_000) || ratio > RatioPpm::ONE {
        return Err("give 1% to 100%".to_owned());
    }
    Ok(ratio)
}

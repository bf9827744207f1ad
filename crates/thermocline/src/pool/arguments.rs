//! The command line of `thermocline pool`.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use placement::Strategy;
use units::{Bytes, RatioPpm};

use crate::values::{ratio, size};

#[derive(Debug, Subcommand)]
pub(crate) enum PoolCommand {
    /// Check whether this machine has memory that a pool can be made of: CXL devices, regions, nodes without cores; name the
    /// commands that are next. Exits with 2 where it has none
    Doctor,
    /// Make a VM trace of what others publish: Azure V1 and V2 vmtable, AzureTracesForPacking2020, Bitbrains; formats are
    /// recognised
    Import(Import),
    /// Make up a VM trace that looks like what is published of a cloud's, for trying things out, and tell how well it fits
    Generate(Generate),
    /// Show what is in a VM trace: VMs, sizes, lifetimes, and what it does not tell
    Show(Show),
    /// Tell how much DRAM is stranded behind rented cores when a VM trace is packed onto servers
    Stranding(Stranding),
    /// Tell what sharing memory between servers would save: a VM trace on servers with pools of several sizes, under
    /// several policies; changes nothing
    Simulate(Box<super::simulate::arguments::Simulate>),
    /// Measure a workload on local and on slow memory, with its counters: a sample to learn from who minds slow memory
    Characterise(super::characterise::Characterise),
    /// Tell how much of a VM's memory would come from the pool, by models of what it will touch and notice
    Predict(super::predict::Predict),
    /// Serve a pool of memory to hosts: who has which slice, in a ledger that survives
    Manager(super::manager::Manager),
    /// Make certificates for a manager, its hosts and its operators, signed by an authority of their own
    Certificates(super::manager::Certificates),
    /// Show a running manager's pool: slices, hosts and their leases, what does not come back
    Status(super::status::Status),
    /// Take an EMC of a running manager out of use, and back
    #[command(subcommand)]
    Emc(super::status::Emc),
    /// Run a host of a pool: start guests with pool memory, watch them, and repair wrong guesses
    Host(super::host::Host),
    /// Guests of the host that runs here
    Vm(super::vm::Vm),
}

#[derive(Debug, Args)]
pub(crate) struct Import {
    /// Files, packed by gzip or not, whose times count from the same instant
    #[arg(value_name = "FROM", required = true)]
    pub(crate) from: Vec<PathBuf>,
    /// The Parquet file to make
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// Draw lifetimes from this VM trace, by type, for rows of a source that has none
    #[arg(long, value_name = "FILE")]
    pub(crate) lifetimes: Option<PathBuf>,
    /// Which of all draws of lifetimes
    #[arg(long, default_value_t = 1, requires = "lifetimes")]
    pub(crate) seed: u64,
    /// Cores of a machine of AzureTracesForPacking2020, whose types are shares of one
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) machine_cores: u32,
    /// Memory of such a machine
    #[arg(long, value_name = "SIZE", default_value = "512GiB", value_parser = size)]
    pub(crate) machine_memory: Bytes,
    /// Exit with 1 where any row could not be used
    #[arg(long)]
    pub(crate) strict: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Generate {
    /// VMs that arrive, about
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) vms: u64,
    /// Clusters, five to a region
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) clusters: u32,
    /// Days
    #[arg(long, value_name = "N", default_value_t = 75, value_parser = clap::value_parser!(u32).range(1..=3_650))]
    pub(crate) days: u32,
    /// Which of all traces that could be generated
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// The Parquet file to make
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
    /// The VM trace, as `pool import` and `pool generate` make it
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: PathBuf,
    /// Cores of a server, all sockets together
    #[arg(long, value_name = "N", default_value_t = 48, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub(crate) server_cores: u32,
    /// DRAM of a server per core; several, to see what hangs on it [default: what the trace rents with a core, on average, and 10 %,
    /// 20 % and 40 % more]
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', value_parser = dram)]
    pub(crate) dram_per_core: Vec<Bytes>,
    /// How much of a cluster's cores its peak fills: the fewer, the more servers
    #[arg(long, value_name = "RATIO", default_value = "95%", value_parser = fill)]
    pub(crate) peak_fill: RatioPpm,
    /// Which server a VM goes to
    #[arg(long, value_name = "POLICY", default_value = "best_fit", value_parser = PossibleValuesParser::new(Strategy::NAMES))]
    pub(crate) placement: String,
    /// Which of all placements by lot, for `--placement random`
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

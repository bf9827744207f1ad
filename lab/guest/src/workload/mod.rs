//! The ground-truth workload: a program whose memory accesses are all known, and queries about it.

mod accesses;
mod idle;
mod layout;
mod nodes;
mod poisson;
mod record;
mod region;
mod residency;
mod schedule;
mod server;
mod spec;
mod toucher;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::linux::child;
use crate::linux::clock::monotonic_ns;
use crate::linux::mapping::{Advice, page_bytes};
use crate::linux::signals::Signals;

use layout::{Layout, RegionLayout, with_suffix};
use record::{Record, Shape};
use region::Region;
use server::Server;
pub(crate) use server::compute;
use spec::{Kind, Spec};
use toucher::{Role, Toucher};

/// Parameters of a workload.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The specification: a seed, regions with name, bytes, kind, pattern and writes, and optionally a server
    spec: PathBuf,
    /// Where to write the layout when all memory is filled; the access record is created beside it
    #[arg(long, value_name = "FILE")]
    layout: PathBuf,
}

/// Parameters of a query about idle memory.
#[derive(clap::Args)]
pub(crate) struct TruthArguments {
    /// The layout file of a running workload
    layout: PathBuf,
    /// Pages not accessed for this long are idle
    #[arg(long, value_name = "MILLISECONDS")]
    idle_ms: u64,
    /// File with a tracker's verdict: {"pid":..,"cold":[[start,end],..],"taken_at_ns":..}
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// Exclude pages whose idle time is this close to the limit
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 0, requires = "compare")]
    slack_ms: u64,
}

/// The workload whose residency is reported.
#[derive(clap::Args)]
pub(crate) struct ResidencyArguments {
    /// The layout file of a running workload
    layout: PathBuf,
}

/// The workload whose accesses are reported.
#[derive(clap::Args)]
pub(crate) struct AccessesArguments {
    /// The layout file of a running workload
    layout: PathBuf,
}

/// The workload whose accesses are reported by node.
#[derive(clap::Args)]
pub(crate) struct NodesArguments {
    /// The layout file of a running workload
    layout: PathBuf,
    /// Time between two lines
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 500)]
    every_ms: u64,
}

/// Prints how many times each block of a workload was accessed so far.
///
/// # Errors
/// The layout or the access record cannot be read.
pub(crate) fn accesses(arguments: &AccessesArguments) -> Result<()> {
    accesses::print(&arguments.layout)
}

/// Prints periodically on which nodes a workload's memory is and how often it was accessed there, until `SIGTERM`,
/// `SIGINT` or the workload's exit.
///
/// # Errors
/// A file cannot be read, or standard output is closed.
pub(crate) fn nodes(arguments: &NodesArguments) -> Result<()> {
    nodes::watch(&arguments.layout, std::time::Duration::from_millis(arguments.every_ms.max(1)))
}

/// Prints the idle memory of a workload, and compares it with a verdict if given.
///
/// # Errors
/// A file is missing, or the files do not match.
pub(crate) fn truth(arguments: &TruthArguments) -> Result<()> {
    idle::answer(&idle::Query {
        layout: &arguments.layout,
        idle_ms: arguments.idle_ms,
        compare: arguments.compare.as_deref(),
        slack_ms: arguments.slack_ms,
    })
}

/// Prints where a workload's pages are.
///
/// # Errors
/// The layout or the process's `pagemap` cannot be read.
pub(crate) fn residency(arguments: &ResidencyArguments) -> Result<()> {
    residency::print(&arguments.layout)
}

/// Fills the regions, writes the layout, prints `ready`, and accesses memory until `SIGTERM` or `SIGINT`. A workload
/// that serves requests then prints one line per second and a summary.
///
/// # Errors
/// The specification is invalid, memory or disk space is exhausted, or the child that accesses shared memory exits.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let signals = Signals::block(&[libc::SIGTERM, libc::SIGINT, libc::SIGUSR1, libc::SIGCHLD]).context("cannot block signals")?;
    let spec = Spec::read(&arguments.spec, page_bytes() as u64)?;
    // Readers may run in another directory.
    let layout_path = std::path::absolute(&arguments.layout).context("cannot find the current directory")?;
    let mut shapes = Vec::new();
    for region in &spec.regions {
        shapes.push(Shape::new(&region.pattern, usize::try_from(region.bytes)? / page_bytes()));
    }
    let record = Record::create(&record_path(&layout_path), &shapes, monotonic_ns())?;
    let regions = fill(&spec, &record, &layout_path)?;
    let child = start_child(&regions, &record, spec.seed, &signals)?;
    let done = serve(&regions, &record, &spec, child, &signals, &layout_path);
    if let Some(child) = child {
        // It would be killed when this process exits, but the files are removed before that.
        let _ = child::kill(child, libc::SIGKILL);
    }
    for region in &regions {
        region.remove_file();
    }
    done
}

/// Returns the path of the access record, beside the layout file.
fn record_path(layout: &Path) -> PathBuf {
    with_suffix(layout, ".truth")
}

/// Creates and fills all regions. Filling counts as the first access.
fn fill(spec: &Spec, record: &Record, layout: &Path) -> Result<Vec<Region>> {
    let mut regions = Vec::new();
    for (index, region_spec) in spec.regions.iter().enumerate() {
        let region = Region::new(index, region_spec, spec.seed, layout)
            .with_context(|| format!("cannot create region {:?} of {} bytes", region_spec.name, region_spec.bytes))?;
        region.sweep(record, 0);
        regions.push(region);
    }
    Ok(regions)
}

/// Starts the process that accesses shared memory, if there is any. It inherits no other region: memory that parent
/// and child share would be copied when the parent writes to it.
fn start_child(regions: &[Region], record: &Record, seed: u64, signals: &Signals) -> Result<Option<i32>> {
    if regions.iter().all(|region| region.spec.kind != Kind::Shared) {
        return Ok(None);
    }
    for region in regions.iter().filter(|region| region.spec.kind != Kind::Shared) {
        region.mapping.advise(Advice::DontFork).context("cannot exclude a region from the child (MADV_DONTFORK)")?;
    }
    let life = || match Toucher::new(Role::Child, regions, record, seed).run(signals, None) {
        Ok(()) => 0,
        Err(_) => 1,
    };
    child::fork(life).map(Some).context("cannot fork the child that accesses shared memory")
}

/// Writes the layout, and accesses memory until a signal arrives.
fn serve(regions: &[Region], record: &Record, spec: &Spec, child: Option<i32>, signals: &Signals, layout_path: &Path) -> Result<()> {
    let pid = i32::try_from(std::process::id())?;
    let region_layout = |region: &Region| RegionLayout {
        name: region.spec.name.clone(),
        start: region.mapping.start(),
        end: region.mapping.start() + region.spec.bytes,
        kind: region.spec.kind,
        pattern: region.spec.pattern.clone(),
        writes: region.spec.writes,
        toucher_pid: child.filter(|_| region.spec.kind == Kind::Shared).unwrap_or(pid),
    };
    let regions_out = regions.iter().map(region_layout).collect();
    let truth = record_path(layout_path);
    Layout { pid, page_bytes: page_bytes() as u64, truth, regions: regions_out }.write(layout_path)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready").and_then(|()| out.flush()).context("cannot write to standard output")?;
    drop(out);
    let server = spec.server.map(|server| Server::new(server, regions, record, spec.seed)).transpose()?;
    Toucher::new(Role::Parent { child }, regions, record, spec.seed).run(signals, server)
}

//! `thermocline pool memory`: slices of shared devices as memory of this machine.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use daemon::PidLock;
use kernel::Roots;
use pool_host::capacity::Remote;
use pool_host::memory::control::{self, Request};
use pool_host::memory::{self, Assigned, List, Machine};
use serde_json::Value;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use units::Bytes;

use super::status::Reach;
use crate::options::Format;
use crate::output::print;
use crate::table::Table;
use crate::values::{duration, size};

#[derive(Debug, Args)]
pub(crate) struct Memory {
    /// The runtime directory of the daemon
    #[arg(long, value_name = "DIR", global = true, default_value = "/run/thermocline")]
    runtime: PathBuf,
    #[command(subcommand)]
    command: MemoryCommand,
}

#[derive(Debug, Subcommand)]
enum MemoryCommand {
    /// Run the daemon of this machine: it keeps a lease with the pool manager, and takes offline what is not assigned to the machine
    #[command(after_help = "\
Boot with memhp_default_state=offline and without memory_hotplug.memmap_on_memory: otherwise the kernel uses memory of other machines.

  thermocline pool memory serve --host host-a --device dax0.0 --manager https://pool-1:7443 --identity /etc/thermocline/pool/host-a
  thermocline pool memory add build 4GiB
  thermocline pool memory remove build")]
    Serve(Serve),
    /// Add memory of the pool to this machine, as a NUMA node without cores
    Add {
        /// Its name on this machine
        name: String,
        /// Its size, a multiple of the pool's slices
        #[arg(value_parser = size)]
        bytes: Bytes,
    },
    /// Take memory offline and return it to the pool. What is in it moves to other memory
    Remove {
        /// Its name
        name: String,
    },
    /// Show the memory of the pool that this machine has
    List,
}

#[derive(Debug, Args)]
struct Serve {
    /// Name of this machine, as in its certificate and in the manager's configuration
    #[arg(long, value_name = "NAME")]
    host: String,
    /// The DAX device with the memory of an EMC; one for each EMC, in the order of their numbers
    #[arg(long = "device", value_name = "NAME", required = true)]
    devices: Vec<String>,
    /// How long one memory block may take to go offline
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    within: Duration,
    /// Serve metrics at this address, such as 127.0.0.1:9475
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    reach: Reach,
}

/// Runs the command.
pub(super) fn memory(format: Format, arguments: &Memory) -> Result<()> {
    let runtime = &arguments.runtime;
    match &arguments.command {
        MemoryCommand::Serve(serve) => run(runtime, serve),
        MemoryCommand::Add { name, bytes } => {
            let added: Assigned = ask(runtime, &Request::Add { name: name.clone(), bytes: *bytes })?;
            print(format, &added, || format!("{name}: {} in {} slices\n", added.bytes, added.slices.len()))
        }
        MemoryCommand::Remove { name } => {
            let removed: Value = ask(runtime, &Request::Remove { name: name.clone() })?;
            print(format, &removed, || format!("{name} is returned\n"))
        }
        MemoryCommand::List => {
            let list: List = ask(runtime, &Request::List)?;
            print(format, &list, || listed(&list))
        }
    }
}

fn ask<T: serde::de::DeserializeOwned>(runtime: &std::path::Path, request: &Request) -> Result<T> {
    Ok(serde_json::from_value(control::request(runtime, request)?)?)
}

fn run(runtime: &PathBuf, serve: &Serve) -> Result<()> {
    let regions = memory::regions(&Roots::host(), &serve.devices)?;
    let client = serve.reach.client()?;
    std::fs::create_dir_all(runtime).with_context(|| format!("cannot create {}", runtime.display()))?;
    let _lock = PidLock::acquire(runtime, "pool-memory.pid")?;
    let instance = format!("process {}", std::process::id());
    let capacity = Box::new(Remote::new(client, serve.host.clone(), instance));
    let machine = Arc::new(Machine::new(serve.host.clone(), Roots::host(), regions, capacity, serve.within));
    let (stop, stopped) = sync_channel(1);
    let mut signals = Signals::new([SIGTERM, SIGINT]).context("cannot listen for signals")?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        let _member = daemon::watchdog::join("signals", Duration::MAX);
        if signals.forever().next().is_some() {
            let _ = stop.send(());
        }
    })?;
    // What is not assigned to this machine is offline before anybody can ask for more.
    machine.begin();
    control::serve(runtime, Arc::clone(&machine)).context("cannot create the control socket")?;
    if let Some(address) = serve.metrics {
        let bound = memory::metrics::serve(address, Arc::clone(&machine)).with_context(|| format!("cannot serve metrics at {address}"))?;
        log::info!("metrics are at http://{bound}/metrics");
    }
    daemon::notify_ready();
    log::info!("{} has memory of a pool; it stays when this daemon stops", serve.host);
    machine.run(&stopped);
    Ok(())
}

fn listed(list: &List) -> String {
    let mut text = String::new();
    if let Some(error) = &list.pool_error {
        let _ = writeln!(text, "{error}");
    }
    for stuck in &list.stuck {
        let _ = writeln!(text, "still online: {stuck}");
    }
    let mut table = Table::new(&["<memory", "size", "online", "<slices"]);
    for assigned in &list.memory {
        let online: Option<Bytes> = assigned.slices.iter().map(|slice| slice.online_bytes).sum();
        let online = online.map_or_else(|| "-".to_owned(), |bytes| bytes.to_string());
        let slices: Vec<String> = assigned.slices.iter().map(|slice| format!("{}/{}", slice.emc, slice.index)).collect();
        table.row(&[&assigned.name, &assigned.bytes, &online, &slices.join(" ")]);
    }
    text + &table.to_string()
}

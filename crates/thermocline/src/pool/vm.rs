//! `thermocline pool vm`: guests of the host that runs here.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use pool_host::drivers::description::Description;
use pool_host::host::List;
use pool_host::socket;
use pool_host::vm::{Record, Request};
use serde::Deserialize;

use crate::options::Format;
use crate::output::print;
use crate::values::{duration, size};

#[derive(Debug, Args)]
pub(crate) struct Vm {
    /// The runtime directory of the host's configuration
    #[arg(long, value_name = "DIR", global = true, default_value = "/run/thermocline")]
    runtime: PathBuf,
    #[command(subcommand)]
    command: VmCommand,
}

#[derive(Debug, Subcommand)]
enum VmCommand {
    /// Start a guest; its pool memory is predicted unless its file sets it
    #[command(after_help = "\
A guest is a TOML file:

  name = \"redis-1\"
  cores = 2
  memory = \"4GiB\"
  pool = \"1GiB\"          # optional; the default is predicted
  [qemu]                  # on a host that starts QEMU
  arguments = [\"-drive\", \"file=redis-1.qcow2,if=virtio\"]   # added to its command line; see docs/pool-hosts.md
                          # on a host of libvirt instead: [libvirt] with domain = \"redis-1.xml\"
  [about]                 # metadata for predictions; see `thermocline pool predict --help`
  customer = 7
  vm_type = \"D4\"

Its kernel must bring hot-plugged memory online: memhp_default_state=online on its command line, unless its distribution does so.")]
    Start {
        /// The guest's file
        file: PathBuf,
    },
    /// Stop a guest; its slices are returned to the pool
    Stop {
        /// Its name
        name: String,
        /// How long it may take to shut down before its process is killed
        #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
        grace: Duration,
        /// Kill its process at once
        #[arg(long, conflicts_with = "grace")]
        now: bool,
    },
    /// Take all pool memory from a running guest, if it has enough free memory
    Release {
        /// Its name
        name: String,
    },
    /// Show the guests of this host
    List,
    /// Show the decisions about a guest, with their reasons
    Explain {
        /// Its name
        name: String,
    },
}

/// Runs the command.
pub(super) fn vm(format: Format, arguments: &Vm) -> Result<()> {
    let runtime = &arguments.runtime;
    match &arguments.command {
        VmCommand::Start { file } => {
            let record: Record = serde_json::from_value(socket::request(runtime, &socket::Request::Start(Box::new(request(file)?)))?)?;
            print(format, &record, || explained(&record))
        }
        VmCommand::Stop { name, grace, now } => {
            let grace_seconds = if *now { 0.0 } else { grace.as_secs_f64() };
            let done = socket::request(runtime, &socket::Request::Stop { name: name.clone(), grace_seconds })?;
            print(format, &done, || format!("{name} has stopped\n"))
        }
        VmCommand::Release { name } => {
            let record: Record = serde_json::from_value(socket::request(runtime, &socket::Request::Release { name: name.clone() })?)?;
            print(format, &record, || explained(&record))
        }
        VmCommand::List => {
            let list: List = serde_json::from_value(socket::request(runtime, &socket::Request::List)?)?;
            print(format, &list, || listed(&list))
        }
        VmCommand::Explain { name } => {
            let record: Record = serde_json::from_value(socket::request(runtime, &socket::Request::Explain { name: name.clone() })?)?;
            print(format, &record, || explained(&record))
        }
    }
}

/// A guest's file, without the table of its driver.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: String,
    cores: u32,
    memory: String,
    pool: Option<String>,
    #[serde(default)]
    about: toml::Table,
}

fn request(path: &Path) -> Result<Request> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text, path.parent().unwrap_or(Path::new(""))).with_context(|| format!("{} is not a guest's file", path.display()))
}

/// Parses a guest's file in `directory`.
fn parse(text: &str, directory: &Path) -> Result<Request> {
    let mut file: toml::Table = toml::from_str(text)?;
    let description = description(&mut file, directory)?;
    let Written { name, cores, memory, pool, about } = file.try_into()?;
    let bytes = |key: &str, text: &str| size(text).map_err(|why| anyhow::anyhow!("{key}: {why}"));
    let request = Request {
        name,
        vm: metadata(about, cores, bytes("memory", &memory)?.0).context("about")?,
        pool_bytes: pool.map(|pool| bytes("pool", &pool)).transpose()?,
        description,
    };
    request.check().map_err(anyhow::Error::msg)?;
    Ok(request)
}

/// Takes the table of the driver out of a guest's file.
fn description(file: &mut toml::Table, directory: &Path) -> Result<Option<Description>> {
    let tables: Vec<_> = Description::TABLES.into_iter().filter(|name| file.contains_key(*name)).collect();
    ensure!(tables.len() < 2, "tables {}: give the one of the host's driver", tables.join(" and "));
    let Some((name, table)) = tables.first().and_then(|&name| Some((name, file.remove(name)?))) else { return Ok(None) };
    Description::read(name, table, directory).map(Some).map_err(|why| anyhow::anyhow!("{name}: {why}"))
}

/// The models' request from the `[about]` table. Without an arrival time the VM is requested now, in Unix time.
fn metadata(mut about: toml::Table, cores: u32, memory_bytes: u64) -> Result<predict::Request> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    about.entry("arrival").or_insert(i64::try_from(now)?.into());
    for (key, value) in [("cores", u64::from(cores)), ("memory_bytes", memory_bytes)] {
        ensure!(!about.contains_key(key), "unknown field `{key}`: it is given by the guest file itself");
        about.insert(key.to_owned(), i64::try_from(value)?.into());
    }
    Ok(about.try_into()?)
}

fn listed(list: &List) -> String {
    let (used, all) = (list.local_used_bytes, list.local_bytes);
    let mut text = format!("host {}: {} guests, {used} of {all} local memory in use", list.host, list.guests.len());
    let _ = writeln!(text, "; {} started so far, {} mitigated", list.totals.started, list.totals.mitigated);
    if let Some(error) = &list.pool_error {
        let _ = writeln!(text, "{error}");
    }
    let _ = writeln!(text, "{:<20} {:>5} {:>10} {:>10} {:>10} {:>9}  state", "guest", "cores", "local", "pool", "touched", "accessed");
    for line in &list.guests {
        let touched = line.pool_touched_bytes.map_or("-".to_owned(), |bytes| bytes.to_string());
        let accessed = line.pool_accessed_ratio.map_or("-".to_owned(), |ratio| format!("{:.2}%", ratio * 100.0));
        let (local, pool) = (line.local_bytes.to_string(), line.pool_bytes.to_string());
        let _ = write!(text, "{:<20} {:>5} {local:>10} {pool:>10} {touched:>10} {accessed:>9}  {:?}", line.name, line.cores, line.state);
        if let Some(verdict) = line.verdict {
            let _ = write!(text, ", {verdict:?}");
        }
        if let Some(busy) = &line.busy {
            let _ = write!(text, ", {busy}");
        }
        text.push('\n');
    }
    text
}

fn explained(record: &Record) -> String {
    let Record { request, share, .. } = record;
    let mut text = format!("{}: {} cores, {} in all, {:?}", request.name, request.vm.cores, request.memory(), record.state);
    if let Some(process) = record.process {
        let _ = write!(text, ", process {}", process.pid);
    }
    let (local, pool) = (record.local_bytes(), record.pool_bytes());
    let _ = writeln!(text, "\n{local} local, {pool} in the pool; at the start {} slices: {:?}", share.slices, share.why);
    for slice in &record.mapped {
        let _ = writeln!(text, "  slice {}/{}, generation {}: {}", slice.emc, slice.index, slice.generation, slice.path.display());
    }
    if let Some(counted) = &record.counted {
        let score = counted.score.map_or_else(|| "no prediction".to_owned(), |score| format!("insensitive with probability {score:.2}"));
        let _ = writeln!(
            text,
            "{} counters at the last sample with more pool accesses than predicted; prediction of the model: {score}",
            counted.counters.len()
        );
    }
    if let Some(verdict) = record.verdict {
        let _ = writeln!(text, "last verdict: {verdict:?}");
    }
    #[expect(clippy::cast_possible_truncation, reason = "whole seconds")]
    let seconds = |at: f64| at as i64;
    for event in &record.events {
        let at = jiff::Timestamp::from_second(seconds(event.at)).map_or_else(|_| String::new(), |at| at.to_string());
        let _ = writeln!(text, "{at}  {}", event.what);
    }
    text
}

#[cfg(test)]
mod tests {
    use units::Bytes;

    use super::*;

    #[test]
    fn the_example_in_the_help_is_valid() {
        let help = <crate::arguments::Arguments as clap::CommandFactory>::command();
        let start = ["pool", "vm", "start"].iter().try_fold(&help, |command, name| command.find_subcommand(name)).unwrap();
        let example: Vec<_> =
            start.get_after_help().unwrap().to_string().lines().filter_map(|line| line.strip_prefix("  ")).map(str::to_owned).collect();
        let request = parse(&example.join("\n"), Path::new("")).unwrap();
        assert_eq!((request.pool_bytes, request.vm.customer), (Some(Bytes(1 << 30)), Some(7)));
        assert!(matches!(request.description, Some(Description::Qemu(guest)) if guest.arguments.len() == 2));
    }

    #[test]
    fn a_request_without_an_arrival_time_arrives_now() {
        let with = |about: &str| {
            let text = format!("name = \"a\"\ncores = 1\nmemory = \"1GiB\"\n[about]\n{about}\n");
            parse(&text, Path::new("")).unwrap().vm
        };
        assert!(with("customer = 7").arrival > 1_700_000_000);
        assert_eq!(with("arrival = 5").arrival, 5);
    }

    #[test]
    fn errors_name_the_key() {
        let check = |text: &str, wrong: &str| {
            let error = format!("{:#}", parse(text, Path::new("/nowhere")).unwrap_err());
            assert!(error.contains(wrong), "{error}");
        };
        check("name = \"a\"\ncores = 1\nmemory = \"4\"\n", "memory");
        check("name = \"a\"\ncores = 0\nmemory = \"1GiB\"\n", "cores = 0");
        check("name = \"a\"\ncores = 1\nmemory = \"1GiB\"\npool = \"lots\"\n", "pool");
        check("name = \"a\"\ncores = 1\nmemory = \"1GiB\"\nlibvirt.domain = \"a.xml\"\n", "cannot read /nowhere/a.xml");
        check("name = \"a\"\ncores = 1\nmemory = \"1GiB\"\nlibvirt.domain = \"a.xml\"\n[qemu]\n", "qemu and libvirt");
        check("name = \"a\"\ncores = 1\nmemory = \"1GiB\"\nqemu.argument = []\n", "qemu: unknown field `argument`");
        check("name = \"a\"\ncores = 1\nmemory = \"1GiB\"\nqemu.arguments = [\"--m\", \"8G\"]\n", "\"--m\" is not allowed");
        check("name = \"a\"\ncores = 1\nmemory = \"1GiB\"\nmemories = 2\n", "memories");
        check("name = \"a\"\ncores = 1\nmemory = \"1GiB\"\n[about]\ncustomers = 2\n", "customers");
        check("name = \"a\"\ncores = 1\nmemory = \"1GiB\"\n[about]\ncores = 2\n", "unknown field `cores`");
    }
}

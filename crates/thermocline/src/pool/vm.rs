//! `thermocline pool vm`: guests of the host that runs here.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use pool_host::host::List;
use pool_host::socket::{Ask, ask};
use pool_host::vm::{Record, Request};
use serde::Deserialize;
use units::Bytes;

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
    /// Start a guest: how much of its memory comes from the pool is predicted, unless its file tells
    #[command(after_help = "\
A guest is a TOML file:

  name = \"redis-1\"
  cores = 2
  memory = \"4GiB\"
  pool = \"1GiB\"          # left out: as predicted
  arguments = [\"-drive\", \"file=redis-1.qcow2,if=virtio\"]   # to QEMU, as they are; on a host of libvirt in place of them
                          # domain = \"redis-1.xml\": a domain, of which name, memory, cores and nodes are replaced
  [about]                 # what a prediction goes by; see `thermocline pool predict --help`
  customer = 7
  vm_type = \"D4\"

Its kernel must bring memory online that it finds: memhp_default_state=online on its command line, unless its distribution does so.")]
    Start {
        /// The guest's file
        file: PathBuf,
    },
    /// End a guest; its slices go back to the pool
    Stop {
        /// Its name
        name: String,
        /// How long it may take to switch itself off before its process is ended
        #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
        grace: Duration,
        /// End its process at once
        #[arg(long, conflicts_with = "grace")]
        now: bool,
    },
    /// Take a guest's pool memory back while it runs, if it has the room
    Release {
        /// Its name
        name: String,
    },
    /// Show the guests of this host
    List,
    /// Show what was decided about a guest, and why
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
            let record: Record = serde_json::from_value(ask(runtime, &Ask::Start(Box::new(request(file)?)))?)?;
            print(format, &record, || explained(&record))
        }
        VmCommand::Stop { name, grace, now } => {
            let grace_seconds = if *now { 0.0 } else { grace.as_secs_f64() };
            let done = ask(runtime, &Ask::Stop { name: name.clone(), grace_seconds })?;
            print(format, &done, || format!("{name} has ended\n"))
        }
        VmCommand::Release { name } => {
            let record: Record = serde_json::from_value(ask(runtime, &Ask::Release { name: name.clone() })?)?;
            print(format, &record, || explained(&record))
        }
        VmCommand::List => {
            let list: List = serde_json::from_value(ask(runtime, &Ask::List)?)?;
            print(format, &list, || listed(&list))
        }
        VmCommand::Explain { name } => {
            let record: Record = serde_json::from_value(ask(runtime, &Ask::Explain { name: name.clone() })?)?;
            print(format, &record, || explained(&record))
        }
    }
}

/// A guest's file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: String,
    cores: u32,
    memory: String,
    pool: Option<String>,
    #[serde(default)]
    arguments: Vec<String>,
    domain: Option<PathBuf>,
    #[serde(default)]
    about: toml::Table,
}

fn request(path: &Path) -> Result<Request> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text, path.parent().unwrap_or(Path::new(""))).with_context(|| format!("{} is no guest", path.display()))
}

/// A guest, and the domain that its file names, from the directory where that file is.
fn parse(text: &str, directory: &Path) -> Result<Request> {
    let Written { name, cores, memory, pool, arguments, domain, about } = toml::from_str(text)?;
    let read = |name: PathBuf| {
        let path = directory.join(name);
        std::fs::read_to_string(&path).with_context(|| format!("domain: cannot read {}", path.display()))
    };
    let bytes = |key: &str, text: &str| size(text).map(|bytes| bytes.0).map_err(|why| anyhow::anyhow!("{key}: {why}"));
    let request = Request {
        name,
        vm: metadata(about, cores, bytes("memory", &memory)?).context("about")?,
        pool_bytes: pool.map(|pool| bytes("pool", &pool)).transpose()?,
        arguments,
        domain: domain.map(read).transpose()?,
    };
    request.check().map_err(anyhow::Error::msg)?;
    Ok(request)
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
    let (used, all) = (Bytes(list.local_used_bytes), Bytes(list.local_bytes));
    let mut text = format!("host {}: {} guests, {used} of {all} local memory in use", list.host, list.guests.len());
    let _ = writeln!(text, "; {} started so far, {} repaired", list.totals.started, list.totals.repaired);
    if let Some(trouble) = &list.trouble {
        let _ = writeln!(text, "{trouble}");
    }
    let _ = writeln!(text, "{:<20} {:>5} {:>10} {:>10} {:>10} {:>9}  state", "guest", "cores", "local", "pool", "touched", "accessed");
    for line in &list.guests {
        let touched = line.pool_touched_bytes.map_or("-".to_owned(), |bytes| Bytes(bytes).to_string());
        let accessed = line.pool_accessed_ratio.map_or("-".to_owned(), |ratio| format!("{:.2}%", ratio * 100.0));
        let (local, pool) = (Bytes(line.local_bytes).to_string(), Bytes(line.pool_bytes).to_string());
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
    let mut text = format!("{}: {} cores, {} in all, {:?}", request.name, request.vm.cores, Bytes(request.vm.memory_bytes), record.state);
    if let Some(process) = record.process {
        let _ = write!(text, ", process {}", process.pid);
    }
    let local = Bytes(record.local_bytes());
    let pool = Bytes(record.pool_bytes());
    let _ = writeln!(text, "\n{local} local, {pool} in the pool; at first {} slices, because: {:?}", share.slices, share.why);
    for slice in &record.mapped {
        let _ = writeln!(text, "  slice {}/{}, turn {}: {}", slice.emc, slice.index, slice.turn, slice.path.display());
    }
    if let Some(counted) = &record.counted {
        let score = counted.score.map_or_else(|| "nothing".to_owned(), |score| format!("insensitive with probability {score:.2}"));
        let _ = writeln!(
            text,
            "{} counters when it last accessed more of the pool than predicted; the model says to them: {score}",
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
    use super::*;

    #[test]
    fn the_helps_example_is_a_guest() {
        let help = <crate::arguments::Arguments as clap::CommandFactory>::command();
        let start = ["pool", "vm", "start"].iter().try_fold(&help, |command, name| command.find_subcommand(name)).unwrap();
        let example: Vec<_> =
            start.get_after_help().unwrap().to_string().lines().filter_map(|line| line.strip_prefix("  ")).map(str::to_owned).collect();
        let request = parse(&example.join("\n"), Path::new("")).unwrap();
        assert_eq!((request.pool_bytes, request.vm.customer), (Some(1 << 30), Some(7)));
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
    fn what_is_wrong_with_a_guest_is_told() {
        let check = |text: &str, wrong: &str| {
            let told = format!("{:#}", parse(text, Path::new("/nowhere")).unwrap_err());
            assert!(told.contains(wrong), "{told}");
        };
        check("name = \"a\"\ncores = 1\nmemory = \"4\"\n", "memory");
        check("name = \"a\"\ncores = 0\nmemory = \"1GiB\"\n", "cores = 0");
        check("name = \"a\"\ncores = 1\nmemory = \"1GiB\"\npool = \"lots\"\n", "pool");
        check("name = \"a\"\ncores = 1\nmemory = \"1GiB\"\ndomain = \"a.xml\"\n", "cannot read /nowhere/a.xml");
        check("name = \"a\"\ncores = 1\nmemory = \"1GiB\"\nmemories = 2\n", "memories");
        check("name = \"a\"\ncores = 1\nmemory = \"1GiB\"\n[about]\ncustomers = 2\n", "customers");
        check("name = \"a\"\ncores = 1\nmemory = \"1GiB\"\n[about]\ncores = 2\n", "unknown field `cores`");
    }
}

//! `thermocline pool vm`: guests of the host that runs here.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use clap::{Args, Subcommand};
use pool_host::accesses::Seen;
use pool_host::guest_file;
use pool_host::host::List;
use pool_host::socket;
use pool_host::vm::Record;

use crate::options::Format;
use crate::output::print;
use crate::table::Table;
use crate::values::duration;

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
A guest file is TOML; all keys are in docs/reference/pool-host.md:

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

Check a file with: thermocline config check --as pool-guest FILE

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
            let record: Record =
                serde_json::from_value(socket::request(runtime, &socket::Request::Start(Box::new(guest_file::load(file, now())?)))?)?;
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

/// Returns the Unix time in seconds.
fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).ok().and_then(|since| since.as_secs().try_into().ok()).unwrap_or_default()
}

fn listed(list: &List) -> String {
    let (used, all) = (list.local_used_bytes, list.local_bytes);
    let mut text = format!("host {}: {} guests, {used} of {all} local memory in use", list.host, list.guests.len());
    let _ = writeln!(text, "; {} started so far, {} mitigated", list.totals.started, list.totals.mitigated);
    if let Some(error) = &list.pool_error {
        let _ = writeln!(text, "{error}");
    }
    if let Some(model) = list.model.as_ref().filter(|model| model.failed) {
        let _ = writeln!(
            text,
            "the model of untouched memory failed, and guests get no pool memory by it until there is another: more of its guests than \
             {} touched the pool memory that it gave them; of those that have ended, {} of {}",
            model.target_ppm, model.guests_touched, model.guests
        );
    }
    for (name, why) in &list.damaged {
        let _ = writeln!(text, "guest {name} is not observed: {why}");
    }
    let mut table = Table::new(&["<guest", "cores", "local", "pool", "touched", "accessed", "<state"]);
    for line in &list.guests {
        let touched = line.pool_touched_bytes.map_or("-".to_owned(), |bytes| bytes.to_string());
        let accessed = line.pool_accessed_ratio.map_or("-".to_owned(), |ratio| format!("{:.2}%", ratio * 100.0));
        let mut state = format!("{:?}", line.state);
        if let Some(verdict) = line.verdict {
            let _ = write!(state, ", {verdict:?}");
        }
        if line.home_bytes > units::Bytes::ZERO {
            let _ = write!(state, ", {} of it moved home", line.home_bytes);
        }
        if let Some(busy) = &line.busy {
            let _ = write!(state, ", {busy}");
        }
        table.row(&[&line.name, &line.cores, &line.local_bytes, &line.pool_bytes, &touched, &accessed, &state]);
    }
    text + &table.to_string()
}

fn explained(record: &Record) -> String {
    let Record { request, share, .. } = record;
    let mut text = format!("{}: {} cores, {} in all, {:?}", request.name, request.vm.cores, request.memory(), record.state);
    if let Some(process) = record.process {
        let _ = write!(text, ", process {}", process.pid);
    }
    let (local, pool) = (record.local_bytes(), record.pool_bytes());
    let _ = writeln!(text, "\n{local} local, {pool} in the pool; at the start {} slices: {:?}", share.slices, share.why);
    if record.moved_home() > units::Bytes::ZERO {
        let _ = writeln!(text, "{} of its pool memory were moved home, and count as local", record.moved_home());
    }
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
    match record.usage.map(|usage| usage.seen) {
        Some(Seen::By(instrument)) => {
            let _ = writeln!(text, "accesses are seen by {instrument}");
        }
        Some(Seen::Not(why)) => {
            let _ = writeln!(text, "accesses are not seen: {why}");
        }
        None => {}
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
    use std::path::Path;

    use pool_host::drivers::description::Description;
    use units::Bytes;

    use super::*;

    #[test]
    fn the_example_in_the_help_is_valid() {
        let help = <crate::arguments::Arguments as clap::CommandFactory>::command();
        let start = ["pool", "vm", "start"].iter().try_fold(&help, |command, name| command.find_subcommand(name)).unwrap();
        let example: Vec<_> =
            start.get_after_help().unwrap().to_string().lines().filter_map(|line| line.strip_prefix("  ")).map(str::to_owned).collect();
        let request = guest_file::parse(Path::new("vm.toml"), &example.join("\n"), 0).unwrap();
        assert_eq!((request.pool_bytes, request.vm.customer), (Some(Bytes(1 << 30)), Some(7)));
        assert!(matches!(request.description, Some(Description::Qemu(guest)) if guest.arguments.len() == 2));
    }

    #[test]
    fn requests_without_an_arrival_time_arrive_in_unix_time() {
        assert!(now() > 1_700_000_000);
    }
}

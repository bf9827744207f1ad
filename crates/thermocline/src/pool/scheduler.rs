//! `thermocline pool scheduler`: the service that chooses hosts for VMs, its clients, and its log.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use ::manager::connection::Identity;
use ::scheduler::Mode;
use ::scheduler::api::{HostView, Placed, Spread, Status, VmRequest};
use ::scheduler::client::Client;
use ::scheduler::replay::{self, Replayed, WhatIf};
use ::scheduler::service;
use ::scheduler::settings::Settings;
use ::scheduler::simulated::{self, Simulated};
use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use placement::{Limit, Strategy};
use serde_json::json;
use units::{Bytes, RatioPpm, Slices};

use super::status::IDENTITY;
use crate::options::Format;
use crate::output::print;
use crate::signals;
use crate::table::Table;
use crate::values::{ratio, size};

/// Pause of a standby between two attempts to get the log.
const STANDBY_PERIOD: Duration = Duration::from_millis(200);
/// Timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Scheduler {
    #[command(subcommand)]
    command: Option<SchedulerCommand>,
    #[command(flatten)]
    serve: Serve,
}

#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// The scheduler's configuration file
    #[arg(long, value_name = "FILE", default_value = "/etc/thermocline/pool-scheduler.toml")]
    config: PathBuf,
    /// Wait while another scheduler has the log, and serve when that one has ended
    #[arg(long)]
    standby: bool,
    /// Run without certificates; only for a scheduler that listens on a loopback address
    #[arg(long)]
    insecure_loopback: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SchedulerCommand {
    /// Request a host for a VM that is about to start
    Place(Place),
    /// Report that a VM has ended
    End(VmName),
    /// Give a host no new VMs, for maintenance. Its VMs stay
    Drain(HostName),
    /// Give a drained host VMs again
    Restore(HostName),
    /// Show hosts, pools, and free memory
    Status(Reach),
    /// Make every decision of a log again: check that each is the recorded one, or see what another policy or other pools would have done
    Replay(Replay),
}

/// The address of a scheduler, and the client's identity.
#[derive(Debug, Args)]
pub(crate) struct Reach {
    /// URL of a scheduler; repeat it for those that share a log, of which one answers
    #[arg(long = "scheduler", value_name = "URL", default_value = "https://localhost:7445")]
    schedulers: Vec<String>,
    /// The client's identity: the path, without extension, of a certificate (.pem) and its key (.key), with the authority's ca.pem beside them
    #[arg(long, value_name = "PATH", default_value = IDENTITY)]
    identity: PathBuf,
}

impl Reach {
    fn client(&self) -> Result<Client> {
        Ok(Client::new(&self.schedulers, Some(&Identity::at(&self.identity)), REQUEST_TIMEOUT)?)
    }
}

#[derive(Debug, Args)]
pub(crate) struct Place {
    /// Name of the VM, unique in the cluster
    #[arg(value_name = "VM")]
    vm: String,
    /// Cores
    #[arg(long, value_name = "N")]
    cores: u32,
    /// All memory of the VM
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Bytes,
    /// The part that may come from a pool, rounded down to whole slices; see `thermocline pool predict`
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "0MiB")]
    pool: Bytes,
    /// The group of VMs with which it should not fail together, such as those of one service
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
    /// The most VMs of the group, itself included, that the failure of one fault domain or pool may take along with it
    #[arg(long, value_name = "N", default_value_t = 1, requires = "group", value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Refuse the VM if no host is within the limit. Otherwise it is placed where the fewest of its group fail together
    #[arg(long, requires = "group")]
    hard: bool,
    #[command(flatten)]
    reach: Reach,
}

fn mode(hard: bool) -> Mode {
    if hard { Mode::Hard } else { Mode::Soft }
}

#[derive(Debug, Args)]
pub(crate) struct VmName {
    /// Name of the VM
    #[arg(value_name = "VM")]
    vm: String,
    #[command(flatten)]
    reach: Reach,
}

#[derive(Debug, Args)]
pub(crate) struct HostName {
    /// Name of the host
    #[arg(value_name = "HOST")]
    host: String,
    #[command(flatten)]
    reach: Reach,
}

#[derive(Debug, Args)]
pub(crate) struct Replay {
    /// The log
    #[arg(value_name = "LOG")]
    log: PathBuf,
    /// Decide by this policy instead, and let later decisions follow from it
    #[arg(long, value_name = "POLICY")]
    strategy: Option<Strategy>,
    /// Decide with pools of so many times their slices instead, such as 50% or 200%
    #[arg(long, value_name = "RATIO", value_parser = ratio)]
    pool_size: Option<RatioPpm>,
    /// Decide with this limit for each VM that has a group instead
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// Refuse a VM for which no host is within that limit
    #[arg(long, requires = "limit")]
    hard: bool,
    /// Let the simulator decide, from the VM trace that the log is imported as: if its decisions are those of the log, `pool simulate`
    /// answers for this cluster
    #[arg(long, conflicts_with_all = ["strategy", "pool_size", "limit"])]
    simulate: bool,
}

/// `thermocline pool scheduler`.
pub(crate) fn scheduler(format: Format, arguments: &Scheduler) -> Result<ExitCode> {
    match &arguments.command {
        None => serve(&arguments.serve)?,
        Some(SchedulerCommand::Place(Place { vm, cores, memory, pool, group, limit, hard, reach })) => {
            let spread = group.clone().map(|group| Spread { group, limit: *limit, mode: mode(*hard) });
            let request = VmRequest { vm: vm.clone(), cores: *cores, memory_bytes: *memory, pool_bytes: *pool, spread };
            let placed = reach.client()?.place(&request)?;
            print(format, &placed, || placed_line(&placed))?;
        }
        Some(SchedulerCommand::End(VmName { vm, reach })) => {
            reach.client()?.end(vm)?;
            print(format, &json!({ "vm": vm, "ended": true }), || format!("{vm} has ended\n"))?;
        }
        Some(SchedulerCommand::Drain(host)) => drain(format, host, true)?,
        Some(SchedulerCommand::Restore(host)) => drain(format, host, false)?,
        Some(SchedulerCommand::Status(reach)) => {
            let status = reach.client()?.status()?;
            print(format, &status, || status_text(&status))?;
        }
        Some(SchedulerCommand::Replay(arguments)) => return replay(format, arguments),
    }
    Ok(ExitCode::SUCCESS)
}

fn serve(arguments: &Serve) -> Result<()> {
    let (_sender, receiver) = signals::messages()?;
    let settings = Settings::load(&arguments.config)?;
    let mut waits = false;
    let scheduler = loop {
        match service::start(&settings, arguments.insecure_loopback) {
            Err(error) if arguments.standby && error.is_locked() => {
                if !waits {
                    log::info!("standby: {error}");
                    daemon::notify_ready();
                    waits = true;
                }
            }
            started => break started?,
        }
        // The only message is the one to stop.
        if receiver.recv_timeout(STANDBY_PERIOD).is_ok() {
            return Ok(());
        }
    };
    if !waits {
        daemon::notify_ready();
    }
    receiver.recv().context("cannot receive the signal to stop")?;
    log::info!("the scheduler stops; VMs keep running");
    scheduler.stop();
    Ok(())
}

fn placed_line(placed: &Placed) -> String {
    let Placed { vm, host, local_bytes, pool_slices, reason, .. } = placed;
    let nodes: Vec<String> =
        (0..).zip(&placed.nodes).filter(|(_, node)| node.cores > 0 || node.mib > 0).map(|(at, _): (u32, _)| at.to_string()).collect();
    format!("{vm}: {host}, NUMA node {}; {local_bytes} local, {pool_slices} slices\n{reason}\n", nodes.join(" and "))
}

fn drain(format: Format, HostName { host, reach }: &HostName, drained: bool) -> Result<()> {
    let view = reach.client()?.drain(host, drained)?;
    print(format, &view, || {
        let what = if view.drained { "gets no new VMs" } else { "gets VMs" };
        format!("{host} {what}; {} VMs run there\n", view.vms)
    })
}

fn status_text(status: &Status) -> String {
    let Status { strategy, vms, refused, groups, over_limit, pools, hosts, log_error } = status;
    let mut text = String::new();
    if let Some(error) = log_error {
        let _ = writeln!(text, "nothing is placed: {error}");
    }
    let _ = writeln!(text, "{vms} VMs on {} hosts by {strategy}; {refused} requests were refused\n", hosts.len());
    if *groups > 0 {
        let _ = writeln!(text, "{groups} groups; {over_limit} VMs have more of their group in a fault domain than their limit says\n");
    }
    let mut table = Table::new(&["<pool", "slices", "used", "a VM can get", "<manager"]);
    for pool in pools {
        table.row(&[&pool.pool, &pool.slices, &pool.used, &pool.grantable, &if pool.answers { "answers" } else { "does not answer" }]);
    }
    let _ = writeln!(text, "{table}");
    let mut table = Table::new(&["<host", "<pool", "<domain", "VMs", "free cores", "free memory", "<"]);
    for HostView { host, pool, domain, drained, vms, free_cores, free_bytes } in hosts {
        table.row(&[host, pool, domain, vms, free_cores, free_bytes, &if *drained { "drained" } else { "" }]);
    }
    text + &table.to_string()
}

fn replay(format: Format, Replay { log, strategy, pool_size, limit, hard, simulate }: &Replay) -> Result<ExitCode> {
    if *simulate {
        let simulated = simulated::check(log)?;
        print(format, &simulated, || simulated_text(&simulated))?;
        return Ok(if simulated.decisions.differ == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let spread = limit.map(|most| Limit { most, mode: mode(*hard) });
    let what_if = WhatIf { strategy: *strategy, pool_size: *pool_size, spread };
    let as_recorded = what_if == WhatIf::default();
    let replayed = if as_recorded { replay::check(log)? } else { replay::what_if(log, what_if)? };
    print(format, &replayed, || replay_text(&replayed, if as_recorded { "again" } else { "what if" }))?;
    // Another policy decides otherwise: no error. The same one must not.
    Ok(if !as_recorded || replayed.differ == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn simulated_text(simulated: &Simulated) -> String {
    let Simulated { hosts, pools, kept, begins, placed_as_simulated_ratio, decisions, .. } = simulated;
    let mut text = format!("{hosts} hosts, {pools} pools; {kept} VMs ran at entry {begins}, with which the simulation begins\n");
    let _ = writeln!(text, "{:.2}% placed as simulated", placed_as_simulated_ratio * 100.0);
    text + &replay_text(decisions, "simulated")
}

fn replay_text(replayed: &Replayed, name: &str) -> String {
    let Replayed { decisions, differ, differences, .. } = replayed;
    let mut text = format!("{decisions} decisions, {differ} differ\n\n");
    let mut table = Table::new(&["<", "in the log", name]);
    table.row(&[&"refused", &replayed.refused_recorded, &replayed.refused_replayed]);
    table.row(&[&"all local, too few slices", &replayed.local_recorded, &replayed.local_replayed]);
    table.row(&[&"slices at the start", &replayed.slices_recorded, &replayed.slices_replayed]);
    let _ = writeln!(text, "{table}");
    if let Some(over) = replayed.over_limit_replayed.filter(|over| *over > 0) {
        let _ = writeln!(text, "{over} VMs start with more of their group in a fault domain than their limit says\n");
    }
    for of in differences {
        let host = |on: &Option<::scheduler::Host>| match on {
            Some(on) if on.slices > Slices::ZERO => format!("{} with {} slices", on.host, on.slices),
            Some(on) => on.host.clone(),
            None => "refused".to_owned(),
        };
        // Names are the client's: control characters are refused when they arrive.
        let _ = writeln!(text, "entry {}: {} {}, now {}", of.sequence, of.vm, host(&of.recorded), host(&of.replayed));
    }
    text
}

//! `thermocline pool manager` and `pool certificates`: a pool's manager, and the certificates of its clients.

use std::path::{Path, PathBuf};

use ::manager::audit::{self, Entry, Verified};
use ::manager::certificates::{self, Plan};
use ::manager::openapi;
use ::manager::service::{self, RecoverySummary};
use ::manager::settings::Settings;
use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use serde_json::json;

use crate::options::Format;
use crate::output::print;
use crate::signals;
use crate::table::Table;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Manager {
    #[command(subcommand)]
    command: Option<ManagerCommand>,
    #[command(flatten)]
    serve: Serve,
}

#[derive(Debug, Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    file: File,
    /// Run without certificates; only for a manager that listens on a loopback address
    #[arg(long)]
    insecure_loopback: bool,
}

#[derive(Debug, Args)]
pub(crate) struct File {
    /// The manager's configuration file
    #[arg(long, value_name = "FILE", default_value = "/etc/thermocline/pool-manager.toml")]
    config: PathBuf,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ManagerCommand {
    /// Create the ledger of a pool and the files of its slices. Existing ones are kept
    Init(Init),
    /// Make a new ledger from the files and locks of the slices, where the old one is lost, damaged, or older than they are
    ///
    /// The old ledger is kept beside it. Guests keep running and their slices are theirs until they end; hosts find no assignments
    /// after their next lease. No manager may run meanwhile.
    Recover(Recover),
    /// Print the audit log: who requested what, for which slices, why, and with which outcome
    Audit(AuditArguments),
    /// Print the description of the manager's API in OpenAPI 3
    Openapi,
}

#[derive(Debug, Args)]
pub(crate) struct AuditArguments {
    #[command(flatten)]
    file: File,
    /// Check that no entry was changed, inserted or removed, instead of printing the entries
    #[arg(long)]
    verify: bool,
    /// With --verify: also require the entry with this link, noted from an earlier --verify or from the manager's log
    #[arg(long, value_name = "LINK", requires = "verify")]
    expect: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Recover {
    #[command(flatten)]
    file: File,
    /// Show what would be found, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// All hosts are off, or cannot access the pool's devices: their slices may be zeroed
    #[arg(long)]
    hosts_are_off: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Init {
    #[command(flatten)]
    file: File,
    /// Allow a pool that is larger than its file system; guests that touch all of it are killed
    #[arg(long)]
    overcommit: bool,
    /// For a member of a group that exists: it gets the ledger from the other members, and votes when it has it
    #[arg(long)]
    join: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Certificates {
    /// Output directory
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
    /// Name of a host that may use the pool; repeatable
    #[arg(long = "host", value_name = "NAME", required = true)]
    hosts: Vec<String>,
    /// Name of an operator, who may read the pool's state and mark EMCs as failed; repeatable
    #[arg(long = "operator", value_name = "NAME", default_value = "operator")]
    operators: Vec<String>,
    /// Name of a member of a group of managers, as in its URL; repeatable
    #[arg(long = "member", value_name = "NAME")]
    members: Vec<String>,
    /// A host name or address of the manager; repeatable
    #[arg(long = "server", value_name = "NAME", default_values = ["localhost", "127.0.0.1"])]
    servers: Vec<String>,
    /// Validity in days
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=3_650))]
    days: u32,
}

/// `thermocline pool manager`.
pub(crate) fn manager(format: Format, arguments: &Manager) -> Result<()> {
    match &arguments.command {
        None => serve(&arguments.serve),
        Some(ManagerCommand::Init(init)) => {
            let settings = Settings::load(&init.file.config)?;
            let made = match &settings.group {
                Some(_) => service::init_member(&settings, init.join)?,
                None if init.join => anyhow::bail!("--join: {} has no [group] to join", init.file.config.display()),
                None => service::init(&settings, init.overcommit)?,
            };
            print(format, &made, || {
                let directory = settings.pool_dir.display();
                format!("{directory}: {} slices, {}; {} files created\n", made.slices, made.capacity_bytes, made.files)
            })
        }
        Some(ManagerCommand::Recover(arguments)) => {
            let settings = Settings::load(&arguments.file.config)?;
            let found = service::recover(&settings, arguments.dry_run, arguments.hosts_are_off)?;
            print(format, &found, || recovery(&settings, &found))
        }
        Some(ManagerCommand::Audit(arguments)) => audit(format, arguments),
        Some(ManagerCommand::Openapi) => print(Format::Json, &openapi::describe(), String::new),
    }
}

fn audit(format: Format, arguments: &AuditArguments) -> Result<()> {
    let path = Settings::load(&arguments.file.config)?.audit_log();
    if arguments.verify {
        let verified = audit::verify(&path, arguments.expect.as_deref())?;
        return print(format, &verified, || {
            let Verified { entries, first, last, link, lost } = &verified;
            format!("{}: {entries} entries, {first} to {last}, intact; {lost} were lost; last link {link}\n", path.display())
        });
    }
    let mut failed = Ok(());
    audit::read(&path, |entry| {
        if failed.is_ok() {
            failed = print(format, entry, || audit_line(entry));
        }
    })?;
    failed
}

fn audit_line(entry: &Entry) -> String {
    let Entry { sequence, time_ms, who, what, vm, slices, why, outcome, .. } = entry;
    let slices: Vec<String> = slices.iter().map(|slice| format!("{}/{}:{}", slice.emc, slice.index, slice.generation)).collect();
    let vm = vm.as_deref().unwrap_or("-");
    let why = why.as_deref().unwrap_or("-");
    // Names and reasons are the client's: control characters must not reach a terminal.
    let line = format!("{sequence} {}.{:03} {who} {what} {vm} {} {why:?} {outcome:?}", time_ms / 1000, time_ms % 1000, slices.join(","));
    line.replace(char::is_control, "?") + "\n"
}

fn recovery(settings: &Settings, found: &RecoverySummary) -> String {
    let RecoverySummary { slices, in_use, without_file, old_ledger, dry_run } = found;
    let directory = settings.pool_dir.display();
    let mut text = format!("{directory}: {slices} slices, {in_use} in use until their guests end, {without_file} without a file\n");
    let ledger = settings.ledger.display();
    text += &match (dry_run, old_ledger) {
        (true, _) => "nothing was changed: --dry-run\n".to_owned(),
        (false, None) => format!("{ledger} is new\n"),
        (false, Some(old)) => format!("{ledger} is new; the old one is {}\n", old.display()),
    };
    text
}

fn serve(arguments: &Serve) -> Result<()> {
    let (_sender, receiver) = signals::messages()?;
    let settings = Settings::load(&arguments.file.config)?;
    let manager = service::start(&settings, arguments.insecure_loopback)?;
    daemon::notify_ready();
    // The only message is the one to stop.
    receiver.recv().context("cannot receive the signal to stop")?;
    log::info!("the pool manager stops; guests keep running");
    manager.stop();
    Ok(())
}

/// `thermocline pool certificates`.
pub(crate) fn certificates(format: Format, arguments: &Certificates) -> Result<()> {
    let Certificates { directory, hosts, operators, members, servers, days } = arguments;
    let (servers, members) = (servers.clone(), members.clone());
    let wanted = Plan { servers, members, hosts: hosts.clone(), operators: operators.clone(), days: *days };
    let made = certificates::create(directory, &wanted)?;
    print(format, &json!({ "made": made }), || {
        let mut table = Table::new(&["<", "<"]);
        for pair in &made {
            let kept = if pair.kept { ", kept" } else { "" };
            table.row(&[&pair.name, &format!("{} and {}{kept}", pair.cert.display(), pair.key.display())]);
        }
        table.to_string() + &instructions(directory)
    })
}

fn instructions(directory: &Path) -> String {
    let place = std::fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
    let path = |name: &str| place.join(name).display().to_string();
    format!(
        "\nthe manager's configuration needs:\n[tls]\ncert = {:?}\nkey = {:?}\nclient_ca = {:?}\n\n\
         copy to each host its own pair and ca.pem; keep ca.key secret: it can sign a certificate for any host\n",
        path("manager.pem"),
        path("manager.key"),
        path("ca.pem")
    )
}

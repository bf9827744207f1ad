//! `thermocline pool status`, `pool emc` and `pool fenced`: clients of a running manager.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use ::manager::api::{GroupStatus, PoolStatus};
use ::manager::client::{Client, Identity};
use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::json;

use crate::options::Format;
use crate::output::print;
use crate::table::Table;

/// Timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The operator's identity, if nothing else is given.
pub(crate) const IDENTITY: &str = "/etc/thermocline/pool/operator";

/// The address of a manager, and the client's identity.
#[derive(Debug, Args)]
pub(crate) struct Reach {
    /// URL of the manager, or those of all members of its group, with commas between them
    #[arg(long, value_name = "URL", default_value = "https://localhost:7443")]
    manager: String,
    /// The client's identity: the path, without extension, of a certificate (.pem) and its key (.key), with the authority's ca.pem beside them
    #[arg(long, value_name = "PATH", default_value = IDENTITY)]
    identity: PathBuf,
}

impl Reach {
    pub(crate) fn at(manager: &str, identity: PathBuf) -> Self {
        Self { manager: manager.to_owned(), identity }
    }

    pub(crate) fn url(&self) -> &str {
        &self.manager
    }

    pub(crate) fn client(&self) -> Result<Client> {
        let secure = self.manager.starts_with("https://");
        Ok(Client::new(&self.manager, secure.then(|| Identity::at(&self.identity)).as_ref(), REQUEST_TIMEOUT)?)
    }
}

#[derive(Debug, Args)]
pub(crate) struct Status {
    #[command(flatten)]
    reach: Reach,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Emc {
    /// Mark an EMC as failed: its slices are not assigned any more, and VMs with memory on it are lost
    Failed(EmcNumber),
    /// Mark an EMC as repaired: its slices are zeroed and assigned again
    Repaired(EmcNumber),
}

#[derive(Debug, Args)]
pub(crate) struct EmcNumber {
    /// Number of the EMC
    emc: u16,
    #[command(flatten)]
    reach: Reach,
}

#[derive(Debug, Args)]
pub(crate) struct Fenced {
    /// Name of the host
    host: String,
    #[command(flatten)]
    reach: Reach,
}

/// `thermocline pool fenced`.
pub(crate) fn fenced(format: Format, arguments: &Fenced) -> Result<()> {
    let host = &arguments.host;
    arguments.reach.client()?.host_fenced(host)?;
    print(format, &json!({ "host": host, "is": "fenced" }), || {
        format!("the slices of devices that {host} had are zeroed, and can be assigned then\n")
    })
}

/// `thermocline pool status`.
pub(crate) fn status(format: Format, arguments: &Status) -> Result<()> {
    let status = arguments.reach.client()?.pool()?;
    print(format, &status, || text(&status))
}

/// `thermocline pool emc`.
pub(crate) fn emc(format: Format, command: &Emc) -> Result<()> {
    let (number, what) = match command {
        Emc::Failed(number) => {
            number.reach.client()?.emc_failed(number.emc)?;
            (number.emc, "failed")
        }
        Emc::Repaired(number) => {
            number.reach.client()?.emc_repaired(number.emc)?;
            (number.emc, "repaired")
        }
    };
    print(format, &json!({ "emc": number, "is": what }), || format!("EMC {number} is {what}\n"))
}

fn text(status: &PoolStatus) -> String {
    let PoolStatus { slice_bytes, slices, grantable, buffer_slices, ledger_error, emcs, hosts, stuck, group } = status;
    let mut text = String::new();
    if let Some(error) = ledger_error {
        let _ = writeln!(text, "the pool accepts no changes: {error}");
    }
    let total = slices.free + slices.online + slices.offlining + slices.stuck + slices.scrubbing + slices.failed;
    let size = *slice_bytes;
    let _ = writeln!(text, "{total} slices of {size}; a VM can get {grantable}; {buffer_slices} are kept free\n");
    let mut table = Table::new(&["<EMC", "free", "online", "offlining", "stuck", "scrubbing", "failed"]);
    for of in emcs {
        let counts = of.slices;
        let name = format!("{}{}", of.emc, if of.works { "" } else { " *" });
        table.row(&[&name, &counts.free, &counts.online, &counts.offlining, &counts.stuck, &counts.scrubbing, &counts.failed]);
    }
    let _ = writeln!(text, "{table}");
    let mut table = Table::new(&["<host", "VMs", "slices", "epoch", "lease left", "<instance"]);
    for host in hosts {
        let left = host.lease_left_seconds.map_or_else(|| "none".to_owned(), |left| format!("{left:.1} s"));
        table.row(&[&host.host, &host.vms, &host.slices, &host.epoch, &left, &host.instance]);
    }
    text += &table.to_string();
    for slice in stuck {
        let who = slice.host.as_deref().unwrap_or("a process without a lease");
        let why = slice.why.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
        let _ = writeln!(
            text,
            "\nslice {}/{} has been in release for {:.0} s; {who} holds it; {} attempts failed{why}",
            slice.emc, slice.index, slice.since_seconds, slice.failures
        );
    }
    if let Some(group) = group {
        text += &group_text(group);
    }
    text
}

fn group_text(group: &GroupStatus) -> String {
    let GroupStatus { member, term, applied_entry, last_entry, joining, members, .. } = group;
    let vote = if *joining { ", without a vote until it has all entries" } else { "" };
    let mut text = format!("\nanswered by member {member}: term {term}, {applied_entry} of {last_entry} entries applied{vote}\n");
    let mut table = Table::new(&["<member", "<URL", "<role", "entries behind"]);
    for of in members {
        let role = if of.is_leader { "leader" } else { "" };
        let lag = of.lag_entries.map_or_else(|| "-".to_owned(), |lag| lag.to_string());
        table.row(&[&of.member, &of.url, &role, &lag]);
    }
    text += &table.to_string();
    text
}

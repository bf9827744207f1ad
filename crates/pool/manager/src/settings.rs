//! The pool manager's configuration file.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::settings::{Document, Group, Invalid, ListExample, Problems, Schema, Unit, read_file, unreadable};
use pool::{Ns, Slices};
use rustls::pki_types::DnsName;
use units::Bytes;

use crate::layout::Layout;
use crate::ledger::Terms;

/// The most slices of a pool; with more, each transaction would take long.
const SLICES_MAX: u64 = 65_536;
/// The most EMCs of a pool.
const EMCS_MAX: usize = 64;
/// The most hosts of a pool.
const HOSTS_MAX: usize = 1024;

::settings::tables! {
    /// The pool manager: its address, its storage, and the hosts that may use the pool.
    pub struct Service = "", Always {
        listen: SocketAddr = Unit::Listen, required "0.0.0.0:7443",
            "The address on which hosts and operators reach it. Without `[tls]` it must be a loopback address, and the option `--insecure-loopback` is needed.";
        ledger: PathBuf = Unit::RelativePath, required "/var/lib/thermocline/pool/ledger.redb",
            "The file of the ledger, which records the owner of every slice. It must be on a disk that survives a restart: each change is synced to it before a request is answered.";
        pool_dir: PathBuf = Unit::RelativePath, required "/run/thermocline-pool/slices",
            "The directory of the pool's memory: one directory for each EMC with one file for each slice, on a memory file system as large as all slices together, such as `mount -t tmpfs -o size=32G,mode=0750 thermocline-pool /run/thermocline-pool`.";
        slice_size: Bytes = Unit::Bytes, "1GiB" in "128MiB" ..= "1GiB",
            "The size of a slice: 128MiB, 256MiB, 512MiB or 1GiB. Linux hot-plugs memory in blocks of 128 MiB; Pond's slices have 1 GiB (Pond section 4.1). It cannot be changed for an existing pool.";
        hosts: Vec<String> = Unit::Texts, required "host-a, host-b",
            "The hosts that may use the pool, by the names in their certificates.";
        operators: Vec<String> = Unit::Texts, "",
            "Who may take EMCs out of use, by the names in their certificates.";
        buffer_slices: u32 = Unit::Count, "0" in "0" ..= "65535",
            "How many free slices are kept in reserve, so that a VM need not wait for slices that are being released.";
        host_slices: u32 = Unit::Count, "0" in "0" ..= "65536",
            "The most slices that one host may have, with those that it is taking offline; 0 is no limit.";
        lease: Duration = Unit::Duration, "10s" in "1s" ..= "1h",
            "How long a host may be silent before the slices that it does not use are reclaimed.";
        answer_within: Duration = Unit::Duration, "30s" in "100ms" ..= "24h",
            "How long a host may take to take one slice offline.";
        ask_again_after: Duration = Unit::Duration, "60s" in "100ms" ..= "24h",
            "How long to wait before a host is asked again for a slice that it failed to take offline.";
        audit_size: Bytes = Unit::Bytes, "64MiB" in "1MiB" ..= "64GiB",
            "The largest size of the audit log, `ledger` with the extension `audit`. One earlier file of that size is kept.";
        file_mode: String = Unit::Mode, "0600",
            "The permissions of slice files. The user that runs the guests must be able to read and write them: 0660 in a directory with the guests' group and the set-group-ID bit permits another user.";
    }

    /// External memory controllers (EMCs), numbered from zero. Each is a failure domain: the slices of a VM come from
    /// one EMC.
    pub struct Emc = "emcs", List {
        slices: u32 = Unit::Count, required "16" in "1" ..= "65536",
            "The number of slices behind the controller.";
        device: Option<PathBuf> = Unit::RelativePath, "",
            "A device with the controller's memory that all hosts see, such as /dev/dax0.0; slices then are parts of it, and hosts bring them online by `thermocline pool memory`. Without it, slices are files in `pool_dir`, for guests of this machine.";
    }

    /// Certificates for mutual TLS. `thermocline pool certificates` creates some for a first start.
    pub struct Tls = "tls", Recommended {
        cert: PathBuf = Unit::RelativePath, required "pool/manager.pem",
            "The manager's certificate with the chain to the root, as PEM.";
        key: PathBuf = Unit::RelativePath, required "pool/manager.key",
            "The key of the certificate, as PEM.";
        client_ca: PathBuf = Unit::RelativePath, required "pool/ca.pem",
            "The authority that signs the certificates of hosts and operators, as PEM.";
    }
}

::settings::tables! {
    /// This manager as a member of a group: three or five managers on machines of their own, which share the ledger, and of which one
    /// serves. Only for EMCs with devices. Without the table the manager is alone.
    pub struct Members = "group", Optional {
        members: Vec<String> = Unit::Texts, required "https://pool-1:7443, https://pool-2:7443, https://pool-3:7443",
            "The URLs of all members, this one included, in the same order in the configuration of each. Hosts reach the members by them, too. The name in a URL is the name in the certificate of that member.";
        member: u32 = Unit::Count, required "1" in "1" ..= "5",
            "The number of this member in that list, from 1.";
    }
}

/// The pool manager's configuration file.
pub static SCHEMA: Schema = Schema {
    name: "pool-manager",
    tables: &[Service::TABLE, Emc::TABLE, Tls::TABLE, Members::TABLE],
    lists: &[ListExample { table: "emcs", toml: "[[emcs]]\nslices = 16\n\n[[emcs]]\nslices = 16\n", active: true }],
    remedy: |_| None,
};

const EXAMPLE_HEAD: &str = "\
# The manager of one memory pool: thermocline pool manager --config /etc/thermocline/pool-manager.toml
# Relative paths start at the directory of this file. Check with: thermocline config check --as pool-manager FILE
";

const REFERENCE_HEAD: &str = "\
# Settings of the pool manager

<!-- Generated from crates/pool/manager/src/settings.rs: UPDATE_DOCS=1 cargo test -p thermocline-manager --test generated -->

The pool manager reads one file: `thermocline pool manager --config FILE`. See [the pool manager](../pool-manager.md).

    thermocline config check --as pool-manager FILE

reports all problems together, each with its line and remedy.
";

/// Returns the example file, `deploy/pool-manager.toml`.
#[must_use]
pub fn example() -> String {
    ::settings::example(&SCHEMA, EXAMPLE_HEAD)
}

/// Returns the reference page, `docs/reference/pool-manager.md`.
#[must_use]
pub fn reference() -> String {
    ::settings::reference(&SCHEMA, REFERENCE_HEAD, "")
}

/// A pool manager's configuration. Paths are resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The address on which it listens.
    pub listen: SocketAddr,
    /// Certificates; `None` only for a loopback address.
    pub tls: Option<Tls>,
    /// The group that it is a member of; `None` if it is alone.
    pub group: Option<Members>,
    /// The file of its ledger.
    pub ledger: PathBuf,
    /// The directory that contains one directory for each EMC.
    pub pool_dir: PathBuf,
    /// The size of a slice.
    pub slice_size: Bytes,
    /// The external memory controllers, numbered from zero.
    pub emcs: Vec<Emc>,
    /// The hosts that may use the pool, by the names in their certificates.
    pub hosts: Vec<String>,
    /// Who may take EMCs out of use, by the names in their certificates.
    pub operators: Vec<String>,
    /// How many free slices are kept in reserve.
    pub buffer_slices: Slices,
    /// The most slices that one host may have; `None` is no limit.
    pub host_slices: Option<Slices>,
    /// How long a host may be silent before the slices that it does not use are reclaimed.
    pub lease: Ns,
    /// How long a host may take to take one slice offline.
    pub answer_within: Ns,
    /// How long to wait before a host is asked again for a slice that it failed to take offline.
    pub ask_again_after: Ns,
    /// The largest size of a file of the audit log.
    pub audit_size: Bytes,
    /// The permissions of slice files, in octal.
    pub file_mode: String,
}

impl Settings {
    /// Reads a file of settings.
    ///
    /// # Errors
    /// All problems of the file.
    pub fn load(path: &Path) -> Result<Self, Problems> {
        let text = read_file(path).map_err(|error| Problems(vec![unreadable(path, &error)]))?;
        Self::parse(path, &text)
    }

    /// Reads settings from a text; `path` is the file for messages and relative paths.
    ///
    /// # Errors
    /// All problems of the text.
    pub fn parse(path: &Path, text: &str) -> Result<Self, Problems> {
        let mut document = Document::read(&SCHEMA, path, text);
        let service: Service = document.get();
        let mut emcs: Vec<Emc> = document.list(Emc::TABLE.name).map(Emc::read).collect();
        for emc in &mut emcs {
            emc.device = emc.device.take().map(|device| document.resolve(&device));
        }
        check(&mut document, &service, &emcs);
        let tls = Tls::of(&mut document);
        let group = document.optional::<Members>();
        if let Some(group) = &group {
            check_group(&mut document, group, &service, &emcs);
        }
        let settings = Self {
            listen: service.listen,
            tls,
            group,
            ledger: document.resolve(&service.ledger),
            pool_dir: document.resolve(&service.pool_dir),
            slice_size: service.slice_size,
            emcs,
            hosts: service.hosts,
            operators: service.operators,
            buffer_slices: Slices(service.buffer_slices),
            host_slices: Some(Slices(service.host_slices)).filter(|most| *most > Slices::ZERO),
            lease: nanoseconds(service.lease),
            answer_within: nanoseconds(service.answer_within),
            ask_again_after: nanoseconds(service.ask_again_after),
            audit_size: service.audit_size,
            file_mode: service.file_mode,
        };
        document.finish(settings)
    }

    /// Returns the file with a member's part of the group's log and its vote.
    #[must_use]
    pub fn group_log(&self) -> PathBuf {
        self.ledger.with_extension("log")
    }

    /// Returns the file of the audit log.
    #[must_use]
    pub fn audit_log(&self) -> PathBuf {
        self.ledger.with_extension("audit")
    }

    /// Returns the permissions of slice files; `None` if they are not octal.
    #[must_use]
    pub fn mode(&self) -> Option<u32> {
        u32::from_str_radix(&self.file_mode, 8).ok()
    }

    /// Returns the number of slices of all controllers.
    #[must_use]
    pub fn slices(&self) -> Slices {
        self.emcs.iter().map(|emc| Slices(emc.slices)).sum()
    }

    /// Returns the size of the pool.
    #[must_use]
    pub fn capacity(&self) -> Bytes {
        self.slices().bytes(self.slice_size)
    }

    /// Returns the size of the slices that are files.
    #[must_use]
    pub fn in_files(&self) -> Bytes {
        self.emcs.iter().filter(|emc| emc.device.is_none()).map(|emc| Slices(emc.slices).bytes(self.slice_size)).sum()
    }

    /// Returns the configuration of the pool's core.
    #[must_use]
    pub fn pool(&self, hosts: u16) -> pool::Config {
        pool::Config {
            emc_slices: self.emcs.iter().map(|emc| Slices(emc.slices)).collect(),
            hosts,
            buffer_slices: self.buffer_slices,
            answer_within: self.answer_within,
            ask_again_after: self.ask_again_after,
        }
    }

    /// Returns the layout of the slice files.
    #[must_use]
    pub fn layout(&self) -> Layout {
        let devices = self.emcs.iter().map(|emc| emc.device.clone()).collect();
        Layout { directory: self.pool_dir.clone(), slice_bytes: self.slice_size, devices }
    }

    /// Returns the terms of leases.
    #[must_use]
    pub fn terms(&self) -> Terms {
        Terms { lease: self.lease, hosts: self.hosts.clone(), host_slices: self.host_slices }
    }
}

impl Tls {
    /// Reads the table, with its paths resolved; `None` without it.
    #[must_use]
    pub fn of(document: &mut Document) -> Option<Self> {
        document.optional::<Self>().map(|Self { cert, key, client_ca }| Self {
            cert: document.resolve(&cert),
            key: document.resolve(&key),
            client_ca: document.resolve(&client_ca),
        })
    }
}

fn nanoseconds(duration: Duration) -> Ns {
    Ns(units::nanos(duration))
}

/// Reports problems that concern more than one value.
fn check(document: &mut Document, service: &Service, emcs: &[Emc]) {
    let section = document.section(&Service::TABLE);
    let mut report = |name: &str, message: String, remedy: &str| document.report(section.place(name), Invalid::new(message, remedy));
    if !service.slice_size.0.is_power_of_two() {
        report("slice_size", "not a power of two".to_owned(), "write 128MiB, 256MiB, 512MiB or 1GiB");
    }
    if emcs.is_empty() || emcs.len() > EMCS_MAX {
        report("emcs", format!("{} tables", emcs.len()), "write 1 to 64 tables [[emcs]], each with its slices");
    }
    let with_device = emcs.iter().filter(|emc| emc.device.is_some()).count();
    if with_device > 0 && with_device < emcs.len() {
        report(
            "emcs",
            format!("{with_device} of {} have a device: a host could be given slices that it cannot use", emcs.len()),
            "give each a device or none, and run another manager for the others",
        );
    }
    let slices: u64 = emcs.iter().map(|emc| u64::from(emc.slices)).sum();
    if slices > SLICES_MAX {
        report("emcs", format!("{slices} slices in all"), "write at most 65536");
    }
    if slices > 0 && u64::from(service.buffer_slices) >= slices {
        report(
            "buffer_slices",
            format!("{} of {slices} slices would be in reserve", service.buffer_slices),
            "write fewer than the pool has",
        );
    }
    if service.hosts.is_empty() || service.hosts.len() > HOSTS_MAX {
        report("hosts", format!("{} names", service.hosts.len()), "name 1 to 1024 hosts");
    }
    for (key, name) in service.hosts.iter().map(|name| ("hosts", name)).chain(service.operators.iter().map(|name| ("operators", name))) {
        if DnsName::try_from(name.as_str()).is_err() {
            report(key, format!("a certificate cannot contain the name {name:?}"), "use letters, digits, dots and dashes, such as host-a");
        }
    }
    if let Some(both) = service.operators.iter().find(|operator| service.hosts.iter().any(|host| host.eq_ignore_ascii_case(operator))) {
        report("operators", format!("{both:?} is a host, too, which could then act as an operator"), "give the operator another name");
    }
    let mut sorted = service.hosts.clone();
    sorted.sort_unstable();
    sorted.dedup();
    if sorted.len() != service.hosts.len() {
        report("hosts", "a host is named twice".to_owned(), "name each host once");
    }
}

/// Reports problems of a group.
fn check_group(document: &mut Document, group: &Members, service: &Service, emcs: &[Emc]) {
    let section = document.section(&Members::TABLE);
    let mut report = |name: &str, message: String, remedy: &str| document.report(section.place(name), Invalid::new(message, remedy));
    if !matches!(group.members.len(), 3 | 5) {
        report("members", format!("{} members", group.members.len()), "name 3 or 5: one of 3, or two of 5, may fail");
    }
    if group.member as usize > group.members.len() {
        report(
            "member",
            format!("there is no member {} of {}", group.member, group.members.len()),
            "write its number in `members`, from 1",
        );
    }
    for (index, url) in group.members.iter().enumerate() {
        if host_of(url).is_none() {
            report("members", format!("{url:?} is not the URL of a manager"), "write https://HOST:PORT");
        }
        if group.members[..index].contains(url) {
            report("members", format!("{url:?} is there twice"), "name each member once");
        }
        let clients = || service.hosts.iter().chain(&service.operators);
        if let Some(name) = host_of(url).and_then(|host| clients().find(|name| name.eq_ignore_ascii_case(host))) {
            report("members", format!("{name:?} is a host or an operator, too, which could then act as a member"), "give it another name");
        }
    }
    if emcs.iter().any(|emc| emc.device.is_none()) {
        report(
            "members",
            "the pool has slices that are files: they are memory of one machine, and are lost with it".to_owned(),
            "give each of [[emcs]] a device that all members reach, or remove [group]",
        );
    }
}

impl Members {
    /// Returns the URL of a member, by its number.
    #[must_use]
    pub fn url(&self, member: u64) -> Option<&str> {
        let index = usize::try_from(member).ok()?.checked_sub(1)?;
        self.members.get(index).map(String::as_str)
    }
}

/// Returns the host's name in the URL of a manager.
pub(crate) fn host_of(url: &str) -> Option<&str> {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"))?;
    let (host, port) = rest.trim_end_matches('/').rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    (!host.is_empty() && port.parse::<u16>().is_ok()).then_some(host)
}

#[cfg(test)]
mod tests;

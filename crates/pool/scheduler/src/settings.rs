//! The scheduler's configuration file.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use ::settings::{Document, Group, Invalid, ListExample, Problems, Schema, Unit, read_file, unreadable};
use manager::settings::Tls;
use placement::{Shape, Strategy};
use units::{Bytes, Slices};

use crate::event::{Domain, PoolOfHosts, Topology};
use crate::state::{DOMAINS_MAX, POOL_HOSTS_MAX, POOLS_MAX};

::settings::tables! {
    /// The scheduler: its address, its log, and the hosts, which are all alike.
    pub struct Service = "", Always {
        listen: SocketAddr = Unit::Listen, required "0.0.0.0:7445",
            "The address on which operators reach it. Without `[tls]` it must be a loopback address, and the option `--insecure-loopback` is needed.";
        log: PathBuf = Unit::RelativePath, required "/var/lib/thermocline/pool/scheduler.log",
            "The file of its log, which records every decision. It must be on a disk that survives a restart: each event is synced to it before a request is answered.";
        log_size: Bytes = Unit::Bytes, "256MiB" in "1MiB" ..= "64GiB",
            "The size at which a new file is begun. One earlier file is kept, with the extension `1`.";
        operators: Vec<String> = Unit::Texts, "",
            "Who may use it, by the names in their certificates.";
        strategy: String = Unit::Text, "pool_balance",
            "The policy that chooses among the hosts that can hold a VM: first_fit, best_fit, worst_fit, alignment, balance, pool_balance or random. `thermocline pool simulate` compares them.";
        nodes: u32 = Unit::Count, "2" in "1" ..= "4",
            "NUMA nodes (sockets) of a host.";
        node_cores: u32 = Unit::Count, required "24" in "1" ..= "1024",
            "Cores of a NUMA node that VMs may have.";
        node_memory: Bytes = Unit::Bytes, required "384GiB" in "1MiB" ..= "1024TiB",
            "Local memory of a NUMA node that VMs may have.";
        slice_size: Bytes = Unit::Bytes, "1GiB" in "128MiB" ..= "1GiB",
            "The size of a slice, as in the configuration of the pools' managers.";
        identity: PathBuf = Unit::RelativePath, "pool/operator",
            "The scheduler's certificate for the managers, as an operator: the path without its extension of a certificate (`.pem`) and its key (`.key`), with `ca.pem` in the same directory. Read only for a URL of HTTPS.";
    }

    /// Pools, each with the hosts that share it.
    pub struct PoolTable = "pools", List {
        name: String = Unit::Text, required "pool-1",
            "The name of the pool.";
        slices: u32 = Unit::Count, required "1024" in "0" ..= "65536",
            "Slices of the pool that VMs may have, without those that its manager keeps free.";
        manager: Option<String> = Unit::Text, "",
            "The URL of its manager, such as `https://pool-1:7443`, or those of the members of its group, with commas between them. Without it slices are only counted.";
        hosts: Vec<String> = Unit::Texts, required "host-a, host-b",
            "The hosts that share the pool, by their names in the manager's configuration.";
    }

    /// Fault domains: hosts that fail together, such as those of a rack. A host of none fails alone; each pool is a domain as well.
    pub struct DomainTable = "domains", List {
        name: String = Unit::Text, required "rack-1",
            "The name of the domain.";
        hosts: Vec<String> = Unit::Texts, required "host-a, host-b",
            "Its hosts, of any pools. A host is in one domain at most.";
    }
}

/// The scheduler's configuration file.
pub static SCHEMA: Schema = Schema {
    name: "pool-scheduler",
    tables: &[Service::TABLE, PoolTable::TABLE, DomainTable::TABLE, Tls::TABLE],
    lists: &[
        ListExample {
            table: "pools",
            toml: "[[pools]]\nname = \"pool-1\"\nslices = 1024\nmanager = \"https://pool-1:7443\"\nhosts = [\"host-a\", \"host-b\"]\n",
            active: true,
        },
        ListExample { table: "domains", toml: "[[domains]]\nname = \"rack-1\"\nhosts = [\"host-a\", \"host-b\"]\n", active: false },
    ],
    remedy: |_| None,
};

const EXAMPLE_HEAD: &str = "\
# The scheduler of a cluster with pools: thermocline pool scheduler --config /etc/thermocline/pool-scheduler.toml
# Relative paths start at the directory of this file. Check with: thermocline config check --as pool-scheduler FILE
";

const REFERENCE_HEAD: &str = "\
# Settings of the scheduler

<!-- Generated from crates/pool/scheduler/src/settings.rs: UPDATE_DOCS=1 cargo test -p thermocline-scheduler --test generated -->

The scheduler reads one file: `thermocline pool scheduler --config FILE`. See [the scheduler](../pool-scheduler.md).

    thermocline config check --as pool-scheduler FILE

reports all problems together, each with its line and remedy.
";

/// Returns the example file, `deploy/pool-scheduler.toml`.
#[must_use]
pub fn example() -> String {
    ::settings::example(&SCHEMA, EXAMPLE_HEAD)
}

/// Returns the reference page, `docs/reference/pool-scheduler.md`.
#[must_use]
pub fn reference() -> String {
    ::settings::reference(&SCHEMA, REFERENCE_HEAD, "")
}

/// A scheduler's configuration. Paths are resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The address on which it listens.
    pub listen: SocketAddr,
    /// Certificates; `None` only for a loopback address.
    pub tls: Option<Tls>,
    /// The file of its log.
    pub log: PathBuf,
    /// The size at which a new log is begun.
    pub log_size: Bytes,
    /// Who may use it, by the names in their certificates.
    pub operators: Vec<String>,
    /// Hosts, pools and the policy.
    pub topology: Topology,
    /// The URL of each pool's manager, if it has one, by the pool's name.
    pub managers: Vec<(String, Option<String>)>,
    /// The scheduler's certificate for the managers: the path without its extension.
    pub identity: PathBuf,
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
        let pools: Vec<PoolTable> = document.list(PoolTable::TABLE.name).map(PoolTable::read).collect();
        let domains: Vec<DomainTable> = document.list(DomainTable::TABLE.name).map(DomainTable::read).collect();
        check(&mut document, &service, &pools);
        check_domains(&mut document, &pools, &domains);
        let tls = Tls::of(&mut document);
        let settings = Self {
            listen: service.listen,
            tls,
            log: document.resolve(&service.log),
            log_size: service.log_size,
            identity: document.resolve(&service.identity),
            managers: pools.iter().map(|pool| (pool.name.clone(), pool.manager.clone())).collect(),
            topology: topology(&service, pools, domains),
            operators: service.operators,
        };
        document.finish(settings)
    }
}

fn topology(service: &Service, pools: Vec<PoolTable>, domains: Vec<DomainTable>) -> Topology {
    let mib = service.node_memory.0 >> 20;
    Topology {
        shape: Shape {
            nodes: u8::try_from(service.nodes).unwrap_or(u8::MAX),
            node_cores: service.node_cores,
            node_mib: u32::try_from(mib).unwrap_or(u32::MAX),
        },
        slice_bytes: service.slice_size,
        strategy: service.strategy.parse().unwrap_or(Strategy::PoolBalance),
        pools: pools
            .into_iter()
            .map(|PoolTable { name, slices, manager, hosts }| PoolOfHosts {
                name,
                slices: Slices(slices),
                managed: manager.is_some(),
                hosts,
            })
            .collect(),
        domains: domains.into_iter().map(|DomainTable { name, hosts }| Domain { name, hosts }).collect(),
    }
}

/// Reports problems that concern more than one value.
fn check(document: &mut Document, service: &Service, pools: &[PoolTable]) {
    let section = document.section(&Service::TABLE);
    let mut report = |name: &str, message: String, remedy: &str| document.report(section.place(name), Invalid::new(message, remedy));
    if let Err(error) = service.strategy.parse::<Strategy>() {
        report("strategy", error.to_string(), "write pool_balance");
    }
    if !service.slice_size.0.is_power_of_two() {
        report("slice_size", "not a power of two".to_owned(), "write 128MiB, 256MiB, 512MiB or 1GiB");
    }
    if pools.is_empty() || pools.len() > POOLS_MAX {
        report("pools", format!("{} tables", pools.len()), "write 1 to 256 tables [[pools]], each with its hosts");
    }
    let mut hosts = Vec::new();
    for pool in pools {
        if pool.hosts.is_empty() || pool.hosts.len() > POOL_HOSTS_MAX {
            report("pools", format!("{} has {} hosts", pool.name, pool.hosts.len()), "name 1 to 1024 hosts in each");
        }
        let invalid = |url: &&str| !url.trim().starts_with("https://") && !url.trim().starts_with("http://");
        if let Some(url) = pool.manager.iter().flat_map(|urls| urls.split(',')).find(invalid) {
            report("pools", format!("{}: {url:?} is not the URL of a manager", pool.name), "write https://HOST:PORT");
        }
        hosts.extend(&pool.hosts);
    }
    let mut names: Vec<&String> = pools.iter().map(|pool| &pool.name).collect();
    for (list, what) in [(&mut names, "pool"), (&mut hosts, "host")] {
        list.sort_unstable();
        if let Some(twice) = list.windows(2).find(|pair| pair[0] == pair[1]) {
            report("pools", format!("the {what} {} is named twice", twice[0]), "name each once");
        }
    }
}

/// Reports problems of fault domains.
fn check_domains(document: &mut Document, pools: &[PoolTable], domains: &[DomainTable]) {
    let section = document.section(&Service::TABLE);
    let mut report = |message: String, remedy: &str| document.report(section.place("domains"), Invalid::new(message, remedy));
    if domains.len() > DOMAINS_MAX {
        report(format!("{} tables", domains.len()), "a domain has a host, and a cluster at most 262144 hosts");
    }
    let known: BTreeSet<&String> = pools.iter().flat_map(|pool| &pool.hosts).collect();
    let (mut names, mut hosts) = (BTreeSet::new(), BTreeSet::new());
    for DomainTable { name, hosts: of_domain } in domains {
        if name.is_empty() || !names.insert(name) {
            report(format!("the domain {name:?} is named twice, or has no name"), "give each table [[domains]] a name of its own");
        }
        for host in of_domain {
            if !known.contains(host) {
                report(format!("{name} has the host {host}, which is in no pool"), "name hosts of tables [[pools]]");
            } else if !hosts.insert(host) {
                report(format!("the host {host} is in two domains"), "name it in one of them, once");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        listen = "127.0.0.1:7445"
        log = "scheduler.log"
        node_cores = 24
        node_memory = "384GiB"
        [[pools]]
        name = "p"
        slices = 8
        hosts = ["a", "b"]
    "#;

    #[test]
    fn defaults_apply_and_relative_paths_start_at_the_directory_of_the_file() {
        let settings = Settings::parse(Path::new("/etc/t/scheduler.toml"), GOOD).unwrap();
        assert_eq!(settings.log, Path::new("/etc/t/scheduler.log"));
        let Topology { shape, slice_bytes, strategy, pools, domains } = settings.topology;
        assert_eq!((shape.mib(), shape.cores(), slice_bytes, strategy), (768 << 10, 48, Bytes::gib(1), Strategy::PoolBalance));
        assert!(domains.is_empty());
        assert_eq!((pools.len(), pools[0].managed, pools[0].slices), (1, false, Slices(8)));
    }

    #[test]
    fn all_problems_are_reported_together() {
        let bad = GOOD.replace("\"b\"", "\"a\"").replace("slices = 8", "slices = 8\nmanager = \"pool-1\"");
        let bad = format!("strategy = \"best\"\nslice_size = \"200MiB\"\n{bad}[[pools]]\nname = \"p\"\nslices = 1\nhosts = []\n");
        let problems = Settings::parse(Path::new("s.toml"), &bad).unwrap_err().to_string();
        for piece in
            ["unknown placement policy", "power of two", "host a is named twice", "pool p is named twice", "0 hosts", "not the URL"]
        {
            assert!(problems.contains(piece), "{problems} lacks {piece}");
        }
    }

    #[test]
    fn a_host_is_in_one_domain_and_in_a_pool() {
        let with = |domains: &str| Settings::parse(Path::new("s.toml"), &format!("{GOOD}\n{domains}"));
        let good = with("[[domains]]\nname = \"r\"\nhosts = [\"b\"]\n").unwrap().topology.domains;
        assert_eq!(good, [Domain { name: "r".to_owned(), hosts: vec!["b".to_owned()] }]);
        let bad = "[[domains]]\nname = \"r\"\nhosts = [\"b\", \"z\"]\n[[domains]]\nname = \"r\"\nhosts = [\"b\"]\n";
        let problems = with(bad).unwrap_err().to_string();
        for piece in ["\"r\" is named twice", "host b is in two domains", "host z, which is in no pool"] {
            assert!(problems.contains(piece), "{problems} lacks {piece}");
        }
    }
}

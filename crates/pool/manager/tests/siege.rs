//! As many hosts as a pool may have keep their leases while thousands of clients without a certificate connect.
//!
//! `make test-manager-siege` runs it; the result is written to the file that `SIEGE_RESULT` names.
#![allow(clippy::unwrap_used, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use manager::api::Lease;
use manager::certificates::{self, Plan};
use manager::client::{Client, Identity};
use manager::service::{self, Manager};
use manager::settings::Settings;
use tokio::net::{TcpSocket, TcpStream};

const HOSTS: usize = 1024;
const ANONYMOUS: u64 = 10_000;
/// Connections that the attackers keep open, and the threads that open them.
const KEPT: usize = 1500;
const ATTACKERS: u8 = 3;
const RENEWERS: usize = 8;
const LEASE: Duration = Duration::from_secs(15);

fn name(host: usize) -> String {
    format!("host-{host}")
}

fn start(directory: &Path) -> Manager {
    let hosts: Vec<_> = (0..HOSTS).map(|host| format!("\"{}\"", name(host))).collect();
    let text = format!(
        "listen = \"127.0.0.1:0\"\nledger = \"ledger.redb\"\npool_dir = \"pool\"\nslice_size = \"128MiB\"\nlease = \"{}s\"\n\
         emcs = [{{ slices = 2 }}]\nhosts = [{}]\noperators = [\"op\"]\n\
         [tls]\ncert = \"certs/manager.pem\"\nkey = \"certs/manager.key\"\nclient_ca = \"certs/ca.pem\"\n",
        LEASE.as_secs(),
        hosts.join(", ")
    );
    service::start(&Settings::parse(&directory.join("pool.toml"), &text).unwrap(), false).unwrap()
}

/// A host: its client keeps one connection.
struct Host {
    name: String,
    client: Client,
    lease: Lease,
}

impl Host {
    fn new(manager: &Manager, certificates: &Path, host: usize) -> Self {
        let name = name(host);
        let url = format!("https://localhost:{}", manager.address.port());
        let client = Client::new(&url, Some(&Identity::at(&certificates.join(&name))), LEASE).unwrap();
        let lease = client.lease(&name, "start").unwrap();
        Self { name, client, lease }
    }
}

/// What the hosts met.
#[derive(Default)]
struct Met {
    renewals: AtomicU64,
    failures: AtomicU64,
    worst_ms: AtomicU64,
    anonymous: AtomicU64,
    done: AtomicBool,
}

/// Renews the leases of some hosts, one after the other, each about three times in its term.
fn renew(hosts: &[Host], met: &Met) {
    while !met.done.load(Ordering::Relaxed) {
        let round = Instant::now();
        for host in hosts {
            let begun = Instant::now();
            let kept = host.client.renew(&host.name, host.lease.epoch).is_ok();
            let took = u64::try_from(begun.elapsed().as_millis()).unwrap();
            met.worst_ms.fetch_max(took, Ordering::Relaxed);
            met.renewals.fetch_add(1, Ordering::Relaxed);
            met.failures.fetch_add(u64::from(!kept), Ordering::Relaxed);
        }
        std::thread::sleep((LEASE / 3).saturating_sub(round.elapsed()));
    }
}

/// Opens connections from an address of its own, and sends nothing.
fn attack(to: SocketAddr, from: Ipv4Addr, met: &Met) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut kept = VecDeque::new();
        while met.anonymous.fetch_add(1, Ordering::Relaxed) < ANONYMOUS {
            kept.extend(connect(to, from).await);
            if kept.len() > KEPT {
                kept.pop_front();
            }
        }
    });
}

async fn connect(to: SocketAddr, from: Ipv4Addr) -> Option<TcpStream> {
    let socket = TcpSocket::new_v4().ok()?;
    socket.bind((from, 0).into()).ok()?;
    socket.connect(to).await.ok()
}

#[test]
#[ignore = "a minute: make test-manager-siege"]
fn hosts_keep_their_leases_under_siege() {
    let directory = tempfile::tempdir().unwrap();
    let certs = directory.path().join("certs");
    let plan = Plan {
        servers: vec!["localhost".to_owned(), "127.0.0.1".to_owned()],
        hosts: (0..HOSTS).map(name).collect(),
        operators: vec!["op".to_owned()],
        members: Vec::new(),
        days: 2,
    };
    certificates::create(&certs, &plan).unwrap();
    let manager = start(directory.path());
    let hosts: Vec<_> = (0..HOSTS).map(|host| Host::new(&manager, &certs, host)).collect();
    let met = Met::default();
    std::thread::scope(|scope| {
        let renewers: Vec<_> = hosts.chunks(HOSTS.div_ceil(RENEWERS)).map(|hosts| scope.spawn(|| renew(hosts, &met))).collect();
        // A term without an attack, then the attack, then another term.
        std::thread::sleep(LEASE);
        let attackers: Vec<_> = (2..2 + ATTACKERS)
            .map(|last| {
                scope.spawn({
                    let (met, to) = (&met, manager.address);
                    move || attack(to, Ipv4Addr::new(127, 0, 0, last), met)
                })
            })
            .collect();
        attackers.into_iter().for_each(|attacker| attacker.join().unwrap());
        std::thread::sleep(LEASE);
        met.done.store(true, Ordering::Relaxed);
        renewers.into_iter().for_each(|renewer| renewer.join().unwrap());
    });
    let count = |number: &AtomicU64| number.load(Ordering::Relaxed);
    let result = format!(
        "{{\"hosts\": {HOSTS}, \"anonymous_connections\": {ANONYMOUS}, \"renewals\": {}, \"leases_lost\": {}, \"worst_renewal_ms\": {}}}\n",
        count(&met.renewals),
        count(&met.failures),
        count(&met.worst_ms)
    );
    if let Some(path) = std::env::var_os("SIEGE_RESULT") {
        std::fs::write(path, &result).unwrap();
    }
    assert_eq!(count(&met.failures), 0, "{result}");
}

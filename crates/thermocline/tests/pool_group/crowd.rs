//! Hosts that only keep their leases, each over a connection of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use manager::client::Client;

use super::group::{Group, LEASE, PATIENCE};

/// Requests at a time. The leader puts those that wait into one entry of its log.
const THREADS: usize = 32;

pub(crate) fn name(host: usize) -> String {
    format!("host-{host}")
}

/// What the hosts met.
#[derive(Default)]
pub(crate) struct Met {
    stop: AtomicBool,
    pub(crate) renewals: AtomicU64,
    /// Renewals that failed: the lease was lost, or no member answered in time.
    pub(crate) failed: AtomicU64,
}

/// Hosts with their threads.
pub(crate) struct Crowd {
    pub(crate) met: Arc<Met>,
    renewers: Vec<JoinHandle<()>>,
}

impl Crowd {
    /// Gives each host of a group a lease, and renews it from now on.
    pub(crate) fn start(group: &Group) -> Self {
        let met = Arc::new(Met::default());
        let hosts: Vec<_> = (0..group.crowd).map(|host| (name(host), group.client(PATIENCE))).collect();
        let shares = hosts.chunks(hosts.len().div_ceil(THREADS).max(1)).map(<[_]>::to_vec);
        let renewers = shares.map(|hosts| {
            thread::spawn({
                let met = Arc::clone(&met);
                move || renew(&hosts, &met)
            })
        });
        Self { renewers: renewers.collect(), met }
    }

    /// Returns the renewals, and those that failed.
    pub(crate) fn stop(self) -> (u64, u64) {
        self.met.stop.store(true, Ordering::Relaxed);
        self.renewers.into_iter().for_each(|renewer| renewer.join().unwrap());
        (self.met.renewals.load(Ordering::Relaxed), self.met.failed.load(Ordering::Relaxed))
    }
}

/// Renews the leases of some hosts, one after the other, each about three times in its term.
fn renew(hosts: &[(String, Client)], met: &Met) {
    let leases: Vec<_> = hosts.iter().map(|(name, client)| client.lease(name, "crowd").unwrap().epoch).collect();
    while !met.stop.load(Ordering::Relaxed) {
        let round = Instant::now();
        for ((name, client), epoch) in hosts.iter().zip(&leases) {
            met.renewals.fetch_add(1, Ordering::Relaxed);
            if let Err(error) = client.renew(name, *epoch) {
                met.failed.fetch_add(1, Ordering::Relaxed);
                eprintln!("{name}: {error}");
            }
        }
        while round.elapsed() < LEASE / 3 && !met.stop.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(50));
        }
    }
}

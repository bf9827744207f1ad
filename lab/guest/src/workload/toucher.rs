//! The loop that accesses memory: a single thread, so that accesses are ordered and periods are kept.

use std::collections::HashMap;
use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use fastrand::Rng;

use crate::content;
use crate::linux::child;
use crate::linux::clock::monotonic_ns;
use crate::linux::signals::Signals;
use crate::zipf::ZipfPages;

use super::poisson::Arrivals;
use super::record::Record;
use super::region::Region;
use super::schedule::{Schedule, Task};
use super::server::Server;
use super::spec::{Kind, Pattern, Zipf};

/// The process's role.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Role {
    /// The workload itself accesses everything except shared memory. It reports phase changes, and monitors the child
    /// that accesses shared memory, if there is one.
    Parent { child: Option<i32> },
    /// Its child accesses only shared memory.
    Child,
}

/// The accesses of one process.
pub(super) struct Toucher<'a> {
    role: Role,
    regions: &'a [Region],
    record: &'a Record,
    rng: Rng,
    seed: u64,
    /// Distributions in use, by region and exponent.
    zipf: HashMap<(usize, u64), ZipfPages>,
    /// Arrivals in use, by region, with the number of their phase.
    arrivals: HashMap<usize, (u64, Arrivals)>,
    /// The highest phase number that was reported.
    phase_reported: u64,
}

impl<'a> Toucher<'a> {
    pub(super) fn new(role: Role, regions: &'a [Region], record: &'a Record, seed: u64) -> Self {
        let rng = content::seeded(&[seed, u64::from(role == Role::Child)]);
        Self { role, regions, record, rng, seed, zipf: HashMap::new(), arrivals: HashMap::new(), phase_reported: 0 }
    }

    fn is_mine(&self, region: usize) -> bool {
        (self.regions[region].spec.kind == Kind::Shared) == (self.role == Role::Child)
    }

    /// Accesses memory, and serves requests if there is a server, until a signal arrives. `SIGUSR1` starts the next
    /// phase.
    ///
    /// # Errors
    /// The child has exited, or standard output is closed.
    pub(super) fn run(&mut self, signals: &Signals, mut server: Option<Server<'_>>) -> Result<()> {
        let patterns = self.regions.iter().map(|region| match &region.spec.pattern {
            // Of regions that another process accesses, only the phase changes matter here.
            pattern if self.is_mine(region.index) || matches!(pattern, Pattern::Phases(_)) => pattern.clone(),
            _ => Pattern::Never(true),
        });
        let mut schedule = Schedule::new(patterns.collect::<Vec<_>>(), monotonic_ns());
        loop {
            let due = [schedule.next_ns(), server.as_ref().map(Server::next_ns)].into_iter().flatten().min();
            let left = due.map(|next| Duration::from_nanos(next.saturating_sub(monotonic_ns())));
            match signals.take(left) {
                Some(libc::SIGUSR1) => {
                    for task in schedule.jump(monotonic_ns()) {
                        self.perform(&task)?;
                    }
                    if let Role::Parent { child: Some(child) } = self.role {
                        child::kill(child, libc::SIGUSR1).context("cannot signal the child that accesses shared memory")?;
                    }
                }
                Some(libc::SIGCHLD) => {
                    if let Role::Parent { child: Some(child) } = self.role
                        && let Some(exit) = child::reap(child)
                    {
                        bail!("the child that accesses shared memory exited: {exit:?}");
                    }
                }
                Some(_) => return server.map_or(Ok(()), |server| server.finish()),
                None => {}
            }
            if let Some(task) = schedule.pop(monotonic_ns()) {
                self.perform(&task)?;
            }
            if let Some(server) = &mut server {
                server.turn(self.record)?;
            }
        }
    }

    fn perform(&mut self, task: &Task) -> Result<()> {
        match *task {
            Task::Sweep { region, missed } if self.is_mine(region) => self.regions[region].sweep(self.record, missed),
            Task::Random { region, touches, zipf } if self.is_mine(region) => self.touch_random(region, touches, zipf),
            Task::Arrivals { region, phase, began_ns, ref poisson } if self.is_mine(region) => {
                let place = &self.regions[region];
                let start = || (phase, Arrivals::new(poisson, place.pages(), began_ns, content::seeded(&[self.seed, region as u64])));
                let arrivals = self.arrivals.entry(region).or_insert_with(start);
                if arrivals.0 != phase {
                    *arrivals = start();
                }
                let now_ns = monotonic_ns();
                while let Some(page) = arrivals.1.next_until(now_ns) {
                    // Regions with random accesses have units of one page.
                    place.access_at(self.record, page, now_ns);
                }
            }
            Task::Phase { number, .. } if self.role != Role::Child && number > self.phase_reported => {
                self.phase_reported = number;
                let mut out = std::io::stdout().lock();
                writeln!(out, "phase {number}").and_then(|()| out.flush()).context("cannot write to standard output")?;
            }
            _ => {}
        }
        Ok(())
    }

    fn touch_random(&mut self, region: usize, touches: u64, Zipf { exponent, .. }: Zipf) {
        let place = &self.regions[region];
        let rng = &mut self.rng;
        let pages = self.zipf.entry((region, exponent.to_bits())).or_insert_with(|| ZipfPages::new(place.pages(), exponent, rng));
        for _ in 0..touches {
            // Regions with random accesses have units of one page.
            place.access(self.record, pages.draw(rng));
        }
    }
}

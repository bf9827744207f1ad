//! Requests served by a workload: each reads pages, computes, and is timed.

use std::hint::black_box;
use std::time::Duration;

use anyhow::Result;
use fastrand::Rng;
use serde_json::{Value, json};

use crate::content;
use crate::latencies::{Latencies, fields, print_line};
use crate::linux::clock::monotonic_ns;
use crate::linux::faults;
use crate::rounding::floor;
use crate::zipf::ZipfPages;

use super::record::Record;
use super::region::Region;
use super::spec::{Pattern, Requests, ServerSpec};

const SECOND_NS: u64 = 1_000_000_000;

/// One region that requests read.
struct Place<'a> {
    region: &'a Region,
    pages: u32,
    popularity: ZipfPages,
}

/// The server's state.
pub(super) struct Server<'a> {
    spec: ServerSpec,
    places: Vec<Place<'a>>,
    rng: Rng,
    start_ns: u64,
    served: u64,
    seconds: u64,
    latencies: Latencies,
    /// Time spent on reading pages, in this second and before it; far memory can increase it.
    access_ns: u64,
    access_before_ns: u64,
    /// Of the time in this second, that of accesses during which the thread had a page fault.
    faulted_ns: u64,
}

impl<'a> Server<'a> {
    /// Returns a server whose first request is due now.
    ///
    /// # Errors
    /// Those of [`Latencies::new`].
    pub(super) fn new(spec: ServerSpec, regions: &'a [Region], record: &Record, seed: u64) -> Result<Self> {
        let mut rng = content::seeded(&[seed, u64::MAX]);
        let mut places = Vec::new();
        for region in regions {
            if let Pattern::Requests(Requests { exponent, pages }) = region.spec.pattern {
                places.push(Place { region, pages, popularity: ZipfPages::new(region.pages(), exponent, &mut rng) });
            }
        }
        // Requests also read these tables. They are locked, or their page faults would be attributed to the regions;
        // where locking is not allowed, the workload runs without it.
        let _ = record.lock();
        for place in &places {
            let _ = place.popularity.lock();
        }
        let (start_ns, latencies) = (monotonic_ns(), Latencies::new()?);
        Ok(Self { spec, places, rng, start_ns, served: 0, seconds: 0, latencies, access_ns: 0, access_before_ns: 0, faulted_ns: 0 })
    }

    /// Returns when [`Server::turn`] has something to do, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(super) fn next_ns(&self) -> u64 {
        self.request_due_ns().min(self.start_ns + (self.seconds + 1) * SECOND_NS)
    }

    /// Returns when the next request is due. Latency is measured from then, so that a stall counts for every delayed
    /// request.
    fn request_due_ns(&self) -> u64 {
        self.spec.rate.map_or(0, |rate| self.start_ns + floor(self.served as f64 / rate * 1e9))
    }

    /// Serves a request if one is due, and prints a line for each second that has passed.
    ///
    /// # Errors
    /// Standard output is closed.
    pub(super) fn turn(&mut self, record: &Record) -> Result<()> {
        let (due_ns, begin_ns) = (self.request_due_ns(), monotonic_ns());
        if due_ns <= begin_ns {
            self.read(record);
            let read_ns = monotonic_ns();
            compute(self.spec.rounds, self.served);
            let since_ns = if due_ns == 0 { begin_ns } else { due_ns };
            self.latencies.record(Duration::from_nanos(monotonic_ns() - since_ns));
            self.access_ns += read_ns - begin_ns;
            self.served += 1;
        }
        while monotonic_ns() >= self.start_ns + (self.seconds + 1) * SECOND_NS {
            self.seconds += 1;
            let mut line = self.latencies.second(self.seconds);
            let faulted_ns = std::mem::take(&mut self.faulted_ns);
            line.extend(fields([("access_us", json!(self.access_ns / 1000)), ("faulted_us", json!(faulted_ns / 1000))]));
            self.access_before_ns += std::mem::take(&mut self.access_ns);
            print_line(&Value::from(line))?;
        }
        Ok(())
    }

    /// Prints the summary of all requests.
    ///
    /// # Errors
    /// Standard output is closed.
    pub(super) fn finish(&self) -> Result<()> {
        let elapsed = Duration::from_nanos(monotonic_ns() - self.start_ns);
        let mut summary = self.latencies.summary(elapsed);
        let access = Duration::from_nanos(self.access_before_ns + self.access_ns);
        summary.extend(fields([("access_share", json!(access.as_secs_f64() / elapsed.as_secs_f64().max(1e-9)))]));
        print_line(&Value::from(summary))
    }

    fn read(&mut self, record: &Record) {
        let mut faults_before = faults::of_this_thread();
        for place in &self.places {
            for _ in 0..place.pages {
                // Regions with requests have one page per unit.
                let unit = place.popularity.draw(&mut self.rng);
                let begin_ns = monotonic_ns();
                place.region.access_at(record, unit, begin_ns);
                let taken_ns = monotonic_ns() - begin_ns;
                let faults_after = faults::of_this_thread();
                if faults_after != faults_before {
                    self.faulted_ns += taken_ns;
                    faults_before = faults_after;
                }
            }
        }
    }
}

/// Computes for a number of rounds: the part of a request that does not access memory.
pub(crate) fn compute(rounds: u64, seed: u64) {
    let mut state = seed | 1;
    for _ in 0..rounds {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    black_box(state);
}

//! A memory-bound server: every request opens a session that holds memory until it expires, and when its cgroup runs
//! out of memory the server accepts fewer requests. This models web servers that accumulate state as requests arrive
//! (TMO section 4.2); memory that far memory frees allows them to serve more requests.

use std::collections::VecDeque;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use serde_json::{Value, json};

use crate::content::{self, Content};
use crate::latencies::{Latencies, fields, print_line};
use crate::linux::mapping::{Advice, Mapping, page_bytes};
use crate::linux::signals::Signals;
use crate::rounding::floor;
use crate::workload::compute;

const SECOND: Duration = Duration::from_secs(1);
/// Interval at which the server checks its memory and admits requests.
const TICK: Duration = Duration::from_millis(20);
/// Minimum share of admitted requests of a server with a reserve.
const ADMITTED_MIN: f64 = 0.02;

/// Parameters of the server and its requests.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Requests offered per second
    #[arg(long)]
    rate: f64,
    /// Memory that each session holds
    #[arg(long, value_name = "KIB", default_value_t = 64)]
    kib: usize,
    /// Lifetime of a session
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    keep: f64,
    /// Number of earlier sessions that a request reads, with a bias to recent ones
    #[arg(long, default_value_t = 2)]
    revisits: u32,
    /// Rounds of computation per request
    #[arg(long, default_value_t = 10_000)]
    rounds: u64,
    /// Content of sessions
    #[arg(long, value_enum, default_value_t = Content::Text)]
    content: Content,
    /// Free memory below the cgroup's limit at which the server starts to accept fewer requests, in proportion; with 0 it
    /// accepts all requests until a session no longer fits
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(0..=1 << 20))]
    reserve_mib: u64,
    /// Run time
    #[arg(long)]
    seconds: f64,
}

/// Serves requests; prints one line per second and a summary at the end.
///
/// # Errors
/// Arguments are out of range, or the cgroup has no memory limit.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let Arguments { rate, keep, kib, seconds, .. } = *arguments;
    ensure!((0.1..=1e5).contains(&rate), "--rate is {rate}; 0.1 to 100000 are allowed");
    ensure!((0.1..=1e5).contains(&keep), "--keep is {keep}; 0.1 to 100000 are allowed");
    ensure!((0.1..=1e6).contains(&seconds), "--seconds is {seconds}; 0.1 to 1000000 are allowed");
    ensure!((4..=1 << 20).contains(&kib), "--kib is {kib}; 4 to 1048576 are allowed");
    let signals = Signals::block(&[libc::SIGTERM, libc::SIGINT]).context("cannot block signals")?;
    let headroom = Headroom::find()?;
    let mut server = Server::new(arguments)?;
    let start = Instant::now();
    let mut credit = Credit { rate, since: start, requests: 0.0 };
    let (mut reported, mut refused) = (0, 0.0);
    while start.elapsed().as_secs_f64() < seconds && signals.take(Some(TICK)).is_none() {
        server.expire(Instant::now());
        let share = admitted(headroom.bytes()?, arguments.reserve_mib << 20, (kib as u64) << 10);
        refused += credit.earn(Instant::now(), share);
        while credit.requests >= 1.0 {
            credit.requests -= 1.0;
            server.serve();
        }
        while start.elapsed() >= SECOND * (reported + 1) {
            reported += 1;
            let mut line = server.latencies.second(reported.into());
            let memory = json!(headroom.current()?);
            line.extend(fields([("refused", json!(floor(refused))), ("live", json!(server.live.len())), ("memory_bytes", memory)]));
            refused = 0.0;
            print_line(&Value::from(line))?;
        }
    }
    print_line(&Value::from(server.latencies.summary(start.elapsed())))
}

/// Returns the share of requests that a server with this much free memory admits.
fn admitted(free_bytes: u64, reserve_bytes: u64, session_bytes: u64) -> f64 {
    match reserve_bytes {
        0 => f64::from(free_bytes >= session_bytes),
        reserve => (free_bytes as f64 / reserve as f64).clamp(ADMITTED_MIN, 1.0),
    }
}

/// Admitted requests that were not served yet.
struct Credit {
    /// Offered requests per second.
    rate: f64,
    since: Instant,
    requests: f64,
}

impl Credit {
    /// Admits this share of the requests offered since the last call; returns the number of refused requests.
    fn earn(&mut self, now: Instant, share: f64) -> f64 {
        let offered = now.duration_since(self.since).as_secs_f64() * self.rate;
        self.since = now;
        self.requests += offered * share;
        // Clients do not wait: requests that are not served within a second are lost.
        let lost = (self.requests - self.rate).max(0.0);
        self.requests -= lost;
        offered * (1.0 - share) + lost
    }
}

/// Memory left below the limit of this process's cgroup.
struct Headroom {
    current: PathBuf,
    limit_bytes: u64,
}

impl Headroom {
    fn find() -> Result<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").context("cannot read /proc/self/cgroup")?;
        let path = own.lines().find_map(|line| line.strip_prefix("0::/")).context("/proc/self/cgroup names no cgroup v2")?;
        let directory = PathBuf::from("/sys/fs/cgroup").join(path);
        let limit = directory.join("memory.max");
        let text = fs::read_to_string(&limit).with_context(|| format!("cannot read {}", limit.display()))?;
        let context = || format!("{} is {:?}; set a limit in bytes", limit.display(), text.trim());
        let limit_bytes = text.trim().parse().with_context(context)?;
        Ok(Self { current: directory.join("memory.current"), limit_bytes })
    }

    fn current(&self) -> Result<u64> {
        let context = || format!("cannot read {}", self.current.display());
        let text = fs::read_to_string(&self.current).with_context(context)?;
        text.trim().parse().with_context(context)
    }

    fn bytes(&self) -> Result<u64> {
        Ok(self.limit_bytes.saturating_sub(self.current()?))
    }
}

/// Sessions in slots of one mapping.
struct Server<'a> {
    arguments: &'a Arguments,
    memory: Mapping,
    slot_pages: usize,
    /// Unused slots.
    free: Vec<usize>,
    /// Used slots and their expiry times, oldest first.
    live: VecDeque<(usize, Instant)>,
    rng: Rng,
    served: u64,
    text: Vec<u8>,
    latencies: Latencies,
}

impl<'a> Server<'a> {
    fn new(arguments: &'a Arguments) -> Result<Self> {
        let slot_pages = (arguments.kib << 10).div_ceil(page_bytes());
        // 10 % more than at the offered rate, because expired sessions are removed only at the next request.
        let slots = usize::try_from(floor(arguments.rate * arguments.keep * 1.1))? + 1;
        let memory = Mapping::anonymous(slots * slot_pages * page_bytes(), 1).context("cannot map memory for the sessions")?;
        // Fails on kernels without transparent huge pages, where it is not needed.
        let _ = memory.advise(Advice::NoHugePage);
        Ok(Self {
            arguments,
            memory,
            slot_pages,
            free: (0..slots).rev().collect(),
            live: VecDeque::new(),
            rng: content::seeded(&[7]),
            served: 0,
            text: Vec::new(),
            latencies: Latencies::new()?,
        })
    }

    /// Removes expired sessions, and the oldest if there is no unused slot.
    fn expire(&mut self, now: Instant) {
        while let Some(&(slot, _)) = self.live.front().filter(|(_, expires)| *expires <= now || self.free.is_empty()) {
            self.live.pop_front();
            self.memory.discard(self.pages(slot));
            self.free.push(slot);
        }
    }

    /// Serves one request: opens a session, reads some others, computes.
    fn serve(&mut self) {
        let begin = Instant::now();
        self.expire(begin);
        if let Some(slot) = self.free.pop() {
            self.text.clear();
            let length = self.slot_pages * page_bytes();
            self.arguments.content.write(&mut self.text, length, self.served, &mut self.rng);
            self.memory.write(slot * length, &self.text);
            self.live.push_back((slot, begin + Duration::from_secs_f64(self.arguments.keep)));
        }
        for _ in 0..self.arguments.revisits {
            let distance = distance_back(self.live.len(), self.rng.f64());
            if let Some(&(slot, _)) = self.live.get(self.live.len().wrapping_sub(distance)) {
                self.memory.touch(self.pages(slot), false);
            }
        }
        compute(self.arguments.rounds, self.served);
        self.served += 1;
        self.latencies.record(begin.elapsed());
    }

    fn pages(&self, slot: usize) -> std::ops::Range<usize> {
        slot * self.slot_pages..(slot + 1) * self.slot_pages
    }
}

/// Returns a distance among `live` sessions, counted back from 1: distance d has a probability proportional to 1/d.
fn distance_back(live: usize, uniform: f64) -> usize {
    let distance = floor((live as f64).powf(uniform));
    usize::try_from(distance).unwrap_or(usize::MAX).clamp(1, live.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_within_the_live_sessions() {
        for (live, uniform, expected) in [(0, 0.5, 1), (1, 0.9, 1), (100, 0.0, 1), (100, 0.5, 10), (100, 0.99, 95), (100, 1.0, 100)] {
            assert_eq!(distance_back(live, uniform), expected, "{live} {uniform}");
        }
    }

    #[test]
    fn a_server_without_a_reserve_admits_all_that_fits() {
        for (free, reserve, expected) in [(127, 0, 0.0), (128, 0, 1.0), (500, 1_000, 0.5), (0, 1_000, ADMITTED_MIN), (2_000, 1_000, 1.0)] {
            let found = admitted(free, reserve, 128);
            assert!((found - expected).abs() < 1e-9, "{free} {reserve}: {found}");
        }
    }

    #[test]
    fn only_admitted_requests_are_earned() {
        let start = Instant::now();
        let mut credit = Credit { rate: 100.0, since: start, requests: 0.0 };
        // Time in ms, admitted share; expected requests to serve, and refused ones.
        for (ms, share, requests, refused) in [(500, 1.0, 50.0, 0.0), (600, 0.5, 55.0, 5.0), (1600, 1.0, 100.0, 55.0)] {
            let got = credit.earn(start + Duration::from_millis(ms), share);
            assert!((credit.requests - requests).abs() < 1e-6 && (got - refused).abs() < 1e-6, "{ms}: {} {got}", credit.requests);
        }
    }
}

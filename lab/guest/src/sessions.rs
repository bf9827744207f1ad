//! A memory-bound server: every request opens a session that holds memory until it expires, and when its cgroup runs
//! out of memory the server takes fewer requests. So do web servers that fill with state as requests arrive (001
//! section 4.2); what far memory takes off a cgroup's charge, they turn into requests.

use std::collections::VecDeque;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use serde_json::{Value, json};

use crate::content::{self, Content};
use crate::latencies::{Latencies, fields, say};
use crate::linux::mapping::{Advice, Mapping, page_bytes};
use crate::linux::signals::Signals;
use crate::rounding::floor;
use crate::workload::compute;

const SECOND: Duration = Duration::from_secs(1);
/// How often the server looks at its memory, and admits requests.
const TICK: Duration = Duration::from_millis(20);
/// Share of the offered requests that is taken however little memory there is, so that sessions keep expiring.
const ADMITTED_MIN: f64 = 0.02;

/// The server and its requests.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Requests offered per second
    #[arg(long)]
    rate: f64,
    /// Memory that each session holds
    #[arg(long, value_name = "KIB", default_value_t = 64)]
    kib: usize,
    /// How long a session lives
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    keep: f64,
    /// Earlier sessions that a request reads: young ones often, old ones rarely
    #[arg(long, default_value_t = 2)]
    revisits: u32,
    /// Rounds of computation per request
    #[arg(long, default_value_t = 10_000)]
    rounds: u64,
    /// What sessions hold
    #[arg(long, value_enum, default_value_t = Content::Text)]
    content: Content,
    /// With less memory than this left below the cgroup's limit, take fewer requests in proportion
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    reserve_mib: u64,
    /// Stop after this time
    #[arg(long)]
    seconds: f64,
}

/// Serves, telling of each second in a line and of all in a last one.
///
/// # Errors
/// When arguments are out of range, or its cgroup has no memory limit.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let Arguments { rate, keep, kib, seconds, .. } = *arguments;
    ensure!((0.1..=1e5).contains(&rate), "--rate is {rate}; 0.1 to 100000 are possible");
    ensure!((0.1..=1e5).contains(&keep), "--keep is {keep}; 0.1 to 100000 are possible");
    ensure!((0.1..=1e6).contains(&seconds), "--seconds is {seconds}; 0.1 to 1000000 are possible");
    ensure!((4..=1 << 20).contains(&kib), "--kib is {kib}; 4 to 1048576 are possible");
    let signals = Signals::block(&[libc::SIGTERM, libc::SIGINT]).context("cannot block signals")?;
    let headroom = Headroom::find()?;
    let mut server = Server::new(arguments)?;
    let start = Instant::now();
    let mut credit = Credit { rate, since: start, requests: 0.0 };
    let (mut told, mut refused) = (0, 0.0);
    while start.elapsed().as_secs_f64() < seconds && signals.take(Some(TICK)).is_none() {
        let share = (headroom.bytes()? as f64 / (arguments.reserve_mib << 20) as f64).clamp(ADMITTED_MIN, 1.0);
        refused += credit.earn(Instant::now(), share);
        while credit.requests >= 1.0 {
            credit.requests -= 1.0;
            server.serve();
        }
        while start.elapsed() >= SECOND * (told + 1) {
            told += 1;
            let mut line = server.latencies.second(told.into());
            let memory = json!(headroom.current()?);
            line.extend(fields([("refused", json!(floor(refused))), ("live", json!(server.live.len())), ("memory_bytes", memory)]));
            refused = 0.0;
            say(&Value::from(line))?;
        }
    }
    say(&Value::from(server.latencies.summary(start.elapsed())))
}

/// Requests that may be served.
struct Credit {
    /// Offered per second.
    rate: f64,
    since: Instant,
    requests: f64,
}

impl Credit {
    /// Admits this share of what was offered since the last call; returns how many requests were refused.
    fn earn(&mut self, now: Instant, share: f64) -> f64 {
        let offered = now.duration_since(self.since).as_secs_f64() * self.rate;
        self.since = now;
        self.requests += offered * share;
        // Clients do not wait: what could not be served within a second is gone.
        let lost = (self.requests - self.rate).max(0.0);
        self.requests -= lost;
        offered * (1.0 - share) + lost
    }
}

/// What is left below the memory limit of this process's cgroup.
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
    /// Slots that hold nothing.
    free: Vec<usize>,
    /// Slots in use and when they expire, the oldest first.
    live: VecDeque<(usize, Instant)>,
    rng: Rng,
    served: u64,
    text: Vec<u8>,
    latencies: Latencies,
}

impl<'a> Server<'a> {
    fn new(arguments: &'a Arguments) -> Result<Self> {
        let slot_pages = (arguments.kib << 10).div_ceil(page_bytes());
        // One in ten more than at the offered rate, as sessions that are due expire only at the next request.
        let slots = usize::try_from(floor(arguments.rate * arguments.keep * 1.1))? + 1;
        let memory = Mapping::anonymous(slots * slot_pages * page_bytes(), 1).context("cannot map memory for the sessions")?;
        // Without transparent huge pages there is nothing to forbid.
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

    /// One request: ends what has expired, opens a session, reads some others, computes.
    fn serve(&mut self) {
        let begin = Instant::now();
        while let Some(&(slot, _)) = self.live.front().filter(|(_, expires)| *expires <= begin || self.free.is_empty()) {
            self.live.pop_front();
            self.memory.discard(self.pages(slot));
            self.free.push(slot);
        }
        if let Some(slot) = self.free.pop() {
            self.text.clear();
            let length = self.slot_pages * page_bytes();
            self.arguments.content.write(&mut self.text, length, self.served, &mut self.rng);
            self.memory.write(slot * length, &self.text);
            self.live.push_back((slot, begin + Duration::from_secs_f64(self.arguments.keep)));
        }
        for _ in 0..self.arguments.revisits {
            let back = back(self.live.len(), self.rng.f64());
            if let Some(&(slot, _)) = self.live.get(self.live.len().wrapping_sub(back)) {
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

/// How far back among `live` sessions a request looks, from 1: distance d comes with a probability in proportion to 1/d.
fn back(live: usize, uniform: f64) -> usize {
    let distance = floor((live as f64).powf(uniform));
    usize::try_from(distance).unwrap_or(usize::MAX).clamp(1, live.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_look_back_within_the_live_sessions() {
        for (live, uniform, expected) in [(0, 0.5, 1), (1, 0.9, 1), (100, 0.0, 1), (100, 0.5, 10), (100, 0.99, 95), (100, 1.0, 100)] {
            assert_eq!(back(live, uniform), expected, "{live} {uniform}");
        }
    }

    #[test]
    fn only_what_is_admitted_is_earned() {
        let start = Instant::now();
        let mut credit = Credit { rate: 100.0, since: start, requests: 0.0 };
        // After so many milliseconds with this share admitted: the requests that may be served, and those refused.
        for (ms, share, requests, refused) in [(500, 1.0, 50.0, 0.0), (600, 0.5, 55.0, 5.0), (1600, 1.0, 100.0, 55.0)] {
            let got = credit.earn(start + Duration::from_millis(ms), share);
            assert!((credit.requests - requests).abs() < 1e-6 && (got - refused).abs() < 1e-6, "{ms}: {} {got}", credit.requests);
        }
    }
}

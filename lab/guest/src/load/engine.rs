//! The loop of a load: keeps requests in flight, paces them and measures their latencies.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::codec::{Codec, Malformed, Reply};
use super::connection::Connection;
use super::report::Report;
use super::requests::{Records, Request, Source};

/// Time limit for a server that sends nothing although requests are in flight.
const SILENCE_MAX: Duration = Duration::from_secs(120);
const SECOND: Duration = Duration::from_secs(1);

/// Rate of requests, and when they stop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Limit of requests in flight.
    pub(super) depth: usize,
    /// Requests per second; `None`: as many as the depth allows.
    pub(super) rate: Option<f64>,
    /// No request is due after this time.
    pub(super) duration: Option<Duration>,
    /// Total number of requests.
    pub(super) requests: Option<u64>,
}

impl Pace {
    /// Returns when request number `index` is due, relative to the start, given the elapsed time; `None` if it is
    /// not sent at all.
    fn due(&self, index: u64, elapsed: Duration) -> Option<Duration> {
        if self.requests.is_some_and(|requests| index >= requests) {
            return None;
        }
        let due = self.rate.map_or(elapsed, |rate| Duration::from_secs_f64(index as f64 / rate));
        self.duration.is_none_or(|duration| due < duration).then_some(due)
    }
}

/// A request without a reply yet.
struct InFlight {
    request: Request,
    /// When it was due. Latency is measured from then and not from when it was sent, so that a stalled server is
    /// charged for the requests that could not be sent.
    since: Instant,
}

/// A running load.
pub(super) struct Engine<'a> {
    pub(super) connection: Connection,
    pub(super) codec: &'a dyn Codec,
    pub(super) records: Records,
    pub(super) source: &'a mut dyn Source,
    pub(super) pace: Pace,
}

/// The next action.
#[derive(Clone, Copy, PartialEq)]
enum Next {
    /// A request is due then, or when the pipeline has a free slot.
    At(Instant),
    Nothing,
}

impl Engine<'_> {
    /// Runs the load to its end and passes one line per second to `print`; returns the summary and the first error.
    ///
    /// # Errors
    /// The connection breaks, the server stops responding or uses another protocol. Refused requests are counted.
    pub(super) fn run(mut self, print: &mut dyn FnMut(&Value) -> Result<()>) -> Result<(Value, Option<String>)> {
        let mut report = Report::new()?;
        let mut in_flight = VecDeque::with_capacity(self.pace.depth);
        let start = Instant::now();
        let (mut issued, mut seconds, mut last_reply) = (0, 0, start);
        loop {
            let next = self.issue(start, &mut issued, &mut in_flight);
            if in_flight.is_empty() && next == Next::Nothing {
                break;
            }
            self.connection.send().context("cannot send to the server")?;
            let now = Instant::now();
            if in_flight.is_empty() {
                last_reply = now;
            } else if now.duration_since(last_reply) > SILENCE_MAX {
                bail!("the server has sent nothing for {} s, with {} requests unanswered", SILENCE_MAX.as_secs(), in_flight.len());
            }
            let mut wake = start + SECOND * u32::try_from(seconds + 1).unwrap_or(u32::MAX);
            if let Next::At(due) = next
                && in_flight.len() < self.pace.depth
            {
                wake = wake.min(due);
            }
            self.connection.wait(wake.saturating_duration_since(now)).context("cannot wait for the server")?;
            if self.connection.receive().context("cannot receive from the server")? {
                last_reply = Instant::now();
                self.account(last_reply, &mut in_flight, &mut report)?;
            }
            while start.elapsed() >= SECOND * u32::try_from(seconds + 1).unwrap_or(u32::MAX) {
                seconds += 1;
                print(&report.second(seconds))?;
            }
        }
        let first_error = report.counts().first_error.clone();
        Ok((report.summary(start.elapsed()), first_error))
    }

    /// Sends every request that is due, while the pipeline has free slots.
    fn issue(&mut self, start: Instant, issued: &mut u64, in_flight: &mut VecDeque<InFlight>) -> Next {
        let mut value = Vec::new();
        let now = Instant::now();
        let elapsed = now.duration_since(start);
        loop {
            let Some(due) = self.pace.due(*issued, elapsed) else { return Next::Nothing };
            let since = start + due;
            if since > now || in_flight.len() >= self.pace.depth {
                return Next::At(since);
            }
            let Some(request) = self.source.next(elapsed) else {
                self.pace.requests = Some(*issued);
                return Next::Nothing;
            };
            match request {
                Request::Get(key) => self.codec.get(self.connection.outgoing(), &Records::key(key)),
                Request::Set(key, revision) => {
                    self.records.write_value(&mut value, key, revision);
                    self.codec.set(self.connection.outgoing(), &Records::key(key), &value);
                }
            }
            *issued += 1;
            in_flight.push_back(InFlight { request, since });
        }
    }

    /// Processes every complete reply that was received.
    fn account(&mut self, now: Instant, in_flight: &mut VecDeque<InFlight>, report: &mut Report) -> Result<()> {
        loop {
            let input = self.connection.incoming();
            if input.is_empty() {
                return Ok(());
            }
            let (length, reply) = match self.codec.reply(input) {
                Ok(Some(reply)) => reply,
                Ok(None) => return Ok(()),
                Err(Malformed(error)) => bail!(error),
            };
            self.connection.take(length);
            let Some(InFlight { request, since }) = in_flight.pop_front() else {
                bail!("the server sent a reply without a request: {reply:?}");
            };
            report.record(now.saturating_duration_since(since));
            let counts = report.counts();
            match (request, reply) {
                (Request::Get(key), Reply::Value(bytes)) if bytes == self.records.value_bytes(key) => counts.hits += 1,
                (Request::Get(_), Reply::Miss) => counts.misses += 1,
                (Request::Set(..), Reply::Stored) => counts.stored += 1,
                (request, reply) => counts.error(|| format!("{request:?} was answered by {reply:?}")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_due_by_pace() {
        let free = Pace { depth: 1, rate: None, duration: None, requests: None };
        let ms = Duration::from_millis;
        for (pace, index, elapsed, expected) in [
            (free, 0, ms(0), Some(ms(0))),
            (free, 9, ms(70), Some(ms(70))),
            (Pace { rate: Some(100.0), ..free }, 9, ms(0), Some(ms(90))),
            (Pace { rate: Some(100.0), ..free }, 9, ms(500), Some(ms(90))),
            (Pace { requests: Some(9), ..free }, 8, ms(1), Some(ms(1))),
            (Pace { requests: Some(9), ..free }, 9, ms(1), None),
            (Pace { duration: Some(ms(100)), ..free }, 5, ms(99), Some(ms(99))),
            (Pace { duration: Some(ms(100)), ..free }, 5, ms(100), None),
            // A late request of a fixed rate is sent nevertheless.
            (Pace { duration: Some(ms(100)), rate: Some(100.0), ..free }, 9, ms(900), Some(ms(90))),
            (Pace { duration: Some(ms(100)), rate: Some(100.0), ..free }, 10, ms(0), None),
        ] {
            assert_eq!(pace.due(index, elapsed), expected, "{pace:?} {index} {elapsed:?}");
        }
    }
}

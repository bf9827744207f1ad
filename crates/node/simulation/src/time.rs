//! The agent's clock. Each reading is a point at which the agent can be killed or frozen, or a cgroup can vanish.

use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use daemon::TimeSource;
use units::UnixMillis;

use crate::machine::Shared;

/// What happens at a reading of the clock, in the middle of a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Midway {
    /// The agent is killed.
    Kill,
    /// The agent is stopped for this long.
    Freeze(Duration),
    /// A cgroup is removed; and made again, if so.
    Vanish(usize, bool),
}

/// The payload with which a killed agent unwinds.
#[derive(Clone, Copy, Debug)]
pub struct Killed;

#[derive(Debug)]
struct Reading {
    now: Duration,
    unix_ms: u64,
    /// Readings until something happens, and what.
    pending: Option<(u32, Midway)>,
}

/// Simulated time.
#[derive(Debug)]
pub struct Time {
    reading: Mutex<Reading>,
    machine: Shared,
}

impl Time {
    /// Time that begins at `now` after boot.
    #[must_use]
    pub fn new(now: Duration, unix_ms: u64, machine: Shared) -> Arc<Self> {
        Arc::new(Self { reading: Mutex::new(Reading { now, unix_ms, pending: None }), machine })
    }

    fn lock(&self) -> MutexGuard<'_, Reading> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time since boot, without an effect of the reading.
    pub fn peek(&self) -> Duration {
        self.lock().now
    }

    /// Lets time go on until `then`, if that is later.
    pub fn advance_to(&self, then: Duration) {
        let mut reading = self.lock();
        let by = then.saturating_sub(reading.now);
        reading.now += by;
        reading.unix_ms += units::millis(by);
    }

    /// Steps the wall clock.
    pub fn step_wall(&self, by_ms: i64) {
        let mut reading = self.lock();
        reading.unix_ms = reading.unix_ms.saturating_add_signed(by_ms);
    }

    /// Has something happen at the reading after `readings` more, in this turn or a later one.
    pub fn arm(&self, readings: u32, what: Midway) {
        self.lock().pending = Some((readings, what));
    }

    /// Cancels what has not happened.
    pub fn disarm(&self) {
        self.lock().pending = None;
    }

    /// Whether something has not happened yet.
    pub fn is_armed(&self) -> bool {
        self.lock().pending.is_some()
    }

    /// Counts a reading, and lets happen what is due.
    fn count(&self) {
        let due = {
            let mut reading = self.lock();
            match reading.pending.take() {
                Some((0, Midway::Freeze(length))) => {
                    reading.now += length;
                    reading.unix_ms += units::millis(length);
                    None
                }
                Some((0, what)) => Some(what),
                Some((left, what)) => {
                    reading.pending = Some((left - 1, what));
                    None
                }
                None => None,
            }
        };
        match due {
            Some(Midway::Kill) => resume_unwind(Box::new(Killed)),
            Some(Midway::Vanish(group, again)) => crate::machine::lock(&self.machine).vanish(group, again),
            Some(Midway::Freeze(_)) | None => {}
        }
    }
}

impl TimeSource for Time {
    fn now(&self) -> Duration {
        self.count();
        self.peek()
    }

    fn unix_ms(&self) -> UnixMillis {
        self.count();
        UnixMillis(self.lock().unix_ms)
    }
}

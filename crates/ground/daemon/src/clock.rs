//! Monotonic and wall-clock time behind one type, so that a test or a simulation can set both.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use units::{Millis, UnixMillis};

/// A source of time. Clones share the source.
///
/// Monotonic time never decreases and is unaffected by changes of the wall clock; intervals and deadlines use it. Unix time
/// dates records and may jump.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    System { origin: Duration, started: Instant },
    Manual(Arc<Mutex<Reading>>),
    Other(Arc<dyn TimeSource>),
}

/// A source of time that a simulation supplies. Each reading is a point at which the simulated machine may change.
pub trait TimeSource: std::fmt::Debug + Send + Sync {
    /// Monotonic time.
    fn now(&self) -> Duration;

    /// The time by the wall clock.
    fn unix_ms(&self) -> UnixMillis;
}

/// What a manual clock shows.
#[derive(Clone, Copy, Debug)]
struct Reading {
    now: Duration,
    unix_ms: UnixMillis,
}

impl Clock {
    /// The system's clock. Monotonic time starts at `origin`: the machine's uptime makes it the time since boot.
    #[must_use]
    pub fn system(origin: Duration) -> Self {
        Self(Source::System { origin, started: Instant::now() })
    }

    /// The system's clock whose monotonic time starts at the current Unix time, so that it can be compared with times that
    /// an earlier process stored.
    #[must_use]
    pub fn system_from_unix() -> Self {
        Self::system(since_epoch())
    }

    /// A clock that reads another source.
    #[must_use]
    pub fn of(source: Arc<dyn TimeSource>) -> Self {
        Self(Source::Other(source))
    }

    /// Monotonic time.
    #[must_use]
    pub fn now(&self) -> Duration {
        match &self.0 {
            Source::System { origin, started } => origin.saturating_add(started.elapsed()),
            Source::Manual(reading) => read(reading).now,
            Source::Other(source) => source.now(),
        }
    }

    /// The time by the wall clock; 1970 if it is set before that.
    #[must_use]
    pub fn unix_ms(&self) -> UnixMillis {
        match &self.0 {
            Source::System { .. } => UnixMillis(units::millis(since_epoch())),
            Source::Manual(reading) => read(reading).unix_ms,
            Source::Other(source) => source.unix_ms(),
        }
    }
}

/// A clock that stands still until it is advanced.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<Mutex<Reading>>);

impl ManualClock {
    /// A clock that shows `now` as monotonic time and `unix_ms` as wall-clock time.
    #[must_use]
    pub fn new(now: Duration, unix_ms: UnixMillis) -> Self {
        Self(Arc::new(Mutex::new(Reading { now, unix_ms })))
    }

    /// The clock to pass to the code under test.
    #[must_use]
    pub fn clock(&self) -> Clock {
        Clock(Source::Manual(Arc::clone(&self.0)))
    }

    /// Advances monotonic and wall-clock time.
    pub fn advance(&self, by: Duration) {
        let mut reading = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        reading.now = reading.now.saturating_add(by);
        reading.unix_ms = reading.unix_ms + Millis::from(by);
    }

    /// Sets the wall clock, which may go backwards; monotonic time is unaffected.
    pub fn set_unix_ms(&self, unix_ms: UnixMillis) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).unix_ms = unix_ms;
    }
}

fn read(reading: &Mutex<Reading>) -> Reading {
    *reading.lock().unwrap_or_else(PoisonError::into_inner)
}

fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_clock_starts_at_its_origin_and_never_decreases() {
        let clock = Clock::system(Duration::from_secs(1000));
        let first = clock.now();
        assert!(first >= Duration::from_secs(1000) && first < Duration::from_secs(1060), "{first:?}");
        assert!(clock.now() >= first);
        let unix_ms = clock.unix_ms();
        assert!(unix_ms > UnixMillis(1_700_000_000_000), "{unix_ms:?}");
        let from_unix = Clock::system_from_unix();
        assert!(units::millis(from_unix.now()).abs_diff(from_unix.unix_ms().0) < 60_000);
    }

    #[test]
    fn a_manual_clock_moves_only_when_it_is_advanced() {
        let manual = ManualClock::new(Duration::from_secs(10), UnixMillis(5000));
        let clock = manual.clock();
        let copy = clock.clone();
        assert_eq!((clock.now(), clock.unix_ms()), (Duration::from_secs(10), UnixMillis(5000)));
        manual.advance(Duration::from_millis(1500));
        assert_eq!((copy.now(), copy.unix_ms()), (Duration::from_millis(11_500), UnixMillis(6500)));
        manual.set_unix_ms(UnixMillis(100));
        assert_eq!((clock.now(), clock.unix_ms()), (Duration::from_millis(11_500), UnixMillis(100)));
    }
}

//! Whether the kernel refuses to swap a job's memory and takes its page cache instead.

use std::time::Duration;

use units::Bytes;

/// Less page cache than this may have been dropped by the job itself.
const TAKEN_MIN: Bytes = Bytes(512 << 10);

/// Requests in a row that took page cache before the job is left alone. One can be a coincidence: the job deleted a file.
const IN_A_ROW: u32 = 2;

/// How long it is left alone, in control periods.
pub const PERIODS: u32 = 10;

/// Whether the kernel refuses to swap a job's memory and takes its page cache instead.
#[derive(Clone, Copy, Debug, Default)]
pub struct Refused {
    /// Requests in a row that took page cache.
    taken: u32,
    /// Until when no swap-backed memory is asked for, as time since boot.
    until: Option<Duration>,
}

impl Refused {
    /// Compares what a request for `asked` of swap-backed memory took, `swapped` and `file`. Returns `file` if it was taken in place of
    /// what was asked for.
    pub fn note(&mut self, asked: Bytes, swapped: Bytes, file: Bytes) -> Option<Bytes> {
        if asked < TAKEN_MIN || swapped.0 > asked.0 / 2 || file < TAKEN_MIN || file <= swapped {
            self.taken = if swapped > Bytes::ZERO { 0 } else { self.taken };
            return None;
        }
        self.taken += 1;
        Some(file)
    }

    /// Leaves the job alone from `now` on, if that has happened repeatedly. Returns whether this begins now.
    pub fn rest(&mut self, now: Duration, control_period: Duration) -> bool {
        let begins = self.taken >= IN_A_ROW;
        if begins {
            self.rest_at_once(now, control_period);
        }
        begins
    }

    /// Leaves the job alone from `now` on.
    pub fn rest_at_once(&mut self, now: Duration, control_period: Duration) {
        *self = Self { taken: 0, until: Some(now.saturating_add(control_period * PERIODS)) };
    }

    /// Whether swap-backed memory may not be asked for at `now`.
    #[must_use]
    pub fn holds(&self, now: Duration) -> bool {
        self.until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_takes_page_cache_twice_is_the_last_for_a_while() {
        let mut refused = Refused::default();
        let period = Duration::from_secs(60);
        let ask = |refused: &mut Refused, swapped: u64, file: u64| {
            refused.note(Bytes::mib(4), Bytes(swapped << 10), Bytes(file << 10)).map(|file| file.0 >> 10)
        };
        assert_eq!(ask(&mut refused, 4096, 4096), None, "what was asked for came, the job dropped a file");
        assert_eq!(ask(&mut refused, 0, 100), None, "too little");
        assert_eq!(ask(&mut refused, 0, 0), None, "nothing came: the memory is in use");
        assert_eq!(ask(&mut refused, 100, 4000), Some(4000));
        assert!(!refused.rest(Duration::ZERO, period), "once may be a coincidence");
        assert_eq!(ask(&mut refused, 3000, 0), None, "it was one");
        assert_eq!(ask(&mut refused, 0, 4000), Some(4000));
        assert!(!refused.rest(Duration::ZERO, period));
        assert_eq!(ask(&mut refused, 0, 4000), Some(4000));
        assert!(refused.rest(period, period));
        assert!(refused.holds(period * 10) && !refused.holds(period * 11), "then it is tried again");
    }
}

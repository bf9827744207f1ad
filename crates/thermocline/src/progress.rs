//! How far a long command has come.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Tells on standard error how far a long command has come, if somebody watches.
pub(crate) struct Progress {
    what: &'static str,
    total: usize,
    done: usize,
    told: Instant,
    watched: bool,
}

const TOLD_EVERY: Duration = Duration::from_millis(200);

impl Progress {
    pub(crate) fn new(what: &'static str, total: usize) -> Self {
        Self { what, total, done: 0, told: Instant::now(), watched: std::io::stderr().is_terminal() }
    }

    /// One more is done.
    pub(crate) fn step(&mut self) {
        self.done += 1;
        if self.due() {
            if self.total > 0 {
                eprint!("\r{} of {} {} ", self.done, self.total, self.what);
            } else {
                eprint!("\r{} {} ", self.done, self.what);
            }
            let _ = std::io::stderr().flush();
        }
    }

    /// One more is done, by which so much of the source at hand has been read.
    pub(crate) fn step_at(&mut self, read: u64, of: u64) {
        self.done += 1;
        if self.due() {
            let percent = read.saturating_mul(100) / of.max(1);
            eprint!("\r{} {} ({percent} % read) ", self.done, self.what);
            let _ = std::io::stderr().flush();
        }
    }

    fn due(&mut self) -> bool {
        let due = self.watched && self.told.elapsed() >= TOLD_EVERY;
        if due {
            self.told = Instant::now();
        }
        due
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.watched {
            eprint!("\r\x1b[K");
        }
    }
}

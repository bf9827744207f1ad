//! Progress of long commands on a terminal.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Prints the progress of a long command on standard error, if that is a terminal.
pub(crate) struct Progress {
    what: &'static str,
    total: usize,
    done: usize,
    printed_at: Instant,
    terminal: bool,
}

const PRINT_INTERVAL: Duration = Duration::from_millis(200);

impl Progress {
    pub(crate) fn new(what: &'static str, total: usize) -> Self {
        Self { what, total, done: 0, printed_at: Instant::now(), terminal: std::io::stderr().is_terminal() }
    }

    /// Counts one item.
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

    /// Sets the number of items done.
    pub(crate) fn at(&mut self, done: u64) {
        self.done = usize::try_from(done).unwrap_or(usize::MAX).saturating_sub(1);
        self.step();
    }

    /// Counts one item, after which `read` of `of` bytes of the current source have been read.
    pub(crate) fn step_at(&mut self, read: u64, of: u64) {
        self.done += 1;
        if self.due() {
            let percent = read.saturating_mul(100) / of.max(1);
            eprint!("\r{} {} ({percent} % read) ", self.done, self.what);
            let _ = std::io::stderr().flush();
        }
    }

    fn due(&mut self) -> bool {
        let due = self.terminal && self.printed_at.elapsed() >= PRINT_INTERVAL;
        if due {
            self.printed_at = Instant::now();
        }
        due
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.terminal {
            eprint!("\r\x1b[K");
        }
    }
}

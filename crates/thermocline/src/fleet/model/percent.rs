//! Progress of a replay on a terminal, in whole percent, with the time that is left.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::options::Format;

/// Before this no time is estimated: the first pieces may differ from the others.
const ESTIMATED_AFTER: Duration = Duration::from_secs(3);

/// Prints progress on standard error, if that is a terminal.
pub(super) struct Percent {
    pieces: usize,
    shown: AtomicUsize,
    began: Instant,
    silent: bool,
}

impl Percent {
    pub(super) fn new(pieces: usize, format: Format) -> Self {
        let silent = format == Format::Json || !std::io::stderr().is_terminal();
        Self { pieces, shown: AtomicUsize::new(0), began: Instant::now(), silent }
    }

    /// `done` pieces are done.
    pub(super) fn show(&self, done: usize) {
        let percent = done * 100 / self.pieces.max(1);
        if !self.silent && self.shown.fetch_max(percent, Ordering::Relaxed) < percent {
            eprint!("\r\x1b[K{percent}%{}", left(self.began.elapsed(), done, self.pieces));
        }
    }

    pub(super) fn end(&self) {
        if !self.silent {
            eprint!("\r\x1b[K");
        }
    }
}

/// The time that is left, if the rest takes as long per piece as what was done; empty in the first seconds.
fn left(elapsed: Duration, done: usize, pieces: usize) -> String {
    let (Ok(done), Ok(rest)) = (u32::try_from(done), u32::try_from(pieces.saturating_sub(done))) else { return String::new() };
    if elapsed < ESTIMATED_AFTER || done == 0 || rest == 0 {
        return String::new();
    }
    let seconds = (elapsed.as_secs_f64() / f64::from(done) * f64::from(rest)).ceil();
    if seconds < 90.0 { format!(", about {seconds} s left ") } else { format!(", about {} min left ", (seconds / 60.0).round()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_takes_as_long_per_piece_as_what_was_done() {
        let check = |seconds, done, pieces, expected: &str| assert_eq!(left(Duration::from_secs(seconds), done, pieces), expected);
        check(10, 1, 4, ", about 30 s left ");
        check(60, 10, 1_000, ", about 99 min left ");
        check(2, 1, 4, "");
        check(10, 0, 4, "");
        check(10, 4, 4, "");
    }
}

//! When a law with a period of its own acts.

/// A period.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    every_ms: u64,
    next_ms: u64,
}

impl Pace {
    /// A period that begins at time zero.
    #[must_use]
    pub fn every(every_ms: u64) -> Self {
        Self { every_ms: every_ms.max(1), next_ms: every_ms.max(1) }
    }

    /// Whether it is time; missed periods are skipped.
    pub fn is_due(&mut self, now_ms: u64) -> bool {
        if now_ms < self.next_ms {
            return false;
        }
        self.next_ms = (now_ms / self.every_ms + 1) * self.every_ms;
        true
    }
}

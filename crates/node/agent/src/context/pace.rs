//! How fast the agent may work: a byte rate for offloading and a share of one core for everything.
//!
//! Both are pure: the caller passes the time and the CPU time that it read.

use std::time::Duration;

use units::{Bytes, RatioPpm};

/// A token bucket that holds at most one [`BURST`] of its rate.
#[derive(Clone, Copy, Debug)]
pub struct ByteRate {
    bytes_per_second: u64,
    tokens: u64,
    refilled_at: Duration,
}

/// The longest time whose allowance may be spent at once.
pub const BURST: Duration = Duration::from_millis(250);

impl ByteRate {
    /// An empty bucket that fills at `per_second` from `now` on.
    #[must_use]
    pub fn new(per_second: Bytes, now: Duration) -> Self {
        Self { bytes_per_second: per_second.0, tokens: 0, refilled_at: now }
    }

    /// What may be offloaded now.
    pub fn available(&mut self, now: Duration) -> Bytes {
        let elapsed = now.saturating_sub(self.refilled_at);
        let earned = scaled(self.bytes_per_second, elapsed);
        // Time that earned nothing is kept, so that short waits add up.
        if earned > 0 {
            self.refilled_at = now;
            self.tokens = self.tokens.saturating_add(earned).min(scaled(self.bytes_per_second, BURST));
        }
        Bytes(self.tokens)
    }

    /// Takes what was used; what exceeds the tokens is forgiven.
    pub fn spend(&mut self, bytes: Bytes) {
        self.tokens = self.tokens.saturating_sub(bytes.0);
    }
}

fn scaled(per_second: u64, time: Duration) -> u64 {
    u64::try_from(u128::from(per_second) * time.as_nanos() / 1_000_000_000).unwrap_or(u64::MAX)
}

/// Time that the loop may spend on work that can wait, so that its deadlines are kept: one in [`SHARE`] of it, saved up for one
/// [`BURST`].
#[derive(Clone, Copy, Debug)]
pub struct IdleTime {
    left: Duration,
    refilled_at: Duration,
}

/// The share of the loop's time: one in this many.
const SHARE: u32 = 10;

impl IdleTime {
    /// A whole burst from `now` on.
    #[must_use]
    pub fn new(now: Duration) -> Self {
        Self { left: BURST, refilled_at: now }
    }

    /// Whether work may begin now.
    pub fn is_available(&mut self, now: Duration) -> bool {
        let earned = now.saturating_sub(self.refilled_at) / SHARE;
        (self.left, self.refilled_at) = ((self.left + earned).min(BURST), self.refilled_at.max(now));
        self.left > Duration::ZERO
    }

    /// Work has `taken` so long until `now`. What exceeds the time saved up must be earned before more may begin.
    pub fn spend(&mut self, taken: Duration, now: Duration) {
        let debt = taken.saturating_sub(self.left);
        self.left = self.left.saturating_sub(taken);
        self.refilled_at = now + debt * SHARE;
    }
}

/// A budget of CPU time: a share of one core, averaged over a window.
#[derive(Clone, Copy, Debug)]
pub struct CpuBudget {
    share: RatioPpm,
    window_start: Duration,
    cpu_at_start: Duration,
    window: Duration,
}

impl CpuBudget {
    /// A budget that begins at `now`, when the agent had used `cpu` in all.
    #[must_use]
    pub fn new(share: RatioPpm, window: Duration, now: Duration, cpu: Duration) -> Self {
        Self { share, window_start: now, cpu_at_start: cpu, window }
    }

    /// Whether the agent has used more than its share of the window that has passed.
    ///
    /// A whole window's allowance may be used from its start on, so that a scan does not count as overspent only
    /// because it comes early in the window.
    pub fn spent(&mut self, now: Duration, cpu: Duration) -> bool {
        let allowance = self.allowance();
        if now.saturating_sub(self.window_start) >= self.window {
            // What was overspent is carried over, up to one window's allowance.
            let used = cpu.saturating_sub(self.cpu_at_start);
            let debt = used.saturating_sub(allowance).min(allowance);
            self.window_start = now;
            self.cpu_at_start = cpu.saturating_sub(debt);
        }
        cpu.saturating_sub(self.cpu_at_start) >= allowance
    }

    fn allowance(&self) -> Duration {
        let nanos = self.window.as_nanos() * u128::from(self.share.0) / 1_000_000;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_can_wait_takes_a_tenth_of_the_time() {
        let ms = Duration::from_millis;
        let mut idle = IdleTime::new(ms(0));
        let (mut now, mut worked) = (ms(0), ms(0));
        while now < ms(60_000) {
            let takes = if idle.is_available(now) { ms(40) } else { ms(0) };
            now += takes;
            if !takes.is_zero() {
                idle.spend(takes, now);
            }
            worked += takes;
            now += ms(1);
        }
        assert!(worked <= ms(6_000) + BURST + ms(40) && worked >= ms(5_500), "{worked:?}");
        // One long piece of work is earned back before the next.
        let mut idle = IdleTime::new(ms(0));
        idle.spend(ms(1_250), ms(1_250));
        assert!(!idle.is_available(ms(11_250)) && idle.is_available(ms(11_261)));
        assert!(idle.is_available(ms(1_000_000)));
    }

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn the_rate_holds_over_time_and_never_bursts_beyond_its_bucket() {
        let mut rate = ByteRate::new(Bytes::mib(64), MS(0));
        assert_eq!(rate.available(MS(0)), Bytes(0));
        assert_eq!(rate.available(MS(125)), Bytes::mib(8));
        assert_eq!(rate.available(MS(60_000)), Bytes::mib(16), "a quarter of a second's worth at most");
        rate.spend(Bytes::mib(10));
        assert_eq!(rate.available(MS(60_000)), Bytes::mib(6));
        rate.spend(Bytes::mib(100));
        assert_eq!(rate.available(MS(60_000)), Bytes(0));
        let mut total = 0;
        for t in (60_010..70_010).step_by(10) {
            let now = rate.available(MS(t));
            rate.spend(now);
            total += now.0;
        }
        assert!(total.abs_diff(Bytes::mib(640).0) < Bytes::mib(1).0, "{total} bytes in 10 s at 64 MiB/s");
    }

    #[test]
    fn the_budget_stops_and_resumes() {
        let mut budget = CpuBudget::new(RatioPpm(100_000), MS(1_000), MS(0), MS(0));
        assert!(!budget.spent(MS(100), MS(99)));
        assert!(budget.spent(MS(200), MS(100)));
        assert!(!budget.spent(MS(1_000), MS(100)), "a new window");
        assert!(budget.spent(MS(1_500), MS(250)));
        assert!(!budget.spent(MS(2_000), MS(250)), "50 ms of debt leave half of the next window");
        assert!(budget.spent(MS(2_100), MS(300)));
    }
}

//! What an emulated run says about slow memory.

use std::time::Duration;

use serde::Serialize;
use units::{Bytes, RatioPpm};

use crate::choice::BLOCK;
use crate::floor::Measured;
use crate::placement::Told;
use crate::session::{Seen, Turn};
use crate::{Error, Result};

/// A fault that is charged has to cost this much more than the floor, so that its noise does not count for much.
const OVER_FLOOR: u64 = 2;

/// The least share of pages that says something about all: 1 %.
const SAMPLE_MIN: RatioPpm = RatioPpm(10_000);

/// The share of slow pages to park at a time, so that an access to one of them costs well over the floor and an access
/// to a slow page costs the latency on average.
///
/// # Errors
/// [`Error::TooFast`] where that would be less than 1 %.
pub fn sample(latency_ns: u64, floor_ns: u64) -> Result<RatioPpm> {
    let charge = floor_ns.max(1).saturating_mul(OVER_FLOOR);
    let share = RatioPpm(u32::try_from(u128::from(latency_ns) * 1_000_000 / u128::from(charge)).unwrap_or(u32::MAX));
    if share < SAMPLE_MIN {
        let least_ns = charge.saturating_mul(SAMPLE_MIN.0.into()).div_ceil(1_000_000);
        return Err(Error::TooFast { latency_ns, floor_ns, least_ns });
    }
    Ok(share.min(RatioPpm::ONE))
}

/// What an access to a parked page is delayed by, over what serving it costs, so that one to a slow page costs the
/// latency on average.
#[must_use]
pub fn delay(latency_ns: u64, floor_ns: u64, sample: RatioPpm) -> Duration {
    let charge = u128::from(latency_ns) * 1_000_000 / u128::from(sample.0.max(1));
    Duration::from_nanos(u64::try_from(charge).unwrap_or(u64::MAX).saturating_sub(floor_ns))
}

/// How many of the parked pages may be open at a time, so that of all slow pages it would be `open`: the same share of
/// them as is parked, one at least.
#[must_use]
pub fn open(open: u64, sample: RatioPpm) -> u64 {
    (open.saturating_mul(sample.0.into()) / 1_000_000).max(1)
}

/// The report of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The latency emulated.
    pub latency_ns: u64,
    /// What a fault cost before any delay.
    pub floor_ns: u64,
    /// What a fault cost the program in processor time.
    pub fault_cpu_ns: u64,
    /// The share of slow pages that were parked at a time.
    pub sample_ratio: f64,
    /// The private anonymous memory in whole blocks, at the last survey.
    pub anonymous_bytes: u64,
    /// Of that, what was slow.
    pub slow_bytes: u64,
    /// Of that, the blocks that were accessed while slow.
    pub accessed_bytes: u64,
    /// Time from when the first page was parked to the end, without the turns in which nothing was slow. Where the policy chooses,
    /// from its first decision on.
    pub emulated_seconds: f64,
    /// Faults on parked pages in that time.
    pub faults: u64,
    /// Accesses to slow pages that they stand for.
    pub slow_accesses: f64,
    /// The same per second.
    pub slow_accesses_per_second: f64,
    /// Time that these accesses cost, in all threads: accesses times latency.
    pub stall_seconds: f64,
    /// What share of its own time the program waited for slow memory: stall over the time without the stall. Of threads
    /// that wait at the same time each counts, so that for several threads this is the most that it may be.
    pub slowdown_ratio: f64,
    /// The processor time that the program used meanwhile, in all threads, without what faults took.
    pub cpu_seconds: f64,
    /// The stall as a share of that: what a program that is always busy would lose. Neither idle time nor other work on the
    /// machine changes it.
    pub slowdown_of_cpu_ratio: f64,
    /// First touches of pages, which cost nothing.
    pub first_touches: u64,
    /// Pages that could not be parked again at the first try.
    pub refused: u64,
    /// Forks; the children ran at full speed.
    pub forks: u64,
    /// The program replaced itself by `exec` and was not emulated from then on.
    pub replaced: bool,
    /// When memory was slow, and when not.
    pub turns: Vec<Turn>,
    /// What the policy has chosen, where it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Chosen>,
}

/// What policy `slowdown` has chosen to be slow.
#[derive(Clone, Debug, Serialize)]
pub struct Chosen {
    /// Accesses per second to slow memory that are allowed.
    pub budget_per_second: f64,
    /// Its decisions, oldest first.
    pub periods: Vec<Told>,
}

impl Report {
    /// Reads a run.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "shown to people, and to programs as ratios")]
    pub fn new(latency_ns: u64, floor: &Measured, sample: RatioPpm, seen: &Seen) -> Self {
        let sample_ratio = f64::from(sample.0) / 1e6;
        let slow_accesses = seen.slow.accesses as f64 / sample_ratio;
        let stall_seconds = slow_accesses * latency_ns as f64 / 1e9;
        let own = seen.slow.own(Duration::from_nanos(floor.cpu_ns));
        let (emulated_seconds, cpu_seconds) = (seen.slow.time.as_secs_f64(), own.as_secs_f64());
        let over = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        Self {
            latency_ns,
            floor_ns: floor.floor_ns(),
            fault_cpu_ns: floor.cpu_ns,
            sample_ratio,
            anonymous_bytes: seen.blocks * BLOCK,
            slow_bytes: seen.slow_blocks * BLOCK,
            accessed_bytes: seen.accessed_blocks * BLOCK,
            emulated_seconds,
            faults: seen.slow.accesses,
            slow_accesses,
            slow_accesses_per_second: over(slow_accesses, emulated_seconds),
            stall_seconds,
            slowdown_ratio: over(stall_seconds, emulated_seconds - stall_seconds),
            cpu_seconds,
            slowdown_of_cpu_ratio: over(stall_seconds, cpu_seconds),
            first_touches: seen.counts.first_touches,
            refused: seen.counts.refused,
            forks: seen.forks,
            replaced: seen.replaced,
            turns: seen.turns.clone(),
            policy: seen.policy.clone().map(|(budget_per_second, periods)| Chosen { budget_per_second, periods }),
        }
    }

    /// For people.
    #[must_use]
    pub fn to_text(&self) -> String {
        use std::fmt::Write;
        let mut text = String::new();
        let us = |ns: u64| format!("{}.{:03} us", ns / 1000, ns % 1000);
        let lines = [
            ("latency", format!("{} (a fault alone costs {})", us(self.latency_ns), us(self.floor_ns))),
            ("parked at a time", format!("{:.1}% of the slow pages, each access charged in proportion", self.sample_ratio * 100.0)),
            (
                "slow memory",
                format!("{} of {}, {} of it accessed", Bytes(self.slow_bytes), Bytes(self.anonymous_bytes), Bytes(self.accessed_bytes)),
            ),
            ("emulated for", format!("{:.1} s", self.emulated_seconds)),
            (
                "slow accesses",
                format!("{:.0}, {:.0} per second, from {} faults", self.slow_accesses, self.slow_accesses_per_second, self.faults),
            ),
            (
                "waited for them",
                format!(
                    "{:.2} s in all threads, a slowdown of {:.2}%; of the {:.2} s of processor time that it used, {:.2}%",
                    self.stall_seconds,
                    self.slowdown_ratio * 100.0,
                    self.cpu_seconds,
                    self.slowdown_of_cpu_ratio * 100.0
                ),
            ),
        ];
        for (name, value) in lines {
            let _ = writeln!(text, "{name:<17} {value}");
        }
        if let Some(Chosen { budget_per_second, periods }) = &self.policy {
            let _ = match periods.last() {
                Some(Told { known_bytes, slow_bytes, .. }) => writeln!(
                    text,
                    "{:<17} {slow_bytes} of {known_bytes} slow, after {} periods; {budget_per_second:.0} accesses per second allowed",
                    "chosen",
                    periods.len()
                ),
                None => writeln!(text, "nothing was chosen to be slow: the command ended before the first --period did"),
            };
        }
        if self.forks > 0 {
            let _ = writeln!(text, "{} forked children ran at full speed", self.forks);
        }
        if self.replaced {
            text += "the program replaced itself by exec and was not emulated from then on: name the final program as the command\n";
        }
        if self.refused > self.faults / 100 {
            let _ = writeln!(text, "{} pages could not be parked again (pinned, locked or shared after a fork)", self.refused);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chase::Chased;
    use crate::session::Slow;

    #[test]
    fn a_slow_access_costs_the_latency_on_average() {
        let check = |latency: u64, floor: u64, expected: u32| {
            let share = sample(latency, floor).unwrap();
            assert_eq!(share, RatioPpm(expected), "{latency} {floor}");
            let charge = delay(latency, floor, share) + Duration::from_nanos(floor);
            let mean = charge.as_nanos() * u128::from(share.0) / 1_000_000;
            assert!(mean.abs_diff(latency.into()) <= 1, "{latency} {floor}: {mean}");
        };
        check(100_000, 8_000, 1_000_000);
        check(16_000, 8_000, 1_000_000);
        check(1_000, 8_000, 62_500);
        check(1_000, 5_000, 100_000);
        check(160, 8_000, 10_000);
    }

    #[test]
    fn as_many_pages_are_open_as_if_all_were_parked() {
        let check = |all: u64, share: u32, expected: u64| assert_eq!(open(all, RatioPpm(share)), expected, "{all} {share}");
        check(64, 1_000_000, 64);
        check(1000, 62_500, 62);
        check(64, 10_000, 1);
    }

    #[test]
    fn a_latency_far_below_the_floor_is_refused_with_the_least() {
        let error = sample(100, 8_000).unwrap_err();
        assert!(matches!(error, Error::TooFast { least_ns: 160, .. }), "{error}");
        assert!(error.to_string().contains("160 ns") && sample(160, 8_000).is_ok());
    }

    #[test]
    fn the_slowdown_is_over_the_time_without_the_stall() {
        let chased = Chased { accesses: 1, mean_ns: 5_100, trimmed_ns: 5_100, p50_ns: 5_100, p99_ns: 5_100, intact: true };
        let floor = Measured { threads: 1, open: 64, latency_ns: None, plain_ns: 100, chased, counted: 1, cpu_ns: 10_000 };
        let slow = Slow { accesses: 100_000, time: Duration::from_secs(11), cpu: Duration::from_secs(5) };
        let told = Told {
            own_seconds: 9.0,
            known_bytes: Bytes::mib(40),
            slow_bytes: Bytes::mib(30),
            rate_per_second: 0.0,
            upper_per_second: 7.0,
            home_bytes: Bytes::ZERO,
            placed_bytes: Bytes::mib(30),
        };
        let seen = Seen {
            counts: crate::resident::Counts { accesses: 900_000, ..Default::default() },
            slow,
            blocks: 10,
            slow_blocks: 5,
            accessed_blocks: 1,
            forks: 1,
            replaced: true,
            turns: vec![Turn { unix_ms: 1, slow: true }],
            policy: Some((1e5, vec![told])),
        };
        let report = Report::new(1_000, &floor, RatioPpm(100_000), &seen);
        assert!((report.slow_accesses - 1e6).abs() < 1.0 && (report.stall_seconds - 1.0).abs() < 1e-6);
        assert!((report.slowdown_ratio - 0.1).abs() < 1e-6, "{}", report.slowdown_ratio);
        assert_eq!((report.turns.len(), report.policy.as_ref().map(|chosen| chosen.periods.len())), (1, Some(1)));
        let text = report.to_text();
        for part in [
            "1.000 us",
            "10.0% of the slow pages",
            "10.0 MiB of 20.0 MiB",
            "10.00%",
            "25.00%",
            "1 forked",
            "by exec",
            "30.0 MiB of 40.0 MiB",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}

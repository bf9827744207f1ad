//! The report of an emulated program.

use std::time::Duration;

use serde::Serialize;
use units::{Bytes, RatioPpm};

use crate::choice::BLOCK;
use crate::floor::Measurement;
use crate::phases::Phase;
use crate::placement::Decision;
use crate::session::Outcome;
use crate::{Error, Result};

/// A charged fault has to cost this multiple of the floor, so that the noise of the floor has little effect.
const OVER_FLOOR: u64 = 2;

/// Lower limit of the share of pages that is representative: 1 %.
const SAMPLE_MIN: RatioPpm = RatioPpm(10_000);

/// Returns the share of slow pages to park at a time, such that an access to a parked page costs well over the floor
/// and an access to a slow page costs the latency on average.
///
/// # Errors
/// [`Error::TooFast`] if it would be less than 1 %.
pub fn sample(latency_ns: u64, floor_ns: u64) -> Result<RatioPpm> {
    let charge = floor_ns.max(1).saturating_mul(OVER_FLOOR);
    let share = RatioPpm(u32::try_from(u128::from(latency_ns) * 1_000_000 / u128::from(charge)).unwrap_or(u32::MAX));
    if share < SAMPLE_MIN {
        let lowest_ns = charge.saturating_mul(SAMPLE_MIN.0.into()).div_ceil(1_000_000);
        return Err(Error::TooFast { latency_ns, floor_ns, lowest_ns });
    }
    Ok(share.min(RatioPpm::ONE))
}

/// Returns the delay of an access to a parked page in addition to the floor, such that an access to a slow page costs
/// the latency on average.
#[must_use]
pub fn delay(latency_ns: u64, floor_ns: u64, sample: RatioPpm) -> Duration {
    let charge = u128::from(latency_ns) * 1_000_000 / u128::from(sample.0.max(1));
    Duration::from_nanos(u64::try_from(charge).unwrap_or(u64::MAX).saturating_sub(floor_ns))
}

/// Returns the number of parked pages that are open at a time, which corresponds to `open` of all slow pages: the same
/// share as is parked, at least one.
#[must_use]
pub fn open(open: u64, sample: RatioPpm) -> u64 {
    (open.saturating_mul(sample.0.into()) / 1_000_000).max(1)
}

/// The report of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Emulated latency.
    pub latency_ns: u64,
    /// Latency of a fault without added delay (the floor).
    pub floor_ns: u64,
    /// Processor time of the program per fault.
    pub fault_cpu_ns: u64,
    /// Share of slow pages that were parked at a time.
    pub sample_ratio: f64,
    /// Private anonymous memory in whole blocks, at the last survey.
    pub anonymous_bytes: u64,
    /// The part of it that was slow.
    pub slow_bytes: u64,
    /// The slow blocks that were accessed.
    pub accessed_bytes: u64,
    /// Time in slow phases, from the parking of the first page to the end. With a policy, from its first decision on.
    pub emulated_seconds: f64,
    /// Number of faults on parked pages in that time.
    pub faults: u64,
    /// Estimated number of accesses to slow pages.
    pub slow_accesses: f64,
    /// The same per second.
    pub slow_accesses_per_second: f64,
    /// Stall time in all threads: accesses times latency.
    pub stall_seconds: f64,
    /// Slowdown: stall time relative to the time without stalls. Threads that wait at the same time all count, so this
    /// is an upper bound for several threads.
    pub slowdown_ratio: f64,
    /// Processor time of the program in that time, in all threads, without the time of faults.
    pub cpu_seconds: f64,
    /// Stall time relative to that processor time: the slowdown of a program that never idles. Independent of idle time
    /// and of other work on the machine.
    pub slowdown_of_cpu_ratio: f64,
    /// Number of first accesses to pages, which are not delayed.
    pub first_touches: u64,
    /// Number of pages that could not be parked again at the first attempt.
    pub refused: u64,
    /// Number of forks; the children ran at full speed.
    pub forks: u64,
    /// Whether the program replaced itself by `exec`, after which it was not emulated.
    pub replaced: bool,
    /// Beginnings of the slow and fast phases.
    pub phases: Vec<Phase>,
    /// Decisions of the policy, if one was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Chosen>,
}

/// Decisions of policy `slowdown`.
#[derive(Clone, Debug, Serialize)]
pub struct Chosen {
    /// Accesses per second to slow memory that the slowdown allows.
    pub budget_per_second: f64,
    /// Decisions, oldest first.
    pub periods: Vec<Decision>,
}

impl Report {
    /// Creates the report of a run.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "estimates, printed with few digits")]
    pub fn new(latency_ns: u64, floor: &Measurement, sample: RatioPpm, outcome: &Outcome) -> Self {
        let sample_ratio = f64::from(sample.0) / 1e6;
        let slow_accesses = outcome.slow.accesses as f64 / sample_ratio;
        let stall_seconds = slow_accesses * latency_ns as f64 / 1e9;
        let own = outcome.slow.own(Duration::from_nanos(floor.cpu_ns));
        let (emulated_seconds, cpu_seconds) = (outcome.slow.time.as_secs_f64(), own.as_secs_f64());
        let over = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        Self {
            latency_ns,
            floor_ns: floor.floor_ns(),
            fault_cpu_ns: floor.cpu_ns,
            sample_ratio,
            anonymous_bytes: outcome.blocks * BLOCK,
            slow_bytes: outcome.slow_blocks * BLOCK,
            accessed_bytes: outcome.accessed_blocks * BLOCK,
            emulated_seconds,
            faults: outcome.slow.accesses,
            slow_accesses,
            slow_accesses_per_second: over(slow_accesses, emulated_seconds),
            stall_seconds,
            slowdown_ratio: over(stall_seconds, emulated_seconds - stall_seconds),
            cpu_seconds,
            slowdown_of_cpu_ratio: over(stall_seconds, cpu_seconds),
            first_touches: outcome.counts.first_touches,
            refused: outcome.counts.refused,
            forks: outcome.forks,
            replaced: outcome.replaced,
            phases: outcome.phases.clone(),
            policy: outcome.policy.clone().map(|(budget_per_second, periods)| Chosen { budget_per_second, periods }),
        }
    }

    /// Formats the report for people.
    #[must_use]
    pub fn to_text(&self) -> String {
        use std::fmt::Write;
        let mut text = String::new();
        let us = |ns: u64| format!("{}.{:03} us", ns / 1000, ns % 1000);
        let lines = [
            ("latency", format!("{} (floor: {})", us(self.latency_ns), us(self.floor_ns))),
            ("parked at a time", format!("{:.1}% of the slow pages, with a proportionally longer delay", self.sample_ratio * 100.0)),
            (
                "slow memory",
                format!("{} of {}, {} accessed", Bytes(self.slow_bytes), Bytes(self.anonymous_bytes), Bytes(self.accessed_bytes)),
            ),
            ("emulated time", format!("{:.1} s", self.emulated_seconds)),
            (
                "slow accesses",
                format!("{:.0}, {:.0} per second, from {} faults", self.slow_accesses, self.slow_accesses_per_second, self.faults),
            ),
            (
                "stalled",
                format!(
                    "{:.2} s in all threads, a slowdown of {:.2}%; relative to {:.2} s of processor time, {:.2}%",
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
                Some(Decision { known_bytes, slow_bytes, .. }) => writeln!(
                    text,
                    "{:<17} {slow_bytes} of {known_bytes} slow after {} periods; {budget_per_second:.0} accesses per second allowed",
                    "policy",
                    periods.len()
                ),
                None => writeln!(text, "no memory became slow: the command exited before the end of the first --period"),
            };
        }
        if self.forks > 0 {
            let _ = writeln!(text, "{} forked children ran at full speed", self.forks);
        }
        if self.replaced {
            text += "the program replaced itself by exec and was not emulated afterwards: name the final program as the command\n";
        }
        if self.refused > self.faults / 100 {
            let _ = writeln!(text, "{} pages could not be parked again (pinned, locked, or shared after a fork)", self.refused);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chase::ChaseResult;
    use crate::phases::Slow;

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
    fn open_pages_are_scaled_to_the_parked_share() {
        let check = |all: u64, share: u32, expected: u64| assert_eq!(open(all, RatioPpm(share)), expected, "{all} {share}");
        check(64, 1_000_000, 64);
        check(1000, 62_500, 62);
        check(64, 10_000, 1);
    }

    #[test]
    fn a_latency_far_below_the_floor_is_refused_with_the_lowest_one() {
        let error = sample(100, 8_000).unwrap_err();
        assert!(matches!(error, Error::TooFast { lowest_ns: 160, .. }), "{error}");
        assert!(error.to_string().contains("160 ns") && sample(160, 8_000).is_ok());
    }

    #[test]
    fn the_slowdown_is_relative_to_the_time_without_stalls() {
        let chased = ChaseResult { accesses: 1, mean_ns: 5_100, trimmed_ns: 5_100, p50_ns: 5_100, p99_ns: 5_100, intact: true };
        let floor = Measurement { threads: 1, open: 64, latency_ns: None, plain_ns: 100, chased, counted: 1, cpu_ns: 10_000 };
        let slow = Slow { accesses: 100_000, time: Duration::from_secs(11), cpu: Duration::from_secs(5) };
        let decision = Decision {
            own_seconds: 9.0,
            known_bytes: Bytes::mib(40),
            slow_bytes: Bytes::mib(30),
            rate_per_second: 0.0,
            upper_per_second: 7.0,
            promoted_bytes: Bytes::ZERO,
            placed_bytes: Bytes::mib(30),
        };
        let outcome = Outcome {
            counts: crate::helper::Counts { accesses: 900_000, ..Default::default() },
            slow,
            blocks: 10,
            slow_blocks: 5,
            accessed_blocks: 1,
            forks: 1,
            replaced: true,
            phases: vec![Phase { unix_ms: 1, slow: true }],
            policy: Some((1e5, vec![decision])),
        };
        let report = Report::new(1_000, &floor, RatioPpm(100_000), &outcome);
        assert!((report.slow_accesses - 1e6).abs() < 1.0 && (report.stall_seconds - 1.0).abs() < 1e-6);
        assert!((report.slowdown_ratio - 0.1).abs() < 1e-6, "{}", report.slowdown_ratio);
        assert_eq!((report.phases.len(), report.policy.as_ref().map(|chosen| chosen.periods.len())), (1, Some(1)));
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

//! Counters of decisions by reason, and alerts about frequent safe answers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use crate::decision::Reason;

/// Decisions by reason since the program began. Shared between threads.
#[derive(Debug, Default)]
pub struct Counts([AtomicU64; Reason::ALL.len()]);

/// A snapshot of the counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Tally(BTreeMap<&'static str, u64>);

/// Limits of safe answers that raise an alert. Ratios are of all decisions between two tallies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// No alert is raised for fewer decisions than this.
    pub decisions_min: u64,
    /// Safe answers because the model is missing, damaged or stale.
    pub model_max_ratio: f64,
    /// Safe answers because the VMs differ from the training data: unseen categories, drifted features.
    pub drift_max_ratio: f64,
    /// Safe answers because of missing history, which are a fifth in (Pond section 6.1).
    pub no_history_max_ratio: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { decisions_min: 100, model_max_ratio: 0.0, drift_max_ratio: 0.05, no_history_max_ratio: 0.4 }
    }
}

/// Too many safe answers of one cause.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Alert {
    /// The cause, and what to do.
    pub message: &'static str,
    /// Share of decisions that are safe answers of this cause.
    pub ratio: f64,
    /// The limit.
    pub max_ratio: f64,
}

impl Counts {
    pub(crate) fn add(&self, reason: Reason) {
        self.0[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the current counts.
    #[must_use]
    pub fn tally(&self) -> Tally {
        Tally(Reason::ALL.iter().map(|&reason| (reason.name(), self.0[reason as usize].load(Ordering::Relaxed))).collect())
    }
}

impl Tally {
    /// Returns the number of decisions with a reason.
    #[must_use]
    pub fn of(&self, reason: Reason) -> u64 {
        self.0.get(reason.name()).copied().unwrap_or(0)
    }

    /// Returns the number of all decisions.
    #[must_use]
    pub fn decisions(&self) -> u64 {
        self.0.values().sum()
    }

    /// Returns alerts about the decisions since an earlier tally.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio for display")]
    pub fn alerts_since(&self, before: &Self, limits: &Limits) -> Vec<Alert> {
        let since = |reason| self.of(reason).saturating_sub(before.of(reason));
        let all: u64 = Reason::ALL.into_iter().map(since).sum();
        if all < limits.decisions_min.max(1) {
            return Vec::new();
        }
        let causes: [(&[Reason], f64, &str); 3] = [
            (
                &[Reason::NoModel, Reason::BadModel, Reason::StaleModel],
                limits.model_max_ratio,
                "no usable model of untouched memory; check its file and the nightly training",
            ),
            (
                &[Reason::UnseenCategory, Reason::Drifted],
                limits.drift_max_ratio,
                "VMs differ from those that the model was trained on; train it on recent VMs",
            ),
            (&[Reason::NoHistory], limits.no_history_max_ratio, "customers without history; check that ended VMs are recorded"),
        ];
        let mut alerts = Vec::new();
        for (reasons, max_ratio, message) in causes {
            let ratio = reasons.iter().map(|&reason| since(reason)).sum::<u64>() as f64 / all as f64;
            if ratio > max_ratio {
                alerts.push(Alert { message, ratio, max_ratio });
            }
        }
        alerts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alert_names_the_frequent_cause() {
        let check = |decisions: &[(Reason, usize)], want: &[&str]| {
            let counts = Counts::default();
            counts.add(Reason::Drifted);
            let before = counts.tally();
            for &(reason, times) in decisions {
                (0..times).for_each(|_| counts.add(reason));
            }
            let alerts = counts.tally().alerts_since(&before, &Limits::default());
            let firsts: Vec<_> = alerts.iter().map(|alert| alert.message.split(' ').next().unwrap()).collect();
            assert_eq!(firsts, want, "{decisions:?}");
        };
        check(&[], &[]);
        check(&[(Reason::NoModel, 99)], &[]);
        check(&[(Reason::NoModel, 100)], &["no"]);
        check(&[(Reason::Untouched, 1000)], &[]);
        check(&[(Reason::Untouched, 1000), (Reason::StaleModel, 1)], &["no"]);
        check(&[(Reason::Untouched, 95), (Reason::Drifted, 5)], &[]);
        check(&[(Reason::Untouched, 94), (Reason::Drifted, 3), (Reason::UnseenCategory, 3)], &["VMs"]);
        check(&[(Reason::Insensitive, 50), (Reason::NoHistory, 50)], &["customers"]);
    }
}

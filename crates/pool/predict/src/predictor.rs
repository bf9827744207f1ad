//! From a request to how much of a VM's memory comes from the pool (Pond, section 4.4 A and figure 13).

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use crate::counts::Counts;
use crate::error::{Error, Result};
use crate::history::History;
use crate::insensitive::Insensitive;
use crate::request::Request;
use crate::untouched::{Unsaid, Untouched};

/// What a pool hands out at a time.
pub const SLICE_BYTES: u64 = 1 << 30;

/// Why so much of a VM's memory comes from the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// All of it: the workload does not notice slow memory.
    Insensitive,
    /// What it will not touch, in whole slices.
    Untouched,
    /// None: it will touch all but less than a slice.
    NothingUntouched,
    /// None: see [`Unsaid::NoHistory`].
    NoHistory,
    /// None: see [`Unsaid::UnseenCategory`].
    UnseenCategory,
    /// None: see [`Unsaid::Drifted`].
    Drifted,
    /// None: see [`Unsaid::StaleModel`].
    StaleModel,
    /// None: there is no model's file.
    NoModel,
    /// None: the model's file cannot be used.
    BadModel,
    /// None: the request has no cores or no memory.
    BadRequest,
}

impl Reason {
    /// All of them, in order.
    pub const ALL: [Self; 10] = [
        Self::Insensitive,
        Self::Untouched,
        Self::NothingUntouched,
        Self::NoHistory,
        Self::UnseenCategory,
        Self::Drifted,
        Self::StaleModel,
        Self::NoModel,
        Self::BadModel,
        Self::BadRequest,
    ];

    /// As it is written in JSON and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Insensitive => "insensitive",
            Self::Untouched => "untouched",
            Self::NothingUntouched => "nothing_untouched",
            Self::NoHistory => "no_history",
            Self::UnseenCategory => "unseen_category",
            Self::Drifted => "drifted",
            Self::StaleModel => "stale_model",
            Self::NoModel => "no_model",
            Self::BadModel => "bad_model",
            Self::BadRequest => "bad_request",
        }
    }

    /// Whether no model has spoken, so that all memory stays local.
    #[must_use]
    pub fn is_safe_answer(self) -> bool {
        !matches!(self, Self::Insensitive | Self::Untouched | Self::NothingUntouched)
    }
}

impl From<Unsaid> for Reason {
    fn from(why: Unsaid) -> Self {
        match why {
            Unsaid::NoHistory => Self::NoHistory,
            Unsaid::UnseenCategory => Self::UnseenCategory,
            Unsaid::Drifted => Self::Drifted,
            Unsaid::StaleModel => Self::StaleModel,
        }
    }
}

/// What the latency model says.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Latency {
    /// There is no such model, or it cannot be used.
    NoModel,
    /// It says nothing: the workload counts as sensitive.
    Unsaid(Unsaid),
    /// The probability of being insensitive is too low.
    Sensitive(f64),
    /// It is high enough.
    Insensitive(f64),
}

/// How much of a VM's memory comes from the pool, and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Decision {
    /// Bytes on the pool, whole slices; the rest is local.
    pub pool_bytes: u64,
    /// Why so much.
    pub reason: Reason,
    /// The share of memory that the VM is predicted to leave untouched, where that was asked.
    pub untouched_ratio: Option<f64>,
    /// What the latency model says.
    pub latency: Latency,
}

/// Both models, what is known of customers, and what was decided. `decide` may be called from many threads.
#[derive(Debug)]
pub struct Predictor {
    untouched: Result<Untouched>,
    insensitive: Option<Result<Insensitive>>,
    history: History,
    counts: Counts,
}

impl Predictor {
    /// Reads the models. One that cannot be used is no failure: its absence is the reason of every decision it would have made.
    #[must_use]
    pub fn load(untouched: &Path, insensitive: Option<&Path>) -> Self {
        Self::new(Untouched::load(untouched), insensitive.map(Insensitive::load))
    }

    /// Of models that were read.
    #[must_use]
    pub fn new(untouched: Result<Untouched>, insensitive: Option<Result<Insensitive>>) -> Self {
        let history = untouched.as_ref().map_or_else(|_| History::new(7 * 86_400, 256), Untouched::history);
        Self { untouched, insensitive, history, counts: Counts::default() }
    }

    /// Puts the models of a new night in force; what is known of customers and all counts stay.
    pub fn renew(&mut self, untouched: Result<Untouched>, insensitive: Option<Result<Insensitive>>) {
        (self.untouched, self.insensitive) = (untouched, insensitive);
    }

    /// What is wrong with the models.
    pub fn faults(&self) -> impl Iterator<Item = &Error> {
        self.untouched.as_ref().err().into_iter().chain(self.insensitive.iter().filter_map(|model| model.as_ref().err()))
    }

    /// What is known of customers: a VM that ends is recorded here.
    pub fn history(&mut self) -> &mut History {
        &mut self.history
    }

    /// Decisions by reason.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// How much of a VM's memory comes from the pool.
    pub fn decide(&self, request: &Request) -> Decision {
        let decision = self.decision(request);
        self.counts.add(decision.reason);
        decision
    }

    fn decision(&self, request: &Request) -> Decision {
        let local = |reason, latency| Decision { pool_bytes: 0, reason, untouched_ratio: None, latency };
        if request.cores == 0 || request.memory_bytes == 0 {
            return local(Reason::BadRequest, Latency::NoModel);
        }
        let latency = self.latency(request.counters.as_ref());
        if matches!(latency, Latency::Insensitive(_)) {
            // What is no whole slice stays local.
            let pool_bytes = request.memory_bytes / SLICE_BYTES * SLICE_BYTES;
            return Decision { pool_bytes, reason: Reason::Insensitive, untouched_ratio: None, latency };
        }
        let model = match &self.untouched {
            Ok(model) => model,
            Err(error) if error.is_missing() => return local(Reason::NoModel, latency),
            Err(_) => return local(Reason::BadModel, latency),
        };
        let predicted = match (&request.history, request.customer) {
            (Some(given), _) => model.predict(request, given.iter().copied()),
            (None, Some(customer)) => model.predict(request, self.history.recent(customer, request.arrival)),
            (None, None) => Err(Unsaid::NoHistory),
        };
        match predicted {
            Err(why) => local(why.into(), latency),
            Ok(ratio) => {
                let pool_bytes = slices(request.memory_bytes, ratio) * SLICE_BYTES;
                let reason = if pool_bytes == 0 { Reason::NothingUntouched } else { Reason::Untouched };
                Decision { pool_bytes, reason, untouched_ratio: Some(ratio), latency }
            }
        }
    }

    /// Whether a workload with these counters would notice slow memory.
    #[must_use]
    pub fn latency(&self, counters: Option<&BTreeMap<String, f32>>) -> Latency {
        let Some(Ok(model)) = &self.insensitive else { return Latency::NoModel };
        let Some(counters) = counters else { return Latency::Unsaid(Unsaid::NoHistory) };
        match model.predict(counters) {
            Err(why) => Latency::Unsaid(why),
            Ok(score) if model.takes(score) => Latency::Insensitive(score),
            Ok(score) => Latency::Sensitive(score),
        }
    }

    /// Whether there is a model to ask by [`Self::latency`].
    #[must_use]
    pub fn knows_latency(&self) -> bool {
        matches!(self.insensitive, Some(Ok(_)))
    }
}

/// Whole slices within a share (0 to 1) of some bytes.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "rounded down, never above the bytes"
)]
fn slices(bytes: u64, ratio: f64) -> u64 {
    ((bytes as f64 * ratio / SLICE_BYTES as f64) as u64).min(bytes / SLICE_BYTES)
}

//! Decides how much of a VM's memory comes from the pool (Pond section 4.4 A and figure 13).

use std::collections::BTreeMap;
use std::path::Path;

use units::Bytes;

use crate::counts::Counts;
use crate::decision::{Decision, Latency, NoAnswer, Predicted, Reason, SLICE};
use crate::error::{Error, Result};
use crate::history::History;
use crate::insensitive::Insensitive;
use crate::own_past;
use crate::request::Request;
use crate::untouched::Untouched;

/// Both models, the customers' history, and counters of decisions. `decide` may be called from many threads.
#[derive(Debug)]
pub struct Predictor {
    untouched: Result<Untouched>,
    insensitive: Option<Result<Insensitive>>,
    history: History,
    counts: Counts,
}

impl Predictor {
    /// Creates a predictor without a model of untouched memory: VMs without a past week of their own stay local.
    #[must_use]
    pub fn without_model(insensitive: Option<&Path>) -> Self {
        let none = std::io::Error::new(std::io::ErrorKind::NotFound, "no model was given");
        Self::new(Err(Error::File { path: "untouched.onnx".into(), source: none }), insensitive.map(Insensitive::load))
    }

    /// Reads the models. A model that cannot be used is not an error here: it is the reason of every decision that needs it.
    #[must_use]
    pub fn load(untouched: &Path, insensitive: Option<&Path>) -> Self {
        Self::new(Untouched::load(untouched), insensitive.map(Insensitive::load))
    }

    /// Creates a predictor from loaded models.
    #[must_use]
    pub fn new(untouched: Result<Untouched>, insensitive: Option<Result<Insensitive>>) -> Self {
        let history = new_history(&untouched);
        Self { untouched, insensitive, history, counts: Counts::default() }
    }

    /// Replaces the models, for example after the nightly training. The history and all counters are kept.
    pub fn replace_models(&mut self, untouched: Result<Untouched>, insensitive: Option<Result<Insensitive>>) {
        (self.untouched, self.insensitive) = (untouched, insensitive);
    }

    /// Returns the model of untouched memory; `None` if there is none that can be used.
    #[must_use]
    pub fn untouched(&self) -> Option<&Untouched> {
        self.untouched.as_ref().ok()
    }

    /// Returns the latency model; `None` if there is none that can be used.
    #[must_use]
    pub fn insensitive(&self) -> Option<&Insensitive> {
        self.insensitive.as_ref()?.as_ref().ok()
    }

    /// Returns the errors of models that cannot be used.
    pub fn errors(&self) -> impl Iterator<Item = &Error> {
        self.untouched.as_ref().err().into_iter().chain(self.insensitive.iter().filter_map(|model| model.as_ref().err()))
    }

    /// An empty history for a caller that keeps one itself, and gives it with each request.
    #[must_use]
    pub fn new_history(&self) -> History {
        new_history(&self.untouched)
    }

    /// Returns the customers' history, in which every VM that ends must be recorded.
    pub fn history(&mut self) -> &mut History {
        &mut self.history
    }

    /// Returns the counters of decisions.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Decides how much of a VM's memory comes from the pool.
    pub fn decide(&self, request: &Request) -> Decision {
        self.decide_for(request, self.latency(request.counters.as_ref()))
    }

    /// Decides the same for a workload of which this is known in place of counters ([`crate::Workloads`]).
    pub fn decide_for(&self, request: &Request, latency: Latency) -> Decision {
        let decision = self.decision(request, latency);
        self.counts.add(decision.reason);
        decision
    }

    fn decision(&self, request: &Request, latency: Latency) -> Decision {
        let local = |reason, latency| Decision { pool_bytes: Bytes::ZERO, reason, untouched_ratio: None, predicted_by: None, latency };
        if request.cores == 0 || request.memory_bytes == Bytes::ZERO {
            return local(Reason::BadRequest, Latency::NoModel);
        }
        if matches!(latency, Latency::Insensitive(_)) {
            // The part that is not a whole slice stays local.
            let pool_bytes = slices(request.memory_bytes, 1.0);
            return Decision { pool_bytes, reason: Reason::Insensitive, untouched_ratio: None, predicted_by: None, latency };
        }
        let untouched = |ratio, by| {
            let pool_bytes = slices(request.memory_bytes, ratio);
            let reason = if pool_bytes == Bytes::ZERO { Reason::NothingUntouched } else { Reason::Untouched };
            Decision { pool_bytes, reason, untouched_ratio: Some(ratio), predicted_by: Some(by), latency }
        };
        if let Some(ratio) = request.own_past.as_deref().and_then(own_past::predict) {
            return untouched(ratio, Predicted::OwnPast);
        }
        let model = match &self.untouched {
            Ok(model) => model,
            Err(error) if error.is_missing() => return local(Reason::NoModel, latency),
            Err(_) => return local(Reason::BadModel, latency),
        };
        let predicted = match (&request.history, request.customer) {
            (Some(given), _) => model.predict(request, given.iter().copied()),
            (None, Some(customer)) => model.predict(request, self.history.recent(customer, request.arrival)),
            (None, None) => Err(NoAnswer::NoHistory),
        };
        match predicted {
            Err(cause) => local(cause.into(), latency),
            Ok(ratio) => untouched(ratio, Predicted::Model),
        }
    }

    /// Runs the latency model on the counters of a workload.
    #[must_use]
    pub fn latency(&self, counters: Option<&BTreeMap<String, f32>>) -> Latency {
        let Some(Ok(model)) = &self.insensitive else { return Latency::NoModel };
        let Some(counters) = counters else { return Latency::NoAnswer(NoAnswer::NoHistory) };
        match model.predict(counters) {
            Err(cause) => Latency::NoAnswer(cause),
            Ok(score) if model.is_insensitive(score) => Latency::Insensitive(score),
            Ok(score) => Latency::Sensitive(score),
        }
    }

    /// Returns whether there is a usable latency model for [`Self::latency`].
    #[must_use]
    pub fn has_latency_model(&self) -> bool {
        matches!(self.insensitive, Some(Ok(_)))
    }
}

/// An empty history with the model's window, or that of the models that this program trains.
fn new_history(untouched: &Result<Untouched>) -> History {
    untouched.as_ref().map_or_else(|_| History::new(7 * 86_400, 256), Untouched::history)
}

/// Returns the whole slices within a share (0 to 1) of some memory.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "rounded down, never above the bytes"
)]
fn slices(memory: Bytes, ratio: f64) -> Bytes {
    let whole = memory.0 / SLICE.0;
    SLICE.saturating_mul(((memory.0 as f64 * ratio / SLICE.0 as f64) as u64).min(whole))
}

//! Decisions about the memory of a VM, and their reasons.

use serde::Serialize;
use units::Bytes;

/// Size of a slice, the unit of pool memory.
pub const SLICE: Bytes = Bytes::gib(1);

/// Why a model gives no prediction for a VM. All memory of the VM then stays local, the safe answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NoAnswer {
    /// The request has no customer, too few VMs of the customer have ended in the past week, or a counter is missing.
    NoHistory,
    /// The type, operating system or region is missing or too rare in the training data.
    UnseenCategory,
    /// A feature is outside the range of the training data, or is not a number.
    Drifted,
    /// The model was trained too long before the request, or after it.
    StaleModel,
}

/// The reason of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// All memory on the pool: the workload is insensitive to latency.
    Insensitive,
    /// The memory predicted to stay untouched, in whole slices.
    Untouched,
    /// None: less than a slice is predicted to stay untouched.
    NothingUntouched,
    /// None: see [`NoAnswer::NoHistory`].
    NoHistory,
    /// None: see [`NoAnswer::UnseenCategory`].
    UnseenCategory,
    /// None: see [`NoAnswer::Drifted`].
    Drifted,
    /// None: see [`NoAnswer::StaleModel`].
    StaleModel,
    /// None: the model's file does not exist.
    NoModel,
    /// None: the model's file cannot be used.
    BadModel,
    /// None: the request has no cores or no memory.
    BadRequest,
}

impl Reason {
    /// All reasons, in order.
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

    /// Returns the name used in JSON and metrics.
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

    /// Returns whether all memory stays local because no model gave a prediction.
    #[must_use]
    pub fn is_safe_answer(self) -> bool {
        !matches!(self, Self::Insensitive | Self::Untouched | Self::NothingUntouched)
    }
}

impl From<NoAnswer> for Reason {
    fn from(cause: NoAnswer) -> Self {
        match cause {
            NoAnswer::NoHistory => Self::NoHistory,
            NoAnswer::UnseenCategory => Self::UnseenCategory,
            NoAnswer::Drifted => Self::Drifted,
            NoAnswer::StaleModel => Self::StaleModel,
        }
    }
}

/// The result of the latency model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Latency {
    /// There is no latency model, or it cannot be used.
    NoModel,
    /// The model gives no prediction; the workload counts as sensitive.
    NoAnswer(NoAnswer),
    /// The probability of being insensitive is below the model's threshold.
    Sensitive(f64),
    /// The probability of being insensitive reaches the model's threshold.
    Insensitive(f64),
}

/// What predicted the untouched memory of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Predicted {
    /// The VM's own past week ([`crate::own_past`]).
    OwnPast,
    /// The model.
    Model,
}

/// How much of a VM's memory comes from the pool, and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Decision {
    /// Memory on the pool, in whole slices; the rest is local.
    pub pool_bytes: Bytes,
    /// The reason.
    pub reason: Reason,
    /// The predicted share of untouched memory; `None` if it was not predicted.
    pub untouched_ratio: Option<f64>,
    /// What predicted it.
    pub predicted_by: Option<Predicted>,
    /// The result of the latency model.
    pub latency: Latency,
}

//! What the model of untouched memory answered for a guest, as its record has it.

use predict::Reason;
use serde::{Deserialize, Serialize};

/// The prediction for a guest at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prediction {
    /// The model: the end of its training, in seconds by the clock of requests.
    pub model: i64,
    /// Its answer.
    pub answer: Answer,
}

/// The answer of a model of untouched memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// A share of the guest's memory, which may be zero.
    Predicted,
    /// None: too few guests of the customer have ended.
    NoHistory,
    /// None: the type, operating system or region is missing or too rare in the training data.
    UnseenCategory,
    /// None: a feature is outside the range of the training data.
    Drifted,
    /// None: the model was trained too long before the request, or after it.
    StaleModel,
    /// The model was not asked; or an answer of a newer version, which this one does not know.
    #[serde(other)]
    Other,
}

impl From<Reason> for Answer {
    fn from(reason: Reason) -> Self {
        match reason {
            Reason::Untouched | Reason::NothingUntouched => Self::Predicted,
            Reason::NoHistory => Self::NoHistory,
            Reason::UnseenCategory => Self::UnseenCategory,
            Reason::Drifted => Self::Drifted,
            Reason::StaleModel => Self::StaleModel,
            Reason::Insensitive | Reason::NoModel | Reason::BadModel | Reason::BadRequest => Self::Other,
        }
    }
}

impl Answer {
    /// Whether the model could not predict although there was a history: the guest differs from those of the training, or the model is
    /// not valid at its time. `None`: the answer says nothing of the model.
    #[must_use]
    pub fn is_missing(self) -> Option<bool> {
        match self {
            Self::Predicted => Some(false),
            Self::UnseenCategory | Self::Drifted | Self::StaleModel => Some(true),
            Self::NoHistory | Self::Other => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_have_the_names_of_reasons_and_newer_ones_are_others() {
        for reason in Reason::ALL {
            let (answer, name) = (Answer::from(reason), reason.name());
            let read: Answer = serde_json::from_str(&format!("\"{name}\"")).unwrap();
            assert!(read == answer || answer == Answer::Predicted, "{name}: {read:?}");
        }
        assert_eq!(serde_json::from_str::<Answer>("\"of_a_newer_version\"").unwrap(), Answer::Other);
        assert_eq!(serde_json::to_string(&Answer::UnseenCategory).unwrap(), "\"unseen_category\"");
    }
}

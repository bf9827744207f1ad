//! The serialized form of the state, in journals and histories.

use serde::{Deserialize, Serialize};

use super::{Fading, State};
use crate::thresholds::THRESHOLDS_MAX;

/// Counters without trailing zeros.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Stored {
    /// Without decay.
    Alike(Vec<u32>),
    /// With decay.
    Fading {
        /// In fractions of a best.
        bests: Vec<u32>,
        /// The half-life.
        half_life_ms: u64,
        /// How often it has passed.
        half_lives: u64,
    },
}

/// A serialized state with more counters than a set has thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSizeError(usize);

impl std::fmt::Display for PoolSizeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a pool of {} counters; there may be {}", self.0, THRESHOLDS_MAX + 1)
    }
}

impl std::error::Error for PoolSizeError {}

impl TryFrom<Vec<u32>> for State {
    type Error = PoolSizeError;

    fn try_from(list: Vec<u32>) -> Result<Self, PoolSizeError> {
        Self::try_from(Stored::Alike(list))
    }
}

impl TryFrom<Stored> for State {
    type Error = PoolSizeError;

    fn try_from(stored: Stored) -> Result<Self, PoolSizeError> {
        let (list, passed) = match stored {
            Stored::Alike(list) => (list, None),
            Stored::Fading { bests, half_life_ms, half_lives } => (bests, Some((half_life_ms, half_lives))),
        };
        let mut state = Self { fading: Fading { passed }, ..Self::default() };
        state.bests.get_mut(..list.len()).ok_or(PoolSizeError(list.len()))?.copy_from_slice(&list);
        Ok(state)
    }
}

impl From<State> for Stored {
    fn from(state: State) -> Self {
        let used = state.bests.iter().rposition(|&n| n > 0).map_or(0, |last| last + 1);
        let bests = state.bests[..used].to_vec();
        match state.fading.passed {
            None => Self::Alike(bests),
            Some((half_life_ms, half_lives)) => Self::Fading { bests, half_life_ms, half_lives },
        }
    }
}

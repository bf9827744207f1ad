//! The state as journals and histories hold it.

use serde::{Deserialize, Serialize};

use super::{Fading, State};
use crate::thresholds::THRESHOLDS_MAX;

/// Counters without the zeros at the end, which most sets never use.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Stored {
    /// All count alike: the only form there was before bests could fade.
    Alike(Vec<u32>),
    /// They fade.
    Fading {
        /// In parts of a best.
        bests: Vec<u32>,
        /// By this half-life.
        half_life_ms: u64,
        /// It has passed so often.
        half_lives: u64,
    },
}

/// A pool with more counters than a set has thresholds.
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

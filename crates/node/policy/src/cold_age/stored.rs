//! The serialized form of the state, in journals and histories.

use serde::{Deserialize, Serialize};

use super::lists::{PoolSizeError, copy, used};
use super::mean::Mean;
use super::partial::Taken;
use super::pooled::Pooled;
use super::window::Window;
use super::{Early, Fading, State};
use units::Millis;

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
        half_life_ms: Millis,
        /// How often it has passed.
        half_lives: u64,
    },
    /// With the measurements of a young history, and with or without decay.
    Young {
        /// As above.
        bests: Vec<u32>,
        /// The half-life and how often it has passed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        decay: Option<(Millis, u64)>,
        /// Observations by threshold.
        observations: Vec<u16>,
        /// The worst of them, in millionths of what the objective permitted.
        worst_ppm: Vec<u32>,
        /// Age of the job at the last one.
        last_ms: Millis,
        /// Sums of those that were made on a sample.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pooled: Option<StoredPooled>,
        /// How much of a part of the pages is taken.
        #[serde(default, skip_serializing_if = "is_default")]
        taken: Taken,
        /// Whether the first observation of a threshold does not count.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        strict: bool,
    },
    /// One of the above, and scans of a sample.
    Sampled {
        /// The rest.
        state: Box<Self>,
        /// The scans.
        window: Box<Window>,
    },
    /// One of the above, and promotions in the mean.
    Mean {
        /// The rest.
        state: Box<Self>,
        /// The promotions.
        mean: Box<Mean>,
    },
}

fn is_default(taken: &Taken) -> bool {
    *taken == Taken::default()
}

/// Sums over observations on a sample of the pages, without trailing zeros.
#[derive(Serialize, Deserialize)]
pub(super) struct StoredPooled {
    promoted: Vec<u64>,
    allowed: Vec<u64>,
    share_ppm: u32,
}

impl From<Pooled> for StoredPooled {
    fn from(pooled: Pooled) -> Self {
        Self { promoted: used(&pooled.promoted), allowed: used(&pooled.allowed), share_ppm: pooled.share_ppm }
    }
}

impl TryFrom<StoredPooled> for Pooled {
    type Error = PoolSizeError;

    fn try_from(stored: StoredPooled) -> Result<Self, PoolSizeError> {
        let mut pooled = Self { share_ppm: stored.share_ppm, ..Self::default() };
        copy(&mut pooled.promoted, &stored.promoted)?;
        copy(&mut pooled.allowed, &stored.allowed)?;
        Ok(pooled)
    }
}

impl TryFrom<Vec<u32>> for State {
    type Error = PoolSizeError;

    fn try_from(list: Vec<u32>) -> Result<Self, PoolSizeError> {
        Self::try_from(Stored::Alike(list))
    }
}

impl TryFrom<Stored> for State {
    type Error = PoolSizeError;

    fn try_from(stored: Stored) -> Result<Self, PoolSizeError> {
        let (list, passed, early) = match stored {
            Stored::Mean { state, mean } => return Ok(Self { mean: Some(*mean), ..Self::try_from(*state)? }),
            Stored::Sampled { state, window } => return Ok(Self { window: Some(*window), ..Self::try_from(*state)? }),
            // Versions without measurements wrote no more than this; a history that has begun counts as long.
            Stored::Alike(list) if list.is_empty() => (list, None, Some(Early::default())),
            Stored::Alike(list) => (list, None, None),
            Stored::Fading { bests, half_life_ms, half_lives } => (bests, Some((half_life_ms, half_lives)), None),
            Stored::Young { bests, decay, observations, worst_ppm, last_ms, pooled, taken, strict } => {
                let pooled = pooled.map_or_else(|| Ok(Pooled::default()), Pooled::try_from)?;
                let mut early = Early { last_ms, pooled, taken, strict, ..Early::default() };
                copy(&mut early.observations, &observations)?;
                copy(&mut early.worst_ppm, &worst_ppm)?;
                (bests, decay, Some(early))
            }
        };
        let mut state = Self { fading: Fading { passed }, early, ..Self::default() };
        copy(&mut state.bests, &list)?;
        Ok(state)
    }
}

impl From<State> for Stored {
    fn from(state: State) -> Self {
        if let Some(mean) = state.mean {
            return Self::Mean { state: Box::new(State { mean: None, ..state }.into()), mean: Box::new(mean) };
        }
        if let Some(window) = state.window {
            return Self::Sampled { state: Box::new(State { window: None, ..state }.into()), window: Box::new(window) };
        }
        let bests = used(&state.bests);
        match (state.early, state.fading.passed) {
            (Some(early), passed) if !bests.is_empty() || passed.is_some() || early != Early::default() => Self::Young {
                bests,
                decay: passed,
                observations: used(&early.observations),
                worst_ppm: used(&early.worst_ppm),
                last_ms: early.last_ms,
                pooled: (early.pooled != Pooled::default()).then(|| early.pooled.into()),
                taken: early.taken,
                strict: early.strict,
            },
            (_, None) => Self::Alike(bests),
            (_, Some((half_life_ms, half_lives))) => Self::Fading { bests, half_life_ms, half_lives },
        }
    }
}

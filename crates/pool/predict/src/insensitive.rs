//! The latency-insensitivity model: from top-down counters to whether a workload would notice slow memory (Pond, figure 12).

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::{Error, Result};
use crate::forest::{Forest, Kind};
use crate::metadata::{self, InsensitiveSays};
use crate::onnx::{self, Model};
use crate::untouched::Unsaid;

/// A model that is ready to be asked.
#[derive(Clone, Debug)]
pub struct Insensitive {
    says: InsensitiveSays,
    forest: Forest,
}

impl Insensitive {
    /// Reads a model.
    ///
    /// # Errors
    /// [`Error`]: the file cannot be read, or is no such model; it says where.
    pub fn load(path: &Path) -> Result<Self> {
        Self::parse(&onnx::read(path)?, path)
    }

    /// A model out of the bytes of a file, whose name errors tell.
    ///
    /// # Errors
    /// [`Error::Damaged`] and [`Error::Newer`].
    pub fn parse(bytes: &[u8], path: &Path) -> Result<Self> {
        let fail = |what: String| Error::damaged(path, what);
        let model = Model::parse(bytes).map_err(fail)?;
        let says: InsensitiveSays = metadata::read(&model, "insensitive", path)?;
        metadata::check(&says.features).map_err(fail)?;
        for (name, value) in [("threshold", says.threshold), ("latency_ratio", says.latency_ratio), ("pdm_ratio", says.pdm_ratio)] {
            if !(value > 0.0 && value.is_finite()) {
                return Err(fail(format!("{name} is {value}; it is above 0")));
            }
        }
        let forest = Forest::read(&model, Kind::Classifier, says.features.len()).map_err(fail)?;
        Ok(Self { says, forest })
    }

    /// The counters that it asks for, in its order.
    pub fn counters(&self) -> impl Iterator<Item = &str> {
        self.says.features.iter().map(|feature| feature.name.as_str())
    }

    /// Slow memory's latency as a multiple of local, and the slowdown that counts as none: what the model was trained for.
    #[must_use]
    pub fn trained_for(&self) -> (f64, f64) {
        (self.says.latency_ratio, self.says.pdm_ratio)
    }

    /// Whether a score is one of an insensitive workload.
    #[must_use]
    pub fn takes(&self, score: f64) -> bool {
        score >= self.says.threshold
    }

    /// The probability that a workload with these counters is insensitive, or why nothing is said. Counters that the model does
    /// not ask for do no harm.
    ///
    /// # Errors
    /// [`Unsaid::NoHistory`] where a counter is missing, [`Unsaid::Drifted`] where one is outside of what training has seen.
    pub fn predict(&self, counters: &BTreeMap<String, f32>) -> Result<f64, Unsaid> {
        let mut inputs = Vec::with_capacity(self.says.features.len());
        for feature in &self.says.features {
            let value = *counters.get(&feature.name).ok_or(Unsaid::NoHistory)?;
            if !(feature.low..=feature.high).contains(&value) {
                return Err(Unsaid::Drifted);
            }
            inputs.push(value);
        }
        Ok(self.forest.walk(&inputs))
    }
}

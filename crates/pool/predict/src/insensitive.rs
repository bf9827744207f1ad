//! The latency-insensitivity model: predicts from top-down counters whether slow memory slows a workload (Pond figure 12).

use std::collections::BTreeMap;
use std::path::Path;

use crate::decision::NoAnswer;
use crate::error::{Error, Result};
use crate::forest::{Forest, Kind};
use crate::metadata::{self, InsensitiveMetadata};
use crate::onnx::{self, Model};

/// A loaded model.
#[derive(Clone, Debug)]
pub struct Insensitive {
    metadata: InsensitiveMetadata,
    forest: Forest,
}

impl Insensitive {
    /// Reads a model from a file.
    ///
    /// # Errors
    /// [`Error`]: the file cannot be read, or is not a model of this kind.
    pub fn load(path: &Path) -> Result<Self> {
        Self::parse(&onnx::read(path)?, path)
    }

    /// Parses a model. `path` names the file in errors.
    ///
    /// # Errors
    /// [`Error::Damaged`] and [`Error::Newer`].
    pub fn parse(bytes: &[u8], path: &Path) -> Result<Self> {
        let fail = |problem: String| Error::damaged(path, problem);
        let model = Model::parse(bytes).map_err(fail)?;
        let metadata: InsensitiveMetadata = metadata::read(&model, "insensitive", path)?;
        metadata::check(&metadata.features).map_err(fail)?;
        for (name, value) in
            [("threshold", metadata.threshold), ("latency_ratio", metadata.latency_ratio), ("pdm_ratio", metadata.pdm_ratio)]
        {
            if !(value > 0.0 && value.is_finite()) {
                return Err(fail(format!("{name} is {value}; it must be above 0")));
            }
        }
        let forest = Forest::read(&model, Kind::Classifier, metadata.features.len()).map_err(fail)?;
        Ok(Self { metadata, forest })
    }

    /// Returns the counters that the model requires, in its order.
    pub fn counters(&self) -> impl Iterator<Item = &str> {
        self.metadata.features.iter().map(|feature| feature.name.as_str())
    }

    /// Returns what the model was trained for: the slow memory's latency as a multiple of local latency, and the slowdown up
    /// to which a workload counts as insensitive.
    #[must_use]
    pub fn trained_for(&self) -> (f64, f64) {
        (self.metadata.latency_ratio, self.metadata.pdm_ratio)
    }

    /// Returns whether a score means that the workload is insensitive.
    #[must_use]
    pub fn is_insensitive(&self, score: f64) -> bool {
        score >= self.metadata.threshold
    }

    /// Returns the probability that a workload with these counters is insensitive. Ignores counters that the model does not
    /// use.
    ///
    /// # Errors
    /// [`NoAnswer::NoHistory`] if a counter is missing, [`NoAnswer::Drifted`] if one is outside the range of the training data.
    pub fn predict(&self, counters: &BTreeMap<String, f32>) -> Result<f64, NoAnswer> {
        let mut inputs = Vec::with_capacity(self.metadata.features.len());
        for feature in &self.metadata.features {
            let value = *counters.get(&feature.name).ok_or(NoAnswer::NoHistory)?;
            if !(feature.low..=feature.high).contains(&value) {
                return Err(NoAnswer::Drifted);
            }
            inputs.push(value);
        }
        Ok(self.forest.evaluate(&inputs))
    }
}

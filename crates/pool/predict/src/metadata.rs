//! The metadata of a model file: JSON under the key `thermocline` of the ONNX metadata. `python/thermocline/learn/export.py`
//! writes it.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::onnx::Model;

const KEY: &str = "thermocline";
const SCHEMA: u64 = 1;

/// A feature, and its range in the training data.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct Feature {
    pub(crate) name: String,
    pub(crate) low: f32,
    pub(crate) high: f32,
}

/// The window of a customer's history.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct Window {
    pub(crate) window_seconds: i64,
    pub(crate) entries_min: usize,
    pub(crate) entries_max: usize,
    pub(crate) percentiles: Vec<usize>,
}

/// Metadata of the untouched-memory model.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct UntouchedMetadata {
    pub(crate) features: Vec<Feature>,
    /// Mean untouched share of the VMs of each category, by the name of the feature.
    pub(crate) categories: HashMap<String, HashMap<String, f32>>,
    pub(crate) history: Window,
    /// The share of VMs that may be overpredicted.
    pub(crate) target_ratio: f64,
    pub(crate) trained_until: i64,
    pub(crate) valid_seconds: i64,
}

/// Metadata of the latency-insensitivity model.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct InsensitiveMetadata {
    pub(crate) features: Vec<Feature>,
    /// Scores at or above it mean insensitive.
    pub(crate) threshold: f64,
    pub(crate) latency_ratio: f64,
    pub(crate) pdm_ratio: f64,
}

#[derive(Deserialize)]
struct Head {
    schema: u64,
    kind: String,
}

/// Reads the metadata of a model of a kind.
pub(crate) fn read<T: DeserializeOwned>(model: &Model, kind: &str, path: &Path) -> Result<T> {
    let fail = |problem: String| Error::damaged(path, problem);
    let text = model.metadata(KEY).ok_or_else(|| fail(format!("the ONNX model has no metadata {KEY:?}")))?;
    let invalid = |error: serde_json::Error| fail(format!("the metadata cannot be read: {error}"));
    let head: Head = serde_json::from_str(text).map_err(invalid)?;
    if head.schema > SCHEMA {
        return Err(Error::Newer { path: path.to_owned(), found: head.schema, known: SCHEMA });
    }
    if head.kind != kind {
        return Err(fail(format!("the model is of kind {:?}, expected kind {kind:?}", head.kind)));
    }
    serde_json::from_str(text).map_err(invalid)
}

/// Checks a list of features. The error names the problem.
pub(crate) fn check(features: &[Feature]) -> Result<(), String> {
    if features.is_empty() || features.len() > 4096 {
        return Err(format!("the metadata has {} features; 1 to 4096 are supported", features.len()));
    }
    for feature in features {
        if !(feature.low <= feature.high && feature.low.is_finite() && feature.high.is_finite()) {
            return Err(format!("the feature {:?} has the invalid range {} to {}", feature.name, feature.low, feature.high));
        }
    }
    Ok(())
}

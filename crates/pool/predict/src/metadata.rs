//! What a model's file says of itself beside its trees: JSON under the key `thermocline` of the ONNX metadata. The other side is
//! `python/thermocline/learn/export.py`.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::onnx::Model;

const KEY: &str = "thermocline";
const SCHEMA: u64 = 1;

/// A feature, and what training has seen of it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct Feature {
    pub(crate) name: String,
    pub(crate) low: f32,
    pub(crate) high: f32,
}

/// How a customer's history is taken.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct Window {
    pub(crate) window_seconds: i64,
    pub(crate) entries_min: usize,
    pub(crate) entries_max: usize,
    pub(crate) percentiles: Vec<usize>,
}

/// Of the untouched-memory model.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct UntouchedSays {
    pub(crate) features: Vec<Feature>,
    /// The mean untouched share of VMs of a category, by the feature that it becomes.
    pub(crate) categories: HashMap<String, HashMap<String, f32>>,
    pub(crate) history: Window,
    pub(crate) trained_until: i64,
    pub(crate) valid_seconds: i64,
}

/// Of the latency-insensitivity model.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct InsensitiveSays {
    pub(crate) features: Vec<Feature>,
    /// A score at or above it is insensitive.
    pub(crate) threshold: f64,
    pub(crate) latency_ratio: f64,
    pub(crate) pdm_ratio: f64,
}

#[derive(Deserialize)]
struct Head {
    schema: u64,
    kind: String,
}

/// What a model of a kind says of itself.
pub(crate) fn read<T: DeserializeOwned>(model: &Model, kind: &str, path: &Path) -> Result<T> {
    let fail = |what: String| Error::damaged(path, what);
    let text = model.metadata(KEY).ok_or_else(|| fail(format!("an ONNX model without the metadata {KEY:?}")))?;
    let wrong = |error: serde_json::Error| fail(format!("its metadata cannot be read: {error}"));
    let head: Head = serde_json::from_str(text).map_err(wrong)?;
    if head.schema > SCHEMA {
        return Err(Error::Newer { path: path.to_owned(), found: head.schema, known: SCHEMA });
    }
    if head.kind != kind {
        return Err(fail(format!("a model of kind {:?}, where one of kind {kind:?} is wanted", head.kind)));
    }
    serde_json::from_str(text).map_err(wrong)
}

/// What is wrong with a list of features.
pub(crate) fn check(features: &[Feature]) -> Result<(), String> {
    if features.is_empty() || features.len() > 4096 {
        return Err(format!("its metadata names {} features; 1 to 4096 are served", features.len()));
    }
    for feature in features {
        if !(feature.low <= feature.high && feature.low.is_finite() && feature.high.is_finite()) {
            return Err(format!("its feature {:?} reaches from {} to {}", feature.name, feature.low, feature.high));
        }
    }
    Ok(())
}

//! The untouched-memory model: predicts the share of its memory that a VM will not touch (Pond figure 14).

use std::ops::RangeInclusive;
use std::path::Path;

use units::RatioPpm;

use crate::decision::NoAnswer;
use crate::error::{Error, Result};
use crate::forest::{Forest, Kind};
use crate::history::History;
use crate::metadata::{self, UntouchedMetadata};
use crate::onnx::{self, Model};
use crate::request::Request;

const GIB: f64 = (1u64 << 30) as f64;
const DAY: i64 = 86_400;
const CATEGORIES: [&str; 3] = ["vm_type", "guest_os", "location"];

/// A loaded model.
#[derive(Clone, Debug)]
pub struct Untouched {
    metadata: UntouchedMetadata,
    forest: Forest,
}

impl Untouched {
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
        let metadata: UntouchedMetadata = metadata::read(&model, "untouched", path)?;
        check(&metadata).map_err(fail)?;
        let forest = Forest::read(&model, Kind::Regressor, metadata.features.len()).map_err(fail)?;
        Ok(Self { metadata, forest })
    }

    /// Returns the arrivals, in seconds, for which the model is valid: from the end of its training until it is stale.
    #[must_use]
    pub fn valid(&self) -> RangeInclusive<i64> {
        self.metadata.trained_until..=self.metadata.trained_until.saturating_add(self.metadata.valid_seconds)
    }

    /// Returns the end of the training, in seconds by the clock of requests.
    #[must_use]
    pub fn trained_until(&self) -> i64 {
        self.metadata.trained_until
    }

    /// Returns the share of VMs that may touch more than predicted: what the model was trained for.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 1, as `check` has verified")]
    pub fn target(&self) -> RatioPpm {
        RatioPpm((self.metadata.target_ratio * 1e6) as u32)
    }

    /// Returns an empty history with the window that this model was trained with.
    #[must_use]
    pub fn history(&self) -> History {
        History::new(self.metadata.history.window_seconds, self.metadata.history.entries_max)
    }

    /// Predicts the share of its memory that a VM will not touch, 0 to 1. `recent` are the untouched shares of the customer's
    /// VMs that have ended in the past week, in any order.
    ///
    /// # Errors
    /// [`NoAnswer`] if the model cannot be applied to the VM.
    pub fn predict(&self, request: &Request, recent: impl IntoIterator<Item = f32>) -> Result<f64, NoAnswer> {
        if !self.valid().contains(&request.arrival) {
            return Err(NoAnswer::StaleModel);
        }
        let inputs = self.features(request, recent)?;
        let in_range = |(input, feature): (&f32, &metadata::Feature)| (feature.low..=feature.high).contains(input);
        if !inputs.iter().zip(&self.metadata.features).all(in_range) {
            return Err(NoAnswer::Drifted);
        }
        Ok(self.forest.evaluate(&inputs).clamp(0.0, 1.0))
    }

    /// Returns the features in the order that `check` has verified.
    #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "the model compares 32-bit floats")]
    fn features(&self, request: &Request, recent: impl IntoIterator<Item = f32>) -> Result<Vec<f32>, NoAnswer> {
        let window = &self.metadata.history;
        let mut recent: Vec<f32> = recent.into_iter().take(window.entries_max).collect();
        if recent.len() < window.entries_min {
            return Err(NoAnswer::NoHistory);
        }
        recent.sort_unstable_by(f32::total_cmp);
        let mut inputs = Vec::with_capacity(self.metadata.features.len());
        inputs.extend(window.percentiles.iter().map(|percent| recent[(recent.len() - 1) * percent / 100]));
        inputs.push(recent.len() as f32);
        let categories = [&request.vm_type, &request.guest_os, &request.location];
        for (name, category) in CATEGORIES.iter().zip(categories) {
            let mean = self.metadata.categories.get(*name).and_then(|means| means.get(category.as_deref().unwrap_or_default()));
            inputs.push(*mean.ok_or(NoAnswer::UnseenCategory)?);
        }
        let gib = request.memory_bytes.0 as f64 / GIB;
        inputs.extend([
            request.cores as f32,
            gib as f32,
            (gib / f64::from(request.cores)) as f32,
            (request.arrival.rem_euclid(DAY) / 3600) as f32,
            request.arrival.div_euclid(DAY).rem_euclid(7) as f32,
        ]);
        Ok(inputs)
    }
}

/// Checks the metadata. The error names an invalid number, or a feature that this program does not compute.
fn check(metadata: &UntouchedMetadata) -> Result<(), String> {
    let window = &metadata.history;
    if !(1..=window.entries_max).contains(&window.entries_min) || window.entries_max > 1 << 16 || window.window_seconds <= 0 {
        return Err(format!(
            "the history has {} to {} VMs within {} s; 1 to 65536 VMs within more than 0 s are supported",
            window.entries_min, window.entries_max, window.window_seconds
        ));
    }
    if let Some(percent) = window.percentiles.iter().find(|&&percent| percent > 100) {
        return Err(format!("the history has the percentile {percent}; 0 to 100 are supported"));
    }
    if metadata.valid_seconds < 0 {
        return Err(format!("valid_seconds is {}; it must be at least 0", metadata.valid_seconds));
    }
    if !(0.0..=1.0).contains(&metadata.target_ratio) {
        return Err(format!("target_ratio is {}; it must be from 0 to 1", metadata.target_ratio));
    }
    metadata::check(&metadata.features)?;
    let computed = window.percentiles.iter().map(|percent| format!("history_p{percent}"));
    let computed = computed.chain(["history_count".to_owned()]).chain(CATEGORIES.map(|name| format!("{name}_mean")));
    let computed: Vec<String> = computed.chain(["cores", "memory_gib", "gib_per_core", "hour", "weekday"].map(str::to_owned)).collect();
    let named: Vec<&str> = metadata.features.iter().map(|feature| feature.name.as_str()).collect();
    if computed != named {
        let first = computed.iter().zip(&named).find(|(computed, named)| computed != *named);
        return Err(match first {
            Some((computed, named)) => format!("the feature {named:?} is in the place of {computed:?}"),
            None => format!("the model has {} features; this program computes {}", named.len(), computed.len()),
        });
    }
    Ok(())
}

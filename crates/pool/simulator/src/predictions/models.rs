//! A directory of models, one for each night.

use std::path::Path;

use predict::{Insensitive, Predictor, Untouched};
use thiserror::Error;

/// Errors of reading a directory of models.
#[derive(Debug, Error)]
pub enum ModelsError {
    /// The directory cannot be read.
    #[error("cannot read the models in {0}: {1}")]
    Directory(String, #[source] std::io::Error),
    /// No file in it is a usable model of untouched memory.
    #[error("{0} holds no usable model of untouched memory; `thermocline-learn train nights` writes them{1}")]
    NoneUsable(String, String),
}

/// Models of untouched memory by night, and models of insensitivity by latency.
#[derive(Clone, Debug)]
pub struct Models {
    /// Ordered by the end of their training; at least one.
    nights: Vec<Untouched>,
    insensitive: Vec<Insensitive>,
    errors: Vec<String>,
}

/// The boundary between the two latencies that models are trained for, in added nanoseconds: halfway between 182 % and 222 % of
/// local latency.
const BOUNDARY_NS: u32 = 102;
/// The same boundary as a multiple of local latency.
const BOUNDARY_RATIO: f64 = 2.02;

impl Models {
    /// Reads all `untouched*.onnx` and `insensitive*.onnx` of a directory. Skips unusable files and reports them by
    /// [`Models::errors`]; VMs of a skipped night use the model of the night before until it is stale.
    ///
    /// # Errors
    /// [`ModelsError`]: the directory cannot be read or holds no usable model of untouched memory.
    pub fn load(directory: &Path) -> Result<Self, ModelsError> {
        let name = || directory.display().to_string();
        let fail = |error| ModelsError::Directory(name(), error);
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(directory).map_err(fail)? {
            paths.push(entry.map_err(fail)?.path());
        }
        paths.sort();
        let (mut nights, mut insensitive, mut errors) = (Vec::new(), Vec::new(), Vec::new());
        for path in paths.iter().filter(|path| path.extension().is_some_and(|extension| extension == "onnx")) {
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            let error = if file.starts_with("untouched") {
                Untouched::load(path).map(|model| nights.push(model)).err()
            } else if file.starts_with("insensitive") {
                Insensitive::load(path).map(|model| insensitive.push(model)).err()
            } else {
                continue;
            };
            errors.extend(error.map(|error| error.to_string()));
        }
        if nights.is_empty() {
            let cause = errors.first().map(|error| format!(": {error}")).unwrap_or_default();
            return Err(ModelsError::NoneUsable(name(), cause));
        }
        nights.sort_by_key(|night| *night.valid().start());
        Ok(Self { nights, insensitive, errors })
    }

    /// Returns the errors of files that were skipped.
    #[must_use]
    pub fn errors(&self) -> &[String] {
        &self.errors
    }

    /// Returns when the first night's model becomes valid, in seconds of the trace.
    #[must_use]
    pub fn valid_from(&self) -> i64 {
        self.nights.first().map_or(0, |night| *night.valid().start())
    }

    /// Returns the models of untouched memory, ordered by the end of their training.
    #[must_use]
    pub fn nights(&self) -> &[Untouched] {
        &self.nights
    }

    /// Returns the model of insensitivity that was trained for a latency; a model for the other latency is not used.
    #[must_use]
    pub fn insensitive(&self, added_ns: u32) -> Option<predict::Result<Insensitive>> {
        let high = added_ns > BOUNDARY_NS;
        self.insensitive.iter().find(|model| (model.trained_for().0 > BOUNDARY_RATIO) == high).cloned().map(Ok)
    }

    /// Returns a predictor with the first night's model.
    pub(crate) fn predictor(&self, added_ns: u32) -> Predictor {
        Predictor::new(Ok(self.nights[0].clone()), self.insensitive(added_ns))
    }
}

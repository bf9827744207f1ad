//! The models of many nights, out of a directory.

use std::path::Path;

use predict::{Insensitive, Predictor, Untouched};
use thiserror::Error;

/// Why there are no models.
#[derive(Debug, Error)]
pub enum NoModels {
    /// The directory cannot be read.
    #[error("cannot read the models in {0}: {1}")]
    Directory(String, #[source] std::io::Error),
    /// No file of it is a model of untouched memory that can be used.
    #[error("{0} holds no usable model of untouched memory; `python -m thermocline.learn train nights` writes them{1}")]
    None(String, String),
}

/// Models of untouched memory by night, and models of insensitivity by latency.
#[derive(Clone, Debug)]
pub struct Models {
    /// By the end of their training; there is one at least.
    nights: Vec<Untouched>,
    insensitive: Vec<Insensitive>,
    faults: Vec<String>,
}

/// Added latency up to which a model for 182 % of local latency speaks, and beyond which one for 222 % does: halfway.
const BETWEEN_NS: u32 = 102;
/// The same in multiples of local latency.
const BETWEEN_RATIO: f64 = 2.02;

impl Models {
    /// Reads all `untouched*.onnx` and `insensitive*.onnx` of a directory. A file that cannot be used is left out and told by
    /// [`Models::faults`]: the night's VMs go by the model of the night before, until that is stale.
    ///
    /// # Errors
    /// [`NoModels`]: no model of untouched memory is left.
    pub fn load(directory: &Path) -> Result<Self, NoModels> {
        let named = || directory.display().to_string();
        let fail = |error| NoModels::Directory(named(), error);
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(directory).map_err(fail)? {
            paths.push(entry.map_err(fail)?.path());
        }
        paths.sort();
        let (mut nights, mut insensitive, mut faults) = (Vec::new(), Vec::new(), Vec::new());
        for path in paths.iter().filter(|path| path.extension().is_some_and(|extension| extension == "onnx")) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let fault = if name.starts_with("untouched") {
                Untouched::load(path).map(|model| nights.push(model)).err()
            } else if name.starts_with("insensitive") {
                Insensitive::load(path).map(|model| insensitive.push(model)).err()
            } else {
                continue;
            };
            faults.extend(fault.map(|fault| fault.to_string()));
        }
        if nights.is_empty() {
            let why = faults.first().map(|fault| format!(": {fault}")).unwrap_or_default();
            return Err(NoModels::None(named(), why));
        }
        nights.sort_by_key(|night| *night.valid().start());
        Ok(Self { nights, insensitive, faults })
    }

    /// What is wrong with files that were left out.
    #[must_use]
    pub fn faults(&self) -> &[String] {
        &self.faults
    }

    /// When the first night's model comes into force, in seconds of the trace.
    #[must_use]
    pub fn begins(&self) -> i64 {
        self.nights.first().map_or(0, |night| *night.valid().start())
    }

    /// Models of untouched memory by the end of their training.
    #[must_use]
    pub fn nights(&self) -> &[Untouched] {
        &self.nights
    }

    /// The model of insensitivity for a latency: one that was trained for the other of the two must not speak.
    #[must_use]
    pub fn insensitive(&self, added_ns: u32) -> Option<predict::Result<Insensitive>> {
        let far = added_ns > BETWEEN_NS;
        self.insensitive.iter().find(|model| (model.trained_for().0 > BETWEEN_RATIO) == far).cloned().map(Ok)
    }

    /// Who is asked from the beginning.
    pub(super) fn predictor(&self, added_ns: u32) -> Predictor {
        Predictor::new(Ok(self.nights[0].clone()), self.insensitive(added_ns))
    }
}

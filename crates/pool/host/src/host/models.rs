//! The models in use: read again when their files change, and left while their predictions fail.
//!
//! A model is trained each night on guests that have ended, and may be wrong about the guests of tomorrow. So the host counts, of the
//! guests that a model gave pool memory, those that touched it. If these are more than the model was trained for, beyond chance, its
//! predictions are not used until there is another model.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use predict::{Insensitive, Predictor, Untouched};
use serde::{Deserialize, Serialize};
use units::RatioPpm;

/// A model fails if so many or more guests would touch their pool memory by chance with this probability only. It is small because each
/// guest that ends is one more chance.
const CHANCE: f64 = 0.001;

/// Fewer guests than this are no evidence.
const FAILED_MIN: u32 = 3;

/// What distinguishes a model from its successors: the end of its training, in seconds by the clock of requests.
pub type ModelId = i64;

/// What happened to the guests that got pool memory by a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Guests that ran for long enough.
    pub guests: u32,
    /// Those that touched more of their pool memory than is tolerated.
    pub touched: u32,
}

impl Outcome {
    /// Adds a guest.
    pub fn add(&mut self, touched: bool) {
        self.guests += 1;
        self.touched += u32::from(touched);
    }

    /// Whether more guests touched their pool memory than `target` of them would by chance.
    ///
    /// By Chernoff's bound for a mean of `m = n p`: `P(X >= k) <= e^-(k ln(k / m) - k + m)` for `k > m`.
    #[must_use]
    pub fn fails(&self, target: RatioPpm) -> bool {
        let (touched, mean) = (f64::from(self.touched), f64::from(self.guests) * target.as_f64());
        if self.touched < FAILED_MIN || touched <= mean {
            return false;
        }
        touched * (touched / mean).ln() - touched + mean > -CHANCE.ln()
    }
}

/// What identifies the content of a file without reading it.
type Stamp = (u64, u64, i64, i64, u64);

fn stamp(path: &Path) -> Option<Stamp> {
    let of = |file: Metadata| (file.dev(), file.ino(), file.mtime(), file.mtime_nsec(), file.len());
    std::fs::metadata(path).ok().map(of)
}

/// The files of the models, as they were read last.
#[derive(Debug, Default)]
struct Files {
    untouched: PathBuf,
    insensitive: Option<PathBuf>,
    read: [Option<Stamp>; 2],
}

impl Files {
    fn stamps(&self) -> [Option<Stamp>; 2] {
        [stamp(&self.untouched), self.insensitive.as_deref().and_then(stamp)]
    }
}

/// The models in use, and where they come from.
#[derive(Debug)]
pub struct Models {
    files: Option<Files>,
    predictor: Arc<Predictor>,
    /// Guests by the model that gave them pool memory, ended ones only.
    outcomes: BTreeMap<ModelId, Outcome>,
    failed: Option<ModelId>,
}

impl From<Predictor> for Models {
    /// Models without files, which are never replaced.
    fn from(predictor: Predictor) -> Self {
        Self { files: None, predictor: Arc::new(predictor), outcomes: BTreeMap::new(), failed: None }
    }
}

impl Models {
    /// Reads the models. One that cannot be used is an error of [`Predictor::errors`].
    #[must_use]
    pub fn load(untouched: &Path, insensitive: Option<&Path>) -> Self {
        let mut files = Files { untouched: untouched.to_owned(), insensitive: insensitive.map(Path::to_owned), read: [None; 2] };
        // Before they are read: a change in between is read once more.
        files.read = files.stamps();
        Self { files: Some(files), ..Self::from(Predictor::load(untouched, insensitive)) }
    }

    /// The models.
    #[must_use]
    pub fn predictor(&self) -> &Arc<Predictor> {
        &self.predictor
    }

    /// Reads files that have changed. Returns whether the models were replaced, and errors of files that cannot be used. In place of
    /// such a file the model that was read from it earlier stays in use. A file that was removed is a model that was withdrawn.
    pub(super) fn refresh(&mut self) -> (bool, Vec<String>) {
        let Some(files) = &mut self.files else { return (false, Vec::new()) };
        let now = files.stamps();
        if now == files.read {
            return (false, Vec::new());
        }
        let mut errors = Vec::new();
        let [no_untouched, no_insensitive] = [0, 1].map(|model: usize| now[model].is_none() && files.read[model].is_some());
        let read = (!no_untouched && now[0] != files.read[0]).then(|| Untouched::load(&files.untouched));
        let (untouched, is_new) = newer(read, self.predictor.untouched(), &mut errors);
        let read = files.insensitive.as_deref().filter(|_| !no_insensitive && now[1] != files.read[1]).map(Insensitive::load);
        let (insensitive, is_new_too) = newer(read, self.predictor.insensitive(), &mut errors);
        files.read = now;
        if !is_new && !is_new_too && !no_untouched && !no_insensitive {
            return (false, errors);
        }
        let (untouched, insensitive) = (untouched.filter(|_| !no_untouched), insensitive.filter(|_| !no_insensitive));
        let untouched = untouched.map_or_else(|| Untouched::load(&files.untouched), Ok);
        self.predictor = Arc::new(Predictor::new(untouched, insensitive.map(Ok)));
        // They are counted again from the file of lives.
        self.outcomes.clear();
        (true, errors)
    }

    /// The model of untouched memory; `None` if there is none.
    pub(super) fn id(&self) -> Option<ModelId> {
        self.predictor.untouched().map(Untouched::trained_until)
    }

    /// Whether the present model of untouched memory has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.is_some() && self.failed == self.id()
    }

    /// Adds a guest that has ended.
    pub(super) fn add(&mut self, model: ModelId, touched: bool) {
        self.outcomes.entry(model).or_default().add(touched);
    }

    /// What happened to the present model's guests that have ended.
    pub(super) fn outcome(&self) -> Outcome {
        self.id().and_then(|id| self.outcomes.get(&id)).copied().unwrap_or_default()
    }

    /// Judges the present model by its guests that have ended and those that `running` has. Returns its outcome if it fails now and did
    /// not before.
    pub(super) fn judge(&mut self, running: Outcome) -> Option<(Outcome, RatioPpm)> {
        let model = self.predictor.untouched()?;
        let ended = self.outcome();
        let all = Outcome { guests: ended.guests + running.guests, touched: ended.touched + running.touched };
        let fails = all.fails(model.target());
        // A failure lasts as long as the model: guests that end later were started without it.
        let is_new = fails && !self.has_failed();
        let found = is_new.then(|| (all, model.target()));
        if is_new {
            self.failed = self.id();
        }
        found
    }
}

/// The model that was read now, or else the one that is known; and whether it is new. Adds why a file cannot be used to `errors`.
fn newer<T: Clone>(read: Option<predict::Result<T>>, known: Option<&T>, errors: &mut Vec<String>) -> (Option<T>, bool) {
    match read {
        Some(Ok(model)) => (Some(model), true),
        Some(Err(error)) => {
            errors.push(error.to_string());
            (known.cloned(), false)
        }
        None => (known.cloned(), false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_fails_beyond_chance_only() {
        let fails = |touched, guests| Outcome { guests, touched }.fails(RatioPpm(40_000));
        assert!(!fails(2, 2), "two guests are no evidence");
        // The bound is 0.0011 for three of three, and 0.0003 for four of five.
        assert!(!fails(3, 3) && fails(4, 5));
        // Of 1,000 guests 40 are expected: the bound is 0.0014 for 65 of them, and 0.0009 for 66.
        assert!(!fails(65, 1_000) && fails(66, 1_000));
        assert!(!fails(0, 0) && !fails(400, 10_000));
        assert!(fails(u32::MAX / 2, u32::MAX));
        assert!(Outcome { guests: 9, touched: 3 }.fails(RatioPpm(0)), "none may");
    }
}

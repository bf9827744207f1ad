//! The outcome of a part of a fleet, as a value that can be written, read and added.
//!
//! It is the unit of distributed work and of work that is resumed: a worker gets the names of files and returns a
//! partial. It is exact: however a fleet is split, the parts add up to the same bits.
//!
//! # Safety
//! Sums do not show what they are sums of. A partial therefore carries its [`Setting`] and its [`Coverage`]; merging
//! rejects other parameters, parts that were counted before, and parts that would cut a job.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use store::FileError;
use trace::Basis;
use units::{Millis, RatioPpm};

use crate::coverage::{Conflict, Coverage};
use crate::fleet::{self, By, GROUPS_MAX, Groups, Model};
use crate::grid::{Grid, GridError, Setup};
use crate::survey::Survey;
use crate::tally::Tally;
use crate::trackers::Trackers;

mod file;

/// Extension of tally files.
pub const EXTENSION: &str = "tally";

/// All inputs of the sums except the jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Basis of the histograms.
    pub basis: Basis,
    /// Whether the fleet is generated.
    pub generated: bool,
    percentiles: Vec<RatioPpm>,
    warmups_ms: Vec<Millis>,
    /// Each group has one tally per setup.
    pub setups: Vec<Setup>,
    /// How jobs are grouped.
    pub by: By,
    /// Whether the fleet is also surveyed.
    pub survey: bool,
}

impl Setting {
    /// Creates the setting of a replay over `grid`.
    #[must_use]
    pub fn new(basis: Basis, generated: bool, grid: &Grid, setups: Vec<Setup>, by: By, survey: bool) -> Self {
        let (percentiles, warmups_ms) = (grid.percentiles().to_vec(), grid.warmups().to_vec());
        Self { basis, generated, percentiles, warmups_ms, setups, by, survey }
    }

    /// Returns the grid of its pairs.
    ///
    /// # Errors
    /// [`GridError`] if no grid has these pairs.
    pub fn grid(&self) -> Result<Grid, GridError> {
        Grid::new(self.percentiles.clone(), self.warmups_ms.clone())
    }

    /// Returns the first parameter in which `other` differs.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Option<Difference> {
        let differ = |((what, mine), (_, theirs)): ((&'static str, String), (_, String))| {
            (mine != theirs).then_some(Difference { what, mine, theirs })
        };
        self.words().into_iter().zip(other.words()).find_map(differ)
    }

    fn words(&self) -> [(&'static str, String); 8] {
        let basis = &self.basis;
        let ages: Vec<u8> = basis.thresholds.as_slice().iter().map(|age| age.0).collect();
        [
            ("generated", self.generated.to_string()),
            ("thresholds, in scans", list(&ages)),
            ("scan period and page size", format!("{} ms, {} bytes", basis.scan_period_ms.0, basis.page_bytes.0)),
            ("percentiles", list(&self.percentiles)),
            ("warm-ups, in milliseconds", list(&self.warmups_ms.iter().map(|warmup| warmup.0).collect::<Vec<_>>())),
            ("limits", self.setups.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")),
            ("grouped by", format!("{:?}", self.by).to_lowercase()),
            ("a survey", self.survey.to_string()),
        ]
    }
}

fn list(values: &[impl ToString]) -> String {
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// A parameter that differs between two settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The parameter.
    pub what: &'static str,
    /// Its value in the first setting.
    pub mine: String,
    /// Its value in the other setting.
    pub theirs: String,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} here, {} there", self.what, self.mine, self.theirs)
    }
}

/// Reason why partials cannot be added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// They have different parameters.
    #[error("the parameters differ ({0}); replay with the same parameters")]
    Setting(Difference),
    /// They count the same jobs.
    #[error(transparent)]
    Coverage(#[from] Conflict),
    /// Together there are too many groups.
    #[error("together they have more than {GROUPS_MAX} groups; replay without --by")]
    Groups,
}

/// Error of reading, writing or adding partials.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An operation on a file failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file is not a tally, or is damaged.
    #[error("{path}: {what}")]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// Description of the damage.
        what: String,
    },
    /// The file was written by another version of the program, whose sums may differ.
    #[error("{path} is a tally of version {found}; this program has version {known}; replay all parts with one version of the program")]
    Version {
        /// Path of the file.
        path: PathBuf,
        /// Version of the file.
        found: u32,
        /// Version of this program.
        known: u32,
    },
    /// The file's sums cannot be added to those of the files before it.
    #[error("{path} cannot be added to the tallies before it: {source}")]
    Merge {
        /// Path of the file.
        path: PathBuf,
        /// The reason.
        source: MergeError,
    },
    /// No file was given.
    #[error("no tally was given")]
    None,
}

/// Sums of some parts of a fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partial {
    /// The parameters.
    pub setting: Setting,
    /// The parts.
    pub coverage: Coverage,
    /// The sums, by group and setup.
    pub groups: Groups,
    /// The entries by tracker.
    pub trackers: Trackers,
    /// The survey of the fleet, if the setting includes it.
    pub survey: Option<Survey>,
}

impl Partial {
    /// Creates a partial without parts.
    #[must_use]
    pub fn empty(setting: Setting) -> Self {
        let survey = setting.survey.then(Survey::default);
        Self { setting, coverage: Coverage::default(), groups: Groups::new(), trackers: Trackers::default(), survey }
    }

    /// Creates a partial from the sums of the parts of `coverage`.
    #[must_use]
    pub fn of(setting: Setting, coverage: Coverage, survey: Option<Survey>, model: Model<'_>) -> Self {
        Self { setting, coverage, groups: model.groups, trackers: model.trackers, survey }
    }

    /// Adds another partial.
    ///
    /// # Errors
    /// [`MergeError`]; the sums are then invalid.
    pub fn merge(&mut self, other: Self) -> Result<(), MergeError> {
        if let Some(difference) = self.setting.difference(&other.setting) {
            return Err(MergeError::Setting(difference));
        }
        self.coverage.merge(&other.coverage)?;
        self.trackers.merge(other.trackers);
        crate::fleet::Account::merge(&mut self.survey, other.survey);
        if fleet::merge(&mut self.groups, other.groups) { Ok(()) } else { Err(MergeError::Groups) }
    }

    /// Reads files and adds them up.
    ///
    /// # Errors
    /// [`Error`], with the path of the file.
    pub fn merged<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Result<Self, Error> {
        let mut whole: Option<Self> = None;
        for path in paths {
            let (path, part) = (path.as_ref(), Self::read(path.as_ref())?);
            match &mut whole {
                None => whole = Some(part),
                Some(whole) => whole.merge(part).map_err(|source| Error::Merge { path: path.to_owned(), source })?,
            }
        }
        whole.ok_or(Error::None)
    }

    /// Returns the sums over all groups, in the order of the setups.
    ///
    /// # Errors
    /// [`GridError`], as [`Setting::grid`].
    pub fn whole(&self) -> Result<Vec<Tally>, GridError> {
        Ok(fleet::whole(&self.setting.grid()?, self.setting.setups.len(), &self.groups))
    }

    /// Returns whether the values are consistent. Called once, after reading.
    fn is_sound(&self) -> bool {
        let Ok(grid) = self.setting.grid() else { return false };
        let setups = self.setting.setups.len();
        // A grid sorts its axes and removes repetitions: the sums of other axes would be at other positions.
        let in_order = grid.percentiles() == self.setting.percentiles && grid.warmups() == self.setting.warmups_ms;
        let groups = setups > 0 && self.groups.len() <= GROUPS_MAX && self.groups.values().all(|tallies| tallies.len() == setups);
        let tallies = || self.groups.values().flatten().all(|tally| tally.is_sound(&grid));
        let survey = self.setting.survey == self.survey.is_some() && self.survey.as_ref().is_none_or(Survey::is_sound);
        in_order && groups && self.coverage.is_sound() && self.trackers.is_sound() && survey && tallies()
    }
}

#[cfg(test)]
mod tests;

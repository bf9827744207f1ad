//! What a part of a fleet came to, as a value that can be written, read and added.
//!
//! The unit of work of more than one machine, and of work that goes on after a break: who replays is given the names of
//! files, and gives back one of these. It is exact: however a fleet is cut, the parts add up to the same bits.
//!
//! # Safety
//! Sums say nothing of what they are sums of. So a partial carries its [`Setting`] and its [`Coverage`]: what was made under
//! other parameters, what was counted before, and what would cut a job is refused.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use store::FileError;
use trace::Basis;
use units::RatioPpm;

use crate::coverage::{Conflict, Coverage};
use crate::fleet::{self, By, GROUPS_MAX, Groups, Model};
use crate::grid::{Grid, GridError, Setup};
use crate::survey::Survey;
use crate::tally::Tally;

mod file;

/// What a tally file is called.
pub const EXTENSION: &str = "tally";

/// Everything that sums depend on, but for the jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// What the histograms stand for.
    pub basis: Basis,
    /// Whether the fleet was made up.
    pub generated: bool,
    percentiles: Vec<RatioPpm>,
    warmups_ms: Vec<u64>,
    /// One tally of each group is for each.
    pub setups: Vec<Setup>,
    /// By what jobs are told apart.
    pub by: By,
    /// Whether the fleet is also shown as it is.
    pub survey: bool,
}

impl Setting {
    /// The setting of a replay over `grid`.
    #[must_use]
    pub fn new(basis: Basis, generated: bool, grid: &Grid, setups: Vec<Setup>, by: By, survey: bool) -> Self {
        let (percentiles, warmups_ms) = (grid.percentiles().to_vec(), grid.warmups_ms().to_vec());
        Self { basis, generated, percentiles, warmups_ms, setups, by, survey }
    }

    /// Its pairs.
    ///
    /// # Errors
    /// [`GridError`], for a setting that no grid was made for.
    pub fn grid(&self) -> Result<Grid, GridError> {
        Grid::new(self.percentiles.clone(), self.warmups_ms.clone())
    }

    /// What `other` has that differs, in words: its name, what it is here, and what it is there.
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
            ("scan period and page size", format!("{} ms, {} bytes", basis.scan_period_ms, basis.page_bytes)),
            ("percentiles", list(&self.percentiles)),
            ("warm-ups, in milliseconds", list(&self.warmups_ms)),
            ("limits", self.setups.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")),
            ("told apart by", format!("{:?}", self.by).to_lowercase()),
            ("a survey", self.survey.to_string()),
        ]
    }
}

fn list(values: &[impl ToString]) -> String {
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// What two settings do not share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Which parameter.
    pub what: &'static str,
    /// Its value in the one.
    pub mine: String,
    /// Its value in the other.
    pub theirs: String,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} here, {} there", self.what, self.mine, self.theirs)
    }
}

/// Why partials do not add up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// They are of different parameters.
    #[error("they are of other parameters ({0}); replay with the same")]
    Setting(Difference),
    /// They are of the same jobs.
    #[error(transparent)]
    Coverage(#[from] Conflict),
    /// Together there are too many groups.
    #[error("together they have more than {GROUPS_MAX} groups; replay without --by")]
    Groups,
}

/// Why a partial cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An operation on a file failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file is none, or a damaged one.
    #[error("{path}: {what}")]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The file was written by another version of the program, whose sums may be others.
    #[error("{path} is a tally of version {found}, and this program's are of version {known}; replay with one version of the program")]
    Version {
        /// Which file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// This program's.
        known: u32,
    },
    /// It cannot be added to those before it.
    #[error("{path} does not add up with the tallies before it: {source}")]
    Merge {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: MergeError,
    },
    /// There are none.
    #[error("no tally was given")]
    None,
}

/// What some parts of a fleet came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partial {
    /// Under which parameters.
    pub setting: Setting,
    /// Which parts.
    pub coverage: Coverage,
    /// The sums, by group and setup.
    pub groups: Groups,
    /// The fleet as it is, where the setting asks for it.
    pub survey: Option<Survey>,
}

impl Partial {
    /// Of no part yet.
    #[must_use]
    pub fn empty(setting: Setting) -> Self {
        let survey = setting.survey.then(Survey::default);
        Self { setting, coverage: Coverage::default(), groups: Groups::new(), survey }
    }

    /// What was counted in the parts of `coverage`.
    #[must_use]
    pub fn of(setting: Setting, coverage: Coverage, survey: Option<Survey>, model: Model<'_>) -> Self {
        Self { setting, coverage, groups: model.groups, survey }
    }

    /// Adds another one.
    ///
    /// # Errors
    /// [`MergeError`]; the sums are not to be used then.
    pub fn merge(&mut self, other: Self) -> Result<(), MergeError> {
        if let Some(difference) = self.setting.difference(&other.setting) {
            return Err(MergeError::Setting(difference));
        }
        self.coverage.merge(&other.coverage)?;
        crate::fleet::Account::merge(&mut self.survey, other.survey);
        if fleet::merge(&mut self.groups, other.groups) { Ok(()) } else { Err(MergeError::Groups) }
    }

    /// Reads files and adds them up, one after the other.
    ///
    /// # Errors
    /// [`Error`], with the name of the file.
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

    /// The sums over all groups, in the order of the setups.
    ///
    /// # Errors
    /// [`GridError`], as [`Setting::grid`].
    pub fn whole(&self) -> Result<Vec<Tally>, GridError> {
        Ok(fleet::whole(&self.setting.grid()?, self.setting.setups.len(), &self.groups))
    }

    /// Whether what was read can be used without a second look.
    fn is_sound(&self) -> bool {
        let Ok(grid) = self.setting.grid() else { return false };
        let setups = self.setting.setups.len();
        // A grid is sorted and without repetitions; only so do positions agree.
        let in_order = grid.percentiles() == self.setting.percentiles && grid.warmups_ms() == self.setting.warmups_ms;
        let groups = setups > 0 && self.groups.len() <= GROUPS_MAX && self.groups.values().all(|tallies| tallies.len() == setups);
        let tallies = || self.groups.values().flatten().all(|tally| tally.is_sound(&grid));
        let survey = self.setting.survey == self.survey.is_some() && self.survey.as_ref().is_none_or(Survey::is_sound);
        in_order && groups && self.coverage.is_sound() && survey && tallies()
    }
}

#[cfg(test)]
mod tests;

//! Distributes jobs over all cores.
//!
//! Each thread takes the next piece of work as soon as it has finished one, and keeps its own account; the accounts are
//! merged at the end. Memory holds one account and one job per thread, independent of the size of the fleet. Accounts
//! are integers, so the result does not depend on the distribution.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use policy::thresholds::Thresholds;
use serde::{Deserialize, Serialize};

use crate::coverage::Part;
use crate::grid::{Grid, Setup};
use crate::replay::Replay;
use crate::series::Series;
use crate::tally::Tally;
use crate::trackers::Trackers;

/// Identity of a series.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Label {
    /// The cluster.
    pub cluster: String,
    /// The machine within it.
    pub machine: String,
    /// Class of the job, or kind of a generated one.
    pub class: String,
}

/// A source of jobs.
pub trait Source: Sync {
    /// Error of reading jobs.
    type Error: Send;

    /// Returns the number of pieces that can be read independently. Each job is in one piece.
    fn pieces(&self) -> usize;

    /// Returns the approximate size of a piece; 0 if it is unknown.
    fn bytes(&self, _piece: usize) -> u64 {
        0
    }

    /// Calls `each` for every job of a piece.
    ///
    /// # Errors
    /// Those of the source.
    fn read(&self, piece: usize, each: &mut dyn FnMut(&Label, &Series)) -> Result<(), Self::Error>;
}

/// A source whose pieces have an identity that does not depend on their order.
pub trait Named: Source {
    /// Returns the identity of a piece.
    fn part(&self, piece: usize) -> Part;
}

/// A summary of jobs.
pub trait Account: Send {
    /// Adds a job.
    fn job(&mut self, label: &Label, series: &Series);

    /// Adds the summary of another thread.
    fn merge(&mut self, other: Self);

    /// Called after all jobs of a piece have been added.
    fn piece_done(&mut self, _piece: usize) {}
}

/// Two accounts in one pass.
impl<A: Account, B: Account> Account for (A, B) {
    fn job(&mut self, label: &Label, series: &Series) {
        self.0.job(label, series);
        self.1.job(label, series);
    }

    fn piece_done(&mut self, piece: usize) {
        self.0.piece_done(piece);
        self.1.piece_done(piece);
    }

    fn merge(&mut self, other: Self) {
        self.0.merge(other.0);
        self.1.merge(other.1);
    }
}

/// An optional account: `None` costs nothing.
impl<A: Account> Account for Option<A> {
    fn job(&mut self, label: &Label, series: &Series) {
        if let Some(account) = self {
            account.job(label, series);
        }
    }

    fn piece_done(&mut self, piece: usize) {
        if let Some(account) = self {
            account.piece_done(piece);
        }
    }

    fn merge(&mut self, other: Self) {
        match (self, other) {
            (Some(mine), Some(theirs)) => mine.merge(theirs),
            (mine, theirs) => *mine = mine.take().or(theirs),
        }
    }
}

/// Reads pieces of a source into accounts created by `open`, on `threads` threads. Calls `progress` with the
/// number of completed pieces after each.
///
/// # Errors
/// The first error of a thread; the others stop after their current piece.
pub fn run<S: Source, A: Account>(
    source: &S,
    pieces: &[usize],
    threads: NonZero<usize>,
    open: impl Fn() -> A + Sync,
    progress: impl Fn(usize) + Sync,
) -> Result<A, S::Error> {
    let (next, done, failed) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let work = || {
        let mut account = open();
        loop {
            let Some(&piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)).filter(|_| !failed.load(Ordering::Relaxed)) else {
                return Ok(account);
            };
            if let Err(error) = source.read(piece, &mut |label, series| account.job(label, series)) {
                failed.store(true, Ordering::Relaxed);
                return Err(error);
            }
            account.piece_done(piece);
            progress(done.fetch_add(1, Ordering::Relaxed) + 1);
        }
    };
    std::thread::scope(|scope| {
        // The calling thread takes part.
        let others: Vec<_> = (1..threads.get()).map(|_| scope.spawn(work)).collect();
        let mut whole = work();
        for other in others {
            let part = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            match (&mut whole, part) {
                (Ok(whole), Ok(part)) => whole.merge(part),
                (Ok(_), Err(error)) => whole = Err(error),
                (Err(_), _) => {}
            }
        }
        whole
    })
}

/// Returns the indices of all pieces of a source.
pub fn all(source: &impl Source) -> Vec<usize> {
    (0..source.pieces()).collect()
}

/// How jobs are grouped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum By {
    /// One group.
    #[default]
    Fleet,
    /// By cluster.
    Cluster,
    /// By class.
    Class,
}

impl By {
    fn group(self, label: &Label) -> &str {
        match self {
            Self::Fleet => "",
            Self::Cluster => &label.cluster,
            Self::Class => &label.class,
        }
    }
}

/// Maximum groups of an account. Each takes the memory of its pairs ([`crate::grid::PAIRS_MAX`]) per setup and thread.
pub const GROUPS_MAX: usize = 256;

/// The account of the model: a tally per group and setup.
#[derive(Clone, Debug)]
pub struct Model<'a> {
    grid: &'a Grid,
    by: By,
    replays: Vec<Replay>,
    /// Whether there were more groups than [`GROUPS_MAX`]; jobs are then missing.
    pub too_many_groups: bool,
    /// Tallies by group, then in the order of the setups.
    pub groups: Groups,
    /// Entries by tracker.
    pub trackers: Trackers,
}

impl<'a> Model<'a> {
    /// Creates an empty account.
    ///
    /// # Errors
    /// The index of the first setup whose minimum age is above every threshold.
    pub fn new(grid: &'a Grid, setups: &[Setup], thresholds: &Thresholds, by: By) -> Result<Self, usize> {
        let replays = setups.iter().enumerate().map(|(index, setup)| Replay::new(grid, setup, thresholds).ok_or(index));
        Ok(Self {
            grid,
            by,
            replays: replays.collect::<Result<_, _>>()?,
            too_many_groups: false,
            groups: BTreeMap::new(),
            trackers: Trackers::default(),
        })
    }

    /// Returns the sums over all groups, in the order of the setups.
    #[must_use]
    pub fn whole(&self) -> Vec<Tally> {
        whole(self.grid, self.replays.len(), &self.groups)
    }
}

/// Tallies by group, each with one per setup.
pub type Groups = BTreeMap<String, Vec<Tally>>;

/// Returns the sums over all groups, in the order of the setups.
pub(crate) fn whole(grid: &Grid, setups: usize, groups: &Groups) -> Vec<Tally> {
    let mut whole = vec![Tally::new(grid); setups];
    for tallies in groups.values() {
        add(&mut whole, tallies);
    }
    whole
}

fn add(mine: &mut [Tally], theirs: &[Tally]) {
    mine.iter_mut().zip(theirs).for_each(|(mine, theirs)| mine.merge(theirs));
}

/// Adds groups to groups; returns `false` if there are then more than [`GROUPS_MAX`].
pub(crate) fn merge(mine: &mut Groups, theirs: Groups) -> bool {
    for (group, tallies) in theirs {
        match mine.get_mut(&group) {
            Some(sums) => add(sums, &tallies),
            None => drop(mine.insert(group, tallies)),
        }
    }
    mine.len() <= GROUPS_MAX
}

impl Account for Model<'_> {
    fn job(&mut self, label: &Label, series: &Series) {
        self.trackers.job(series);
        let group = self.by.group(label);
        if !self.groups.contains_key(group) {
            if self.groups.len() == GROUPS_MAX {
                self.too_many_groups = true;
                return;
            }
            self.groups.insert(group.to_owned(), vec![Tally::new(self.grid); self.replays.len()]);
        }
        let Some(tallies) = self.groups.get_mut(group) else { return };
        for (replay, tally) in self.replays.iter_mut().zip(tallies) {
            replay.job(series, tally);
        }
    }

    fn merge(&mut self, other: Self) {
        self.too_many_groups |= other.too_many_groups;
        self.trackers.merge(other.trackers);
        self.too_many_groups |= !merge(&mut self.groups, other.groups);
    }
}

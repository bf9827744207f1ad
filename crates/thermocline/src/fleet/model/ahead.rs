//! What a long run shows before its answer: how long it takes, and the answer of what was read so far.

use std::num::NonZero;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ::model::coverage::Coverage;
use ::model::estimate::{self, Estimate};
use ::model::fleet::{self, Account, Source};
use ::model::partial::{Partial, Setting};
use ::model::resume::Counts;
use anyhow::Result;
use indicatif::ProgressBar;
use serde::Serialize;
use units::Bytes;
use units::quantity::print_duration;

use super::arguments;
use super::report::Report;
use super::text;
use crate::progress::progress;

/// A run that is expected to take less is not announced.
const ANNOUNCED_FROM: Duration = Duration::from_secs(5);
/// Time between two partial answers on a terminal.
const PARTIAL_EVERY: Duration = Duration::from_secs(60);

/// What a run takes, as `--estimate` prints it.
#[derive(Debug, Serialize)]
pub(super) struct Estimated {
    pieces: usize,
    /// `null` for a fleet that is not read.
    bytes: Option<u64>,
    threads: usize,
    measured_pieces: usize,
    measured_seconds: f64,
    /// Until the answer.
    seconds: f64,
    /// Of all threads together. Beside other load it is more than their processor time.
    thread_seconds: f64,
}

impl Estimated {
    pub(super) fn of(estimate: &Estimate) -> Self {
        Self {
            pieces: estimate.pieces,
            bytes: (estimate.bytes > 0).then_some(estimate.bytes),
            threads: estimate.threads.get(),
            measured_pieces: estimate.measured_pieces,
            measured_seconds: estimate.measured.as_secs_f64(),
            seconds: estimate.time().as_secs_f64(),
            thread_seconds: estimate.thread_time().as_secs_f64(),
        }
    }
}

/// A sentence about a run.
pub(super) fn sentence(estimate: &Estimate) -> String {
    let Estimate { pieces, bytes, measured_pieces, threads, .. } = *estimate;
    let read = if bytes > 0 { format!(" to read, {}", Bytes(bytes)) } else { String::new() };
    let seconds = |time: Duration| print_duration(Duration::from_secs(time.as_secs() + u64::from(time.subsec_nanos() > 0)));
    let (time, thread_time) = (seconds(estimate.time()), seconds(estimate.thread_time()));
    format!(
        "{pieces} pieces{read}: about {time} with {threads} threads, {thread_time} of all threads together, by {measured_pieces} of the pieces"
    )
}

/// Reads pieces of a source. A small part comes first, by which the time of the rest is estimated and announced if it is long.
pub(super) fn read<S: Source<Error: std::error::Error + Sync + 'static>, A: Account>(
    source: &S,
    pieces: &[usize],
    threads: NonZero<usize>,
    open: impl Fn() -> A + Sync,
) -> Result<A> {
    read_with(&progress("pieces", pieces.len() as u64), source, pieces, threads, open)
}

/// Does [`read`] with a progress bar that others draw over.
pub(super) fn read_with<S: Source<Error: std::error::Error + Sync + 'static>, A: Account>(
    progress: &ProgressBar,
    source: &S,
    pieces: &[usize],
    threads: NonZero<usize>,
    open: impl Fn() -> A + Sync,
) -> Result<A> {
    let (part, rest) = estimate::split(pieces, threads);
    let (mut account, estimate) = estimate::measure(source, (&part, pieces), threads, &open, |_| progress.inc(1))?;
    if estimate.time() >= ANNOUNCED_FROM {
        progress.suspend(|| log::info!("{}", sentence(&estimate)));
    }
    account.merge(fleet::run(source, &rest, threads, open, |_| progress.inc(1))?);
    Ok(account)
}

/// Measures a small part, and reads nothing else: of few pieces, the one in the middle.
pub(super) fn measure<S: Source<Error: std::error::Error + Sync + 'static>, A: Account>(
    source: &S,
    pieces: &[usize],
    threads: NonZero<usize>,
    open: impl Fn() -> A + Sync,
) -> Result<Estimate> {
    let (mut part, _) = estimate::split(pieces, threads);
    if part.is_empty() {
        part.extend(pieces.get(pieces.len() / 2));
    }
    Ok(estimate::measure(source, (&part, pieces), threads, open, |_| ())?.1)
}

/// Returns the time between two partial answers: as requested, or on a terminal.
pub(super) fn partial_every(arguments: &arguments::Model) -> Option<Duration> {
    use std::io::IsTerminal;
    arguments.partial_every.or_else(|| std::io::stderr().is_terminal().then_some(PARTIAL_EVERY))
}

/// The answer of what was read so far, printed on standard error at intervals.
pub(super) struct PartialAnswers<'a> {
    /// Answers by sums.
    pub(super) answer: &'a (dyn Fn(&Partial) -> Result<Report> + Sync),
    pub(super) setting: &'a Setting,
    /// Pieces of the source, with those that were counted before this run.
    pub(super) pieces: usize,
    pub(super) every: Duration,
    pub(super) progress: &'a ProgressBar,
    pub(super) so_far: Mutex<SoFar>,
}

/// Sums, and when they were last printed.
pub(super) struct SoFar {
    partial: Partial,
    pieces: usize,
    printed: Instant,
}

impl SoFar {
    /// Begins with sums that were counted before.
    pub(super) fn new(partial: Partial, pieces: usize) -> Mutex<Self> {
        Mutex::new(Self { partial, pieces, printed: Instant::now() })
    }
}

impl PartialAnswers<'_> {
    /// Adds the sums of some pieces, and prints an answer if it is time. None is printed of the whole: its answer follows.
    pub(super) fn add(&self, (survey, model): &Counts<'_>, pieces: &[usize]) {
        let mut so_far = self.so_far.lock().unwrap_or_else(PoisonError::into_inner);
        let more = Partial::of(self.setting.clone(), Coverage::default(), survey.clone(), model.clone());
        // Too many groups: the run ends with that error.
        if so_far.partial.merge(more).is_err() {
            return;
        }
        so_far.pieces += pieces.len();
        if so_far.printed.elapsed() < self.every || so_far.pieces >= self.pieces {
            return;
        }
        so_far.printed = Instant::now();
        let text = match (self.answer)(&so_far.partial) {
            Ok(report) => text::so_far(&report, so_far.pieces, self.pieces),
            // No entry so far answers the question.
            Err(_) => return,
        };
        self.progress.suspend(|| eprint!("{text}"));
    }
}

//! Results of trials that limit what is offloaded, in a file of the state directory.
//!
//! They belong to a path, unlike the history of a job: a service that was restarted, or a machine, is the same application. They can
//! only make the agent more cautious ([`policy::trial`]), and expire after `agent.trial_keep`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use policy::trial::Kept;
use serde::Serialize;
use units::{Millis, Pages, RatioPpm, UnixMillis};

use crate::undo::replace_durable_file;

/// Results that are kept at most: those of as many jobs as the agent may have.
const KEPT_MAX: usize = 10_000;

/// The results by the paths of jobs.
#[derive(Debug, Default)]
pub struct Trials {
    file: Option<PathBuf>,
    kept: BTreeMap<String, Kept>,
}

/// A result as status reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TrialView {
    /// The measured slowdown; negative if far memory made the job faster.
    pub slowdown_ratio: f64,
    /// The lower end of its interval.
    pub lower_ratio: f64,
    /// The upper end.
    pub upper_ratio: f64,
    /// How long ago it was measured.
    pub age_seconds: f64,
    /// When it expires.
    pub expires_in_seconds: f64,
    /// The slowdown that the job's class tolerates.
    pub tolerated_ratio: f64,
    /// Promotions per second that it permits; `None` if the job was within what its class tolerates, and nothing is limited.
    pub promotions_max_per_second: Option<f64>,
}

impl Trials {
    /// Loads the results that an earlier agent stored in `dir`; without one, they are forgotten when the agent ends.
    #[must_use]
    pub fn load(dir: Option<&Path>) -> Self {
        let file = dir.map(|dir| dir.join("trials.json"));
        let read = file.as_deref().map(|file| fs::read(file).map(|bytes| serde_json::from_slice(&bytes)));
        let kept = match read {
            Some(Ok(Ok(kept))) => kept,
            Some(Ok(Err(error))) => {
                log::warn!("trials.json: {error}; results of trials are forgotten");
                BTreeMap::new()
            }
            Some(Err(_)) | None => BTreeMap::new(),
        };
        Self { file, kept }
    }

    /// The result for a job, unless it has expired.
    #[must_use]
    pub fn of(&self, path: &str, now: UnixMillis, keep: Millis) -> Option<Kept> {
        self.kept.get(path).copied().filter(|kept| !kept.is_expired(now, keep))
    }

    /// Keeps a result in place of an earlier one, which may stay in effect. Returns the one that applies, and forgets expired ones.
    ///
    /// # Errors
    /// If there are too many, or the file cannot be written: the earlier one still applies.
    pub fn keep(&mut self, path: &str, kept: Kept, tolerated: RatioPpm, keep: Millis) -> io::Result<Kept> {
        self.kept.retain(|_, kept_before| !kept_before.is_expired(kept.at_unix_ms, keep));
        if self.kept.len() >= KEPT_MAX && !self.kept.contains_key(path) {
            return Err(io::Error::other(format!("the results of {KEPT_MAX} trials are kept; forget one first")));
        }
        let applies = kept.after(self.kept.get(path).copied(), tolerated);
        self.store_with(path, Some(applies)).map(|_| applies)
    }

    /// Forgets the result for a job. Returns whether there was one.
    ///
    /// # Errors
    /// If the file cannot be written: the result still applies.
    pub fn forget(&mut self, path: &str) -> io::Result<bool> {
        Ok(self.kept.contains_key(path) && self.store_with(path, None)?.is_some())
    }

    /// Replaces the result for a job, in memory and in the file or in neither. Returns the earlier one.
    fn store_with(&mut self, path: &str, kept: Option<Kept>) -> io::Result<Option<Kept>> {
        let earlier = self.replace(path, kept);
        if let Err(error) = self.store() {
            self.replace(path, earlier);
            return Err(error);
        }
        Ok(earlier)
    }

    fn replace(&mut self, path: &str, kept: Option<Kept>) -> Option<Kept> {
        match kept {
            Some(kept) => self.kept.insert(path.to_owned(), kept),
            None => self.kept.remove(path),
        }
    }

    fn store(&self) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        replace_durable_file(file, &serde_json::to_vec(&self.kept)?)
    }
}

impl TrialView {
    /// A result that is not expired at `now`, for a job whose class tolerates so much.
    #[must_use]
    pub fn of(kept: Kept, tolerated: RatioPpm, now: UnixMillis, keep: Millis) -> Self {
        const HOUR: Millis = Millis(3_600_000);
        let ratio = |ppm: i32| f64::from(ppm) / 1e6;
        let seconds = |time: Millis| time.to_duration().as_secs_f64();
        let age = Millis(now.0.saturating_sub(kept.at_unix_ms.0));
        #[expect(clippy::cast_precision_loss, reason = "shown to people")]
        let per_second = |pages: Pages| pages.0 as f64 / seconds(HOUR);
        Self {
            slowdown_ratio: ratio(kept.slowdown_ppm),
            lower_ratio: ratio(kept.lower_ppm),
            upper_ratio: ratio(kept.upper_ppm),
            age_seconds: seconds(age),
            expires_in_seconds: seconds(Millis(keep.0.saturating_sub(age.0))),
            tolerated_ratio: tolerated.as_f64(),
            promotions_max_per_second: kept.promotions_max(tolerated, HOUR, RatioPpm(0)).map(per_second),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP: Millis = Millis(1_000);
    const TOLERATED: RatioPpm = RatioPpm(30_000);

    fn kept(lower_ppm: i32, at: u64) -> Kept {
        Kept {
            slowdown_ppm: lower_ppm + 10_000,
            lower_ppm,
            upper_ppm: lower_ppm + 20_000,
            promoted_per_1000_s: 9,
            refaulted_per_1000_s: 4,
            at_unix_ms: UnixMillis(at),
        }
    }

    #[test]
    fn results_survive_a_restart_until_they_expire_or_are_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let mut trials = Trials::load(Some(dir.path()));
        let first = kept(40_000, 5_000);
        assert_eq!(trials.keep("/a", first, TOLERATED, KEEP).unwrap(), first);
        let again = Trials::load(Some(dir.path()));
        assert_eq!(again.of("/a", UnixMillis(5_999), KEEP), Some(first));
        assert_eq!((again.of("/a", UnixMillis(6_000), KEEP), again.of("/b", UnixMillis(5_000), KEEP)), (None, None));
        // A trial under its limit that finds no harm confirms it; once it has expired, nothing is to be confirmed.
        assert_eq!(trials.keep("/a", kept(0, 5_500), TOLERATED, KEEP).unwrap(), first);
        let later = kept(0, 6_500);
        assert_eq!(trials.keep("/a", later, TOLERATED, KEEP).unwrap(), later);
        assert!(trials.forget("/a").unwrap() && !trials.forget("/a").unwrap());
        assert_eq!(Trials::load(Some(dir.path())).of("/a", UnixMillis(6_500), KEEP), None);
        fs::write(dir.path().join("trials.json"), "{").unwrap();
        assert!(Trials::load(Some(dir.path())).kept.is_empty());
    }
    #[test]
    fn what_cannot_be_stored_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut trials = Trials::load(Some(dir.path()));
        let first = trials.keep("/a", kept(40_000, 5_000), TOLERATED, KEEP).unwrap();
        dir.close().unwrap();
        assert!(trials.keep("/a", kept(50_000, 5_100), TOLERATED, KEEP).is_err() && trials.forget("/a").is_err());
        assert!(trials.keep("/b", kept(50_000, 5_100), TOLERATED, KEEP).is_err());
        let now = UnixMillis(5_100);
        assert_eq!((trials.of("/a", now, KEEP), trials.of("/b", now, KEEP)), (Some(first), None));
    }
}

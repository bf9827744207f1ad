//! A machine follows its rollout: a thread polls the store, verifies the repository, and sends the result to the agent.
//!
//! Most polls fetch one small file, `timestamp.json`: if it is unchanged and has not expired, nothing else is fetched.
//! Once an hour everything is verified again, so that a new root is detected.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use config::{Arm, Bundle, Guidance, Poll};
use store::{Backoff, FileError};
use tough::{ExpirationEnforcement, Repository};

use crate::assignment::{Assignment, Group, assigned};
use crate::cache::{self, Versions};
use crate::client::{self, Files, TIMESTAMP};
use crate::error::{Error, Refusal, Result};

/// Interval of full verifications, in seconds.
const WHOLE_EVERY_S: u64 = 3_600;

/// Waiting time after the first failed poll; it doubles with each further failure, up to the polling interval.
const RETRY_FIRST: Duration = Duration::from_secs(10);

/// What a machine follows, and its identity.
#[derive(Clone, Debug)]
pub struct Settings {
    /// URL of the repository.
    pub store: String,
    /// The socket of the process that has the connections to the store; `None` if this one does.
    pub network: Option<PathBuf>,
    /// File of the trusted root.
    pub root: PathBuf,
    /// Interval between polls, varied randomly by a tenth.
    pub poll: Duration,
    /// The agent's state directory.
    pub state_dir: PathBuf,
    /// Name of the machine in traces.
    pub machine: String,
    /// Name of the cluster in traces.
    pub cluster: String,
}

/// Follows a rollout, one poll at a time.
#[derive(Debug)]
pub struct Follower {
    settings: Settings,
    files: Option<Files>,
    verified: Option<Verified>,
    versions: Option<Versions>,
    /// The last guidance.
    guidance: Option<Guidance>,
    polls: u64,
    refused: BTreeMap<&'static str, u64>,
    checked_unix_s: Option<u64>,
}

/// Result of the last full verification.
#[derive(Debug)]
struct Verified {
    timestamp: Vec<u8>,
    /// Time at which the first metadata file expires.
    expires_unix_s: u64,
    at_unix_s: u64,
}

impl Follower {
    /// Creates a follower with the cached guidance of an earlier one. Also returns that guidance, or why it cannot be
    /// used.
    pub fn new(settings: Settings) -> (Self, Result<Option<Guidance>>) {
        let (versions, remembered) = match cache::load(&cache::path(&settings.state_dir)) {
            Ok(found) => {
                let (versions, guidance) = found.unzip();
                (versions, Ok(guidance))
            }
            Err(error) => (None, Err(error)),
        };
        let guidance = remembered.as_ref().ok().cloned().flatten();
        let refused = Refusal::ALL.iter().map(|refusal| (refusal.as_str(), 0)).collect();
        let follower = Self { settings, files: None, verified: None, versions, guidance, polls: 0, refused, checked_unix_s: None };
        (follower, remembered)
    }

    /// The last guidance.
    #[must_use]
    pub const fn guidance(&self) -> Option<&Guidance> {
        self.guidance.as_ref()
    }

    /// Where this machine keeps what it knows of the repository.
    pub(crate) fn state_dir(&self) -> &Path {
        &self.settings.state_dir
    }

    /// Fetches a model that a bundle names, and verifies it.
    pub(crate) fn model(&self, sha256: &str) -> Result<Vec<u8>> {
        let Settings { store, network, root, state_dir, .. } = &self.settings;
        let files = match &self.files {
            Some(files) => files.clone(),
            None => Files::open(store, network.as_deref())?,
        };
        let datastore = client::datastore(state_dir);
        let trusted = client::trusted_root(root, &datastore)?;
        let store = std::sync::Arc::clone(&files.store);
        store.block_on(async {
            let repository = client::load(&files, &trusted, Some(&datastore), ExpirationEnforcement::Safe).await?;
            client::model(&repository, sha256).await
        })
    }

    /// Polls the store once. After an error, the last guidance stays in effect.
    pub fn poll(&mut self, now_unix_s: u64) -> Poll {
        self.polls += 1;
        let found = self.fetch(now_unix_s);
        let mut poll_error = None;
        let guidance = match found {
            Ok(guidance) => {
                self.checked_unix_s = Some(now_unix_s);
                guidance.filter(|guidance| self.guidance.as_ref() != Some(guidance))
            }
            Err(error) => {
                if let Some(refusal) = error.refusal() {
                    *self.refused.entry(refusal.as_str()).or_default() += 1;
                }
                // The verified files may have changed since.
                self.verified = None;
                poll_error = Some(format!("{}: {error}", self.settings.store));
                None
            }
        };
        if let Some(guidance) = &guidance {
            self.guidance = Some(guidance.clone());
        }
        let requests = self.files.as_ref().map_or(0, Files::requests);
        Poll {
            guidance,
            polls: self.polls,
            requests,
            refused: self.refused.clone(),
            error: poll_error,
            checked_unix_s: self.checked_unix_s,
        }
    }

    /// Fetches the current guidance; returns `None` if the repository has not changed.
    fn fetch(&mut self, now: u64) -> Result<Option<Guidance>> {
        let files = match &self.files {
            Some(files) => files.clone(),
            None => self.files.insert(Files::open(&self.settings.store, self.settings.network.as_deref())?).clone(),
        };
        let store = std::sync::Arc::clone(&files.store);
        let unchanged = match &self.verified {
            Some(verified) if now < verified.expires_unix_s && now < verified.at_unix_s.saturating_add(WHOLE_EVERY_S) => {
                store.block_on(files.read(TIMESTAMP))?.as_ref() == Some(&verified.timestamp)
            }
            _ => false,
        };
        if unchanged {
            return Ok(None);
        }
        store.block_on(self.verify(&files, now)).map(Some)
    }

    async fn verify(&mut self, files: &Files, now: u64) -> Result<Guidance> {
        let Settings { root, state_dir, machine, cluster, .. } = &self.settings;
        let datastore = client::datastore(state_dir);
        let before = files.read(TIMESTAMP).await?;
        if before.is_none() {
            return Err(Error::Unavailable { what: format!("no repository: {TIMESTAMP} is missing") });
        }
        let trusted = client::trusted_root(root, &datastore)?;
        let load = async || client::load(files, &trusted, Some(&datastore), ExpirationEnforcement::Safe).await;
        let repository = match load().await {
            // The clock was ahead once, or is behind now. Versions of the metadata, which are kept, exclude older ones whatever the
            // clock shows; to refuse everything would keep a rollback from this machine until the clock has caught up.
            Err(error) if error.refusal() == Some(Refusal::Clock) => {
                *self.refused.entry(Refusal::Clock.as_str()).or_default() += 1;
                client::forget_time(&datastore)?;
                load().await?
            }
            other => other?,
        };
        let versions = versions(&repository);
        if self.versions.is_some_and(|before| before.is_rollback(&versions)) {
            let what = format!("metadata of {versions:?} after {:?}", self.versions.unwrap_or_default());
            return Err(Error::refused(Refusal::Rollback, what));
        }
        let guidance = match client::assignment(&repository).await? {
            Some(assignment) => guidance(&repository, &assignment, machine, cluster).await?,
            None => Guidance {
                rollout: String::new(),
                stage: String::new(),
                arm: Arm::Previous,
                bundle: None,
                previous: None,
                signed_until_unix_s: Some(signed_until(&repository)),
            },
        };
        if self.versions != Some(versions) || self.guidance.as_ref() != Some(&guidance) {
            cache::store(&cache::path(state_dir), versions, &guidance)?;
            self.versions = Some(versions);
        }
        let expired = guidance.bundle.as_ref().is_some_and(|bundle| bundle.expired(now));
        // Only counted here. The agent itself ignores an expired bundle, because a bundle may expire at any time.
        *self.refused.entry(Refusal::Expired.as_str()).or_default() += u64::from(expired);
        let verified = |timestamp| Verified { timestamp, expires_unix_s: expires(&repository), at_unix_s: now };
        self.verified = before.filter(|_| !expired).map(verified);
        Ok(guidance)
    }
}

/// Returns the guidance of a machine from the assignment.
async fn guidance(repository: &Repository, assignment: &Assignment, machine: &str, cluster: &str) -> Result<Guidance> {
    let which = assigned(assignment, machine, cluster);
    let fetch = async |version: Option<u64>| -> Result<Option<Bundle>> {
        match version {
            Some(version) => client::bundle(repository, version).await.map(Some),
            None => Ok(None),
        }
    };
    let previous = fetch(assignment.previous).await?;
    let (arm, bundle, previous) = match which {
        Group::Bundle(version) => (Arm::Bundle, fetch(Some(version)).await?, previous),
        Group::Previous => (Arm::Previous, previous, None),
        Group::Control => (Arm::Control, previous, None),
    };
    let (rollout, stage, signed_until_unix_s) = (assignment.rollout.clone(), assignment.stage.clone(), Some(signed_until(repository)));
    Ok(Guidance { rollout, stage, arm, bundle, previous, signed_until_unix_s })
}

fn versions(repository: &Repository) -> Versions {
    Versions {
        root: repository.root().signed.version.get(),
        timestamp: repository.timestamp().signed.version.get(),
        snapshot: repository.snapshot().signed.version.get(),
        targets: repository.targets().signed.version.get(),
    }
}

/// Returns the time at which the first of the signatures expires that bundles depend on, in seconds of Unix time. The others, of the
/// timestamp and the snapshot, show only that the store is up to date.
fn signed_until(repository: &Repository) -> u64 {
    let first = repository.root().signed.expires.min(repository.targets().signed.expires);
    u64::try_from(first.as_second()).unwrap_or(0)
}

/// Returns the time at which the first metadata file of a repository expires, in seconds of Unix time.
fn expires(repository: &Repository) -> u64 {
    let times = [
        repository.root().signed.expires,
        repository.timestamp().signed.expires,
        repository.snapshot().signed.expires,
        repository.targets().signed.expires,
    ];
    times.iter().map(|time| u64::try_from(time.as_second()).unwrap_or(0)).min().unwrap_or(0)
}

/// Returns the waiting time after this many consecutive failures; `random` is a number from 0 to 1.
fn next_poll(poll: Duration, failures: u32, random: f64) -> Duration {
    let wait = if failures == 0 { poll } else { Backoff { first: RETRY_FIRST, max: poll }.wait(failures) };
    wait.mul_f64(0.9 + random.clamp(0.0, 1.0) / 5.0)
}

/// The polling thread. It ends after this value is dropped; a poll in progress is not waited for.
#[derive(Debug)]
pub struct Follow {
    _stop: Sender<()>,
    _thread: JoinHandle<()>,
}

/// Starts to poll, and sends the result of each poll to `report`.
///
/// # Errors
/// [`Error::File`] if the thread cannot be started.
pub fn start(mut follower: Follower, report: impl Fn(Poll) + Send + 'static) -> Result<Follow> {
    let (stop, stopped) = mpsc::channel();
    let directory = follower.settings.state_dir.clone();
    let run = move || {
        let poll = follower.settings.poll;
        // Spread the polls of machines that start at the same time.
        let mut wait = poll.mul_f64(fastrand::f64() / 10.0);
        let mut failures = 0;
        while stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
            let poll_result = follower.poll(now);
            failures = if poll_result.error.is_some() { failures + 1 } else { 0 };
            report(poll_result);
            wait = next_poll(poll, failures, fastrand::f64());
        }
    };
    let thread = std::thread::Builder::new().name("rollout".to_owned()).spawn(run);
    Ok(Follow { _stop: stop, _thread: thread.map_err(FileError::at(&directory, "start a thread for"))? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_polls_are_repeated_sooner_with_exponential_backoff() {
        let poll = Duration::from_secs(300);
        let middle = |failures| next_poll(poll, failures, 0.5).as_secs();
        assert_eq!([0, 1, 2, 3, 4, 5, 6, 7, 100, u32::MAX].map(middle), [300, 10, 20, 40, 80, 160, 300, 300, 300, 300]);
        for (random, want) in [(0.0, 270), (1.0, 330), (f64::MAX, 330)] {
            assert_eq!(next_poll(poll, 0, random).as_secs(), want);
        }
        assert!(next_poll(Duration::from_secs(1), 1, 1.0) <= Duration::from_millis(1_100), "at most the polling interval");
    }
}

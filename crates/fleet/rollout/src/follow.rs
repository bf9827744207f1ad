//! A machine follows its rollout: a thread asks the store now and then, verifies what it offers, and tells the agent.
//!
//! Most polls fetch one small file, `timestamp.json`: the very bytes that were verified before say, while they have not
//! expired, that nothing else has changed. Once an hour everything is verified anew, so that a new root is noticed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use config::{Arm, Bundle, Guidance, Poll};
use store::{Backoff, FileError};
use tough::{ExpirationEnforcement, Repository};

use crate::assignment::{Assignment, Which, assigned};
use crate::cache::{self, Seen};
use crate::client::{self, Files, TIMESTAMP};
use crate::error::{Error, Refusal, Result};

/// How long the same bytes of `timestamp.json` may stand for all the rest.
const WHOLE_EVERY_S: u64 = 3_600;

/// How soon a poll that failed is made again; twice as long each time, up to the usual.
const RETRY_FIRST: Duration = Duration::from_secs(10);

/// What to follow, and as whom.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where bundles are published.
    pub store: String,
    /// The file of the trusted root.
    pub root: PathBuf,
    /// How often the store is asked, give or take a tenth.
    pub poll: Duration,
    /// The agent's directory for what survives a restart.
    pub state_dir: PathBuf,
    /// The machine's name in traces.
    pub machine: String,
    /// The cluster's.
    pub cluster: String,
}

/// Follows, one poll at a time.
#[derive(Debug)]
pub struct Follower {
    settings: Settings,
    files: Option<Files>,
    verified: Option<Verified>,
    seen: Option<Seen>,
    /// What was last told.
    guidance: Option<Guidance>,
    polls: u64,
    refused: BTreeMap<&'static str, u64>,
    checked_unix_s: Option<u64>,
}

/// What the last whole verification found.
#[derive(Debug)]
struct Verified {
    timestamp: Vec<u8>,
    /// When the first of the metadata expires.
    expires_unix_s: u64,
    at_unix_s: u64,
}

impl Follower {
    /// Follows from where an earlier one has left off, if one has. Says what was remembered, or why it cannot be used.
    pub fn new(settings: Settings) -> (Self, Result<Option<Guidance>>) {
        let (seen, remembered) = match cache::load(&cache::path(&settings.state_dir)) {
            Ok(found) => {
                let (seen, guidance) = found.unzip();
                (seen, Ok(guidance))
            }
            Err(error) => (None, Err(error)),
        };
        let guidance = remembered.as_ref().ok().cloned().flatten();
        let refused = Refusal::ALL.iter().map(|refusal| (refusal.as_str(), 0)).collect();
        let follower = Self { settings, files: None, verified: None, seen, guidance, polls: 0, refused, checked_unix_s: None };
        (follower, remembered)
    }

    /// Asks the store once. What is wrong is told, and what was followed stays.
    pub fn poll(&mut self, now_unix_s: u64) -> Poll {
        self.polls += 1;
        let found = self.look(now_unix_s);
        let mut trouble = None;
        let guidance = match found {
            Ok(guidance) => {
                self.checked_unix_s = Some(now_unix_s);
                guidance.filter(|guidance| self.guidance.as_ref() != Some(guidance))
            }
            Err(error) => {
                if let Some(refusal) = error.refusal() {
                    *self.refused.entry(refusal.as_str()).or_default() += 1;
                }
                // What was verified before may have changed since.
                self.verified = None;
                trouble = Some(format!("{}: {error}", self.settings.store));
                None
            }
        };
        if let Some(guidance) = &guidance {
            self.guidance = Some(guidance.clone());
        }
        let requests = self.files.as_ref().map_or(0, Files::requests);
        Poll { guidance, polls: self.polls, requests, refused: self.refused.clone(), error: trouble, checked_unix_s: self.checked_unix_s }
    }

    /// What the store says now; `None` where it is known to say what it said before.
    fn look(&mut self, now: u64) -> Result<Option<Guidance>> {
        let files = match &self.files {
            Some(files) => files.clone(),
            None => self.files.insert(Files::open(&self.settings.store)?).clone(),
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
            return Err(Error::Away { what: format!("no repository is there: {TIMESTAMP} is missing") });
        }
        let trusted = client::trusted_root(root, &datastore)?;
        let repository = client::load(files, &trusted, Some(&datastore), ExpirationEnforcement::Safe).await?;
        let seen = seen(&repository);
        if self.seen.is_some_and(|before| before.goes_back_to(&seen)) {
            let what = format!("metadata of {seen:?} after {:?}", self.seen.unwrap_or_default());
            return Err(Error::refused(Refusal::Rollback, what));
        }
        let guidance = match client::assignment(&repository).await? {
            Some(assignment) => guidance(&repository, &assignment, machine, cluster).await?,
            None => Guidance { rollout: String::new(), stage: String::new(), arm: Arm::Previous, bundle: None, previous: None },
        };
        if self.seen != Some(seen) || self.guidance.as_ref() != Some(&guidance) {
            cache::store(&cache::path(state_dir), seen, &guidance)?;
            self.seen = Some(seen);
        }
        let expired = guidance.bundle.as_ref().is_some_and(|bundle| bundle.expired(now));
        // Counted here; that nobody goes by it is the agent's own check, for a bundle may expire at any time.
        *self.refused.entry(Refusal::Expired.as_str()).or_default() += u64::from(expired);
        let verified = |timestamp| Verified { timestamp, expires_unix_s: expires(&repository), at_unix_s: now };
        self.verified = before.filter(|_| !expired).map(verified);
        Ok(guidance)
    }
}

/// What a machine's assignment comes to.
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
        Which::Bundle(version) => (Arm::Bundle, fetch(Some(version)).await?, previous),
        Which::Previous => (Arm::Previous, previous, None),
        Which::Control => (Arm::Control, previous, None),
    };
    Ok(Guidance { rollout: assignment.rollout.clone(), stage: assignment.stage.clone(), arm, bundle, previous })
}

fn seen(repository: &Repository) -> Seen {
    Seen {
        root: repository.root().signed.version.get(),
        timestamp: repository.timestamp().signed.version.get(),
        snapshot: repository.snapshot().signed.version.get(),
        targets: repository.targets().signed.version.get(),
    }
}

/// When the first of a repository's metadata expires.
fn expires(repository: &Repository) -> u64 {
    let times = [
        repository.root().signed.expires,
        repository.timestamp().signed.expires,
        repository.snapshot().signed.expires,
        repository.targets().signed.expires,
    ];
    times.iter().map(|time| u64::try_from(time.as_second()).unwrap_or(0)).min().unwrap_or(0)
}

/// How long to wait after so many polls in a row that failed, with a random number from 0 to 1.
fn next_poll(poll: Duration, failures: u32, random: f64) -> Duration {
    let wait = if failures == 0 { poll } else { Backoff { first: RETRY_FIRST, max: poll }.wait(failures) };
    wait.mul_f64(0.9 + random.clamp(0.0, 1.0) / 5.0)
}

/// The thread. It ends when this is dropped; a poll that is under way is not waited for.
#[derive(Debug)]
pub struct Follow {
    _stop: Sender<()>,
    _thread: JoinHandle<()>,
}

/// Polls on and on, and tells what each found.
///
/// # Errors
/// [`Error::File`] where no thread can be had.
pub fn start(mut follower: Follower, tell: impl Fn(Poll) + Send + 'static) -> Result<Follow> {
    let (stop, stopped) = mpsc::channel();
    let directory = follower.settings.state_dir.clone();
    let run = move || {
        let poll = follower.settings.poll;
        // Machines that start together shall not ask together.
        let mut wait = poll.mul_f64(fastrand::f64() / 10.0);
        let mut failures = 0;
        while stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
            let told = follower.poll(now);
            failures = if told.error.is_some() { failures + 1 } else { 0 };
            tell(told);
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
    fn polls_that_fail_are_made_again_sooner_and_ever_more_seldom() {
        let poll = Duration::from_secs(300);
        let middle = |failures| next_poll(poll, failures, 0.5).as_secs();
        assert_eq!([0, 1, 2, 3, 4, 5, 6, 7, 100, u32::MAX].map(middle), [300, 10, 20, 40, 80, 160, 300, 300, 300, 300]);
        for (random, want) in [(0.0, 270), (1.0, 330), (f64::MAX, 330)] {
            assert_eq!(next_poll(poll, 0, random).as_secs(), want);
        }
        assert!(next_poll(Duration::from_secs(1), 1, 1.0) <= Duration::from_millis(1_100), "never later than usual");
    }
}

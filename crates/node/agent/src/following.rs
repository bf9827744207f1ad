//! The parameters in effect: the machine's own configuration, or a bundle of the rollout that it follows over it; and when the agent
//! rejects a bundle by itself.
//!
//! It stops using a bundle that has expired, or whose signatures have expired without newer ones. It rejects one that violates the operator's objectives: by promotion rates or stalls
//! ([`watch`]), or because the agent starts repeatedly with it without having been stopped. The previous bundle is then in effect, or
//! the machine's own configuration, and the rejected version is never used again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use config::{Arm, Bundle, Config, Guidance, Poll};
use serde::{Deserialize, Serialize};

use crate::undo::replace_durable_file;

pub mod watch;

use watch::Watch;

/// Rejected versions that are remembered; the oldest is dropped first.
const LEFT_MAX: usize = 64;

/// The largest file of notes that is read, in bytes.
const NOTE_BYTES_MAX: u64 = 1 << 20;

/// A version that this machine has rejected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// The version.
    pub version: u64,
    /// The violated objective: `promotions`, `stall` or `starts`.
    pub by: String,
    /// The reason in words, with the numbers.
    pub why: String,
    /// Seconds since the epoch.
    pub unix_s: u64,
}

/// What survives a restart or a crash.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Notes {
    left: Vec<Left>,
    /// Starts with one version that were not followed by a stop, in seconds since the epoch. They expire after a while.
    starts: Option<(u64, Vec<u64>)>,
}

/// Follows a rollout, if one is configured.
#[derive(Debug)]
pub struct Following {
    /// The operator's own configuration of this machine.
    own: Config,
    /// The last poll of the bundle store.
    poll: Poll,
    guidance: Option<Guidance>,
    /// The bundle in effect.
    bundle: Option<Bundle>,
    /// Why it is not the assigned one.
    instead: Option<String>,
    /// Whether this agent's start is counted.
    started: bool,
    watch: Watch,
    notes: Notes,
    file: Option<PathBuf>,
    /// An error of reading the notes, to be reported.
    error: Option<String>,
    reverts: BTreeMap<&'static str, u64>,
}

/// What status reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FollowingView {
    /// The rollout's id; empty before it is known.
    pub rollout: String,
    /// Its stage.
    pub stage: String,
    /// The arm of the rollout that the machine belongs to.
    pub arm: Option<Arm>,
    /// The version of the bundle in effect; 0 for the configuration file.
    pub bundle_version: u64,
    /// Its name.
    pub bundle_id: Option<String>,
    /// The assigned version; 0 for the configuration file.
    pub assigned_version: u64,
    /// Why the assigned version is not in effect.
    pub instead: Option<String>,
    /// Why the last poll failed.
    pub trouble: Option<String>,
    /// When the store was last read and verified, in seconds since the epoch.
    pub checked_unix_s: Option<u64>,
    /// Polls of the store.
    pub polls: u64,
    /// Requests to it.
    pub requests: u64,
    /// Refused metadata and bundles, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// Bundles that the agent rejected, by violated objective.
    pub reverts: BTreeMap<&'static str, u64>,
    /// Rejected versions.
    pub left: Vec<Left>,
}

impl Following {
    /// Starts with the machine's own configuration. Notes are kept in the state directory, if there is one.
    #[must_use]
    pub fn new(own: &Config, state_dir: Option<&Path>) -> Self {
        let file = state_dir.map(|directory| directory.join("rollout/left.json"));
        let (notes, error) = match file.as_deref().map(read) {
            Some(Err(error)) => (Notes::default(), Some(error)),
            Some(Ok(notes)) => (notes, None),
            None => (Notes::default(), None),
        };
        Self {
            own: own.clone(),
            poll: Poll::default(),
            guidance: None,
            bundle: None,
            instead: None,
            started: false,
            watch: Watch::default(),
            notes,
            file,
            error,
            reverts: watch::KINDS.iter().map(|kind| (*kind, 0)).collect(),
        }
    }

    /// Takes the result of a poll of the store. Returns what to report.
    pub fn take(&mut self, mut poll: Poll) -> Vec<String> {
        let mut reports = Vec::new();
        if poll.error != self.poll.error {
            reports.push(
                poll.error.as_ref().map_or_else(|| "rollout: the store can be read again".to_owned(), |why| format!("rollout: {why}")),
            );
        }
        if let Some(guidance) = poll.guidance.take() {
            self.guidance = Some(guidance);
        }
        self.poll = poll;
        reports
    }

    /// The operator's own configuration of this machine, whose objectives no bundle changes.
    #[must_use]
    pub fn own(&self) -> &Config {
        &self.own
    }

    /// Replaces the machine's own configuration. Returns what is in effect: with the values of the bundle, if there is one.
    pub fn set_own(&mut self, own: Config) -> Config {
        self.own = own;
        self.bundle.as_ref().map_or_else(|| self.own.clone(), |bundle| bundle.over(&self.own))
    }

    /// The version of the bundle in effect; 0 for the configuration file.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.bundle.as_ref().map_or(0, |bundle| bundle.version)
    }

    /// The guardrail for the bundle in effect; `None` with the machine's own configuration, which the operator judges.
    pub fn watch(&mut self) -> Option<&mut Watch> {
        self.bundle.is_some().then_some(&mut self.watch)
    }

    /// Decides which parameters are in effect from now on. Returns the configuration if it changes, and what to report.
    pub fn decide(&mut self, now_unix_s: u64) -> (Option<Config>, Vec<String>) {
        let mut reports: Vec<String> = self.error.take().into_iter().collect();
        let before = self.bundle.clone();
        self.judge(now_unix_s, &mut reports);
        loop {
            let (bundle, instead) = choose(self.guidance.as_ref(), &self.notes.left, now_unix_s);
            if instead != self.instead {
                reports.extend(instead.as_ref().map(|why| format!("rollout: {why}")));
            }
            (self.bundle, self.instead) = (bundle.cloned(), instead);
            let Some(why) = self.count_start(now_unix_s) else { break };
            self.reject("starts", why, now_unix_s, &mut reports);
        }
        self.started |= self.guidance.is_some();
        if self.bundle == before {
            return (None, reports);
        }
        self.watch = Watch::default();
        let config = self.bundle.as_ref().map_or_else(|| self.own.clone(), |bundle| bundle.over(&self.own));
        let by = self
            .bundle
            .as_ref()
            .map_or_else(|| "the configuration file".to_owned(), |bundle| format!("bundle {} ({})", bundle.version, bundle.id));
        let (rollout, stage) = self.guidance.as_ref().map_or(("", ""), |guidance| (guidance.rollout.as_str(), guidance.stage.as_str()));
        reports.push(format!("uses {by} from now on, in stage {stage:?} of rollout {rollout:?}"));
        (Some(config), reports)
    }

    /// Rejects a bundle that violates the guardrail.
    fn judge(&mut self, now: u64, reports: &mut Vec<String>) {
        if self.bundle.is_none() {
            return;
        }
        if let Some((kind, why)) = self.watch.breach(&self.own.rollout) {
            self.reject(kind, why, now, reports);
        }
    }

    fn reject(&mut self, kind: &'static str, why: String, now: u64, reports: &mut Vec<String>) {
        let version = self.version();
        reports.push(format!("rollout: rejects bundle {version}: {why}"));
        *self.reverts.entry(kind).or_default() += 1;
        if self.notes.left.len() == LEFT_MAX {
            self.notes.left.remove(0);
        }
        self.notes.left.push(Left { version, by: kind.to_owned(), why, unix_s: now });
        self.notes.starts = None;
        self.write(reports);
    }

    /// Notes once, before the first bundle takes effect, that this agent starts with it. Returns why the bundle is to be rejected, if
    /// the agent has started with it too often.
    fn count_start(&mut self, now: u64) -> Option<String> {
        let version = self.bundle.as_ref()?.version;
        let (limit, within) = (self.own.rollout.starts, self.own.rollout.starts_within);
        let earlier = self.notes.starts.take().filter(|(of, _)| *of == version).map(|(_, starts)| starts).unwrap_or_default();
        let mut starts: Vec<_> = earlier.into_iter().filter(|start| now.saturating_sub(*start) <= within.as_secs()).collect();
        if self.started {
            self.notes.starts = (!starts.is_empty()).then_some((version, starts));
            return None;
        }
        self.started = true;
        starts.push(now);
        let count = starts.len();
        self.notes.starts = Some((version, starts));
        self.write(&mut Vec::new());
        let too_often = u32::try_from(count).is_ok_and(|count| count >= limit);
        too_often.then(|| format!("the agent has started {count} times within {}s with it, without having been stopped", within.as_secs()))
    }

    /// Notes that the agent is being stopped, and has not crashed.
    pub fn stop(&mut self) {
        if self.notes.starts.take().is_some() {
            self.write(&mut Vec::new());
        }
    }

    fn write(&self, reports: &mut Vec<String>) {
        let Some(file) = &self.file else { return };
        let directory = file.parent().unwrap_or(Path::new("/"));
        let bytes = serde_json::to_vec(&self.notes).unwrap_or_default();
        let written = std::fs::create_dir_all(directory).and_then(|()| replace_durable_file(file, &bytes));
        if let Err(error) = written {
            log::error!("{}: {error}", file.display());
            reports.push(format!("rollout: {}: {error}; a restart will not know which bundles were rejected", file.display()));
        }
    }

    /// A copy for status.
    #[must_use]
    pub fn view(&self) -> FollowingView {
        let guidance = self.guidance.as_ref();
        FollowingView {
            rollout: guidance.map(|guidance| guidance.rollout.clone()).unwrap_or_default(),
            stage: guidance.map(|guidance| guidance.stage.clone()).unwrap_or_default(),
            arm: guidance.map(|guidance| guidance.arm),
            bundle_version: self.version(),
            bundle_id: self.bundle.as_ref().map(|bundle| bundle.id.clone()),
            assigned_version: guidance.and_then(|guidance| guidance.bundle.as_ref()).map_or(0, |bundle| bundle.version),
            instead: self.instead.clone(),
            trouble: self.poll.error.clone(),
            checked_unix_s: self.poll.checked_unix_s,
            polls: self.poll.polls,
            requests: self.poll.requests,
            refused: self.poll.refused.clone(),
            reverts: self.reverts.clone(),
            left: self.notes.left.clone(),
        }
    }
}

/// The bundle to use, and why it is not the assigned one. Pure.
fn choose<'a>(guidance: Option<&'a Guidance>, rejected: &[Left], now_unix_s: u64) -> (Option<&'a Bundle>, Option<String>) {
    let Some(guidance) = guidance else { return (None, None) };
    if let Some(until) = guidance.signed_until_unix_s.filter(|&until| now_unix_s >= until)
        && let Some(bundle) = &guidance.bundle
    {
        let (version, until) = (bundle.version, config::bundle::rfc3339(until));
        let why = format!(
            "the signatures of bundle {version} expired at {until}, and no newer ones arrived: the configuration file is in effect"
        );
        return (None, Some(why));
    }
    let mut instead = None;
    for bundle in [&guidance.bundle, &guidance.previous].into_iter().flatten() {
        if bundle.expired(now_unix_s) {
            let expired = config::bundle::rfc3339(bundle.expires_unix_s);
            let why = format!("bundle {} expired at {expired}: the configuration file is in effect", bundle.version);
            return (None, Some(instead.map_or(why.clone(), |before| format!("{before}; {why}"))));
        }
        match rejected.iter().rfind(|rejected| rejected.version == bundle.version) {
            None => return (Some(bundle), instead),
            Some(rejected) => instead = Some(format!("bundle {} was rejected: {}", rejected.version, rejected.why)),
        }
    }
    (None, instead)
}

/// The notes of an earlier agent. Damaged notes are an error and are ignored.
fn read(file: &Path) -> Result<Notes, String> {
    match std::fs::metadata(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Notes::default()),
        Ok(found) if found.len() > NOTE_BYTES_MAX => return Err(format!("rollout: {} is too large and was ignored", file.display())),
        _ => {}
    }
    let read = std::fs::read(file).and_then(|bytes| Ok(serde_json::from_slice(&bytes)?));
    read.map_err(|error| format!("rollout: {}: {error}; it is unknown which bundles were rejected", file.display()))
}

#[cfg(test)]
mod tests;

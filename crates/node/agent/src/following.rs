//! What the agent goes by: its own configuration, or over it a bundle of the rollout that it follows; and when it leaves a
//! bundle of its own accord.
//!
//! It leaves a bundle that has expired, and one that hurts: whose promotion rates or stalls break the operator's objectives
//! ([`watch`]), or under which it starts again and again without being stopped. It then goes by the bundle before that, or by
//! its own configuration, and remembers: that version is not gone by again, whatever is told.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use config::{Arm, Bundle, Config, Guidance, Poll};
use serde::{Deserialize, Serialize};

use crate::undo::replace_file;

pub mod watch;

use watch::Watch;

/// How many versions that were left are remembered; the oldest is forgotten first.
const LEFT_MAX: usize = 64;

/// The largest note that is read, in bytes.
const NOTE_BYTES_MAX: u64 = 1 << 20;

/// A version that this machine has left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// Which.
    pub version: u64,
    /// By what it hurt: `promotions`, `stall` or `starts`.
    pub by: String,
    /// In words, with the numbers.
    pub why: String,
    /// Seconds since the epoch.
    pub unix_s: u64,
}

/// What must survive a restart, and a crash above all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Notes {
    left: Vec<Left>,
    /// Starts under one version that did not end in a stop, in seconds since the epoch. They are forgotten after a while, so
    /// that a life that lasts makes up for them.
    starts: Option<(u64, Vec<u64>)>,
}

/// Follows a rollout, or nothing.
#[derive(Debug)]
pub struct Following {
    /// The operator's own configuration of this machine.
    own: Config,
    told: Poll,
    guidance: Option<Guidance>,
    /// The bundle in force.
    bundle: Option<Bundle>,
    /// Why it is not the one that was assigned.
    instead: Option<String>,
    /// Whether this agent's own start is counted.
    started: bool,
    watch: Watch,
    notes: Notes,
    file: Option<PathBuf>,
    trouble: Option<String>,
    reverts: BTreeMap<&'static str, u64>,
}

/// What people are shown of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FollowingView {
    /// The rollout's id; empty before one is known.
    pub rollout: String,
    /// Its stage.
    pub stage: String,
    /// The part of the fleet that the machine belongs to.
    pub arm: Option<Arm>,
    /// The version of the bundle in force; 0 for the configuration file.
    pub bundle_version: u64,
    /// Its name.
    pub bundle_id: Option<String>,
    /// The version that was assigned; 0 for the configuration file.
    pub assigned_version: u64,
    /// Why it is not in force.
    pub instead: Option<String>,
    /// Why nothing could be learned at the last look.
    pub trouble: Option<String>,
    /// When something was last learned, in seconds since the epoch.
    pub checked_unix_s: Option<u64>,
    /// Looks at the store.
    pub polls: u64,
    /// Requests to it.
    pub requests: u64,
    /// What was refused, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// Times that the agent left a bundle of its own accord, by what hurt.
    pub reverts: BTreeMap<&'static str, u64>,
    /// Versions that are not gone by again.
    pub left: Vec<Left>,
}

impl Following {
    /// Goes by the machine's own configuration until it is told otherwise. With a state directory, it remembers.
    #[must_use]
    pub fn new(own: &Config, state_dir: Option<&Path>) -> Self {
        let file = state_dir.map(|directory| directory.join("rollout/left.json"));
        let (notes, trouble) = match file.as_deref().map(read) {
            Some(Err(error)) => (Notes::default(), Some(error)),
            Some(Ok(notes)) => (notes, None),
            None => (Notes::default(), None),
        };
        Self {
            own: own.clone(),
            told: Poll::default(),
            guidance: None,
            bundle: None,
            instead: None,
            started: false,
            watch: Watch::default(),
            notes,
            file,
            trouble,
            reverts: watch::KINDS.iter().map(|kind| (*kind, 0)).collect(),
        }
    }

    /// Takes in what a look at the store brought. Returns what is to be told.
    pub fn take(&mut self, mut told: Poll) -> Vec<String> {
        let mut said = Vec::new();
        if told.error != self.told.error {
            said.push(told.error.as_ref().map_or_else(|| "rollout: the store is read again".to_owned(), |why| format!("rollout: {why}")));
        }
        if let Some(guidance) = told.guidance.take() {
            self.guidance = Some(guidance);
        }
        self.told = told;
        said
    }

    /// The operator's own configuration of this machine, whose objectives no bundle moves.
    #[must_use]
    pub fn own(&self) -> &Config {
        &self.own
    }

    /// The version of the bundle in force; 0 for the configuration file.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.bundle.as_ref().map_or(0, |bundle| bundle.version)
    }

    /// What is watched of the jobs under the bundle in force; nothing under the machine's own configuration, which is the
    /// operator's to judge.
    pub fn watch(&mut self) -> Option<&mut Watch> {
        self.bundle.is_some().then_some(&mut self.watch)
    }

    /// Decides what to go by from now on. Returns a new configuration where it changes, and what is to be told.
    pub fn decide(&mut self, now_unix_s: u64) -> (Option<Config>, Vec<String>) {
        let mut said: Vec<String> = self.trouble.take().into_iter().collect();
        let before = self.bundle.clone();
        self.judge(now_unix_s, &mut said);
        loop {
            let (bundle, instead) = choose(self.guidance.as_ref(), &self.notes.left, now_unix_s);
            if instead != self.instead {
                said.extend(instead.as_ref().map(|why| format!("rollout: {why}")));
            }
            (self.bundle, self.instead) = (bundle.cloned(), instead);
            let Some(why) = self.count_start(now_unix_s) else { break };
            self.leave("starts", why, now_unix_s, &mut said);
        }
        self.started |= self.guidance.is_some();
        if self.bundle == before {
            return (None, said);
        }
        self.watch = Watch::default();
        let config = self.bundle.as_ref().map_or_else(|| self.own.clone(), |bundle| bundle.over(&self.own));
        let by = self
            .bundle
            .as_ref()
            .map_or_else(|| "the configuration file".to_owned(), |bundle| format!("bundle {} ({})", bundle.version, bundle.id));
        let (rollout, stage) = self.guidance.as_ref().map_or(("", ""), |guidance| (guidance.rollout.as_str(), guidance.stage.as_str()));
        said.push(format!("uses {by} from now on, in stage {stage:?} of rollout {rollout:?}"));
        (Some(config), said)
    }

    /// Leaves a bundle that hurts.
    fn judge(&mut self, now: u64, said: &mut Vec<String>) {
        if self.bundle.is_none() {
            return;
        }
        if let Some((kind, why)) = self.watch.breach(&self.own.rollout) {
            self.leave(kind, why, now, said);
        }
    }

    fn leave(&mut self, kind: &'static str, why: String, now: u64, said: &mut Vec<String>) {
        let version = self.version();
        said.push(format!("rollout: rejects bundle {version}: {why}"));
        *self.reverts.entry(kind).or_default() += 1;
        if self.notes.left.len() == LEFT_MAX {
            self.notes.left.remove(0);
        }
        self.notes.left.push(Left { version, by: kind.to_owned(), why, unix_s: now });
        self.notes.starts = None;
        self.write(said);
    }

    /// Notes, once in this agent's life and before a bundle is gone by, that it starts with it. Returns why the bundle is to
    /// be left, if it has started so too often.
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
        too_often.then(|| format!("the agent has started {count} times within {}s with it, and was not stopped", within.as_secs()))
    }

    /// The agent is being stopped: that is no crash.
    pub fn stop(&mut self) {
        if self.notes.starts.take().is_some() {
            self.write(&mut Vec::new());
        }
    }

    fn write(&self, said: &mut Vec<String>) {
        let Some(file) = &self.file else { return };
        let directory = file.parent().unwrap_or(Path::new("/"));
        let bytes = serde_json::to_vec(&self.notes).unwrap_or_default();
        let written = std::fs::create_dir_all(directory).and_then(|()| replace_file(file, &bytes));
        if let Err(error) = written {
            log::error!("{}: {error}", file.display());
            said.push(format!("rollout: {}: {error}; a restart will not know which bundles were left", file.display()));
        }
    }

    /// A copy for people.
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
            trouble: self.told.error.clone(),
            checked_unix_s: self.told.checked_unix_s,
            polls: self.told.polls,
            requests: self.told.requests,
            refused: self.told.refused.clone(),
            reverts: self.reverts.clone(),
            left: self.notes.left.clone(),
        }
    }
}

/// What to go by, and why it is not what was assigned. Pure.
fn choose<'a>(guidance: Option<&'a Guidance>, left: &[Left], now_unix_s: u64) -> (Option<&'a Bundle>, Option<String>) {
    let Some(guidance) = guidance else { return (None, None) };
    let mut instead = None;
    for bundle in [&guidance.bundle, &guidance.previous].into_iter().flatten() {
        if bundle.expired(now_unix_s) {
            let expired = config::bundle::rfc3339(bundle.expires_unix_s);
            let why = format!("bundle {} has expired at {expired}: the configuration file holds", bundle.version);
            return (None, Some(instead.map_or(why.clone(), |before| format!("{before}; {why}"))));
        }
        match left.iter().rfind(|left| left.version == bundle.version) {
            None => return (Some(bundle), instead),
            Some(left) => instead = Some(format!("bundle {} was left: {}", left.version, left.why)),
        }
    }
    (None, instead)
}

/// What an earlier agent has noted. What is damaged is told, and forgotten.
fn read(file: &Path) -> Result<Notes, String> {
    match std::fs::metadata(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Notes::default()),
        Ok(found) if found.len() > NOTE_BYTES_MAX => return Err(format!("rollout: {} is too large, and forgotten", file.display())),
        _ => {}
    }
    let read = std::fs::read(file).and_then(|bytes| Ok(serde_json::from_slice(&bytes)?));
    read.map_err(|error| format!("rollout: {}: {error}; which bundles were left is forgotten", file.display()))
}

#[cfg(test)]
mod tests;

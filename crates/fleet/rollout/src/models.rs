//! A host of a pool follows the models of a rollout: the files that its bundle names, at the paths of its configuration.
//!
//! # Invariants
//! - Only bytes of signed models are written, and each file is whole or unchanged.
//! - Only files that this program wrote are replaced or removed ([`Written`]).
//! - Without a valid bundle there are no models: one that is expired, or whose signatures are, no longer decides.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use config::bundle::rfc3339;
use config::{Bundle, Guidance};
use serde::{Deserialize, Serialize};
use store::FileError;

use crate::client::sha256_of;
use crate::error::{Error, Refusal, Result};
use crate::follow::Follower;

/// Where the models of a host are. A model without a path is not used.
#[derive(Clone, Debug, Default)]
pub struct Paths {
    /// The model of untouched memory.
    pub untouched: Option<PathBuf>,
    /// The model of insensitivity to latency.
    pub insensitive: Option<PathBuf>,
}

/// What a host follows, and what was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Followed {
    /// The version of the bundle; `None` without one.
    pub version: Option<u64>,
    /// The bundle's name.
    pub id: Option<String>,
    /// Why there is no bundle.
    pub why: Option<String>,
    /// The files of the models that the host uses.
    pub files: Vec<Outcome>,
    /// Why the store could not be read. What was verified before is followed.
    pub trouble: Option<String>,
    /// Whether the files stayed as they are, and the changes are what would be done.
    pub dry_run: bool,
}

/// What became of the file of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// The model.
    pub model: &'static str,
    /// Its file.
    pub file: PathBuf,
    /// What was done.
    pub change: Change,
}

/// What was done with the file of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// It was written.
    Written,
    /// It was removed: the bundle has no such model.
    Removed,
    /// It is as the bundle says.
    Unchanged,
}

/// The SHA-256 of every model that this program wrote here. Another file at one of the paths is the operator's.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Written(BTreeSet<String>);

impl Written {
    fn path(state_dir: &Path) -> PathBuf {
        state_dir.join("rollout/models.json")
    }

    fn load(state_dir: &Path) -> Result<Self> {
        let file = Self::path(state_dir);
        match std::fs::read(&file) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|error| Error::refused(Refusal::Malformed, format!("{}: {error}; remove it", file.display()))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(FileError::at(&file, "read")(error).into()),
        }
    }

    /// Adds a model before it is written, so that a file is recognised if this program is killed in between.
    fn add(&mut self, state_dir: &Path, sha256: &str) -> Result<()> {
        if self.0.insert(sha256.to_owned()) {
            let file = Self::path(state_dir);
            let json = serde_json::to_vec(self).map_err(|error| FileError::at(&file, "write")(error.into()))?;
            let directory = store::file::directory_of(&file);
            std::fs::create_dir_all(directory).map_err(FileError::at(directory, "create"))?;
            store::file::replace(&file, &json)?;
        }
        Ok(())
    }
}

/// Polls the store once, and has the files follow. With `dry_run` they stay as they are.
///
/// # Errors
/// [`Error::Publish`] if a file was not written by this program; [`Error::File`]; those of a model that cannot be fetched. An
/// unreachable store is no error ([`Followed::trouble`]) as long as no new model is needed.
pub fn follow(follower: &mut Follower, paths: &Paths, now_unix_s: u64, dry_run: bool) -> Result<Followed> {
    let poll = follower.poll(now_unix_s);
    let mut followed = Followed { version: None, id: None, why: None, files: Vec::new(), trouble: poll.error, dry_run };
    let Some(guidance) = follower.guidance().cloned() else {
        followed.why = Some("nothing is known of the store yet".to_owned());
        return Ok(followed);
    };
    let bundle = match bundle_of(&guidance, now_unix_s) {
        Ok(bundle) => Some(bundle),
        Err(why) => {
            followed.why = Some(why);
            None
        }
    };
    (followed.version, followed.id) = bundle.map(|bundle| (bundle.version, bundle.id.clone())).unzip();
    let mut written = Written::load(follower.state_dir())?;
    let models = bundle.map(|bundle| bundle.models.clone()).unwrap_or_default();
    let wanted = [("untouched", &paths.untouched, models.untouched), ("insensitive", &paths.insensitive, models.insensitive)];
    for (model, file, sha256) in wanted {
        let Some(file) = file else { continue };
        let change = place(follower, &mut written, file, sha256.as_deref(), dry_run)?;
        followed.files.push(Outcome { model, file: file.clone(), change });
    }
    Ok(followed)
}

/// The bundle that is valid now, or why there is none.
fn bundle_of(guidance: &Guidance, now_unix_s: u64) -> Result<&Bundle, String> {
    let bundle = guidance.bundle.as_ref().ok_or_else(|| "no bundle is assigned to this host".to_owned())?;
    if let Some(until) = guidance.signed_until_unix_s.filter(|&until| now_unix_s >= until) {
        return Err(format!("the signatures of bundle {} expired at {}, and no newer ones arrived", bundle.version, rfc3339(until)));
    }
    if bundle.expired(now_unix_s) {
        return Err(format!("bundle {} expired at {}", bundle.version, rfc3339(bundle.expires_unix_s)));
    }
    Ok(bundle)
}

/// Has one file hold the model with this hash, or not exist.
fn place(follower: &Follower, written: &mut Written, file: &Path, wanted: Option<&str>, dry_run: bool) -> Result<Change> {
    let found = match std::fs::read(file) {
        Ok(bytes) => Some(sha256_of(&bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(FileError::at(file, "read")(error).into()),
    };
    if found.as_deref() == wanted {
        return Ok(Change::Unchanged);
    }
    if let Some(found) = &found
        && !written.0.contains(found)
    {
        let what = format!("{} was not written by this command, and is left as it is", file.display());
        return Err(Error::publish(what, "move it away, or take predict.store out of the host's configuration"));
    }
    let Some(sha256) = wanted else {
        if !dry_run {
            std::fs::remove_file(file).map_err(FileError::at(file, "remove"))?;
        }
        return Ok(Change::Removed);
    };
    let bytes = follower.model(sha256)?;
    if !dry_run {
        written.add(follower.state_dir(), sha256)?;
        let directory = store::file::directory_of(file);
        std::fs::create_dir_all(directory).map_err(FileError::at(directory, "create"))?;
        store::file::replace(file, &bytes)?;
    }
    Ok(Change::Written)
}

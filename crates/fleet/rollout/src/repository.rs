//! The operator's side of a repository: publishes bundles and assignments, with signatures.
//!
//! A change consists of new files under new names and takes effect with the last one, `timestamp.json`: a machine sees
//! the repository either before or after the change. The next change ignores files that an interrupted one has left.

use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use config::Bundle;
use jiff::Timestamp;
use serde::Serialize;
use store::{Access, FileError, Store};
use tough::editor::RepositoryEditor;
use tough::schema::{RoleType, Root, Target};
use tough::{ExpirationEnforcement, Repository, TargetName};
use units::Bytes;

use crate::assignment::Assignment;
use crate::client::{self, ASSIGNMENT, Files, METADATA, MODEL_SIZE_MAX, TARGETS, TIMESTAMP};
use crate::error::{Error, Result};
use crate::keys;

pub mod root;

/// Validity of signatures. For this long, an attacker who keeps the store from being updated can hide newer versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Validity of `timestamp.json`: how long updates can be withheld from a machine.
    pub timestamp: Duration,
    /// Validity of the files that are signed with each change.
    pub targets: Duration,
    /// Validity of the root.
    pub root: Duration,
}

const DAY: Duration = Duration::from_secs(86_400);

impl Default for Validity {
    fn default() -> Self {
        Self { timestamp: 7 * DAY, targets: 90 * DAY, root: 365 * DAY }
    }
}

/// Maximum attempts to publish under a higher version if files of that version exist.
const ATTEMPTS_MAX: u64 = 16;

/// A repository with the keys to change it.
#[derive(Debug)]
pub struct Operator {
    store: Arc<Store>,
    files: Files,
    /// File of the trusted root.
    root: PathBuf,
    /// Directory of the keys.
    keys: PathBuf,
    validity: Validity,
}

/// A change to a repository.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// Renews the signatures.
    Refresh,
    /// Publishes a bundle, which no machine follows yet.
    Publish(&'a Bundle),
    /// Publishes a bundle with the models that it names.
    PublishModels(&'a Bundle, &'a [Vec<u8>]),
    /// Removes a bundle; its machines return to the previous bundle, or to their configuration file.
    Revoke(u64),
    /// Publishes an assignment.
    Assign(&'a Assignment),
}

/// Contents of a repository.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Contents {
    /// Metadata of the roles.
    pub roles: Vec<RoleView>,
    /// The assignment.
    pub assignment: Option<Assignment>,
    /// The bundles, oldest first.
    pub bundles: Vec<Bundle>,
    /// Bundles that are signed or assigned but cannot be followed, with the reason.
    pub problems: Vec<String>,
}

/// Metadata of a role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RoleView {
    /// Name of the role.
    pub role: String,
    /// Version of the metadata.
    pub version: u64,
    /// Expiry, in seconds of Unix time.
    pub expires_unix_s: u64,
    /// Number of required signatures.
    pub threshold: u64,
    /// Ids of the keys that may sign.
    pub keys: Vec<String>,
}

/// Result of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChangeSummary {
    /// Version of the metadata with the change.
    pub version: u64,
    /// Targets added or replaced.
    pub put: Vec<String>,
    /// Targets removed.
    pub removed: Vec<String>,
    /// Whether nothing was written.
    pub dry_run: bool,
}

impl Operator {
    /// Opens the repository at a store's URL, with the file of the trusted root and the directory of the keys.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn open(store: &str, root: &Path, keys: &Path, validity: Validity) -> Result<Self> {
        let store = Arc::new(Store::open(store)?);
        let files = Files::over(Access::Own(Arc::clone(&store)));
        Ok(Self { store, files, root: root.to_owned(), keys: keys.to_owned(), validity })
    }

    /// Returns the contents, verified as by a machine. With `expired`, expired contents are accepted.
    ///
    /// # Errors
    /// [`Error::Refused`]; [`Error::Unavailable`]; [`Error::File`].
    pub fn contents(&self, expired: bool) -> Result<Contents> {
        let enforcement = ExpirationEnforcement::from(!expired);
        self.store.block_on(async {
            let repository = self.load(enforcement).await?;
            let (mut bundles, mut problems) = (Vec::new(), Vec::new());
            for version in client::bundles(&repository) {
                match client::bundle(&repository, version).await {
                    Ok(bundle) => bundles.push(bundle),
                    Err(error) => problems.push(error.to_string()),
                }
            }
            let assignment = client::assignment(&repository).await?;
            let named = assignment.iter().flat_map(|assignment| [assignment.bundle, assignment.previous]).flatten();
            problems.extend(named.filter_map(|version| problem_of(&bundles, version)));
            Ok(Contents { roles: roles(&repository), assignment, bundles, problems })
        })
    }

    /// Returns a model that a bundle names by its SHA-256.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if it is not published; [`Error::Refused`] for another file; those of [`Self::contents`].
    pub fn model(&self, sha256: &str) -> Result<Vec<u8>> {
        self.store.block_on(async { client::model(&self.load(ExpirationEnforcement::Unsafe).await?, sha256).await })
    }

    /// Publishes a change; with `dry_run`, only checks it.
    ///
    /// # Errors
    /// [`Error::Publish`] if the change is invalid or keys are missing; those of [`Self::contents`].
    pub fn change(&self, change: Change, dry_run: bool) -> Result<ChangeSummary> {
        self.store.block_on(async {
            let repository = self.load(ExpirationEnforcement::Unsafe).await?;
            let plan = plan(&repository, change).await?;
            self.check_keys(&repository.root().signed)?;
            let from = highest(&repository);
            let mut summary = ChangeSummary { version: from + 1, put: plan.names(), removed: plan.remove.clone(), dry_run };
            if !dry_run {
                let root = serde_json::to_vec(repository.root()).map_err(|error| Error::publish(error.to_string(), "report this"))?;
                summary.version = self.publish(&repository, &root, &plan, from).await?;
            }
            Ok(summary)
        })
    }

    async fn load(&self, expiration: ExpirationEnforcement) -> Result<Repository> {
        let root = std::fs::read(&self.root).map_err(FileError::at(&self.root, "read"))?;
        if self.files.read(TIMESTAMP).await?.is_none() {
            let what = format!("{} holds no repository", self.store.url());
            return Err(Error::publish(what, "create one with `thermocline rollout init`, or name another store"));
        }
        client::load(&self.files, &root, None, expiration).await
    }

    /// Checks that the required keys exist before anything is written.
    fn check_keys(&self, root: &Root) -> Result<()> {
        for role in keys::ONLINE {
            let allowed: Vec<_> = root.keys(role).collect();
            let mut ours = 0;
            for path in keys::of(&self.keys, role)? {
                ours += u64::from(allowed.contains(&&keys::public(&path)?));
            }
            let needed = root.roles.get(&role).map_or(1, |keys| keys.threshold.get());
            if ours < needed {
                let what = format!("{} of the {needed} keys that must sign {role} are in {}", ours, self.keys.display());
                return Err(Error::publish(what, "name the directory with the root's keys by --keys"));
            }
        }
        Ok(())
    }

    /// Signs and writes all files, the timestamp last, under a root that machines trust. Returns the new version.
    async fn publish(&self, repository: &Repository, root: &[u8], plan: &Plan, from: u64) -> Result<u64> {
        let before = self.files.read(TIMESTAMP).await?;
        let directory = client::scratch()?;
        // The library reads the root and the targets from files.
        let root_file = directory.path().join("root.json");
        std::fs::write(&root_file, root).map_err(FileError::at(&root_file, "write"))?;
        let mut targets = Vec::new();
        for (name, bytes) in &plan.put {
            let path = directory.path().join(name);
            std::fs::write(&path, bytes).map_err(FileError::at(&path, "write"))?;
            let target = Target::from_path(&path).await.map_err(|error| Error::publish(error.to_string(), "try again"))?;
            let hash: String = target.hashes.sha256.iter().map(|byte| format!("{byte:02x}")).collect();
            self.store.write(&format!("{TARGETS}/{hash}.{name}"), bytes.clone(), false).await?;
            targets.push((name, target));
        }
        for version in from + 1..=from + ATTEMPTS_MAX {
            let mut editor = tough(RepositoryEditor::from_repo(&root_file, repository.clone()).await)?;
            for (name, target) in &targets {
                tough(editor.add_target(name.as_str(), target.clone()))?;
            }
            for name in &plan.remove {
                tough(editor.remove_target(&tough(TargetName::new(name))?))?;
            }
            if self.sign_and_write(editor, directory.path(), version, before.as_deref()).await? {
                return Ok(version);
            }
        }
        let what = format!("versions {} to {} exist", from + 1, from + ATTEMPTS_MAX);
        Err(Error::publish(what, "find out who else publishes to this store, and remove the unused files below metadata/"))
    }

    /// Signs the edited metadata and writes it; returns `false` if the version exists. `before` is the timestamp that
    /// must still be current.
    async fn sign_and_write(&self, mut editor: RepositoryEditor, directory: &Path, version: u64, before: Option<&[u8]>) -> Result<bool> {
        let number = NonZeroU64::new(version).unwrap_or(NonZeroU64::MIN);
        let (targets, timestamp) = (until(self.validity.targets), until(self.validity.timestamp));
        tough(editor.targets_version(number))?;
        tough(editor.targets_expires(targets))?;
        editor.snapshot_version(number).snapshot_expires(targets).timestamp_version(number).timestamp_expires(timestamp);
        let mut paths = Vec::new();
        for role in keys::ONLINE {
            paths.extend(keys::of(&self.keys, role)?);
        }
        let signed = tough(editor.sign(&keys::sources(&paths)).await)?;
        let out = directory.join(format!("signed-{version}"));
        tough(signed.write(&out).await)?;
        let store = &self.store;
        for role in ["targets", "snapshot"] {
            let name = format!("{version}.{role}.json");
            let bytes = read(&out.join(&name))?;
            if !store.write(&format!("{METADATA}/{name}"), bytes, true).await? {
                return Ok(false);
            }
        }
        if self.files.read(TIMESTAMP).await?.as_deref() != before {
            return Err(Error::publish("another user has published in the meantime; that change stands", "check it, and try again"));
        }
        store.write(TIMESTAMP, read(&out.join("timestamp.json"))?, false).await?;
        Ok(true)
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    Ok(std::fs::read(path).map_err(FileError::at(path, "read"))?)
}

/// Returns why machines cannot follow an assigned version, if so.
fn problem_of(bundles: &[Bundle], version: u64) -> Option<String> {
    let Some(bundle) = bundles.iter().find(|bundle| bundle.version == version) else {
        return Some(format!("bundle {version} is assigned but not published"));
    };
    bundle.expired(now_unix_s()).then(|| format!("bundle {version} is assigned but has expired: its machines use their configuration file"))
}

fn now_unix_s() -> u64 {
    u64::try_from(Timestamp::now().as_second()).unwrap_or(0)
}

/// Converts a result of the TUF library.
fn tough<T>(outcome: tough::error::Result<T>) -> Result<T> {
    outcome.map_err(|error| Error::from_tough(&error))
}

/// Returns the time after a duration from now.
fn until(duration: Duration) -> Timestamp {
    // The specification requires whole seconds.
    let seconds = Timestamp::now().as_second().saturating_add(i64::try_from(duration.as_secs()).unwrap_or(i64::MAX));
    Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX)
}

/// Returns the highest version of the files that are signed with each change.
fn highest(repository: &Repository) -> u64 {
    let versions = [repository.targets().signed.version, repository.snapshot().signed.version, repository.timestamp().signed.version];
    versions.iter().map(|version| version.get()).max().unwrap_or(0)
}

/// Targets to add and to remove.
#[derive(Debug, Default)]
struct Plan {
    put: Vec<(String, Vec<u8>)>,
    remove: Vec<String>,
}

impl Plan {
    fn names(&self) -> Vec<String> {
        self.put.iter().map(|(name, _)| name.clone()).collect()
    }

    /// A bundle of a higher version than all published ones, with the models that it names.
    fn publish(&mut self, bundle: &Bundle, models: &[Vec<u8>], published: &[u64]) -> Result<()> {
        if let Some(last) = published.last().filter(|&&last| last >= bundle.version) {
            let what = format!("version {} is not above {last}, which was published before", bundle.version);
            return Err(Error::publish(what, format!("write version = {}", last.saturating_add(1))));
        }
        if bundle.expired(now_unix_s()) {
            return Err(Error::publish("the bundle has expired already", "write a later `expires`"));
        }
        for model in models {
            if Bytes(model.len() as u64) > MODEL_SIZE_MAX {
                return Err(Error::publish(format!("a model has {} bytes", model.len()), format!("publish {MODEL_SIZE_MAX} at most")));
            }
            self.put.push((client::model_name(&client::sha256_of(model)), model.clone()));
        }
        for (name, digest) in bundle.models.by_name() {
            if let Some(digest) = digest
                && !self.put.iter().any(|(file, _)| *file == client::model_name(digest))
            {
                let what = format!("the bundle names the model {name} by {digest}, whose file is not given");
                return Err(Error::publish(what, "publish models by `thermocline pool models publish`"));
            }
        }
        self.put.push((client::bundle_name(bundle.version), bundle.to_toml().into_bytes()));
        Ok(())
    }

    fn assign(&mut self, assignment: &Assignment) -> Result<()> {
        assignment.check()?;
        let bytes = serde_json::to_vec_pretty(assignment).map_err(|error| Error::Assignment { what: error.to_string() })?;
        self.put.push((ASSIGNMENT.to_owned(), bytes));
        Ok(())
    }
}

/// Plans a change, if it is valid.
async fn plan(repository: &Repository, change: Change<'_>) -> Result<Plan> {
    let published = client::bundles(repository);
    let known = |version: u64| {
        let versions: Vec<_> = published.iter().map(u64::to_string).collect();
        let remedy = if versions.is_empty() { "publish one".to_owned() } else { format!("name one of {}", versions.join(", ")) };
        if published.contains(&version) { Ok(()) } else { Err(Error::publish(format!("no bundle {version} is published"), remedy)) }
    };
    let mut plan = Plan::default();
    match change {
        Change::Refresh => {}
        Change::Publish(bundle) => plan.publish(bundle, &[], &published)?,
        Change::PublishModels(bundle, models) => plan.publish(bundle, models, &published)?,
        Change::Revoke(version) => {
            known(version)?;
            plan.remove.push(client::bundle_name(version));
            plan.remove.extend(own_models(repository, version, &published).await);
            if let Some(assignment) = client::assignment(repository).await? {
                let keep = |named: Option<u64>| named.filter(|&named| named != version);
                let without = Assignment { bundle: keep(assignment.bundle), previous: keep(assignment.previous), ..assignment.clone() };
                if without != assignment {
                    plan.assign(&without)?;
                }
            }
        }
        Change::Assign(assignment) => {
            assignment.bundle.map_or(Ok(()), known)?;
            assignment.previous.map_or(Ok(()), known)?;
            plan.assign(assignment)?;
        }
    }
    Ok(plan)
}

/// Names of the models that only this bundle has. If another bundle cannot be read, none.
async fn own_models(repository: &Repository, version: u64, published: &[u64]) -> Vec<String> {
    let mut names = BTreeSet::new();
    let mut others = BTreeSet::new();
    for &one in published {
        let Ok(bundle) = client::bundle(repository, one).await else { return Vec::new() };
        let its = if one == version { &mut names } else { &mut others };
        its.extend(bundle.models.by_name().into_iter().filter_map(|(_, digest)| digest).map(client::model_name));
    }
    names.difference(&others).cloned().collect()
}

fn roles(repository: &Repository) -> Vec<RoleView> {
    let root = &repository.root().signed;
    let times = [
        (RoleType::Root, root.version, root.expires),
        (RoleType::Targets, repository.targets().signed.version, repository.targets().signed.expires),
        (RoleType::Snapshot, repository.snapshot().signed.version, repository.snapshot().signed.expires),
        (RoleType::Timestamp, repository.timestamp().signed.version, repository.timestamp().signed.expires),
    ];
    let view = |(role, version, expires): (RoleType, NonZeroU64, Timestamp)| RoleView {
        role: role.to_string(),
        version: version.get(),
        expires_unix_s: u64::try_from(expires.as_second()).unwrap_or(0),
        threshold: root.roles.get(&role).map_or(0, |keys| keys.threshold.get()),
        keys: root.keys(role).map(keys::id).collect(),
    };
    times.map(view).to_vec()
}

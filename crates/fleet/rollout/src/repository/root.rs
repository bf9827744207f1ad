//! The root: the keys of each role and the number of required signatures. It creates a repository and can be replaced.

use std::collections::HashMap;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;

use aws_lc_rs::rand::SystemRandom;
use store::FileError;
use tough::ExpirationEnforcement;
use tough::editor::RepositoryEditor;
use tough::editor::signed::SignedRole;
use tough::schema::{KeyHolder, RoleKeys, RoleType, Root};

use super::{ChangeSummary, Operator, Plan, Validity, highest, tough, until};
use crate::client::{self, METADATA, TIMESTAMP};
use crate::error::{Error, Result};
use crate::keys;

impl Operator {
    /// Creates a repository in an empty store with the keys of a directory, and writes the root that machines must
    /// trust to the file that this value was opened with.
    ///
    /// # Errors
    /// [`Error::Publish`] if there is a repository or keys are missing; [`Error::File`]; [`Error::Store`].
    pub fn init(&self, root_threshold: u8, dry_run: bool) -> Result<ChangeSummary> {
        self.store.block_on(async {
            if self.files.read(&root_name(1)).await?.is_some() || self.files.read(TIMESTAMP).await?.is_some() {
                let what = format!("{} holds a repository already", self.store.url());
                return Err(Error::publish(what, "name another store, or use the existing repository"));
            }
            let taken = || {
                let what = format!("{} exists", self.root.display());
                Error::publish(what, "name another file by --root: the root of another repository is never replaced")
            };
            if self.root.exists() {
                return Err(taken());
            }
            let root = make_root(&self.keys, 1, root_threshold, &self.validity)?;
            let signed = sign_root(&root, &[(&root, self.keys.as_path())]).await?;
            let summary = ChangeSummary { version: 1, put: Vec::new(), removed: Vec::new(), dry_run };
            if dry_run {
                return Ok(summary);
            }
            // The root is written first: a repository is useless without it.
            let mut file = match File::create_new(&self.root) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(taken()),
                file => file.map_err(FileError::at(&self.root, "create"))?,
            };
            file.write_all(signed.buffer()).and_then(|()| file.sync_all()).map_err(FileError::at(&self.root, "write"))?;
            let begun = self.begin(&signed).await;
            if begun.is_err() {
                // Remove only the file just written, so that the operation can be repeated.
                let _ = std::fs::remove_file(&self.root);
            }
            begun.map(|()| summary)
        })
    }

    /// Writes the first metadata of a repository.
    async fn begin(&self, root: &SignedRole<Root>) -> Result<()> {
        let directory = client::scratch()?;
        let editor = tough(RepositoryEditor::new(&self.root).await)?;
        if !self.store.write(&root_name(1), root.buffer().clone(), true).await? {
            return Err(Error::publish("another user has created a repository in the meantime", "use it, or name another store"));
        }
        if !self.sign_and_write(editor, directory.path(), 1, None).await? {
            return Err(Error::publish("metadata/1.targets.json or its snapshot exists", "name an empty store"));
        }
        Ok(())
    }

    /// Replaces the keys of all roles by those of another directory. The new root is signed by the old and the new
    /// keys, so that machines that trust the old root accept it.
    ///
    /// # Errors
    /// [`Error::Publish`] if keys are missing; those of [`Operator::contents`].
    pub fn rotate(&self, new_keys: &Path, root_threshold: u8, dry_run: bool) -> Result<ChangeSummary> {
        self.store.block_on(async {
            let repository = self.load(ExpirationEnforcement::Unsafe).await?;
            let old = &repository.root().signed;
            let version = old.version.get() + 1;
            let root = make_root(new_keys, version, root_threshold, &self.validity)?;
            let renewed = Self {
                store: Arc::clone(&self.store),
                files: self.files.clone(),
                root: self.root.clone(),
                keys: new_keys.to_owned(),
                validity: self.validity,
            };
            renewed.check_keys(&root)?;
            let signed = sign_root(&root, &[(old, self.keys.as_path()), (&root, new_keys)]).await?;
            let from = highest(&repository);
            let summary = ChangeSummary { version: from + 1, put: Vec::new(), removed: Vec::new(), dry_run };
            if dry_run {
                return Ok(summary);
            }
            if !self.store.write(&root_name(version), signed.buffer().clone(), true).await? {
                let what = format!("version {version} of the root exists");
                return Err(Error::publish(what, "check what is published, and try again"));
            }
            // From here on machines trust only the new keys: sign the published files again.
            let version = renewed.publish(&repository, signed.buffer(), &Plan::default(), from).await?;
            Ok(ChangeSummary { version, ..summary })
        })
    }
}

/// Returns the path of a version of the root.
fn root_name(version: u64) -> String {
    format!("{METADATA}/{version}.root.json")
}

/// Builds a root with the keys of a directory.
fn make_root(directory: &Path, version: u64, threshold: u8, validity: &Validity) -> Result<Root> {
    let (mut keys, mut roles) = (HashMap::new(), HashMap::new());
    for role in [RoleType::Root, RoleType::Targets, RoleType::Snapshot, RoleType::Timestamp] {
        let threshold = if role == RoleType::Root { threshold } else { 1 };
        let mut keyids = Vec::new();
        for path in keys::of(directory, role)? {
            let key = keys::public(&path)?;
            let id = key.key_id().map_err(|error| Error::publish(error.to_string(), "generate new keys"))?;
            keys.insert(id.clone(), key);
            keyids.push(id);
        }
        let needed = NonZeroU64::new(u64::from(threshold)).filter(|needed| needed.get() <= keyids.len() as u64);
        let Some(threshold) = needed else {
            let what = format!("{} keys of {role} in {}, of which {threshold} must sign", keyids.len(), directory.display());
            return Err(Error::publish(what, "generate keys with `thermocline rollout keygen`, or use a lower --root-threshold"));
        };
        roles.insert(role, RoleKeys { keyids, threshold, _extra: HashMap::new() });
    }
    let version = NonZeroU64::new(version).unwrap_or(NonZeroU64::MIN);
    let spec_version = "1.0.0".to_owned();
    Ok(Root { spec_version, consistent_snapshot: true, version, expires: until(validity.root), keys, roles, _extra: HashMap::new() })
}

/// Signs a root with the keys that each of these roots names for itself, each from a directory.
async fn sign_root(root: &Root, signers: &[(&Root, &Path)]) -> Result<SignedRole<Root>> {
    let mut signed: Option<SignedRole<Root>> = None;
    for (by, directory) in signers {
        let sources = keys::sources(&keys::of(directory, RoleType::Root)?);
        let theirs = tough(SignedRole::new(root.clone(), &KeyHolder::Root((*by).clone()), &sources, &SystemRandom::new()).await)?;
        let needed = by.roles.get(&RoleType::Root).map_or(1, |keys| keys.threshold.get());
        let given = theirs.signed().signatures.len() as u64;
        if given < needed {
            let what = format!("{given} of the {needed} keys that must sign the root are in {}", directory.display());
            return Err(Error::publish(what, "name the directory with the root's keys"));
        }
        let before = signed.take().map(|signed| signed.signed().signatures.clone()).unwrap_or_default();
        signed = Some(tough(theirs.add_old_signatures(before))?);
    }
    signed.ok_or_else(|| Error::publish("no key signs the root", "name keys"))
}

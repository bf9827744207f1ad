//! Reads a repository of The Update Framework (specification 1.0). All bytes that this module returns are verified.
//!
//! ```text
//! metadata/1.root.json, 2.root.json, ...   keys and thresholds of all roles; each version is signed by the previous one
//! metadata/timestamp.json                  the current snapshot; the only file that is replaced
//! metadata/5.snapshot.json                 the current version of the targets
//! metadata/5.targets.json                  hash and size of each target
//! targets/HASH.assignment.json             which machines follow which bundle
//! targets/HASH.bundle-7.toml               a bundle
//! targets/HASH.model-HASH.onnx             a model that bundles name by its hash
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use aws_lc_rs::digest::{SHA256, digest};
use config::Bundle;
use store::{Access, FileError};
use tough::schema::{Root, Signed};
use tough::{
    ExpirationEnforcement, IntoVec, Limits, Repository, RepositoryLoader, TargetName, Transport, TransportError, TransportErrorKind,
    TransportStream,
};

use units::Bytes;
use url::Url;

use crate::assignment::Assignment;
use crate::error::{Error, Refusal, Result};

pub(crate) const METADATA: &str = "metadata";
pub(crate) const TARGETS: &str = "targets";
pub(crate) const TIMESTAMP: &str = "metadata/timestamp.json";
pub(crate) const ASSIGNMENT: &str = "assignment.json";

/// Maximum size of a file of a repository.
pub(crate) const FILE_SIZE_MAX: Bytes = Bytes(1 << 20);

/// Maximum size of a model.
pub(crate) const MODEL_SIZE_MAX: Bytes = Bytes(64 << 20);

/// Maximum number of root versions between the known and the newest one.
const ROOTS_MAX: u64 = 64;

/// Returns the name of a bundle's target.
pub(crate) fn bundle_name(version: u64) -> String {
    format!("bundle-{version}.toml")
}

/// Returns the version of the bundle in a target.
pub(crate) fn bundle_version(name: &str) -> Option<u64> {
    name.strip_prefix("bundle-")?.strip_suffix(".toml")?.parse().ok()
}

/// Returns the name of a model's target.
pub(crate) fn model_name(sha256: &str) -> String {
    format!("model-{sha256}.onnx")
}

/// A store that serves the TUF library and counts its requests.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    pub(crate) store: Arc<Access>,
    requests: Arc<AtomicU64>,
}

impl Files {
    /// Opens the store at `url`, by a connection of this process's or of the process that listens at `network`.
    pub(crate) fn open(url: &str, network: Option<&Path>) -> Result<Self> {
        Access::open(url, network).map(Self::over).map_err(Error::from)
    }

    pub(crate) fn over(store: Access) -> Self {
        Self { store: Arc::new(store), requests: Arc::default() }
    }

    /// Returns the number of requests so far.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Reads a file; returns `None` if it does not exist.
    pub(crate) async fn read(&self, path: &str) -> Result<Option<Vec<u8>>> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let most = if path.starts_with(TARGETS) && path.ends_with(".onnx") { MODEL_SIZE_MAX } else { FILE_SIZE_MAX };
        Ok(self.store.read(path, most).await?)
    }
}

#[tough::async_trait]
impl Transport for Files {
    async fn fetch(&self, url: Url) -> Result<TransportStream, TransportError> {
        let path = url.path().trim_start_matches('/');
        match self.read(path).await {
            Ok(Some(bytes)) => Ok(Box::pin(futures_util::stream::once(std::future::ready(Ok(bytes.into()))))),
            Ok(None) => Err(TransportError::new(TransportErrorKind::FileNotFound, path)),
            Err(error) => Err(TransportError::new_with_cause(TransportErrorKind::Other, path, error)),
        }
    }
}

/// Verifies a repository, starting from a trusted root. Verified versions are kept in the datastore, if there is one,
/// so that older versions are refused afterwards.
///
/// # Errors
/// [`Error::Refused`]; [`Error::Unavailable`].
pub(crate) async fn load(files: &Files, root: &[u8], datastore: Option<&Path>, expiration: ExpirationEnforcement) -> Result<Repository> {
    let base = |folder: &str| Url::parse(&format!("store://repository/{folder}/"));
    let (Ok(metadata), Ok(targets)) = (base(METADATA), base(TARGETS)) else {
        return Err(Error::Unavailable { what: "invalid URL".to_owned() });
    };
    let limits = Limits {
        max_root_size: FILE_SIZE_MAX.0,
        max_targets_size: FILE_SIZE_MAX.0,
        max_timestamp_size: FILE_SIZE_MAX.0,
        max_snapshot_size: FILE_SIZE_MAX.0,
        max_root_updates: ROOTS_MAX,
    };
    let mut loader = RepositoryLoader::new(&root, metadata, targets).transport(files.clone()).limits(limits);
    if let Some(datastore) = datastore {
        loader = loader.datastore(datastore);
    }
    loader.expiration_enforcement(expiration).load().await.map_err(|error| Error::from_tough(&error))
}

/// Forgets the latest time that was seen, so that metadata is verified by the present one. Verified versions are kept.
pub(crate) fn forget_time(datastore: &Path) -> Result<()> {
    let file = datastore.join("latest_known_time.json");
    Ok(std::fs::remove_file(&file).map_err(FileError::at(&file, "remove"))?)
}

/// Reads a target; returns `None` if no target has that name.
pub(crate) async fn target(repository: &Repository, name: &str) -> Result<Option<Vec<u8>>> {
    let name = TargetName::new(name).map_err(|error| Error::from_tough(&error))?;
    let stream = repository.read_target(&name).await.map_err(|error| Error::from_tough(&error))?;
    let Some(stream) = stream else { return Ok(None) };
    stream.into_vec().await.map(Some).map_err(|error| Error::from_tough(&error))
}

/// Reads the assignment, if there is one.
pub(crate) async fn assignment(repository: &Repository) -> Result<Option<Assignment>> {
    target(repository, ASSIGNMENT).await?.map(|bytes| Assignment::parse(&bytes)).transpose()
}

/// Reads the bundle of this version.
pub(crate) async fn bundle(repository: &Repository, version: u64) -> Result<Bundle> {
    let name = bundle_name(version);
    let bytes = target(repository, &name).await?;
    let bytes = bytes.ok_or_else(|| Error::Unavailable { what: format!("{name} is not published, or was revoked") })?;
    let text = String::from_utf8(bytes).map_err(|_| Error::refused(Refusal::Malformed, format!("{name} is not UTF-8")))?;
    let bundle = Bundle::parse(&name, &text)?;
    if bundle.version != version {
        return Err(Error::refused(Refusal::Mismatch, format!("{name} has version {}", bundle.version)));
    }
    Ok(bundle)
}

/// Reads a model that a bundle names.
pub(crate) async fn model(repository: &Repository, sha256: &str) -> Result<Vec<u8>> {
    let name = model_name(sha256);
    let bytes = target(repository, &name).await?;
    let bytes = bytes.ok_or_else(|| Error::Unavailable { what: format!("{name} is not published, or was revoked") })?;
    // The signed hash of the target is that of the file; this is the one that the bundle names.
    if sha256_of(&bytes) != sha256 {
        return Err(Error::refused(Refusal::Mismatch, format!("{name} is another file")));
    }
    Ok(bytes)
}

/// Returns the SHA-256 in lower-case hexadecimal.
#[must_use]
pub fn sha256_of(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the versions of the published bundles, oldest first.
pub(crate) fn bundles(repository: &Repository) -> Vec<u64> {
    let mut versions: Vec<_> = repository.targets().signed.targets.keys().filter_map(|name| bundle_version(name.raw())).collect();
    versions.sort_unstable();
    versions
}

/// Returns the newest known root: the file that the operator installed on the machine, or the last root that the
/// library verified and kept in the datastore. Without the latter, an attacker with access to the store could withhold
/// newer roots and bring back revoked keys.
///
/// If the installed file has changed, the datastore of the old one is removed.
pub(crate) fn trusted_root(file: &Path, datastore: &Path) -> Result<Vec<u8>> {
    let given = std::fs::read(file).map_err(FileError::at(file, "read"))?;
    let version = |bytes: &[u8]| serde_json::from_slice::<Signed<Root>>(bytes).map(|root| root.signed.version.get());
    let own = version(&given).map_err(|error| Error::refused(Refusal::Malformed, format!("{}: {error}", file.display())))?;
    let (before, kept) = (datastore.join("given-root.json"), datastore.join("root.json"));
    if std::fs::read(&before).ok().as_ref() != Some(&given) {
        match std::fs::remove_dir_all(datastore) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(FileError::at(datastore, "clear")(error).into()),
            _ => {}
        }
        std::fs::create_dir_all(datastore).map_err(FileError::at(datastore, "create"))?;
        store::file::replace(&before, &given)?;
    }
    let newer = std::fs::read(kept).ok().filter(|kept| version(kept).is_ok_and(|version| version > own));
    Ok(newer.unwrap_or(given))
}

/// Creates a temporary directory.
pub(crate) fn scratch() -> Result<tempfile::TempDir> {
    Ok(tempfile::tempdir().map_err(FileError::at(&std::env::temp_dir(), "create a directory in"))?)
}

/// Returns the path of a machine's datastore.
pub(crate) fn datastore(state_dir: &Path) -> PathBuf {
    state_dir.join("rollout/verified")
}

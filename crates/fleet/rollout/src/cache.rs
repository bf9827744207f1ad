//! The cached guidance of a machine: after a restart without the store, the same bundle stays in effect.

use std::path::{Path, PathBuf};

use config::{Arm, Bundle, Guidance};
use serde::{Deserialize, Serialize};
use store::FileError;

use crate::client::sha256_of;
use crate::error::{Error, Refusal, Result};

/// Version of the file. Any other is refused.
const SCHEMA: u32 = 1;

/// Maximum size of the file, in bytes.
const BYTES_MAX: u64 = 1 << 20;

/// Versions of the metadata that were verified last. Older versions under the same root are refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Versions {
    pub(crate) root: u64,
    pub(crate) timestamp: u64,
    pub(crate) snapshot: u64,
    pub(crate) targets: u64,
}

impl Versions {
    /// Returns whether `now` is older in any respect. A new root resets the other versions: it may have been made
    /// because someone with stolen keys had increased them to their maximum.
    pub(crate) fn is_rollback(&self, now: &Self) -> bool {
        let older = now.timestamp < self.timestamp || now.snapshot < self.snapshot || now.targets < self.targets;
        now.root < self.root || now.root == self.root && older
    }
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Contents {
    schema: u32,
    versions: Versions,
    rollout: String,
    stage: String,
    arm: Arm,
    bundle: Option<String>,
    previous: Option<String>,
    #[serde(default)]
    signed_until_unix_s: Option<u64>,
}

/// Returns the path of the file.
pub(crate) fn path(state_dir: &Path) -> PathBuf {
    state_dir.join("rollout/followed")
}

/// Writes the file atomically: the SHA-256 of the JSON, then the JSON.
pub(crate) fn store(file: &Path, versions: Versions, guidance: &Guidance) -> Result<()> {
    let Guidance { rollout, stage, arm, bundle, previous, signed_until_unix_s } = guidance;
    let text = |bundle: &Option<Bundle>| bundle.as_ref().map(Bundle::to_toml);
    let contents = Contents {
        schema: SCHEMA,
        versions,
        rollout: rollout.clone(),
        stage: stage.clone(),
        arm: *arm,
        bundle: text(bundle),
        previous: text(previous),
        signed_until_unix_s: *signed_until_unix_s,
    };
    let json = serde_json::to_string(&contents).map_err(|error| FileError::at(file, "write")(error.into()))?;
    let directory = store::file::directory_of(file);
    std::fs::create_dir_all(directory).map_err(FileError::at(directory, "create"))?;
    Ok(store::file::replace(file, format!("{}\n{json}", sha256_of(json.as_bytes())).as_bytes())?)
}

/// Reads the file; returns `None` if it does not exist.
///
/// # Errors
/// [`Error::File`]; [`Error::Refused`] for a file that is damaged or of another version; [`Error::Bundle`].
pub(crate) fn load(file: &Path) -> Result<Option<(Versions, Guidance)>> {
    let damaged = |what: String| Error::refused(Refusal::Malformed, format!("{}: {what}", file.display()));
    match std::fs::metadata(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Ok(found) if found.len() > BYTES_MAX => return Err(damaged(format!("{} bytes", found.len()))),
        _ => {}
    }
    let text = String::from_utf8(std::fs::read(file).map_err(FileError::at(file, "read"))?).unwrap_or_default();
    let json = text.split_once('\n').filter(|(sum, json)| *sum == sha256_of(json.as_bytes())).map(|(_, json)| json);
    let json = json.ok_or_else(|| damaged("wrong checksum".to_owned()))?;
    let Contents { schema, versions, rollout, stage, arm, bundle, previous, signed_until_unix_s } =
        serde_json::from_str(json).map_err(|error| damaged(error.to_string()))?;
    if schema != SCHEMA {
        return Err(damaged(format!("schema {schema}; this program knows {SCHEMA}")));
    }
    let read = |text: Option<String>| text.map(|text| Bundle::parse(&file.to_string_lossy(), &text)).transpose();
    let (bundle, previous) = (read(bundle)?, read(previous)?);
    Ok(Some((versions, Guidance { rollout, stage, arm, bundle, previous, signed_until_unix_s })))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guidance() -> Guidance {
        let text = "schema = 1\nversion = 7\nid = \"x\"\ncreated = 2026-11-21T18:00:00Z\nexpires = 2026-12-21T18:00:00Z\n\
                    [knobs.cold_age]\npercentile = \"97%\"\n";
        let bundle = Some(Bundle::parse("7", text).unwrap());
        Guidance {
            rollout: "r".into(),
            stage: "canary".into(),
            arm: Arm::Bundle,
            bundle,
            previous: None,
            signed_until_unix_s: Some(1_800_000_000),
        }
    }

    #[test]
    fn a_cached_file_is_complete_or_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = path(dir.path());
        assert_eq!(load(&file).unwrap(), None);
        let versions = Versions { root: 1, timestamp: 2, snapshot: 3, targets: 4 };
        store(&file, versions, &guidance()).unwrap();
        assert_eq!(load(&file).unwrap(), Some((versions, guidance())));
        let whole = std::fs::read(&file).unwrap();
        for cut in 0..whole.len() {
            std::fs::write(&file, &whole[..cut]).unwrap();
            assert_eq!(load(&file).unwrap_err().refusal(), Some(Refusal::Malformed), "cut at {cut}");
        }
        for at in (0..whole.len()).step_by(7) {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            std::fs::write(&file, &changed).unwrap();
            assert!(load(&file).is_err(), "changed at {at}");
        }
    }

    #[test]
    fn versions_only_increase_under_one_root() {
        let versions = Versions { root: 2, timestamp: 9, snapshot: 8, targets: 7 };
        for (now, rollback) in [
            (versions, false),
            (Versions { timestamp: 10, ..versions }, false),
            (Versions { timestamp: 8, ..versions }, true),
            (Versions { snapshot: 7, ..versions }, true),
            (Versions { targets: 6, ..versions }, true),
            (Versions { root: 1, ..versions }, true),
            (Versions { root: 3, timestamp: 1, snapshot: 1, targets: 1 }, false),
        ] {
            assert_eq!(versions.is_rollback(&now), rollback, "{now:?}");
        }
    }
}

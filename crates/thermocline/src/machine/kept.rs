//! What `observe` keeps for `plan` and `setup`: a journal and the last view, in a directory of their own below `agent.state_dir`.

use std::io::Write;
use std::path::{Path, PathBuf};

use advise::setup::Observation;
use anyhow::{Context, Result};
use config::Config;
use daemon::trusted;
use serde_json::Value;
use units::Bytes;

const DIRECTORY: &str = "observed";
const VIEW: &str = "view.json";
/// The longest view that is read: of ten thousand jobs.
const VIEW_BYTES_MAX: Bytes = Bytes::mib(256);

/// The directory of what was observed.
pub(crate) struct Kept(PathBuf);

impl Kept {
    pub(crate) fn below(state_dir: &Path) -> Self {
        Self(state_dir.join(DIRECTORY))
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.0
    }

    /// The configuration of an agent that keeps its state here, and belongs to no fleet.
    pub(crate) fn configured(&self, mut config: Config) -> Config {
        config.agent.state_dir.clone_from(&self.0);
        config.trace.store.clear();
        config.rollout.store.clear();
        config
    }

    /// Replaces the view.
    pub(crate) fn store(&self, view: &Value) -> Result<()> {
        let path = self.0.join(VIEW);
        let failed = || format!("cannot write {}", path.display());
        trusted::create_directory(&self.0).with_context(failed)?;
        let mut file = tempfile::NamedTempFile::new_in(&self.0).with_context(failed)?;
        serde_json::to_writer(&mut file, view).with_context(failed)?;
        file.flush().with_context(failed)?;
        file.persist(&path).map_err(|error| error.error).with_context(failed)?;
        Ok(())
    }

    /// The last view; `None` if nothing was observed.
    pub(crate) fn observation(&self) -> Result<Option<Observation>> {
        let path = self.0.join(VIEW);
        let Some(bytes) = trusted::read(&path, VIEW_BYTES_MAX.0)? else { return Ok(None) };
        let observed = serde_json::from_slice(&bytes);
        Ok(Some(observed.with_context(|| format!("{} is damaged; run `thermocline observe` again", path.display()))?))
    }
}

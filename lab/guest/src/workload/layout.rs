//! The layout file of a running workload, which contains the addresses of its regions.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::spec::{Kind, Pattern};

/// A running workload.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Layout {
    pub(super) pid: i32,
    pub(super) page_bytes: u64,
    /// The file with the record of accesses.
    pub(super) truth: PathBuf,
    pub(super) regions: Vec<RegionLayout>,
}

/// One region of it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct RegionLayout {
    pub(super) name: String,
    /// First address, and the address after the last byte.
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) kind: Kind,
    pub(super) pattern: Pattern,
    pub(super) writes: bool,
    /// The process that accesses it: a child of `pid` for shared regions. Addresses are the same in both processes.
    pub(super) toucher_pid: i32,
}

impl RegionLayout {
    /// Returns the length in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.end - self.start
    }
}

impl Layout {
    /// Writes the file atomically.
    ///
    /// # Errors
    /// The path cannot be written.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let partial = with_suffix(path, ".partial");
        fs::write(&partial, serde_json::to_vec_pretty(self)?).with_context(|| format!("cannot write {}", partial.display()))?;
        fs::rename(&partial, path).with_context(|| format!("cannot rename {} to {}", partial.display(), path.display()))
    }

    /// Reads a workload's layout file.
    ///
    /// # Errors
    /// The path cannot be read or contains no valid layout.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let text = fs::read(path).with_context(|| format!("cannot read {}; the workload writes it when it is ready", path.display()))?;
        let layout: Self = serde_json::from_slice(&text).with_context(|| format!("{} is not a workload's layout", path.display()))?;
        ensure!(layout.page_bytes > 0, "{}: \"page_bytes\" is 0", path.display());
        for region in &layout.regions {
            let fits = region.start < region.end && [region.start, region.end].iter().all(|address| address % layout.page_bytes == 0);
            ensure!(fits, "{}: region {:?} is not aligned to pages", path.display(), region.name);
        }
        Ok(layout)
    }
}

/// Appends `suffix` to the last component of `path`.
pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

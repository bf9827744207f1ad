//! The host's state on disk: one file per guest and one for the totals, each replaced atomically.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::settings::{Refused, Totals};
use crate::vm::Record;

const GUEST: &str = "guest.json";
const TOTALS: &str = "host.json";
const FILE_MAX: u64 = 16 << 20;

/// A directory of state files.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
}

impl Store {
    /// Opens the store in a directory, which is created if it does not exist.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub fn open(directory: &Path) -> Result<Self, Refused> {
        std::fs::create_dir_all(directory).map_err(|error| Refused(format!("cannot create {}: {error}", directory.display())))?;
        Ok(Self { directory: directory.to_owned() })
    }

    /// Reads all guests and the totals.
    pub(super) fn load(&self) -> Result<(Vec<Record>, Totals), Refused> {
        let failed = |error| Refused(format!("cannot list {}: {error}", self.directory.display()));
        let mut records = Vec::new();
        for entry in std::fs::read_dir(&self.directory).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(&format!(".{GUEST}"))) {
                records.extend(read::<Record>(&path)?);
            }
        }
        Ok((records, read(&self.directory.join(TOTALS))?.unwrap_or_default()))
    }

    pub(super) fn save(&self, record: &Record) -> Result<(), Refused> {
        self.write(&self.path(&record.request.name), record)
    }

    pub(super) fn save_totals(&self, totals: &Totals) -> Result<(), Refused> {
        self.write(&self.directory.join(TOTALS), totals)
    }

    pub(super) fn remove(&self, name: &str) -> Result<(), Refused> {
        let path = self.path(name);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Refused(format!("cannot remove {}: {error}", path.display())))
            }
            _ => Ok(()),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.{GUEST}"))
    }

    fn write(&self, path: &Path, value: &impl Serialize) -> Result<(), Refused> {
        let write = || -> std::io::Result<()> {
            let mut file = tempfile::NamedTempFile::new_in(&self.directory)?;
            serde_json::to_writer(&mut file, value)?;
            file.flush()?;
            file.as_file().sync_all()?;
            file.persist(path)?;
            std::fs::File::open(&self.directory)?.sync_all()
        };
        write().map_err(|error| Refused(format!("cannot write {}: {error}", path.display())))
    }
}

/// Reads a file; `None` if it does not exist.
fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, Refused> {
    let Some(text) = kernel::file::read_optional(path, FILE_MAX).map_err(Refused::because)? else { return Ok(None) };
    let damaged =
        |error| Refused(format!("{} is damaged: {error}; move it to another directory, and stop its guest manually", path.display()));
    serde_json::from_str(&text).map(Some).map_err(damaged)
}

//! The host's state on disk: one file per guest and one for the totals, each replaced atomically.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::settings::{Refused, Totals};
use crate::vm::Record;

const GUEST: &str = "guest.json";
const TOTALS: &str = "host.json";
const FILE_MAX: u64 = 16 << 20;

/// What the directory has.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    pub(super) records: Vec<Record>,
    pub(super) totals: Totals,
    /// Guests whose file cannot be read, and why.
    pub(super) damaged: BTreeMap<String, String>,
}

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

    /// Reads all guests and the totals. A file that is damaged costs no other guest its host.
    pub(super) fn load(&self) -> Result<Loaded, Refused> {
        let failed = |error| Refused(format!("cannot list {}: {error}", self.directory.display()));
        let mut loaded = Loaded::default();
        for entry in std::fs::read_dir(&self.directory).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let Some(name) = file.strip_suffix(&format!(".{GUEST}")) else { continue };
            match read::<Record>(&path) {
                Ok(Some(record)) if record.request.name == name => loaded.records.push(record),
                Ok(Some(record)) => {
                    let why = format!("{} is of guest {}", path.display(), record.request.name);
                    loaded.damaged.insert(name.to_owned(), why);
                }
                Ok(None) => {}
                Err(Refused(why)) => {
                    loaded.damaged.insert(name.to_owned(), why);
                }
            }
        }
        loaded.totals = self.load_totals()?;
        Ok(loaded)
    }

    /// Totals that are damaged are kept beside, and start again at zero.
    fn load_totals(&self) -> Result<Totals, Refused> {
        let path = self.directory.join(TOTALS);
        let why = match read::<Totals>(&path) {
            Ok(totals) => return Ok(totals.unwrap_or_default()),
            Err(Refused(why)) => why,
        };
        let aside = path.with_extension("json.damaged");
        std::fs::rename(&path, &aside).map_err(|error| Refused(format!("{why}, and cannot be renamed: {error}")))?;
        log::warn!("{why}; totals start at zero, and the file is {} now", aside.display());
        Ok(Totals::default())
    }

    /// The directory.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Whether a guest has a file.
    pub(super) fn has(&self, name: &str) -> bool {
        self.path(name).exists()
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
    let damaged = |error| Refused(format!("{} is damaged: {error}", path.display()));
    serde_json::from_str(&text).map(Some).map_err(damaged)
}

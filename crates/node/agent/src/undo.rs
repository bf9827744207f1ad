//! The undo list: settings that must be restored.
//!
//! Every lasting setting of the agent (`memory.low`, `memory.min`, `memory.swap.max`, zswap parameters, kdamonds), and the jobs whose memory it
//! placed in a slow node, are written to a file *before* they are set. On exit the agent restores all of them; if it dies at any
//! instruction, the next start reads the file and does the same. A value that another process changed in the meantime is left
//! alone and reported.
//!
//! The file is in the runtime directory, which is empty after a reboot, as the kernel's settings are reset by one. It is read as
//! root's orders to root: only if no other user can have written it, and only for files that the agent sets ([`is_ours`]).

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use kernel::Roots;
use serde::{Deserialize, Serialize};

/// The longest list that is read: about a thousand bytes for each of ten thousand jobs.
const BYTES_MAX: u64 = 16 << 20;

/// Files that one flush sets at most: the loop has other deadlines.
const FLUSH_MAX: usize = 100;

/// The files of a cgroup that the agent sets.
const OF_CGROUPS: [&str; 5] = ["memory.low", "memory.min", "memory.swap.max", "memory.zswap.max", "memory.zswap.writeback"];

/// The files below `/sys` that it sets.
const OF_SYSFS: [&str; 7] = [
    "kernel/mm/transparent_hugepage/khugepaged/pages_to_scan",
    "kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs",
    "module/damon_stat/parameters/enabled",
    "module/zswap/parameters/compressor",
    "module/zswap/parameters/enabled",
    "module/zswap/parameters/max_pool_percent",
    "module/zswap/parameters/shrinker_enabled",
];

/// The file below `/proc` that it sets.
const OF_PROC: &str = "sys/kernel/numa_balancing";

/// One setting that the agent has changed, or is about to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// The file's content before, which is written back.
    pub original: String,
    /// What the agent wrote, oldest first: after a crash the file may contain any of these.
    pub ours: Vec<String>,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Contents {
    settings: BTreeMap<PathBuf, Setting>,
    /// Processes that the agent's kdamonds watch.
    kdamond_targets: Vec<i32>,
    /// Jobs with memory in a slow node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    slow: Option<SlowJobs>,
}

/// Jobs whose memory the agent placed in a slow node. When their access rates are no longer sampled, it must be promoted: memory
/// that is rarely accessed today may be in use tomorrow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlowJobs {
    /// The slow node.
    pub node: u32,
    /// The node to which its memory is promoted.
    pub home: u32,
    /// The jobs' cgroups, and the kernel's ids of these.
    pub jobs: BTreeMap<String, u64>,
}

/// The durable undo list.
#[derive(Debug)]
pub struct UndoLog {
    file: PathBuf,
    roots: Roots,
    contents: Contents,
    /// What the next flush sets.
    deferred: BTreeMap<PathBuf, String>,
    /// Whether the file still has settings that are restored.
    outdated: bool,
}

/// The outcome of restoring one setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Restored {
    /// It has its original value.
    Done,
    /// Its cgroup no longer exists.
    Gone,
    /// Another process has set it since; it was left alone.
    ChangedByOthers {
        /// The current value.
        value: String,
    },
    /// The kernel refused; the next start tries again.
    Failed {
        /// The kernel's error.
        error: String,
    },
}

impl UndoLog {
    /// Opens the list in `file`; a missing or damaged file is an empty list. Settings of files that the agent never sets are removed
    /// from it and reported.
    ///
    /// A crash cannot damage the file, because it is replaced as a whole.
    ///
    /// # Errors
    /// If the file cannot be read, or another user may have written it ([`daemon::trusted::read`]).
    pub fn open(file: PathBuf, roots: &Roots) -> daemon::Result<Self> {
        let mut contents = match daemon::trusted::read(&file, BYTES_MAX)? {
            Some(bytes) => serde_json::from_slice(&bytes).unwrap_or_else(|error| {
                log::error!("{}: {error}; the settings of an earlier agent cannot be restored", file.display());
                Contents::default()
            }),
            None => Contents::default(),
        };
        contents.settings.retain(|path, _| {
            let ours = is_ours(roots, path);
            if !ours {
                log::error!("{}: {} is not a file that the agent sets; it is left as it is", file.display(), path.display());
            }
            ours
        });
        Ok(Self { file, roots: roots.clone(), contents, deferred: BTreeMap::new(), outdated: false })
    }

    /// Whether no setting is left to restore.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.contents == Contents::default()
    }

    /// Processes that the agent's kdamonds watch.
    #[must_use]
    pub fn kdamond_targets(&self) -> &[i32] {
        &self.contents.kdamond_targets
    }

    /// Stores which processes the agent's kdamonds are going to watch; none after they are stopped.
    ///
    /// # Errors
    /// If the list cannot be stored; then no kdamond may be started.
    pub fn set_kdamond_targets(&mut self, pids: &[i32]) -> io::Result<()> {
        if self.contents.kdamond_targets != pids {
            self.contents.kdamond_targets = pids.to_vec();
            self.store()?;
        }
        Ok(())
    }

    /// The jobs with memory in a slow node.
    #[must_use]
    pub fn slow_jobs(&self) -> Option<&SlowJobs> {
        self.contents.slow.as_ref()
    }

    /// Stores that memory of a job is going to be placed in slow node `node`, to be promoted to node `home`.
    ///
    /// # Errors
    /// If the list cannot be stored; then no memory may be placed.
    pub fn add_slow_job(&mut self, path: &str, id: u64, node: u32, home: u32) -> io::Result<()> {
        let slow = self.contents.slow.get_or_insert_default();
        if (slow.node, slow.home, slow.jobs.get(path)) == (node, home, Some(&id)) {
            return Ok(());
        }
        (slow.node, slow.home) = (node, home);
        slow.jobs.insert(path.to_owned(), id);
        self.store()
    }

    /// Removes a job from those with memory in a slow node.
    pub fn remove_slow_job(&mut self, path: &str) {
        if let Some(slow) = &mut self.contents.slow
            && slow.jobs.remove(path).is_some()
        {
            if slow.jobs.is_empty() {
                self.contents.slow = None;
            }
            self.store_or_log();
        }
    }

    /// The original content of a kernel file; `None` if it is not on the list.
    #[must_use]
    pub fn original(&self, path: &Path) -> Option<String> {
        self.contents.settings.get(path).map(|setting| setting.original.clone())
    }

    /// The operator's value of a kernel file that now contains `current`: its original content if the agent wrote `current`, and
    /// otherwise `current`, which another process has written since.
    #[must_use]
    pub fn operators(&self, path: &Path, current: &str) -> String {
        let setting = self.contents.settings.get(path).filter(|setting| setting.ours.iter().any(|ours| same_value(ours, current)));
        setting.map_or(current, |setting| &setting.original).to_owned()
    }

    /// Sets a kernel file after storing its original content.
    ///
    /// # Errors
    /// If the old value cannot be read, the list cannot be stored, or the kernel refuses the new value.
    pub fn set(&mut self, path: &Path, value: &str) -> io::Result<()> {
        self.deferred.remove(path);
        if !self.note(path, value)? {
            return Ok(());
        }
        self.store()?;
        write_existing(path, value)
    }

    /// Sets a kernel file at the next [`UndoLog::flush`], which stores the list once for all: with a thousand jobs it is long.
    pub fn defer(&mut self, path: PathBuf, value: String) {
        self.deferred.insert(path, value);
    }

    /// Sets some of what was deferred, [`FLUSH_MAX`] files at most. Returns what could not be set, and whether there is more.
    pub fn flush(&mut self) -> (Vec<(PathBuf, io::Error)>, bool) {
        let later = self.deferred.keys().nth(FLUSH_MAX).cloned().map(|first| self.deferred.split_off(&first)).unwrap_or_default();
        let more = !later.is_empty();
        let failed = self.flush_all();
        self.deferred = later;
        (failed, more)
    }

    fn flush_all(&mut self) -> Vec<(PathBuf, io::Error)> {
        let mut failed = Vec::new();
        let mut noted = Vec::new();
        for (path, value) in std::mem::take(&mut self.deferred) {
            match self.note(&path, &value) {
                Ok(true) => noted.push((path, value)),
                Ok(false) => {}
                Err(error) => failed.push((path, error)),
            }
        }
        if noted.is_empty() && !self.outdated {
            return failed;
        }
        if let Err(error) = self.store() {
            failed.push((self.file.clone(), error));
            return failed;
        }
        for (path, value) in noted {
            if let Err(error) = write_existing(&path, &value) {
                failed.push((path, error));
            }
        }
        failed
    }

    /// Puts a setting on the list, which is not stored yet. Returns whether the file is to be written.
    fn note(&mut self, path: &Path, value: &str) -> io::Result<bool> {
        if !is_ours(&self.roots, path) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the undo list knows no such setting"));
        }
        let current = fs::read_to_string(path)?.trim().to_owned();
        if current == value {
            return Ok(false);
        }
        match self.contents.settings.get_mut(path) {
            // Another process changed it since: that value must be restored.
            Some(setting) if !setting.ours.iter().any(|ours| same_value(ours, &current)) && setting.original != current => {
                *setting = Setting { original: current.clone(), ours: vec![current, value.to_owned()] };
            }
            // After a crash the file has the current value or the new one.
            Some(setting) => setting.ours = vec![current, value.to_owned()],
            None => {
                let setting = Setting { original: current, ours: vec![value.to_owned()] };
                self.contents.settings.insert(path.to_owned(), setting);
            }
        }
        Ok(true)
    }

    /// Restores one setting, if it is on the list. It leaves the stored list with the next flush: until then a restart would
    /// restore it again, which changes nothing.
    pub fn restore(&mut self, path: &Path) -> Option<Restored> {
        self.deferred.remove(path);
        let setting = self.contents.settings.get(path)?;
        let outcome = restore_setting(path, setting);
        if !matches!(outcome, Restored::Failed { .. }) {
            self.contents.settings.remove(path);
            self.outdated = true;
        }
        Some(outcome)
    }

    /// Restores all settings. Those that fail stay on the list.
    pub fn restore_all(&mut self) -> Vec<(PathBuf, Restored)> {
        self.deferred.clear();
        let outcomes: Vec<_> = self.contents.settings.iter().map(|(path, s)| (path.clone(), restore_setting(path, s))).collect();
        for (path, outcome) in &outcomes {
            if !matches!(outcome, Restored::Failed { .. }) {
                self.contents.settings.remove(path);
            }
        }
        self.store_or_log();
        outcomes
    }

    fn store_or_log(&mut self) {
        if let Err(error) = self.store() {
            log::error!("{}: {error}", self.file.display());
        }
    }

    /// Replaces the file, so that a reader finds either the old or the new list.
    fn store(&mut self) -> io::Result<()> {
        if self.is_empty() {
            match fs::remove_file(&self.file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        } else {
            replace_file(&self.file, &serde_json::to_vec(&self.contents)?)?;
        }
        self.outdated = false;
        Ok(())
    }
}

/// Whether the agent sets this file.
fn is_ours(roots: &Roots, path: &Path) -> bool {
    let plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    let of_cgroup = path.starts_with(&roots.cgroup) && path.file_name().is_some_and(|name| OF_CGROUPS.iter().any(|known| name == *known));
    plain && (of_cgroup || OF_SYSFS.iter().any(|known| path == roots.sys.join(known)) || path == roots.proc.join(OF_PROC))
}

/// Writes `bytes` to a new file and renames it to `file`: for what the next agent of the same boot reads. Nothing waits for a disk, and
/// after a loss of power, which ends the boot, the content is lost or unusable.
///
/// # Errors
/// Any error of writing or renaming; the old file is then unchanged.
pub(crate) fn replace_file(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = file.with_extension("new");
    write_new(&new, bytes)?;
    fs::rename(&new, file)
}

/// The same for what must survive a loss of power.
///
/// # Errors
/// As [`replace_file`].
pub(crate) fn replace_durable_file(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = file.with_extension("new");
    write_new(&new, bytes)?.sync_data()?;
    fs::rename(&new, file)
}

fn write_new(file: &Path, bytes: &[u8]) -> io::Result<fs::File> {
    let mut out = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(file)?;
    out.write_all(bytes)?;
    Ok(out)
}

/// Writes an existing kernel file. If it no longer exists, the error is `NotFound`; creating it would fail with another error.
fn write_existing(path: &Path, value: &str) -> io::Result<()> {
    fs::OpenOptions::new().write(true).truncate(true).open(path)?.write_all(value.as_bytes())
}

/// Whether a value read from a kernel file is the one written: zswap's `enabled` accepts `1` and reads `Y`.
fn same_value(written: &str, read: &str) -> bool {
    written == read || matches!((written, read), ("1" | "Y" | "y", "Y") | ("0" | "N" | "n", "N"))
}

fn restore_setting(path: &Path, setting: &Setting) -> Restored {
    let current = match fs::read_to_string(path) {
        Ok(text) => text.trim().to_owned(),
        Err(error) => return gone_or_failed(&error),
    };
    if current == setting.original {
        return Restored::Done;
    }
    if !setting.ours.iter().any(|ours| same_value(ours, &current)) {
        return Restored::ChangedByOthers { value: current };
    }
    match write_existing(path, &setting.original) {
        Ok(()) => Restored::Done,
        Err(error) => gone_or_failed(&error),
    }
}

fn gone_or_failed(error: &io::Error) -> Restored {
    const ENODEV: i32 = 19;
    if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(ENODEV) {
        Restored::Gone
    } else {
        Restored::Failed { error: error.to_string() }
    }
}

#[cfg(test)]
mod tests;

//! Entries on the local disk that have not reached the store.
//!
//! Entries are appended durably to a log. When the log is closed, it becomes a trace file in `ready/`, under the path
//! that it will have in the store; the sink uploads and removes it. A process killed at any instruction leaves a log, a
//! file, or both: the next start writes the same file under the same name.
//!
//! ```text
//! spool/open.jsonl                                                     one line for the basis, then one per entry
//! spool/ready/cluster=a/date=2026-11-20/machine=m/1763596800000-0123456789abcdef.parquet
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use store::FileError;
use store::file::TEMPORARY_PREFIX;
use twox_hash::XxHash64;
use units::Bytes;

use crate::calendar;
use crate::entry::{Basis, Entry};
use crate::error::{Error, Result};
use crate::write::{EXTENSION, Writer};

/// The log and the files of one agent, which is the only writer.
#[derive(Debug)]
pub struct Spool {
    dir: PathBuf,
    basis: Basis,
    size_max: Bytes,
    log: Option<File>,
}

/// Result of closing a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CloseReport {
    /// Entries that are ready to be sent.
    pub entries: u64,
    /// Files removed, oldest first, because all files together exceeded the limit.
    pub dropped_files: u64,
    /// Size of the removed files.
    pub dropped_bytes: Bytes,
}

/// The first line of a log.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    basis: Basis,
}

impl Spool {
    /// Opens the spool in `dir` and converts a log left by an earlier agent. All files together may take
    /// `size_max`.
    ///
    /// # Errors
    /// [`Error::File`]. A log that cannot be read is renamed to `open.jsonl.damaged`.
    pub fn open(dir: &Path, basis: Basis, size_max: Bytes) -> Result<(Self, CloseReport)> {
        let ready = dir.join("ready");
        fs::create_dir_all(&ready).map_err(FileError::at(&ready, "create"))?;
        for file in files_below(dir)? {
            if file.file_name().is_some_and(|name| name.to_string_lossy().starts_with(TEMPORARY_PREFIX)) {
                let _ = fs::remove_file(file);
            }
        }
        let mut spool = Self { dir: dir.to_owned(), basis, size_max, log: None };
        let closed = match spool.close() {
            Err(Error::Damaged { path, what }) => {
                log::error!("{}: {what}; renamed to open.jsonl.damaged", path.display());
                let aside = dir.join("open.jsonl.damaged");
                fs::rename(spool.log_path(), &aside).map_err(FileError::at(&aside, "create"))?;
                CloseReport::default()
            }
            other => other?,
        };
        Ok((spool, closed))
    }

    /// Returns the directory of the files that wait to be sent. Their paths below it are those in the store.
    #[must_use]
    pub fn ready(&self) -> PathBuf {
        self.dir.join("ready")
    }

    fn log_path(&self) -> PathBuf {
        self.dir.join("open.jsonl")
    }

    /// Appends entries to the log, in any order, and syncs it.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn append(&mut self, entries: &[Entry]) -> Result<()> {
        let path = self.log_path();
        let failed = || FileError::at(&path, "write");
        let mut lines = Vec::new();
        if self.log.is_none() {
            line(&mut lines, &Head { basis: self.basis }).map_err(failed())?;
        }
        for entry in entries {
            line(&mut lines, entry).map_err(failed())?;
        }
        let log = match &mut self.log {
            Some(log) => log,
            none => none.insert(OpenOptions::new().create_new(true).append(true).open(&path).map_err(FileError::at(&path, "create"))?),
        };
        let before = log.metadata().map_err(FileError::at(&path, "read the size of"))?.len();
        let written = log.write_all(&lines).and_then(|()| log.sync_data());
        if written.is_err() {
            // A partial batch before further lines would read as damage, unlike a torn last line.
            let _ = log.set_len(before);
        }
        Ok(written.map_err(failed())?)
    }

    /// Converts the log to a file and starts an empty log. If all files together exceed the limit, the oldest are
    /// removed.
    ///
    /// # Errors
    /// Any error of reading the log or writing the file; the log is then unchanged.
    pub fn close(&mut self) -> Result<CloseReport> {
        let mut closed = CloseReport::default();
        let path = self.log_path();
        if let Some((basis, mut entries, digest)) = read_log(&path)? {
            entries.sort_by(|a, b| a.order().cmp(&b.order()));
            if let Some(first) = entries.iter().min_by_key(|entry| entry.figures.start_unix_ms) {
                let mut writer = Writer::create(&self.ready().join(object_path(first, digest)), basis)?;
                for entry in &entries {
                    writer.push(entry)?;
                }
                closed.entries = writer.finish()?.entries;
            }
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(FileError::at(&path, "remove")(error).into()),
            _ => {}
        }
        self.log = None;
        self.enforce_limit(&mut closed)?;
        Ok(closed)
    }

    fn enforce_limit(&self, closed: &mut CloseReport) -> Result<()> {
        let mut waiting: Vec<_> = ready_files(&self.ready())?.into_iter().collect();
        let mut total: Bytes = waiting.iter().map(|file| file.bytes).sum();
        waiting.reverse();
        while total > self.size_max
            && let Some(file) = waiting.pop()
        {
            // The sink may have sent and removed it in the meantime.
            if fs::remove_file(&file.path).is_ok() {
                closed.dropped_files += 1;
                closed.dropped_bytes += file.bytes;
            }
            total = total - file.bytes;
        }
        Ok(())
    }
}

/// Returns the path of a file in the store: hive-partitioned, so that readers can skip files. The name depends on the
/// contents: uploaded twice, the file is stored once.
fn object_path(first: &Entry, digest: u64) -> PathBuf {
    let start = first.figures.start_unix_ms;
    let mut path = PathBuf::from(format!("cluster={}", partition_value(&first.id.cluster)));
    path.push(format!("date={}", calendar::date(start)));
    path.push(format!("machine={}", partition_value(&first.id.machine)));
    path.push(format!("{}-{digest:016x}.{EXTENSION}", start.0));
    path
}

/// Escapes a value for a path, as Hive does: `%` and two hexadecimal digits.
fn partition_value(value: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    let escaped: String =
        value.bytes().map(|byte| if plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect();
    // Hive's name for an empty value.
    if escaped.is_empty() { "__HIVE_DEFAULT_PARTITION__".to_owned() } else { escaped }
}

fn line<T: Serialize>(lines: &mut Vec<u8>, value: &T) -> std::io::Result<()> {
    serde_json::to_writer(&mut *lines, value)?;
    lines.push(b'\n');
    Ok(())
}

/// Reads the basis, the entries and a digest of a log; `None` if there is no log or no complete line. A torn last line,
/// which a killed agent leaves, is dropped.
fn read_log(path: &Path) -> Result<Option<(Basis, Vec<Entry>, u64)>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(FileError::at(path, "open")(error).into()),
    };
    let mut reader = BufReader::new(file);
    let mut digest = XxHash64::with_seed(0);
    let (mut basis, mut entries, mut bytes) = (None, Vec::new(), Vec::new());
    for number in 1.. {
        bytes.clear();
        reader.read_until(b'\n', &mut bytes).map_err(FileError::at(path, "read"))?;
        if bytes.last() != Some(&b'\n') {
            break;
        }
        std::hash::Hasher::write(&mut digest, &bytes);
        let damaged = |error: serde_json::Error| Error::damaged(path, format!("line {number}: {error}"));
        if number == 1 {
            basis = Some(serde_json::from_slice::<Head>(&bytes).map_err(damaged)?.basis);
        } else {
            entries.push(serde_json::from_slice(&bytes).map_err(damaged)?);
        }
    }
    Ok(basis.map(|basis| (basis, entries, std::hash::Hasher::finish(&digest))))
}

/// A file that waits to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ready {
    pub(crate) path: PathBuf,
    pub(crate) bytes: Bytes,
}

/// Returns the files that wait, oldest first: their names begin with the time.
pub(crate) fn ready_files(ready: &Path) -> Result<Vec<Ready>> {
    let mut files: Vec<_> = files_below(ready)?
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == EXTENSION))
        .filter_map(|path| Some(Ready { bytes: Bytes(fs::metadata(&path).ok()?.len()), path }))
        .collect();
    let age = |file: &Ready| {
        let name = file.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        (name.split('-').next().and_then(|start| start.parse::<u64>().ok()), name)
    };
    files.sort_by_cached_key(age);
    Ok(files)
}

/// Returns every file below a directory.
fn files_below(dir: &Path) -> Result<Vec<PathBuf>> {
    let (mut dirs, mut files) = (vec![dir.to_owned()], Vec::new());
    while let Some(dir) = dirs.pop() {
        let listed = match fs::read_dir(&dir) {
            Ok(listed) => listed,
            // The sink removes the directories of past days.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(FileError::at(&dir, "list")(error).into()),
        };
        for entry in listed.flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => dirs.push(entry.path()),
                _ => files.push(entry.path()),
            }
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Trace;
    use crate::testing::{DAY, basis, entries};

    fn open(dir: &Path, size_max: Bytes) -> (Spool, CloseReport) {
        Spool::open(dir, basis(2), size_max).unwrap()
    }

    fn entries_in(dir: &Path) -> Vec<Entry> {
        let files = ready_files(&dir.join("ready")).unwrap();
        files.iter().flat_map(|file| Trace::open(&file.path).unwrap().group(0).unwrap().entries().collect::<Vec<_>>()).collect()
    }

    #[test]
    fn a_kill_at_any_byte_loses_at_most_the_last_entry() {
        let given = entries("m", 2, 3, 3);
        let dir = tempfile::tempdir().unwrap();
        open(dir.path(), Bytes(u64::MAX)).0.append(&given).unwrap();
        let log = fs::read(dir.path().join("open.jsonl")).unwrap();
        let mut names = Vec::new();
        for cut in (0..=log.len()).rev().step_by(97) {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("open.jsonl"), &log[..cut]).unwrap();
            let whole = log[..cut].iter().filter(|&&byte| byte == b'\n').count().saturating_sub(1);
            let (_, closed) = open(dir.path(), Bytes(u64::MAX));
            assert_eq!(closed.entries, whole as u64, "cut at {cut}");
            assert_eq!(entries_in(dir.path()), given[..whole], "cut at {cut}");
            assert!(!dir.path().join("open.jsonl").exists());
            names.extend(ready_files(&dir.path().join("ready")).unwrap().pop().map(|file| file.path.file_name().unwrap().to_owned()));
            // Killed after the file was written and before the log was removed: the same file again.
            fs::write(dir.path().join("open.jsonl"), &log[..cut]).unwrap();
            open(dir.path(), Bytes(u64::MAX));
            assert_eq!(entries_in(dir.path()), given[..whole], "cut at {cut}");
        }
        names.dedup();
        assert_eq!(names.len(), 6, "the name depends on the entries");
    }

    #[test]
    fn files_have_the_paths_that_they_will_have_in_the_store() {
        let dir = tempfile::tempdir().unwrap();
        let (mut spool, closed) = open(dir.path(), Bytes(u64::MAX));
        assert_eq!(closed, CloseReport::default());
        spool.append(&entries("rack 1/m", 1, 2, 3)).unwrap();
        assert_eq!(spool.close().unwrap().entries, 2);
        let path = ready_files(&spool.ready()).unwrap().remove(0).path;
        let path = path.strip_prefix(spool.ready()).unwrap().to_str().unwrap();
        let (directory, name) = path.rsplit_once('/').unwrap();
        assert_eq!(directory, "cluster=c/date=2025-11-20/machine=rack%201%2Fm");
        assert!(name.starts_with(&format!("{}-", DAY.0)), "{name}");
        assert_eq!(spool.close().unwrap(), CloseReport::default(), "an empty log produces no file");
    }

    #[test]
    fn over_the_limit_the_oldest_files_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let given = entries("m", 1, 4, 3);
        let (mut spool, _) = open(dir.path(), Bytes(u64::MAX));
        for entry in &given {
            spool.append(std::slice::from_ref(entry)).unwrap();
            spool.close().unwrap();
        }
        let sizes: Vec<_> = ready_files(&spool.ready()).unwrap().iter().map(|file| file.bytes).collect();
        let (_, closed) = open(dir.path(), sizes[2] + sizes[3]);
        assert_eq!(closed, CloseReport { entries: 0, dropped_files: 2, dropped_bytes: sizes[0] + sizes[1] });
        assert_eq!(entries_in(dir.path()), given[2..]);
    }

    #[test]
    fn a_damaged_log_is_renamed() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("open.jsonl"), "rubbish\n").unwrap();
        assert_eq!(open(dir.path(), Bytes(u64::MAX)).1, CloseReport::default());
        assert!(dir.path().join("open.jsonl.damaged").exists());
    }
}

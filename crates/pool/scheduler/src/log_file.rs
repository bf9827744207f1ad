//! The log: one line of JSON per event, synced to disk before a request is answered.
//!
//! Two files of limited size: the current one, and the one before it (`.1`), which rotation replaces. Each begins with the
//! topology and the VMs that ran, so that the current one is enough to continue. A line that a crash cut short was not
//! answered for, and is removed.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use daemon::PidLock;
use units::Bytes;

use crate::event::{Entry, Event};
use crate::state::{Inconsistent, State};

/// Longest line that is read: a topology of the most hosts fits.
const LINE_MAX: u64 = 8 << 20;
/// The scheduler itself, as the author of an entry.
pub(crate) const SCHEDULER: &str = "scheduler";

/// The log cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another scheduler uses it, or its directory is not safe.
    #[error(transparent)]
    Lock(#[from] daemon::Error),
    /// A system call failed.
    #[error("cannot {op} {}: {source}", path.display())]
    System {
        /// The operation.
        op: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// It cannot be simulated.
    #[error("{}: {why}", path.display())]
    Simulation {
        /// The file.
        path: PathBuf,
        /// The cause.
        why: String,
    },
    /// A line is not an event, or does not fit what was before it.
    #[error("{}, line {line}: {why}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: u64,
        /// The cause.
        why: String,
    },
}

fn system(op: &'static str, path: &Path) -> impl Fn(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::System { op, path: path.clone(), source }
}

/// Calls `each` with every entry of a log. Returns the bytes of its complete lines.
///
/// # Errors
/// [`enum@Error`]; also what `each` finds inconsistent.
pub(crate) fn read(path: &Path, mut each: impl FnMut(Entry) -> Result<(), Inconsistent>) -> Result<u64, Error> {
    let file = File::open(path).map_err(system("open", path))?;
    let (mut reader, mut bytes, mut number) = (BufReader::new(file), 0, 0u64);
    let mut line = Vec::new();
    let mut expected = None;
    loop {
        line.clear();
        let read = reader.by_ref().take(LINE_MAX).read_until(b'\n', &mut line).map_err(system("read", path))?;
        number += 1;
        let wrong = |why: String| Error::Line { path: path.to_owned(), line: number, why };
        match line.last() {
            Some(b'\n') => {}
            // The end, or a line that a crash cut short.
            _ if (read as u64) < LINE_MAX => return Ok(bytes),
            _ => return Err(wrong(format!("longer than {LINE_MAX} bytes"))),
        }
        let entry: Entry = serde_json::from_slice(&line).map_err(|error| wrong(format!("not an event of a scheduler: {error}")))?;
        if expected.is_some_and(|expected| expected != entry.sequence) {
            return Err(wrong(format!("event {} follows event {}: events are missing", entry.sequence, expected.unwrap_or(1) - 1)));
        }
        expected = Some(entry.sequence.saturating_add(1));
        each(entry).map_err(|Inconsistent(why)| wrong(why))?;
        bytes += read as u64;
    }
}

/// A log that is written.
#[derive(Debug)]
pub(crate) struct LogFile {
    path: PathBuf,
    file: File,
    sequence: u64,
    bytes: u64,
    /// Whether a failed write may have left something behind `bytes`.
    longer: bool,
    limit: Bytes,
    _lock: PidLock,
}

impl LogFile {
    /// Opens a log, or creates it, and returns the state at its end; `None` if it is new.
    pub(crate) fn open(path: &Path, limit: Bytes) -> Result<(Self, Option<State>), Error> {
        let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let lock = PidLock::acquire(directory, &format!("{name}.pid"))?;
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
        let mut file = file.map_err(system("open", path))?;
        let (mut state, mut sequence) = (None, 0);
        let bytes = read(path, |entry| {
            sequence = entry.sequence;
            follow(&mut state, &entry.event)
        })?;
        let whole = file.metadata().map_err(system("inspect", path))?.len();
        if whole > bytes {
            log::warn!("{}: {} bytes of an event that was not answered for are removed", path.display(), whole - bytes);
            file.set_len(bytes).map_err(system("shorten", path))?;
        }
        file.seek(SeekFrom::End(0)).map_err(system("seek in", path))?;
        sync_directory(path)?;
        Ok((Self { path: path.to_owned(), file, sequence, bytes, longer: false, limit, _lock: lock }, state))
    }

    /// Appends events and syncs them. After an error the log is as before, or nothing is appended until it is.
    pub(crate) fn append<'a>(&mut self, events: impl Iterator<Item = (&'a str, &'a Event)>) -> Result<(), Error> {
        if self.longer {
            self.shorten()?;
        }
        let (lines, sequence) = lines(events, self.sequence);
        if let Err(source) = self.file.write_all(&lines).and_then(|()| self.file.sync_data()) {
            // What was written of it must not be found at the next start: it is not answered for.
            self.longer = true;
            if let Err(error) = self.shorten() {
                log::error!("{error}");
            }
            return Err(system("write", &self.path)(source));
        }
        (self.sequence, self.bytes) = (sequence, self.bytes + lines.len() as u64);
        Ok(())
    }

    /// Removes what a failed write left behind the last complete event.
    fn shorten(&mut self) -> Result<(), Error> {
        let shortened = self.file.set_len(self.bytes).and_then(|()| self.file.seek(SeekFrom::Start(self.bytes)));
        shortened.map_err(system("shorten", &self.path))?;
        self.longer = false;
        Ok(())
    }

    /// Begins a new file with `state` if this one has reached its limit.
    pub(crate) fn rotate(&mut self, state: &State) -> Result<(), Error> {
        if self.bytes < self.limit.0 {
            return Ok(());
        }
        let (next, earlier) = (self.path.with_added_extension("next"), self.path.with_added_extension("1"));
        let (lines, sequence) = lines(state.events().iter().map(|event| (SCHEDULER, event)), self.sequence);
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&next).map_err(system("create", &next))?;
        file.write_all(&lines).and_then(|()| file.sync_all()).map_err(system("write", &next))?;
        // The log has its name at every instant: first a second name for the file of now, then the new one in its place.
        match std::fs::remove_file(&earlier) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(system("remove", &earlier)(error)),
            _ => {}
        }
        std::fs::hard_link(&self.path, &earlier).map_err(system("link", &earlier))?;
        std::fs::rename(&next, &self.path).map_err(system("rename", &next))?;
        sync_directory(&self.path)?;
        (self.file, self.sequence, self.bytes) = (file, sequence, lines.len() as u64);
        Ok(())
    }
}

/// Applies an event of a log to the state before it; the first one makes the state.
pub(crate) fn follow(state: &mut Option<State>, event: &Event) -> Result<(), Inconsistent> {
    match (state, event) {
        (Some(state), event) => state.apply(event),
        (state @ None, Event::Topology(topology)) => {
            *state = Some(State::new(topology.clone())?);
            Ok(())
        }
        (None, _) => Err(Inconsistent("a log begins with a topology".to_owned())),
    }
}

fn lines<'a>(events: impl Iterator<Item = (&'a str, &'a Event)>, mut sequence: u64) -> (Vec<u8>, u64) {
    let time_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    let mut lines = Vec::new();
    for (who, event) in events {
        sequence = sequence.saturating_add(1);
        let entry = Entry { sequence, time_ms, who: who.to_owned(), event: event.clone() };
        // An event can always be JSON.
        lines.extend(serde_json::to_vec(&entry).unwrap_or_default());
        lines.push(b'\n');
    }
    (lines, sequence)
}

/// Makes the file's name survive a crash of the machine.
fn sync_directory(path: &Path) -> Result<(), Error> {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(system("sync", directory))
}

#[cfg(test)]
impl LogFile {
    /// Makes writing fail, or lets it work again.
    pub(crate) fn set_writable(&mut self, writable: bool) {
        self.file = OpenOptions::new().read(true).write(writable).open(&self.path).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_failed_write_left_behind_is_removed_before_the_next_event() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let event = Event::Ended { vm: "one".to_owned() };
        let append = |log: &mut LogFile| log.append(std::iter::once(("op", &event)));
        let (mut log, _) = LogFile::open(&path, Bytes::gib(1)).unwrap();
        append(&mut log).unwrap();
        log.set_writable(false);
        assert!(append(&mut log).unwrap_err().to_string().contains("cannot write"));
        // Half of the event is in the file, and it cannot be shortened either.
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"sequence\":2,").unwrap();
        assert!(append(&mut log).unwrap_err().to_string().contains("cannot shorten"));
        log.set_writable(true);
        append(&mut log).unwrap();
        let mut sequences = Vec::new();
        read(&path, |entry| {
            sequences.push(entry.sequence);
            Ok(())
        })
        .unwrap();
        assert_eq!(sequences, [1, 2]);
    }
}

//! The audit log: who requested what, for which slices, why, and with which outcome.
//!
//! One line of JSON per entry. Each entry contains a hash of itself and of the entry before it, so that a changed,
//! inserted or removed entry is found ([`verify`]). Entries that were removed from the end are found with a link that
//! was noted elsewhere: the manager logs its last one when it starts.
//!
//! Two files of limited size: the current one, and the one before it, which rotation replaces. The log never stops
//! the manager: entries that cannot be written, for example because the disk is full, are counted, and the next entry
//! that can be written has their number. Entries are not synced one by one: a crash of the machine may lose the last ones.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use units::Bytes;

use crate::chain::Hash;
use crate::ledger::{Outcome, Request, Response};

/// Longest text of a client in an entry, in characters.
const TEXT_MAX: usize = 256;
/// Longest entry that is read: one that assigns every slice of a pool fits.
const LINE_MAX: u64 = 8 << 20;
/// The manager itself, as the author of an entry.
pub(crate) const MANAGER: &str = "manager";

/// A slice and its ownership generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SliceOf {
    /// External memory controller of the slice.
    pub emc: u16,
    /// Index of the slice at its controller.
    pub index: u32,
    /// Ownership generation.
    pub generation: u32,
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Number of the entry, from 1.
    pub sequence: u64,
    /// Unix time in milliseconds.
    pub time_ms: u64,
    /// Name in the client's certificate; `manager` for the manager's own maintenance.
    pub who: String,
    /// The request, by the name that it has in metrics.
    pub what: String,
    /// The VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<String>,
    /// The slices that the request names, or that it assigned.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slices: Vec<SliceOf>,
    /// The client's name for the request, or its reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// `ok`, or the reason of the refusal.
    pub outcome: String,
    /// Entries before this one that could not be written.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost: u64,
    /// The link of the entry before this one.
    previous: Hash,
    /// The hash of this entry and `previous`.
    link: Hash,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Entry {
    fn new(who: &str, request: &Request, outcome: &Outcome) -> Self {
        let (vm, slices, why) = subject(request);
        let slices = slices.into_iter().chain(outcome.iter().flat_map(given)).collect();
        let outcome = match outcome {
            Ok(_) => "ok".to_owned(),
            Err(refused) => limited(&refused.message),
        };
        Self {
            sequence: 0,
            time_ms: 0,
            who: limited(who),
            what: request.label().to_owned(),
            vm,
            slices,
            why,
            outcome,
            lost: 0,
            previous: Hash::default(),
            link: Hash::default(),
        }
    }

    /// The entry's link, as a person notes it.
    #[must_use]
    pub fn link(&self) -> String {
        self.link.to_string()
    }

    fn link_of(&self) -> Hash {
        let unlinked = Self { link: Hash::default(), ..self.clone() };
        // An entry can always be JSON.
        Hash::row("audit", &self.sequence.to_le_bytes(), &serde_json::to_vec(&unlinked).unwrap_or_default())
    }
}

fn limited(text: &str) -> String {
    text.chars().take(TEXT_MAX).collect()
}

/// The VM, the slice and the reason that a request names.
fn subject(request: &Request) -> (Option<String>, Option<SliceOf>, Option<String>) {
    let text = |text: &str| Some(limited(text));
    let of = |slice: &pool::SliceId, generation: &pool::Generation| {
        Some(SliceOf { emc: slice.emc.0, index: slice.index, generation: generation.0 })
    };
    match request {
        Request::Lease { instance, .. } => (None, None, text(instance)),
        Request::Assign { vm, request, .. } | Request::Return { vm, request, .. } => (text(vm), None, text(request)),
        Request::OfflineFailed { slice, generation, why, .. } => (None, of(slice, generation), text(why)),
        Request::Offlined { slice, generation, .. } | Request::Scrubbed { slice, generation } => (None, of(slice, generation), None),
        Request::Abandoned { slice, generation } => {
            (None, of(slice, generation), text("its host has no lease, and no process had locked it"))
        }
        Request::EmcFailed(emc) | Request::EmcRepaired(emc) => (None, None, Some(format!("EMC {}", emc.0))),
        Request::HostFenced(host) => (None, None, Some(format!("host {host}"))),
        Request::Renew { .. } | Request::Tick => (None, None, None),
    }
}

/// The slices in a response.
fn given(response: &Response) -> Vec<SliceOf> {
    let of = |slice: &crate::api::Slice| SliceOf { emc: slice.emc, index: slice.index, generation: slice.generation };
    match response {
        Response::Assignment(assignment) => assignment.slices.iter().map(of).collect(),
        Response::WorkList(list) => list.work.iter().map(|work| of(&work.slice)).collect(),
        Response::Lease(_) | Response::Renewed(_) | Response::Done => Vec::new(),
    }
}

/// Whether a request belongs in the log. Renewals and time change no owner by themselves, and come many times a minute.
fn is_recorded(request: &Request) -> bool {
    !matches!(request, Request::Renew { .. } | Request::Tick)
}

/// The current file, and the one before it.
fn paths(current: &Path) -> [PathBuf; 2] {
    let mut before = current.as_os_str().to_owned();
    before.push(".1");
    [before.into(), current.to_owned()]
}

/// The log's writer.
#[derive(Debug)]
pub(crate) struct Audit {
    path: PathBuf,
    size_max: Bytes,
    /// `None` after an error, until it can be opened.
    file: Option<File>,
    size: u64,
    sequence: u64,
    link: Hash,
    lost: u64,
}

impl Audit {
    /// Opens the log, to continue after its last entry. An error is logged, and opening is repeated with each entry.
    pub(crate) fn open(path: PathBuf, size_max: Bytes) -> Self {
        let mut audit = Self { path, size_max, file: None, size: 0, sequence: 0, link: Hash::default(), lost: 0 };
        let last = paths(&audit.path).iter().rev().find_map(|path| last(path));
        if let Some(last) = last {
            (audit.sequence, audit.link) = (last.sequence, last.link);
            log::info!("the audit log {} continues after entry {}, link {}", audit.path.display(), last.sequence, last.link);
        }
        if let Err(error) = audit.reopen() {
            log::error!("the audit log {} cannot be opened: {error}; requests are answered without it", audit.path.display());
        }
        audit
    }

    fn reopen(&mut self) -> std::io::Result<()> {
        let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&self.path)?;
        self.size = file.seek(SeekFrom::End(0))?;
        // A crash may have cut the last line; the next entry begins a new one, and verification finds the rest.
        let mut end = [b'\n'];
        if self.size > 0 {
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut end)?;
        }
        if end != [b'\n'] {
            file.write_all(b"\n")?;
            self.size += 1;
        }
        self.file = Some(file);
        Ok(())
    }

    /// Appends an entry for each request of a batch.
    pub(crate) fn record<'a>(&mut self, now_ms: u64, batch: impl Iterator<Item = (&'a str, &'a Request, &'a Outcome)>) {
        for (who, request, outcome) in batch.filter(|(_, request, _)| is_recorded(request)) {
            if let Err(error) = self.append(now_ms, Entry::new(who, request, outcome)) {
                if self.lost == 0 {
                    log::error!("the audit log {} cannot be written: {error}; requests are answered without it", self.path.display());
                }
                self.lost += 1;
            }
        }
    }

    fn append(&mut self, time_ms: u64, entry: Entry) -> std::io::Result<()> {
        let mut entry = Entry { sequence: self.sequence + 1, time_ms, lost: self.lost, previous: self.link, ..entry };
        entry.link = entry.link_of();
        let mut line = serde_json::to_vec(&entry)?;
        line.push(b'\n');
        let length = line.len() as u64;
        if self.size > 0 && self.size + length > self.size_max.0 {
            let [before, current] = paths(&self.path);
            self.file = None;
            std::fs::rename(current, before)?;
        }
        if self.file.is_none() {
            self.reopen()?;
        }
        let written = self.file.as_mut().map_or(Ok(()), |file| file.write_all(&line));
        if let Err(error) = written {
            // A part of the line may have been written.
            if let Some(file) = self.file.take() {
                let _ = file.set_len(self.size);
            }
            return Err(error);
        }
        if self.lost > 0 {
            log::warn!("the audit log {} can be written again; {} entries are missing", self.path.display(), self.lost);
        }
        (self.size, self.sequence, self.link, self.lost) = (self.size + length, entry.sequence, entry.link, 0);
        Ok(())
    }
}

/// The last entry of a file that can be read.
fn last(path: &Path) -> Option<Entry> {
    let mut last = None;
    read_file(path, |_, entry| {
        last = entry.ok().or(last.take());
        Ok(())
    })
    .ok()?;
    last
}

/// Why the log is not intact.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// An entry was changed, removed or inserted.
    #[error("{path}, line {line}: {why}; compare with a copy of the log, and find who can write to this file")]
    Broken {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        why: String,
    },
    /// A link that was noted is missing.
    #[error("no entry has the link {link}: entries were removed, or rotation has dropped it")]
    Missing {
        /// The link.
        link: String,
    },
}

/// The result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verified {
    /// Number of entries.
    pub entries: u64,
    /// Number of the first entry; rotation has dropped those before it.
    pub first: u64,
    /// Number of the last entry.
    pub last: u64,
    /// The link of the last entry.
    pub link: String,
    /// Entries that could not be written.
    pub lost: u64,
}

/// Reads every entry, oldest first.
///
/// # Errors
/// A file cannot be read, or a line is no entry.
pub fn read(path: &Path, mut each: impl FnMut(&Entry)) -> Result<(), Error> {
    for path in paths(path) {
        read_file(&path, |line, entry| entry.map(|entry| each(&entry)).map_err(|why| Error::Broken { path: path.clone(), line, why }))?;
    }
    Ok(())
}

/// Checks every entry, and that the entry with the link `expected` is among them.
///
/// # Errors
/// The first entry that does not follow from the one before it, or a missing link.
pub fn verify(path: &Path, expected: Option<&str>) -> Result<Verified, Error> {
    let mut verified = Verified::default();
    let mut before: Option<(u64, Hash)> = None;
    let mut found = false;
    let [oldest, _] = paths(path);
    for path in paths(path) {
        read_file(&path, |line, entry| {
            let broken = |why: String| Error::Broken { path: path.clone(), line, why };
            let entry = entry.map_err(broken)?;
            if entry.link != entry.link_of() {
                return Err(broken(format!("entry {} was changed", entry.sequence)));
            }
            // Rotation drops the oldest entries, and only together with the file before.
            if before.is_none() && entry.sequence != 1 && path != oldest {
                return Err(broken(format!("entry {} is not the first: earlier ones were removed", entry.sequence)));
            }
            let expected_before = before.or((entry.sequence == 1).then_some((0, Hash::default())));
            if let Some((sequence, link)) = expected_before
                && (entry.sequence != sequence + 1 || entry.previous != link)
            {
                return Err(broken(format!("entry {} does not follow entry {sequence}: entries were removed or inserted", entry.sequence)));
            }
            if verified.entries == 0 {
                verified.first = entry.sequence;
            }
            verified.entries += 1;
            verified.lost += entry.lost;
            found |= expected == Some(entry.link().as_str());
            before = Some((entry.sequence, entry.link));
            Ok(())
        })?;
    }
    if let Some((sequence, link)) = before {
        (verified.last, verified.link) = (sequence, link.to_string());
    }
    match expected {
        Some(link) if !found => Err(Error::Missing { link: link.to_owned() }),
        _ => Ok(verified),
    }
}

/// Reads the lines of a file; a missing file has none.
fn read_file(path: &Path, mut each: impl FnMut(usize, Result<Entry, String>) -> Result<(), Error>) -> Result<(), Error> {
    let failed = |source| Error::File { path: path.to_owned(), source };
    let file = match File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        file => file.map_err(failed)?,
    };
    let mut reader = BufReader::new(file);
    for number in 1.. {
        let mut line = Vec::new();
        if reader.by_ref().take(LINE_MAX).read_until(b'\n', &mut line).map_err(failed)? == 0 {
            break;
        }
        each(number, serde_json::from_slice(&line).map_err(|error| format!("not an entry: {error}")))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;

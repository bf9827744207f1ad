//! Guests that have ended: the history that predictions rest on (Pond section 4.4), and the rows that models are trained on.
//!
//! A file of JSON lines beside the guests' records, `lives.jsonl`, which `thermocline pool import` reads. It is only appended
//! to; a line that was cut by a crash is skipped.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use predict::History;
use serde::{Deserialize, Serialize};
use units::Bytes;

use super::settings::Refused;
use crate::vm::{Record, Samples};

/// Version of the format of a line.
const VERSION: u32 = 1;
const LIVES: &str = "lives.jsonl";
/// Size at which the file is put aside, in place of the one that was before: some 100,000 guests.
const FILE_MAX: u64 = 64 << 20;
const LINE_MAX: u64 = 64 << 10;

/// One guest that has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Life {
    /// [`VERSION`]; the first key, by which an import recognizes the file.
    guest_life: u32,
    host: String,
    name: String,
    /// By the clock of the request, in seconds.
    pub(super) arrival: i64,
    pub(super) departure: i64,
    cores: u32,
    pub(super) memory_bytes: Bytes,
    pub(super) customer: Option<u64>,
    vm_type: Option<String>,
    guest_os: Option<String>,
    location: Option<String>,
    /// Pool memory at its start.
    pool_bytes: Bytes,
    /// The most memory that it had touched at any sample. `None`: it was never sampled.
    pub(super) touched_bytes: Option<Bytes>,
    mitigated: bool,
    samples: Samples,
    /// Performance counters of its last sample with more pool accesses than predicted.
    counters: BTreeMap<String, f64>,
}

impl Life {
    /// The life of a guest that ends at `now`, in seconds since 1970. `None` if it never ran.
    pub(super) fn of(host: &str, record: &Record, now: f64) -> Option<Self> {
        let started_at = record.started_at.filter(|&started| started > 0.0)?;
        let vm = &record.request.vm;
        #[expect(clippy::cast_possible_truncation, reason = "seconds")]
        let lived = (now - started_at).max(0.0) as i64;
        Some(Self {
            guest_life: VERSION,
            host: host.to_owned(),
            name: record.request.name.clone(),
            arrival: vm.arrival,
            departure: vm.arrival.saturating_add(lived),
            cores: vm.cores,
            memory_bytes: vm.memory_bytes,
            customer: vm.customer,
            vm_type: vm.vm_type.clone(),
            guest_os: vm.guest_os.clone(),
            location: vm.location.clone(),
            pool_bytes: record.machine.pool_bytes(),
            touched_bytes: record.touched_bytes,
            mitigated: record.mitigated,
            samples: record.samples,
            counters: record.counted.as_ref().map(|counted| counted.counters.clone()).unwrap_or_default(),
        })
    }

    /// The share of its memory that it never touched.
    fn untouched_ratio(&self) -> Option<f64> {
        let touched = self.touched_bytes?.min(self.memory_bytes);
        #[expect(clippy::cast_precision_loss, reason = "a share")]
        let ratio = touched.0 as f64 / self.memory_bytes.0.max(1) as f64;
        Some(1.0 - ratio)
    }
}

/// The guests that have ended, on disk and as a history by customer.
#[derive(Debug)]
pub(super) struct Lives {
    path: PathBuf,
    /// A guest that ran for less counts for no prediction.
    least: Duration,
    history: History,
}

impl Lives {
    /// Reads the file in a directory, if there is one. Lines that cannot be read are counted and skipped.
    pub(super) fn load(directory: &Path, least: Duration, history: History) -> Result<Self, Refused> {
        let mut lives = Self { path: directory.join(LIVES), least, history };
        for path in [lives.aside(), lives.path.clone()] {
            let file = match File::open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(Refused(format!("cannot read {}: {error}", path.display()))),
            };
            let damaged = lives.read(file).map_err(|error| Refused(format!("cannot read {}: {error}", path.display())))?;
            if damaged > 0 {
                log::warn!("{}: {damaged} lines are damaged and were skipped", path.display());
            }
        }
        Ok(lives)
    }

    /// Counts the lives of a file. Returns the number of damaged lines.
    fn read(&mut self, file: File) -> std::io::Result<u64> {
        let (mut lines, mut line, mut damaged) = (BufReader::new(file), Vec::new(), 0);
        loop {
            line.clear();
            if lines.by_ref().take(LINE_MAX).read_until(b'\n', &mut line)? == 0 {
                return Ok(damaged);
            }
            match serde_json::from_slice::<Life>(&line) {
                Ok(life) if life.guest_life == VERSION => self.count(&life),
                _ => damaged += 1,
            }
        }
    }

    fn aside(&self) -> PathBuf {
        self.path.with_extension("1.jsonl")
    }

    fn count(&mut self, life: &Life) {
        let lived = u64::try_from(life.departure.saturating_sub(life.arrival)).unwrap_or(0);
        if let (Some(customer), Some(untouched)) = (life.customer, life.untouched_ratio())
            && lived >= self.least.as_secs()
        {
            self.history.record(customer, life.departure, untouched);
        }
    }

    /// Adds a life, on disk and to the history.
    pub(super) fn add(&mut self, life: &Life) -> Result<(), Refused> {
        self.count(life);
        self.append(life).map_err(|error| Refused(format!("cannot write {}: {error}", self.path.display())))
    }

    fn append(&self, life: &Life) -> std::io::Result<()> {
        if std::fs::metadata(&self.path).is_ok_and(|file| file.len() >= FILE_MAX) {
            std::fs::rename(&self.path, self.aside())?;
        }
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(&self.path)?;
        let mut line = serde_json::to_vec(life)?;
        line.push(b'\n');
        if is_cut(&mut file)? {
            line.insert(0, b'\n');
        }
        file.write_all(&line)?;
        file.sync_data()
    }

    /// The untouched shares of a customer's guests that ended on this host within the model's window before `now`, by the
    /// clock of requests.
    pub(super) fn recent(&self, customer: u64, now: i64) -> Vec<f32> {
        self.history.recent(customer, now).collect()
    }
}

/// Whether the last line of a file has no end.
fn is_cut(file: &mut File) -> std::io::Result<bool> {
    if file.metadata()?.len() == 0 {
        return Ok(false);
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}

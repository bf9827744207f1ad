//! The journal: what the agent saw and decided, one JSON object per line.
//!
//! A journal is complete in itself: each file begins with the agent's thresholds and every job's parameters and
//! controller state, so that [`crate::replay`] can feed the recorded inputs through `policy` and must get the recorded
//! decisions. Lines are appended in whole batches by one write; a process killed at any instruction can leave at
//! most one torn line at the end, which the next start cuts off.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use config::{Class, Policy};
use policy::background;
use policy::balance::{self, Lean};
use policy::cold_age;
use policy::pressure;
use policy::slowdown;
use policy::thresholds::Thresholds;
use serde::{Deserialize, Serialize};
use units::{Bytes, Pages};

use crate::job::background::Done;
use crate::job::pressed::Reclaimed;
use crate::job::slowed::Moved;

pub mod lines;

/// The version of the lines below. A reader refuses a newer one by name.
///
/// Version 2 knows of pressure-driven offloading and of jobs in the background, version 3 of slow memory nodes.
pub const VERSION: u32 = 3;

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case")]
pub enum Record {
    /// An agent starts, or goes on in a new file or under other parameters.
    Agent(AgentRecord),
    /// A job's controller starts, or goes on after a restart, in a new file or under other parameters.
    Job(Box<JobRecord>),
    /// One control period of one job.
    Period(Box<PeriodRecord>),
    /// One period of one job under pressure-driven offloading.
    Pressure(Box<PressureRecord>),
    /// One period of one job that may go to the background.
    Background(Box<BackgroundRecord>),
    /// One period of one job whose memory may live in a slow node.
    Slow(Box<SlowRecord>),
    /// Something that is no decision of a controller.
    Event {
        /// Milliseconds since the epoch.
        unix_ms: u64,
        /// The job concerned, if it concerns one.
        job: Option<String>,
        /// What happened, in plain words.
        what: String,
    },
}

/// What all periods of a file have in common.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentRecord {
    /// [`VERSION`] at the time of writing.
    pub version: u32,
    /// Milliseconds since the epoch.
    pub unix_ms: u64,
    /// The kernel's boot id: monotonic times of different boots cannot be compared.
    pub boot_id: String,
    /// The kernel's release, as `uname -r` prints it.
    pub kernel: String,
    /// Bytes per page.
    pub page_bytes: u64,
    /// Milliseconds from scan to scan; ages count these.
    pub scan_period_ms: u64,
    /// The set of thresholds that all histograms are folded into.
    pub thresholds: Thresholds,
    /// The version of the parameter bundle that the agent goes by; 0 for its configuration file.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub bundle: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's way to ask")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What a job's controller starts from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobRecord {
    /// Milliseconds since the epoch.
    pub unix_ms: u64,
    /// The job's cgroup, relative to the cgroup root.
    pub job: String,
    /// The kernel's id of that cgroup: a directory made anew is another job.
    pub id: u64,
    /// How the operator wants it treated.
    pub class: Class,
    /// What observes its accesses.
    pub tracker: String,
    /// The controller's parameters.
    pub params: cold_age::Params,
    /// The controller's state before the next period.
    pub state: cold_age::State,
    /// What decides for it.
    #[serde(default = "before_version_2", skip_serializing_if = "is_before_version_2")]
    pub policy: Policy,
    /// Its pressure controller, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pressure: Option<PressureStart>,
    /// Its background controller, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub background: Option<BackgroundStart>,
}

/// The only policy that journals of version 1 know.
fn before_version_2() -> Policy {
    Policy::ColdAge
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's way to ask")]
fn is_before_version_2(policy: &Policy) -> bool {
    *policy == before_version_2()
}

/// What a job's pressure controller starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PressureStart {
    /// The controller's parameters.
    pub params: pressure::Params,
    /// Its state before the next period.
    pub state: pressure::State,
    /// The state of the balance between anonymous and file memory.
    pub balance: balance::State,
}

/// What a job's background controller starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackgroundStart {
    /// The controller's parameters.
    pub params: background::Params,
    /// Its state before the next period.
    pub state: background::State,
}

/// One period of one job that may go to the background: observed, decided, done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BackgroundRecord {
    /// Milliseconds since the epoch.
    pub unix_ms: u64,
    /// The job's cgroup.
    pub job: String,
    /// The kernel's id of that cgroup.
    pub id: u64,
    /// What the controller saw.
    pub input: background::Input,
    /// What it decided.
    pub decision: background::Decision,
    /// What was done since the period before.
    pub done: Done,
    /// Where the job's memory is.
    pub memory: JobMemory,
}

/// One period of one job whose memory may live in a slow node: observed, decided, done. The controller remembers
/// nothing, so that each period is complete in itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlowRecord {
    /// Milliseconds since the epoch.
    pub unix_ms: u64,
    /// The job's cgroup.
    pub job: String,
    /// The kernel's id of that cgroup.
    pub id: u64,
    /// The controller's parameters.
    pub params: slowdown::Params,
    /// What the controller saw.
    pub input: slowdown::Input,
    /// What it decided.
    pub step: slowdown::Step,
    /// What was moved since the period before.
    pub moved: Moved,
    /// The job's memory that can be moved at all.
    pub memory: Bytes,
    /// Of that, what was in the slow node.
    pub slow: Bytes,
}

/// One period of one job under pressure-driven offloading: observed, decided, done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PressureRecord {
    /// Milliseconds since the epoch.
    pub unix_ms: u64,
    /// The job's cgroup.
    pub job: String,
    /// The kernel's id of that cgroup.
    pub id: u64,
    /// What the controller saw.
    pub input: pressure::Input,
    /// What it decided.
    pub step: pressure::Step,
    /// What the balance saw.
    pub balance: balance::Input,
    /// Which way it leaned.
    pub lean: Lean,
    /// What was reclaimed since the period before.
    pub reclaimed: Reclaimed,
    /// Where the job's memory is.
    pub memory: JobMemory,
}

/// One control period of one job: observed, decided, done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeriodRecord {
    /// Milliseconds since the epoch.
    pub unix_ms: u64,
    /// The job's cgroup.
    pub job: String,
    /// The kernel's id of that cgroup.
    pub id: u64,
    /// What the controller saw.
    pub input: cold_age::Input,
    /// What it decided.
    pub step: cold_age::Step,
    /// What was done and what came back since the period before.
    pub outcome: Outcome,
    /// Where the job's memory is.
    pub memory: JobMemory,
}

/// What happened to a job between two decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Milliseconds since the decision before.
    pub elapsed_ms: u64,
    /// Pages that the kernel was asked to offload.
    pub asked: Pages,
    /// Pages that went to far memory.
    pub offloaded: Pages,
    /// Pages that came back from it.
    pub promoted: Pages,
}

/// Where a job's memory is, from the kernel's own counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobMemory {
    /// `memory.current`: everything charged, the compressed pool included.
    pub current: Bytes,
    /// Uncompressed size of what is in far memory and no longer in DRAM.
    pub far: Bytes,
    /// DRAM that its compressed copies occupy.
    pub pool: Bytes,
    /// Page cache that was reclaimed from it and has not come back.
    #[serde(default, skip_serializing_if = "is_none_out")]
    pub file: Bytes,
    /// What is in a slow memory node, and charged to the job all the same.
    #[serde(default, skip_serializing_if = "is_none_out")]
    pub slow: Bytes,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's way to ask")]
fn is_none_out(bytes: &Bytes) -> bool {
    *bytes == Bytes::ZERO
}

impl JobMemory {
    /// DRAM that the machine got back: what left for far memory or a slow node, minus what its compressed copies occupy.
    #[must_use]
    pub fn saved(&self) -> Bytes {
        self.far + self.file + self.slow - self.pool
    }
}

/// The file that lines are appended to, and its predecessors `journal.1`, `journal.2`, ...
#[derive(Debug)]
pub struct Journal {
    dir: PathBuf,
    file: File,
    size: u64,
    size_max: u64,
    files_max: u32,
}

const FILE: &str = "journal";

impl Journal {
    /// Opens the journal in `dir` and cuts off a torn last line.
    ///
    /// # Errors
    /// When the directory cannot be made or the file cannot be opened.
    pub fn open(dir: &Path, size_max: Bytes, files_max: u32) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let mut file = OpenOptions::new().create(true).read(true).append(true).open(dir.join(FILE))?;
        let size = cut_torn_line(&mut file)?;
        Ok(Self { dir: dir.to_owned(), file, size, size_max: size_max.0, files_max })
    }

    /// The path of the newest file in `dir`.
    #[must_use]
    pub fn path(dir: &Path) -> PathBuf {
        dir.join(FILE)
    }

    /// Starts a new file when the old one has reached its size. Returns whether it did; the next lines must then be
    /// the agent's and every job's, so that the file is complete in itself.
    ///
    /// # Errors
    /// Any error of renaming or creating files.
    pub fn rotate_if_full(&mut self) -> io::Result<bool> {
        if self.size < self.size_max {
            return Ok(false);
        }
        for n in (1..self.files_max).rev() {
            let from = if n == 1 { self.dir.join(FILE) } else { self.dir.join(format!("{FILE}.{}", n - 1)) };
            if from.exists() {
                fs::rename(from, self.dir.join(format!("{FILE}.{n}")))?;
            }
        }
        self.file = OpenOptions::new().create(true).append(true).read(true).open(self.dir.join(FILE))?;
        // With a single file allowed nothing was renamed: the old lines go.
        self.file.set_len(0)?;
        self.size = 0;
        Ok(true)
    }

    /// Appends a batch of lines by one write.
    ///
    /// # Errors
    /// Any error of writing, such as a full disk; nothing of the batch counts as written then.
    pub fn append(&mut self, records: &[Record]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(records.len() * 512);
        for record in records {
            serde_json::to_writer(&mut bytes, record)?;
            bytes.push(b'\n');
        }
        if let Err(error) = self.file.write_all(&bytes) {
            // Half a batch must not be taken for a torn line later, when more lines follow it.
            self.file.set_len(self.size)?;
            return Err(error);
        }
        self.size += bytes.len() as u64;
        Ok(())
    }
}

/// Cuts the file after its last newline and returns its size.
fn cut_torn_line(file: &mut File) -> io::Result<u64> {
    let mut end = file.seek(SeekFrom::End(0))?;
    let mut block = [0u8; 4096];
    let mut from = end;
    while from > 0 {
        let start = from.saturating_sub(block.len() as u64);
        let part = &mut block[..usize::try_from(from - start).unwrap_or(0)];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(part)?;
        if let Some(newline) = part.iter().rposition(|&b| b == b'\n') {
            end = start + newline as u64 + 1;
            file.set_len(end)?;
            return Ok(end);
        }
        from = start;
    }
    if end > 0 {
        file.set_len(0)?;
    }
    Ok(0)
}

/// Why a journal cannot be read on.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be read.
    #[error("cannot read the journal {path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A line that is not the last is no record.
    #[error("{path}:{line}: no journal record: {message}")]
    Line {
        /// Which file.
        path: PathBuf,
        /// Counted from one.
        line: usize,
        /// What is wrong with it.
        message: String,
    },
    /// The file was written by a newer agent.
    #[error("{path} has journal version {found}; this program reads up to {VERSION}; use the program that wrote it")]
    Newer {
        /// Which file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
}

/// The records of one file. A torn last line, as a killed agent leaves it, is dropped.
///
/// # Errors
/// [`ReadError`] for anything else that is not a record of a known version.
pub fn read(path: &Path) -> Result<Vec<Record>, ReadError> {
    lines::Lines::of(path)?.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::{Replay, replay};
    use policy::histogram::{AgeCounts, Histogram};
    use units::{Age, RatioPpm};

    const PARAMS: cold_age::Params = cold_age::Params::new(RatioPpm(2_000), RatioPpm(980_000), 0);

    /// A short life of one job, as an agent would write it.
    fn life() -> Vec<Record> {
        let thresholds = Thresholds::log_spaced(32).unwrap();
        let mut records = vec![
            Record::Agent(AgentRecord {
                version: VERSION,
                unix_ms: 0,
                boot_id: "b".into(),
                kernel: "6.12".into(),
                page_bytes: 4096,
                scan_period_ms: 120_000,
                thresholds,
                bundle: 0,
            }),
            Record::Job(Box::new(JobRecord {
                unix_ms: 0,
                job: "/a".into(),
                id: 7,
                class: Class::Standard,
                tracker: "page_idle".into(),
                params: PARAMS,
                state: cold_age::State::default(),
                policy: Policy::ColdAge,
                pressure: None,
                background: None,
            })),
        ];
        let mut state = cold_age::State::default();
        for i in 0..20u8 {
            let mut counts = AgeCounts::default();
            counts.add(Age(0), Pages(100_000));
            counts.add(Age(i), Pages(300));
            let cold = Histogram::from_counts(&counts, &thresholds);
            let input = cold_age::Input {
                job_age_ms: 60_000,
                window_ms: 60_000,
                cold,
                resident: cold,
                promotions: cold,
                allowance: None,
                veto: None,
            };
            let (next, step) = cold_age::step(&PARAMS, &thresholds, &state, &input);
            state = next;
            records.push(Record::Period(Box::new(PeriodRecord {
                unix_ms: u64::from(i) * 60_000,
                job: "/a".into(),
                id: 7,
                input,
                step,
                outcome: Outcome::default(),
                memory: JobMemory::default(),
            })));
        }
        records
    }

    fn open(dir: &Path) -> Journal {
        Journal::open(dir, Bytes(1 << 20), 3).unwrap()
    }

    #[test]
    fn what_is_written_is_read_and_replays() {
        let dir = tempfile::tempdir().unwrap();
        open(dir.path()).append(&life()).unwrap();
        let records = read(&Journal::path(dir.path())).unwrap();
        assert_eq!(records, life());
        assert_eq!(replay(&records), Replay { periods: 20, skipped: 0, differing: vec![] });
    }

    #[test]
    fn a_changed_decision_is_found() {
        let mut records = life();
        let Record::Period(period) = &mut records[9] else { panic!("a period") };
        period.step.threshold = Some(Age(200));
        assert_eq!(replay(&records).differing, [7]);
        assert_eq!(replay(&life()[2..]).skipped, 20);
    }

    #[test]
    fn a_kill_at_any_byte_costs_the_last_record_alone() {
        let dir = tempfile::tempdir().unwrap();
        open(dir.path()).append(&life()).unwrap();
        let path = Journal::path(dir.path());
        let whole = fs::read(&path).unwrap();
        for cut in (0..=whole.len()).rev().step_by(37) {
            fs::write(&path, &whole[..cut]).unwrap();
            let lines = whole[..cut].iter().filter(|&&b| b == b'\n').count();
            assert_eq!(read(&path).unwrap(), life()[..lines], "cut at {cut}");
            let mut journal = open(dir.path());
            assert!(!journal.rotate_if_full().unwrap());
            journal.append(&life()[..1]).unwrap();
            assert_eq!(read(&path).unwrap().len(), lines + 1, "the next record starts on its own line");
        }
    }

    #[test]
    fn files_are_bounded_in_size_and_number() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path(), Bytes(2_000), 3).unwrap();
        for i in 0..50 {
            journal.rotate_if_full().unwrap();
            journal.append(&[Record::Event { unix_ms: i, job: None, what: "x".repeat(400) }]).unwrap();
        }
        let mut names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        assert_eq!(names, ["journal", "journal.1", "journal.2"]);
        assert!(fs::metadata(dir.path().join("journal.1")).unwrap().len() < 3_000);
        let Some(Record::Event { unix_ms, .. }) = read(&Journal::path(dir.path())).unwrap().pop() else { panic!("an event") };
        assert_eq!(unix_ms, 49);
    }

    #[test]
    fn foreign_and_newer_files_are_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = Journal::path(dir.path());
        fs::write(&path, "{\"record\":\"agent\"}\nrubbish\n{}\n").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("journal:1"));
        let mut records = life();
        let Record::Agent(agent) = &mut records[0] else { panic!("an agent") };
        agent.version = VERSION + 1;
        fs::write(&path, serde_json::to_string(&records[0]).unwrap() + "\n").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains(&format!("version {}", VERSION + 1)));
        assert!(read(&dir.path().join("none")).unwrap_err().to_string().contains("none"));
    }
}

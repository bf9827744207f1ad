//! What guests leave behind: the history that predictions rest on (Pond section 4.4), and the rows that models are trained on.
//!
//! Guests that have ended are in a file of JSON lines beside the guests' records, `lives.jsonl`, which `thermocline pool import`
//! reads. It is only appended to; a line that was cut by a crash is skipped.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use predict::{Evidence, History, Latency, NoAnswer, Predictor, Workloads};
use serde::{Deserialize, Serialize};
use units::{Bytes, RatioPpm};

use super::models::{ModelId, Models};
use super::settings::{Refused, Settings, Tolerated};
use crate::prediction::Prediction;
use crate::touched::Touched;
use crate::vm::{Record, Samples};

/// Version of the format of a line.
const VERSION: u32 = 1;
const LIVES: &str = "lives.jsonl";
/// Size at which the file is put aside, in place of the one that was before: some 60,000 guests.
const FILE_MAX: u64 = 64 << 20;
/// Longest line.
pub const LINE_MAX: u64 = 64 << 10;

/// The files of a state directory, the older one first; either may be missing.
#[must_use]
pub fn files(directory: &Path) -> [PathBuf; 2] {
    let path = directory.join(LIVES);
    [path.with_extension("1.jsonl"), path]
}

/// A guest that has ended, and what it says of a model of untouched memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// The model.
    pub model: ModelId,
    /// The host, as it names itself.
    pub host: String,
    /// Whether the model could not predict for it ([`crate::prediction::Answer::is_missing`]). `None`: that says nothing of the model, or
    /// the host is too old to record it.
    pub unpredicted: Option<bool>,
    /// Whether it touched more of the pool memory that the model gave it than is tolerated. `None`: it got none, or ran for too short
    /// a time.
    pub touched: Option<bool>,
    /// Whether that memory was moved home.
    pub mitigated: bool,
    /// When it arrived and when it departed, in seconds since 1970.
    pub lived_unix_s: (i64, i64),
}

/// Reads the guests of a file that say something of a model. Returns the number of damaged lines.
///
/// # Errors
/// Any error of reading the file.
pub fn judged(path: &Path, tolerated: Tolerated, each: &mut dyn FnMut(Judged)) -> std::io::Result<u64> {
    each_life(File::open(path)?, &mut |life| {
        let touched = life.outcome(tolerated).map(|(_, touched)| touched);
        let unpredicted = life.prediction.and_then(|prediction| prediction.answer.is_missing());
        let model = life.model.or(life.prediction.map(|prediction| prediction.model));
        if let Some(model) = model.filter(|_| touched.is_some() || unpredicted.is_some()) {
            let lived_unix_s = (life.arrival, life.departure);
            each(Judged { model, host: life.host, unpredicted, touched, mitigated: life.mitigated, lived_unix_s });
        }
    })
}

/// Reads the lines of a file. Returns the number of damaged ones.
fn each_life(file: File, each: &mut dyn FnMut(Life)) -> std::io::Result<u64> {
    let (mut lines, mut line, mut damaged) = (BufReader::new(file), Vec::new(), 0);
    loop {
        line.clear();
        if lines.by_ref().take(LINE_MAX).read_until(b'\n', &mut line)? == 0 {
            return Ok(damaged);
        }
        match serde_json::from_slice::<Life>(&line) {
            Ok(life) if life.guest_life == VERSION => each(life),
            _ => damaged += 1,
        }
    }
}

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
    /// The memory that it had touched, over time.
    #[serde(default)]
    touched_over_time: Touched,
    mitigated: bool,
    /// How many samples had which verdict of the monitor.
    #[serde(default)]
    verdicts: BTreeMap<String, u64>,
    /// The model that gave it pool memory as untouched.
    #[serde(default)]
    model: Option<ModelId>,
    /// What the model of untouched memory answered for it.
    #[serde(default)]
    prediction: Option<Prediction>,
    /// The most of its pool memory that it had touched at any sample.
    #[serde(default)]
    pool_touched_bytes: Option<Bytes>,
    samples: Samples,
    /// Performance counters of its last sample.
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
            touched_over_time: record.touched_over_time.clone(),
            mitigated: record.mitigated,
            verdicts: record.verdicts.clone(),
            model: record.model,
            prediction: record.prediction,
            pool_touched_bytes: record.pool_touched_bytes,
            samples: record.samples,
            counters: record.counted.as_ref().map(|counted| counted.counters.clone()).unwrap_or_default(),
        })
    }

    fn has_run(&self, least: Duration) -> bool {
        u64::try_from(self.departure.saturating_sub(self.arrival)).unwrap_or(0) >= least.as_secs()
    }

    /// The model that gave it pool memory, and whether it touched that; `None` if there is none, or it ran for too short a time.
    pub(super) fn outcome(&self, tolerated: Tolerated) -> Option<(ModelId, bool)> {
        let touched = touched_pool(tolerated.touched, self.pool_bytes, self.pool_touched_bytes)?;
        self.has_run(tolerated.least_life).then_some(())?;
        Some((self.model?, touched))
    }

    /// What identifies its workload.
    fn request(&self) -> predict::Request {
        let (vm_type, location) = (self.vm_type.clone(), self.location.clone());
        predict::Request { customer: self.customer, vm_type, location, ..predict::Request::default() }
    }

    /// The share of its memory that it never touched.
    fn untouched_ratio(&self) -> Option<f64> {
        let touched = self.touched_bytes?.min(self.memory_bytes);
        #[expect(clippy::cast_precision_loss, reason = "a share")]
        let ratio = touched.0 as f64 / self.memory_bytes.0.max(1) as f64;
        Some(1.0 - ratio)
    }
}

/// Customer, type and region: guests with the same values are assumed to run the same workload.
type Workload = (u64, Option<String>, Option<String>);

fn workload(vm: &predict::Request) -> Option<Workload> {
    Some((vm.customer?, vm.vm_type.clone(), vm.location.clone()))
}

/// The guests that have ended, on disk and as a history by customer; and what the counters of guests said of their workloads.
#[derive(Debug)]
pub(super) struct Lives {
    path: PathBuf,
    /// A guest that ran for less counts for no prediction.
    least: Duration,
    history: History,
    /// Guests are recorded once they have run for long enough, in this order: the times in it are not used.
    workloads: Workloads<Workload>,
}

impl Lives {
    /// Reads the file in a directory, if there is one. Lines that cannot be read are counted and skipped.
    pub(super) fn load(directory: &Path, settings: &Settings, models: Option<&mut Models>) -> Result<Self, Refused> {
        let mut models = models;
        let predictor = models.as_deref().map(|models| models.predictor().clone());
        let mut lives = Self {
            path: directory.join(LIVES),
            least: settings.least_life,
            history: predictor.as_ref().map_or_else(|| History::new(0, 0), |predictor| predictor.new_history()),
            workloads: Workloads::new(Evidence { agree: settings.counters_agree, run_seconds: 0 }),
        };
        for path in files(directory) {
            let file = match File::open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(Refused(format!("cannot read {}: {error}", path.display()))),
            };
            let damaged = lives
                .read(file, settings, models.as_deref_mut())
                .map_err(|error| Refused(format!("cannot read {}: {error}", path.display())))?;
            if damaged > 0 {
                log::warn!("{}: {damaged} lines are damaged and were skipped", path.display());
            }
        }
        Ok(lives)
    }

    /// Counts the lives of a file. Returns the number of damaged lines.
    fn read(&mut self, file: File, settings: &Settings, mut models: Option<&mut Models>) -> std::io::Result<u64> {
        each_life(file, &mut |life| {
            self.count(&life);
            let Some(models) = models.as_deref_mut() else { return };
            if life.has_run(self.least) && !life.counters.is_empty() {
                self.add_counted(&life.request(), latency(models.predictor(), &life.counters));
            }
            if let Some((model, touched)) = life.outcome(settings.tolerated()) {
                models.add(model, touched);
            }
        })
    }

    fn aside(&self) -> PathBuf {
        self.path.with_extension("1.jsonl")
    }

    fn count(&mut self, life: &Life) {
        if let (Some(customer), Some(untouched)) = (life.customer, life.untouched_ratio())
            && life.has_run(self.least)
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

    /// Adds the guests that run and whose counters were sampled.
    pub(super) fn add_running(&mut self, records: &[Record], predictor: &Predictor) {
        for record in records {
            if let Some(counted) = record.counted.as_ref().filter(|counted| has_run(record, self.least, counted.at)) {
                self.add_counted(&record.request.vm, latency(predictor, &counted.counters));
            }
        }
    }

    /// Adds what the latency model says of a guest's counters. The guest has run for long enough.
    pub(super) fn add_counted(&mut self, vm: &predict::Request, latency: Latency) {
        if let Some(workload) = workload(vm) {
            self.workloads.record(workload, 0, latency);
        }
    }

    /// What the counters of the latest guests of the same workload say.
    pub(super) fn latency(&self, vm: &predict::Request) -> Latency {
        workload(vm).map_or(Latency::NoAnswer(NoAnswer::NoHistory), |workload| self.workloads.latency(&workload, 0))
    }
}

/// Whether a guest touched more of its pool memory than is tolerated; `None` if it has none, or was never sampled.
pub(super) fn touched_pool(tolerated: RatioPpm, pool: Bytes, touched: Option<Bytes>) -> Option<bool> {
    let tolerated = Bytes(tolerated.share_of(pool.0));
    touched.filter(|_| pool > Bytes::ZERO).map(|touched| touched > tolerated)
}

/// Whether a guest has run for so long at `now`, in seconds since 1970.
pub(super) fn has_run(record: &Record, least: Duration, now: f64) -> bool {
    record.started_at.is_some_and(|started| started > 0.0 && now - started >= least.as_secs_f64())
}

/// What the latency model says of counters.
pub(super) fn latency(predictor: &Predictor, counters: &BTreeMap<String, f64>) -> Latency {
    #[expect(clippy::cast_possible_truncation, reason = "the model's precision")]
    let values = counters.iter().map(|(name, &value)| (name.clone(), value as f32)).collect();
    predictor.latency(Some(&values))
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

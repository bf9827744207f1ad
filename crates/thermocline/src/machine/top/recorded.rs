//! A journal as a sequence of control periods, to be shown one by one.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::rc::Rc;

use agent::controllers::cold_age::record::Period;
use agent::journal::{JobMemory, JobRecord, PeriodRecord, Record, SavingsRecord, lines};
use anyhow::{Result, bail};
use config::Policy;
use units::{Bytes, PageSize, Pages, UnixMillis};

use super::view::{Costs, Decisions, Explained, Job, Machine, View};

/// Control periods after its last record for which a job is still shown. A job whose controllers decide less often has no record in each.
const KEPT_PERIODS: usize = 3;

/// Decisions of a job that its page shows at most.
const DECISIONS_MAX: usize = 64;

/// One control period.
#[derive(Debug)]
struct Frame {
    unix_ms: UnixMillis,
    /// The machine's savings; `None` in a journal of an older agent.
    savings: Option<SavingsRecord>,
    kernel: Rc<str>,
    jobs: Vec<Rc<Job>>,
    /// The last event that concerns the machine.
    event: Option<Rc<Explained>>,
}

/// One decision about a job.
#[derive(Debug)]
struct Decided {
    controller: &'static str,
    unix_ms: UnixMillis,
    text: Rc<str>,
}

/// Where in the journal the screen is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    /// The period, from 1.
    pub(super) number: usize,
    /// All periods.
    pub(super) of: usize,
    /// Its end.
    pub(super) unix_ms: UnixMillis,
}

/// The control periods of a journal, and the one that is shown.
#[derive(Debug)]
pub(super) struct Recorded {
    frames: Vec<Frame>,
    decisions: HashMap<String, Vec<Decided>>,
    at: usize,
}

impl Recorded {
    /// Reads a file, or all that an agent keeps in a directory.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let files = if path.is_dir() { lines::of_directory(path)? } else { lines::of_files(&[path.to_owned()])? };
        let mut reader = Reader::default();
        for record in files.into_iter().flatten() {
            reader.take(&record?);
        }
        let Reader { frames, decisions, .. } = reader.finish();
        if frames.is_empty() {
            bail!("{}: it has no control period of an agent that offloads", path.display());
        }
        Ok(Self { frames, decisions, at: 0 })
    }

    pub(super) fn position(&self) -> Position {
        Position { number: self.at + 1, of: self.frames.len(), unix_ms: self.frames[self.at].unix_ms }
    }

    /// Goes forward or back, at most to the last or first period. Returns whether that is another period.
    pub(super) fn go(&mut self, by: isize) -> bool {
        let before = self.at;
        self.at = self.at.saturating_add_signed(by).min(self.frames.len() - 1);
        self.at != before
    }

    /// Goes to the last period that ends by then, or to the first.
    pub(super) fn go_to(&mut self, unix_ms: UnixMillis) {
        self.at = self.frames.partition_point(|frame| frame.unix_ms <= unix_ms).saturating_sub(1);
    }

    /// The machine as it was, with the decisions about the job that has a page of its own.
    pub(super) fn view(&self, shown: Option<&str>) -> View {
        let frame = &self.frames[self.at];
        let of_jobs = || frame.jobs.iter().map(|job| i64::try_from(job.saved_bytes.0).unwrap_or(i64::MAX)).fold(0, i64::saturating_add);
        let ledger = frame.savings.map(|savings| savings.ledger);
        let mut jobs: Vec<Job> = frame.jobs.iter().map(|job| (**job).clone()).collect();
        for job in jobs.iter_mut().filter(|job| shown == Some(job.job.as_str())) {
            job.recent = self.decisions_about(&job.job, frame.unix_ms);
        }
        View {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: frame.kernel.to_string(),
            saved_bytes: ledger.map_or_else(of_jobs, |ledger| ledger.net_bytes),
            machine: Machine {
                total_bytes: frame.savings.map(|savings| savings.dram_bytes).unwrap_or_default(),
                available_bytes: ledger.map(|ledger| ledger.available_bytes).unwrap_or_default(),
                pool_bytes: ledger.map(|ledger| ledger.pool_bytes).unwrap_or_default(),
                ..Machine::default()
            },
            costs: Costs { rss_bytes: ledger.map(|ledger| ledger.agent_bytes).unwrap_or_default(), ..Costs::default() },
            event: frame.event.as_deref().cloned(),
            jobs,
            ..View::default()
        }
    }

    /// The jobs in the periods up to the one that is shown, oldest first, at most this many periods.
    pub(super) fn until_now(&self, periods: usize) -> impl Iterator<Item = Vec<&Job>> {
        let first = (self.at + 1).saturating_sub(periods);
        self.frames[first..=self.at].iter().map(|frame| frame.jobs.iter().map(Rc::as_ref).collect())
    }

    fn decisions_about(&self, job: &str, until: UnixMillis) -> Vec<Decisions> {
        let all = self.decisions.get(job).map_or(&[][..], Vec::as_slice);
        let until = all.partition_point(|decided| decided.unix_ms <= until);
        let mut by_controller: BTreeMap<&str, Vec<Explained>> = BTreeMap::new();
        for decided in &all[until.saturating_sub(DECISIONS_MAX)..until] {
            let explained = Explained { unix_ms: decided.unix_ms.0, text: decided.text.to_string() };
            by_controller.entry(decided.controller).or_default().push(explained);
        }
        by_controller.into_iter().map(|(controller, decisions)| Decisions { controller: controller.to_owned(), decisions }).collect()
    }
}

/// What is known while a journal is read.
#[derive(Debug, Default)]
struct Reader {
    frames: Vec<Frame>,
    decisions: HashMap<String, Vec<Decided>>,
    kernel: Option<Rc<str>>,
    page: Option<PageSize>,
    scan_period_seconds: f64,
    thresholds: Vec<f64>,
    starts: HashMap<String, JobRecord>,
    /// The last choice of each job's tier, and why: the first one comes before the job's first period.
    tiers: HashMap<String, (Option<String>, String)>,
    /// The jobs, each with the frame of its last record.
    jobs: BTreeMap<String, (usize, Rc<Job>)>,
    event: Option<Rc<Explained>>,
    /// Whether periods end with a record of the savings, which older agents did not write.
    has_savings: bool,
    /// The jobs whose `cold_age` decided in this period, and when it did last.
    decided: HashSet<String>,
    decided_at: UnixMillis,
}

impl Reader {
    fn take(&mut self, record: &Record) {
        match record {
            Record::Agent(agent) => {
                self.kernel = Some(Rc::from(agent.kernel.as_str()));
                self.page = PageSize::new(agent.page_bytes);
                self.scan_period_seconds = agent.scan_period_ms.to_duration().as_secs_f64();
                self.thresholds = agent.thresholds.as_slice().iter().map(|age| f64::from(age.0) * self.scan_period_seconds).collect();
            }
            Record::Job(job) => drop(self.starts.insert(job.job.clone(), (**job).clone())),
            Record::Period(period) => self.period(period),
            Record::Pressure(pressure) => {
                self.update(&pressure.job, |job| {
                    remember(job, &pressure.memory);
                    job.stall_ratio = Some(pressure.step.memory_stall.as_f64());
                });
            }
            Record::Background(background) => self.update(&background.job, |job| remember(job, &background.memory)),
            Record::Savings(savings) => {
                self.has_savings = true;
                self.close(savings.unix_ms, Some(**savings));
            }
            Record::Event { unix_ms, job, what } => self.event(*unix_ms, job.as_deref(), what),
            Record::PageCache(_) | Record::Slow(_) | Record::Tier(_) | Record::Writeback(_) | Record::Writes(_) => {}
        }
        self.decision(record);
    }

    /// Takes what a record says of a job over into the job, which is a new one at its first record.
    fn update(&mut self, path: &str, change: impl FnOnce(&mut Job)) {
        let now = self.frames.len();
        let (last, job) = self.jobs.entry(path.to_owned()).or_insert_with(|| (now, Rc::new(Job::default())));
        *last = now;
        let job = Rc::make_mut(job);
        path.clone_into(&mut job.job);
        if let Some(tier) = self.tiers.get(path) {
            (job.tier, job.tier_reason) = tier.clone();
        }
        if let Some(start) = self.starts.get(path) {
            start.class.as_str().clone_into(&mut job.class);
            start.policy.as_str().clone_into(&mut job.policy);
            job.tracker.clone_from(&start.tracker);
        }
        change(job);
    }

    fn period(&mut self, record: &PeriodRecord) {
        let objective = match self.starts.get(&record.job) {
            Some(start) if start.policy == Policy::Auto => Period::from(record).allowed_ppm().unwrap_or_default(),
            Some(start) => u64::from(start.params.promotion_rate_max.0),
            // A file that was cut at its beginning: what the job starts with is not known.
            None => return,
        };
        if !self.has_savings && self.decided.contains(&record.job) {
            self.close(self.decided_at, None);
        }
        self.decided.insert(record.job.clone());
        self.decided_at = record.unix_ms;
        let (page, scan_period) = (self.page, self.scan_period_seconds);
        let bytes = |pages: Pages| page.map_or(Bytes::ZERO, |page| pages.to_bytes(page));
        let cold = &record.input.cold;
        let ages: Vec<_> = self.thresholds.iter().enumerate().map(|(index, &seconds)| (seconds, bytes(cold.at_or_above(index)))).collect();
        self.update(&record.job, |job| {
            remember(job, &record.memory);
            job.cold_bytes = ages.first().map_or(Bytes::ZERO, |(_, bytes)| *bytes);
            job.cold_age = ages;
            job.working_set_bytes = bytes(record.step.working_set);
            job.threshold_seconds = record.step.threshold.map(|age| f64::from(age.0) * scan_period);
            job.promotion_rate_ratio_per_min = Period::from(record).promotion_rate_ppm().map(per_one);
            job.slo_ratio_per_min = per_one(objective);
        });
    }

    fn event(&mut self, unix_ms: UnixMillis, job: Option<&str>, what: &str) {
        match job {
            Some(job) => self.decided(job, "event", unix_ms, what),
            None => self.event = Some(Rc::new(Explained { unix_ms: unix_ms.0, text: what.to_owned() })),
        }
    }

    fn decision(&mut self, record: &Record) {
        let Some((controller, path, _)) = record.decision() else { return };
        let start = self.starts.get(path);
        let Some(text) = record.explain(start, self.scan_period_seconds) else { return };
        let tier = record.tier(start);
        self.decided(path, controller, record.unix_ms(), &text);
        if let Some((tier, why)) = tier {
            self.tiers.insert(path.to_owned(), (tier, why.to_owned()));
        } else if let Some((_, job)) = self.jobs.get_mut(path) {
            Rc::make_mut(job).explanation = text;
        }
    }

    fn decided(&mut self, path: &str, controller: &'static str, unix_ms: UnixMillis, text: &str) {
        let all = self.decisions.entry(path.to_owned()).or_default();
        let same = all.iter().rev().take(4).find(|decided| *decided.text == *text).map(|decided| Rc::clone(&decided.text));
        all.push(Decided { controller, unix_ms, text: same.unwrap_or_else(|| Rc::from(text)) });
    }

    /// A control period has ended.
    fn close(&mut self, unix_ms: UnixMillis, savings: Option<SavingsRecord>) {
        self.decided.clear();
        let now = self.frames.len();
        self.jobs.retain(|_, (last, _)| *last + KEPT_PERIODS > now);
        let jobs = self.jobs.values().map(|(_, job)| Rc::clone(job)).collect();
        let kernel = self.kernel.clone().unwrap_or_else(|| Rc::from("an unknown kernel"));
        self.frames.push(Frame { unix_ms, savings, kernel, jobs, event: self.event.clone() });
    }

    /// The last period of a journal without records of savings ends with the journal.
    fn finish(mut self) -> Self {
        if !self.has_savings && !self.decided.is_empty() {
            self.close(self.decided_at, None);
        }
        self
    }
}

fn remember(job: &mut Job, memory: &JobMemory) {
    (job.memory_bytes, job.far_bytes, job.saved_bytes) = (memory.current, memory.far, memory.saved());
}

#[expect(clippy::cast_precision_loss, reason = "shown to people")]
fn per_one(ppm: u64) -> f64 {
    ppm as f64 / 1e6
}

//! Adds up the records of journals, with bounded memory.

use std::collections::{BTreeMap, VecDeque};

use agent::controllers::cold_age::record::Period;
use agent::journal::{JobRecord, PeriodRecord, ReadError, Record, SavingsRecord};
use config::Policy;
use units::{Bytes, RatioPpm};

use super::{Event, JobReport, Point, Report, ReportError, Sample};

/// Points of a series. When there are more, neighbours are joined.
const POINTS_MAX: usize = 1024;

/// Events that are kept.
const EVENTS_MAX: usize = 100;

#[derive(Default)]
struct Collected {
    report: Report,
    jobs: BTreeMap<String, Job>,
    saved: Thinned<Sample>,
    saved_sum: i128,
    saved_count: u32,
    events: VecDeque<Event>,
}

/// A job's sums.
struct Job {
    report: JobReport,
    points: Thinned<Point>,
    objective: RatioPpm,
    policy: Policy,
    warmup_ms: u64,
    saved_sum: u128,
    count: u32,
}

/// A series whose neighbours are joined when it is full.
struct Thinned<T> {
    kept: Vec<T>,
    /// How many are joined into one.
    stride: usize,
    joined: usize,
}

impl<T> Default for Thinned<T> {
    fn default() -> Self {
        Self { kept: Vec::new(), stride: 1, joined: 0 }
    }
}

impl<T: Copy> Thinned<T> {
    fn push(&mut self, value: T, join: fn(T, T) -> T) {
        if self.joined > 0 {
            let last = self.kept.len() - 1;
            self.kept[last] = join(self.kept[last], value);
        } else {
            if self.kept.len() == POINTS_MAX {
                self.kept = self.kept.chunks(2).map(|pair| pair[1..].iter().fold(pair[0], |a, &b| join(a, b))).collect();
                self.stride *= 2;
            }
            self.kept.push(value);
        }
        self.joined = (self.joined + 1) % self.stride;
    }
}

fn join_points(a: Point, b: Point) -> Point {
    let highest = match (a.of_objective_ratio, b.of_objective_ratio) {
        (Some(a), Some(b)) => Some(a.max(b)),
        (a, b) => a.or(b),
    };
    Point { of_objective_ratio: highest, ..b }
}

pub(super) fn collect(records: impl Iterator<Item = Result<Record, ReadError>>) -> Result<Report, ReportError> {
    let mut all = Collected::default();
    for record in records {
        match record? {
            Record::Agent(agent) => all.report.kernel = agent.kernel,
            Record::Job(job) => all.job(&job),
            Record::Period(period) => all.period(&period),
            Record::Savings(savings) => all.savings(&savings),
            Record::Event { unix_ms, job, what } => all.event(Event { unix_ms, job, what }),
            Record::Pressure(_) | Record::PageCache(_) | Record::Background(_) | Record::Slow(_) => {}
            Record::Tier(_) | Record::Writeback(_) | Record::Writes(_) => {}
        }
    }
    all.finish()
}

impl Collected {
    fn job(&mut self, record: &JobRecord) {
        let job = self.jobs.entry(record.job.clone()).or_insert_with(|| Job {
            report: JobReport { job: record.job.clone(), ..JobReport::default() },
            points: Thinned::default(),
            objective: RatioPpm(0),
            policy: record.policy,
            warmup_ms: 0,
            saved_sum: 0,
            count: 0,
        });
        job.report.class = record.class.as_str().to_owned();
        job.report.policy = record.policy.as_str().to_owned();
        job.report.over_allowed_ratio = 1.0 - record.params.percentile.as_f64();
        (job.objective, job.policy, job.warmup_ms) = (record.params.promotion_rate_max, record.policy, record.params.warmup_ms.0);
    }

    fn period(&mut self, record: &PeriodRecord) {
        // A period without its job's record has no objective: a file that was cut at its beginning.
        let Some(job) = self.jobs.get_mut(&record.job) else { return };
        if self.report.begins_unix_ms.0 == 0 {
            self.report.begins_unix_ms = record.unix_ms;
        }
        self.report.ends_unix_ms = self.report.ends_unix_ms.max(record.unix_ms);
        let period = Period::from(record);
        let objective = if job.policy == Policy::Auto { period.allowed_ppm() } else { Some(u64::from(job.objective.0)) };
        // As the agent counts (`ColdAge::count`): with far memory, or if all of it was promoted, once the job has warmed up.
        let judged = matches!(job.policy, Policy::ColdAge | Policy::Auto);
        let far = record.memory.far > Bytes::ZERO || record.outcome.promoted.0 > 0;
        let rate = period.promotion_rate_ppm().filter(|_| judged && far && period.job_age_ms.0 >= job.warmup_ms);
        if let (Some(rate), Some(objective)) = (rate, objective) {
            job.report.periods += 1;
            job.report.periods_over += u64::from(rate > objective);
        }
        #[expect(clippy::cast_precision_loss, reason = "shown to people")]
        let of_objective_ratio = rate.zip(objective.filter(|&most| most > 0)).map(|(rate, most)| rate as f64 / most as f64);
        let (memory_bytes, far_bytes) = (record.memory.current, record.memory.far);
        job.points.push(Point { unix_ms: record.unix_ms, memory_bytes, far_bytes, of_objective_ratio }, join_points);
        job.saved_sum += u128::from(record.memory.saved().0);
        job.count += 1;
    }

    fn savings(&mut self, record: &SavingsRecord) {
        self.report.dram_bytes = Some(record.dram_bytes);
        self.saved.push(Sample { unix_ms: record.unix_ms, bytes: record.ledger.net_bytes }, |_, last| last);
        self.saved_sum += i128::from(record.ledger.net_bytes);
        self.saved_count += 1;
    }

    fn event(&mut self, event: Event) {
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
            self.report.events_left_out += 1;
        }
        self.events.push_back(event);
    }

    fn finish(self) -> Result<Report, ReportError> {
        let mut report = self.report;
        report.jobs = self.jobs.into_values().filter(|job| job.count > 0).map(Job::finish).collect();
        if report.jobs.is_empty() {
            return Err(ReportError::Empty);
        }
        report.jobs.sort_by(|a, b| b.saved_mean_bytes.cmp(&a.saved_mean_bytes).then_with(|| a.job.cmp(&b.job)));
        let mean = (self.saved_count > 0).then(|| self.saved_sum / i128::from(self.saved_count.max(1)));
        report.saved_mean_bytes = mean.and_then(|mean| i64::try_from(mean).ok());
        report.saved = self.saved.kept;
        report.events = self.events.into();
        Ok(report)
    }
}

impl Job {
    fn finish(self) -> JobReport {
        let mean = self.saved_sum / u128::from(self.count.max(1));
        JobReport { saved_mean_bytes: Bytes(u64::try_from(mean).unwrap_or(u64::MAX)), points: self.points.kept, ..self.report }
    }
}

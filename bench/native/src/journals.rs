//! The journal: appended to in every period of every job, read and replayed by models.

use std::hint::black_box;

use agent::journal::{self, AgentRecord, JobMemory, JobRecord, Journal, Outcome, PeriodRecord, Record};
use agent::replay;
use anyhow::{Context, Result, ensure};
use config::{Class, Policy};
use policy::cold_age::{self, Input, Params, State};
use policy::histogram::{AgeCounts, Histogram};
use policy::thresholds::Thresholds;
use units::{Age, Bytes, Millis, Pages, RatioPpm, UnixMillis};

use crate::measure::{Bench, Effort, Report};

/// Jobs of the machine; each round appends one period of each.
const JOBS: u64 = 200;

/// Rounds in the replayed journal.
const ROUNDS: u64 = 10;

const PARAMS: Params = Params::new(RatioPpm(2_000), RatioPpm(980_000), Millis(120_000));

/// Measures appending a round of all jobs, and reading and replaying the journal.
pub(crate) fn bench(report: &mut Report, effort: Effort) -> Result<()> {
    let records = life(&Thresholds::log_spaced(32)?);
    let round = &records[records.len() - usize::try_from(JOBS)?..];
    let directory = tempfile::tempdir().context("cannot create a temporary directory")?;
    let mut growing = Journal::open(directory.path(), Bytes::mib(64), 2)?;
    let mut failed = None;
    let mut append = || {
        let written = growing.rotate_if_full().and_then(|_| growing.append(round));
        failed = failed.take().or(written.err());
        JOBS
    };
    report.measure(effort, Bench { name: "journal_append", unit: "periods", work: &mut append, limit: None, required: None })?;
    if let Some(error) = failed {
        return Err(error).context("cannot append to a journal in the temporary directory");
    }

    let directory = tempfile::tempdir().context("cannot create a temporary directory")?;
    Journal::open(directory.path(), Bytes::mib(64), 1)?.append(&records)?;
    let path = Journal::path(directory.path());
    let replayed = replay::replay(&journal::read(&path)?);
    ensure!(replayed.differing.is_empty() && replayed.skipped == 0, "the recorded decisions do not replay: {replayed:?}");
    let mut read = || journal::read(&path).map_or(0, |records| replay::replay(&records).periods as u64);
    report.measure(effort, Bench { name: "journal_read_and_replay", unit: "periods", work: &mut read, limit: None, required: None })?;
    let mut replay = || black_box(replay::replay(black_box(&records))).periods as u64;
    report.measure(effort, Bench { name: "journal_replay", unit: "periods", work: &mut replay, limit: None, required: None })
}

/// Returns a machine's journal: its jobs, and some rounds of their periods.
fn life(thresholds: &Thresholds) -> Vec<Record> {
    let agent = AgentRecord {
        version: journal::VERSION,
        unix_ms: UnixMillis(0),
        boot_id: "9f0c5c4e-0d55-4f0e-8a3c-0f7a1f6c2d11".to_owned(),
        kernel: "6.12.0".to_owned(),
        page_bytes: 4096,
        scan_period_ms: Millis(120_000),
        thresholds: *thresholds,
        bundle: 0,
        writes: None,
    };
    let jobs = (0..JOBS).map(|id| {
        let (class, tracker) = (Class::Standard, "page_idle".to_owned());
        let (state, policy) = (State::default(), Policy::ColdAge);
        let (pressure, page_cache, writeback, background, tiering) = (None, None, None, None, None);
        Record::Job(Box::new(JobRecord {
            unix_ms: UnixMillis(0),
            job: name(id),
            id,
            class,
            tracker,
            params: PARAMS,
            state,
            policy,
            pressure,
            page_cache,
            writeback,
            background,
            tiering,
        }))
    });
    let mut records: Vec<_> = std::iter::once(Record::Agent(agent)).chain(jobs).collect();
    records.extend(periods(thresholds));
    records
}

/// Returns the path of a job.
fn name(id: u64) -> String {
    format!("/system.slice/job-{id}.service")
}

/// Returns some rounds of periods of all jobs.
fn periods(thresholds: &Thresholds) -> Vec<Record> {
    let mut records = Vec::new();
    let mut random = fastrand::Rng::with_seed(3);
    let mut states: Vec<_> = (0..JOBS).map(|_| State::default()).collect();
    for round in 1..=ROUNDS {
        for (id, state) in (0..JOBS).zip(&mut states) {
            let mut counts = AgeCounts::default();
            for age in 0..=255 {
                counts.add(Age(age), Pages(random.u64(0..1 << 16)));
            }
            let cold = Histogram::from_counts(&counts, thresholds);
            let input = Input {
                job_age_ms: Millis(round * 60_000),
                window_ms: Millis(120_000),
                cold,
                resident: cold,
                promotions: cold,
                allowance: None,
                trial_max: None,
                returned: None,
                sample: None,
                reach: None,
                veto: None,
            };
            let (next, step) = cold_age::step(&PARAMS, thresholds, state, &input);
            *state = next;
            let (outcome, memory) = (Outcome::default(), JobMemory::default());
            records.push(Record::Period(Box::new(PeriodRecord {
                unix_ms: UnixMillis(round * 60_000),
                job: name(id),
                id,
                input,
                step,
                outcome,
                memory,
                resolved_to: Some(Age::MAX),
            })));
        }
    }
    records
}

//! Advice for capacity, from what a journal holds: each job's limit, and what the machine could promise.
//!
//! # Problem
//! An operator asks how much memory to grant. A percentile of the working set does not answer: it says neither what a
//! limit there would do to the job, nor how sure that is. What a journal measured does: how much DRAM each job took while
//! it lost no more than its objective allows.
//!
//! # Limits
//! The limit of a job is the DRAM that covered it in all but a given share of its periods (the risk), plus the largest
//! amount that came back from far memory within the reaction time of the agent: so much may come on top before anything
//! else is moved out. It need not exceed what the job would have taken without far memory, for then all is back. It is
//! rounded up to whole MiB. A job that was seen for fewer than 3 / risk periods gets what covered all of them: with fewer,
//! even a limit that was never exceeded may be exceeded more often than the risk allows (the rule of three).
//!
//! # Promise
//! A quota is DRAM plus slow memory, whose size is the estimate of idle memory (003, "memory overcommit model"). The
//! slow memory counted on here is the DRAM that all jobs together really gave back, at the same time, in all but the risk
//! of the periods: net of the compressed pool, and of the jobs that had ended.
//!
//! # Spending
//! What is cold could lie in slow memory, which costs less: see [`Saving`].
//!
//! # Properties
//! Each is a test of that name: a limit covers what it says; a limit never falls when the risk falls; what came back
//! leaves headroom; little history covers all that was seen; savings count only at the same time; observed jobs have a
//! potential.

mod account;
mod distribution;
mod machine;
mod spending;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use globset::{GlobBuilder, GlobMatcher};
use serde::Serialize;
use units::{Bytes, RatioPpm};

use self::account::{Account, Terms};
use self::distribution::Distribution;
pub use self::distribution::{CONFIDENCE, Spread};
use self::machine::Together;
pub use self::spending::{Cold, Saving};
use agent::journal::{ReadError, Record, lines};

/// What is asked.
#[derive(Clone, Debug)]
pub struct Options {
    /// Share of the periods in which a limit or a promise may be missed: above 0, below 100 %.
    pub risk: RatioPpm,
    /// Which jobs to advise on, as a pattern like those of the configuration. The machine is always all jobs.
    pub job: Option<String>,
    /// The machine's DRAM, where it is known.
    pub dram: Option<Bytes>,
    /// What slow memory may cost, each as a share of DRAM's price.
    pub tier_costs: Vec<RatioPpm>,
}

/// The advice.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// The share of periods in which a limit or a promise may be missed, as a fraction of one.
    pub accepted_risk_ratio: f64,
    /// How sure the `_max` of each risk is, as a fraction of one.
    pub confidence_ratio: f64,
    /// With fewer periods than these, the risk cannot be told.
    pub periods_min: u64,
    /// All jobs together.
    pub machine: MachinePlan,
    /// Each job, by name.
    pub jobs: Vec<JobPlan>,
}

/// What the machine could promise.
#[derive(Clone, Debug, Serialize)]
pub struct MachinePlan {
    /// Control periods in the journal.
    pub periods: u64,
    /// How many independent ones tell as much.
    pub independent_periods: u64,
    /// From the first to the last of them.
    pub span_seconds: f64,
    /// Whether there are too few periods to tell the risk.
    pub too_short: bool,
    /// Its DRAM, where it is known.
    pub dram_bytes: Option<Bytes>,
    /// DRAM that its jobs would have taken without far memory.
    pub without_far_memory_bytes: Spread,
    /// DRAM that they took.
    pub memory_bytes: Spread,
    /// DRAM that they gave back.
    pub saved_bytes: Spread,
    /// What they gave back in all but the accepted share of the periods.
    pub firm_saved_bytes: Bytes,
    /// DRAM and the firm saving together: what could be promised.
    pub promise_bytes: Option<Bytes>,
    /// The promise as a multiple of DRAM.
    pub promise_ratio: Option<f64>,
    /// Share of the periods in which less was saved than is promised.
    pub risk_ratio: f64,
    /// Bound on that share for the time to come.
    pub risk_ratio_max: f64,
    /// What jobs that are only observed would let go in all but the accepted share of the periods, before their
    /// compressed copies take their part. Not in the promise: it was never tried.
    pub firm_potential_bytes: Option<Bytes>,
    /// What of all jobs was in slow memory.
    pub slow_bytes: Spread,
    /// The mean share of all jobs' memory that was in far or slow memory, or would have been let go where it was only observed.
    pub cold_ratio: f64,
    /// The same by where it was.
    pub cold_ratio_by_tier: Cold<f64>,
    /// What slow memory for that share would save of the spending on DRAM, one per price asked for.
    pub spending: Vec<Saving>,
}

/// What one job needs.
#[derive(Clone, Debug, Serialize)]
pub struct JobPlan {
    /// Its cgroup, relative to the cgroup root.
    pub job: String,
    /// How often a cgroup of that name was made.
    pub starts: u64,
    /// Control periods in the journal.
    pub periods: u64,
    /// How many independent ones tell as much.
    pub independent_periods: u64,
    /// From the first to the last of them.
    pub span_seconds: f64,
    /// Whether there are too few periods to tell the risk.
    pub too_short: bool,
    /// Whether it had ended before the journal did.
    pub ended: bool,
    /// Periods in which it had reached its limit: it may have wanted more than it got.
    pub at_limit_periods: u64,
    /// DRAM that it would have taken without far memory.
    pub without_far_memory_bytes: Spread,
    /// What was charged to it, its compressed pool and what was in slow memory included: `memory.current`, which a limit is for.
    pub memory_bytes: Spread,
    /// Memory accessed within the minimum cold age.
    pub working_set_bytes: Spread,
    /// DRAM that it gave back in all but the accepted share of the periods.
    pub firm_saved_bytes: Bytes,
    /// What it would let go in all but the accepted share of the periods, if it were more than observed.
    pub firm_potential_bytes: Option<Bytes>,
    /// Promotions per minute as a share of the working set: exceeded in 1 % of the periods.
    pub promotion_rate_p99_ratio_per_min: Option<f64>,
    /// Share of time waited for memory, where it was measured: exceeded in 1 % of the periods.
    pub stall_p99_ratio: Option<f64>,
    /// Memory that covered it.
    pub covered_bytes: Bytes,
    /// The most that came back within the reaction time.
    pub burst_bytes: Bytes,
    /// How long the agent may take to answer what comes back.
    pub reaction_seconds: f64,
    /// The advice for `memory.max`, in whole MiB.
    pub recommended_limit_bytes: Bytes,
    /// Share of the periods in which it took more than that.
    pub risk_ratio: f64,
    /// Bound on that share for the time to come.
    pub risk_ratio_max: f64,
    /// What of it was in slow memory.
    pub slow_bytes: Spread,
    /// The mean share of its memory that was in far or slow memory, or would have been let go where it was only observed.
    pub cold_ratio: f64,
    /// The same by where it was.
    pub cold_ratio_by_tier: Cold<f64>,
    /// What slow memory for that share would save of the spending on DRAM, one per price asked for.
    pub spending: Vec<Saving>,
}

/// Why there is no advice.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// A journal cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// There is no journal at all.
    #[error("there is no journal in {0}; let `thermocline agent` run for a while, or name journal files")]
    NoJournal(PathBuf),
    /// Nobody was observed.
    #[error("no control period is in the journal; let `thermocline agent` run for a few more, --dry-run is enough")]
    NoPeriods,
    /// The pattern is none.
    #[error("{pattern:?} is no pattern of cgroups: {message}")]
    Pattern {
        /// As it was given.
        pattern: String,
        /// What is wrong with it.
        message: String,
    },
    /// No job matches.
    #[error("no job matches {pattern:?}; the journal has: {}", known.join(", "))]
    NoSuchJob {
        /// As it was given.
        pattern: String,
        /// The jobs that there are.
        known: Vec<String>,
    },
}

/// The advice from the journal that an agent keeps in `directory`.
///
/// # Errors
/// [`PlanError`].
pub fn of_directory(directory: &Path, options: &Options) -> Result<Plan, PlanError> {
    let files = lines::of_directory(directory)?;
    if files.is_empty() {
        return Err(PlanError::NoJournal(directory.to_owned()));
    }
    of_records(files.into_iter().flatten(), options)
}

/// The advice from journal files of one machine, in any order.
///
/// # Errors
/// [`PlanError`].
pub fn of_files(paths: &[PathBuf], options: &Options) -> Result<Plan, PlanError> {
    of_records(lines::of_files(paths)?.into_iter().flatten(), options)
}

fn of_records(records: impl Iterator<Item = Result<Record, ReadError>>, options: &Options) -> Result<Plan, PlanError> {
    let wanted = options.job.as_deref().map(matcher).transpose()?;
    let mut seen = Seen::default();
    for record in records {
        seen.take(record?);
    }
    seen.together.close();
    seen.advise(options, wanted.as_ref())
}

fn matcher(pattern: &str) -> Result<GlobMatcher, PlanError> {
    let built = GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).build();
    let glob = built.map_err(|error| PlanError::Pattern { pattern: pattern.to_owned(), message: error.kind().to_string() })?;
    Ok(glob.compile_matcher())
}

/// What the records so far add up to.
#[derive(Debug, Default)]
struct Seen {
    terms: Option<Terms>,
    jobs: BTreeMap<String, Account>,
    together: Together,
}

impl Seen {
    fn take(&mut self, record: Record) {
        match record {
            Record::Agent(agent) => {
                let page_size = units::PageSize::new(agent.page_bytes);
                self.terms =
                    page_size.map(|page_size| Terms { page_size, scan_period_ms: agent.scan_period_ms, thresholds: agent.thresholds });
            }
            Record::Job(job) => self.jobs.entry(job.job.clone()).or_default().begin(&job),
            Record::Pressure(period) => self.account(&period.job).pressure(&period),
            Record::Background(period) => self.account(&period.job).look(&period.memory),
            Record::Period(period) => {
                // A period before any agent's record, as an agent leaves it whose disk was full, has no units.
                let Some(terms) = self.terms else { return };
                let moment = self.account(&period.job).period(&period, &terms);
                self.together.add(&period.job, period.unix_ms, period.outcome.elapsed_ms, &moment);
            }
            // What is placed is in the memory of the job's other periods.
            Record::Slow(_) | Record::Event { .. } | Record::Tier(_) | Record::Writes(_) => {}
        }
    }

    fn account(&mut self, job: &str) -> &mut Account {
        if !self.jobs.contains_key(job) {
            self.jobs.insert(job.to_owned(), Account::default());
        }
        self.jobs.entry(job.to_owned()).or_default()
    }

    fn advise(self, options: &Options, wanted: Option<&GlobMatcher>) -> Result<Plan, PlanError> {
        let Self { together, mut jobs, .. } = self;
        jobs.retain(|_, account| account.memory.samples() > 0);
        if jobs.is_empty() {
            return Err(PlanError::NoPeriods);
        }
        let periods_min = 3_000_000u64.div_ceil(u64::from(options.risk.0).max(1));
        let advice = Advice { risk: options.risk, periods_min, tier_costs: &options.tier_costs };
        let known: Vec<String> = jobs.keys().cloned().collect();
        let matching = jobs.into_iter().filter(|(name, _)| wanted.is_none_or(|wanted| wanted.is_match(name)));
        let jobs: Vec<_> = matching.map(|(name, account)| advice.job(name, &account, together.last_began_at())).collect();
        if jobs.is_empty() {
            return Err(PlanError::NoSuchJob { pattern: options.job.clone().unwrap_or_default(), known });
        }
        Ok(Plan {
            accepted_risk_ratio: options.risk.as_f64(),
            confidence_ratio: CONFIDENCE,
            periods_min,
            machine: advice.machine(&together, options.dram),
            jobs,
        })
    }
}

/// How distributions become advice.
struct Advice<'a> {
    risk: RatioPpm,
    periods_min: u64,
    tier_costs: &'a [RatioPpm],
}

impl Advice<'_> {
    fn too_short(&self, distribution: &Distribution) -> bool {
        distribution.samples() < self.periods_min
    }

    /// How many periods may be on the wrong side of a level.
    fn allowed(&self, distribution: &Distribution) -> u64 {
        if self.too_short(distribution) { 0 } else { self.risk.share_of(distribution.samples()) }
    }

    fn firm(&self, distribution: &Distribution) -> Bytes {
        Bytes(distribution.missed_in(self.allowed(distribution)))
    }

    fn job(&self, job: String, seen: &Account, last_began_at: u64) -> JobPlan {
        let memory = &seen.memory;
        let covered = Bytes(memory.exceeded_in(self.allowed(memory)));
        let all_back = Bytes(seen.demand.max()).max(covered);
        let limit = whole_mib((covered + seen.burst.largest).min(all_back));
        let above = memory.above(limit.0);
        let ratio_of = |distribution: &Distribution| (distribution.samples() > 0).then(|| ratio(distribution.spread().p99, 1_000_000));
        JobPlan {
            job,
            starts: seen.starts,
            periods: memory.samples(),
            independent_periods: memory.independent(),
            span_seconds: seconds(seen.last_unix_ms.saturating_sub(seen.first_unix_ms.unwrap_or(0))),
            too_short: self.too_short(memory),
            ended: seen.last_unix_ms < last_began_at,
            at_limit_periods: seen.at_limit,
            without_far_memory_bytes: seen.demand.spread(),
            memory_bytes: memory.spread(),
            working_set_bytes: seen.working_set.spread(),
            firm_saved_bytes: self.firm(&seen.saved),
            firm_potential_bytes: (seen.potential.samples() > 0).then(|| self.firm(&seen.potential)),
            promotion_rate_p99_ratio_per_min: ratio_of(&seen.promotion_rate_ppm),
            stall_p99_ratio: ratio_of(&seen.stall_ppm),
            covered_bytes: covered,
            burst_bytes: seen.burst.largest,
            reaction_seconds: seconds(seen.burst.reaction_ms),
            recommended_limit_bytes: limit,
            risk_ratio: ratio(above, memory.samples()),
            risk_ratio_max: memory.share_max(above),
            slow_bytes: seen.slow.spread(),
            cold_ratio: seen.cold.ratio(),
            cold_ratio_by_tier: seen.cold.by_tier(),
            spending: seen.cold.savings(self.tier_costs),
        }
    }

    fn machine(&self, seen: &Together, dram: Option<Bytes>) -> MachinePlan {
        let saved = &seen.saved;
        let firm_saved = self.firm(saved);
        let below = saved.below(firm_saved.0);
        let promise = dram.map(|dram| dram + firm_saved);
        MachinePlan {
            periods: saved.samples(),
            independent_periods: saved.independent(),
            span_seconds: seconds(seen.last_unix_ms.saturating_sub(seen.first_unix_ms.unwrap_or(0))),
            too_short: self.too_short(saved),
            dram_bytes: dram,
            without_far_memory_bytes: seen.demand.spread(),
            memory_bytes: seen.memory.spread(),
            saved_bytes: saved.spread(),
            firm_saved_bytes: firm_saved,
            promise_bytes: promise,
            promise_ratio: promise.zip(dram).map(|(promise, dram)| ratio(promise.0, dram.0)),
            risk_ratio: ratio(below, saved.samples()),
            risk_ratio_max: saved.share_max(below),
            firm_potential_bytes: (seen.potential.samples() > 0).then(|| self.firm(&seen.potential)),
            slow_bytes: seen.slow.spread(),
            cold_ratio: seen.cold.ratio(),
            cold_ratio_by_tier: seen.cold.by_tier(),
            spending: seen.cold.savings(self.tier_costs),
        }
    }
}

/// Rounded up: what the kernel, systemd and people can all write down.
fn whole_mib(bytes: Bytes) -> Bytes {
    Bytes::mib(bytes.0.div_ceil(1 << 20))
}

#[expect(clippy::cast_precision_loss, reason = "shown to people")]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

fn seconds(ms: u64) -> f64 {
    Duration::from_millis(ms).as_secs_f64()
}

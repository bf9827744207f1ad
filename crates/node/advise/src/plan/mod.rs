//! Capacity advice from journals: a limit for each job, and the memory that the machine can promise.
//!
//! # Problem
//! An operator has to decide how much memory to grant. A percentile of the working set is no answer: it shows neither
//! the effect of such a limit on the job, nor its confidence. A journal has the data: how much DRAM each job used while
//! it lost no more than its objective allows.
//!
//! # Limits
//! The limit of a job is the DRAM that covered it in all but a given share of its periods (the risk), plus the largest
//! amount that was promoted from far memory within the agent's reaction time, because as much may be added before other
//! pages are offloaded. It does not exceed the job's memory without far memory, because then everything has been
//! promoted. It is rounded up to whole MiB. A job with fewer than 3 / risk periods gets a limit that covers all of
//! them: with fewer periods, even a limit that was never exceeded may be exceeded more often than the risk allows (the
//! rule of three).
//!
//! # Promise
//! A quota is DRAM plus slow memory, whose size is the estimate of idle memory (LPC talk, "memory overcommit model").
//! Here, that is the DRAM that all jobs together saved at the same time in all but the risk of the periods, without the
//! compressed pool, the agent, and jobs that had ended. Page cache counts as far as it can have been there: free DRAM
//! would have held it. Records before version 5 of the journal sum all that was ever reclaimed; of them, a job saved no
//! more than it shrank by.
//!
//! # Spending
//! Cold memory could be placed in slow memory, which costs less: see [`Saving`].
//!
//! # Properties
//! Each is tested: a limit covers the periods that it promises; a limit never decreases with the risk; bursts of
//! promotions add headroom; a short history is covered completely; savings count only at the same time; observed jobs
//! have a potential; a promise is bounded by the DRAM that was there.

mod account;
mod distribution;
mod machine;
mod spending;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use globset::{GlobBuilder, GlobMatcher};
use serde::Serialize;
use units::{Bytes, Millis, RatioPpm, UnixMillis};

use self::account::{Account, Terms};
use self::distribution::Distribution;
pub use self::distribution::{CONFIDENCE, Spread};
use self::machine::Together;
pub use self::spending::{Cold, Saving};
use agent::journal::{ReadError, Record, lines};

/// The version of the journal whose records hold page cache only while it is saved.
const SAVINGS_SINCE: u32 = 5;

/// Parameters of the advice.
#[derive(Clone, Debug)]
pub struct Options {
    /// Share of the periods in which a limit or a promise may be missed: above 0, below 100 %.
    pub risk: RatioPpm,
    /// Pattern of the jobs to advise on, as in the configuration. Advice for the machine always covers all jobs.
    pub job: Option<String>,
    /// DRAM of the machine; `None` to use what the journal holds.
    pub dram: Option<Bytes>,
    /// Possible prices of slow memory, as shares of DRAM's price.
    pub tier_costs: Vec<RatioPpm>,
}

/// The advice.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// The share of periods in which a limit or a promise may be missed, as a fraction of one.
    pub accepted_risk_ratio: f64,
    /// Confidence of the upper bound (`_max`) of each risk, as a fraction of one.
    pub confidence_ratio: f64,
    /// Number of periods that is required to estimate the risk.
    pub periods_min: u64,
    /// Jobs in the journal by the tracker of their page ages.
    pub jobs_by_tracker: BTreeMap<String, u64>,
    /// All jobs together.
    pub machine: MachinePlan,
    /// Each job, by name.
    pub jobs: Vec<JobPlan>,
}

impl Plan {
    /// Memory that may be promised to other work beside the machine's DRAM: what was saved, and no more than there is DRAM. Zero if the
    /// journal has too few periods to estimate the risk.
    #[must_use]
    pub fn spare_promise_bytes(&self) -> Bytes {
        let machine = &self.machine;
        let known = !machine.too_short && machine.independent_periods >= self.periods_min;
        machine.dram_bytes.filter(|_| known).map_or(Bytes::ZERO, |dram| machine.firm_saved_bytes.min(dram))
    }
}

/// Advice for the machine.
#[derive(Clone, Debug, Serialize)]
pub struct MachinePlan {
    /// Control periods in the journal.
    pub periods: u64,
    /// Number of independent periods with the same information.
    pub independent_periods: u64,
    /// Time from the first to the last of them.
    pub span_seconds: f64,
    /// Whether there are too few periods to estimate the risk.
    pub too_short: bool,
    /// DRAM of the machine, if known.
    pub dram_bytes: Option<Bytes>,
    /// DRAM that the jobs would have used without far memory.
    pub without_far_memory_bytes: Spread,
    /// DRAM that the jobs used.
    pub memory_bytes: Spread,
    /// DRAM that was saved.
    pub saved_bytes: Spread,
    /// DRAM that was saved in all but the accepted share of the periods.
    pub firm_saved_bytes: Bytes,
    /// Sum of DRAM and the firm saving: the memory that can be promised.
    pub promise_bytes: Option<Bytes>,
    /// The promise as a multiple of DRAM.
    pub promise_ratio: Option<f64>,
    /// Share of the periods in which less was saved than the firm saving.
    pub risk_ratio: f64,
    /// Upper bound of that share in the future.
    pub risk_ratio_max: f64,
    /// Memory that observed jobs could offload in all but the accepted share of the periods, not counting the
    /// compressed copies. Not part of the promise, because it was not tried.
    pub firm_potential_bytes: Option<Bytes>,
    /// Memory of all jobs in slow memory.
    pub slow_bytes: Spread,
    /// Mean share of all jobs' memory that was in far or slow memory, or that observed jobs could have offloaded.
    pub cold_ratio: f64,
    /// The same share by location.
    pub cold_ratio_by_tier: Cold<f64>,
    /// Savings of the spending on DRAM if that share were in slow memory, one for each price.
    pub spending: Vec<Saving>,
}

/// Advice for one job.
#[derive(Clone, Debug, Serialize)]
pub struct JobPlan {
    /// Cgroup of the job, relative to the cgroup root.
    pub job: String,
    /// The tracker of its page ages; empty if unknown.
    pub tracker: String,
    /// Periods of an observed job whose threshold is above the ages that the tracker distinguished. Its potential in them
    /// is unknown and not included.
    pub unresolved_periods: u64,
    /// Number of cgroups that were created with that name.
    pub starts: u64,
    /// Control periods in the journal.
    pub periods: u64,
    /// Number of independent periods with the same information.
    pub independent_periods: u64,
    /// Time from the first to the last of them.
    pub span_seconds: f64,
    /// Whether there are too few periods to estimate the risk.
    pub too_short: bool,
    /// Whether the job ended before the journal does.
    pub ended: bool,
    /// Periods in which the job was at its limit, so its demand may have been higher.
    pub at_limit_periods: u64,
    /// DRAM that the job would have used without far memory.
    pub without_far_memory_bytes: Spread,
    /// Memory charged to the job (`memory.current`, to which a limit applies), including its compressed pool and slow
    /// memory.
    pub memory_bytes: Spread,
    /// Memory accessed within the minimum cold age.
    pub working_set_bytes: Spread,
    /// DRAM that the job saved in all but the accepted share of the periods.
    pub firm_saved_bytes: Bytes,
    /// Memory that an observed job could offload in all but the accepted share of the periods.
    pub firm_potential_bytes: Option<Bytes>,
    /// Promotions per minute as a share of the working set, exceeded in 1 % of the periods.
    pub promotion_rate_p99_ratio_per_min: Option<f64>,
    /// Share of time stalled on memory, exceeded in 1 % of the periods; `None` if not measured.
    pub stall_p99_ratio: Option<f64>,
    /// Memory that covered all but the accepted share of the periods.
    pub covered_bytes: Bytes,
    /// Largest amount promoted within the reaction time.
    pub burst_bytes: Bytes,
    /// Time within which the agent reacts to promotions.
    pub reaction_seconds: f64,
    /// The advice for `memory.max`, in whole MiB.
    pub recommended_limit_bytes: Bytes,
    /// Share of the periods in which the job used more than that.
    pub risk_ratio: f64,
    /// Upper bound of that share in the future.
    pub risk_ratio_max: f64,
    /// Memory of the job in slow memory.
    pub slow_bytes: Spread,
    /// Mean share of its memory that was in far or slow memory, or that could have been offloaded if it was only
    /// observed.
    pub cold_ratio: f64,
    /// The same share by location.
    pub cold_ratio_by_tier: Cold<f64>,
    /// Savings of the spending on DRAM if that share were in slow memory, one for each price.
    pub spending: Vec<Saving>,
}

/// Reasons why there is no advice.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// A journal cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// There is no journal.
    #[error("there is no journal in {0}; let `thermocline agent` run for a while, or name journal files")]
    NoJournal(PathBuf),
    /// The journal has no control period.
    #[error("the journal contains no control period; let `thermocline agent` run longer, with --dry-run if desired")]
    NoPeriods,
    /// The pattern is invalid.
    #[error("invalid cgroup pattern {pattern:?}: {message}")]
    Pattern {
        /// The pattern as given.
        pattern: String,
        /// The error in it.
        message: String,
    },
    /// No job matches.
    #[error("no job matches {pattern:?}; the journal has: {}", known.join(", "))]
    NoSuchJob {
        /// The pattern as given.
        pattern: String,
        /// The jobs in the journal.
        known: Vec<String>,
    },
}

/// Computes advice from the journal that an agent keeps in `directory`.
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

/// Computes advice from journal files of one machine, in any order.
///
/// # Errors
/// [`PlanError`].
pub fn of_files(paths: &[PathBuf], options: &Options) -> Result<Plan, PlanError> {
    of_records(lines::of_files(paths)?.into_iter().flatten(), options)
}

fn of_records(records: impl Iterator<Item = Result<Record, ReadError>>, options: &Options) -> Result<Plan, PlanError> {
    let pattern = options.job.as_deref().map(matcher).transpose()?;
    let mut totals = Totals::default();
    totals.together.dram = options.dram;
    for record in records {
        totals.add(record?);
    }
    totals.together.close();
    totals.advise(options, pattern.as_ref())
}

fn matcher(pattern: &str) -> Result<GlobMatcher, PlanError> {
    let built = GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).build();
    let glob = built.map_err(|error| PlanError::Pattern { pattern: pattern.to_owned(), message: error.kind().to_string() })?;
    Ok(glob.compile_matcher())
}

/// Sums over the records so far.
#[derive(Debug, Default)]
struct Totals {
    terms: Option<Terms>,
    /// Whether the current records sum all page cache ever reclaimed.
    sums_file: bool,
    jobs: BTreeMap<String, Account>,
    together: Together,
}

impl Totals {
    fn add(&mut self, record: Record) {
        match record {
            Record::Agent(agent) => {
                self.sums_file = agent.version < SAVINGS_SINCE;
                let page_size = units::PageSize::new(agent.page_bytes);
                self.terms =
                    page_size.map(|page_size| Terms { page_size, scan_period_ms: agent.scan_period_ms, thresholds: agent.thresholds });
            }
            Record::Job(job) => self.jobs.entry(job.job.clone()).or_default().begin(&job),
            Record::Pressure(period) => self.account(&period.job).pressure(&period),
            Record::Background(period) => self.account(&period.job).sample(&period.memory),
            Record::Period(period) => {
                // A period before any agent's record has no units. An agent leaves such a journal if its disk was full.
                let Some(terms) = self.terms else { return };
                let moment = self.account(&period.job).period(&period, &terms);
                self.together.add(&period.job, period.unix_ms, period.outcome.elapsed_ms, &moment);
            }
            Record::Savings(record) => self.together.ledger(&record),
            // The memory records of the job's other periods include placed memory.
            Record::Slow(_) | Record::PageCache(_) | Record::Event { .. } | Record::Tier(_) | Record::Writeback(_) | Record::Writes(_) => {}
        }
    }

    fn account(&mut self, job: &str) -> &mut Account {
        if !self.jobs.contains_key(job) {
            self.jobs.insert(job.to_owned(), Account::default());
        }
        let account = self.jobs.entry(job.to_owned()).or_default();
        account.sums_file = self.sums_file;
        account
    }

    fn advise(self, options: &Options, pattern: Option<&GlobMatcher>) -> Result<Plan, PlanError> {
        let Self { together, mut jobs, .. } = self;
        jobs.retain(|_, account| account.memory.samples() > 0);
        if jobs.is_empty() {
            return Err(PlanError::NoPeriods);
        }
        let periods_min = 3_000_000u64.div_ceil(u64::from(options.risk.0).max(1));
        let advice = Advice { risk: options.risk, periods_min, tier_costs: &options.tier_costs };
        let mut jobs_by_tracker = BTreeMap::new();
        jobs.values().for_each(|account| *jobs_by_tracker.entry(account.tracker.clone()).or_default() += 1);
        let known: Vec<String> = jobs.keys().cloned().collect();
        let matching = jobs.into_iter().filter(|(name, _)| pattern.is_none_or(|pattern| pattern.is_match(name)));
        let jobs: Vec<_> = matching.map(|(name, account)| advice.job(name, &account, together.last_began_at())).collect();
        if jobs.is_empty() {
            return Err(PlanError::NoSuchJob { pattern: options.job.clone().unwrap_or_default(), known });
        }
        Ok(Plan {
            accepted_risk_ratio: options.risk.as_f64(),
            confidence_ratio: CONFIDENCE,
            periods_min,
            jobs_by_tracker,
            machine: advice.machine(&together, together.dram),
            jobs,
        })
    }
}

/// Derives advice from distributions.
struct Advice<'a> {
    risk: RatioPpm,
    periods_min: u64,
    tier_costs: &'a [RatioPpm],
}

impl Advice<'_> {
    fn too_short(&self, distribution: &Distribution) -> bool {
        distribution.samples() < self.periods_min
    }

    /// Number of periods that may be on the wrong side of a level.
    fn allowed(&self, distribution: &Distribution) -> u64 {
        if self.too_short(distribution) { 0 } else { self.risk.share_of(distribution.samples()) }
    }

    fn firm(&self, distribution: &Distribution) -> Bytes {
        Bytes(distribution.missed_in(self.allowed(distribution)))
    }

    fn job(&self, job: String, account: &Account, last_began_at: UnixMillis) -> JobPlan {
        let memory = &account.memory;
        let covered = Bytes(memory.exceeded_in(self.allowed(memory)));
        let all_promoted = Bytes(account.demand.max()).max(covered);
        let limit = whole_mib((covered + account.burst.largest).min(all_promoted));
        let above = memory.above(limit.0);
        let ratio_of = |distribution: &Distribution| (distribution.samples() > 0).then(|| ratio(distribution.spread().p99, 1_000_000));
        JobPlan {
            job,
            tracker: account.tracker.clone(),
            unresolved_periods: account.unresolved,
            starts: account.starts,
            periods: memory.samples(),
            independent_periods: memory.independent(),
            span_seconds: seconds(account.last_unix_ms.since(account.first_unix_ms.unwrap_or(UnixMillis::EPOCH))),
            too_short: self.too_short(memory),
            ended: account.last_unix_ms < last_began_at,
            at_limit_periods: account.at_limit,
            without_far_memory_bytes: account.demand.spread(),
            memory_bytes: memory.spread(),
            working_set_bytes: account.working_set.spread(),
            firm_saved_bytes: self.firm(&account.saved),
            firm_potential_bytes: (account.potential.samples() > 0).then(|| self.firm(&account.potential)),
            promotion_rate_p99_ratio_per_min: ratio_of(&account.promotion_rate_ppm),
            stall_p99_ratio: ratio_of(&account.stall_ppm),
            covered_bytes: covered,
            burst_bytes: account.burst.largest,
            reaction_seconds: seconds(account.burst.reaction_ms),
            recommended_limit_bytes: limit,
            risk_ratio: ratio(above, memory.samples()),
            risk_ratio_max: memory.share_max(above),
            slow_bytes: account.slow.spread(),
            cold_ratio: account.cold.ratio(),
            cold_ratio_by_tier: account.cold.by_tier(),
            spending: account.cold.savings(self.tier_costs),
        }
    }

    fn machine(&self, together: &Together, dram: Option<Bytes>) -> MachinePlan {
        let saved = &together.saved;
        let firm_saved = self.firm(saved);
        let below = saved.below(firm_saved.0);
        let promise = dram.map(|dram| dram + firm_saved);
        MachinePlan {
            periods: saved.samples(),
            independent_periods: saved.independent(),
            span_seconds: seconds(together.last_unix_ms.since(together.first_unix_ms.unwrap_or(UnixMillis::EPOCH))),
            too_short: self.too_short(saved),
            dram_bytes: dram,
            without_far_memory_bytes: together.demand.spread(),
            memory_bytes: together.memory.spread(),
            saved_bytes: saved.spread(),
            firm_saved_bytes: firm_saved,
            promise_bytes: promise,
            promise_ratio: promise.zip(dram).map(|(promise, dram)| ratio(promise.0, dram.0)),
            risk_ratio: ratio(below, saved.samples()),
            risk_ratio_max: saved.share_max(below),
            firm_potential_bytes: (together.potential.samples() > 0).then(|| self.firm(&together.potential)),
            slow_bytes: together.slow.spread(),
            cold_ratio: together.cold.ratio(),
            cold_ratio_by_tier: together.cold.by_tier(),
            spending: together.cold.savings(self.tier_costs),
        }
    }
}

/// Rounds up to whole MiB, which the kernel, systemd and humans can all write.
fn whole_mib(bytes: Bytes) -> Bytes {
    Bytes::mib(bytes.0.div_ceil(1 << 20))
}

#[expect(clippy::cast_precision_loss, reason = "printed with few digits")]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

fn seconds(time: Millis) -> f64 {
    time.to_duration().as_secs_f64()
}

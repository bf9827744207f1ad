//! The lines of a journal: one record each.

use config::{Class, Policy};
use policy::cold_age;
use policy::thresholds::Thresholds;
use serde::{Deserialize, Serialize};
use units::{Bytes, Millis, RatioPpm, UnixMillis};

use crate::controllers::background::record::{BackgroundRecord, BackgroundStart};
use crate::controllers::cold_age::record::{PeriodRecord, Start};
use crate::controllers::page_cache::record::{PageCacheRecord, PageCacheStart};
use crate::controllers::pressure::record::{PressureRecord, PressureStart};
use crate::controllers::replay::{Replay, Stateless};
use crate::controllers::slowdown::record::SlowRecord;
use crate::controllers::tiering::decide::{TierRecord, TieringStart};
use crate::controllers::tiering::endurance::{EnduranceStart, WritesRecord};
use crate::controllers::writeback::record::{WritebackRecord, WritebackStart};
use crate::savings::Ledger;

/// The version of the records below. A reader refuses newer versions and accepts all older ones.
///
/// Version 2 added pressure-driven offloading and background jobs, version 3 slow memory nodes, version 4 the choice of a
/// tier and the write budgets, version 5 the ledger of savings, version 6 tiers as rows, version 7 page cache under policy
/// `cold_age`, version 8 what goes on from zswap to the device.
pub const VERSION: u32 = 8;

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case")]
pub enum Record {
    /// An agent starts, or continues in a new file or with other parameters.
    Agent(AgentRecord),
    /// A job's controllers start, or continue after a restart, in a new file or with other parameters.
    Job(Box<JobRecord>),
    /// One period of a job's `cold_age` controller.
    Period(Box<PeriodRecord>),
    /// One period of a job's `pressure` controller.
    Pressure(Box<PressureRecord>),
    /// One period of a job's `page_cache` controller.
    PageCache(Box<PageCacheRecord>),
    /// One period of a job's `background` controller.
    Background(Box<BackgroundRecord>),
    /// One period of a job's `slowdown` controller.
    Slow(Box<SlowRecord>),
    /// One choice of a job's tier.
    Tier(Box<TierRecord>),
    /// One period of a job's `writeback` controller.
    Writeback(Box<WritebackRecord>),
    /// What may be written to the machine's swap devices.
    Writes(Box<WritesRecord>),
    /// The machine's savings in one control period.
    Savings(Box<SavingsRecord>),
    /// Something that is not a controller's decision.
    Event {
        /// Milliseconds since the epoch.
        unix_ms: UnixMillis,
        /// The job concerned; `None` if it concerns the machine or the agent.
        job: Option<String>,
        /// What happened, in words.
        what: String,
    },
}

/// What all periods of a file have in common.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentRecord {
    /// [`VERSION`] at the time of writing.
    pub version: u32,
    /// Milliseconds since the epoch.
    pub unix_ms: UnixMillis,
    /// The kernel's boot id: monotonic times of different boots cannot be compared.
    pub boot_id: String,
    /// The kernel's release, as `uname -r` prints it.
    pub kernel: String,
    /// Bytes per page.
    pub page_bytes: u64,
    /// Milliseconds from scan to scan; ages count these.
    pub scan_period_ms: Millis,
    /// The thresholds of all histograms.
    pub thresholds: Thresholds,
    /// The version of the parameter bundle in effect; 0 for the configuration file.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub bundle: u64,
    /// The machine's write budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writes: Option<EnduranceStart>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The machine's savings in one control period. Written after the periods of all jobs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavingsRecord {
    /// Milliseconds since the epoch.
    pub unix_ms: UnixMillis,
    /// DRAM of the machine.
    pub dram_bytes: Bytes,
    /// The ledger.
    #[serde(flatten)]
    pub ledger: Ledger,
}

/// What a job's controllers start from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobRecord {
    /// Milliseconds since the epoch.
    pub unix_ms: UnixMillis,
    /// The job's cgroup, relative to the cgroup root.
    pub job: String,
    /// The kernel's id of that cgroup: a recreated directory is another job.
    pub id: u64,
    /// The class that the operator gave it.
    pub class: Class,
    /// The tracker that measures its page ages.
    pub tracker: String,
    /// Parameters of its `cold_age` controller.
    pub params: cold_age::Params,
    /// State of its `cold_age` controller before the next period.
    pub state: cold_age::State,
    /// The policy that decides for it.
    #[serde(default = "policy_of_version_1", skip_serializing_if = "is_policy_of_version_1")]
    pub policy: Policy,
    /// Its `pressure` controller, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pressure: Option<PressureStart>,
    /// Its `page_cache` controller, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_cache: Option<PageCacheStart>,
    /// Its `background` controller, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub background: Option<BackgroundStart>,
    /// Its tiering controller. Records before version 4 have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tiering: Option<TieringStart>,
    /// Its `writeback` controller, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writeback: Option<WritebackStart>,
}

impl JobRecord {
    /// A record of a job whose controllers have not started yet.
    #[must_use]
    pub fn new(unix_ms: UnixMillis, job: &str, id: u64, class: Class, tracker: &str) -> Self {
        Self {
            unix_ms,
            job: job.to_owned(),
            id,
            class,
            tracker: tracker.to_owned(),
            params: cold_age::Params::new(RatioPpm(0), RatioPpm(0), Millis(0)),
            state: cold_age::State::default(),
            policy: Policy::ColdAge,
            pressure: None,
            page_cache: None,
            background: None,
            tiering: None,
            writeback: None,
        }
    }
}

/// The only policy of version 1.
fn policy_of_version_1() -> Policy {
    Policy::ColdAge
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_policy_of_version_1(policy: &Policy) -> bool {
    *policy == policy_of_version_1()
}

impl Record {
    /// When the record was written, in milliseconds since the epoch.
    #[must_use]
    pub fn unix_ms(&self) -> UnixMillis {
        match self {
            Self::Agent(record) => record.unix_ms,
            Self::Job(record) => record.unix_ms,
            Self::Period(record) => record.unix_ms,
            Self::Pressure(record) => record.unix_ms,
            Self::PageCache(record) => record.unix_ms,
            Self::Background(record) => record.unix_ms,
            Self::Slow(record) => record.unix_ms,
            Self::Tier(record) => record.unix_ms,
            Self::Writeback(record) => record.unix_ms,
            Self::Writes(record) => record.unix_ms,
            Self::Savings(record) => record.unix_ms,
            Self::Event { unix_ms, .. } => *unix_ms,
        }
    }

    /// The controller that made the decision, and the job and cgroup id that it is about; `None` if the record is not a
    /// decision. A decision about the machine has an empty job.
    #[must_use]
    pub fn decision(&self) -> Option<(&'static str, &str, u64)> {
        Some(match self {
            Self::Period(record) => ("cold_age", &record.job, record.id),
            Self::Pressure(record) => ("pressure", &record.job, record.id),
            Self::PageCache(record) => ("page_cache", &record.job, record.id),
            Self::Background(record) => ("background", &record.job, record.id),
            Self::Slow(record) => ("slowdown", &record.job, record.id),
            Self::Tier(record) => ("tiering", &record.job, record.id),
            Self::Writeback(record) => ("writeback", &record.job, record.id),
            Self::Writes(_) => ("endurance", "", 0),
            Self::Agent(_) | Self::Job(_) | Self::Savings(_) | Self::Event { .. } => return None,
        })
    }

    /// Repeats a decision with the agent's and the job's recorded parameters and state, and keeps the resulting state there.
    /// Returns whether it is the recorded decision; `None` if its controller's start is not recorded.
    pub fn replay(&self, agent: &mut AgentRecord, job: Option<&mut JobRecord>) -> Option<bool> {
        let thresholds = agent.thresholds;
        match self {
            Self::Writes(record) => Some(agent.writes.as_mut()?.replay(record, &thresholds)),
            Self::Slow(record) => Some(Stateless::new().replay(record, &thresholds)),
            Self::Period(record) => {
                let job = job?;
                let mut start = Start { params: job.params, state: job.state };
                let same = start.replay(record, &thresholds);
                job.state = start.state;
                Some(same)
            }
            Self::Pressure(record) => Some(job?.pressure.as_mut()?.replay(record, &thresholds)),
            Self::PageCache(record) => Some(job?.page_cache.as_mut()?.replay(record, &thresholds)),
            Self::Background(record) => Some(job?.background.as_mut()?.replay(record, &thresholds)),
            Self::Writeback(record) => Some(job?.writeback.as_mut()?.replay(record, &thresholds)),
            Self::Tier(record) => Some(job?.tiering.as_mut()?.replay(record, &thresholds)),
            Self::Agent(_) | Self::Job(_) | Self::Savings(_) | Self::Event { .. } => None,
        }
    }
}

macro_rules! into_record {
    ($($type:ty => $variant:ident),*) => {
        $(impl From<$type> for Record {
            fn from(record: $type) -> Self {
                Self::$variant(Box::new(record))
            }
        })*
    };
}

into_record! {
    JobRecord => Job, PeriodRecord => Period, PressureRecord => Pressure, PageCacheRecord => PageCache, BackgroundRecord => Background, SlowRecord => Slow,
    TierRecord => Tier, WritebackRecord => Writeback, WritesRecord => Writes, SavingsRecord => Savings
}

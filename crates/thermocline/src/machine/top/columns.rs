//! The columns that tables can be ordered by.

use std::cmp::Ordering;

use pool_host::host::Line as Guest;

use super::view::Job;

/// The column that orders the table of jobs; all but the name from the largest down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobColumn {
    Job,
    Memory,
    Cold,
    Far,
    Saved,
    Older,
    Promotions,
    Stall,
}

impl JobColumn {
    pub(super) const ALL: [Self; 8] =
        [Self::Job, Self::Memory, Self::Cold, Self::Far, Self::Saved, Self::Older, Self::Promotions, Self::Stall];

    pub(super) fn compare(self, a: &Job, b: &Job) -> Ordering {
        let known = |a: Option<f64>, b: Option<f64>| b.unwrap_or(-1.0).total_cmp(&a.unwrap_or(-1.0));
        match self {
            Self::Job => a.job.cmp(&b.job),
            Self::Memory => b.memory_bytes.cmp(&a.memory_bytes),
            Self::Cold => b.cold_bytes.cmp(&a.cold_bytes),
            Self::Far => b.far_bytes.cmp(&a.far_bytes),
            Self::Saved => b.saved_bytes.cmp(&a.saved_bytes),
            Self::Older => known(a.threshold_seconds, b.threshold_seconds),
            Self::Promotions => known(a.promotion_rate_ratio_per_min, b.promotion_rate_ratio_per_min),
            Self::Stall => known(a.stall_ratio, b.stall_ratio),
        }
    }
}

/// The same for the guests of a pool host; all but the name from the largest down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GuestColumn {
    Guest,
    Cores,
    Local,
    Pool,
    Slices,
    Touched,
    Accessed,
}

impl GuestColumn {
    pub(super) const ALL: [Self; 7] = [Self::Guest, Self::Cores, Self::Local, Self::Pool, Self::Slices, Self::Touched, Self::Accessed];

    pub(super) fn compare(self, a: &Guest, b: &Guest) -> Ordering {
        match self {
            Self::Guest => a.name.cmp(&b.name),
            Self::Cores => b.cores.cmp(&a.cores),
            Self::Local => b.local_bytes.cmp(&a.local_bytes),
            Self::Pool => b.pool_bytes.cmp(&a.pool_bytes),
            Self::Slices => b.slices.cmp(&a.slices),
            Self::Touched => b.pool_touched_bytes.cmp(&a.pool_touched_bytes),
            Self::Accessed => b.pool_accessed_ratio.unwrap_or(-1.0).total_cmp(&a.pool_accessed_ratio.unwrap_or(-1.0)),
        }
    }
}

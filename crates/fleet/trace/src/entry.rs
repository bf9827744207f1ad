//! Entries of a trace: what one job did in about five minutes.

use policy::thresholds::Thresholds;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash64;
use units::{Bytes, Millis, Pages, RatioPpm, UnixMillis};

/// The basis of a file's histograms. All entries of a file share it: histograms of different scans cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Basis {
    /// Cold ages that separate the buckets, in scans.
    pub thresholds: Thresholds,
    /// Time between two scans.
    pub scan_period_ms: Millis,
    /// Size of a page.
    pub page_bytes: Bytes,
}

impl Basis {
    /// Returns the counters of one histogram: one more than thresholds ([`policy::histogram::Histogram`]).
    #[must_use]
    pub fn buckets(&self) -> usize {
        self.thresholds.len() + 1
    }
}

impl std::fmt::Display for Basis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (count, first, last) = (self.thresholds.len(), self.thresholds.minimum_cold_age().0, self.thresholds.as_slice().last());
        let last = last.map_or(0, |age| age.0);
        write!(
            f,
            "{count} thresholds from {first} to {last} scans, a scan period of {} ms and pages of {} bytes",
            self.scan_period_ms.0, self.page_bytes.0
        )
    }
}

/// Identity of a job. Files are sorted by it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobId {
    /// The cluster that the machine belongs to.
    pub cluster: String,
    /// The machine.
    pub machine: String,
    /// The job: its cgroup relative to the cgroup root.
    pub job: String,
    /// A non-negative number per job and lifetime: it changes when the cgroup is recreated or the machine reboots
    /// ([`JobId::key`]).
    pub job_key: i64,
}

impl JobId {
    /// Builds a job's identity. `boot_id` is the kernel's; `cgroup_id` is the kernel's id of the cgroup in that boot.
    #[must_use]
    pub fn new(cluster: &str, machine: &str, job: &str, boot_id: &str, cgroup_id: u64) -> Self {
        let job_key = Self::key(cluster, machine, job, boot_id, cgroup_id);
        Self { cluster: cluster.to_owned(), machine: machine.to_owned(), job: job.to_owned(), job_key }
    }

    /// Returns 63 bits of xxHash64 over everything that identifies one lifetime of a job. In a fleet of a million jobs
    /// that restart every day, two jobs of one year have the same key with a probability of `(3.65e8)^2 / 2^64`, 0.7 %;
    /// their names still distinguish them.
    fn key(cluster: &str, machine: &str, job: &str, boot_id: &str, cgroup_id: u64) -> i64 {
        let text = [cluster, machine, job, boot_id, &cgroup_id.to_string()].join("\0");
        i64::try_from(XxHash64::oneshot(0, text.as_bytes()) >> 1).unwrap_or(i64::MAX)
    }
}

/// Class, policy, tracker and last decision of a job. Each has few distinct values, which a file stores once.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Labels {
    /// Class of the job.
    pub class: String,
    /// Policy that decides for the job.
    pub policy: String,
    /// Tracker that observes its accesses.
    pub tracker: String,
    /// Last decision about its cold pages: `offload`, or the reason for holding.
    pub decision: String,
}

/// A column of numbers: its name, which ends in its unit, and its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure {
    /// Name in the file and in JSON.
    pub name: &'static str,
    /// First version of the schema that has the column. In older files it reads as zero.
    pub since: u32,
    /// Meaning, in a sentence.
    pub meaning: &'static str,
}

/// A number of a column, in the column's unit.
trait Column {
    /// Returns the value of a number. Saturates if its type has fewer bits.
    fn from_u64(number: u64) -> Self;

    /// Returns the number.
    fn to_u64(self) -> u64;
}

impl Column for u64 {
    fn from_u64(number: u64) -> Self {
        number
    }

    fn to_u64(self) -> u64 {
        self
    }
}

impl Column for RatioPpm {
    fn from_u64(number: u64) -> Self {
        Self(u32::try_from(number).unwrap_or(u32::MAX))
    }

    fn to_u64(self) -> u64 {
        u64::from(self.0)
    }
}

macro_rules! columns {
    ($($unit:ident)*) => {$(
        impl Column for $unit {
            fn from_u64(number: u64) -> Self {
                Self(number)
            }

            fn to_u64(self) -> u64 {
                self.0
            }
        }
    )*};
}

columns! { Bytes Pages Millis UnixMillis }

macro_rules! figures {
    ($($name:ident: $unit:ty, since $since:literal: $meaning:literal;)*) => {
        /// All columns of numbers except the histograms, in the order of the file.
        pub const FIGURES: &[Figure] = &[$(Figure { name: stringify!($name), since: $since, meaning: $meaning },)*];

        /// The numbers of an entry. Levels are means over its control periods, rounded down; counts are sums.
        ///
        /// An entry that an older agent left in its spool lacks newer numbers: they are zero.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Figures {
            $(#[doc = $meaning] pub $name: $unit,)*
        }

        impl Figures {
            /// Returns the numbers in the order of [`FIGURES`].
            #[must_use]
            pub fn to_array(&self) -> [u64; FIGURES.len()] {
                [$(self.$name.to_u64(),)*]
            }

            /// Builds the numbers from an array in the order of [`FIGURES`].
            #[must_use]
            pub fn from_array(array: [u64; FIGURES.len()]) -> Self {
                let [$($name,)*] = array;
                Self { $($name: Column::from_u64($name),)* }
            }
        }
    };
}

figures! {
    start_unix_ms: UnixMillis, since 1: "Start of the entry, in milliseconds since the epoch.";
    duration_ms: Millis, since 1: "Duration of its control periods together. It may be less than the time to the next entry.";
    periods: u64, since 1: "Control periods summed.";
    job_age_ms: Millis, since 1: "How long the job had been observed at the end of the entry.";
    window_ms: Millis, since 1: "Milliseconds of accesses that the promotion histogram covers: those of the scans that ended in the entry.";
    working_set_bytes: Bytes, since 1: "Memory accessed within the minimum cold age. A mean.";
    memory_bytes: Bytes, since 1: "Memory charged to the job (memory.current), including its share of the zswap pool. A mean.";
    zswap_stored_bytes: Bytes, since 1: "Memory of the job in zswap and on zram devices, before compression. A mean.";
    zswap_pool_bytes: Bytes, since 1: "DRAM that zswap and zram devices take for it, with its share of the allocator's pages. A mean.";
    swap_bytes: Bytes, since 1: "Memory of the job on swap devices other than zram. A mean.";
    slow_node_bytes: Bytes, since 2: "Memory of the job on slow memory nodes. It stays charged to the job. A mean.";
    file_out_bytes: Bytes, since 1: "Page cache reclaimed from the job that the kernel would still hold. A mean.";
    sampled_compressed_ppm: RatioPpm, since 1: "Compressed size of its sampled cold pages, in millionths of their size; 0 if none was sampled.";
    bundle_version: u64, since 3: "Version of the parameter bundle in effect on the machine; 0 for its configuration file.";
    asked_pages: Pages, since 1: "Pages that the kernel was asked to offload.";
    offloaded_pages: Pages, since 1: "Pages moved to far memory.";
    promoted_pages: Pages, since 1: "Pages returned from far memory: actual promotions.";
    memory_stall_us: u64, since 1: "Microseconds in which some task waited for memory (memory.pressure); 0 if the kernel has no such file.";
    io_stall_us: u64, since 1: "Microseconds in which some task waited for I/O (io.pressure); 0 if the kernel has no such file.";
    threshold_scans: u64, since 1: "Threshold of the last decision, in scans; 0 if no threshold met the objective.";
    held_periods: u64, since 1: "Control periods in which the decision was to offload nothing.";
    far_periods: u64, since 1: "Control periods in which the job had far memory or promotions. Far memory was on if this is not 0.";
    oom_kills: u64, since 3: "Processes of the job killed by the out-of-memory killer (memory.events); 0 if the kernel has no such counter.";
    agent_start_unix_ms: UnixMillis, since 3: "Start time of the agent that wrote the entry: another value means a restart. 0 if unknown.";
    resolved_to_scans: u64, since 4: "Oldest age that the tracker distinguished from older ones, in scans: the lowest of the entry's scans. Histograms say nothing about thresholds above it. 0 if unknown.";
    sampled_pages: Pages, since 4: "Resident pages of the sample that the histograms are estimated from; 0 if all pages were counted. A mean.";
    lost_us: u64, since 5: "Microseconds of the job's tasks that were lost to far memory: swap-ins, devices, the faults around them, own reclaim, a slow node. 0 unless measured.";
    own_work_us: u64, since 5: "Microseconds of CPU time of the job's own work, in the periods in which lost_us was measured: lost_us as a share of it is the slowdown. 0 unless measured.";
    offload_cpu_us: u64, since 5: "Microseconds of CPU time that the agent used to move memory of the job out, compression included.";
}

/// What one job did in one interval of time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The job.
    #[serde(flatten)]
    pub id: JobId,
    /// Its class, policy, tracker and decision.
    #[serde(flatten)]
    pub labels: Labels,
    /// Its numbers.
    #[serde(flatten)]
    pub figures: Figures,
    /// Pages by age, resident and far: [`Basis::buckets`] counters. A mean.
    pub cold_pages: Vec<u64>,
    /// Accesses by the page's age at the access, each page once per scan: [`Basis::buckets`] counters.
    pub promotions_pages: Vec<u64>,
}

impl Entry {
    /// Returns the key that files are sorted by.
    #[must_use]
    pub fn order(&self) -> (&JobId, UnixMillis) {
        (&self.id, self.figures.start_unix_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recreated_job_has_another_key() {
        let id = JobId::new("a", "m", "/j", "boot", 7);
        assert!(id.job_key >= 0);
        assert_eq!(id, JobId::new("a", "m", "/j", "boot", 7));
        for other in [JobId::new("a", "m", "/j", "boot", 8), JobId::new("a", "m", "/j", "tooB", 7), JobId::new("am", "", "/j", "boot", 7)] {
            assert_ne!(id.job_key, other.job_key, "{other:?}");
        }
    }

    #[test]
    fn figures_keep_the_order_of_the_columns() {
        let array = std::array::from_fn(|i| i as u64);
        assert_eq!(Figures::from_array(array).to_array(), array);
        assert_eq!(Figures::from_array(array).far_periods, 21);
        assert_eq!(FIGURES[0].name, "start_unix_ms");
    }
}

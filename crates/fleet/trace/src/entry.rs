//! What a trace is made of: an entry says what one job did in five minutes or so.

use policy::thresholds::Thresholds;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash64;

/// What the histograms of a file stand for. All entries of a file share it: numbers of different scans cannot be
/// added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Basis {
    /// The cold ages that part the buckets, in scans.
    pub thresholds: Thresholds,
    /// Milliseconds from scan to scan.
    pub scan_period_ms: u64,
    /// Bytes per page.
    pub page_bytes: u64,
}

impl Basis {
    /// Counters of one histogram: one more than there are thresholds ([`policy::histogram::Histogram`]).
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
            "{count} thresholds from {first} to {last} scans, {} ms from scan to scan, {} bytes per page",
            self.scan_period_ms, self.page_bytes
        )
    }
}

/// Whose entries these are. Its order is the order of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobId {
    /// The cluster that the machine belongs to.
    pub cluster: String,
    /// The machine.
    pub machine: String,
    /// The job: its cgroup relative to the cgroup root.
    pub job: String,
    /// One number per job and life of it, never negative: a cgroup made anew, or a machine booted anew, has another
    /// ([`JobId::key`]).
    pub job_key: i64,
}

impl JobId {
    /// A job's identity. `boot_id` is the kernel's, `cgroup_id` the number that the kernel gave the cgroup in that boot.
    #[must_use]
    pub fn new(cluster: &str, machine: &str, job: &str, boot_id: &str, cgroup_id: u64) -> Self {
        let job_key = Self::key(cluster, machine, job, boot_id, cgroup_id);
        Self { cluster: cluster.to_owned(), machine: machine.to_owned(), job: job.to_owned(), job_key }
    }

    /// 63 bits of xxHash64 over all that tells one life of a job from another. In a fleet of a million jobs that start
    /// anew each day, two of one year have the same with a chance of `(3.65e8)^2 / 2^64`, 0.7 %; where it
    /// happens, the names still tell them apart.
    fn key(cluster: &str, machine: &str, job: &str, boot_id: &str, cgroup_id: u64) -> i64 {
        let text = [cluster, machine, job, boot_id, &cgroup_id.to_string()].join("\0");
        i64::try_from(XxHash64::oneshot(0, text.as_bytes()) >> 1).unwrap_or(i64::MAX)
    }
}

/// How a job was treated, and what was last decided: words of a small vocabulary each, which a file stores once.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Labels {
    /// Its class.
    pub class: String,
    /// What decides for it.
    pub policy: String,
    /// What observes its accesses.
    pub tracker: String,
    /// The last decision about its cold pages: `offload`, or why nothing was.
    pub decision: String,
}

/// A column of numbers: its name, with the unit at its end, and what it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure {
    /// As in the file and in JSON.
    pub name: &'static str,
    /// The version of the schema that brought it. Older files read as if it were zero.
    pub since: u32,
    /// In a sentence.
    pub meaning: &'static str,
}

macro_rules! figures {
    ($($name:ident since $since:literal: $meaning:literal;)*) => {
        /// Every column of numbers that is no bucket of a histogram, in the order of the file.
        pub const FIGURES: &[Figure] = &[$(Figure { name: stringify!($name), since: $since, meaning: $meaning },)*];

        /// The numbers of an entry. Levels are means over its control periods, rounded down; what flows is summed.
        ///
        /// An entry that an older agent left in its spool lacks what is newer: that was nothing to it.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Figures {
            $(#[doc = $meaning] pub $name: u64,)*
        }

        impl Figures {
            /// In the order of [`FIGURES`].
            #[must_use]
            pub fn to_array(&self) -> [u64; FIGURES.len()] {
                [$(self.$name,)*]
            }

            /// Out of the order of [`FIGURES`].
            #[must_use]
            pub fn from_array(array: [u64; FIGURES.len()]) -> Self {
                let [$($name,)*] = array;
                Self { $($name,)* }
            }
        }
    };
}

figures! {
    start_unix_ms since 1: "When it begins, in milliseconds since the epoch.";
    duration_ms since 1: "How long its control periods took together. It may be less than the time to the next entry.";
    periods since 1: "Control periods summed.";
    job_age_ms since 1: "How long the job had been observed when the entry ended.";
    window_ms since 1: "Milliseconds of accesses that the promotion histogram covers: those of the scans that ended in it.";
    working_set_bytes since 1: "Accessed within the minimum cold age. A mean.";
    memory_bytes since 1: "Everything charged to the job (memory.current), the compressed pool included. A mean.";
    zswap_stored_bytes since 1: "What it has in zswap, before compression. A mean.";
    zswap_pool_bytes since 1: "DRAM that this takes, compressed. A mean.";
    swap_bytes since 1: "What it has on swap devices. A mean.";
    slow_node_bytes since 2: "What it has in slow memory nodes, charged to it all the same. A mean.";
    file_out_bytes since 1: "Page cache that was reclaimed from it and has not come back. A mean.";
    sampled_compressed_ppm since 1: "What its sampled cold pages compress to, in millionths of their size; 0 where none was sampled.";
    bundle_version since 3: "The version of the parameter bundle that the machine went by; 0 for its configuration file.";
    asked_pages since 1: "Pages that the kernel was asked to offload.";
    offloaded_pages since 1: "Pages that went to far memory.";
    promoted_pages since 1: "Pages that came back from it: actual promotions.";
    memory_stall_us since 1: "Microseconds in which some task waited for memory (memory.pressure); 0 where the kernel does not tell.";
    io_stall_us since 1: "Microseconds in which some task waited for I/O (io.pressure); 0 where the kernel does not tell.";
    threshold_scans since 1: "The threshold of the last decision, in scans; 0 where none qualified.";
    held_periods since 1: "Control periods in which nothing of it was to be offloaded.";
    far_periods since 1: "Control periods in which it had far memory, or some came back. Far memory was on where this is not 0.";
    oom_kills since 3: "Processes of it that the out-of-memory killer ended (memory.events); 0 where the kernel does not tell.";
    agent_start_unix_ms since 3: "When the agent started that summed it: another number is another start. 0 where that is not known.";
}

/// What one job did in one stretch of time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Whose.
    #[serde(flatten)]
    pub id: JobId,
    /// How it was treated.
    #[serde(flatten)]
    pub labels: Labels,
    /// Its numbers.
    #[serde(flatten)]
    pub figures: Figures,
    /// Pages by age, resident and far: [`Basis::buckets`] counters. A mean.
    pub cold_pages: Vec<u64>,
    /// Accesses by the page's age at the access, each scan's once: as many counters.
    pub promotions_pages: Vec<u64>,
}

impl Entry {
    /// What a file is sorted by.
    #[must_use]
    pub fn order(&self) -> (&JobId, u64) {
        (&self.id, self.figures.start_unix_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_life_of_a_job_is_another_job() {
        let id = JobId::new("a", "m", "/j", "boot", 7);
        assert!(id.job_key >= 0);
        assert_eq!(id, JobId::new("a", "m", "/j", "boot", 7));
        for other in [JobId::new("a", "m", "/j", "boot", 8), JobId::new("a", "m", "/j", "tooB", 7), JobId::new("am", "", "/j", "boot", 7)] {
            assert_ne!(id.job_key, other.job_key, "{other:?}");
        }
    }

    #[test]
    fn figures_keep_their_order() {
        let array = std::array::from_fn(|i| i as u64);
        assert_eq!(Figures::from_array(array).to_array(), array);
        assert_eq!(Figures::from_array(array).far_periods, 21);
        assert_eq!(FIGURES[0].name, "start_unix_ms");
    }
}

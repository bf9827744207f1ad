//! The one table of knobs: it feeds the typed configuration, its defaults and checks, the documentation, the example
//! file, and whatever searches for better values.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use policy::units::{Bytes, RatioPpm};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::choice::{Actuator, AtLimit, Class, Tracker};
use crate::job::JobRule;
use crate::knob::{Knob, Setting, Unit, Value};

/// Writes out, from one list, a type per table of a configuration file, [`KNOBS`], and the way between the two.
macro_rules! knobs {
    ($(
        $(#[doc = $about:literal])+
        $table:literal => $($path:ident).+: $group:ident {
            $($name:ident: $type:ty = $unit:expr, $default:literal $(in $low:literal ..= $high:literal)?, $meaning:literal;)*
        }
    )*) => {
        /// Every knob, table by table.
        pub const KNOBS: &[Knob] = &[$($(Knob {
            key: concat!($table, ".", stringify!($name)),
            unit: $unit,
            default: $default,
            range: knobs!(@range $($low, $high)?),
            meaning: $meaning,
        },)*)*];

        /// The tables of a configuration file that hold knobs, and what each is about.
        pub const TABLES: &[(&str, &str)] = &[$(($table, concat!($($about),+)),)*];

        $(
            $(#[doc = $about])+
            #[derive(Clone, Debug, PartialEq, Eq)]
            pub struct $group {
                $(#[doc = $meaning] pub $name: $type,)*
            }

            impl Default for $group {
                fn default() -> Self {
                    Self { $($name: built_in(concat!($table, ".", stringify!($name))),)* }
                }
            }

            impl $group {
                fn of(config: &Config) -> &Self {
                    &config.$($path).+
                }

                fn of_mut(config: &mut Config) -> &mut Self {
                    &mut config.$($path).+
                }
            }
        )*

        impl Config {
            /// The value of the knob with this key; `None` where there is no such knob.
            #[must_use]
            pub fn get(&self, key: &str) -> Option<Value> {
                $($(if key == concat!($table, ".", stringify!($name)) {
                    return Some($group::of(self).$name.to_value($unit));
                })*)*
                None
            }

            /// Sets a knob to a value that it has checked.
            pub(crate) fn set(&mut self, knob: &Knob, value: Value) {
                $($(if knob.key == concat!($table, ".", stringify!($name)) {
                    $group::of_mut(self).$name = typed(knob, value);
                    return;
                })*)*
            }
        }
    };
    (@range) => { None };
    (@range $low:literal, $high:literal) => { Some(($low, $high)) };
}

knobs! {
    /// The node agent: what it observes with, what it acts with, and what it may use itself.
    "agent" => agent: Agent {
        scan_period: Duration = Unit::Duration, "120s" in "100ms" ..= "1h",
            "How often every page's access is read and its age advanced; the unit in which ages are counted (Lagar-Cavilla et al., section 5.1).";
        control_period: Duration = Unit::Duration, "60s" in "100ms" ..= "1h",
            "How often each job's threshold is decided anew (Lagar-Cavilla et al., section 4.3).";
        tracker: Tracker = Unit::Choice(Tracker::NAMES), "auto",
            "What observes accesses. `auto` takes the best that the kernel offers for the job, within `agent.cpu_budget`.";
        actuator: Actuator = Unit::Choice(Actuator::NAMES), "auto",
            "What moves cold pages out: `exact` exactly the pages that reached the threshold, `lru_gen` and `memory_reclaim` what the kernel's own lists hold for old.";
        offload_rate: Bytes = Unit::BytesPerSecond, "64MiB/s" in "1MiB/s" ..= "64GiB/s",
            "How fast memory is moved out, at most, over all jobs of the machine.";
        cpu_budget: RatioPpm = Unit::Ratio, "10%" in "0.1%" ..= "100%",
            "Processor time that the agent may use, as a share of one core. A tracker that would exceed it is not taken.";
        protect_working_set: bool = Unit::Bool, "true",
            "Set each acting job's `memory.low` to its working set, so that a machine short of memory reclaims cold pages first. Undone on exit (Lagar-Cavilla et al., section 5.1).";
        at_limit: AtLimit = Unit::Choice(AtLimit::NAMES), "stop",
            "What happens to a job that has reached its memory limit: `stop` offloads nothing more of it; `fail_fast` also caps its `memory.swap.max` at what it uses, so that it fails rather than thrashes (Lagar-Cavilla et al., section 5.1).";
        state_dir: PathBuf = Unit::Path, "/var/lib/thermocline",
            "Where the journal and what a restart needs are kept.";
        runtime_dir: PathBuf = Unit::Path, "/run/thermocline",
            "Where the control socket, the lock and the record of what is to be undone are kept.";
        metrics_listen: Option<SocketAddr> = Unit::Address, "127.0.0.1:9180",
            "Where metrics are served: a loopback address and a port, or `off`.";
        journal_size: Bytes = Unit::Bytes, "64MiB" in "1MiB" ..= "1TiB",
            "The size at which a file of the journal is closed and the next one begun.";
        journal_files: u32 = Unit::Count, "4" in "1" ..= "100",
            "How many files of the journal are kept; the oldest goes first.";
        jobs_max: u32 = Unit::Count, "1000" in "1" ..= "10000",
            "How many jobs are watched at most. Those that come later wait until one ends.";
        damon_regions_max: u32 = Unit::Count, "4096" in "10" ..= "100000",
            "How many regions DAMON may split one process into: more see finer and cost more.";
        damon_processes_max: u32 = Unit::Count, "64" in "1" ..= "4096",
            "How many processes DAMON watches at once; each has a kernel thread of its own.";
    }

    /// The cold-age controller (Lagar-Cavilla et al., section 4.3): how old a page must be before it may leave DRAM.
    "cold_age" => cold_age: ColdAge {
        promotion_rate: RatioPpm = Unit::RatioPerMinute, "0.2%" in "0%" ..= "100%",
            "P: how much of a job's working set may come back from far memory each minute (Lagar-Cavilla et al., section 4.2).";
        percentile: RatioPpm = Unit::Percentile, "99%" in "50%" ..= "100%",
            "K: the threshold taken is at least as high as this share of those that would have been best in the past periods. Higher is safer and saves less.";
        warmup: Duration = Unit::Duration, "600s" in "0s" ..= "24h",
            "S: nothing of a job is offloaded for this long after it was first seen, because too little is known of it.";
        thresholds: u32 = Unit::Count, "32" in "2" ..= "64",
            "How many thresholds there are to choose from, each about the same factor above the last, from 1 to 255 scan periods (Lagar-Cavilla et al., section 4.4).";
    }

    /// What class `conservative` changes in `cold_age`: for jobs whose latency matters most.
    "class.conservative" => classes.conservative: Conservative {
        promotion_rate: RatioPpm = Unit::RatioPerMinute, "0.05%" in "0%" ..= "100%",
            "P for jobs of class `conservative`.";
        percentile: RatioPpm = Unit::Percentile, "99.5%" in "50%" ..= "100%",
            "K for jobs of class `conservative`.";
        warmup: Duration = Unit::Duration, "30m" in "0s" ..= "24h",
            "S for jobs of class `conservative`.";
    }

    /// What class `aggressive` changes in `cold_age`: for sidecars and other overhead of the machine itself.
    "class.aggressive" => classes.aggressive: Aggressive {
        promotion_rate: RatioPpm = Unit::RatioPerMinute, "1%" in "0%" ..= "100%",
            "P for jobs of class `aggressive`.";
        percentile: RatioPpm = Unit::Percentile, "95%" in "50%" ..= "100%",
            "K for jobs of class `aggressive`.";
        warmup: Duration = Unit::Duration, "300s" in "0s" ..= "24h",
            "S for jobs of class `aggressive`.";
    }

    /// zswap, the compressed pool in DRAM. Its parameters belong to the whole machine.
    "zswap" => zswap: Zswap {
        manage: bool = Unit::Bool, "false",
            "Turn zswap on while the agent runs, and leave it as it was found on exit.";
        compressor: String = Unit::Word, "",
            "The compressor to set while `zswap.manage` is on, such as `lz4` or `zstd`; empty leaves it as it is.";
        max_pool: RatioPpm = Unit::WholePercent, "0%" in "0%" ..= "50%",
            "The largest pool to set while `zswap.manage` is on, as a share of the machine's memory; 0% leaves it as it is.";
    }

    /// Memory that does not shrink when compressed, and so is not worth moving into zswap.
    "incompressible" => incompressible: Incompressible {
        ratio: RatioPpm = Unit::Ratio, "73%" in "1%" ..= "100%",
            "A page that compresses to more than this share of its size counts as incompressible (Lagar-Cavilla et al., section 5.1: 2990 of 4096 bytes).";
        share: RatioPpm = Unit::Ratio, "50%" in "1%" ..= "100%",
            "A job is left alone when at least this share of its sampled pages is incompressible.";
        retry: Duration = Unit::Duration, "10m" in "1s" ..= "24h",
            "How long to wait before a job that was left alone is sampled again.";
        sample_pages: u32 = Unit::Count, "64" in "1" ..= "4096",
            "How many cold pages of a job are compressed as a test.";
    }

    /// The last resort when pages come back faster than the machine has memory for (Lagar-Cavilla et al., section 4.2).
    "guard" => guard: Guard {
        enabled: bool = Unit::Bool, "false",
            "End jobs, the lowest class first, through `cgroup.kill`, when pages coming back from far memory exhaust the machine. Why is recorded.";
        available_min: RatioPpm = Unit::Ratio, "2%" in "0.1%" ..= "50%",
            "The guard acts while available memory is below this share of the machine's memory.";
    }
}

/// What the classes change in [`ColdAge`]. `standard` changes nothing; `observe` decides as `standard` does and never
/// acts; `off` takes no parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Classes {
    /// `[class.conservative]`
    pub conservative: Conservative,
    /// `[class.aggressive]`
    pub aggressive: Aggressive,
}

/// A checked configuration: every value is in its range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// `[agent]`
    pub agent: Agent,
    /// `[cold_age]`
    pub cold_age: ColdAge,
    /// `[class.NAME]`
    pub classes: Classes,
    /// `[zswap]`
    pub zswap: Zswap,
    /// `[incompressible]`
    pub incompressible: Incompressible,
    /// `[guard]`
    pub guard: Guard,
    /// `[[job]]`: which jobs there are and how each is treated. The first rule that matches a cgroup holds.
    pub jobs: Vec<JobRule>,
}

impl Config {
    /// The cold-age parameters for jobs of a class.
    #[must_use]
    pub fn cold_age_for(&self, class: Class) -> ColdAge {
        let thresholds = self.cold_age.thresholds;
        match class {
            Class::Off | Class::Observe | Class::Standard => self.cold_age.clone(),
            Class::Conservative => {
                let Conservative { promotion_rate, percentile, warmup } = self.classes.conservative;
                ColdAge { promotion_rate, percentile, warmup, thresholds }
            }
            Class::Aggressive => {
                let Aggressive { promotion_rate, percentile, warmup } = self.classes.aggressive;
                ColdAge { promotion_rate, percentile, warmup, thresholds }
            }
        }
    }
}

impl ColdAge {
    /// As the controller takes them. Times are in milliseconds there, rounded down.
    #[must_use]
    pub fn params(&self) -> policy::cold_age::Params {
        policy::cold_age::Params { promotion_rate_max: self.promotion_rate, percentile: self.percentile, warmup_ms: whole_ms(self.warmup) }
    }
}

impl Incompressible {
    /// As the controller takes them. Times are in milliseconds there, rounded down.
    #[must_use]
    pub fn params(&self) -> policy::incompressible::Params {
        policy::incompressible::Params { ratio_max: self.ratio, share_max: self.share, retry_ms: whole_ms(self.retry) }
    }
}

fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Serialize for Config {
    /// A map of full keys to values as users write them, and `job`, the list of rules.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(KNOBS.len() + 1))?;
        for knob in KNOBS {
            map.serialize_entry(knob.key, &self.get(knob.key))?;
        }
        map.serialize_entry("job", &self.jobs)?;
        map.end()
    }
}

/// The knob with this key, if there is one.
#[must_use]
pub fn knob(key: &str) -> Option<&'static Knob> {
    KNOBS.iter().find(|knob| knob.key == key)
}

/// The default of the knob with this key.
#[expect(clippy::panic, reason = "the table is ours, and every default is read whenever any configuration is made")]
fn built_in<T: Setting>(key: &str) -> T {
    let Some(knob) = knob(key) else { panic!("no knob {key}") };
    match knob.parse(knob.default) {
        Ok(value) => typed(knob, value),
        Err(invalid) => panic!("the default of {key} is wrong: {}", invalid.message),
    }
}

#[expect(clippy::panic, reason = "the table is ours, and every knob is typed whenever any configuration is made")]
fn typed<T: Setting>(knob: &Knob, value: Value) -> T {
    match T::from_value(value) {
        Some(value) => value,
        None => panic!("the type of {} does not hold its unit, {}", knob.key, knob.unit.name()),
    }
}

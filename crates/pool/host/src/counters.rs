//! Top-down performance counters of a command or a guest, by `perf stat`.
//!
//! Which events make up a metric depends on the processor. `perf` has these tables, and each kernel version comes with
//! its own `perf`.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use kernel::Roots;
use serde_json::Value;

/// Values by metric name: shares of pipeline slots, and other metrics of the processor's table.
pub type Counters = BTreeMap<String, f64>;

/// Why there are no counters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoCounters(pub String);

impl NoCounters {
    fn of(why: &str) -> Self {
        Self(why.to_owned())
    }
}

/// The processor's performance monitoring unit in `/sys/bus/event_source/devices`. Hybrid processors have the second
/// one.
const UNITS: [&str; 2] = ["cpu", "cpu_core"];

/// Metric groups that are sampled if `perf` has them: Intel's and AMD's.
const GROUPS: [&str; 6] = ["TopdownL1", "TopdownL2", "TopdownL3", "TopdownL4", "PipelineL1", "PipelineL2"];

/// Names in training samples (`python/thermocline/learn/workloads.py`). `perf` spells some of them differently.
const NAMES: [&str; 34] = [
    "Retiring",
    "Bad_Speculation",
    "Frontend_Bound",
    "Backend_Bound",
    "Core_Bound",
    "Memory_Bound",
    "L1_Bound",
    "L2_Bound",
    "L3_Bound",
    "DRAM_Bound",
    "Store_Bound",
    "MEM_Bandwidth",
    "MEM_Latency",
    "DTLB_Load",
    "DTLB_Store",
    "Store_Latency",
    "FB_Full",
    "SQ_Full",
    "L3_Hit_Latency",
    "Contested_Accesses",
    "Data_Sharing",
    "Lock_Latency",
    "Branch_Mispredicts",
    "Machine_Clears",
    "Fetch_Latency",
    "Fetch_Bandwidth",
    "ICache_Misses",
    "Divider",
    "Ports_Utilization",
    "Light_Operations",
    "Heavy_Operations",
    "FP_Arith",
    "Info_Thread_IPC",
    "Info_Memory_MLP",
];

/// `perf` on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Perf {
    program: PathBuf,
    /// Metric groups of this processor, separated by commas.
    groups: String,
}

impl Perf {
    /// Finds the metrics that `program`, usually `perf`, can sample here.
    ///
    /// # Errors
    /// [`NoCounters`]: the machine has no counters, or the program has no metrics for its processor.
    pub fn find(roots: &Roots, program: impl Into<PathBuf>) -> Result<Self, NoCounters> {
        let program = program.into();
        let devices = roots.sys.join("bus/event_source/devices");
        if !UNITS.iter().any(|unit| devices.join(unit).exists()) {
            return Err(NoCounters::of(
                "the kernel has no performance monitoring unit for this processor; most virtual machines have none",
            ));
        }
        let list = Command::new(&program).args(["list", "--no-desc", "metricgroup"]).stdin(Stdio::null()).output();
        let list = list.map_err(|error| {
            NoCounters(format!("{}: {error}; install the package that has perf (linux-perf, linux-tools)", program.display()))
        })?;
        let known = String::from_utf8_lossy(&list.stdout).into_owned();
        let groups: Vec<&str> = GROUPS.into_iter().filter(|group| known.split_whitespace().any(|word| word == *group)).collect();
        if groups.is_empty() {
            return Err(NoCounters::of("`perf` has no top-down metrics for this processor; a newer version may have them"));
        }
        Ok(Self { program, groups: groups.join(",") })
    }

    /// Runs a command and samples its counters until it exits.
    ///
    /// # Errors
    /// [`NoCounters`], also if the command fails.
    pub fn of_command(&self, command: &Command) -> Result<Counters, NoCounters> {
        let words = [command.get_program()].into_iter().chain(command.get_args());
        self.stat(&[], words)
    }

    /// Samples the counters of a process for `time`: all of its threads, including guest code.
    ///
    /// # Errors
    /// [`NoCounters`]: the process has exited, or nothing was counted.
    pub fn of_process(&self, pid: i32, time: Duration) -> Result<Counters, NoCounters> {
        let seconds = format!("{:.3}", time.as_secs_f64());
        self.stat(&["--pid", &pid.to_string()], ["sleep", &seconds].map(OsStr::new))
    }

    fn stat<'a>(&self, target: &[&str], command: impl IntoIterator<Item = &'a OsStr>) -> Result<Counters, NoCounters> {
        let failed = |error: std::io::Error| NoCounters(format!("{}: {error}", self.program.display()));
        let report = tempfile::NamedTempFile::new().map_err(failed)?;
        let mut perf = Command::new(&self.program);
        perf.args(["stat", "--json", "--metrics", &self.groups, "--output"]).arg(report.path()).args(target).arg("--").args(command);
        // Numbers with a decimal point in every locale.
        let output = perf.env("LC_ALL", "C").stdin(Stdio::null()).output().map_err(failed)?;
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            return Err(NoCounters(format!("perf stat or its command failed ({}): {}", output.status, errors.trim())));
        }
        let counters = parse(&std::fs::read_to_string(report.path()).map_err(failed)?);
        if counters.is_empty() {
            return Err(NoCounters::of("`perf stat` counted nothing; check the output of `perf stat -M TopdownL1 -- true`"));
        }
        Ok(counters)
    }
}

/// Parses the output of `perf stat --json`: one object per line, the metric's name after its unit. Other lines and
/// values that are not numbers are skipped.
fn parse(text: &str) -> Counters {
    let mut counters = Counters::new();
    for line in text.lines() {
        let Ok(row) = serde_json::from_str::<Value>(line) else { continue };
        let Some((name, per_cent)) = row["metric-unit"].as_str().and_then(name) else { continue };
        let value = &row["metric-value"];
        let value = value.as_f64().or_else(|| value.as_str()?.trim().parse().ok());
        if let Some(value) = value.filter(|value| value.is_finite()) {
            counters.insert(name, if per_cent { value / 100.0 } else { value });
        }
    }
    counters
}

/// The name of a metric in training samples, and whether its value is in percent. `None` for units without a name, such
/// as `K/sec`.
fn name(unit: &str) -> Option<(String, bool)> {
    let per_cent = unit.trim_start().strip_prefix('%');
    let word = per_cent.unwrap_or(unit).trim();
    let plain = word.strip_prefix("tma_");
    if word.is_empty() || word.contains([' ', '/']) || (per_cent.is_none() && plain.is_none()) {
        return None;
    }
    let plain = plain.unwrap_or(word);
    let known = NAMES.iter().find(|name| name.eq_ignore_ascii_case(plain));
    Some((known.map_or(plain, |name| *name).to_owned(), per_cent.is_some()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::testing::script;

    /// Output of `perf stat --json`. The lines with metrics are made by hand: the test machines have no counters.
    const OUTPUT: &str = r#"
{"counter-value" : "0.794041", "unit" : "msec", "event" : "task-clock", "event-runtime" : 794041, "pcnt-running" : 100.00, "metric-value" : 0.081811, "metric-unit" : "CPUs utilized"}
{"counter-value" : "50.000000", "unit" : "", "event" : "page-faults", "event-runtime" : 794041, "pcnt-running" : 100.00, "metric-value" : 62.969041, "metric-unit" : "K/sec"}
{"event-runtime" : 794041, "pcnt-running" : 100.00, "metric-value" : "41.500000", "metric-unit" : "%  tma_memory_bound"}
{"event-runtime" : 794041, "pcnt-running" : 100.00, "metric-value" : 12.25, "metric-unit" : "%  tma_dram_bound"}
{"metric-value" : "1.75", "metric-unit" : "tma_info_thread_ipc"}
{"metric-value" : "nan", "metric-unit" : "%  tma_l3_bound"}
{"metric-value" : "33.0", "metric-unit" : "%  backend_bound_memory"}
not an object
"#;

    #[test]
    fn metrics_get_the_names_of_training_samples() {
        let expected = [("DRAM_Bound", 0.1225), ("Info_Thread_IPC", 1.75), ("Memory_Bound", 0.415), ("backend_bound_memory", 0.33)];
        assert_eq!(parse(OUTPUT).into_iter().collect::<Vec<_>>(), expected.map(|(name, value)| (name.to_owned(), value)));
        assert!(parse("").is_empty());
    }

    #[test]
    fn a_machine_without_counters_is_reported() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(directory.path().join("sys/bus/event_source/devices/software")).unwrap();
        let roots = Roots::under(directory.path());
        let check = |program: &Path, why: &str| {
            let error = Perf::find(&roots, program).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        };
        check(Path::new("/nowhere/perf"), "performance monitoring unit");
        std::fs::create_dir(roots.sys.join("bus/event_source/devices/cpu_core")).unwrap();
        check(Path::new("/nowhere/perf"), "install the package");
        check(&script(directory.path(), "old", "echo L2; echo NoGroup"), "no top-down metrics");
    }

    #[test]
    fn the_counters_of_a_process_are_sampled() {
        let directory = tempfile::tempdir().unwrap();
        let roots = Roots::under(directory.path());
        std::fs::create_dir_all(roots.sys.join("bus/event_source/devices/cpu")).unwrap();
        // Checks how perf is called, and writes its report.
        let stat = format!(
            "if [ $1 = list ]; then echo TopdownL1; echo Mem; echo TopdownL2; exit; fi\n\
             [ \"$1 $2 $3 $4\" = 'stat --json --metrics TopdownL1,TopdownL2' ] || exit 3\n\
             case \"$*\" in *'--pid 7 -- sleep 1.500') ;; *) echo \"no process: $*\" >&2; exit 4;; esac\n\
             cat > \"$6\" <<'EOF'\n{OUTPUT}\nEOF"
        );
        let perf = Perf::find(&roots, script(directory.path(), "perf", &stat)).unwrap();
        let counters = perf.of_process(7, Duration::from_millis(1500)).unwrap();
        assert_eq!(counters, parse(OUTPUT));
        let error = perf.of_process(8, Duration::from_millis(1500)).unwrap_err().to_string();
        assert!(error.contains("no process") && error.contains("--pid 8"), "{error}");
        let idle = Perf { program: script(directory.path(), "idle", "true"), groups: "TopdownL1".to_owned() };
        assert!(idle.of_command(&Command::new("true")).unwrap_err().to_string().contains("counted nothing"));
    }
}

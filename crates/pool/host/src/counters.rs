//! A processor's top-down counters, of a run or of a guest, as `perf stat` tells them.
//!
//! Which events make which metric differs from one processor to the next; `perf` has the tables, and each kernel's comes with the
//! tool for it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use kernel::Roots;
use serde_json::Value;

/// Metrics by name; shares of pipeline slots, and what else the processor's table has.
pub type Counters = BTreeMap<String, f64>;

/// Why there are none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoCounters(pub String);

impl NoCounters {
    fn of(why: &str) -> Self {
        Self(why.to_owned())
    }
}

/// The processor's unit in `/sys/bus/event_source/devices`; the second where cores are of two kinds.
const UNITS: [&str; 2] = ["cpu", "cpu_core"];

/// Groups of metrics that are asked for, of those that there are: Intel's, and AMD's.
const GROUPS: [&str; 6] = ["TopdownL1", "TopdownL2", "TopdownL3", "TopdownL4", "PipelineL1", "PipelineL2"];

/// Names that samples have (`python/thermocline/learn/workloads.py`), which tools write in other ways.
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

/// What counts on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Perf {
    program: PathBuf,
    /// Groups of metrics that it knows of this processor, with commas between.
    groups: String,
}

impl Perf {
    /// What `program`, mostly `perf`, can count here.
    ///
    /// # Errors
    /// [`NoCounters`]: the machine has none, or the program does not know them.
    pub fn find(roots: &Roots, program: impl Into<PathBuf>) -> Result<Self, NoCounters> {
        let program = program.into();
        let devices = roots.sys.join("bus/event_source/devices");
        if !UNITS.iter().any(|unit| devices.join(unit).exists()) {
            return Err(NoCounters::of(
                "the kernel has no performance monitoring unit of this processor; virtual machines mostly have none",
            ));
        }
        let list = Command::new(&program).args(["list", "--no-desc", "metricgroup"]).stdin(Stdio::null()).output();
        let list = list.map_err(|error| {
            NoCounters(format!("{}: {error}; install the package that has perf (linux-perf, linux-tools)", program.display()))
        })?;
        let known = String::from_utf8_lossy(&list.stdout).into_owned();
        let groups: Vec<&str> = GROUPS.into_iter().filter(|group| known.split_whitespace().any(|word| word == *group)).collect();
        if groups.is_empty() {
            return Err(NoCounters::of("`perf` knows no top-down metrics of this processor; a newer one may"));
        }
        Ok(Self { program, groups: groups.join(",") })
    }

    /// Runs a command to its end, and counts.
    ///
    /// # Errors
    /// [`NoCounters`], where the command fails, too.
    pub fn of_command(&self, command: &Command) -> Result<Counters, NoCounters> {
        let words = [command.get_program()].into_iter().chain(command.get_args());
        self.stat(&[], words)
    }

    /// Counts what a process does for so long, all of its threads, in its guest as well.
    ///
    /// # Errors
    /// [`NoCounters`]: it has ended, or nothing was counted.
    pub fn of_process(&self, pid: i32, time: Duration) -> Result<Counters, NoCounters> {
        let seconds = format!("{:.3}", time.as_secs_f64());
        self.stat(&["--pid", &pid.to_string()], ["sleep", &seconds].map(OsStr::new))
    }

    fn stat<'a>(&self, whose: &[&str], command: impl IntoIterator<Item = &'a OsStr>) -> Result<Counters, NoCounters> {
        let failed = |error: std::io::Error| NoCounters(format!("{}: {error}", self.program.display()));
        let told = tempfile::NamedTempFile::new().map_err(failed)?;
        let mut perf = Command::new(&self.program);
        perf.args(["stat", "--json", "--metrics", &self.groups, "--output"]).arg(told.path()).args(whose).arg("--").args(command);
        // Numbers with a point, whatever the language.
        let output = perf.env("LC_ALL", "C").stdin(Stdio::null()).output().map_err(failed)?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(NoCounters(format!("perf stat, or what it ran, failed ({}): {}", output.status, said.trim())));
        }
        let counters = parse(&std::fs::read_to_string(told.path()).map_err(failed)?);
        if counters.is_empty() {
            return Err(NoCounters::of("`perf stat` counted nothing; see what `perf stat -M TopdownL1 -- true` says"));
        }
        Ok(counters)
    }
}

/// Metrics in what `perf stat --json` writes: one object a line, a metric's name behind its unit. What is no such line, or no
/// number, is left out.
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

/// The name of a metric in samples, and whether it is told in per cent; none of what is a unit alone, such as `K/sec`.
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

    /// Lines as `perf stat --json` writes them, by hand for metrics: the test machines have no counters.
    const TOLD: &str = r#"
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
    fn metrics_get_the_names_that_samples_have() {
        let want = [("DRAM_Bound", 0.1225), ("Info_Thread_IPC", 1.75), ("Memory_Bound", 0.415), ("backend_bound_memory", 0.33)];
        assert_eq!(parse(TOLD).into_iter().collect::<Vec<_>>(), want.map(|(name, value)| (name.to_owned(), value)));
        assert!(parse("").is_empty());
    }

    #[test]
    fn a_machine_without_counters_is_told_so() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(directory.path().join("sys/bus/event_source/devices/software")).unwrap();
        let roots = Roots::under(directory.path());
        let check = |program: &Path, why: &str| {
            let told = Perf::find(&roots, program).unwrap_err().to_string();
            assert!(told.contains(why), "{told}");
        };
        check(Path::new("/nowhere/perf"), "performance monitoring unit");
        std::fs::create_dir(roots.sys.join("bus/event_source/devices/cpu_core")).unwrap();
        check(Path::new("/nowhere/perf"), "install the package");
        check(&script(directory.path(), "old", "echo L2; echo NoGroup"), "no top-down metrics");
    }

    #[test]
    fn a_process_is_counted_for_a_while() {
        let directory = tempfile::tempdir().unwrap();
        let roots = Roots::under(directory.path());
        std::fs::create_dir_all(roots.sys.join("bus/event_source/devices/cpu")).unwrap();
        // As perf is called, and what it would leave.
        let stat = format!(
            "if [ $1 = list ]; then echo TopdownL1; echo Mem; echo TopdownL2; exit; fi\n\
             [ \"$1 $2 $3 $4\" = 'stat --json --metrics TopdownL1,TopdownL2' ] || exit 3\n\
             case \"$*\" in *'--pid 7 -- sleep 1.500') ;; *) echo \"no process: $*\" >&2; exit 4;; esac\n\
             cat > \"$6\" <<'EOF'\n{TOLD}\nEOF"
        );
        let perf = Perf::find(&roots, script(directory.path(), "perf", &stat)).unwrap();
        let counters = perf.of_process(7, Duration::from_millis(1500)).unwrap();
        assert_eq!(counters, parse(TOLD));
        let told = perf.of_process(8, Duration::from_millis(1500)).unwrap_err().to_string();
        assert!(told.contains("no process") && told.contains("--pid 8"), "{told}");
        let idle = Perf { program: script(directory.path(), "idle", "true"), groups: "TopdownL1".to_owned() };
        assert!(idle.of_command(&Command::new("true")).unwrap_err().to_string().contains("counted nothing"));
    }

    fn script(directory: &Path, name: &str, text: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let path = directory.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }
}

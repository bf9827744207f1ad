//! A processor's top-down counters of one run, as `perf stat` tells them.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, Result};
use kernel::Roots;
use serde_json::Value;

use super::succeeded;

/// Metrics by name; shares of pipeline slots, and what else the processor's table has.
pub(super) type Counters = BTreeMap<String, f64>;

/// Why there are none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NoCounters(pub(super) String);

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

/// Runs a command under `perf stat`, where this machine has counters.
pub(super) fn count(roots: &Roots, command: impl FnOnce() -> Result<Command>) -> Result<Result<Counters, NoCounters>> {
    let none = |why: &str| Ok(Err(NoCounters(why.to_owned())));
    let devices = roots.sys.join("bus/event_source/devices");
    if !UNITS.iter().any(|unit| devices.join(unit).exists()) {
        return none("the kernel has no performance monitoring unit of this processor; virtual machines mostly have none");
    }
    let Ok(list) = Command::new("perf").args(["list", "--no-desc", "metricgroup"]).output() else {
        return none("there is no `perf`; install the package that has it (linux-perf, linux-tools)");
    };
    let known = String::from_utf8_lossy(&list.stdout).into_owned();
    let groups: Vec<&str> = GROUPS.into_iter().filter(|group| known.split_whitespace().any(|word| word == *group)).collect();
    if groups.is_empty() {
        return none("`perf` knows no top-down metrics of this processor; a newer one may");
    }
    let told = tempfile::NamedTempFile::new().context("cannot make a file for what perf tells")?;
    let wanted = command()?;
    let mut perf = Command::new("perf");
    perf.args(["stat", "--json", "--metrics", &groups.join(","), "--output"]).arg(told.path()).arg("--");
    perf.arg(wanted.get_program()).args(wanted.get_args()).stdin(std::process::Stdio::null());
    let output = perf.output().context("cannot start perf")?;
    succeeded(output.status).with_context(|| String::from_utf8_lossy(&output.stderr).trim().to_owned())?;
    let counters = parse(&std::fs::read_to_string(told.path()).context("cannot read what perf told")?);
    if counters.is_empty() { none("`perf stat` counted nothing; see what `perf stat -M TopdownL1 -- true` says") } else { Ok(Ok(counters)) }
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
        let NoCounters(why) = count(&roots, || panic!("there is nothing to count with")).unwrap().unwrap_err();
        assert!(why.contains("performance monitoring unit"), "{why}");
    }
}

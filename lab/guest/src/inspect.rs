//! Memory settings of this machine that an agent may have changed: limits, zswap parameters, DAMON's kernel threads.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::Value;

/// Location of the kernel's files.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Read below this directory instead of the machine's root
    #[arg(long, default_value = "/", value_name = "DIRECTORY")]
    root: PathBuf,
}

/// Files of a cgroup that limit or protect its memory, and their defaults
/// (`Documentation/admin-guide/cgroup-v2.rst`).
const LIMITS: [(&str, &str); 7] = [
    ("memory.min", "0"),
    ("memory.low", "0"),
    ("memory.high", "max"),
    ("memory.max", "max"),
    ("memory.swap.max", "max"),
    ("memory.zswap.max", "max"),
    ("memory.zswap.writeback", "1"),
];

/// The settings found. Interfaces that the kernel lacks are absent.
#[derive(Debug, Default, PartialEq, Serialize)]
struct Found {
    /// Cgroups with a limit that differs from the default.
    cgroups: Vec<Cgroup>,
    /// All of zswap's parameters.
    zswap: BTreeMap<String, Value>,
    /// Number of DAMON's kernel threads in sysfs.
    nr_kdamonds: Option<Value>,
    /// Number of those that run.
    kdamonds_on: u64,
    damon_stat_enabled: Option<Value>,
    /// Enabled parts of the multi-generational LRU.
    lru_gen_enabled: Option<Value>,
    /// The kernel's own migration of pages between nodes.
    numa_balancing: Option<Value>,
    khugepaged_pages_to_scan: Option<Value>,
    khugepaged_scan_sleep_millisecs: Option<Value>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Cgroup {
    /// Path relative to the cgroup file system, as in `/proc/PID/cgroup`.
    path: String,
    #[serde(flatten)]
    limits: BTreeMap<&'static str, Value>,
}

/// Prints the settings as one JSON object.
///
/// # Errors
/// A file that exists cannot be read.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    println!("{}", serde_json::to_string(&inspect(&arguments.root)?)?);
    Ok(())
}

fn inspect(root: &Path) -> Result<Found> {
    let mut found = Found::default();
    let cgroups = root.join("sys/fs/cgroup");
    let mut to_visit = vec![cgroups.clone()];
    while let Some(directory) = to_visit.pop() {
        let mut limits = BTreeMap::new();
        for (file, default) in LIMITS {
            if let Some(text) = read(&directory.join(file))?.filter(|text| text != default) {
                limits.insert(file, value(&text));
            }
        }
        if !limits.is_empty() {
            let path = directory.strip_prefix(&cgroups).unwrap_or(&directory);
            found.cgroups.push(Cgroup { path: format!("/{}", path.display()), limits });
        }
        to_visit.extend(subdirectories(&directory)?);
    }
    found.cgroups.sort_by(|a, b| a.path.cmp(&b.path));
    let zswap = root.join("sys/module/zswap/parameters");
    for parameter in entries(&zswap)? {
        if let (Some(name), Some(text)) = (parameter.file_name(), read(&parameter)?) {
            found.zswap.insert(name.to_string_lossy().into_owned(), value(&text));
        }
    }
    let kdamonds = root.join("sys/kernel/mm/damon/admin/kdamonds");
    found.nr_kdamonds = read_value(&kdamonds.join("nr_kdamonds"))?;
    for kdamond in subdirectories(&kdamonds)? {
        found.kdamonds_on += u64::from(read(&kdamond.join("state"))?.as_deref() == Some("on"));
    }
    found.damon_stat_enabled = read_value(&root.join("sys/module/damon_stat/parameters/enabled"))?;
    found.lru_gen_enabled = read_value(&root.join("sys/kernel/mm/lru_gen/enabled"))?;
    found.numa_balancing = read_value(&root.join("proc/sys/kernel/numa_balancing"))?;
    let khugepaged = root.join("sys/kernel/mm/transparent_hugepage/khugepaged");
    found.khugepaged_pages_to_scan = read_value(&khugepaged.join("pages_to_scan"))?;
    found.khugepaged_scan_sleep_millisecs = read_value(&khugepaged.join("scan_sleep_millisecs"))?;
    Ok(found)
}

/// Returns whether an error means absence: never existed, another type, or removed meanwhile (a cgroup).
fn is_absent(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) || error.raw_os_error() == Some(libc::ENODEV)
}

/// Returns a file's text without surrounding white space; `None` if it does not exist.
fn read(path: &Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

fn read_value(path: &Path) -> Result<Option<Value>> {
    Ok(read(path)?.as_deref().map(value))
}

/// Returns the paths in a directory; none if it does not exist.
fn entries(directory: &Path) -> Result<Vec<PathBuf>> {
    match fs::read_dir(directory) {
        Ok(entries) => Ok(entries.flatten().map(|entry| entry.path()).collect()),
        Err(error) if is_absent(&error) => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", directory.display())),
    }
}

fn subdirectories(directory: &Path) -> Result<Vec<PathBuf>> {
    Ok(entries(directory)?.into_iter().filter(|path| path.is_dir() && !path.is_symlink()).collect())
}

/// Converts kernel text to JSON: numbers, `Y` and `N` as booleans, everything else as text.
fn value(text: &str) -> Value {
    match text {
        "Y" => true.into(),
        "N" => false.into(),
        _ => text.parse::<u64>().map_or_else(|_| text.into(), Value::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Checks what is found on a machine with only these files.
    fn check(files: &[(&str, &str)], expected: &Value) {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        assert_eq!(&serde_json::to_value(inspect(root.path()).unwrap()).unwrap(), expected);
    }

    #[test]
    fn a_machine_without_settings_reports_none() {
        let nothing = json!({
            "cgroups": [], "zswap": {}, "nr_kdamonds": null, "kdamonds_on": 0, "damon_stat_enabled": null, "lru_gen_enabled": null,
            "numa_balancing": null, "khugepaged_pages_to_scan": null, "khugepaged_scan_sleep_millisecs": null,
        });
        check(&[], &nothing);
        let cgroup =
            [("sys/fs/cgroup/a/memory.low", "0\n"), ("sys/fs/cgroup/a/memory.high", "max\n"), ("sys/fs/cgroup/a/b/memory.max", "max\n")];
        check(&cgroup, &nothing);
    }

    #[test]
    fn changed_settings_are_reported() {
        check(
            &[
                ("sys/fs/cgroup/a/memory.low", "4096\n"),
                ("sys/fs/cgroup/a/memory.high", "max\n"),
                ("sys/fs/cgroup/a/b/memory.zswap.writeback", "0\n"),
                ("sys/fs/cgroup/a/b/memory.swap.max", "max\n"),
                ("sys/fs/cgroup/a/b/memory.max", "1048576\n"),
                ("sys/fs/cgroup/c/memory.current", "1048576\n"),
                ("sys/module/zswap/parameters/enabled", "Y\n"),
                ("sys/module/zswap/parameters/compressor", "lz4\n"),
                ("sys/module/zswap/parameters/max_pool_percent", "20\n"),
                ("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", "2\n"),
                ("sys/kernel/mm/damon/admin/kdamonds/0/state", "on\n"),
                ("sys/kernel/mm/damon/admin/kdamonds/1/state", "off\n"),
                ("sys/module/damon_stat/parameters/enabled", "N\n"),
                ("sys/kernel/mm/lru_gen/enabled", "0x0007\n"),
                ("proc/sys/kernel/numa_balancing", "2\n"),
                ("sys/kernel/mm/transparent_hugepage/khugepaged/pages_to_scan", "1\n"),
                ("sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs", "7\n"),
            ],
            &json!({
                "cgroups": [
                    {"path": "/a", "memory.low": 4096},
                    {"path": "/a/b", "memory.max": 1_048_576, "memory.zswap.writeback": 0},
                ],
                "zswap": {"compressor": "lz4", "enabled": true, "max_pool_percent": 20},
                "nr_kdamonds": 2, "kdamonds_on": 1, "damon_stat_enabled": false, "lru_gen_enabled": "0x0007",
                "numa_balancing": 2, "khugepaged_pages_to_scan": 1, "khugepaged_scan_sleep_millisecs": 7,
            }),
        );
    }
}

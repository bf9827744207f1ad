//! What survives a restart of the agent: each job's controller state, its age, and the ages of its far pages.
//!
//! Written as a whole after every control period, so that a kill costs one period at most. A job is the same after
//! the restart if the machine has not been booted and its cgroup has kept its id. Ages and thresholds count scans, so
//! a history is worth nothing to an agent that scans at another period.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use policy::background::Hint;
use policy::endurance::Bucket;
use policy::{cold_age, incompressible};
use serde::{Deserialize, Serialize};
use units::{Bytes, millis};

use crate::far::FarAges;
use crate::undo::replace_file;

/// One job's history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobHistory {
    /// The kernel's id of its cgroup.
    pub id: u64,
    /// Milliseconds since boot at which it was first seen.
    pub seen_at_ms: u64,
    /// Its pool of past best thresholds.
    pub state: cold_age::State,
    /// Whether and until when it is left alone as incompressible.
    pub incompressible: incompressible::State,
    /// Ages of what it has in far memory.
    pub far: FarAges,
    /// Page cache that was reclaimed from it and has not come back.
    #[serde(default)]
    pub file_out: Bytes,
    /// What it may still write to swap devices.
    #[serde(default)]
    pub writes: Option<Bucket>,
    /// What an operator last said of it.
    #[serde(default)]
    pub hint: Option<Hint>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Contents {
    boot_id: String,
    /// Milliseconds from scan to scan.
    scan_period_ms: u64,
    /// The thresholds that the states' counters stand for.
    thresholds: Vec<u8>,
    /// What the machine may still write to swap devices.
    #[serde(default)]
    writes: Option<Bucket>,
    jobs: BTreeMap<String, JobHistory>,
}

/// The file of histories.
#[derive(Debug)]
pub struct History {
    file: PathBuf,
    contents: Contents,
}

impl History {
    /// Loads what an earlier agent left in `dir`, if it is of this boot and counts the same scans and thresholds.
    ///
    /// A damaged file is reported and forgotten: jobs then warm up anew, which is safe.
    ///
    /// # Errors
    /// Any error of making the directory.
    pub fn load(dir: &Path, boot_id: &str, scan_period: Duration, thresholds: &[u8]) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let file = dir.join("history.json");
        let scan_period_ms = millis(scan_period);
        let same = |c: &Contents| c.boot_id == boot_id && c.scan_period_ms == scan_period_ms && c.thresholds == thresholds;
        let (writes, jobs) = match fs::read(&file).map(|bytes| serde_json::from_slice::<Contents>(&bytes)) {
            Ok(Ok(contents)) if same(&contents) => (contents.writes, contents.jobs),
            // What was written has worn the device out whatever the agent counts now; its clock is the boot's.
            Ok(Ok(contents)) if contents.boot_id == boot_id => (contents.writes, BTreeMap::new()),
            Ok(Err(error)) => {
                log::warn!("{}: {error}; jobs warm up anew", file.display());
                (None, BTreeMap::new())
            }
            _ => (None, BTreeMap::new()),
        };
        let contents = Contents { boot_id: boot_id.to_owned(), scan_period_ms, thresholds: thresholds.to_vec(), writes, jobs };
        Ok(Self { file, contents })
    }

    /// The history of a job, if it is the same job.
    #[must_use]
    pub fn of(&self, path: &str, id: u64) -> Option<&JobHistory> {
        self.contents.jobs.get(path).filter(|job| job.id == id)
    }

    /// What the machine may still write to swap devices, if an earlier agent of this boot left it.
    #[must_use]
    pub fn writes(&self) -> Option<Bucket> {
        self.contents.writes
    }

    /// Replaces what the machine may write and the histories of `jobs`, and forgets the others but those whose cgroup `exists` with this path and id:
    /// a job may be out of sight for a while, because of its rule or for want of its tracker.
    ///
    /// # Errors
    /// Any error of writing; the old file then stands.
    pub fn store(
        &mut self,
        writes: Bucket,
        jobs: impl Iterator<Item = (String, JobHistory)>,
        exists: impl Fn(&str, u64) -> bool,
    ) -> io::Result<()> {
        self.contents.writes = Some(writes);
        let before = std::mem::replace(&mut self.contents.jobs, jobs.collect());
        for (path, job) in before {
            if !self.contents.jobs.contains_key(&path) && exists(&path, job.id) {
                self.contents.jobs.insert(path, job);
            }
        }
        replace_file(&self.file, &serde_json::to_vec(&self.contents)?)
    }
}

#[cfg(test)]
mod tests {
    use policy::endurance;
    use units::{Age, Pages};

    use super::*;

    #[test]
    fn a_job_keeps_its_history_only_while_it_is_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let far = FarAges::from(vec![(Age(3), Pages(40)), (Age(255), Pages(2))]);
        let (state, incompressible) = (cold_age::State::default(), incompressible::State::default());
        let limit = endurance::Params { bytes_per_day: Bytes::mib(24), burst: Bytes::mib(1) };
        let (writes, file_out) = (Bucket::full(&limit, 3), Bytes(9));
        let job =
            JobHistory { id: 5, seen_at_ms: 7, state, incompressible, far, file_out, writes: Some(writes), hint: Some(Hint::Background) };
        let scan = Duration::from_secs(120);
        let mut history = History::load(dir.path(), "boot", scan, &[1, 2]).unwrap();
        history.store(writes, [("/a".to_owned(), job.clone())].into_iter(), |_, _| false).unwrap();
        let check = |boot: &str, scan: Duration, thresholds: &[u8], id, want| {
            assert_eq!(History::load(dir.path(), boot, scan, thresholds).unwrap().of("/a", id), want);
        };
        check("boot", scan, &[1, 2], 5, Some(&job));
        check("boot", scan, &[1, 2], 6, None);
        check("boot", scan, &[1, 3], 5, None);
        check("boot", scan / 2, &[1, 2], 5, None);
        check("another", scan, &[1, 2], 5, None);
        // A device wears out whatever period the agent scans at.
        let spent = |boot: &str, scan| History::load(dir.path(), boot, scan, &[1, 2]).unwrap().writes();
        assert_eq!((spent("boot", scan / 2), spent("another", scan)), (Some(writes), None));
        // Out of sight, and then ended.
        history.store(writes, std::iter::empty(), |path, id| (path, id) == ("/a", 5)).unwrap();
        check("boot", scan, &[1, 2], 5, Some(&job));
        history.store(writes, std::iter::empty(), |_, _| false).unwrap();
        check("boot", scan, &[1, 2], 5, None);
        fs::write(dir.path().join("history.json"), "{").unwrap();
        check("boot", scan, &[1, 2], 5, None);
    }
}

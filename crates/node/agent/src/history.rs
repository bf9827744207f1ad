//! What survives a restart of the agent: each job's controller state, its age, and the ages of its far pages.
//!
//! The file is replaced after every control period, so that a kill costs one period at most. A job is the same after the restart
//! if the machine was not rebooted and its cgroup has kept its id. Ages and thresholds count scans, so a history is useless to an
//! agent with another scan period.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::far::FarAges;
use crate::job::Job;
use crate::undo::replace_file;
use policy::background::Hint;
use policy::endurance::Bucket;
use policy::{cold_age, incompressible, page_cache};
use serde::{Deserialize, Serialize};
use units::Millis;

/// One job's history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobHistory {
    /// The kernel's id of its cgroup.
    pub id: u64,
    /// Milliseconds since boot at which it was first observed.
    pub seen_at_ms: Millis,
    /// State of its `cold_age` controller: its past best thresholds.
    pub state: cold_age::State,
    /// State of policy `incompressible`.
    pub incompressible: incompressible::State,
    /// Ages of what it has in far memory.
    pub far: FarAges,
    /// Page cache that the agent reclaimed, as far as it is still saved.
    #[serde(default)]
    pub page_cache: page_cache::Saved,
    /// Its write budget.
    #[serde(default)]
    pub writes: Option<Bucket>,
    /// The last hint of an operator.
    #[serde(default)]
    pub hint: Option<Hint>,
}

impl JobHistory {
    /// The history of a job, without the states of its controllers.
    #[must_use]
    pub fn of(job: &Job) -> Self {
        Self {
            id: job.cgroup.id(),
            seen_at_ms: Millis(units::millis(job.seen_at)),
            state: cold_age::State::default(),
            incompressible: job.tiering.incompressible(),
            far: job.far.clone(),
            page_cache: job.counters.page_cache,
            writes: Some(job.tiering.writes.bucket()),
            hint: None,
        }
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Contents {
    boot_id: String,
    /// Milliseconds from scan to scan.
    scan_period_ms: Millis,
    /// The thresholds of the states' counters.
    thresholds: Vec<u8>,
    /// The machine's write budget.
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
    /// Loads what an earlier agent stored in `dir`, if it is of this boot and counts the same scans and thresholds.
    ///
    /// A damaged file is reported and ignored: jobs then warm up again, which is safe.
    ///
    /// # Errors
    /// Any error of creating the directory.
    pub fn load(dir: &Path, boot_id: &str, scan_period: Duration, thresholds: &[u8]) -> io::Result<Self> {
        daemon::trusted::create_directory(dir)?;
        let file = dir.join("history.json");
        let scan_period_ms = units::millis(scan_period);
        let same = |c: &Contents| c.boot_id == boot_id && c.scan_period_ms == Millis(scan_period_ms) && c.thresholds == thresholds;
        let (writes, jobs) = match fs::read(&file).map(|bytes| serde_json::from_slice::<Contents>(&bytes)) {
            Ok(Ok(contents)) if same(&contents) => (contents.writes, contents.jobs),
            // The device is worn by what was written, whatever the agent counts now; times are since the same boot.
            Ok(Ok(contents)) if contents.boot_id == boot_id => (contents.writes, BTreeMap::new()),
            Ok(Err(error)) => {
                log::warn!("{}: {error}; jobs warm up again", file.display());
                (None, BTreeMap::new())
            }
            _ => (None, BTreeMap::new()),
        };
        let contents =
            Contents { boot_id: boot_id.to_owned(), scan_period_ms: Millis(scan_period_ms), thresholds: thresholds.to_vec(), writes, jobs };
        Ok(Self { file, contents })
    }

    /// The history of a job, if it is the same job.
    #[must_use]
    pub fn of(&self, path: &str, id: u64) -> Option<&JobHistory> {
        self.contents.jobs.get(path).filter(|job| job.id == id)
    }

    /// The machine's write budget, if an earlier agent of this boot stored it.
    #[must_use]
    pub fn writes(&self) -> Option<Bucket> {
        self.contents.writes
    }

    /// Replaces the machine's write budget and the histories of `jobs`. Of the others, those are kept whose cgroup `exists` with
    /// this path and id: a job may be unobserved for a while, because its rule or its tracker is missing.
    ///
    /// # Errors
    /// Any error of writing; the old file is then kept.
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
    use units::{Age, Bytes, Pages};

    use super::*;

    #[test]
    fn a_job_keeps_its_history_only_while_it_is_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let far = FarAges::from(vec![(Age(3), Pages(40)), (Age(255), Pages(2))]);
        let (state, incompressible) = (cold_age::State::default(), incompressible::State::default());
        let limit = endurance::Params { bytes_per_day: Bytes::mib(24), burst: Bytes::mib(1) };
        let (writes, page_cache) = (Bucket::full(&limit, Millis(3)), page_cache::Saved::default());
        let job = JobHistory {
            id: 5,
            seen_at_ms: Millis(7),
            state,
            incompressible,
            far,
            page_cache,
            writes: Some(writes),
            hint: Some(Hint::Background),
        };
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

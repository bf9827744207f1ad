//! What survives a restart of the agent: each job's controller state and age.
//!
//! Written as a whole after every control period, so that a kill costs one period at most. A job is the same after
//! the restart if the machine has not been booted and its cgroup has kept its id.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use policy::{cold_age, incompressible};
use serde::{Deserialize, Serialize};

use crate::undo::replace_file;

/// One job's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobHistory {
    /// The kernel's id of its cgroup.
    pub id: u64,
    /// Milliseconds since boot at which it was first seen.
    pub seen_at_ms: u64,
    /// Its pool of past best thresholds.
    pub state: cold_age::State,
    /// Whether and until when it is left alone as incompressible.
    pub incompressible: incompressible::State,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Contents {
    boot_id: String,
    /// The thresholds that the states' counters stand for.
    thresholds: Vec<u8>,
    jobs: BTreeMap<String, JobHistory>,
}

/// The file of histories.
#[derive(Debug)]
pub struct History {
    file: PathBuf,
    contents: Contents,
}

impl History {
    /// Loads what an earlier agent left in `dir`, if it is of this boot and counts the same thresholds.
    ///
    /// A damaged file is reported and forgotten: jobs then warm up anew, which is safe.
    ///
    /// # Errors
    /// Any error of making the directory.
    pub fn load(dir: &Path, boot_id: &str, thresholds: &[u8]) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let file = dir.join("history.json");
        let contents = match fs::read_to_string(&file).map(|text| serde_json::from_str::<Contents>(&text)) {
            Ok(Ok(contents)) if contents.boot_id == boot_id && contents.thresholds == thresholds => contents,
            Ok(Err(error)) => {
                log::warn!("{}: {error}; jobs warm up anew", file.display());
                Contents::default()
            }
            _ => Contents::default(),
        };
        let contents = Contents { boot_id: boot_id.to_owned(), thresholds: thresholds.to_vec(), ..contents };
        Ok(Self { file, contents })
    }

    /// The history of a job, if it is the same job.
    #[must_use]
    pub fn of(&self, path: &str, id: u64) -> Option<JobHistory> {
        self.contents.jobs.get(path).copied().filter(|job| job.id == id)
    }

    /// Replaces all histories.
    ///
    /// # Errors
    /// Any error of writing; the old file then stands.
    pub fn store(&mut self, jobs: impl Iterator<Item = (String, JobHistory)>) -> io::Result<()> {
        self.contents.jobs = jobs.collect();
        replace_file(&self.file, &serde_json::to_vec(&self.contents)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_keeps_its_history_only_while_it_is_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let job = JobHistory { id: 5, seen_at_ms: 7, state: cold_age::State::default(), incompressible: incompressible::State::default() };
        let mut history = History::load(dir.path(), "boot", &[1, 2]).unwrap();
        history.store([("/a".to_owned(), job)].into_iter()).unwrap();
        let check = |boot: &str, thresholds: &[u8], id, want| {
            assert_eq!(History::load(dir.path(), boot, thresholds).unwrap().of("/a", id), want);
        };
        check("boot", &[1, 2], 5, Some(job));
        check("boot", &[1, 2], 6, None);
        check("boot", &[1, 3], 5, None);
        check("another", &[1, 2], 5, None);
        fs::write(dir.path().join("history.json"), "{").unwrap();
        check("boot", &[1, 2], 5, None);
    }
}

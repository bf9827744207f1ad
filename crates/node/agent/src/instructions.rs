//! Instructions per cycle of the largest jobs: where far memory makes a job wait for memory, it falls.
//!
//! `agent.count_instructions` is 16 at most: two descriptors per processor and job are 32,768 on 1,024 processors, half of the 65,536
//! that the agent's unit permits (`LimitNOFILE`); trackers and sockets need the rest. A machine with more processors runs out of them,
//! and counts none.

use std::collections::BTreeMap;

use kernel::Roots;
use kernel::perf::instructions::{CgroupCounters, Counts};

use crate::controllers::slots::Jobs;

/// The counters of the jobs that are counted.
#[derive(Debug, Default)]
pub struct Instructions {
    /// By cgroup id.
    counted: BTreeMap<u64, (CgroupCounters, Counts)>,
    /// Whether they cannot be counted, which was reported.
    refused: bool,
}

impl Instructions {
    /// Ends a period of the `most` largest jobs, and begins the next. Returns an error, once, if nothing can be counted.
    pub fn read(&mut self, roots: &Roots, jobs: &mut Jobs, most: usize) -> Option<kernel::Error> {
        if self.refused || (most == 0 && self.counted.is_empty()) {
            return None;
        }
        let mut by_size: Vec<_> = jobs.values().map(|entry| (entry.job.memory.current, entry.job.cgroup.id())).collect();
        by_size.sort_unstable_by(|one, other| other.cmp(one));
        let chosen: Vec<u64> = by_size.into_iter().take(most).map(|(_, id)| id).collect();
        self.counted.retain(|id, _| chosen.contains(id));
        for entry in jobs.values_mut() {
            let job = &mut entry.job;
            let id = job.cgroup.id();
            if !chosen.contains(&id) {
                job.waits.count_instructions(None);
                continue;
            }
            match self.period(roots, id, job.cgroup.path()) {
                Ok(counts) => job.waits.count_instructions(counts),
                Err(error) if error.is_gone() => {}
                Err(error) => {
                    self.counted.clear();
                    self.refused = true;
                    return Some(error);
                }
            }
        }
        None
    }

    /// What a cgroup counted since the last period; `None` in its first.
    fn period(&mut self, roots: &Roots, id: u64, directory: &std::path::Path) -> kernel::Result<Option<Counts>> {
        let Some((counters, before)) = self.counted.get_mut(&id) else {
            let mut counters = CgroupCounters::open(roots, directory)?;
            let first = counters.read()?;
            self.counted.insert(id, (counters, first));
            return Ok(None);
        };
        let now = counters.read()?;
        let last = std::mem::replace(before, now);
        Ok(Some(Counts {
            instructions: now.instructions.saturating_sub(last.instructions),
            cycles: now.cycles.saturating_sub(last.cycles),
        }))
    }
}

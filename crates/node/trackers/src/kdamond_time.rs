//! CPU time of kdamonds, the kernel threads that DAMON works in. They are children of `kthreadd`, so no process's usage
//! includes them.

use std::collections::HashMap;
use std::time::Duration;

use kernel::{Roots, process};

/// CPU time of the kdamonds of one tracker.
#[derive(Debug, Default)]
pub(crate) struct KdamondTime {
    running: HashMap<i32, Duration>,
    stopped: Duration,
}

impl KdamondTime {
    /// Reads the CPU time of running kdamonds. One that has ended keeps its last value.
    pub(crate) fn update(&mut self, roots: &Roots, kdamonds: &[i32]) {
        for &pid in kdamonds {
            if let Ok(stat) = process::stat(roots, pid) {
                self.running.insert(pid, stat.cpu_time());
            }
        }
    }

    /// Records that all kdamonds have been stopped; their process ids may be reused.
    pub(crate) fn stopped(&mut self) {
        self.stopped += self.running.drain().map(|(_, time)| time).sum::<Duration>();
    }

    /// CPU time of all kdamonds so far.
    pub(crate) fn total(&self) -> Duration {
        self.stopped + self.running.values().sum::<Duration>()
    }
}

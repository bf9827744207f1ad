//! The thread that scans: a scan of a large machine takes seconds, and the loop keeps its other deadlines meanwhile.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use kernel::process::thread_cpu_time;
use trackers::ages::{Scan, Target, Tracker};

/// A scan takes seconds on a large machine. One that takes this long hangs in the kernel.
const SCAN_LIMIT: Duration = Duration::from_secs(30 * 60);

/// What one tracker measures in a scan.
pub(super) struct Part {
    pub(super) tracker: Box<dyn Tracker>,
    pub(super) targets: Vec<Target>,
    /// One result per target.
    pub(super) scans: kernel::Result<Vec<kernel::Result<Scan>>>,
    /// CPU time of the scan, including that of the tracker's kernel threads.
    pub(super) cpu: Duration,
}

impl std::fmt::Debug for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Part").field("tracker", &self.tracker.kind()).field("targets", &self.targets.len()).finish_non_exhaustive()
    }
}

impl Part {
    pub(super) fn new(tracker: Box<dyn Tracker>, targets: Vec<Target>) -> Self {
        Self { tracker, targets, scans: Ok(Vec::new()), cpu: Duration::ZERO }
    }

    fn measure(&mut self, now: Duration) {
        let cpu = |tracker: &dyn Tracker| thread_cpu_time().unwrap_or_default() + tracker.kernel_cpu_time();
        let before = cpu(self.tracker.as_ref());
        self.scans = self.tracker.scan(now, &self.targets);
        self.cpu = cpu(self.tracker.as_ref()).saturating_sub(before);
    }
}

/// The thread has panicked, and the trackers that it had are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an error of the program, reported above, stopped the scanning thread; the next start restores what its tracker set")]
pub struct Ended;

/// The scanning thread. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Scanner {
    work: Sender<(Duration, Vec<Part>)>,
    results: Receiver<Vec<Part>>,
    /// Results that [`Scanner::settle`] has waited for.
    settled: Option<Vec<Part>>,
}

impl Scanner {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system has no more threads.
    pub(super) fn start() -> std::io::Result<Self> {
        let (work, orders) = mpsc::channel::<(Duration, Vec<Part>)>();
        let (done, results) = mpsc::channel();
        thread::Builder::new().name("scan".to_owned()).spawn(move || {
            let member = daemon::watchdog::join("scan", SCAN_LIMIT);
            for (now, mut parts) in orders {
                let _busy = member.busy();
                parts.iter_mut().for_each(|part| part.measure(now));
                if done.send(parts).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self { work, results, settled: None })
    }

    /// Begins a scan at `now`, time since boot.
    ///
    /// # Errors
    /// As [`Scanner::results`].
    pub(super) fn begin(&self, now: Duration, parts: Vec<Part>) -> Result<(), Ended> {
        self.work.send((now, parts)).map_err(|_| Ended)
    }

    /// Waits until the scan that is under way has measured everything, and keeps its results: nothing reads the kernel's files
    /// beside a simulation that changes them.
    ///
    /// # Errors
    /// As [`Scanner::results`].
    pub(super) fn settle(&mut self) -> Result<(), Ended> {
        self.settled = self.results(Duration::MAX)?;
        Ok(())
    }

    /// The results of the scan that is under way; `None` if it takes longer than `wait`.
    ///
    /// # Errors
    /// If the thread has panicked.
    pub(super) fn results(&mut self, wait: Duration) -> Result<Option<Vec<Part>>, Ended> {
        if let Some(parts) = self.settled.take() {
            return Ok(Some(parts));
        }
        match self.results.recv_timeout(wait) {
            Ok(parts) => Ok(Some(parts)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Ended),
        }
    }
}

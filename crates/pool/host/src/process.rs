//! Processes of guests: identity across reuse of process ids, end, and memory as the kernel accounts for it.

use std::time::{Duration, Instant};

use kernel::{Roots, process};
use serde::{Deserialize, Serialize};

/// How long a killed process may take to exit. Unmapping tmpfs takes about a second per few GiB.
pub(crate) const EXIT_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A process, identified across reuse of its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Process id.
    pub pid: i32,
    /// Start time in clock ticks since boot. Another process with the same id has another start time.
    pub starttime: u64,
    /// 1 at the start; 2 after the guest was moved to local memory, in a second process or in the same one.
    pub generation: u32,
}

impl Process {
    /// The running process with this id that has an argument for which `matches` holds. The id may belong to another
    /// process by now.
    pub(crate) fn with_argument(roots: &Roots, pid: i32, generation: u32, matches: impl Fn(&[u8]) -> bool) -> Option<Self> {
        let stat = process::stat(roots, pid).ok()?;
        let process = Self { pid, starttime: stat.starttime, generation };
        let line = std::fs::read(roots.proc.join(pid.to_string()).join("cmdline")).ok()?;
        (line.split(|&byte| byte == 0).any(matches) && process.is_alive(roots)).then_some(process)
    }

    /// The process that has this id now, even if it has exited and is not waited for.
    pub(crate) fn now(roots: &Roots, pid: i32, generation: u32) -> Option<Self> {
        Some(Self { pid, starttime: process::stat(roots, pid).ok()?.starttime, generation })
    }

    pub(crate) fn is_alive(&self, roots: &Roots) -> bool {
        let Ok(stat) = process::stat(roots, self.pid) else { return false };
        if stat.starttime != self.starttime {
            return false;
        }
        match stat.state {
            'X' => false,
            'Z' => !self.is_reaped(),
            _ => true,
        }
    }

    /// Removes an exited child from the process table. False while it still has threads, which keep its files open.
    /// True for a process that is no child: an earlier daemon started it.
    fn is_reaped(&self) -> bool {
        let Some(pid) = rustix::process::Pid::from_raw(self.pid) else { return true };
        !matches!(rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::NOHANG), Ok(None))
    }

    /// Waits for the process to exit. Returns whether it has exited.
    pub(crate) fn wait(&self, roots: &Roots, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        while self.is_alive(roots) {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        true
    }

    /// Kills the process and waits for its exit.
    pub(crate) fn kill(&self, roots: &Roots) {
        if self.is_alive(roots) {
            process::signal(self.pid, 9);
            if !self.wait(roots, EXIT_TIMEOUT) {
                log::error!("process {} has not exited {} s after SIGKILL", self.pid, EXIT_TIMEOUT.as_secs());
            }
        }
    }
}

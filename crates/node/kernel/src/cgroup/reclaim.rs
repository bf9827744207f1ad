//! Proactive reclaim: `memory.reclaim` (Linux 5.19).
//!
//! One write is one request: `16777216`, or `16777216 swappiness=200`. A kernel that does not know `swappiness=`, or
//! not that value, answers `EINVAL` before it reclaims anything; `EAGAIN` and `EINTR` come after it tried.

use std::fmt;

use units::Bytes;

use super::Cgroup;
use crate::{Error, Result, file};

const FILE: &str = "memory.reclaim";

/// How far `memory.reclaim` came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReclaimOutcome {
    /// The kernel reclaimed at least what was asked.
    Done,
    /// It gave up before (`EAGAIN`); some memory may have gone out.
    Partial,
    /// A signal ended the request (`EINTR`); some memory may have gone out.
    Interrupted,
}

/// The kernel's leaning between anonymous and file pages during one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Swappiness {
    /// 0 takes file pages only, 200 prefers anonymous ones; more is refused by the kernel. From Linux 6.9 on.
    Value(u8),
    /// Anonymous pages only; 6.12 does not know the word, 7.2 does.
    Max,
}

impl fmt::Display for Swappiness {
    /// As the kernel reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => write!(f, "{value}"),
            Self::Max => f.write_str("max"),
        }
    }
}

impl Cgroup {
    /// Asks the kernel to reclaim `amount` from it and its descendants (`memory.reclaim`, Linux 5.19).
    ///
    /// Blocks until the kernel is done, which may take minutes on a hot cgroup: ask for little, from a process
    /// that may be killed. The stall is booked to the pressure of the caller's own cgroup. The kernel may reclaim
    /// twice of what was asked.
    ///
    /// # Errors
    /// As [`Cgroup::current`]; [`Error::Unsupported`] also where the kernel refuses the swappiness.
    pub fn reclaim(&self, amount: Bytes, swappiness: Option<Swappiness>) -> Result<ReclaimOutcome> {
        let request = match swappiness {
            None => amount.0.to_string(),
            Some(swappiness) => format!("{} swappiness={swappiness}", amount.0),
        };
        let file = self.open_file(FILE, true)?.ok_or_else(|| self.missing(FILE))?;
        match file::write_opened(&file, &request) {
            Ok(()) => Ok(ReclaimOutcome::Done),
            Err(source) => match source.raw_os_error() {
                Some(libc::EAGAIN) => Ok(ReclaimOutcome::Partial),
                Some(libc::EINTR) => Ok(ReclaimOutcome::Interrupted),
                Some(libc::EINVAL) if swappiness.is_some() => Err(Error::unsupported(
                    format!("this kernel refuses {request:?} in memory.reclaim"),
                    "reclaim without swappiness, or with a number from 0 to 200 from Linux 6.9 on",
                )),
                _ => Err(Error::from_io(&self.path.join(FILE), "write", source)),
            },
        }
    }

    /// Whether `memory.reclaim` takes this swappiness. It asks for 0 bytes: the kernel reads the whole request before
    /// it begins (`memory_reclaim()` in `mm/memcontrol.c`, `user_proactive_reclaim()` in newer kernels), and then has
    /// nothing to do. Seen to take 0 and 200 on Linux 6.12 and 7.2, `max` on 7.2 alone, and 201 on neither.
    ///
    /// # Errors
    /// As [`Cgroup::current`].
    pub fn reclaim_takes(&self, swappiness: Swappiness) -> Result<bool> {
        let file = self.open_file(FILE, true)?.ok_or_else(|| self.missing(FILE))?;
        match file::write_opened(&file, &format!("0 swappiness={swappiness}")) {
            Ok(()) => Ok(true),
            Err(source) if source.raw_os_error() == Some(libc::EINVAL) => Ok(false),
            Err(source) => Err(Error::from_io(&self.path.join(FILE), "write", source)),
        }
    }
}

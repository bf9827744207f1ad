//! Proactive reclaim: `memory.reclaim` (Linux 5.19).
//!
//! Each write is one request: `16777216`, or `16777216 swappiness=200`. If the kernel does not support `swappiness=` or the
//! value, it returns `EINVAL` before it reclaims; `EAGAIN` and `EINTR` are returned after it has tried.

use std::fmt;

use units::Bytes;

use super::Cgroup;
use crate::{Error, Result, file};

const FILE: &str = "memory.reclaim";

/// The result of a request to `memory.reclaim`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReclaimOutcome {
    /// The kernel reclaimed at least the requested amount.
    Done,
    /// The kernel reclaimed less than requested (`EAGAIN`).
    Partial,
    /// A signal interrupted the request (`EINTR`); some memory may have been reclaimed.
    Interrupted,
}

/// The swappiness of one request: the kernel's bias between anonymous and file pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Swappiness {
    /// 0 reclaims file pages only, 200 prefers anonymous pages; the kernel rejects higher values. From Linux 6.9 on.
    Value(u8),
    /// Anonymous pages only; supported by Linux 7.2, not by 6.12.
    Max,
}

impl fmt::Display for Swappiness {
    /// Prints the kernel's format.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => write!(f, "{value}"),
            Self::Max => f.write_str("max"),
        }
    }
}

impl Cgroup {
    /// Requests reclaim of `amount` from the cgroup and its descendants (`memory.reclaim`, Linux 5.19).
    ///
    /// Blocks until the kernel is done, which may take minutes on a cgroup without cold memory: request small amounts, from a
    /// process that can be killed. The stall is accounted to the pressure of the caller's cgroup. The kernel may reclaim
    /// twice the requested amount.
    ///
    /// # Errors
    /// As [`Cgroup::current`]; [`Error::Unsupported`] also if the kernel rejects the swappiness.
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
                    format!("this kernel rejects {request:?} in memory.reclaim"),
                    "reclaim without swappiness, or boot Linux 6.9 or newer and use a number from 0 to 200",
                )),
                _ => Err(Error::from_io(&self.path.join(FILE), "write", source)),
            },
        }
    }

    /// Whether `memory.reclaim` supports this swappiness. Requests 0 bytes, which reclaims nothing: the kernel parses the whole
    /// request first (`memory_reclaim()` in `mm/memcontrol.c`, `user_proactive_reclaim()` in newer kernels). Linux 6.12 and
    /// 7.2 accept 0 and 200 and reject 201; only 7.2 accepts `max`.
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

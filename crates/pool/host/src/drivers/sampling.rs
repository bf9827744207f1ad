//! Memory of a guest, as the kernel accounts for its process.

use std::time::{SystemTime, UNIX_EPOCH};

use kernel::{Roots, smaps};
use units::Bytes;

use crate::driver::{Error, Usage};
use crate::process::Process;

/// Balloon statistics that are older than this many seconds are ignored.
const BALLOON_AGE_SECONDS_MAX: u64 = 30;

/// Whether a mapping with this path is an anonymous memory file that QEMU created for its guest.
pub(super) fn is_memfd(path: &str) -> bool {
    path.starts_with("/memfd:memory-backend-memfd")
}

/// Sums the mappings of a guest's process and clears their accessed bits. `pool_touched` returns the touched bytes of a
/// mapping of pool memory, and `None` for any other mapping.
///
/// # Errors
/// [`Error::Kernel`]: the process has exited, or its files cannot be read.
pub(super) fn sample(roots: &Roots, process: &Process, pool_touched: impl Fn(&smaps::Mapping) -> Option<Bytes>) -> Result<Usage, Error> {
    let mut usage = Usage::default();
    for mapping in smaps::read(roots, process.pid)? {
        if let Some(touched) = pool_touched(&mapping) {
            usage.pool_accessed_bytes += Bytes(mapping.referenced);
            usage.pool_touched_bytes += touched;
        } else if is_memfd(&mapping.vma.path) {
            usage.local_accessed_bytes += Bytes(mapping.referenced);
            usage.local_touched_bytes += Bytes(mapping.rss);
        }
    }
    smaps::clear_referenced(roots, process.pid)?;
    Ok(usage)
}

/// Seconds since 1970, the unit in which balloon statistics are dated.
pub(super) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Whether balloon statistics of this time (in seconds since 1970; zero if the guest has not reported yet) are recent
/// enough.
pub(super) fn is_recent(reported_at: u64, now: u64) -> bool {
    reported_at != 0 && now.saturating_sub(reported_at) <= BALLOON_AGE_SECONDS_MAX
}

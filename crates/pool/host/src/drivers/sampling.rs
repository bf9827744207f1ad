//! Memory of a guest, as the kernel accounts for its process.

use std::time::{SystemTime, UNIX_EPOCH};

use kernel::{Roots, smaps};
use units::Bytes;

use crate::accesses;
use crate::driver::{Error, Usage};
use crate::process::Process;

/// Balloon statistics that are older than this many seconds are ignored.
const BALLOON_AGE_SECONDS_MAX: u64 = 30;

/// Whether a mapping with this path is an anonymous memory file that QEMU created for its guest.
pub(super) fn is_memfd(path: &str) -> bool {
    path.starts_with("/memfd:memory-backend-memfd")
}

/// Where a mapping of a guest's memory is.
enum Place {
    Local,
    Pool,
}

/// The mappings of a guest's memory.
pub(super) struct Memory {
    mappings: Vec<smaps::Mapping>,
    places: Vec<Place>,
    /// Without accesses.
    pub(super) touched: Usage,
}

impl Memory {
    /// Reads the mappings of a guest's process. `pool_touched` returns the touched bytes of a mapping of pool memory, and `None` for
    /// any other mapping.
    ///
    /// # Errors
    /// [`Error::Kernel`]: the process has exited, or its files cannot be read.
    pub(super) fn read(roots: &Roots, process: &Process, pool_touched: impl Fn(&smaps::Mapping) -> Option<Bytes>) -> Result<Self, Error> {
        let mut memory = Self { mappings: Vec::new(), places: Vec::new(), touched: Usage::default() };
        for mapping in smaps::read(roots, process.pid)? {
            if let Some(touched) = pool_touched(&mapping) {
                memory.touched.pool_touched_bytes += touched;
                memory.places.push(Place::Pool);
            } else if is_memfd(&mapping.vma.path) {
                // The kernel does not say how much of huge pages is touched.
                memory.touched.local_touched_bytes += Bytes(if mapping.hugetlb { mapping.vma.len() } else { mapping.rss + mapping.swap });
                memory.places.push(Place::Local);
            } else {
                continue;
            }
            memory.mappings.push(mapping);
        }
        Ok(memory)
    }

    /// Adds what is accessed.
    ///
    /// # Errors
    /// As [`Memory::read`].
    pub(super) fn usage(&self, roots: &Roots, process: &Process, how: &accesses::Settings) -> Result<Usage, Error> {
        let sampled = accesses::sample(roots, process.pid, &self.mappings, how, std::thread::sleep)?;
        let mut usage = Usage { seen: sampled.seen, kernel_cpu: sampled.kernel_cpu, ..self.touched };
        for (place, accessed) in self.places.iter().zip(sampled.accessed) {
            match place {
                Place::Pool => usage.pool_accessed_bytes += accessed.at_least,
                Place::Local => usage.local_accessed_bytes += accessed.estimated,
            }
        }
        Ok(usage)
    }
}

/// Ends what a killed daemon has left of a sample of one of these processes.
///
/// # Errors
/// [`Error::Kernel`]: DAMON's files cannot be read or written.
pub(super) fn end(roots: &Roots, processes: &[Process]) -> Result<(), Error> {
    let pids: Vec<i32> = processes.iter().map(|process| process.pid).collect();
    let ended = accesses::reap(roots, &pids)?;
    if ended > 0 {
        log::info!("ended the sample of an earlier daemon: {ended} kdamonds");
    }
    Ok(())
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

//! Files of the pool.

use std::path::Path;

use predict::{Insensitive, Untouched};

use crate::scratch::with_file;

/// Models of both predictions.
pub(crate) fn models(bytes: &[u8]) -> bool {
    let path = Path::new("fuzz");
    Untouched::parse(bytes, path).is_ok() | Insensitive::parse(bytes, path).is_ok()
}

/// An audit log.
pub(crate) fn audit(bytes: &[u8]) -> bool {
    with_file("audit.jsonl", bytes, |path| {
        let mut entries = 0;
        manager::audit::read(path, |_| entries += 1).is_ok() && entries > 0
    })
}

/// A scheduler's log, each of whose decisions is made again.
pub(crate) fn placements(bytes: &[u8]) -> bool {
    with_file("scheduler.log", bytes, |path| scheduler::replay::check(path).is_ok_and(|replayed| replayed.decisions > 0))
}

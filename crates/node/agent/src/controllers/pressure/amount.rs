//! How much is reclaimed of each kind of memory.

use policy::balance::AnonFileBias;
use units::Bytes;

/// The swappiness that reclaims anonymous memory only.
const ANON_ONLY: u128 = 200;

/// Memory to reclaim, by kind.
///
/// The kernel is asked for one kind at a time: with a swappiness between its limits MGLRU picks the kind with the older
/// generation and uses swappiness only if both are of the same age (`isolate_folios()` in `mm/vmscan.c`), so a mixed job would
/// lose only page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount {
    /// Anonymous and shared memory left to ask for.
    pub anon: Bytes,
    /// Page cache left to ask for.
    pub file: Bytes,
}

impl Amount {
    /// Divides an amount between the kinds by the bias, in proportion to the resident memory of each, as the kernel weighs its
    /// lists.
    pub(super) fn of(bytes: Bytes, bias: AnonFileBias, anon: Bytes, file: Bytes) -> Self {
        let AnonFileBias::Swappiness(swappiness) = bias else { return Self { anon: Bytes::ZERO, file: bytes } };
        let swappiness = u128::from(swappiness).min(ANON_ONLY);
        let (anon, file) = (u128::from(anon.0) * swappiness, u128::from(file.0) * (ANON_ONLY - swappiness));
        let part = (u128::from(bytes.0) * anon).checked_div(anon + file).unwrap_or(0);
        let anon = Bytes(u64::try_from(part).unwrap_or(bytes.0));
        Self { anon, file: bytes - anon }
    }

    /// The sum of both kinds.
    #[must_use]
    pub fn total(&self) -> Bytes {
        self.anon + self.file
    }
}

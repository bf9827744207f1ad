//! Amounts of memory.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::counter::counter;

counter! {
    /// A size or an amount of memory, in bytes.
    Bytes
}

counter! {
    /// A number of base pages (the kernel's `PAGE_SIZE`, 4 KiB on x86-64).
    Pages
}

impl Bytes {
    /// `n` times 2^10 bytes.
    #[must_use]
    pub const fn kib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 10))
    }

    /// `n` times 2^20 bytes.
    #[must_use]
    pub const fn mib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 20))
    }

    /// `n` times 2^30 bytes.
    #[must_use]
    pub const fn gib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 30))
    }

    /// Whole MiB, rounded up.
    #[must_use]
    pub const fn to_mib_ceil(self) -> u64 {
        self.0.div_ceil(1 << 20)
    }

    /// Whole pages, rounded down.
    #[must_use]
    pub const fn to_pages(self, page_size: PageSize) -> Pages {
        Pages(self.0 / page_size.0)
    }
}

impl Pages {
    /// The size of this many pages.
    #[must_use]
    pub const fn to_bytes(self, page_size: PageSize) -> Bytes {
        Bytes(self.0.saturating_mul(page_size.0))
    }
}

impl fmt::Display for Bytes {
    /// Prints with one decimal, in the largest binary unit of which there is at least one: `1.5 GiB`, `312 B`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        #[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        write!(f, "{value:.1} {}", UNITS[unit])
    }
}

/// The size of a base page, in bytes: a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PageSize(u64);

impl PageSize {
    /// 4 KiB, the base page of x86-64.
    pub const X86_64: Self = Self(4096);

    /// A page size; `None` if `bytes` is not a power of two.
    #[must_use]
    pub const fn new(bytes: u64) -> Option<Self> {
        if bytes.is_power_of_two() { Some(Self(bytes)) } else { None }
    }

    /// Bytes per page.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_print_in_binary_units() {
        for (bytes, text) in [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 19, "1.5 MiB"), (u64::MAX, "16384.0 PiB")] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }

    #[test]
    fn sizes_convert_and_saturate() {
        assert_eq!(Bytes::gib(1), Bytes::mib(1024));
        assert_eq!(Bytes::mib(1), Bytes::kib(1024));
        assert_eq!(Bytes::gib(u64::MAX), Bytes(u64::MAX));
        assert_eq!((Bytes(1).to_mib_ceil(), Bytes::mib(2).to_mib_ceil()), (1, 2));
        assert_eq!(Bytes(8191).to_pages(PageSize::X86_64), Pages(1));
        assert_eq!(Pages(2).to_bytes(PageSize::X86_64), Bytes(8192));
        assert_eq!(Bytes(1) - Bytes(2), Bytes::ZERO);
        assert_eq!(Bytes(u64::MAX) + Bytes(1), Bytes(u64::MAX));
        assert_eq!(PageSize::new(4097), None);
    }
}

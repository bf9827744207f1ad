//! Access traces: which page groups of a program are accessed in which interval.
//!
//! A group is one or more pages that are accessed together. It exists from its first access until it is freed, and a freed group
//! that is accessed again is new memory. Within an interval, accesses come before what is freed. [`crate::text`] is the file form.

use units::{Bytes, PageSize, Pages, RatioPpm};

/// The most groups of a trace: 16 GiB of single pages.
pub const GROUPS_MAX: usize = 1 << 22;

/// The most intervals of a trace: half a year of minutes.
pub const INTERVALS_MAX: usize = 1 << 18;

/// What a group's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Anonymous memory, which is swapped out: to zswap, or to a device.
    Anon,
    /// Page cache that is accessed by system calls, clean: it is dropped, and read from its file again.
    File,
}

impl Kind {
    /// Both kinds, in the order of [`Kind::index`].
    pub const ALL: [Self; 2] = [Self::Anon, Self::File];

    /// A number for tables.
    #[must_use]
    pub fn index(self) -> usize {
        match self {
            Self::Anon => 0,
            Self::File => 1,
        }
    }
}

/// One group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// What it is.
    pub kind: Kind,
    /// Its compressed size as a share of the original. One or more does not fit into zswap and goes to the device.
    pub compressed: RatioPpm,
}

impl Group {
    /// Whether zswap can store it: the kernel rejects pages that do not shrink.
    #[must_use]
    pub fn compresses(&self) -> bool {
        self.compressed < RatioPpm::ONE
    }
}

/// What happens in one interval. Both lists ascend, without duplicates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// Groups that are accessed.
    pub accessed: Vec<u32>,
    /// Groups that are freed at the end of the interval.
    pub freed: Vec<u32>,
}

/// The trace of one program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The program.
    pub name: String,
    /// Length of an interval, in milliseconds.
    pub interval_ms: u64,
    /// Pages of 4 KiB in each group.
    pub group_pages: u32,
    /// How many seconds of a production machine a second of the trace stands for. All times of all laws are divided by it.
    pub compression: u32,
    /// Intervals before those that are measured, in which laws settle.
    pub settle: u32,
    /// The groups, by number.
    pub groups: Vec<Group>,
    /// The intervals, in order.
    pub intervals: Vec<Interval>,
}

impl Trace {
    /// Size of a group.
    #[must_use]
    pub fn group_bytes(&self) -> Bytes {
        Pages(u64::from(self.group_pages)).to_bytes(PageSize::X86_64)
    }

    /// Intervals that are measured.
    #[must_use]
    pub fn measured(&self) -> u64 {
        self.intervals.len().saturating_sub(self.settle as usize) as u64
    }

    /// Time that is measured, in microseconds.
    #[must_use]
    pub fn measured_us(&self) -> u64 {
        self.measured().saturating_mul(self.interval_ms).saturating_mul(1_000)
    }

    /// A time of a production machine, in milliseconds of the trace: at least one interval.
    #[must_use]
    pub fn compressed_ms(&self, production_ms: u64) -> u64 {
        (production_ms / u64::from(self.compression.max(1))).max(self.interval_ms)
    }

    /// What the program occupies without far memory: the mean over the measured intervals.
    #[must_use]
    pub fn occupied(&self) -> Bytes {
        let mut exists = vec![false; self.groups.len()];
        let (mut groups, mut sum) = (0u64, 0u64);
        for (at, interval) in self.intervals.iter().enumerate() {
            for &group in &interval.accessed {
                groups += u64::from(!std::mem::replace(&mut exists[group as usize], true));
            }
            for &group in &interval.freed {
                groups -= u64::from(std::mem::replace(&mut exists[group as usize], false));
            }
            if at >= self.settle as usize {
                sum += groups;
            }
        }
        Bytes(sum.saturating_mul(self.group_bytes().0) / self.measured().max(1))
    }
}

//! A row of the table of tiers: one place where the kernel can store a page, with its properties.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use units::Bytes;

/// Length of the longest id: that of a kernel's name of a disk (`DISK_NAME_LEN`).
const ID_MAX: usize = 32;

/// Less free space than this is none: the kernel reclaims in batches.
pub const FREE_MIN: Bytes = Bytes::mib(1);

/// The name of a row: `zswap`, or the kernel's name of a swap device such as `vdb`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RowId {
    text: [u8; ID_MAX],
    length: usize,
}

/// A name that is too long for a [`RowId`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TooLong(String);

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is longer than {ID_MAX} bytes, the longest name of a tier", self.0)
    }
}

impl std::error::Error for TooLong {}

impl RowId {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.text.get(..self.length).and_then(|text| str::from_utf8(text).ok()).unwrap_or_default()
    }
}

impl FromStr for RowId {
    type Err = TooLong;

    fn from_str(name: &str) -> Result<Self, TooLong> {
        let mut text = [0; ID_MAX];
        let start = text.get_mut(..name.len()).ok_or_else(|| TooLong(name.to_owned()))?;
        start.copy_from_slice(name.as_bytes());
        Ok(Self { text, length: name.len() })
    }
}

impl fmt::Display for RowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for RowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for RowId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for RowId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// What a row stores pages on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Medium {
    /// DRAM, compressed.
    CompressedDram,
    /// A block device.
    Device,
}

/// What a stored byte still costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accounting {
    /// DRAM: the compressed share of the job's own pages.
    Compressed,
    /// Space on a device: `swap_cost` of the job's class.
    SwapCost,
}

/// Who decides that a page goes to a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placing {
    /// The row is in front of the swap areas, and a job can be excluded from it (`memory.zswap.max`).
    Cgroup,
    /// The kernel, for all cgroups alike: it fills the swap areas in the order of their priority, highest first.
    Priority(i32),
}

/// One place where the kernel can store a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// Its name.
    pub id: RowId,
    /// What it stores pages on.
    pub medium: Medium,
    /// Measured latency of a page from it, in microseconds; `None` before the first measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<u32>,
    /// Free space; `None` if it has no limit of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free: Option<Bytes>,
    /// Bytes that may still be written to it; `None` if writes do not wear it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endurance: Option<Bytes>,
    /// What a byte there still costs.
    pub accounting: Accounting,
    /// The row that it writes its oldest pages back to, if the kernel can exclude a job from that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writes_back: Option<RowId>,
    /// Who decides that a page goes there.
    pub placing: Placing,
}

impl Row {
    /// Whether a job can be excluded from the row.
    #[must_use]
    pub fn is_in_front_of_swap(&self) -> bool {
        self.placing == Placing::Cgroup
    }

    /// Combines rows between which the kernel alternates, because their priorities are equal: the worst of each property.
    fn worst(self, other: &Self) -> Self {
        let by_ratio = self.accounting == Accounting::Compressed;
        Self {
            latency_us: self.latency_us.max(other.latency_us),
            endurance: [self.endurance, other.endurance].into_iter().flatten().min(),
            accounting: if by_ratio { self.accounting } else { other.accounting },
            ..self
        }
    }
}

/// The rows that a job's next page can reach, in the order in which the kernel tries them: those in front of the swap areas, then
/// the areas of the highest priority that have free space, as one row.
#[must_use]
pub fn reachable(rows: &[Row]) -> Vec<Row> {
    let mut reached: Vec<Row> = rows.iter().filter(|row| row.is_in_front_of_swap()).copied().collect();
    let with_space = || {
        rows.iter().filter_map(|row| match row.placing {
            Placing::Priority(priority) if row.free.is_none_or(|free| free >= FREE_MIN) => Some((priority, row)),
            _ => None,
        })
    };
    let highest = with_space().map(|(priority, _)| priority).max();
    let alternating = with_space().filter(|&(priority, _)| Some(priority) == highest).map(|(_, row)| *row);
    reached.extend(alternating.reduce(|one, other| one.worst(&other)));
    reached
}

//! Records which parts of a fleet have been counted.
//!
//! Wrong sums, of jobs that were counted twice or cut, cannot be distinguished from right ones. Every tally therefore carries its
//! coverage, and parts that were counted before are rejected.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use twox_hash::XxHash64;

/// A part of a fleet, identified by its contents and not by its location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Fingerprint of the owner of the jobs: a machine, or a single file without a machine.
    pub owner: u64,
    /// Fingerprint of all files of the owner. A further file may continue jobs of the others.
    pub listing: u64,
    /// Row groups of the file. Files that are read together count as one row group.
    pub groups: Range<u32>,
    /// Number of row groups of the file.
    pub of: u32,
}

/// A set of parts that do not overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coverage(BTreeMap<u64, OwnerCoverage>);

/// Counted row groups of one owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct OwnerCoverage {
    listing: u64,
    of: u32,
    /// Start and end of each range of row groups.
    ranges: BTreeMap<u32, u32>,
}

/// Reason why a part cannot be added to a coverage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    /// The coverage contains some of it.
    #[error("some of its traces have been counted already; give each part once")]
    Twice,
    /// The coverage contains its machine with other files.
    #[error("some of its machines have been counted already, from other files; a machine's files belong into one part")]
    Changed,
}

impl Coverage {
    /// Adds a part.
    ///
    /// # Errors
    /// [`Conflict`]; the coverage stays as it was.
    pub fn add(&mut self, part: &Part) -> Result<(), Conflict> {
        let Range { start, end } = part.groups;
        let Some(owner_coverage) = self.0.get_mut(&part.owner) else {
            self.0.insert(part.owner, OwnerCoverage { listing: part.listing, of: part.of, ranges: BTreeMap::from([(start, end)]) });
            return Ok(());
        };
        if (owner_coverage.listing, owner_coverage.of) != (part.listing, part.of) {
            return Err(Conflict::Changed);
        }
        // Of the ranges that begin before the end of this one, the last has the highest end.
        if owner_coverage.ranges.range(..end).next_back().is_some_and(|(_, &ends)| ends > start) {
            return Err(Conflict::Twice);
        }
        owner_coverage.ranges.insert(start, end);
        Ok(())
    }

    /// Adds all parts of another coverage.
    ///
    /// # Errors
    /// [`Conflict`]; some of the parts may have been added then.
    pub fn merge(&mut self, other: &Self) -> Result<(), Conflict> {
        other.parts().try_for_each(|part| self.add(&part))
    }

    /// Iterates over the parts.
    pub fn parts(&self) -> impl Iterator<Item = Part> {
        self.0.iter().flat_map(|(&owner, owner_coverage)| {
            let part = move |(&start, &end)| Part { owner, listing: owner_coverage.listing, groups: start..end, of: owner_coverage.of };
            owner_coverage.ranges.iter().map(part)
        })
    }

    /// Returns whether the coverage contains exactly this part.
    #[must_use]
    pub fn holds(&self, part: &Part) -> bool {
        let of_owner =
            self.0.get(&part.owner).filter(|owner_coverage| (owner_coverage.listing, owner_coverage.of) == (part.listing, part.of));
        of_owner.is_some_and(|owner_coverage| owner_coverage.ranges.get(&part.groups.start) == Some(&part.groups.end))
    }

    /// Returns the number of row groups not counted, in files of which others are counted.
    #[must_use]
    pub fn missing(&self) -> u64 {
        let missing = |owner_coverage: &OwnerCoverage| {
            let counted: u64 = owner_coverage.ranges.iter().map(|(&start, &end)| u64::from(end.saturating_sub(start))).sum();
            u64::from(owner_coverage.of).saturating_sub(counted)
        };
        self.0.values().map(missing).sum()
    }

    /// Returns whether the ranges are valid: not empty, within their file, sorted and disjoint.
    pub(crate) fn is_sound(&self) -> bool {
        self.0.values().all(|owner_coverage| {
            let mut free = 0;
            owner_coverage.ranges.iter().all(|(&start, &end)| {
                let follows = start >= free && start < end && end <= owner_coverage.of;
                free = end;
                follows
            })
        })
    }
}

/// Returns a fingerprint of byte strings in order.
pub(crate) fn fingerprint<'a>(strings: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    let mut hasher = XxHash64::with_seed(0);
    for string in strings {
        hasher.write(&(string.len() as u64).to_le_bytes());
        hasher.write(string);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(owner: u64, listing: u64, groups: Range<u32>) -> Part {
        Part { owner, listing, groups, of: 10 }
    }

    #[test]
    fn parts_are_added_once_and_missing_row_groups_counted() {
        let mut coverage = Coverage::default();
        let mut check = |part: Part, expected| assert_eq!(coverage.add(&part), expected, "{part:?}");
        check(part(1, 7, 2..4), Ok(()));
        check(part(1, 7, 4..6), Ok(()));
        check(part(1, 7, 0..2), Ok(()));
        check(part(1, 7, 3..4), Err(Conflict::Twice));
        check(part(1, 7, 5..9), Err(Conflict::Twice));
        check(part(1, 7, 0..10), Err(Conflict::Twice));
        check(part(1, 8, 6..7), Err(Conflict::Changed));
        check(Part { of: 11, ..part(1, 7, 6..7) }, Err(Conflict::Changed));
        check(part(2, 7, 0..10), Ok(()));
        assert_eq!((coverage.missing(), coverage.parts().count(), coverage.is_sound()), (4, 4, true));
        assert!(coverage.holds(&part(1, 7, 2..4)) && !coverage.holds(&part(1, 7, 2..5)) && !coverage.holds(&part(1, 8, 2..4)));
        let mut other = Coverage::default();
        other.add(&part(1, 7, 6..10)).unwrap();
        coverage.merge(&other).unwrap();
        assert_eq!((coverage.missing(), coverage.merge(&other)), (0, Err(Conflict::Twice)));
    }

    #[test]
    fn fingerprints_depend_on_the_boundaries_of_strings() {
        let of = |strings: &[&str]| fingerprint(strings.iter().map(|string| string.as_bytes()));
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
        assert_eq!(of(&["ab", "c"]), of(&["ab", "c"]));
    }
}

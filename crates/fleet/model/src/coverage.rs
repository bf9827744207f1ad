//! Which parts of a fleet have been counted.
//!
//! Sums that are added twice, or of a job that was cut, look like any others. So every tally carries what it is of, and
//! what was counted before is refused.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use twox_hash::XxHash64;

/// A part of a fleet, known by what it is and not by where it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// A fingerprint of whose jobs these are: a machine's, or those of a file that stands alone.
    pub owner: u64,
    /// A fingerprint of all files that there are of the owner. One more of them goes on with jobs of the others.
    pub listing: u64,
    /// Which row groups of its file. Files that are read as one have one.
    pub groups: Range<u32>,
    /// How many row groups there are.
    pub of: u32,
}

/// Parts, none of them twice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coverage(BTreeMap<u64, Owned>);

/// What of an owner has been counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Owned {
    listing: u64,
    of: u32,
    /// Where ranges of row groups begin, and where they end.
    ranges: BTreeMap<u32, u32>,
}

/// Why a part cannot be counted beside others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    /// It is among them.
    #[error("some of its traces have been counted already; give each part once")]
    Twice,
    /// Others of its files are.
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
        let Some(owned) = self.0.get_mut(&part.owner) else {
            self.0.insert(part.owner, Owned { listing: part.listing, of: part.of, ranges: BTreeMap::from([(start, end)]) });
            return Ok(());
        };
        if (owned.listing, owned.of) != (part.listing, part.of) {
            return Err(Conflict::Changed);
        }
        // Of the ranges that begin before this one ends, the last ends last.
        if owned.ranges.range(..end).next_back().is_some_and(|(_, &ends)| ends > start) {
            return Err(Conflict::Twice);
        }
        owned.ranges.insert(start, end);
        Ok(())
    }

    /// Adds all of another's.
    ///
    /// # Errors
    /// [`Conflict`]; some of its parts may have been added then.
    pub fn merge(&mut self, other: &Self) -> Result<(), Conflict> {
        other.parts().try_for_each(|part| self.add(&part))
    }

    /// The parts.
    pub fn parts(&self) -> impl Iterator<Item = Part> {
        self.0.iter().flat_map(|(&owner, owned)| {
            let part = move |(&start, &end)| Part { owner, listing: owned.listing, groups: start..end, of: owned.of };
            owned.ranges.iter().map(part)
        })
    }

    /// Whether a part is among them, as it is.
    #[must_use]
    pub fn holds(&self, part: &Part) -> bool {
        let of_owner = self.0.get(&part.owner).filter(|owned| (owned.listing, owned.of) == (part.listing, part.of));
        of_owner.is_some_and(|owned| owned.ranges.get(&part.groups.start) == Some(&part.groups.end))
    }

    /// Row groups that are not counted, of files of which others are.
    #[must_use]
    pub fn missing(&self) -> u64 {
        let missing = |owned: &Owned| {
            let counted: u64 = owned.ranges.iter().map(|(&start, &end)| u64::from(end.saturating_sub(start))).sum();
            u64::from(owned.of).saturating_sub(counted)
        };
        self.0.values().map(missing).sum()
    }

    /// Whether its ranges can be: not empty, within their file, one after the other.
    pub(crate) fn is_sound(&self) -> bool {
        self.0.values().all(|owned| {
            let mut free = 0;
            owned.ranges.iter().all(|(&start, &end)| {
                let follows = start >= free && start < end && end <= owned.of;
                free = end;
                follows
            })
        })
    }
}

/// A fingerprint of byte strings, in order.
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
    fn nothing_is_counted_twice_and_what_is_missing_is_known() {
        let mut coverage = Coverage::default();
        let mut check = |part: Part, want| assert_eq!(coverage.add(&part), want, "{part:?}");
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
    fn strings_are_told_apart_by_where_they_end() {
        let of = |strings: &[&str]| fingerprint(strings.iter().map(|string| string.as_bytes()));
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
        assert_eq!(of(&["ab", "c"]), of(&["ab", "c"]));
    }
}

//! Servers grouped by their free resources, so that a choice checks few of them.
//!
//! A group holds the servers with the same number of free cores and about as much free memory. A policy says what a server of a group
//! costs at least ([`crate::policy::Policy::cost_min`]); groups that cannot hold the cheapest server are skipped. In a full
//! cluster most groups are empty, and nearly all others are ruled out by their bound.

use std::ops::RangeInclusive;

/// Groups by memory of one number of free cores: the bits of a mask.
const PARTS: u32 = u32::BITS;

/// A server's group and its position there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    group: u32,
    at: u32,
}

/// The groups of a cluster.
#[derive(Clone, Debug)]
pub(super) struct Groups {
    /// Memory of an empty server, in MiB.
    mib: u64,
    /// For each number of free cores, which groups by memory have members.
    masks: Vec<u32>,
    /// Servers by group, in no order.
    members: Vec<Vec<u32>>,
    places: Vec<Place>,
}

/// Groups with the same members are equal, whatever their order.
impl PartialEq for Groups {
    fn eq(&self, other: &Self) -> bool {
        let groups = |groups: &Self| groups.places.iter().map(|place| place.group).collect::<Vec<_>>();
        (self.mib, &self.masks, groups(self)) == (other.mib, &other.masks, groups(other))
    }
}

impl Eq for Groups {}

/// A group that is not empty.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group<'a> {
    /// Free cores of each of its servers.
    pub(super) cores: u32,
    /// The least and the most free memory that its servers can have, in MiB.
    pub(super) mib: (u64, u64),
    /// Its servers, in no order.
    pub(super) servers: &'a [u32],
}

impl Groups {
    /// Groups of empty servers with so many cores and so much memory.
    pub(super) fn new(servers: u32, cores: u32, mib: u64) -> Self {
        let mut groups = Self {
            mib: mib.max(1),
            masks: vec![0; cores as usize + 1],
            members: vec![Vec::new(); (cores as usize + 1) * PARTS as usize],
            places: Vec::with_capacity(servers as usize),
        };
        for server in 0..servers {
            groups.places.push(Place { group: 0, at: 0 });
            groups.add(server, cores, mib);
        }
        groups
    }

    /// Moves a server to the group of its free resources.
    pub(super) fn update(&mut self, server: u32, cores: u32, mib: u64) {
        let Place { group, at } = self.places[server as usize];
        if group == self.group_of(cores, mib) {
            return;
        }
        let members = &mut self.members[group as usize];
        members.swap_remove(at as usize);
        if let Some(&moved) = members.get(at as usize) {
            self.places[moved as usize].at = at;
        } else if members.is_empty() {
            self.masks[group as usize / PARTS as usize] &= !(1 << (group % PARTS));
        }
        self.add(server, cores, mib);
    }

    /// All groups whose servers may have `cores` and `mib` free.
    pub(super) fn with(&self, cores: u32, mib: u64) -> impl Iterator<Item = Group<'_>> {
        let parts = u32::MAX << self.part_of(mib);
        let levels = (cores..).zip(self.masks.get(cores as usize..).unwrap_or_default());
        levels.flat_map(move |(cores, mask)| {
            bits(mask & parts).map(move |part| {
                let group = cores as usize * PARTS as usize + part as usize;
                let range = self.range_of(u64::from(part));
                Group { cores, mib: (*range.start(), *range.end()), servers: &self.members[group] }
            })
        })
    }

    fn add(&mut self, server: u32, cores: u32, mib: u64) {
        let group = self.group_of(cores, mib);
        let members = &mut self.members[group as usize];
        self.places[server as usize] = Place { group, at: u32::try_from(members.len()).unwrap_or(u32::MAX) };
        members.push(server);
        self.masks[cores as usize] |= 1 << self.part_of(mib);
    }

    fn group_of(&self, cores: u32, mib: u64) -> u32 {
        cores * PARTS + self.part_of(mib)
    }

    /// Which of the equal parts of a server's memory `mib` ends in.
    fn part_of(&self, mib: u64) -> u32 {
        u32::try_from(mib * u64::from(PARTS) / (self.mib + 1)).unwrap_or(PARTS).min(PARTS - 1)
    }

    /// The free memory of the servers of a part.
    fn range_of(&self, part: u64) -> RangeInclusive<u64> {
        let begin = |part: u64| (part * (self.mib + 1)).div_ceil(u64::from(PARTS));
        begin(part)..=begin(part + 1) - 1
    }
}

/// The positions of the bits that are set, ascending.
fn bits(mask: u32) -> impl Iterator<Item = u32> {
    let some = |mask: u32| Some(mask).filter(|mask| *mask != 0);
    std::iter::successors(some(mask), move |mask| some(mask & (mask - 1))).map(u32::trailing_zeros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_amount_of_memory_is_in_the_range_of_its_part() {
        for mib in [1, 5, 31, 32, 33, 1_000, 786_432] {
            let groups = Groups::new(1, 4, mib);
            for free in (0..=mib.min(2_000)).chain([mib / 2, mib]) {
                let range = groups.range_of(u64::from(groups.part_of(free)));
                assert!(range.contains(&free), "{free} of {mib} is not in {range:?}");
            }
        }
    }

    #[test]
    fn servers_are_found_by_what_they_have_free() {
        let mut groups = Groups::new(4, 8, 3_200);
        groups.update(1, 2, 1_005);
        groups.update(3, 2, 1_010);
        groups.update(0, 0, 0);
        let found = |cores, mib| {
            let mut servers: Vec<_> = groups.with(cores, mib).flat_map(|group| group.servers).copied().collect();
            servers.sort_unstable();
            servers
        };
        assert_eq!(found(0, 0), [0, 1, 2, 3]);
        assert_eq!(found(1, 0), [1, 2, 3]);
        assert_eq!(found(2, 2_000), [2]);
        assert_eq!(found(3, 0), [2]);
        assert_eq!(found(9, 0), [0; 0]);
        let bounds: Vec<_> = groups.with(1, 0).map(|group| (group.cores, group.mib)).collect();
        assert_eq!(bounds, [(2, (1_001, 1_100)), (8, (3_101, 3_200))]);
        let mut back = groups.clone();
        for server in [0, 1, 3] {
            back.update(server, 8, 3_200);
        }
        assert_eq!(back, Groups::new(4, 8, 3_200));
        assert_ne!(groups, back);
    }
}

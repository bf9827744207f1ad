//! Fault domains: how many VMs of one group a single failure takes along.
//!
//! Two kinds of domains fail: hosts, alone or together with others (a rack), and pools. The failure of a pool takes along every VM
//! that has slices of it, on whatever host it runs (Pond section 4.2 calls this the blast radius), and no VM whose memory is all
//! local. VMs of a group, such as those of one service of a customer, should not fail together: each has a [`Limit`] of the VMs of its
//! group that the failure of one of its domains may take along.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use units::Slices;

/// Whether a limit may be exceeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// A VM for which no server is within the limit is placed where the fewest of its group fail together.
    #[default]
    Soft,
    /// Such a VM is refused.
    Hard,
}

/// How many VMs of its group may fail together with a VM, itself included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The most VMs; at least one.
    pub most: u32,
    /// Whether it may be exceeded.
    pub mode: Mode,
}

/// The fault domains of a VM, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Domains {
    /// The domain of its server: servers with the same number fail together.
    pub server: u32,
    /// The pool of its slices; `None` if it has none.
    pub pool: Option<u32>,
}

/// VMs of a group in one domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Count {
    vms: u32,
    /// The least hard limit of these VMs.
    hard: u32,
}

impl Default for Count {
    fn default() -> Self {
        Self { vms: 0, hard: u32::MAX }
    }
}

impl Count {
    fn add(&mut self, limit: Limit) {
        self.vms = self.vms.saturating_add(1);
        if limit.mode == Mode::Hard {
            self.hard = self.hard.min(limit.most);
        }
    }

    /// Whether one more VM leaves no more than `most` here, nor more than a VM here permits. The hard limit of a VM holds for
    /// those that come later as well, whatever their own limits are.
    fn admits(self, most: u32) -> bool {
        self.vms < most.min(self.hard)
    }
}

/// The running VMs of one group, by fault domain. That of a VM without a group is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    servers: BTreeMap<u32, Count>,
    pools: BTreeMap<u32, Count>,
}

impl Group {
    /// Adds a running VM.
    pub fn add(&mut self, domains: Domains, limit: Limit) {
        self.servers.entry(domains.server).or_default().add(limit);
        if let Some(pool) = domains.pool {
            self.pools.entry(pool).or_default().add(limit);
        }
    }

    /// Returns the VMs that fail with a server's domain, and those that fail with a pool.
    #[must_use]
    pub fn together(&self, domains: Domains) -> (u32, u32) {
        let vms = |counts: &BTreeMap<u32, Count>, domain| counts.get(&domain).map_or(0, |count| count.vms);
        (vms(&self.servers, domains.server), domains.pool.map_or(0, |pool| vms(&self.pools, pool)))
    }

    /// Returns whether one more VM in these domains leaves at most `most` VMs in each, and no more than the hard limits of the VMs
    /// there permit.
    #[must_use]
    pub fn admits(&self, domains: Domains, most: u32) -> bool {
        let admits = |counts: &BTreeMap<u32, Count>, domain| counts.get(&domain).copied().unwrap_or_default().admits(most);
        admits(&self.servers, domains.server) && domains.pool.is_none_or(|pool| admits(&self.pools, pool))
    }

    /// Returns the attempts to place a VM that may have `wanted` slices, in the order in which they are made. `None`: it has no group.
    ///
    /// The limit comes before pool memory: with all its memory local a VM does not fail with a pool. A soft limit is then exceeded by
    /// as few VMs as possible. A domain admits one more VM than it has, so that only the numbers of VMs in domains matter: of n VMs at
    /// most `sqrt(2 n)` different ones.
    #[must_use]
    pub fn attempts(&self, wanted: Slices, limit: Option<Limit>) -> Vec<Attempt> {
        let mut levels = vec![limit.map_or(u32::MAX, |limit| limit.most)];
        if let Some(Limit { most, mode: Mode::Soft }) = limit {
            let counts = self.servers.values().chain(self.pools.values()).map(|count| count.vms);
            levels.extend(counts.filter(|vms| *vms >= most).map(|vms| vms.saturating_add(1)));
            levels.sort_unstable();
            levels.dedup();
        }
        let slices = [Some(wanted), (wanted > Slices::ZERO).then_some(Slices::ZERO)];
        let attempt = |most: u32| slices.into_iter().flatten().map(move |slices| Attempt { slices, most });
        levels.into_iter().flat_map(attempt).collect()
    }
}

/// An attempt to place a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Slices of pool memory.
    pub slices: Slices,
    /// The most VMs of its group that may be in one of its domains.
    pub most: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(server: u32, pool: Option<u32>) -> Domains {
        Domains { server, pool }
    }

    fn soft(most: u32) -> Limit {
        Limit { most, mode: Mode::Soft }
    }

    fn hard(most: u32) -> Limit {
        Limit { most, mode: Mode::Hard }
    }

    fn group(vms: &[(Domains, Limit)]) -> Group {
        let mut group = Group::default();
        vms.iter().for_each(|&(domains, limit)| group.add(domains, limit));
        group
    }

    #[test]
    fn a_domain_admits_vms_up_to_the_limit_and_to_the_hard_limits_there() {
        let web = group(&[(at(1, Some(7)), soft(1)), (at(2, Some(7)), hard(2)), (at(3, None), hard(3)), (at(3, None), soft(9))]);
        assert_eq!(web.together(at(3, Some(7))), (2, 2));
        assert_eq!(web.together(at(9, Some(9))), (0, 0));
        let check = |domains, most, expected| assert_eq!(web.admits(domains, most), expected, "{domains:?} {most}");
        check(at(9, Some(9)), 1, true);
        check(at(1, None), 1, false);
        check(at(1, None), 2, true);
        // All local, it does not fail with pool 7, in which a VM permits no third one.
        check(at(1, Some(7)), 9, false);
        check(at(3, None), 9, true);
        check(at(3, None), 2, false);
    }

    #[test]
    fn local_memory_comes_before_a_higher_level_and_a_hard_limit_has_one_level() {
        let web = group(&[(at(1, Some(7)), soft(1)), (at(2, Some(7)), soft(1)), (at(2, Some(7)), soft(1)), (at(3, None), soft(1))]);
        let attempts = |limit, wanted| -> Vec<(u32, u32)> {
            web.attempts(Slices(wanted), limit).into_iter().map(|Attempt { slices, most }| (slices.0, most)).collect()
        };
        // Domains have 1, 2 and 3 VMs.
        assert_eq!(attempts(Some(soft(1)), 5), [(5, 1), (0, 1), (5, 2), (0, 2), (5, 3), (0, 3), (5, 4), (0, 4)]);
        assert_eq!(attempts(Some(soft(3)), 0), [(0, 3), (0, 4)]);
        assert_eq!(attempts(Some(hard(1)), 5), [(5, 1), (0, 1)]);
        assert_eq!(attempts(None, 5), [(5, u32::MAX), (0, u32::MAX)]);
    }
}

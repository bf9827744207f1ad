//! What provisioned memory must achieve.

use serde::Serialize;
use units::RatioPpm;

use crate::tally::Tally;

/// How VMs are placed on provisioned servers, and which of them count against the service level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// Every VM goes to its server of the run without pools. One that does not fit there is moved to another server, and counts only
    /// if it fits on none (Pond section 6.1).
    #[default]
    Replayed,
    /// The same, and every moved VM counts as well.
    RarelyMoved,
    /// The placement policy chooses a server for every VM, given the provisioned memory. A VM that fits on none counts.
    Scheduled,
}

impl Rule {
    /// The names of all rules.
    pub const NAMES: [&'static str; 3] = ["replayed", "rarely_moved", "scheduled"];

    /// Returns the rule with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::Replayed, Self::RarelyMoved, Self::Scheduled].into_iter().zip(Self::NAMES).find(|(_, of)| *of == name).map(|(rule, _)| rule)
    }
}

/// A service level: how VMs are placed, and how many of them may find no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ServiceLevel {
    /// Placement, and the VMs that count.
    pub rule: Rule,
    /// VMs that may count, of those that the run without pools started, in parts per million.
    pub share: RatioPpm,
}

impl Default for ServiceLevel {
    /// One VM of 1,000: one of a rare size must not determine the memory of a whole cluster.
    fn default() -> Self {
        Self { rule: Rule::default(), share: RatioPpm(1_000) }
    }
}

impl ServiceLevel {
    /// Returns whether a run keeps the service level, of a trace with so many VMs. Once broken, it stays broken.
    pub(crate) fn is_kept(self, tally: &Tally, vms: u64) -> bool {
        let moved = if self.rule == Rule::RarelyMoved { tally.moved } else { 0 };
        tally.rejected + moved <= self.share.share_of(vms)
    }
}

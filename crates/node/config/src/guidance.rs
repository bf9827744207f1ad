//! What a rollout assigns to a machine.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bundle::Bundle;

/// What a machine has to follow: the values of its assignment, fetched and checked.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Guidance {
    /// The rollout's id.
    pub rollout: String,
    /// The rollout's current stage.
    pub stage: String,
    /// The part of the fleet that the machine belongs to.
    pub arm: Arm,
    /// The bundle to follow; `None` means the configuration file.
    pub bundle: Option<Bundle>,
    /// The bundle to return to if that one fails; `None` means the configuration file.
    pub previous: Option<Bundle>,
    /// When the signatures of the root and of the bundles expire, in seconds of Unix time. `None` if an earlier program noted the
    /// guidance, which lasts until the next verification.
    pub signed_until_unix_s: Option<u64>,
}

/// The result of one poll of the store of bundles. Counts are since the agent started.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Poll {
    /// What to follow from now on; `None` if it has not changed.
    pub guidance: Option<Guidance>,
    /// How many polls there were.
    pub polls: u64,
    /// How many requests they sent to the store.
    pub requests: u64,
    /// How many downloads were refused, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// Why this poll failed.
    pub error: Option<String>,
    /// When the last successful poll ended, in seconds since the epoch.
    pub checked_unix_s: Option<u64>,
}

/// A part of a fleet in a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arm {
    /// Follows the bundle that is rolled out.
    Bundle,
    /// Follows the previous bundle, because its stage has not begun.
    Previous,
    /// The control group, which keeps the previous bundle for comparison.
    Control,
}

impl Arm {
    /// Returns the name in reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Bundle => "bundle",
            Self::Previous => "previous",
            Self::Control => "control",
        }
    }
}

//! Which machines follow which bundle: one small signed value for the whole fleet, from which every machine derives its
//! own bundle.
//!
//! A machine's place in a rollout is a hash of its name and the rollout's id. It is therefore the same in every poll
//! and stage, and for the evaluation of the machine's trace; another rollout gives another place. Places are millionths
//! of the fleet:
//!
//! ```text
//! 0                share_ppm                 1_000_000 - control_ppm    1_000_000
//! |---- bundle ----|-------- previous --------|-------- control --------|
//! ```
//!
//! # Invariants
//! - Stages nest: with the same rollout, clusters and control group, a machine that follows the bundle at some share
//!   follows it at any larger share.
//! - Machines of the control group never follow the bundle, whatever the share.
//! - Machines of a cluster that is not included never follow the bundle.

use aws_lc_rs::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use units::RatioPpm;

use crate::error::{Error, Result};

/// Version of this value. Readers reject any other.
pub const SCHEMA: u32 = 1;

/// Maximum length of a rollout's id and of a stage's or cluster's name, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// Maximum number of included clusters.
const CLUSTERS_MAX: usize = 10_000;

/// Which share of a fleet follows which bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Assignment {
    /// [`SCHEMA`] at the time of writing.
    pub schema: u32,
    /// Id of the rollout, from which machines derive their places.
    pub rollout: String,
    /// Version of the bundle that is rolled out; `None` returns every machine to `previous`.
    pub bundle: Option<u64>,
    /// Version of the bundle that all other machines follow; `None` is their configuration file.
    pub previous: Option<u64>,
    /// Name of the stage, for display.
    pub stage: String,
    /// Share of machines that follow the bundle, of the machines in the included clusters.
    pub share_ppm: RatioPpm,
    /// Share of machines in the control group.
    pub control_ppm: RatioPpm,
    /// Clusters whose machines take part; an empty list means all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<String>,
    /// Whether the operator holds the rollout in this stage. A breach is rolled back nevertheless.
    #[serde(default)]
    pub pinned: bool,
}

/// The group of a machine, which determines its bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// Follows the bundle of this version, which is rolled out.
    Bundle(u64),
    /// Follows the previous bundle; its place is not reached yet.
    Previous,
    /// Follows the previous bundle for the whole rollout, for comparison.
    Control,
}

impl Assignment {
    /// Parses the bytes of a file.
    ///
    /// # Errors
    /// [`Error::Assignment`] with all problems.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let invalid = |what: String| Error::Assignment { what };
        #[derive(Deserialize)]
        struct Version {
            schema: u32,
        }
        let Version { schema } = serde_json::from_slice(bytes).map_err(|error| invalid(error.to_string()))?;
        if schema != SCHEMA {
            return Err(invalid(format!("schema {schema}; this program knows {SCHEMA}; use the program that wrote it")));
        }
        let assignment: Self = serde_json::from_slice(bytes).map_err(|error| invalid(error.to_string()))?;
        assignment.check()?;
        Ok(assignment)
    }

    /// Checks all values.
    ///
    /// # Errors
    /// [`Error::Assignment`] with all problems.
    pub fn check(&self) -> Result<()> {
        let mut problems = Vec::new();
        let bad_name = |name: &str| name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control);
        for (what, name) in [("rollout", &self.rollout), ("stage", &self.stage)] {
            if bad_name(name) {
                problems.push(format!("{what} must have 1 to {NAME_BYTES_MAX} bytes, none of them a control character"));
            }
        }
        for (what, share) in [("share_ppm", self.share_ppm), ("control_ppm", self.control_ppm)] {
            if share > RatioPpm::ONE {
                problems.push(format!("{what} is {}, more than {}", share.0, RatioPpm::ONE.0));
            }
        }
        if self.clusters.len() > CLUSTERS_MAX {
            problems.push(format!("{} clusters, more than {CLUSTERS_MAX}", self.clusters.len()));
        }
        if let Some(name) = self.clusters.iter().find(|name| bad_name(name)) {
            problems.push(format!("{name:?} is not a valid cluster name"));
        }
        if self.bundle == Some(0) || self.previous == Some(0) {
            problems.push("versions of bundles begin with 1".to_owned());
        }
        if problems.is_empty() { Ok(()) } else { Err(Error::Assignment { what: problems.join("; ") }) }
    }

    /// Returns the version of the bundle that a machine follows; `None` is its configuration file.
    #[must_use]
    pub fn version(&self, machine: &str, cluster: &str) -> Option<u64> {
        match assigned(self, machine, cluster) {
            Group::Bundle(version) => Some(version),
            Group::Previous | Group::Control => self.previous,
        }
    }
}

/// Returns the group of a machine. Pure.
///
/// `machine` and `cluster` are the names in the machine's trace.
#[must_use]
pub fn assigned(assignment: &Assignment, machine: &str, cluster: &str) -> Group {
    let place = place_ppm(&assignment.rollout, machine);
    let free = RatioPpm(RatioPpm::ONE.0.saturating_sub(assignment.control_ppm.0));
    let included = assignment.clusters.is_empty() || assignment.clusters.iter().any(|name| name == cluster);
    match assignment.bundle {
        _ if place >= free => Group::Control,
        Some(version) if included && place < assignment.share_ppm => Group::Bundle(version),
        _ => Group::Previous,
    }
}

/// Returns a machine's place in a rollout, from 0 to 999,999 millionths: the first 64 bits of a SHA-256, scaled. All places have
/// the same number of hashes, within one in 1.8e13.
#[must_use]
pub fn place_ppm(rollout: &str, machine: &str) -> RatioPpm {
    let hash = digest(&SHA256, [rollout.as_bytes(), b"\0", machine.as_bytes()].concat().as_slice());
    let head = hash.as_ref().iter().take(8).fold(0u64, |sum, &byte| sum << 8 | u64::from(byte));
    let all = RatioPpm::ONE.0;
    RatioPpm(u32::try_from((u128::from(head) * u128::from(all)) >> 64).unwrap_or(all - 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL_PPM: u32 = RatioPpm::ONE.0;

    fn assignment(rollout: &str, share_ppm: u32, control_ppm: u32) -> Assignment {
        Assignment {
            schema: SCHEMA,
            rollout: rollout.to_owned(),
            bundle: Some(7),
            previous: Some(3),
            stage: "canary".to_owned(),
            share_ppm: RatioPpm(share_ppm),
            control_ppm: RatioPpm(control_ppm),
            clusters: vec!["a".to_owned(), "b".to_owned()],
            pinned: false,
        }
    }

    proptest! {
        #[test]
        fn stages_nest(rollout in ".{1,9}", machine in ".{0,30}", small in 0..=ALL_PPM, large in 0..=ALL_PPM, control in 0..=ALL_PPM) {
            let (small, large) = (small.min(large), small.max(large));
            let at = |share| assigned(&assignment(&rollout, share, control), &machine, "a");
            prop_assert!(at(small) != Group::Bundle(7) || at(large) == Group::Bundle(7));
            prop_assert_eq!(at(small) == Group::Control, at(large) == Group::Control);
        }

        #[test]
        fn the_control_group_never_follows_the_bundle(machine in ".{0,30}", share in 0..=ALL_PPM, control in 0..=ALL_PPM) {
            let group = assigned(&assignment("r", share, control), &machine, "b");
            prop_assert_eq!(group == Group::Control, place_ppm("r", &machine).0 >= ALL_PPM - control);
        }

        #[test]
        fn other_clusters_do_not_follow_the_bundle(machine in ".{0,30}", share in 0..=ALL_PPM) {
            prop_assert_ne!(assigned(&assignment("r", share, 0), &machine, "c"), Group::Bundle(7));
            let without_bundle = Assignment { bundle: None, ..assignment("r", share, 0) };
            prop_assert_eq!(without_bundle.version(&machine, "a"), Some(3));
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Assignment::parse(&bytes);
        }

        #[test]
        fn a_written_assignment_is_read_back(share in 0..=ALL_PPM, control in 0..=ALL_PPM, pinned: bool, bundle in proptest::option::of(1u64..)) {
            let expected = Assignment { pinned, bundle, ..assignment("r", share, control) };
            let bytes = serde_json::to_vec(&expected).unwrap();
            prop_assert_eq!(Assignment::parse(&bytes).unwrap(), expected);
        }
    }

    /// Within five standard deviations of a binomial: a right share fails with a probability of one in two million.
    #[test]
    fn groups_have_their_shares() {
        let machines = 100_000_u32;
        for rollout in ["2026-11-a", "2026-11-b", "x"] {
            for (share, control) in [(10_000, 50_000), (100_000, 50_000), (500_000, 100_000), (950_000, 50_000), (1_000_000, 0)] {
                let assignment = assignment(rollout, share, control);
                let (mut followed, mut held) = (0, 0);
                for machine in 0..machines {
                    match assigned(&assignment, &format!("m{machine}"), "a") {
                        Group::Bundle(7) => followed += 1,
                        Group::Control => held += 1,
                        _ => {}
                    }
                }
                for (count, share) in [(followed, share), (held, control)] {
                    let p = f64::from(share) / f64::from(ALL_PPM);
                    let mean = p * f64::from(machines);
                    let deviation = (mean * (1.0 - p)).sqrt();
                    assert!((f64::from(count) - mean).abs() <= 5.0 * deviation, "{rollout} {share}: {count} of {machines}");
                }
            }
        }
    }

    #[test]
    fn places_do_not_change_between_versions() {
        // Computed once with sha256sum: a change would move every machine of a running rollout.
        for (rollout, machine, expected) in [("r", "m1", 693_189), ("r", "m2", 108_879)] {
            assert_eq!(place_ppm(rollout, machine), RatioPpm(expected), "{rollout} {machine}");
        }
    }

    #[test]
    fn all_problems_are_reported_together() {
        let check = |change: fn(&mut Assignment), pieces: &[&str]| {
            let mut assignment = assignment("r", 1, 1);
            change(&mut assignment);
            let text = serde_json::to_vec(&assignment).unwrap();
            let error = Assignment::parse(&text).unwrap_err().to_string();
            assert!(pieces.iter().all(|piece| error.contains(piece)), "{error}");
        };
        check(|a| a.schema = 2, &["schema 2", "knows 1"]);
        check(
            |a| (a.share_ppm, a.control_ppm) = (RatioPpm(1_000_001), RatioPpm(2_000_000)),
            &["share_ppm is 1000001", "control_ppm is 2000000"],
        );
        check(|a| (a.rollout, a.stage) = (String::new(), "x".repeat(200)), &["rollout must", "stage must"]);
        check(|a| a.clusters.push("\n".to_owned()), &["not a valid cluster name"]);
        check(|a| a.previous = Some(0), &["begin with 1"]);
        assert!(Assignment::parse(br#"{"schema":1,"rollout":"r","whatever":1}"#).unwrap_err().to_string().contains("unknown field"));
    }
}

//! Who follows which bundle: one small signed value for the whole fleet, of which every machine works out its own part.
//!
//! A machine's place in a rollout is a hash of its name and the rollout's id, and so the same at every look, in every
//! stage, and for whoever evaluates the machine's trace. Another rollout draws anew. Places are millionths of the fleet:
//!
//! ```text
//! 0                share_ppm                 1_000_000 - control_ppm    1_000_000
//! |---- bundle ----|-------- previous --------|-------- control --------|
//! ```
//!
//! # Invariants
//! - Stages nest: with the same rollout, clusters and control, whoever follows the bundle at some share follows it at any
//!   larger one.
//! - Machines that are held back for control never follow the bundle, whatever the share.
//! - A cluster that is not included gives no machine the bundle.

use aws_lc_rs::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The version of this value. A reader refuses a newer one by name.
pub const SCHEMA: u32 = 1;

/// The whole of a fleet, in millionths.
pub const ALL_PPM: u32 = 1_000_000;

/// The longest id of a rollout, name of a stage or name of a cluster, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// How many clusters may be included by name.
const CLUSTERS_MAX: usize = 10_000;

/// Which part of a fleet follows which bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Assignment {
    /// [`SCHEMA`] at the time of writing.
    pub schema: u32,
    /// The rollout's id. Machines draw their places by it.
    pub rollout: String,
    /// The version of the bundle that is rolled out; none brings every machine back to `previous`.
    pub bundle: Option<u64>,
    /// The version of the bundle that all others follow; none is their configuration file.
    pub previous: Option<u64>,
    /// The stage's name, for people.
    pub stage: String,
    /// The share of machines that follow the bundle, in millionths of those in the included clusters.
    pub share_ppm: u32,
    /// The share of machines that are held back to be compared with, in millionths.
    pub control_ppm: u32,
    /// The clusters whose machines take part; none listed are all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<String>,
    /// A human holds the rollout where it is: no stage is begun. What breaks a guard is rolled back all the same.
    #[serde(default)]
    pub pinned: bool,
}

/// What a machine follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Which {
    /// The bundle of this version, which is rolled out.
    Bundle(u64),
    /// What it followed before, because its turn has not come.
    Previous,
    /// What it followed before, for all of the rollout: it is held back to be compared with.
    Control,
}

impl Assignment {
    /// Out of the bytes of a file.
    ///
    /// # Errors
    /// [`Error::Assignment`], with everything that is wrong.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let wrong = |what: String| Error::Assignment { what };
        #[derive(Deserialize)]
        struct Version {
            schema: u32,
        }
        let Version { schema } = serde_json::from_slice(bytes).map_err(|error| wrong(error.to_string()))?;
        if schema != SCHEMA {
            return Err(wrong(format!("schema {schema}; this program knows {SCHEMA}; use the program that wrote it")));
        }
        let assignment: Self = serde_json::from_slice(bytes).map_err(|error| wrong(error.to_string()))?;
        assignment.check()?;
        Ok(assignment)
    }

    /// Whether it can be followed.
    ///
    /// # Errors
    /// [`Error::Assignment`], with everything that is wrong.
    pub fn check(&self) -> Result<()> {
        let mut wrong = Vec::new();
        let bad_name = |name: &str| name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control);
        for (what, name) in [("rollout", &self.rollout), ("stage", &self.stage)] {
            if bad_name(name) {
                wrong.push(format!("{what} must have 1 to {NAME_BYTES_MAX} bytes, none of them a control character"));
            }
        }
        for (what, share) in [("share_ppm", self.share_ppm), ("control_ppm", self.control_ppm)] {
            if share > ALL_PPM {
                wrong.push(format!("{what} is {share}, more than {ALL_PPM}"));
            }
        }
        if self.clusters.len() > CLUSTERS_MAX {
            wrong.push(format!("{} clusters, more than {CLUSTERS_MAX}", self.clusters.len()));
        }
        if let Some(name) = self.clusters.iter().find(|name| bad_name(name)) {
            wrong.push(format!("{name:?} is no name of a cluster"));
        }
        if self.bundle == Some(0) || self.previous == Some(0) {
            wrong.push("versions of bundles begin with 1".to_owned());
        }
        if wrong.is_empty() { Ok(()) } else { Err(Error::Assignment { what: wrong.join("; ") }) }
    }

    /// Which version of a bundle a machine follows; none is its configuration file.
    #[must_use]
    pub fn version(&self, machine: &str, cluster: &str) -> Option<u64> {
        match assigned(self, machine, cluster) {
            Which::Bundle(version) => Some(version),
            Which::Previous | Which::Control => self.previous,
        }
    }
}

/// What a machine follows. Pure: the same arguments, the same answer.
///
/// `machine` and `cluster` are the names that the machine's trace goes by.
#[must_use]
pub fn assigned(assignment: &Assignment, machine: &str, cluster: &str) -> Which {
    let place = place_ppm(&assignment.rollout, machine);
    let free = ALL_PPM.saturating_sub(assignment.control_ppm);
    let included = assignment.clusters.is_empty() || assignment.clusters.iter().any(|name| name == cluster);
    match assignment.bundle {
        _ if place >= free => Which::Control,
        Some(version) if included && place < assignment.share_ppm => Which::Bundle(version),
        _ => Which::Previous,
    }
}

/// A machine's place in a rollout, from 0 to 999,999: the first 64 bits of a SHA-256, scaled. A million places take the
/// same number of hashes each, but for one in 1.8e13.
#[must_use]
pub fn place_ppm(rollout: &str, machine: &str) -> u32 {
    let hash = digest(&SHA256, [rollout.as_bytes(), b"\0", machine.as_bytes()].concat().as_slice());
    let head = hash.as_ref().iter().take(8).fold(0u64, |sum, &byte| sum << 8 | u64::from(byte));
    u32::try_from((u128::from(head) * u128::from(ALL_PPM)) >> 64).unwrap_or(ALL_PPM - 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn assignment(rollout: &str, share_ppm: u32, control_ppm: u32) -> Assignment {
        Assignment {
            schema: SCHEMA,
            rollout: rollout.to_owned(),
            bundle: Some(7),
            previous: Some(3),
            stage: "canary".to_owned(),
            share_ppm,
            control_ppm,
            clusters: vec!["a".to_owned(), "b".to_owned()],
            pinned: false,
        }
    }

    proptest! {
        #[test]
        fn stages_nest(rollout in ".{1,9}", machine in ".{0,30}", small in 0..=ALL_PPM, large in 0..=ALL_PPM, control in 0..=ALL_PPM) {
            let (small, large) = (small.min(large), small.max(large));
            let at = |share| assigned(&assignment(&rollout, share, control), &machine, "a");
            prop_assert!(at(small) != Which::Bundle(7) || at(large) == Which::Bundle(7));
            prop_assert_eq!(at(small) == Which::Control, at(large) == Which::Control);
        }

        #[test]
        fn control_never_follows(machine in ".{0,30}", share in 0..=ALL_PPM, control in 0..=ALL_PPM) {
            let which = assigned(&assignment("r", share, control), &machine, "b");
            prop_assert_eq!(which == Which::Control, place_ppm("r", &machine) >= ALL_PPM - control);
        }

        #[test]
        fn a_cluster_that_takes_no_part_follows_nothing_new(machine in ".{0,30}", share in 0..=ALL_PPM) {
            prop_assert_ne!(assigned(&assignment("r", share, 0), &machine, "c"), Which::Bundle(7));
            let nobody = Assignment { bundle: None, ..assignment("r", share, 0) };
            prop_assert_eq!(nobody.version(&machine, "a"), Some(3));
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Assignment::parse(&bytes);
        }

        #[test]
        fn what_is_written_is_read_again(share in 0..=ALL_PPM, control in 0..=ALL_PPM, pinned: bool, bundle in proptest::option::of(1u64..)) {
            let want = Assignment { pinned, bundle, ..assignment("r", share, control) };
            let bytes = serde_json::to_vec(&want).unwrap();
            prop_assert_eq!(Assignment::parse(&bytes).unwrap(), want);
        }
    }

    /// Within five standard deviations of a binomial: a wrong share fails, and a right one fails once in two million.
    #[test]
    fn shares_are_right() {
        let machines = 100_000_u32;
        for rollout in ["2026-11-a", "2026-11-b", "x"] {
            for (share, control) in [(10_000, 50_000), (100_000, 50_000), (500_000, 100_000), (950_000, 50_000), (1_000_000, 0)] {
                let assignment = assignment(rollout, share, control);
                let (mut followed, mut held) = (0, 0);
                for machine in 0..machines {
                    match assigned(&assignment, &format!("m{machine}"), "a") {
                        Which::Bundle(7) => followed += 1,
                        Which::Control => held += 1,
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
    fn places_stay_where_they_were() {
        // Worked out once with sha256sum: a change would move every machine of a running rollout.
        for (rollout, machine, want) in [("r", "m1", 693_189), ("r", "m2", 108_879)] {
            assert_eq!(place_ppm(rollout, machine), want, "{rollout} {machine}");
        }
    }

    #[test]
    fn all_that_is_wrong_is_told() {
        let check = |change: fn(&mut Assignment), pieces: &[&str]| {
            let mut assignment = assignment("r", 1, 1);
            change(&mut assignment);
            let text = serde_json::to_vec(&assignment).unwrap();
            let told = Assignment::parse(&text).unwrap_err().to_string();
            assert!(pieces.iter().all(|piece| told.contains(piece)), "{told}");
        };
        check(|a| a.schema = 2, &["schema 2", "knows 1"]);
        check(|a| (a.share_ppm, a.control_ppm) = (1_000_001, 2_000_000), &["share_ppm is 1000001", "control_ppm is 2000000"]);
        check(|a| (a.rollout, a.stage) = (String::new(), "x".repeat(200)), &["rollout must", "stage must"]);
        check(|a| a.clusters.push("\n".to_owned()), &["no name of a cluster"]);
        check(|a| a.previous = Some(0), &["begin with 1"]);
        assert!(Assignment::parse(br#"{"schema":1,"rollout":"r","whatever":1}"#).unwrap_err().to_string().contains("unknown field"));
    }
}

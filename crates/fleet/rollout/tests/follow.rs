//! An operator publishes, a machine follows, and an attacker changes the store in between.
#![allow(clippy::unwrap_used, clippy::panic, reason = "clippy's exemption for tests does not cover helpers in integration tests")]

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use config::{Arm, Bundle, Guidance, Poll, Value};
use rollout::assignment::{Assignment, SCHEMA};
use rollout::follow::{Follower, Settings};
use rollout::repository::{Change, Operator, Validity};
use rollout::{Refusal, keys};
use tempfile::TempDir;
use units::RatioPpm;

/// The directories of an operator and a machine, and the store between them.
struct World {
    directory: TempDir,
}

impl World {
    /// Creates a repository with one root key, two bundles, and all machines on the second.
    fn new() -> Self {
        let world = Self { directory: tempfile::tempdir().unwrap() };
        keys::generate(&world.path("keys"), 1, false).unwrap();
        world.operator().init(1, false).unwrap();
        for version in [1, 2] {
            world.change(Change::Publish(&bundle(version)));
        }
        world.change(Change::Assign(&all_machines(Some(2), Some(1))));
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn store(&self, name: &str) -> PathBuf {
        self.path("store").join(name)
    }

    fn operator(&self) -> Operator {
        self.operator_for(Validity::default())
    }

    fn operator_for(&self, validity: Validity) -> Operator {
        Operator::open(self.path("store").to_str().unwrap(), &self.path("root.json"), &self.path("keys"), validity).unwrap()
    }

    fn change(&self, change: Change) {
        self.operator().change(change, false).unwrap();
    }

    fn settings(&self) -> Settings {
        Settings {
            store: self.path("store").to_str().unwrap().to_owned(),
            network: None,
            root: self.path("root.json"),
            poll: Duration::from_secs(300),
            state_dir: self.path("state"),
            machine: "m1".to_owned(),
            cluster: "c".to_owned(),
        }
    }

    fn machine(&self) -> Follower {
        self.restarted().0
    }

    fn restarted(&self) -> (Follower, rollout::Result<Option<Guidance>>) {
        Follower::new(self.settings())
    }

    /// Returns the file of a folder with this ending and the highest version.
    fn newest(&self, folder: &str, ending: &str) -> PathBuf {
        let names = std::fs::read_dir(self.store(folder)).unwrap().map(|entry| entry.unwrap().path());
        let number = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().split('.').next().unwrap().parse::<u64>().unwrap_or(0);
        names.filter(|path| path.to_str().unwrap().ends_with(ending)).max_by_key(number).unwrap()
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Waits until a time.
fn wait_for(unix_s: u64) {
    while now() < unix_s {
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn bundle(version: u64) -> Bundle {
    let (created, expires) = (config::bundle::rfc3339(now()), config::bundle::rfc3339(now() + 86_400));
    let text = format!(
        "schema = 1\nversion = {version}\nid = \"b{version}\"\ncreated = {created}\nexpires = {expires}\n\
         [knobs.cold_age]\npercentile = \"{}%\"\n",
        50 + version
    );
    Bundle::parse("test", &text).unwrap()
}

fn all_machines(bundle: Option<u64>, previous: Option<u64>) -> Assignment {
    Assignment {
        schema: SCHEMA,
        rollout: "r".to_owned(),
        bundle,
        previous,
        stage: "fleet".to_owned(),
        share_ppm: RatioPpm::ONE,
        control_ppm: RatioPpm(0),
        clusters: Vec::new(),
        pinned: false,
    }
}

fn version(poll: &Poll) -> Option<u64> {
    poll.guidance.as_ref().and_then(|guidance| guidance.bundle.as_ref()).map(|bundle| bundle.version)
}

/// Checks that a poll refuses the contents of the store for this reason and returns no guidance.
fn refused(machine: &mut Follower, at: u64, reason: Refusal, what: &str) {
    let before = machine.poll(at).refused[reason.as_str()];
    let poll = machine.poll(at);
    assert_eq!((poll.guidance, poll.refused[reason.as_str()] > before), (None, true), "{what}: {:?}", poll.error);
}

#[test]
fn a_published_assignment_is_followed() {
    let world = World::new();
    let mut machine = world.machine();
    let poll = machine.poll(now());
    assert_eq!((version(&poll), poll.error.as_deref()), (Some(2), None));
    let guidance = poll.guidance.unwrap();
    assert_eq!((guidance.arm, guidance.rollout.as_str(), guidance.previous), (Arm::Bundle, "r", Some(bundle_of(&world, 1))));
    // An unchanged repository takes one request.
    let requests = poll.requests;
    let poll = machine.poll(now());
    assert_eq!((poll.guidance, poll.requests - requests), (None, 1));
    // Assigned to the first bundle.
    world.change(Change::Assign(&all_machines(Some(1), None)));
    assert_eq!(version(&machine.poll(now())), Some(1));
    // A machine whose place is not reached, and one of the control group.
    world.change(Change::Assign(&Assignment { share_ppm: RatioPpm(0), ..all_machines(Some(2), Some(1)) }));
    let poll = machine.poll(now());
    assert_eq!((poll.guidance.as_ref().map(|guidance| guidance.arm), version(&poll)), (Some(Arm::Previous), Some(1)));
    world.change(Change::Assign(&Assignment { control_ppm: RatioPpm::ONE, ..all_machines(Some(2), Some(1)) }));
    assert_eq!(machine.poll(now()).guidance.unwrap().arm, Arm::Control);
    // Machines of a revoked bundle return to the previous one.
    world.change(Change::Assign(&all_machines(Some(2), Some(1))));
    world.change(Change::Revoke(2));
    assert_eq!(version(&machine.poll(now())), Some(1));
    world.change(Change::Revoke(1));
    let poll = machine.poll(now());
    assert!(poll.guidance.unwrap().bundle.is_none(), "the configuration file");
}

fn bundle_of(world: &World, version: u64) -> Bundle {
    world.operator().contents(false).unwrap().bundles.into_iter().find(|bundle| bundle.version == version).unwrap()
}

#[test]
fn after_a_restart_without_the_store_the_same_bundle_is_in_effect() {
    let world = World::new();
    let guidance = world.machine().poll(now()).guidance;
    std::fs::rename(world.path("store"), world.path("away")).unwrap();
    let (mut machine, remembered) = world.restarted();
    assert_eq!(remembered.unwrap(), guidance);
    let poll = machine.poll(now());
    assert!(poll.guidance.is_none() && poll.error.is_some());
    assert_eq!(poll.refused.values().sum::<u64>(), 0, "a missing repository is no refusal");
    // A torn cache file is refused and written again.
    let cached = world.path("state/rollout/followed");
    let whole = std::fs::read(&cached).unwrap();
    std::fs::write(&cached, &whole[..whole.len() / 2]).unwrap();
    let (mut machine, remembered) = world.restarted();
    assert_eq!(remembered.unwrap_err().refusal(), Some(Refusal::Malformed));
    std::fs::remove_dir_all(world.path("store")).unwrap();
    std::fs::rename(world.path("away"), world.path("store")).unwrap();
    assert_eq!(machine.poll(now()).guidance, guidance);
    assert_eq!(std::fs::read(&cached).unwrap(), whole);
}

#[test]
fn a_machine_killed_during_a_write_continues() {
    let world = World::new();
    let old = std::fs::read(world.store("metadata/timestamp.json")).unwrap();
    world.machine().poll(now());
    world.change(Change::Assign(&all_machines(Some(1), None)));
    assert_eq!(version(&world.machine().poll(now())), Some(1));
    let new = std::fs::read(world.store("metadata/timestamp.json")).unwrap();
    let files: Vec<_> = std::fs::read_dir(world.path("state/rollout/verified")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(files.len() >= 5, "{files:?}");
    for file in files {
        for part in [0, 1, 2] {
            let whole = std::fs::read(&file).unwrap();
            std::fs::write(&file, &whole[..whole.len() * part / 2]).unwrap();
            // Older metadata is refused even without this file.
            std::fs::write(world.store("metadata/timestamp.json"), &old).unwrap();
            refused(&mut world.machine(), now(), Refusal::Rollback, &format!("{} cut to {part} halves", file.display()));
            std::fs::write(world.store("metadata/timestamp.json"), &new).unwrap();
            let mut machine = world.machine();
            assert_eq!(machine.poll(now()).error, None, "{} cut to {part} halves", file.display());
        }
    }
}

#[test]
fn every_altered_file_of_the_store_is_refused() {
    for (folder, ending) in [
        ("metadata", "timestamp.json"),
        ("metadata", ".snapshot.json"),
        ("metadata", ".targets.json"),
        ("targets", ".assignment.json"),
        ("targets", ".bundle-2.toml"),
    ] {
        let world = World::new();
        let file = world.newest(folder, ending);
        let whole = std::fs::read(&file).unwrap();
        let mut machine = world.machine();
        for at in [whole.len() / 3, whole.len() / 2, whole.len() - 3] {
            // An altered byte, a truncated file, an oversized one, and an empty one.
            let flipped: Vec<u8> = whole.iter().enumerate().map(|(i, byte)| if i == at { byte ^ 1 } else { *byte }).collect();
            for bytes in [flipped, whole[..at].to_vec(), [whole.clone(), vec![b' '; 2 << 20]].concat(), Vec::new()] {
                std::fs::write(&file, &bytes).unwrap();
                let poll = machine.poll(now());
                assert!(poll.guidance.is_none() && poll.error.is_some(), "{ending} at {at}: {} bytes", bytes.len());
            }
        }
        std::fs::write(&file, whole).unwrap();
        assert_eq!(version(&machine.poll(now())), Some(2), "{ending}");
    }
}

#[test]
fn signatures_of_other_keys_are_refused() {
    let world = World::new();
    let mut machine = world.machine();
    machine.poll(now());
    // An attacker with other keys and access to the store.
    let root = std::fs::read(world.path("root.json")).unwrap();
    for name in ["keys", "root.json", "store"] {
        std::fs::rename(world.path(name), world.path(&format!("own-{name}"))).unwrap();
    }
    keys::generate(&world.path("keys"), 1, false).unwrap();
    world.operator().init(1, false).unwrap();
    for version in 1..=9 {
        world.change(Change::Publish(&bundle(version)));
    }
    world.change(Change::Assign(&all_machines(Some(9), None)));
    std::fs::write(world.path("root.json"), root).unwrap();
    refused(&mut machine, now(), Refusal::Signature, "other keys");
    // The attacker's root is not signed by the trusted keys either.
    std::fs::copy(world.store("metadata/1.root.json"), world.store("metadata/2.root.json")).unwrap();
    refused(&mut machine, now(), Refusal::Signature, "another root");
}

#[test]
fn older_metadata_is_refused() {
    let world = World::new();
    let mut machine = world.machine();
    let old = std::fs::read(world.store("metadata/timestamp.json")).unwrap();
    assert_eq!(version(&machine.poll(now())), Some(2));
    world.change(Change::Assign(&all_machines(Some(1), None)));
    assert_eq!(version(&machine.poll(now())), Some(1));
    std::fs::write(world.store("metadata/timestamp.json"), &old).unwrap();
    refused(&mut machine, now(), Refusal::Rollback, "rollback");
    // Also after a restart, and if the library's own files are missing.
    let (mut machine, remembered) = world.restarted();
    assert_eq!(remembered.unwrap().unwrap().bundle.unwrap().version, 1);
    refused(&mut machine, now(), Refusal::Rollback, "rollback after a restart");
    std::fs::write(world.path("state/rollout/verified/timestamp.json"), "torn").unwrap();
    std::fs::remove_file(world.path("state/rollout/verified/snapshot.json")).unwrap();
    refused(&mut machine, now(), Refusal::Rollback, "rollback after damage");
}

#[test]
fn withheld_updates_are_detected_by_expiry() {
    let world = World::new();
    world.operator_for(Validity { timestamp: Duration::from_secs(2), ..Validity::default() }).change(Change::Refresh, false).unwrap();
    let mut machine = world.machine();
    assert_eq!(version(&machine.poll(now())), Some(2));
    // The library uses the system's clock: real time has to pass.
    wait_for(now() + 3);
    refused(&mut machine, now(), Refusal::Expired, "freeze");
    assert!(world.operator().contents(false).is_err() && world.operator().contents(true).is_ok());
    world.change(Change::Refresh);
    assert_eq!(machine.poll(now()).error, None);
}

#[test]
fn a_clock_that_was_ahead_keeps_no_rollback_away() {
    let world = World::new();
    let mut machine = world.machine();
    assert_eq!(version(&machine.poll(now())), Some(2));
    let time = world.path("state/rollout/verified/latest_known_time.json");
    assert!(time.exists());
    std::fs::write(&time, "\"2100-01-01T00:00:00Z\"").unwrap();
    world.change(Change::Assign(&all_machines(Some(1), None)));
    let poll = machine.poll(now());
    assert_eq!((version(&poll), &poll.error, poll.refused["clock"]), (Some(1), &None, 1));
    let signed = poll.guidance.unwrap().signed_until_unix_s.unwrap();
    assert!(signed > now() + 80 * 86_400, "bundles are signed for 90 days");
}

#[test]
fn files_of_different_changes_cannot_be_combined() {
    let world = World::new();
    let (old_snapshot, old_targets) = (world.newest("metadata", ".snapshot.json"), world.newest("metadata", ".targets.json"));
    world.change(Change::Assign(&all_machines(Some(1), None)));
    for (old, ending) in [(old_snapshot, ".snapshot.json"), (old_targets, ".targets.json")] {
        let new = world.newest("metadata", ending);
        let whole = std::fs::read(&new).unwrap();
        std::fs::copy(&old, &new).unwrap();
        refused(&mut world.machine(), now(), Refusal::Mismatch, ending);
        std::fs::write(&new, whole).unwrap();
    }
    // A bundle under the name of another.
    let (one, two) = (world.newest("targets", ".bundle-1.toml"), world.newest("targets", ".bundle-2.toml"));
    std::fs::copy(two, one).unwrap();
    refused(&mut world.machine(), now(), Refusal::Mismatch, "bundle");
}

#[test]
fn a_root_needs_its_threshold_of_signatures() {
    let world = World { directory: tempfile::tempdir().unwrap() };
    keys::generate(&world.path("keys"), 3, false).unwrap();
    world.operator().init(2, false).unwrap();
    world.change(Change::Publish(&bundle(1)));
    world.change(Change::Assign(&all_machines(Some(1), None)));
    let mut machine = world.machine();
    assert_eq!(version(&machine.poll(now())), Some(1));
    // New keys need the signatures of two of the three old root keys.
    keys::generate(&world.path("new"), 1, false).unwrap();
    for name in ["root-2.pk8", "root-3.pk8"] {
        std::fs::rename(world.path("keys").join(name), world.path(name)).unwrap();
    }
    let error = world.operator().rotate(&world.path("new"), 1, false).unwrap_err().to_string();
    assert!(error.contains("1 of the 2 keys"), "{error}");
    assert!(world.operator().rotate(&world.path("keys"), 2, true).unwrap_err().to_string().contains("of which 2 must"));
    std::fs::rename(world.path("root-3.pk8"), world.path("keys/root-3.pk8")).unwrap();
    assert!(world.operator().rotate(&world.path("new"), 1, true).unwrap().dry_run);
    world.operator().rotate(&world.path("new"), 1, false).unwrap();
    // The machine accepts the new root, because the old keys have signed it.
    assert_eq!(machine.poll(now()).error, None);
    assert!(world.operator().change(Change::Refresh, false).unwrap_err().to_string().contains("0 of the 1 keys"));
    std::fs::rename(world.path("keys"), world.path("old")).unwrap();
    std::fs::rename(world.path("new"), world.path("keys")).unwrap();
    world.change(Change::Publish(&bundle(2)));
    world.change(Change::Assign(&all_machines(Some(2), Some(1))));
    assert_eq!(version(&machine.poll(now())), Some(2));
    // Withholding the new root does not bring the old keys back.
    std::fs::remove_file(world.store("metadata/2.root.json")).unwrap();
    std::fs::rename(world.path("keys"), world.path("new")).unwrap();
    std::fs::rename(world.path("old"), world.path("keys")).unwrap();
    let mut forged = std::fs::read_dir(world.store("metadata")).unwrap().map(|entry| entry.unwrap().path());
    assert!(forged.all(|path| !path.ends_with("2.root.json")));
    // Signed by the old keys, with versions above all verified ones: still refused.
    let old = World { directory: tempfile::tempdir().unwrap() };
    for name in ["keys", "state"] {
        copy(&world.path(name), &old.path(name));
    }
    std::fs::copy(world.path("root.json"), old.path("given.json")).unwrap();
    old.operator().init(1, false).unwrap();
    for version in 1..=20 {
        old.change(Change::Publish(&bundle(version)));
    }
    old.change(Change::Assign(&all_machines(Some(20), None)));
    std::fs::copy(old.path("given.json"), old.path("root.json")).unwrap();
    refused(&mut old.machine(), now(), Refusal::Signature, "revoked keys");
}

/// Copies a directory recursively.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

#[test]
fn signed_but_invalid_bundles_are_refused() {
    // Signed by the right keys, published by a program that did not check it.
    let check = |change: fn(&mut Bundle), piece: &str| {
        let world = World::new();
        let mut machine = world.machine();
        assert_eq!(version(&machine.poll(now())), Some(2));
        let mut wrong = bundle(3);
        change(&mut wrong);
        world.change(Change::Publish(&wrong));
        world.change(Change::Assign(&all_machines(Some(3), Some(2))));
        let poll = machine.poll(now());
        assert_eq!((&poll.guidance, poll.refused["out_of_range"]), (&None, 1), "{poll:?}");
        assert!(poll.error.as_ref().is_some_and(|error| error.contains(piece)), "{poll:?}");
        // A valid bundle is followed again.
        world.change(Change::Assign(&all_machines(Some(1), None)));
        assert_eq!(version(&machine.poll(now())), Some(1));
    };
    check(|bundle| drop(bundle.knobs.insert("cold_age.percentile", Value::Ratio(RatioPpm(1)))), "out of range");
    check(|bundle| drop(bundle.knobs.insert("agent.state_dir", Value::Path("/tmp".into()))), "belongs to each machine");
    check(|bundle| bundle.knobs.clear(), "knobs: missing");
}

#[test]
fn an_expired_bundle_is_counted_and_reported_to_the_operator() {
    let world = World::new();
    let mut machine = world.machine();
    assert_eq!(machine.poll(now()).refused["expired"], 0);
    // The bundles of this test are valid for a day, and signatures for a week.
    let later = now() + 2 * 86_400;
    let (poll, next_poll) = (machine.poll(later), machine.poll(later + 300));
    assert_eq!((poll.refused["expired"], next_poll.refused["expired"], poll.error), (1, 2, None));
    // The operator sees the problem once the bundle has expired.
    let mut short = bundle(3);
    short.expires_unix_s = now() + 2;
    world.change(Change::Publish(&short));
    world.change(Change::Assign(&all_machines(Some(3), Some(2))));
    assert_eq!(world.operator().contents(false).unwrap().problems, [""; 0]);
    wait_for(short.expires_unix_s);
    let problems = world.operator().contents(false).unwrap().problems;
    assert!(matches!(problems.as_slice(), [one] if one.contains("bundle 3 is assigned but has expired")), "{problems:?}");
    let (_, remembered) = world.restarted();
    assert!(remembered.unwrap().unwrap().bundle.unwrap().expired(later), "the agent has to check the expiry");
}

#[test]
fn invalid_changes_are_not_published() {
    let world = World::new();
    let check = |change: Change, piece: &str| {
        for dry_run in [true, false] {
            let error = world.operator().change(change, dry_run).unwrap_err().to_string();
            assert!(error.contains(piece), "{error}");
        }
    };
    check(Change::Publish(&bundle(2)), "write version = 3");
    let mut old = bundle(3);
    old.expires_unix_s = now() - 1;
    check(Change::Publish(&old), "expired already");
    check(Change::Revoke(3), "name one of 1, 2");
    check(Change::Assign(&all_machines(Some(5), None)), "no bundle 5");
    check(Change::Assign(&all_machines(None, Some(5))), "no bundle 5");
    check(Change::Assign(&Assignment { share_ppm: RatioPpm(RatioPpm::ONE.0 + 1), ..all_machines(None, None) }), "share_ppm");
    let init =
        |root: &str| Operator::open(world.path("store").to_str().unwrap(), &world.path(root), &world.path("keys"), Validity::default());
    assert!(init("other.json").unwrap().init(1, false).unwrap_err().to_string().contains("holds a repository already"));
    let before = std::fs::read(world.store("metadata/timestamp.json")).unwrap();
    let planned = world.operator().change(Change::Publish(&bundle(3)), true).unwrap();
    assert_eq!((planned.put, planned.dry_run), (vec!["bundle-3.toml".to_owned()], true));
    assert_eq!(std::fs::read(world.store("metadata/timestamp.json")).unwrap(), before);
    // Files of an interrupted change are ignored.
    let version = planned.version;
    std::fs::write(world.store(&format!("metadata/{version}.targets.json")), "left").unwrap();
    let done = world.operator().change(Change::Publish(&bundle(3)), false).unwrap();
    assert_eq!(done.version, version + 1);
    assert_eq!(world.operator().contents(false).unwrap().bundles.len(), 3);
}

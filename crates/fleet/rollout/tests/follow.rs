//! An operator publishes, a machine follows, and somebody in between tampers.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use config::{Arm, Bundle, Guidance, Poll, Value};
use rollout::assignment::{ALL_PPM, Assignment, SCHEMA};
use rollout::follow::{Follower, Settings};
use rollout::repository::{Change, Operator, Validity};
use rollout::{Refusal, keys};
use tempfile::TempDir;
use units::RatioPpm;

/// An operator's and a machine's directories, and the store between them.
struct World {
    directory: TempDir,
}

impl World {
    /// A repository with one root key of one, two bundles, and every machine on the second.
    fn new() -> Self {
        let world = Self { directory: tempfile::tempdir().unwrap() };
        keys::generate(&world.path("keys"), 1, false).unwrap();
        world.operator().init(1, false).unwrap();
        for version in [1, 2] {
            world.change(Change::Publish(&bundle(version)));
        }
        world.change(Change::Assign(&everybody(Some(2), Some(1))));
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

    /// The only file of a folder whose name ends so.
    fn newest(&self, folder: &str, ending: &str) -> PathBuf {
        let names = std::fs::read_dir(self.store(folder)).unwrap().map(|entry| entry.unwrap().path());
        let number = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().split('.').next().unwrap().parse::<u64>().unwrap_or(0);
        names.filter(|path| path.to_str().unwrap().ends_with(ending)).max_by_key(number).unwrap()
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Waits until the clock shows a time.
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

fn everybody(bundle: Option<u64>, previous: Option<u64>) -> Assignment {
    Assignment {
        schema: SCHEMA,
        rollout: "r".to_owned(),
        bundle,
        previous,
        stage: "fleet".to_owned(),
        share_ppm: ALL_PPM,
        control_ppm: 0,
        clusters: Vec::new(),
        pinned: false,
    }
}

fn version(told: &Poll) -> Option<u64> {
    told.guidance.as_ref().and_then(|guidance| guidance.bundle.as_ref()).map(|bundle| bundle.version)
}

/// A poll refuses what the store offers, for this reason, and tells of nothing to follow.
fn refused(machine: &mut Follower, at: u64, reason: Refusal, what: &str) {
    let before = machine.poll(at).refused[reason.as_str()];
    let told = machine.poll(at);
    assert_eq!((told.guidance, told.refused[reason.as_str()] > before), (None, true), "{what}: {:?}", told.error);
}

#[test]
fn what_is_published_is_followed() {
    let world = World::new();
    let mut machine = world.machine();
    let told = machine.poll(now());
    assert_eq!((version(&told), told.error.as_deref()), (Some(2), None));
    let guidance = told.guidance.unwrap();
    assert_eq!((guidance.arm, guidance.rollout.as_str(), guidance.previous), (Arm::Bundle, "r", Some(bundle_of(&world, 1))));
    // Nothing new: one request.
    let requests = told.requests;
    let told = machine.poll(now());
    assert_eq!((told.guidance, told.requests - requests), (None, 1));
    // Assigned back.
    world.change(Change::Assign(&everybody(Some(1), None)));
    assert_eq!(version(&machine.poll(now())), Some(1));
    // Nobody's turn has come, and a held-back machine.
    world.change(Change::Assign(&Assignment { share_ppm: 0, ..everybody(Some(2), Some(1)) }));
    let told = machine.poll(now());
    assert_eq!((told.guidance.as_ref().map(|guidance| guidance.arm), version(&told)), (Some(Arm::Previous), Some(1)));
    world.change(Change::Assign(&Assignment { control_ppm: ALL_PPM, ..everybody(Some(2), Some(1)) }));
    assert_eq!(machine.poll(now()).guidance.unwrap().arm, Arm::Control);
    // A revoked bundle takes everybody back.
    world.change(Change::Assign(&everybody(Some(2), Some(1))));
    world.change(Change::Revoke(2));
    assert_eq!(version(&machine.poll(now())), Some(1));
    world.change(Change::Revoke(1));
    let told = machine.poll(now());
    assert!(told.guidance.unwrap().bundle.is_none(), "the configuration file");
}

fn bundle_of(world: &World, version: u64) -> Bundle {
    world.operator().contents(false).unwrap().bundles.into_iter().find(|bundle| bundle.version == version).unwrap()
}

#[test]
fn a_restart_without_the_store_goes_by_the_same_bundle() {
    let world = World::new();
    let guidance = world.machine().poll(now()).guidance;
    std::fs::rename(world.path("store"), world.path("away")).unwrap();
    let (mut machine, remembered) = world.restarted();
    assert_eq!(remembered.unwrap(), guidance);
    let told = machine.poll(now());
    assert!(told.guidance.is_none() && told.error.is_some());
    assert_eq!(told.refused.values().sum::<u64>(), 0, "an empty store is no forgery");
    // A torn note is refused and made anew.
    let note = world.path("state/rollout/followed");
    let whole = std::fs::read(&note).unwrap();
    std::fs::write(&note, &whole[..whole.len() / 2]).unwrap();
    let (mut machine, remembered) = world.restarted();
    assert_eq!(remembered.unwrap_err().refusal(), Some(Refusal::Malformed));
    std::fs::remove_dir_all(world.path("store")).unwrap();
    std::fs::rename(world.path("away"), world.path("store")).unwrap();
    assert_eq!(machine.poll(now()).guidance, guidance);
    assert_eq!(std::fs::read(&note).unwrap(), whole);
}

#[test]
fn a_machine_killed_while_it_wrote_goes_on() {
    let world = World::new();
    let old = std::fs::read(world.store("metadata/timestamp.json")).unwrap();
    world.machine().poll(now());
    world.change(Change::Assign(&everybody(Some(1), None)));
    assert_eq!(version(&world.machine().poll(now())), Some(1));
    let new = std::fs::read(world.store("metadata/timestamp.json")).unwrap();
    let notes: Vec<_> = std::fs::read_dir(world.path("state/rollout/seen")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(notes.len() >= 5, "{notes:?}");
    for note in notes {
        for part in [0, 1, 2] {
            let whole = std::fs::read(&note).unwrap();
            std::fs::write(&note, &whole[..whole.len() * part / 2]).unwrap();
            // What an old note would have forbidden is forbidden without it.
            std::fs::write(world.store("metadata/timestamp.json"), &old).unwrap();
            refused(&mut world.machine(), now(), Refusal::Rollback, &format!("{} cut to {part} halves", note.display()));
            std::fs::write(world.store("metadata/timestamp.json"), &new).unwrap();
            let mut machine = world.machine();
            assert_eq!(machine.poll(now()).error, None, "{} cut to {part} halves", note.display());
        }
    }
}

#[test]
fn no_file_of_the_store_can_be_changed() {
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
            // A byte, the end, more than there was, and nothing.
            let flipped: Vec<u8> = whole.iter().enumerate().map(|(i, byte)| if i == at { byte ^ 1 } else { *byte }).collect();
            for bytes in [flipped, whole[..at].to_vec(), [whole.clone(), vec![b' '; 2 << 20]].concat(), Vec::new()] {
                std::fs::write(&file, &bytes).unwrap();
                let told = machine.poll(now());
                assert!(told.guidance.is_none() && told.error.is_some(), "{ending} at {at}: {} bytes", bytes.len());
            }
        }
        std::fs::write(&file, whole).unwrap();
        assert_eq!(version(&machine.poll(now())), Some(2), "{ending}");
    }
}

#[test]
fn other_keys_sign_nothing() {
    let world = World::new();
    let mut machine = world.machine();
    machine.poll(now());
    // Somebody with keys of their own, and the store.
    let root = std::fs::read(world.path("root.json")).unwrap();
    for name in ["keys", "root.json", "store"] {
        std::fs::rename(world.path(name), world.path(&format!("own-{name}"))).unwrap();
    }
    keys::generate(&world.path("keys"), 1, false).unwrap();
    world.operator().init(1, false).unwrap();
    for version in 1..=9 {
        world.change(Change::Publish(&bundle(version)));
    }
    world.change(Change::Assign(&everybody(Some(9), None)));
    std::fs::write(world.path("root.json"), root).unwrap();
    refused(&mut machine, now(), Refusal::Signature, "other keys");
    // Nor does their root: it is not signed by ours.
    std::fs::copy(world.store("metadata/1.root.json"), world.store("metadata/2.root.json")).unwrap();
    refused(&mut machine, now(), Refusal::Signature, "another root");
}

#[test]
fn what_is_older_is_refused() {
    let world = World::new();
    let mut machine = world.machine();
    let old = std::fs::read(world.store("metadata/timestamp.json")).unwrap();
    assert_eq!(version(&machine.poll(now())), Some(2));
    world.change(Change::Assign(&everybody(Some(1), None)));
    assert_eq!(version(&machine.poll(now())), Some(1));
    std::fs::write(world.store("metadata/timestamp.json"), &old).unwrap();
    refused(&mut machine, now(), Refusal::Rollback, "rollback");
    // After a restart too, and where the library's own note is gone.
    let (mut machine, remembered) = world.restarted();
    assert_eq!(remembered.unwrap().unwrap().bundle.unwrap().version, 1);
    refused(&mut machine, now(), Refusal::Rollback, "rollback after a restart");
    std::fs::write(world.path("state/rollout/seen/timestamp.json"), "torn").unwrap();
    std::fs::remove_file(world.path("state/rollout/seen/snapshot.json")).unwrap();
    refused(&mut machine, now(), Refusal::Rollback, "rollback after damage");
}

#[test]
fn a_store_that_stands_still_is_told_from_one_without_news() {
    let world = World::new();
    world.operator_for(Validity { timestamp: Duration::from_secs(2), ..Validity::default() }).change(Change::Refresh, false).unwrap();
    let mut machine = world.machine();
    assert_eq!(version(&machine.poll(now())), Some(2));
    // The library takes the time from the system: it has to pass.
    wait_for(now() + 3);
    refused(&mut machine, now(), Refusal::Expired, "freeze");
    assert!(world.operator().contents(false).is_err() && world.operator().contents(true).is_ok());
    world.change(Change::Refresh);
    assert_eq!(machine.poll(now()).error, None);
}

#[test]
fn versions_of_different_changes_do_not_mix() {
    let world = World::new();
    let (old_snapshot, old_targets) = (world.newest("metadata", ".snapshot.json"), world.newest("metadata", ".targets.json"));
    world.change(Change::Assign(&everybody(Some(1), None)));
    for (old, ending) in [(old_snapshot, ".snapshot.json"), (old_targets, ".targets.json")] {
        let new = world.newest("metadata", ending);
        let whole = std::fs::read(&new).unwrap();
        std::fs::copy(&old, &new).unwrap();
        refused(&mut world.machine(), now(), Refusal::Mismatch, ending);
        std::fs::write(&new, whole).unwrap();
    }
    // One bundle under another's name.
    let (one, two) = (world.newest("targets", ".bundle-1.toml"), world.newest("targets", ".bundle-2.toml"));
    std::fs::copy(two, one).unwrap();
    refused(&mut world.machine(), now(), Refusal::Mismatch, "bundle");
}

#[test]
fn as_many_root_keys_sign_as_must() {
    let world = World { directory: tempfile::tempdir().unwrap() };
    keys::generate(&world.path("keys"), 3, false).unwrap();
    world.operator().init(2, false).unwrap();
    world.change(Change::Publish(&bundle(1)));
    world.change(Change::Assign(&everybody(Some(1), None)));
    let mut machine = world.machine();
    assert_eq!(version(&machine.poll(now())), Some(1));
    // New keys for every role need two of the three old ones.
    keys::generate(&world.path("new"), 1, false).unwrap();
    for name in ["root-2.pk8", "root-3.pk8"] {
        std::fs::rename(world.path("keys").join(name), world.path(name)).unwrap();
    }
    let told = world.operator().rotate(&world.path("new"), 1, false).unwrap_err().to_string();
    assert!(told.contains("1 of the 2 keys"), "{told}");
    assert!(world.operator().rotate(&world.path("keys"), 2, true).unwrap_err().to_string().contains("of which 2 shall"));
    std::fs::rename(world.path("root-3.pk8"), world.path("keys/root-3.pk8")).unwrap();
    assert!(world.operator().rotate(&world.path("new"), 1, true).unwrap().dry_run);
    world.operator().rotate(&world.path("new"), 1, false).unwrap();
    // The machine takes the new root, for the old one's keys have signed it.
    assert_eq!(machine.poll(now()).error, None);
    assert!(world.operator().change(Change::Refresh, false).unwrap_err().to_string().contains("0 of the 1 keys"));
    std::fs::rename(world.path("keys"), world.path("old")).unwrap();
    std::fs::rename(world.path("new"), world.path("keys")).unwrap();
    world.change(Change::Publish(&bundle(2)));
    world.change(Change::Assign(&everybody(Some(2), Some(1))));
    assert_eq!(version(&machine.poll(now())), Some(2));
    // Whoever leaves out the new root cannot bring the old keys back.
    std::fs::remove_file(world.store("metadata/2.root.json")).unwrap();
    std::fs::rename(world.path("keys"), world.path("new")).unwrap();
    std::fs::rename(world.path("old"), world.path("keys")).unwrap();
    let mut forged = std::fs::read_dir(world.store("metadata")).unwrap().map(|entry| entry.unwrap().path());
    assert!(forged.all(|path| !path.ends_with("2.root.json")));
    // Signed by the old keys, with numbers above all that were seen: refused all the same.
    let old = World { directory: tempfile::tempdir().unwrap() };
    for name in ["keys", "state"] {
        copy(&world.path(name), &old.path(name));
    }
    std::fs::copy(world.path("root.json"), old.path("given.json")).unwrap();
    old.operator().init(1, false).unwrap();
    for version in 1..=20 {
        old.change(Change::Publish(&bundle(version)));
    }
    old.change(Change::Assign(&everybody(Some(20), None)));
    std::fs::copy(old.path("given.json"), old.path("root.json")).unwrap();
    refused(&mut old.machine(), now(), Refusal::Signature, "revoked keys");
}

/// Copies a directory with what is in it.
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
fn what_is_signed_and_wrong_is_refused_all_the_same() {
    // Signed by the right keys, with what no check of the program that published it has seen.
    let check = |change: fn(&mut Bundle), piece: &str| {
        let world = World::new();
        let mut machine = world.machine();
        assert_eq!(version(&machine.poll(now())), Some(2));
        let mut wrong = bundle(3);
        change(&mut wrong);
        world.change(Change::Publish(&wrong));
        world.change(Change::Assign(&everybody(Some(3), Some(2))));
        let told = machine.poll(now());
        assert_eq!((&told.guidance, told.refused["out_of_range"]), (&None, 1), "{told:?}");
        assert!(told.error.as_ref().is_some_and(|told| told.contains(piece)), "{told:?}");
        // Back to one that is right.
        world.change(Change::Assign(&everybody(Some(1), None)));
        assert_eq!(version(&machine.poll(now())), Some(1));
    };
    check(|bundle| drop(bundle.knobs.insert("cold_age.percentile", Value::Ratio(RatioPpm(1)))), "out of range");
    check(|bundle| drop(bundle.knobs.insert("agent.state_dir", Value::Path("/tmp".into()))), "belongs to each machine");
    check(|bundle| bundle.knobs.clear(), "knobs: missing");
}

#[test]
fn a_bundle_past_its_day_is_counted_and_told_with_its_day() {
    let world = World::new();
    let mut machine = world.machine();
    assert_eq!(machine.poll(now()).refused["expired"], 0);
    // The bundles of this test hold for a day, and signatures for a week.
    let later = now() + 2 * 86_400;
    let (told, again) = (machine.poll(later), machine.poll(later + 300));
    assert_eq!((told.refused["expired"], again.refused["expired"], told.error), (1, 2, None));
    // The operator is told, too, once the day has come.
    let mut short = bundle(3);
    short.expires_unix_s = now() + 2;
    world.change(Change::Publish(&short));
    world.change(Change::Assign(&everybody(Some(3), Some(2))));
    assert_eq!(world.operator().contents(false).unwrap().troubles, [""; 0]);
    wait_for(short.expires_unix_s);
    let troubles = world.operator().contents(false).unwrap().troubles;
    assert!(matches!(troubles.as_slice(), [one] if one.contains("bundle 3 is assigned, and has expired")), "{troubles:?}");
    let (_, remembered) = world.restarted();
    assert!(remembered.unwrap().unwrap().bundle.unwrap().expired(later), "whoever goes by it has to look");
}

#[test]
fn what_would_break_the_repository_is_not_published() {
    let world = World::new();
    let check = |change: Change, piece: &str| {
        for dry_run in [true, false] {
            let told = world.operator().change(change, dry_run).unwrap_err().to_string();
            assert!(told.contains(piece), "{told}");
        }
    };
    check(Change::Publish(&bundle(2)), "write version = 3");
    let mut old = bundle(3);
    old.expires_unix_s = now() - 1;
    check(Change::Publish(&old), "expired already");
    check(Change::Revoke(3), "name one of 1, 2");
    check(Change::Assign(&everybody(Some(5), None)), "no bundle 5");
    check(Change::Assign(&everybody(None, Some(5))), "no bundle 5");
    check(Change::Assign(&Assignment { share_ppm: ALL_PPM + 1, ..everybody(None, None) }), "share_ppm");
    let init =
        |root: &str| Operator::open(world.path("store").to_str().unwrap(), &world.path(root), &world.path("keys"), Validity::default());
    assert!(init("other.json").unwrap().init(1, false).unwrap_err().to_string().contains("holds a repository already"));
    let before = std::fs::read(world.store("metadata/timestamp.json")).unwrap();
    let looked = world.operator().change(Change::Publish(&bundle(3)), true).unwrap();
    assert_eq!((looked.put, looked.dry_run), (vec!["bundle-3.toml".to_owned()], true));
    assert_eq!(std::fs::read(world.store("metadata/timestamp.json")).unwrap(), before);
    // What an interrupted change has left is passed over.
    let version = looked.version;
    std::fs::write(world.store(&format!("metadata/{version}.targets.json")), "left").unwrap();
    let done = world.operator().change(Change::Publish(&bundle(3)), false).unwrap();
    assert_eq!(done.version, version + 1);
    assert_eq!(world.operator().contents(false).unwrap().bundles.len(), 3);
}

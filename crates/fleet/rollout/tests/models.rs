//! Models that an operator publishes, and a host of a pool follows.
#![allow(clippy::unwrap_used, clippy::panic, reason = "clippy's exemption for tests does not cover helpers in integration tests")]

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use config::Bundle;
use rollout::assignment::{Assignment, SCHEMA};
use rollout::follow::{Follower, Settings};
use rollout::models::{self, Change as Done, Followed, Paths};
use rollout::repository::{Change, Operator, Validity};
use rollout::{Refusal, keys, sha256_of};
use tempfile::TempDir;
use units::RatioPpm;

/// The directories of an operator and a host, and the store between them.
struct World {
    directory: TempDir,
}

impl World {
    fn new() -> Self {
        let world = Self { directory: tempfile::tempdir().unwrap() };
        keys::generate(&world.path("keys"), 1, false).unwrap();
        world.operator().init(1, false).unwrap();
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn operator(&self) -> Operator {
        let (store, root, keys) = (self.path("store"), self.path("root.json"), self.path("keys"));
        Operator::open(store.to_str().unwrap(), &root, &keys, Validity::default()).unwrap()
    }

    /// Publishes these models as a bundle.
    fn publish(&self, version: u64, untouched: &[u8], insensitive: Option<&[u8]>) {
        let files: Vec<Vec<u8>> = [Some(untouched), insensitive].into_iter().flatten().map(<[u8]>::to_vec).collect();
        let bundle = bundle(version, untouched, insensitive);
        self.operator().change(Change::PublishModels(&bundle, &files), false).unwrap();
    }

    fn assign(&self, bundle: Option<u64>, previous: Option<u64>, share: u32) {
        let assignment = Assignment {
            schema: SCHEMA,
            rollout: "r".to_owned(),
            bundle,
            previous,
            stage: "stage".to_owned(),
            share_ppm: RatioPpm(share),
            control_ppm: RatioPpm(0),
            clusters: Vec::new(),
            pinned: false,
        };
        self.operator().change(Change::Assign(&assignment), false).unwrap();
    }

    /// One run of a host, as after a restart.
    fn run(&self, now: u64, dry_run: bool) -> rollout::Result<Followed> {
        let settings = Settings {
            store: self.path("store").to_str().unwrap().to_owned(),
            network: None,
            root: self.path("root.json"),
            poll: Duration::from_secs(300),
            state_dir: self.path("state"),
            machine: "host-a".to_owned(),
            cluster: String::new(),
        };
        let paths = Paths { untouched: Some(self.path("models/untouched.onnx")), insensitive: Some(self.path("models/insensitive.onnx")) };
        models::follow(&mut Follower::new(settings).0, &paths, now, dry_run)
    }

    /// The version that is followed, and what was done with the two files.
    fn follow(&self) -> (Option<u64>, [Done; 2]) {
        let followed = self.run(now(), false).unwrap();
        assert_eq!(followed.trouble, None);
        (followed.version, [followed.files[0].change, followed.files[1].change])
    }

    /// What the two files hold.
    fn files(&self) -> [Option<Vec<u8>>; 2] {
        ["untouched", "insensitive"].map(|name| std::fs::read(self.path(&format!("models/{name}.onnx"))).ok())
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn bundle(version: u64, untouched: &[u8], insensitive: Option<&[u8]>) -> Bundle {
    let (created, expires) = (config::bundle::rfc3339(now()), config::bundle::rfc3339(now() + 86_400));
    let header = format!("schema = 1\nversion = {version}\nid = \"m{version}\"\ncreated = {created}\nexpires = {expires}\n");
    let second = insensitive.map(|model| format!("insensitive = \"{}\"\n", sha256_of(model))).unwrap_or_default();
    Bundle::parse("test", &format!("{header}[models]\nuntouched = \"{}\"\n{second}", sha256_of(untouched))).unwrap()
}

/// Larger than any other file of a repository may be.
fn large(byte: u8) -> Vec<u8> {
    vec![byte; 3 << 20]
}

#[test]
fn a_host_follows_the_models_of_its_stage_and_returns_when_they_are_revoked() {
    let world = World::new();
    let followed = world.run(now(), false).unwrap();
    assert!(followed.version.is_none() && followed.why.unwrap().contains("no bundle is assigned"));
    world.publish(1, &large(1), Some(b"one"));
    world.publish(2, &large(2), Some(b"one"));
    world.assign(Some(1), None, 1_000_000);

    let planned = world.run(now(), true).unwrap();
    assert_eq!((planned.version, planned.files[0].change, world.files()), (Some(1), Done::Written, [None, None]), "a dry run");
    assert_eq!(world.follow(), (Some(1), [Done::Written; 2]));
    assert_eq!(world.files(), [Some(large(1)), Some(b"one".to_vec())]);
    assert_eq!(world.follow(), (Some(1), [Done::Unchanged; 2]));

    world.assign(Some(2), Some(1), 0);
    assert_eq!(world.follow(), (Some(1), [Done::Unchanged; 2]), "it is not this host's turn");
    world.assign(Some(2), Some(1), 1_000_000);
    assert_eq!(world.follow(), (Some(2), [Done::Written, Done::Unchanged]));
    assert_eq!(world.files()[0], Some(large(2)));

    let done = world.operator().change(Change::Revoke(2), false).unwrap();
    let removed = [String::from("bundle-2.toml"), format!("model-{}.onnx", sha256_of(&large(2)))];
    assert_eq!(done.removed, removed, "the other model is bundle 1's, too");
    assert_eq!(world.follow(), (Some(1), [Done::Written, Done::Unchanged]));
    world.publish(3, &large(3), None);
    world.assign(Some(3), None, 1_000_000);
    assert_eq!(world.follow(), (Some(3), [Done::Written, Done::Removed]));
    world.assign(None, None, 0);
    assert_eq!(world.follow(), (None, [Done::Removed, Done::Unchanged]));
    assert_eq!(world.files(), [None, None]);
}

#[test]
fn without_the_store_the_verified_models_stay_until_they_expire() {
    let world = World::new();
    world.publish(1, b"model", None);
    world.assign(Some(1), None, 1_000_000);
    assert_eq!(world.follow().0, Some(1));
    std::fs::rename(world.path("store"), world.path("away")).unwrap();
    let followed = world.run(now() + 3_600, false).unwrap();
    assert!(followed.trouble.is_some() && followed.version == Some(1) && followed.files[0].change == Done::Unchanged, "{followed:?}");
    let followed = world.run(now() + 86_401, false).unwrap();
    assert!(followed.why.unwrap().contains("bundle 1 expired") && followed.files[0].change == Done::Removed);
}

#[test]
fn a_file_of_the_operators_is_left_alone() {
    let world = World::new();
    world.publish(1, b"model", None);
    world.assign(Some(1), None, 1_000_000);
    std::fs::create_dir(world.path("models")).unwrap();
    std::fs::write(world.path("models/untouched.onnx"), b"mine").unwrap();
    let error = world.run(now(), false).unwrap_err().to_string();
    assert!(error.contains("untouched.onnx was not written by this command") && error.contains("move it away"), "{error}");
    assert_eq!(world.files()[0].as_deref(), Some(&b"mine"[..]));
    // What was signed is recognised whoever wrote it.
    std::fs::write(world.path("models/untouched.onnx"), b"model").unwrap();
    assert_eq!(world.follow(), (Some(1), [Done::Unchanged; 2]));
}

#[test]
fn a_model_that_was_changed_in_the_store_is_refused() {
    let world = World::new();
    world.publish(1, b"model", None);
    world.assign(Some(1), None, 1_000_000);
    let target = std::fs::read_dir(world.path("store/targets")).unwrap().map(|entry| entry.unwrap().path());
    let target = target.into_iter().find(|path| path.to_str().unwrap().ends_with(".onnx")).unwrap();
    std::fs::write(&target, b"madel").unwrap();
    let error = world.run(now(), false).unwrap_err();
    assert_eq!((error.refusal(), world.files()), (Some(Refusal::Mismatch), [None, None]), "{error}");
    std::fs::remove_file(&target).unwrap();
    assert!(world.run(now(), false).is_err());
}

#[test]
fn a_bundle_whose_models_are_missing_is_not_published() {
    let world = World::new();
    let error = world.operator().change(Change::Publish(&bundle(1, b"model", None)), false).unwrap_err().to_string();
    assert!(error.contains("whose file is not given") && error.contains("pool models publish"), "{error}");
}

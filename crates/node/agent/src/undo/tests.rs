//! Crashes at any moment, and values that others changed.

use super::*;

struct Fixture {
    dir: tempfile::TempDir,
}

impl Fixture {
    fn new(value: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let fixture = Self { dir };
        fs::create_dir_all(fixture.roots().cgroup.join("job")).unwrap();
        fs::write(fixture.low(), value).unwrap();
        fixture
    }
    fn roots(&self) -> Roots {
        Roots::under(self.dir.path())
    }
    fn low(&self) -> PathBuf {
        self.roots().cgroup.join("job/memory.low")
    }
    fn value(&self) -> String {
        fs::read_to_string(self.low()).unwrap()
    }
    /// The list after a crash: only the file remains.
    fn reopen(&self) -> UndoLog {
        UndoLog::open(self.dir.path().join("undo.json"), &self.roots()).unwrap()
    }
}

#[test]
fn a_crash_after_any_number_of_writes_restores_the_original() {
    let fixture = Fixture::new("4096\n");
    for writes in 0..4 {
        let mut log = fixture.reopen();
        for i in 0..writes {
            log.set(&fixture.low(), &format!("{}", (i + 2) * 4096)).unwrap();
        }
        let mut after_crash = fixture.reopen();
        assert_eq!(after_crash.is_empty(), writes == 0);
        after_crash.restore_all();
        assert_eq!(fixture.value().trim(), "4096", "after {writes} writes");
        assert!(fixture.reopen().is_empty());
    }
}

#[test]
fn a_crash_between_the_list_and_the_kernel_restores_too() {
    let fixture = Fixture::new("0");
    let mut log = fixture.reopen();
    log.set(&fixture.low(), "8192").unwrap();
    log.set(&fixture.low(), "12288").unwrap();
    fs::write(fixture.low(), "8192").unwrap();
    assert_eq!(fixture.reopen().restore_all()[0].1, Restored::Done);
    assert_eq!(fixture.value(), "0");
}

#[test]
fn deferred_settings_are_on_the_stored_list_before_they_are_set() {
    let fixture = Fixture::new("4096");
    let mut log = fixture.reopen();
    log.defer(fixture.low(), "8192".to_owned());
    assert_eq!((fixture.value().as_str(), fixture.reopen().is_empty()), ("4096", true), "nothing is set yet");
    assert!(log.flush().0.is_empty());
    assert_eq!(fixture.value(), "8192");
    assert_eq!(fixture.reopen().original(&fixture.low()).as_deref(), Some("4096"));
    // A restored setting leaves the stored list with the next flush; until then a restart changes nothing.
    log.restore(&fixture.low());
    assert_eq!(fixture.reopen().restore_all()[0].1, Restored::Done);
    assert_eq!(fixture.value().trim(), "4096");
    assert!(log.flush().0.is_empty());
    assert!(fixture.reopen().is_empty());
    // What is restored before the flush is not set.
    log.defer(fixture.low(), "8192".to_owned());
    log.restore(&fixture.low());
    let foreign = fixture.low().with_file_name("memory.max");
    log.defer(foreign.clone(), "0".to_owned());
    assert_eq!(log.flush().0.into_iter().map(|(path, _)| path).collect::<Vec<_>>(), [foreign]);
    assert_eq!(fixture.value().trim(), "4096");
}

#[test]
fn what_another_process_has_set_since_is_the_operators_value() {
    let fixture = Fixture::new("0");
    let mut log = fixture.reopen();
    assert_eq!(log.operators(&fixture.low(), "0"), "0");
    log.set(&fixture.low(), "8192").unwrap();
    assert_eq!(log.operators(&fixture.low(), "8192"), "0");
    assert_eq!(log.operators(&fixture.low(), "4096000"), "4096000");
}

#[test]
fn values_that_others_changed_are_left_alone() {
    let fixture = Fixture::new("0");
    let mut log = fixture.reopen();
    log.set(&fixture.low(), "8192").unwrap();
    fs::write(fixture.low(), "777").unwrap();
    assert_eq!(log.restore(&fixture.low()), Some(Restored::ChangedByOthers { value: "777".into() }));
    assert_eq!(fixture.value(), "777");
    log.set(&fixture.low(), "8192").unwrap();
    log.restore_all();
    assert_eq!(fixture.value(), "777");
}

#[test]
fn settings_of_a_removed_cgroup_leave_the_list() {
    let fixture = Fixture::new("0");
    let mut log = fixture.reopen();
    log.set(&fixture.low(), "8192").unwrap();
    fs::remove_file(fixture.low()).unwrap();
    assert_eq!(log.restore_all()[0].1, Restored::Gone);
    assert!(fixture.reopen().is_empty());
}

#[test]
fn switches_are_compared_by_the_kernels_spelling() {
    let fixture = Fixture::new("N");
    let mut log = fixture.reopen();
    log.set(&fixture.low(), "1").unwrap();
    fs::write(fixture.low(), "Y\n").unwrap();
    log.restore_all();
    assert_eq!(fixture.value(), "N");
}

#[test]
fn jobs_with_memory_in_a_slow_node_stay_on_the_list_until_it_is_promoted() {
    let fixture = Fixture::new("0");
    let mut log = fixture.reopen();
    for (path, id) in [("/a", 7), ("/b", 8), ("/a", 9)] {
        log.add_slow_job(path, id, 1, 0).unwrap();
    }
    let mut after_crash = fixture.reopen();
    let jobs = BTreeMap::from([("/a".to_owned(), 9), ("/b".to_owned(), 8)]);
    assert_eq!(after_crash.slow_jobs(), Some(&SlowJobs { node: 1, home: 0, jobs }));
    for path in ["/a", "/c", "/b"] {
        after_crash.remove_slow_job(path);
    }
    assert!(after_crash.is_empty() && fixture.reopen().is_empty());
}

#[test]
fn a_planted_list_touches_nothing() {
    use std::os::unix::fs::PermissionsExt;
    let fixture = Fixture::new("8192");
    let list = fixture.dir.path().join("undo.json");
    let stranger = fixture.dir.path().join("shadow");
    fs::write(&stranger, "8192").unwrap();
    let around = fixture.roots().cgroup.join("job/../../../../shadow");
    let others = fixture.roots().cgroup.join("job/cgroup.procs");
    for path in [&stranger, &around, &others, &fixture.roots().sys.join("module/x/parameters/enabled")] {
        let planted =
            serde_json::json!({ "settings": { path.to_str().unwrap(): { "original": "root", "ours": ["8192"] } }, "kdamond_targets": [] });
        fs::write(&list, planted.to_string()).unwrap();
        assert_eq!(fixture.reopen().restore_all(), [], "{}", path.display());
        assert!(fixture.reopen().set(path, "1").is_err());
    }
    assert_eq!(fs::read_to_string(&stranger).unwrap(), "8192");
    fs::write(&list, "{}").unwrap();
    fs::set_permissions(&list, fs::Permissions::from_mode(0o666)).unwrap();
    assert!(matches!(UndoLog::open(list, &fixture.roots()), Err(daemon::Error::Insecure { .. })));
}

#[test]
fn a_damaged_list_is_empty() {
    let fixture = Fixture::new("0");
    for damaged in [&b"{\"settings\":"[..], b"", b"\xff\xfe"] {
        fs::write(fixture.dir.path().join("undo.json"), damaged).unwrap();
        assert!(fixture.reopen().is_empty());
    }
}

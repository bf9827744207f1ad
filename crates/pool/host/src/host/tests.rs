//! A host with a hypervisor and a manager of paper, which fail where they are told to.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use manager::api::{Action, Code, Slice, Work};
use manager::client::{Error as ManagerError, Refusal};

use super::*;
use crate::capacity::Kept;
use crate::driver::{Error, Inside, Machine, Moved, Offline, Process, Usage};
use crate::monitor::Verdict;
use crate::vm::{Request, State};

mod counted;

const MIB: u64 = 1 << 20;
const SLICE: u64 = 128 * MIB;

/// What the world does, and what was done to it.
#[derive(Debug, Default)]
struct World {
    usage: Usage,
    inside: Option<Inside>,
    alive: BTreeSet<i32>,
    next_pid: i32,
    start_fails: bool,
    move_fails: bool,
    /// A move has come to its end, and nobody lived to write it down.
    moved_unseen: bool,
    keeps_slices: bool,
    manager_away: bool,
    free: u32,
    /// Who has slices, by the manager.
    assigned: BTreeMap<String, Vec<Slice>>,
    /// What is on its way back, by the manager.
    offlining: Vec<Slice>,
    said: Vec<String>,
}

#[derive(Clone)]
struct Paper(Arc<Mutex<World>>, std::path::PathBuf);

impl Paper {
    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap()
    }

    fn said_and_offlining(&self) -> (usize, usize) {
        let world = self.world();
        (world.said.len(), world.offlining.len())
    }

    fn path(&self, index: u32) -> std::path::PathBuf {
        self.1.join(format!("slice-{index}"))
    }
}

impl Driver for Paper {
    fn start(&self, machine: &Machine, held: Vec<File>) -> Result<Process, Error> {
        assert_eq!(machine.slices.len(), held.len());
        for slice in &machine.slices {
            assert!(File::open(&slice.path).unwrap().try_lock().is_err(), "slices are locked before they are mapped");
        }
        let mut world = self.world();
        if world.start_fails {
            return Err(Error::Start { program: "qemu".into(), guest: machine.name.clone(), why: "no KVM".to_owned() });
        }
        world.next_pid += 1;
        let pid = world.next_pid;
        world.alive.insert(pid);
        Ok(Process { pid, starttime: 1, generation: 1 })
    }

    fn resume(&self, _: &Machine, known: Option<Process>) -> Result<Option<Process>, Error> {
        let moved = self.world().moved_unseen;
        let now = |process: Process| if moved { Process { generation: 2, ..process } } else { process };
        Ok(known.filter(|process| self.is_alive(process)).map(now))
    }

    fn is_alive(&self, process: &Process) -> bool {
        self.world().alive.contains(&process.pid)
    }

    fn usage(&self, _: &Machine, _: &Process) -> Result<Usage, Error> {
        Ok(self.world().usage)
    }

    fn inside(&self, _: &Machine, _: &Process) -> Result<Option<Inside>, Error> {
        Ok(self.world().inside)
    }

    fn offline(&self, _: &Machine, _: &Process, slice: &Slice, _: Duration) -> Result<Offline, Error> {
        let mut world = self.world();
        world.said.push(format!("offline {}", slice.index));
        Ok(if world.keeps_slices { Offline::NotYet("the guest is moving its pages".to_owned()) } else { Offline::Done })
    }

    fn repair_bytes(&self, machine: &Machine) -> u64 {
        machine.local_bytes + machine.pool_bytes()
    }

    fn to_local(&self, machine: &Machine, process: &Process, _: Duration) -> Result<Moved, Error> {
        let mut world = self.world();
        world.said.push(format!("move {}", machine.name));
        if world.move_fails {
            return Err(Error::Move { guest: machine.name.clone(), why: "no room".to_owned() });
        }
        world.alive.remove(&process.pid);
        world.alive.insert(process.pid + 1000);
        let process = Process { pid: process.pid + 1000, starttime: 2, generation: 2 };
        Ok(Moved { process, pause_seconds: 0.003, total_seconds: 2.0, copied_bytes: 1 })
    }

    fn stop(&self, _: &Machine, process: &Process, _: Duration) -> Result<(), Error> {
        self.world().alive.remove(&process.pid);
        Ok(())
    }
}

fn refusal(code: Code) -> ManagerError {
    ManagerError::Refused(Refusal { code, message: format!("{code:?}") })
}

impl Paper {
    fn answers(&self) -> Result<MutexGuard<'_, World>, ManagerError> {
        let world = self.world();
        if world.manager_away {
            return Err(ManagerError::Unreachable { url: "https://pool".to_owned(), why: "away".to_owned() });
        }
        Ok(world)
    }
}

impl Capacity for Paper {
    fn keep(&self) -> Result<Kept, ManagerError> {
        self.answers().map(|_| Kept { lease_seconds: 10.0, fresh: None, work: Vec::new() })
    }

    fn slice_bytes(&self) -> Option<u64> {
        Some(SLICE)
    }

    fn assign(&self, _: &str, vm: &str, slices: u32) -> Result<Vec<Slice>, ManagerError> {
        let mut world = self.answers()?;
        if world.free < slices {
            return Err(refusal(Code::Short));
        }
        world.free -= slices;
        let first = u32::try_from(world.assigned.values().map(Vec::len).sum::<usize>()).unwrap();
        let slice = |index| Slice { emc: 0, index, turn: 1, path: self.path(index), bytes: SLICE };
        let given: Vec<_> = (first..first + slices).map(slice).collect();
        world.assigned.insert(vm.to_owned(), given.clone());
        Ok(given)
    }

    fn give_back(&self, _: &str, vm: &str) -> Result<Vec<Work>, ManagerError> {
        let mut world = self.answers()?;
        let Some(slices) = world.assigned.remove(vm) else { return Err(refusal(Code::NotFound)) };
        world.offlining.extend(slices.clone());
        Ok(slices.into_iter().map(|slice| Work { slice, action: Action::Offline, since_seconds: 0.0 }).collect())
    }

    fn offlined(&self, slice: &Slice) -> Result<(), ManagerError> {
        let mut world = self.answers()?;
        let before = world.offlining.len();
        world.offlining.retain(|known| known.index != slice.index);
        if world.offlining.len() == before {
            return Err(refusal(Code::Stale));
        }
        world.free += 1;
        Ok(())
    }

    fn offline_failed(&self, slice: &Slice, why: &str) -> Result<(), ManagerError> {
        self.answers()?.said.push(format!("failed {}: {why}", slice.index));
        Ok(())
    }
}

fn settings() -> Settings {
    Settings {
        name: "host-a".to_owned(),
        local_bytes: 2048 * MIB,
        least_local_bytes: 256 * MIB,
        period: Duration::from_secs(1800),
        monitor: monitor::Settings { touched_ppm: 50_000, accessed_ppm: 5_000, budget_ppm: 10_000, attempts: 2 },
        rest: Duration::from_secs(600),
        repair_within: Duration::from_secs(60),
        margin: room::Margin { ratio_ppm: 100_000, least_bytes: 0 },
        release_within: Duration::from_secs(1),
    }
}

/// A host in a directory, over a world with eight free slices.
fn bench(directory: &Path) -> (Host, Paper) {
    let paper = Paper(Arc::default(), directory.to_owned());
    for index in 0..8 {
        File::create(paper.path(index)).unwrap().set_len(SLICE).unwrap();
    }
    paper.world().free = 8;
    (again(&paper), paper)
}

/// The host's next run.
fn again(paper: &Paper) -> Host {
    with(paper, settings(), None)
}

fn with(paper: &Paper, settings: Settings, predictor: Option<Predictor>) -> Host {
    let store = Store::open(&paper.1.join("state")).unwrap();
    Host::new(settings, Box::new(paper.clone()), Box::new(paper.clone()), predictor, store).unwrap()
}

fn asks(name: &str, memory_mib: u64, pool_mib: Option<u64>) -> Request {
    Request {
        name: name.to_owned(),
        vm: predict::Request { cores: 2, memory_bytes: memory_mib * MIB, ..predict::Request::default() },
        pool_bytes: pool_mib.map(|mib| mib * MIB),
        arguments: Vec::new(),
        domain: None,
    }
}

fn told(host: &Host, name: &str) -> String {
    host.explain(name).unwrap().events.iter().map(|event| event.what.as_str()).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_guest_has_its_slices_and_gives_them_back_when_it_ends() {
    let directory = tempfile::tempdir().unwrap();
    let (host, paper) = bench(directory.path());
    let record = host.start(asks("a", 1024, Some(256))).unwrap();
    assert_eq!((record.local_bytes(), record.pool_bytes(), record.state), (768 * MIB, 256 * MIB, State::Running));
    assert_eq!((paper.world().free, host.list().totals.started), (6, 1));
    assert!(host.start(asks("a", 1024, None)).unwrap_err().0.contains("there is a guest a already"));
    host.stop("a", Duration::ZERO).unwrap();
    assert_eq!((paper.world().free, host.list().guests.len()), (8, 0));
    assert!(host.stop("a", Duration::ZERO).unwrap_err().0.contains("no guest is named a"));
}

#[test]
fn a_start_that_fails_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (host, paper) = bench(directory.path());
    let check = |request: Request, why: &str| {
        let found = host.start(request).unwrap_err().0;
        assert!(found.contains(why), "{found}");
        assert_eq!((paper.world().free, host.list().guests.len(), host.list().local_used_bytes), (8, 0, 0), "{why}");
    };
    check(asks("a", 1024, Some(100)), "a multiple of its slices");
    check(asks("a", 1024, Some(896)), "at least 268435456 local");
    check(asks("a", 4096, None), "bytes of local memory are wanted");
    check(asks("a", 2048 + 256, Some(9 * 128)), "Short");
    paper.world().start_fails = true;
    check(asks("a", 1024, Some(256)), "no KVM");
    paper.world().start_fails = false;
    // Somebody's data.
    std::fs::write(paper.path(1), b"secret").unwrap();
    File::options().write(true).open(paper.path(1)).unwrap().set_len(SLICE).unwrap();
    check(asks("a", 1024, Some(256)), "was not scrubbed");
    // Somebody's lock.
    let lock = File::open(paper.path(0)).unwrap();
    lock.try_lock().unwrap();
    check(asks("a", 1024, Some(128)), "in use");
}

#[test]
fn a_manager_that_is_away_keeps_no_guest_from_running_or_ending() {
    let directory = tempfile::tempdir().unwrap();
    let (host, paper) = bench(directory.path());
    host.start(asks("a", 1024, Some(256))).unwrap();
    paper.world().manager_away = true;
    assert!(host.start(asks("b", 512, Some(128))).unwrap_err().0.contains("no pool manager answers"));
    host.stop("a", Duration::ZERO).unwrap();
    assert_eq!(paper.world().free, 6, "the manager does not know yet");
    paper.world().manager_away = false;
    host.look_after();
    assert_eq!((paper.world().free, host.list().guests.len()), (8, 0));
}

#[test]
fn a_guest_that_is_full_is_asked_for_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (host, paper) = bench(directory.path());
    host.start(asks("a", 1024, Some(256))).unwrap();
    paper.world().usage = Usage { local_touched_bytes: 760 * MIB, pool_touched_bytes: 100 * MIB, ..Usage::default() };
    let refused = host.release("a").unwrap_err().0;
    assert!(refused.contains("by what it ever touched") && refused.contains("end its own programs"), "{refused}");
    assert_eq!(paper.said_and_offlining(), (0, 0));
    // It has given most of it up since, and says so.
    paper.world().inside = Some(Inside { total_bytes: 1000 * MIB, available_bytes: 600 * MIB });
    assert_eq!(host.release("a").unwrap().pool_bytes(), 0);
    assert_eq!(paper.world().free, 8);
    assert!(host.release("a").unwrap_err().0.contains("no pool memory"));
}

#[test]
fn slices_that_a_guest_keeps_are_asked_for_again() {
    let directory = tempfile::tempdir().unwrap();
    let (host, paper) = bench(directory.path());
    host.start(asks("a", 1024, Some(256))).unwrap();
    paper.world().keeps_slices = true;
    assert!(host.release("a").unwrap_err().0.contains("has kept slices"));
    assert_eq!(
        paper.world().said,
        [
            "offline 0",
            "failed 0: the guest is moving its pages after 0 s",
            "offline 1",
            "failed 1: the guest is moving its pages after 0 s"
        ]
    );
    let work = |paper: &Paper| -> Vec<Work> {
        let slices = paper.world().offlining.clone();
        slices.into_iter().map(|slice| Work { slice, action: Action::Offline, since_seconds: 1.0 }).collect()
    };
    // Full by now: nothing is asked of it.
    paper.world().usage.local_touched_bytes = 1 << 40;
    paper.world().said.clear();
    host.follow(work(&paper));
    assert!(paper.world().said.iter().all(|said| said.contains("must stay free")), "{:?}", paper.world().said);
    paper.world().usage = Usage::default();
    paper.world().keeps_slices = false;
    host.follow(work(&paper));
    assert_eq!((paper.world().free, host.explain("a").unwrap().pool_bytes()), (8, 0));
}

#[test]
fn who_suffers_is_moved_once_and_its_slices_go_back() {
    let directory = tempfile::tempdir().unwrap();
    let (host, paper) = bench(directory.path());
    host.start(asks("a", 1024, Some(256))).unwrap();
    paper.world().usage = Usage {
        pool_touched_bytes: 100 * MIB,
        pool_accessed_bytes: 50 * MIB,
        local_accessed_bytes: 500 * MIB,
        local_touched_bytes: 700 * MIB,
    };
    host.watch(|| true);
    assert_eq!(host.explain("a").unwrap().verdict, Some(Verdict::AsPredicted), "the first look sees the boot");
    paper.world().move_fails = true;
    host.watch(|| true);
    assert_eq!(host.explain("a").unwrap().repair_failures, 1);
    paper.world().move_fails = false;
    host.watch(|| true);
    let record = host.explain("a").unwrap();
    assert!(record.repaired && record.mapped.is_empty(), "{}", told(&host, "a"));
    assert_eq!((record.local_bytes(), record.process.unwrap().pid, paper.world().free), (1024 * MIB, 1001, 8));
    host.watch(|| true);
    assert_eq!((paper.world().said.len(), host.list().totals.repaired), (2, 1));
    // Within the budget of two guests is one.
    host.start(asks("b", 768, Some(256))).unwrap();
    host.watch(|| true);
    host.watch(|| true);
    assert_eq!(host.explain("b").unwrap().verdict, Some(Verdict::BudgetSpent));
}

#[test]
fn a_move_waits_for_local_memory() {
    let directory = tempfile::tempdir().unwrap();
    let (host, paper) = bench(directory.path());
    host.start(asks("a", 1024, Some(256))).unwrap();
    host.start(asks("b", 512, Some(0))).unwrap();
    paper.world().usage = Usage { pool_touched_bytes: 100 * MIB, pool_accessed_bytes: 50 * MIB, ..Usage::default() };
    host.watch(|| true);
    host.watch(|| true);
    assert_eq!(host.explain("a").unwrap().verdict, Some(Verdict::NoLocalMemory));
    host.stop("b", Duration::ZERO).unwrap();
    host.watch(|| true);
    assert!(host.explain("a").unwrap().repaired);
}

#[test]
fn guests_outlive_their_host() {
    let directory = tempfile::tempdir().unwrap();
    let (host, paper) = bench(directory.path());
    for name in ["a", "b", "c"] {
        host.start(asks(name, 512, Some(128))).unwrap();
    }
    let pid = |name: &str| host.explain(name).unwrap().process.unwrap().pid;
    paper.world().alive.remove(&pid("b"));
    // Killed in the midst of stopping one.
    let mut held = host.hold("c", "stopping").unwrap();
    held.state = State::Stopping;
    held.save().unwrap();
    drop(held);
    drop(host);
    let host = again(&paper);
    host.look_after();
    let names: Vec<_> = host.list().guests.into_iter().map(|line| (line.name, line.state)).collect();
    assert_eq!(names, [("a".to_owned(), State::Running)]);
    assert_eq!((paper.world().free, host.list().totals.started), (7, 3));
    assert_eq!(paper.world().alive.len(), 1);
}

#[test]
fn a_move_that_nobody_wrote_down_counts_all_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let (host, paper) = bench(directory.path());
    host.start(asks("a", 1024, Some(256))).unwrap();
    drop(host);
    paper.world().moved_unseen = true;
    for _ in 0..2 {
        let host = again(&paper);
        host.look_after();
        let record = host.explain("a").unwrap();
        assert_eq!((record.repaired, record.pool_bytes(), record.local_bytes()), (true, 0, 1024 * MIB));
        assert_eq!((paper.world().free, host.list().totals.repaired), (8, 1));
    }
}

#[test]
fn a_guest_that_dies_gives_back_what_it_had() {
    let directory = tempfile::tempdir().unwrap();
    let (host, paper) = bench(directory.path());
    host.start(asks("a", 512, Some(128))).unwrap();
    paper.world().alive.clear();
    host.look_after();
    assert_eq!((paper.world().free, host.list().guests.len()), (8, 0));
}

#[test]
fn what_the_manager_counts_and_nobody_has_goes_back() {
    let directory = tempfile::tempdir().unwrap();
    let (host, paper) = bench(directory.path());
    host.start(asks("a", 512, Some(128))).unwrap();
    paper.assign("", "ghost", 2).unwrap();
    let assignments: Vec<_> = paper
        .world()
        .assigned
        .iter()
        .map(|(vm, slices)| manager::api::Assignment { vm: vm.clone(), asked: 1, slices: slices.clone() })
        .collect();
    host.reconcile(&assignments);
    assert_eq!(paper.world().free, 7);
    assert_eq!(paper.world().assigned.len(), 1);
}

#[test]
fn one_thing_at_a_time_happens_to_a_guest() {
    let directory = tempfile::tempdir().unwrap();
    let (host, _) = bench(directory.path());
    host.start(asks("a", 512, Some(128))).unwrap();
    let held = host.hold("a", "being tested").unwrap();
    assert!(host.stop("a", Duration::ZERO).unwrap_err().0.contains("busy being tested"));
    assert_eq!(host.list().guests[0].busy.as_deref(), Some("being tested"));
    drop(held);
    host.stop("a", Duration::ZERO).unwrap();
}

#[test]
fn damaged_memories_are_told_and_not_guessed_at() {
    let directory = tempfile::tempdir().unwrap();
    let (host, paper) = bench(directory.path());
    host.start(asks("a", 512, Some(128))).unwrap();
    let path = directory.path().join("state/a.guest.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, &text[..text.len() / 2]).unwrap();
    let store = Store::open(&directory.path().join("state")).unwrap();
    let failed = Host::new(settings(), Box::new(paper.clone()), Box::new(paper.clone()), None, store);
    assert!(failed.err().unwrap().0.contains("a.guest.json is damaged"));
}

#[test]
fn a_prediction_decides_where_nobody_asks() {
    let directory = tempfile::tempdir().unwrap();
    let (host, paper) = bench(directory.path());
    drop(host);
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../predict/testdata/untouched.onnx");
    let host = with(&paper, Settings { local_bytes: 16 << 30, ..settings() }, Some(Predictor::load(&model, None)));
    let unknown = asks("unknown", 4096, None).vm;
    let known = predict::Request {
        customer: Some(5),
        vm_type: Some("F2".to_owned()),
        guest_os: Some("linux-c".to_owned()),
        location: Some("region-e".to_owned()),
        arrival: 731_454,
        history: Some(vec![0.6, 0.5, 0.6, 0.4, 0.6, 0.6, 0.6, 0.6]),
        ..unknown.clone()
    };
    let check = |name: &str, vm: predict::Request, slices: u32, why: crate::share::Why| {
        let record = host.start(Request { vm, ..asks(name, 4096, None) }).unwrap();
        assert_eq!((record.share.slices, record.share.why), (slices, why), "{}", told(&host, name));
        assert_eq!(record.local_bytes() + u64::from(slices) * SLICE, 4096 * MIB);
        host.stop(name, Duration::ZERO).unwrap();
    };
    // 21 % of 4 GiB, in whole slices.
    check("known", known.clone(), 6, crate::share::Why::Untouched);
    check("unknown", unknown, 0, crate::share::Why::NoPrediction);
    paper.world().free = 5;
    check("short", known.clone(), 0, crate::share::Why::PoolShort);
    paper.world().free = 8;
    paper.world().manager_away = true;
    let record = host.start(Request { vm: known, ..asks("away", 4096, None) }).unwrap();
    assert_eq!((record.share.slices, record.share.why), (0, crate::share::Why::NoManager));
    // It may have been heard all the same, so that it is given back.
    assert!(record.assigned);
    paper.world().manager_away = false;
    host.look_after();
    assert!(!host.explain("away").unwrap().assigned);
}

#[test]
fn a_scrape_tells_what_is_and_what_has_happened() {
    let directory = tempfile::tempdir().unwrap();
    let (host, paper) = bench(directory.path());
    host.start(asks("a", 1024, Some(256))).unwrap();
    assert!(host.start(asks("b", 1024, Some(100))).is_err());
    paper.world().usage = Usage { local_touched_bytes: 760 * MIB, pool_touched_bytes: 100 * MIB, ..Usage::default() };
    assert!(host.release("a").is_err());
    host.watch(|| true);
    let check = |lines: &[&str]| {
        let text = crate::metrics::render(&host).unwrap();
        for line in lines {
            assert!(text.lines().any(|found| found == format!("thermocline_pool_host_{line}")), "{line}: {text}");
        }
        assert!(text.ends_with("# EOF\n"), "{text}");
    };
    check(&[
        "guests{state=\"running\"} 1",
        "starts_total{outcome=\"ok\"} 1",
        "starts_total{outcome=\"refused\"} 1",
        "releases_total{outcome=\"no_room\"} 1",
        "verdicts_total{outcome=\"as_predicted\"} 1",
        "pool_bytes 268435456",
        "pool_touched_bytes 104857600",
        "local_bytes 2147483648",
        "local_used_bytes 805306368",
        "repairs_left 1",
        "guests_suffering 0",
        "manager_in_trouble 0",
    ]);
    paper.world().usage.pool_accessed_bytes = 100 * MIB;
    paper.world().move_fails = true;
    host.watch(|| true);
    check(&["repairs_total{outcome=\"failed\"} 1", "guests_suffering 1", "verdicts_total{outcome=\"repair\"} 1"]);
    paper.world().move_fails = false;
    host.watch(|| true);
    check(&[
        "repairs_total{outcome=\"ok\"} 1",
        "guests_repaired_total 1",
        "guests_started_total 1",
        "repairs_left 0",
        "repair_pause_seconds_count 1",
        "pool_bytes 0",
        "guests_suffering 0",
    ]);
}

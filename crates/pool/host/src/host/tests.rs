//! A host with a simulated hypervisor and a simulated pool manager, both with faults.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use manager::api::{Action, Code, Slice, Slices, Work};
use manager::client::{Error as ManagerError, Refusal};
use units::{Bytes, RatioPpm};

use super::*;
use crate::accesses::{Blocks, Choice, Placed, Seen, Unseen};
use crate::capacity::{Capacity, Renewal};
use crate::driver::{Driver, Error, GuestMemory, Machine, Moved, Offline, Usage};
use crate::drivers::description::Description;
use crate::monitor::Verdict;
use crate::process::Process;
use crate::vm::{Request, State};
use crate::{accesses, free_memory, hot, monitor};

mod counters;
mod failures;
mod home;
mod lives;
mod metrics;
mod models;
mod predictions;

const SLICE: Bytes = Bytes::mib(128);

/// State of the simulated hypervisor and manager, and a log of what was done.
#[derive(Debug, Default)]
struct World {
    usage: Usage,
    guest_memory: Option<GuestMemory>,
    alive: BTreeSet<i32>,
    next_pid: i32,
    start_fails: bool,
    move_fails: bool,
    /// Blocks of the guest's memory in the pool; `None`: they are not seen.
    blocks: Option<Vec<Placed>>,
    /// A block that turns hot while others move home.
    turns_hot: Option<Placed>,
    home_fails: bool,
    /// Whether a move has completed before the daemon could save it.
    moved_unsaved: bool,
    keeps_slices: bool,
    /// Processes whose samples a start of the daemon ended.
    ended_samples: Vec<i32>,
    manager_unreachable: bool,
    free: u32,
    /// Slices by guest, as the manager has them.
    assigned: BTreeMap<String, Vec<Slice>>,
    /// Slices that are being released, as the manager has them.
    offlining: Vec<Slice>,
    log: Vec<String>,
}

#[derive(Clone)]
struct Simulated(Arc<Mutex<World>>, PathBuf);

impl Simulated {
    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap()
    }

    fn logged_and_offlining(&self) -> (usize, usize) {
        let world = self.world();
        (world.log.len(), world.offlining.len())
    }

    fn path(&self, index: u32) -> PathBuf {
        self.1.join(format!("slice-{index}"))
    }
}

impl Driver for Simulated {
    fn check(&self, _: Option<&Description>) -> Result<(), String> {
        Ok(())
    }

    fn start(&self, machine: &Machine, locks: Vec<File>) -> Result<Process, Error> {
        assert_eq!(machine.slices.len(), locks.len());
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
        let moved = self.world().moved_unsaved;
        let now = |process: Process| if moved { Process { generation: 2, ..process } } else { process };
        Ok(known.filter(|process| self.is_alive(process)).map(now))
    }

    fn end_samples(&self, processes: &[Process]) -> Result<(), Error> {
        self.world().ended_samples = processes.iter().map(|process| process.pid).collect();
        Ok(())
    }

    fn is_alive(&self, process: &Process) -> bool {
        self.world().alive.contains(&process.pid)
    }

    fn touched(&self, _: &Machine, _: &Process) -> Result<Usage, Error> {
        Ok(self.world().usage)
    }

    fn usage(&self, _: &Machine, _: &Process, _: &accesses::Settings) -> Result<Usage, Error> {
        Ok(self.world().usage)
    }

    fn guest_memory(&self, _: &Machine, _: &Process) -> Result<Option<GuestMemory>, Error> {
        Ok(self.world().guest_memory)
    }

    fn offline(&self, _: &Machine, _: &Process, slice: &Slice, _: Duration) -> Result<Offline, Error> {
        let mut world = self.world();
        world.log.push(format!("offline {}", slice.index));
        Ok(if world.keeps_slices { Offline::Pending("the guest is moving its pages".to_owned()) } else { Offline::Done })
    }

    fn mitigation_bytes(&self, machine: &Machine) -> Bytes {
        machine.local_bytes + machine.pool_bytes()
    }

    fn move_to_local(&self, machine: &Machine, process: &Process, _: Duration) -> Result<Moved, Error> {
        let mut world = self.world();
        world.log.push(format!("move {}", machine.name));
        if world.move_fails {
            return Err(Error::Move { guest: machine.name.clone(), why: "no free memory".to_owned() });
        }
        world.alive.remove(&process.pid);
        world.alive.insert(process.pid + 1000);
        let process = Process { pid: process.pid + 1000, starttime: 2, generation: 2 };
        Ok(Moved { process, pause: Duration::from_millis(3), total: Duration::from_secs(2), copied: Bytes(1) })
    }

    fn blocks(&self, _: &Machine, _: &Process, _: Duration) -> Result<Blocks, Error> {
        let mut world = self.world();
        world.log.push("blocks".to_owned());
        let seen = world.blocks.clone().ok_or_else(|| "another program uses DAMON".to_owned());
        Ok(Blocks { seen, kernel_cpu: Duration::ZERO })
    }

    fn move_blocks(&self, machine: &Machine, _: &Process, blocks: &[Range<u64>], limit: Bytes, _: Duration) -> Result<Bytes, Error> {
        let mut world = self.world();
        world.log.push(format!("home {}", blocks.len()));
        if world.home_fails {
            return Err(Error::Move { guest: machine.name.clone(), why: "pinned".to_owned() });
        }
        let turns_hot = world.turns_hot.take();
        let there = world.blocks.as_mut().unwrap();
        let (moved, stay): (Vec<_>, Vec<_>) = there.drain(..).partition(|placed| blocks.contains(&placed.range));
        there.extend(stay.into_iter().chain(turns_hot));
        let bytes = moved.iter().map(|placed| placed.block.bytes).sum();
        assert!(moved.len() == blocks.len() && bytes <= limit);
        Ok(bytes)
    }

    fn stop(&self, _: &Machine, process: &Process, _: Duration) -> Result<(), Error> {
        self.world().alive.remove(&process.pid);
        Ok(())
    }
}

fn refusal(code: Code) -> ManagerError {
    ManagerError::Refused(Refusal { code, message: format!("{code:?}") })
}

impl Simulated {
    fn manager(&self) -> Result<MutexGuard<'_, World>, ManagerError> {
        let world = self.world();
        if world.manager_unreachable {
            return Err(ManagerError::Unreachable { service: "pool manager", url: "https://pool".to_owned(), why: "no route".to_owned() });
        }
        Ok(world)
    }
}

impl Capacity for Simulated {
    fn renew(&self) -> Result<Renewal, ManagerError> {
        self.manager().map(|_| Renewal { lease: Duration::from_secs(10), assignments: None, work: Vec::new() })
    }

    fn slice_size(&self) -> Option<Bytes> {
        Some(SLICE)
    }

    fn assign(&self, _: &str, vm: &str, slices: Slices) -> Result<Vec<Slice>, ManagerError> {
        let mut world = self.manager()?;
        if world.free < slices.0 {
            return Err(refusal(Code::Short));
        }
        world.free -= slices.0;
        let first = u32::try_from(world.assigned.values().map(Vec::len).sum::<usize>()).unwrap();
        let slice = |index| Slice { emc: 0, index, generation: 1, path: self.path(index), offset: None, bytes: SLICE };
        let given: Vec<_> = (first..first + slices.0).map(slice).collect();
        world.assigned.insert(vm.to_owned(), given.clone());
        Ok(given)
    }

    fn give_back(&self, _: &str, vm: &str) -> Result<Vec<Work>, ManagerError> {
        let mut world = self.manager()?;
        let Some(slices) = world.assigned.remove(vm) else { return Err(refusal(Code::NotFound)) };
        world.offlining.extend(slices.clone());
        Ok(slices.into_iter().map(|slice| Work { slice, action: Action::Offline, since_seconds: 0.0 }).collect())
    }

    fn offlined(&self, slice: &Slice) -> Result<(), ManagerError> {
        let mut world = self.manager()?;
        let before = world.offlining.len();
        world.offlining.retain(|known| known.index != slice.index);
        if world.offlining.len() == before {
            return Err(refusal(Code::Stale));
        }
        world.free += 1;
        Ok(())
    }

    fn offline_failed(&self, slice: &Slice, why: &str) -> Result<(), ManagerError> {
        self.manager()?.log.push(format!("failed {}: {why}", slice.index));
        Ok(())
    }
}

fn settings() -> Settings {
    Settings {
        name: "host-a".to_owned(),
        local: Bytes::mib(2048),
        local_min: Bytes::mib(256),
        period: Duration::from_secs(1800),
        least_life: Duration::ZERO,
        counters_agree: 5,
        accesses: accesses::Settings { instrument: Choice::Auto, window: Duration::from_secs(10) },
        monitor: monitor::Settings { touched: RatioPpm(50_000), accessed: RatioPpm(5_000), budget: RatioPpm(10_000), attempts: 2 },
        hot: hot::Settings::default(),
        cooldown: Duration::from_secs(600),
        mitigation_timeout: Duration::from_secs(60),
        margin: free_memory::Margin { ratio: RatioPpm(100_000), min: Bytes::ZERO },
        release_timeout: Duration::from_secs(1),
    }
}

/// A host in a directory, and a world with eight free slices.
fn bench(directory: &Path) -> (Host, Simulated) {
    let simulated = Simulated(Arc::default(), directory.to_owned());
    for index in 0..8 {
        File::create(simulated.path(index)).unwrap().set_len(SLICE.0).unwrap();
    }
    simulated.world().free = 8;
    (restarted(&simulated), simulated)
}

/// The host after a restart of its daemon.
fn restarted(simulated: &Simulated) -> Host {
    host_with(simulated, settings(), None)
}

fn host_with(simulated: &Simulated, settings: Settings, models: Option<Models>) -> Host {
    let store = Store::open(&simulated.1.join("state")).unwrap();
    Host::new(settings, Box::new(simulated.clone()), Box::new(simulated.clone()), models, store).unwrap()
}

fn request(name: &str, memory_mib: u64, pool_mib: Option<u64>) -> Request {
    Request {
        name: name.to_owned(),
        vm: predict::Request { cores: 2, memory_bytes: Bytes::mib(memory_mib), ..predict::Request::default() },
        pool_bytes: pool_mib.map(Bytes::mib),
        description: None,
    }
}

fn touched_and_accessed(touched_mib: u64, accessed_mib: u64) -> Usage {
    Usage { pool_touched_bytes: Bytes::mib(touched_mib), pool_accessed_bytes: Bytes::mib(accessed_mib), ..Usage::default() }
}

fn events(host: &Host, name: &str) -> String {
    host.explain(name).unwrap().events.iter().map(|event| event.what.as_str()).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_guest_has_its_slices_until_it_is_stopped() {
    let directory = tempfile::tempdir().unwrap();
    let (host, simulated) = bench(directory.path());
    let record = host.start(request("a", 1024, Some(256))).unwrap();
    assert_eq!((record.local_bytes(), record.pool_bytes(), record.state), (Bytes::mib(768), Bytes::mib(256), State::Running));
    assert_eq!((simulated.world().free, host.list().totals.started), (6, 1));
    assert!(host.start(request("a", 1024, None)).unwrap_err().0.contains("there is a guest a already"));
    host.stop("a", Duration::ZERO).unwrap();
    assert_eq!((simulated.world().free, host.list().guests.len()), (8, 0));
    assert!(host.stop("a", Duration::ZERO).unwrap_err().0.contains("there is no guest a"));
}

#[test]
fn a_guest_without_free_memory_is_not_asked() {
    let directory = tempfile::tempdir().unwrap();
    let (host, simulated) = bench(directory.path());
    host.start(request("a", 1024, Some(256))).unwrap();
    simulated.world().usage = Usage { local_touched_bytes: Bytes::mib(760), ..touched_and_accessed(100, 0) };
    let refused = host.release("a").unwrap_err().0;
    assert!(refused.contains("by the memory that it ever touched") && refused.contains("would kill programs"), "{refused}");
    assert_eq!(simulated.logged_and_offlining(), (0, 0));
    // The guest has freed most of it since, and reports that.
    let (total_bytes, available_bytes) = (Bytes::mib(1000), Bytes::mib(600));
    simulated.world().guest_memory = Some(GuestMemory { total_bytes, available_bytes });
    assert_eq!(host.release("a").unwrap().pool_bytes(), Bytes::ZERO);
    assert_eq!(simulated.world().free, 8);
    assert!(host.release("a").unwrap_err().0.contains("no pool memory"));
}

#[test]
fn slices_that_a_guest_keeps_are_requested_again() {
    let directory = tempfile::tempdir().unwrap();
    let (host, simulated) = bench(directory.path());
    host.start(request("a", 1024, Some(256))).unwrap();
    simulated.world().keeps_slices = true;
    assert!(host.release("a").unwrap_err().0.contains("has kept slices"));
    assert_eq!(
        simulated.world().log,
        [
            "offline 0",
            "failed 0: the guest is moving its pages after 0 s",
            "offline 1",
            "failed 1: the guest is moving its pages after 0 s"
        ]
    );
    let work = |simulated: &Simulated| -> Vec<Work> {
        let slices = simulated.world().offlining.clone();
        slices.into_iter().map(|slice| Work { slice, action: Action::Offline, since_seconds: 1.0 }).collect()
    };
    // No free memory by now: the guest is not asked.
    simulated.world().usage.local_touched_bytes = Bytes(1 << 40);
    simulated.world().log.clear();
    host.take_offline(work(&simulated));
    assert!(simulated.world().log.iter().all(|line| line.contains("must stay free")), "{:?}", simulated.world().log);
    simulated.world().usage = Usage::default();
    simulated.world().keeps_slices = false;
    host.take_offline(work(&simulated));
    assert_eq!((simulated.world().free, host.explain("a").unwrap().pool_bytes()), (8, Bytes::ZERO));
}

#[test]
fn a_mispredicted_guest_is_moved_once_and_its_slices_are_returned() {
    let directory = tempfile::tempdir().unwrap();
    let (host, simulated) = bench(directory.path());
    host.start(request("a", 1024, Some(256))).unwrap();
    simulated.world().usage =
        Usage { local_accessed_bytes: Bytes::mib(500), local_touched_bytes: Bytes::mib(700), ..touched_and_accessed(100, 50) };
    host.watch(|| true);
    assert_eq!(host.explain("a").unwrap().verdict, Some(Verdict::AsPredicted), "the first sample includes the boot");
    simulated.world().move_fails = true;
    host.watch(|| true);
    assert_eq!(host.explain("a").unwrap().mitigation_failures, 1);
    simulated.world().move_fails = false;
    host.watch(|| true);
    let record = host.explain("a").unwrap();
    assert!(record.mitigated && record.mapped.is_empty(), "{}", events(&host, "a"));
    assert_eq!((record.local_bytes(), record.process.unwrap().pid, simulated.world().free), (Bytes::mib(1024), 1001, 8));
    host.watch(|| true);
    assert_eq!((simulated.world().log.len(), host.list().totals.mitigated), (2, 1));
    // The budget of two guests is one mitigation.
    host.start(request("b", 768, Some(256))).unwrap();
    host.watch(|| true);
    host.watch(|| true);
    assert_eq!(host.explain("b").unwrap().verdict, Some(Verdict::BudgetSpent));
}

#[test]
fn a_guest_whose_accesses_are_not_seen_is_not_judged() {
    let directory = tempfile::tempdir().unwrap();
    let (host, simulated) = bench(directory.path());
    host.start(request("a", 1024, Some(256))).unwrap();
    simulated.world().usage = Usage { seen: Seen::Not(Unseen::Device), ..touched_and_accessed(256, 0) };
    host.watch(|| true);
    host.watch(|| true);
    let record = host.explain("a").unwrap();
    assert_eq!((record.verdict, record.samples.count), (Some(Verdict::NotVisible), 0));
    assert!(events(&host, "a").contains("a passed-through device accesses its memory"), "{}", events(&host, "a"));
    // Once they are, it is.
    simulated.world().usage = touched_and_accessed(256, 50);
    host.watch(|| true);
    assert!(host.explain("a").unwrap().mitigated, "{}", events(&host, "a"));
}

#[test]
fn a_start_ends_the_samples_of_an_earlier_daemon() {
    let directory = tempfile::tempdir().unwrap();
    let (host, simulated) = bench(directory.path());
    host.start(request("a", 1024, Some(256))).unwrap();
    drop(host);
    // The process has exited meanwhile; the sample of it may still be there.
    simulated.world().alive.clear();
    restarted(&simulated);
    assert_eq!(simulated.world().ended_samples, [1]);
}

#[test]
fn a_move_waits_for_local_memory() {
    let directory = tempfile::tempdir().unwrap();
    let (host, simulated) = bench(directory.path());
    host.start(request("a", 1024, Some(256))).unwrap();
    host.start(request("b", 512, Some(0))).unwrap();
    simulated.world().usage = touched_and_accessed(100, 50);
    host.watch(|| true);
    host.watch(|| true);
    assert_eq!(host.explain("a").unwrap().verdict, Some(Verdict::NoLocalMemory));
    host.stop("b", Duration::ZERO).unwrap();
    host.watch(|| true);
    assert!(host.explain("a").unwrap().mitigated);
}

#[test]
fn a_guest_has_one_operation_at_a_time() {
    let directory = tempfile::tempdir().unwrap();
    let (host, _) = bench(directory.path());
    host.start(request("a", 512, Some(128))).unwrap();
    let guest = host.claim("a", "being tested").unwrap();
    assert!(host.stop("a", Duration::ZERO).unwrap_err().0.contains("busy being tested"));
    assert_eq!(host.list().guests[0].busy.as_deref(), Some("being tested"));
    drop(guest);
    host.stop("a", Duration::ZERO).unwrap();
}

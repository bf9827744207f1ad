use fastrand::Rng;
use placement::{Limit, Mode, Shape, Strategy};
use units::Bytes;

use super::*;
use crate::event::{Domain, PoolOfHosts, Topology};
use crate::log_file::LogFile;
use crate::replay::{self, WhatIf};

/// Three pools, of which the second has fewer hosts, and the third has a manager if `managed`.
fn topology(strategy: Strategy, managed: bool) -> Topology {
    let pool = |name: &str, slices: u32, hosts: u32| PoolOfHosts {
        name: name.to_owned(),
        slices: Slices(slices),
        managed: managed && name == "c",
        hosts: (0..hosts).map(|host| format!("{name}-{host}")).collect(),
    };
    Topology {
        shape: Shape { nodes: 2, node_cores: 10, node_mib: 24 << 10 },
        slice_bytes: SLICE,
        strategy,
        pools: vec![pool("a", 20, 4), pool("b", 12, 3), pool("c", 20, 4)],
        // Hosts of two pools, and one host; the others fail alone.
        domains: vec![domain("rack", &["a-0", "a-1", "b-2"]), domain("small", &["c-3"])],
    }
}

fn domain(name: &str, hosts: &[&str]) -> Domain {
    Domain { name: name.to_owned(), hosts: hosts.iter().map(|&host| host.to_owned()).collect() }
}

/// A scheduler without its network: the real state and the real log.
struct Driver {
    random: Rng,
    log: LogFile,
    state: State,
    running: Vec<String>,
    requests: u64,
    /// Whether half of the VMs have a group.
    groups: bool,
}

impl Driver {
    fn new(path: &Path, limit: Bytes, topology: &Topology) -> Self {
        let (mut log, _) = LogFile::open(path, limit).unwrap();
        log.append(std::iter::once(("test", &Event::Topology(topology.clone())))).unwrap();
        let state = State::new(topology.clone()).unwrap();
        Self { random: Rng::with_seed(5), log, state, running: Vec::new(), requests: 0, groups: true }
    }

    /// Chooses an event: mostly arrivals and departures, more arrivals than the hosts hold.
    fn event(&mut self) -> Event {
        let managed = self.state.topology().pools[2].managed;
        match self.random.u32(0..100) {
            0 => Event::Drained { host: format!("a-{}", self.random.u32(0..4)), drained: self.random.bool() },
            1..4 if managed => {
                let slices = (self.random.u32(0..8) > 0).then(|| Slices(self.random.u32(0..20)));
                Event::Grantable { pool: "c".to_owned(), slices }
            }
            0..45 if !self.running.is_empty() => {
                let vm = self.running.swap_remove(self.random.usize(0..self.running.len()));
                Event::Ended { vm }
            }
            _ => {
                let cores = 1 << self.random.u32(0..4);
                let memory_bytes = Bytes(u64::from(cores) * self.random.u64(2..13) * SLICE.0 / 2);
                let pool_bytes = Bytes(memory_bytes.0 / 100 * self.random.u64(0..60));
                self.requests += 1;
                let spread = (self.groups && self.random.bool()).then(|| Spread {
                    group: format!("group-{}", self.random.u32(0..4)),
                    limit: self.random.u32(1..4),
                    mode: if self.random.u32(0..3) == 0 { Mode::Hard } else { Mode::Soft },
                });
                let request = VmRequest { vm: format!("vm-{}", self.requests), cores, memory_bytes, pool_bytes, spread };
                let event = self.state.decide(&request).unwrap();
                if matches!(event, Event::Decided { on: Some(_), .. }) {
                    self.running.push(request.vm);
                }
                event
            }
        }
    }

    /// Appends many events with one sync, as the writer does.
    fn events(&mut self, count: u32) {
        let mut events = Vec::new();
        for _ in 0..count {
            let event = self.event();
            self.state.apply(&event).unwrap();
            events.push(event);
        }
        self.append(&events);
    }

    fn append(&mut self, events: &[Event]) {
        self.log.append(events.iter().map(|event| ("test", event))).unwrap();
        self.log.rotate(&self.state).unwrap();
    }
}

/// The simulator makes all decisions of a log, with what was requested and with what was recorded.
fn identical(path: &Path) -> Simulated {
    let simulated = check(path).unwrap();
    let Simulated { decisions, .. } = &simulated;
    assert_eq!((decisions.differ, &decisions.differences[..]), (0, &[][..]), "{simulated:?}");
    assert!(simulated.placed_as_simulated_ratio.to_bits() == 1f64.to_bits() && decisions.decisions > 0, "{simulated:?}");
    let log = Log::read(path).unwrap().unwrap();
    let recorded = log.simulate(log.vms(imported(path).unwrap()).unwrap(), MemoryPolicy::Recorded).unwrap();
    assert_eq!(log.compare(&recorded).decisions.differ, 0);
    simulated
}

#[test]
fn the_simulator_makes_every_decision_of_a_log() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("scheduler.log");
    let mut driver = Driver::new(&path, Bytes::gib(1), &topology(Strategy::PoolBalance, true));
    for _ in 0..60 {
        driver.events(100);
    }
    let simulated = identical(&path);
    let Replayed { decisions, refused_recorded, local_recorded, .. } = simulated.decisions;
    assert_eq!((simulated.hosts, simulated.pools, simulated.kept, simulated.begins), (11, 3, 0, 1));
    assert!(decisions > 3_000 && simulated.vms == decisions, "{simulated:?}");
    assert!(refused_recorded > 100 && local_recorded > 100, "the cluster is not short of anything: {simulated:?}");
    // Events share seconds: their order is all that says what was free.
    let vms = imported(&path).unwrap();
    let left_as_others_arrived = vms.iter().filter(|vm| vm.departure.is_some_and(|left| vms.iter().any(|other| other.arrival == left)));
    assert!(left_as_others_arrived.count() > 1_000);
    // Another policy would have decided otherwise, and that is found.
    let text = std::fs::read_to_string(&path).unwrap().replacen("\"pool_balance\"", "\"first_fit\"", 1);
    std::fs::write(&path, text).unwrap();
    let other = check(&path).unwrap();
    assert!(other.placed_as_simulated_ratio < 0.5 && other.decisions.differences.len() == 20, "{other:?}");
}

#[test]
fn every_policy_is_the_simulators() {
    for name in Strategy::NAMES {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("scheduler.log");
        let mut driver = Driver::new(&path, Bytes::gib(1), &topology(name.parse().unwrap(), false));
        for _ in 0..4 {
            driver.events(100);
        }
        let simulated = identical(&path);
        assert!(simulated.decisions.local_recorded > 0, "{name}: {simulated:?}");
    }
}

#[test]
fn a_log_begins_with_the_vms_that_ran() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("scheduler.log");
    let mut driver = Driver::new(&path, Bytes(1 << 17), &topology(Strategy::PoolBalance, true));
    for _ in 0..12 {
        driver.events(100);
    }
    assert!(path.with_added_extension("1").exists(), "the log was rotated");
    let rotated = identical(&path);
    assert!(rotated.kept > 5 && rotated.begins > 1, "{rotated:?}");
    // A change of the configuration begins a simulation as well: a host and a pool are added.
    let mut larger = topology(Strategy::PoolBalance, true);
    larger.pools.insert(0, PoolOfHosts { name: "d".to_owned(), slices: Slices(6), managed: false, hosts: vec!["d-0".to_owned()] });
    let event = Event::Topology(larger);
    driver.state.apply(&event).unwrap();
    driver.append(&[event]);
    driver.events(60);
    let changed = identical(&path);
    assert!(changed.begins > rotated.begins && changed.kept > 5 && changed.hosts == 12, "{changed:?}");
    assert!(changed.decisions.decisions < 60, "{changed:?}");
}

#[test]
fn a_log_that_cannot_be_simulated_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("scheduler.log");
    let why = |path: &Path| check(path).unwrap_err().to_string();
    std::fs::write(&path, "").unwrap();
    assert!(why(&path).contains("scheduler.log: it has no topology"), "{}", why(&path));
    let small = Topology { slice_bytes: Bytes::mib(256), ..topology(Strategy::BestFit, false) };
    let mut driver = Driver::new(&path, Bytes::gib(1), &small);
    driver.events(20);
    assert!(why(&path).contains("its slices have 256.0 MiB"), "{}", why(&path));
}

#[test]
fn groups_decide_other_hosts_and_the_simulator_knows_them() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("scheduler.log");
    let mut driver = Driver::new(&path, Bytes(1 << 17), &topology(Strategy::PoolBalance, true));
    for _ in 0..12 {
        driver.events(100);
    }
    assert!(identical(&path).kept > 5, "VMs of groups ran before");
    let with = replay::check(&path).unwrap();
    assert!(with.differ == 0 && with.over_limit_replayed.is_some_and(|over| over > 0), "{with:?}");
    // What they cost, and what they change.
    let ample = replay::what_if(&path, WhatIf { spread: Some(Limit { most: u32::MAX, mode: Mode::Soft }), ..WhatIf::default() }).unwrap();
    let one = replay::what_if(&path, WhatIf { spread: Some(Limit { most: 1, mode: Mode::Hard }), ..WhatIf::default() }).unwrap();
    assert_eq!((ample.over_limit_replayed, one.over_limit_replayed), (Some(0), Some(0)));
    assert!(ample.differ > 50 && one.refused_replayed > ample.refused_replayed && one.slices_replayed < ample.slices_replayed);
    // Without the groups the simulator decides otherwise.
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains("\"spread\":{\"group\":\"group-0\",\"limit\":1,\"mode\":\"hard\"}") && text.contains("\"domains\":["));
    let log = Log::read(&path).unwrap().unwrap();
    let mut without = Log::read(&path).unwrap().unwrap();
    without.kept.values_mut().for_each(|kept| kept.spread = None);
    without.decided.values_mut().for_each(|decided| decided.request.spread = None);
    let simulate = |with: &Log| with.simulate(log.vms(imported(&path).unwrap()).unwrap(), MemoryPolicy::Requested).unwrap();
    assert!(log.compare(&simulate(&without)).decisions.differ > 50);
}

//! A group of three pool managers, each a process of its own: whichever member is killed, stopped or emptied, no slice has two owners and
//! no answered request is lost.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use manager::api::{AssignRequest, Code, GroupStatus, Slice, Slices};
use manager::client::{Client, Error};

const PATIENCE: Duration = Duration::from_secs(60);
const SLICES: u32 = 6;
const SLICE_BYTES: u64 = 128 << 20;

/// The members and their files. The device is in memory, because each of its slices is zeroed often.
struct Group {
    directory: tempfile::TempDir,
    device: tempfile::NamedTempFile,
    ports: Vec<u16>,
    members: Vec<Option<Child>>,
}

impl Group {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let memory = PathBuf::from("/dev/shm");
        let device = if memory.is_dir() { tempfile::NamedTempFile::new_in(memory) } else { tempfile::NamedTempFile::new() }.unwrap();
        device.as_file().set_len(u64::from(SLICES) * SLICE_BYTES).unwrap();
        device.as_file().write_all_at(b"what was there before", 0).unwrap();
        let listeners: Vec<_> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports = listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
        let mut group = Self { directory, device, ports, members: vec![None, None, None] };
        drop(listeners);
        for member in 0..3 {
            group.configure(member);
            let made = group.command(member, &["init"]);
            assert!(made.status.success(), "{made:?}");
        }
        (0..3).for_each(|member| group.spawn(member));
        let client = group.client(PATIENCE);
        client.lease("c", "first").unwrap();
        assert!(all_free(&client), "the slices are not zeroed: {}", group.logs());
        group
    }

    fn config(&self, member: usize) -> PathBuf {
        self.directory.path().join(format!("member-{member}.toml"))
    }

    fn urls(&self) -> Vec<String> {
        self.ports.iter().map(|port| format!("http://127.0.0.1:{port}")).collect()
    }

    fn configure(&self, member: usize) {
        let text = format!(
            "listen = \"127.0.0.1:{}\"\nledger = \"{member}/ledger.redb\"\npool_dir = \"{member}/pool\"\nslice_size = \"128MiB\"\n\
             emcs = [{{ slices = {SLICES}, device = {:?} }}]\nhosts = [\"a\", \"b\", \"c\"]\noperators = [\"op\"]\nlease = \"20s\"\n\
             [group]\nmembers = {:?}\nmember = {}\n",
            self.ports[member],
            self.device.path(),
            self.urls(),
            member + 1
        );
        std::fs::write(self.config(member), text).unwrap();
    }

    fn command(&self, member: usize, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline"));
        command.args(["pool", "manager"]).args(arguments).arg("--config").arg(self.config(member)).output().unwrap()
    }

    fn spawn(&mut self, member: usize) {
        let errors = OpenOptions::new().create(true).append(true).open(self.directory.path().join(format!("member-{member}.log"))).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_thermocline"))
            .args(["pool", "manager", "--insecure-loopback", "--config"])
            .arg(self.config(member))
            .stdout(Stdio::null())
            .stderr(errors)
            .spawn();
        self.members[member] = Some(child.unwrap());
    }

    fn signal(&self, member: usize, signal: &str) {
        let id = self.members[member].as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }

    fn kill(&mut self, member: usize) {
        if let Some(mut child) = self.members[member].take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// A client of all members.
    fn client(&self, timeout: Duration) -> Client {
        Client::new(&self.urls().join(","), None, timeout).unwrap()
    }

    /// A client of one member.
    fn client_of(&self, member: usize, timeout: Duration) -> Client {
        Client::new(&self.urls()[member], None, timeout).unwrap()
    }

    fn status(&self, member: usize) -> Option<GroupStatus> {
        self.client_of(member, Duration::from_secs(2)).pool().ok()?.group
    }

    /// The leader, when all three members know it and have all entries.
    fn settled(&self) -> usize {
        let begin = Instant::now();
        loop {
            let leaders: Vec<_> = (0..3).filter_map(|member| self.status(member)?.leader).collect();
            if leaders.len() == 3 && leaders.iter().all(|leader| *leader == leaders[0]) {
                let leader = usize::try_from(leaders[0]).unwrap() - 1;
                let lags = self.status(leader).map(|status| status.members.iter().map(|of| of.lag_entries).collect::<Vec<_>>());
                if lags.is_some_and(|lags| lags.iter().all(|lag| lag.is_some_and(|lag| lag <= 2))) {
                    return leader;
                }
            }
            if begin.elapsed() >= PATIENCE {
                panic!("the group has no leader that all follow: {}", self.logs());
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn logs(&self) -> String {
        let log = |member| std::fs::read_to_string(self.directory.path().join(format!("member-{member}.log"))).unwrap_or_default();
        (0..3).map(|member| format!("\nmember {}:\n{}", member + 1, log(member))).collect()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        (0..3).for_each(|member| self.kill(member));
    }
}

/// Waits until all slices are zeroed and have no owner.
fn all_free(client: &Client) -> bool {
    let begin = Instant::now();
    while client.pool().unwrap().slices.free < SLICES {
        if begin.elapsed() > PATIENCE {
            return false;
        }
        thread::sleep(Duration::from_millis(20));
    }
    true
}

/// Observations of all hosts.
#[derive(Default)]
struct Observed {
    stop: AtomicBool,
    owners: Mutex<BTreeMap<u32, &'static str>>,
    double_owned: AtomicU64,
    /// Answered requests whose effect is gone.
    lost: AtomicU64,
    leaked: AtomicU64,
    overwritten: AtomicU64,
    cycles: AtomicU64,
}

/// A host that gets slices, writes to them, and returns them, without a pause.
struct Host {
    name: &'static str,
    client: Client,
    device: File,
    observed: Arc<Observed>,
}

impl Host {
    fn run(self) {
        let mut epoch = self.client.lease(self.name, "run").unwrap().epoch;
        for number in 0.. {
            if self.observed.stop.load(Ordering::Relaxed) {
                return;
            }
            match self.cycle(epoch, number) {
                Err(Error::Refused(refusal)) if refusal.code == Code::Fenced => epoch = self.client.lease(self.name, "run").unwrap().epoch,
                Err(Error::Refused(refusal)) if refusal.code == Code::Short => thread::sleep(Duration::from_millis(5)),
                Err(error) => panic!("{} in cycle {number}: {error}", self.name),
                Ok(()) => drop(self.observed.cycles.fetch_add(1, Ordering::Relaxed)),
            }
        }
    }

    fn count(&self, counter: &AtomicU64, what: &str) {
        counter.fetch_add(1, Ordering::Relaxed);
        eprintln!("{}: {what}", self.name);
    }

    fn cycle(&self, epoch: u64, number: u64) -> Result<(), Error> {
        let (vm, observed) = (format!("vm-{number}"), &self.observed);
        self.client.renew(self.name, epoch)?;
        let request = AssignRequest {
            epoch,
            request: format!("a-{number}"),
            vm: vm.clone(),
            slices: Slices(1 + u32::from(number.is_multiple_of(2))),
        };
        let assigned = self.client.assign(self.name, &request)?;
        assigned.slices.iter().for_each(|slice| self.begin(slice));
        if self.client.assign(self.name, &request)? != assigned {
            self.count(&observed.lost, "an assignment is another one when it is repeated");
        }
        assigned.slices.iter().for_each(|slice| self.end(slice));
        match self.client.give_back(self.name, epoch, &format!("r-{number}"), &vm) {
            Err(error) if error.code() == Some(Code::NotFound) => self.count(&observed.lost, "an assignment is gone"),
            answer => drop(answer?),
        }
        for slice in &assigned.slices {
            match self.client.offlined(self.name, epoch, slice) {
                // The request was repeated after a failover, and had been applied.
                Err(error) if error.code() == Some(Code::Stale) => {}
                answer => answer?,
            }
        }
        Ok(())
    }

    /// Takes a slice into use: it must be zero, and is marked in two places.
    fn begin(&self, slice: &Slice) {
        if let Some(other) = self.observed.owners.lock().unwrap().insert(slice.index, self.name) {
            self.count(&self.observed.double_owned, &format!("{other} has slice {}, too", slice.index));
        }
        for offset in Self::places(slice) {
            let mut read = [1; 8];
            self.device.read_exact_at(&mut read, offset).unwrap();
            if read != [0; 8] {
                self.count(&self.observed.leaked, "a slice is not zero");
            }
            self.device.write_all_at(&[7; 8], offset).unwrap();
        }
    }

    fn end(&self, slice: &Slice) {
        for offset in Self::places(slice) {
            let mut read = [0; 8];
            self.device.read_exact_at(&mut read, offset).unwrap();
            if read != [7; 8] {
                self.count(&self.observed.overwritten, "a slice in use was overwritten");
            }
        }
        self.observed.owners.lock().unwrap().remove(&slice.index);
    }

    fn places(slice: &Slice) -> [u64; 2] {
        let begin = slice.offset.unwrap().0;
        [begin, begin + SLICE_BYTES - 8]
    }
}

/// What a run found.
#[derive(serde::Serialize)]
struct Found {
    kills: usize,
    failover_max_seconds: f64,
    failover_median_seconds: f64,
    double_owned: u64,
    requests_lost: u64,
    leaked: u64,
    overwritten: u64,
    cycles: u64,
}

/// Kills the leader again and again while two hosts assign and return slices.
fn kill_leaders(kills: usize) -> Found {
    let mut group = Group::start();
    let observed = Arc::new(Observed::default());
    let device = || OpenOptions::new().read(true).write(true).open(group.device.path()).unwrap();
    let hosts = ["a", "b"].map(|name| Host { name, client: group.client(PATIENCE), device: device(), observed: Arc::clone(&observed) });
    let hosts = hosts.map(|host| thread::spawn(|| host.run()));
    let client = group.client(PATIENCE);
    let mut failovers: Vec<f64> = Vec::new();
    for _ in 0..kills {
        let leader = group.settled();
        thread::sleep(Duration::from_millis(fastrand::u64(300..1000)));
        let begin = Instant::now();
        group.kill(leader);
        client.lease("c", "again").unwrap();
        failovers.push(begin.elapsed().as_secs_f64());
        group.spawn(leader);
    }
    group.settled();
    observed.stop.store(true, Ordering::Relaxed);
    hosts.into_iter().for_each(|host| host.join().unwrap());
    // What was returned is free, and nothing else is assigned.
    if !all_free(&client) {
        observed.lost.fetch_add(1, Ordering::Relaxed);
        eprintln!("slices were returned and are not free: {:?}{}", client.pool().unwrap(), group.logs());
    }
    failovers.sort_by(f64::total_cmp);
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    Found {
        kills,
        failover_max_seconds: failovers.last().copied().unwrap_or_default(),
        failover_median_seconds: failovers.get(failovers.len() / 2).copied().unwrap_or_default(),
        double_owned: load(&observed.double_owned),
        requests_lost: load(&observed.lost),
        leaked: load(&observed.leaked),
        overwritten: load(&observed.overwritten),
        cycles: load(&observed.cycles),
    }
}

fn check(found: &Found) {
    println!("{}", serde_json::to_string_pretty(found).unwrap());
    assert_eq!((found.double_owned, found.requests_lost, found.leaked, found.overwritten), (0, 0, 0, 0));
    assert!(found.cycles > 0, "the hosts did nothing");
}

#[test]
fn a_killed_leader_is_replaced_and_no_slice_has_two_owners() {
    check(&kill_leaders(3));
}

#[test]
#[ignore = "minutes; make test-pool-group"]
fn the_leader_is_killed_fifty_times() {
    let found = kill_leaders(50);
    if let Some(path) = std::env::var_os("POOL_GROUP_RESULT") {
        std::fs::write(path, serde_json::to_string_pretty(&found).unwrap() + "\n").unwrap();
    }
    check(&found);
    assert!(found.failover_max_seconds < 2.0, "a failover took {} s", found.failover_max_seconds);
}

#[test]
fn a_leader_that_was_stopped_does_not_answer_as_one() {
    let group = Group::start();
    let leader = group.settled();
    let client = group.client(PATIENCE);
    let old = client.lease("a", "before").unwrap();
    group.signal(leader, "-STOP");
    // It gets requests while it is stopped, and answers them when it continues.
    let asked: Vec<_> = (0..4)
        .map(|_| {
            let (stopped, epoch) = (group.client_of(leader, PATIENCE), old.epoch);
            thread::spawn(move || (stopped.renew("a", epoch).map(drop), stopped.slices().map(drop)))
        })
        .collect();
    let new = client.lease("a", "after").unwrap();
    assert!(new.epoch > old.epoch);
    thread::sleep(Duration::from_secs(2));
    group.signal(leader, "-CONT");
    for asked in asked {
        let (renewed, listed) = asked.join().unwrap();
        assert!(matches!(renewed.unwrap_err().code(), Some(Code::NotLeader)), "a deposed leader renewed a lease");
        assert!(listed.is_err_and(|error| error.code() == Some(Code::NotLeader)), "a deposed leader listed slices");
    }
    client.renew("a", new.epoch).unwrap();
    assert_ne!(group.settled(), leader);
}

/// Assigns slices to host `a`, and returns them, so that they are to be zeroed.
fn release(client: &Client, epoch: u64, vm: &str, slices: u32) {
    let request = AssignRequest { epoch, request: format!("a-{vm}"), vm: vm.to_owned(), slices: Slices(slices) };
    let assigned = client.assign("a", &request).unwrap();
    client.give_back("a", epoch, &format!("r-{vm}"), vm).unwrap();
    assigned.slices.iter().for_each(|slice| client.offlined("a", epoch, slice).unwrap());
}

#[test]
fn slices_of_an_earlier_leader_wait_for_it() {
    let group = Group::start();
    let leader = group.settled();
    let client = group.client(PATIENCE);
    let epoch = client.lease("a", "a-1").unwrap().epoch;
    // Without its memory, the device cannot be zeroed.
    group.device.as_file().set_len(0).unwrap();
    release(&client, epoch, "first", 2);
    thread::sleep(Duration::from_secs(1));
    assert_eq!(client.pool().unwrap().slices.scrubbing, 2);
    // This leader may be in the middle of it when another one follows.
    group.signal(leader, "-STOP");
    client.lease("c", "after").unwrap();
    group.device.as_file().set_len(u64::from(SLICES) * SLICE_BYTES).unwrap();
    release(&client, epoch, "second", 1);
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(3) {
        let slices = client.pool().unwrap().slices;
        assert!(slices.scrubbing >= 2, "zeroed while an earlier leader may go on with it: {slices:?}");
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(client.pool().unwrap().slices.free, SLICES - 2, "a slice that was returned later does not wait");
    group.signal(leader, "-CONT");
    assert!(all_free(&client), "they wait for a member that answers: {}", group.logs());
}

#[test]
#[ignore = "minutes; make test-pool-group"]
fn a_member_that_lacks_removed_entries_gets_a_copy_of_the_ledger() {
    let mut group = Group::start();
    let member = (group.settled() + 1) % 3;
    let client = group.client(PATIENCE);
    group.kill(member);
    let mut epoch = 0;
    // More entries than the log keeps.
    for number in 0..4600 {
        epoch = client.lease("a", &format!("run {number}")).unwrap().epoch;
    }
    group.spawn(member);
    let leader = group.settled();
    let other = 3 - leader - member;
    assert_ne!(leader, member);
    assert!(group.logs().contains("got a copy of the ledger"), "it has all entries: {}", group.logs());
    // The one that has the copy is needed for a majority, and leads in its turn.
    group.kill(leader);
    client.renew("a", epoch).unwrap();
    group.spawn(leader);
    group.settled();
    group.kill(other);
    client.renew("a", epoch).unwrap();
    assert!(client.lease("a", "after").unwrap().epoch > epoch);
}

#[test]
fn a_member_of_an_earlier_group_is_not_heard() {
    let mut group = Group::start();
    let client = group.client(PATIENCE);
    let old = client.lease("a", "before").unwrap();
    for number in 0..20 {
        client.lease("c", &format!("more entries {number}")).unwrap();
    }
    group.settled();
    (0..3).for_each(|member| group.kill(member));
    let refused = group.command(0, &["recover"]);
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("--hosts-are-off"), "{refused:?}");
    // The third member is forgotten: its log is longer, and it must not lead the new group.
    for member in 0..2 {
        let made = group.command(member, &["recover", "--hosts-are-off"]);
        assert!(made.status.success(), "{made:?}");
    }
    (0..3).for_each(|member| group.spawn(member));
    let new = client.lease("a", "after").unwrap();
    assert!(new.epoch > old.epoch, "leases of the earlier group are void");
    thread::sleep(Duration::from_secs(3));
    client.renew("a", new.epoch).unwrap();
    assert_ne!(group.status(0).unwrap().leader, Some(3));
    assert_eq!(group.status(2).and_then(|status| status.leader), None, "it follows no leader");
}

#[test]
fn a_member_without_its_files_is_refused_and_joins_again() {
    let mut group = Group::start();
    let member = (group.settled() + 1) % 3;
    let client = group.client(PATIENCE);
    group.kill(member);
    let files = group.directory.path().join(member.to_string());
    std::fs::remove_dir_all(&files).unwrap();
    let lease = client.lease("a", "meanwhile").unwrap();
    let refused = group.command(member, &["--insecure-loopback"]);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && error.contains("init --join"), "{error}");
    let made = group.command(member, &["init", "--join"]);
    assert!(made.status.success(), "{made:?}");
    group.spawn(member);
    group.settled();
    assert!(group.status(member).unwrap().joining, "it voted at once");
    let begin = Instant::now();
    while group.status(member).unwrap().joining {
        assert!(begin.elapsed() < PATIENCE, "it never joins: {}", group.logs());
        thread::sleep(Duration::from_millis(50));
    }
    // It counts: without it, the group had no majority now.
    let leader = group.settled();
    let other = 3 - leader - member;
    group.kill(if leader == member { (member + 1) % 3 } else { other });
    client.renew("a", lease.epoch).unwrap();
    client.lease("b", "after").unwrap();
}

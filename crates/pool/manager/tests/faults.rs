//! Faults: no slice has two owners, no data is visible to a later owner, and no slice is lost, whichever process is
//! killed.
//!
//! The manager is a separate process, an instance of this test program, which can be killed at any instruction. Hosts
//! are threads that lock real files and write to them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fastrand::Rng;
use manager::api::{AssignRequest, Code, Slice, Slices};
use manager::claim::{ClaimError, claim};
use manager::client::{Client, Error};
use manager::service;
use manager::settings::Settings;

#[path = "faults/relay.rs"]
mod relay;

use relay::Relay;

const CONFIG: &str = "THERMOCLINE_TEST_MANAGER";
const PATIENCE: Duration = Duration::from_secs(60);
/// Offsets in a slice that are written and read.
const OFFSETS: [u64; 3] = [0, 67_108_864, 134_217_712];
const SLICES: u32 = 12;

/// The manager's process, started by the other tests. Serves until it is killed.
#[test]
fn manager_process() {
    let Some(config) = std::env::var_os(CONFIG) else { return };
    let settings = Settings::load(Path::new(&config)).unwrap();
    let _manager = service::start(&settings, true).unwrap();
    std::thread::park();
}

/// A pool's directory, and the process of its manager.
struct Site {
    directory: tempfile::TempDir,
    port: u16,
    child: Child,
}

impl Site {
    fn start(lease: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let half = SLICES / 2;
        let text = format!(
            "listen = \"127.0.0.1:{port}\"\nledger = \"ledger.redb\"\npool_dir = \"pool\"\nslice_size = \"128MiB\"\n\
             emcs = [{{ slices = {half} }}, {{ slices = {half} }}]\nhosts = [\"a\", \"b\", \"c\", \"d\"]\nlease = \"{lease}\"\n\
             answer_within = \"1s\"\nask_again_after = \"1s\"\n"
        );
        std::fs::write(directory.path().join("pool.toml"), text).unwrap();
        let child = spawn(&directory.path().join("pool.toml"));
        let site = Self { directory, port, child };
        site.wait();
        site
    }

    fn client(&self, timeout: Duration) -> Client {
        Client::new(&format!("http://127.0.0.1:{}", self.port), None, timeout).unwrap()
    }

    fn wait(&self) {
        let client = self.client(PATIENCE);
        let begin = Instant::now();
        while client.pool().is_err() {
            assert!(begin.elapsed() < PATIENCE, "the manager does not start");
            std::thread::yield_now();
        }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn restart(&mut self) {
        self.child = spawn(&self.directory.path().join("pool.toml"));
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(config: &Path) -> Child {
    // A write beyond the file size limit raises SIGXFSZ, which must not kill the process.
    Command::new("sh")
        .args(["-c", "trap '' XFSZ; exec \"$0\" --exact manager_process"])
        .arg(std::env::current_exe().unwrap())
        .env(CONFIG, config)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Observations of all hosts.
#[derive(Default)]
struct Observations {
    stop: AtomicBool,
    /// Current users by slice.
    owners: Mutex<BTreeMap<(u16, u32), String>>,
    double_owned: AtomicU64,
    leaked: AtomicU64,
    overwritten: AtomicU64,
    cycles: AtomicU64,
    refused_locks: AtomicU64,
}

/// A host that runs VMs one after the other. Each writes to all of its slices.
struct Host {
    name: &'static str,
    client: Client,
    random: Rng,
    observed: Arc<Observations>,
    epoch: u64,
    requests: u64,
}

impl Host {
    fn run(mut self) {
        self.lease();
        while !self.observed.stop.load(Ordering::Relaxed) {
            let vm = format!("vm-{}", self.requests);
            let request = self.request();
            let request = AssignRequest { epoch: self.epoch, request, vm: vm.clone(), slices: Slices(self.random.u32(1..=3)) };
            let given = match self.until_answered(|client, name| client.assign(name, &request)) {
                Ok(given) => given.slices,
                Err(Code::Short) => continue,
                // The lease has expired while the manager was down.
                Err(Code::Fenced) => {
                    self.lease();
                    continue;
                }
                Err(other) => panic!("{other:?}"),
            };
            let held: Vec<(Slice, File)> = given.iter().filter_map(|slice| self.take(slice, &vm)).collect();
            for _ in 0..self.random.u32(1..20) {
                let _ = self.client.renew(self.name, self.epoch);
            }
            self.check(&held, &vm);
            // One in eight daemons exits, and its next run takes a new lease.
            let exited = self.random.u32(0..8) == 0;
            self.release(held);
            if exited {
                self.lease();
            } else {
                self.give_back(&vm);
            }
            self.observed.cycles.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn request(&mut self) -> String {
        self.requests += 1;
        format!("{}-{}", self.name, self.requests)
    }

    /// Repeats a request until the manager answers.
    fn until_answered<T>(&self, request: impl Fn(&Client, &str) -> Result<T, Error>) -> Result<T, Code> {
        let begin = Instant::now();
        loop {
            match request(&self.client, self.name) {
                Ok(answer) => return Ok(answer),
                Err(Error::Refused(refusal)) if refusal.code != Code::Busy => return Err(refusal.code),
                Err(error) => assert!(begin.elapsed() < PATIENCE, "{error}"),
            }
            std::thread::yield_now();
        }
    }

    fn lease(&mut self) {
        let lease = self.until_answered(|client, name| client.lease(name, "test")).unwrap();
        self.epoch = lease.epoch;
        for assignment in lease.assignments {
            self.give_back(&assignment.vm);
        }
        self.offline();
    }

    fn give_back(&mut self, vm: &str) {
        let (request, epoch) = (self.request(), self.epoch);
        match self.until_answered(|client, name| client.give_back(name, epoch, &request, vm)) {
            Ok(_) => self.offline(),
            Err(Code::Fenced) => self.lease(),
            Err(other) => panic!("{other:?}"),
        }
    }

    fn offline(&mut self) {
        let epoch = self.epoch;
        let Ok(renewed) = self.until_answered(|client, name| client.renew(name, epoch)) else { return };
        for work in renewed.work {
            match self.until_answered(|client, name| client.offlined(name, epoch, &work.slice)) {
                // Stale: the first report was received.
                Ok(()) | Err(Code::Stale | Code::Fenced | Code::Forbidden) => {}
                Err(other) => panic!("{other:?}"),
            }
        }
    }

    fn take(&self, slice: &Slice, vm: &str) -> Option<(Slice, File)> {
        let file = match claim(slice) {
            Ok(file) => file,
            Err(ClaimError::InUse { .. } | ClaimError::Fenced { .. }) => {
                self.observed.refused_locks.fetch_add(1, Ordering::Relaxed);
                return None;
            }
            Err(other) => panic!("{other}"),
        };
        let who = format!("{} {vm}", self.name);
        if self.observed.owners.lock().unwrap().insert((slice.emc, slice.index), who.clone()).is_some() {
            self.observed.double_owned.fetch_add(1, Ordering::Relaxed);
        }
        for offset in OFFSETS {
            let mut read = [1; 16];
            file.read_exact_at(&mut read, offset).unwrap();
            if read != [0; 16] {
                self.observed.leaked.fetch_add(1, Ordering::Relaxed);
            }
            file.write_all_at(&marker(&who), offset).unwrap();
        }
        Some((slice.clone(), file))
    }

    fn check(&self, held: &[(Slice, File)], vm: &str) {
        for (_, file) in held {
            for offset in OFFSETS {
                let mut read = [0; 16];
                file.read_exact_at(&mut read, offset).unwrap();
                if read != marker(&format!("{} {vm}", self.name)) {
                    self.observed.overwritten.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    fn release(&self, held: Vec<(Slice, File)>) {
        for (slice, file) in held {
            self.observed.owners.lock().unwrap().remove(&(slice.emc, slice.index));
            drop(file);
        }
    }
}

fn marker(who: &str) -> [u8; 16] {
    let mut marker = [b'.'; 16];
    marker.iter_mut().zip(who.bytes()).for_each(|(to, from)| *to = from);
    marker
}

/// Kills the manager at random times while four hosts run.
fn kills(kills: u32, seed: u64) {
    let mut site = Site::start("10s");
    let observed = Arc::new(Observations::default());
    let hosts: Vec<_> = ["a", "b", "c", "d"]
        .into_iter()
        .zip(1u64..)
        .map(|(name, number)| {
            let client = site.client(Duration::from_secs(5));
            let host = Host { name, client, random: Rng::with_seed(seed + number), observed: Arc::clone(&observed), epoch: 0, requests: 0 };
            std::thread::spawn(move || host.run())
        })
        .collect();
    let mut random = Rng::with_seed(seed);
    for _ in 0..kills {
        // Most kills come after some work, at any instruction; some before the start is complete.
        if random.u32(0..4) > 0 {
            let goal = observed.cycles.load(Ordering::Relaxed) + random.u64(1..8);
            while observed.cycles.load(Ordering::Relaxed) < goal {
                std::thread::sleep(Duration::from_micros(random.u64(1..2_000)));
            }
        }
        std::thread::sleep(Duration::from_micros(random.u64(1..100_000)));
        site.kill();
        site.restart();
    }
    site.wait();
    observed.stop.store(true, Ordering::Relaxed);
    hosts.into_iter().for_each(|host| host.join().unwrap());
    let client = site.client(PATIENCE);
    for name in ["a", "b", "c", "d"] {
        let lease = client.lease(name, "the end").unwrap();
        for assignment in lease.assignments {
            client.give_back(name, lease.epoch, &format!("the end of {}", assignment.vm), &assignment.vm).unwrap();
        }
        for work in client.renew(name, lease.epoch).unwrap().work {
            client.offlined(name, lease.epoch, &work.slice).unwrap();
        }
    }
    let begin = Instant::now();
    while client.pool().unwrap().slices.free < SLICES {
        assert!(begin.elapsed() < PATIENCE, "slices are lost: {:?}", client.pool());
    }
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (cycles, refused) = (count(&observed.cycles), count(&observed.refused_locks));
    println!("kills {kills}, cycles {cycles}, locks refused {refused}");
    assert_eq!((count(&observed.double_owned), count(&observed.leaked), count(&observed.overwritten)), (0, 0, 0));
    assert!(cycles > u64::from(kills), "{cycles} cycles are too few");
}

#[test]
fn five_kills_of_the_manager_under_load() {
    kills(5, 7);
}

#[test]
#[ignore = "takes a minute; make test-pool-faults runs it"]
fn fifty_kills_of_the_manager_under_load() {
    kills(50, 1);
}

#[test]
fn a_partitioned_host_keeps_slices_in_use_and_cannot_make_requests() {
    let site = Site::start("5s");
    let relay = Relay::to(site.port);
    let partitioned = Client::new(&format!("http://127.0.0.1:{}", relay.port), None, Duration::from_secs(3)).unwrap();
    let direct = site.client(PATIENCE);
    let lease = partitioned.lease("a", "a-1").unwrap();
    let request = |epoch, vm: &str, slices| AssignRequest { epoch, request: vm.to_owned(), vm: vm.to_owned(), slices: Slices(slices) };
    let runs = partitioned.assign("a", &request(lease.epoch, "runs", 2)).unwrap();
    let never = partitioned.assign("a", &request(lease.epoch, "never started", 3)).unwrap();
    let held: Vec<File> = runs.slices.iter().map(|slice| claim(slice).unwrap()).collect();
    held.iter().for_each(|file| file.write_all_at(b"runs", 0).unwrap());
    relay.cut();
    assert!(matches!(partitioned.renew("a", lease.epoch), Err(Error::Unreachable { .. })));
    let begin = Instant::now();
    while direct.pool().unwrap().slices.free < SLICES - 2 {
        assert!(begin.elapsed() < PATIENCE, "unused slices are not reclaimed after the lease: {:?}", direct.pool());
    }
    // Another host gets all free slices, and none that the first one uses.
    let other = direct.lease("b", "b-1").unwrap();
    let mut all = Vec::new();
    for (vm, slices) in [("x", 6), ("y", 4)] {
        all.extend(direct.assign("b", &request(other.epoch, vm, slices)).unwrap().slices);
    }
    let others: Vec<File> = all.iter().map(|slice| claim(slice).unwrap()).collect();
    others.iter().for_each(|file| file.write_all_at(b"other", 0).unwrap());
    for slice in &never.slices {
        assert!(matches!(claim(slice), Err(ClaimError::Fenced { .. })));
    }
    relay.heal();
    assert_eq!(partitioned.renew("a", lease.epoch).unwrap_err().code(), Some(Code::Fenced));
    let back = partitioned.lease("a", "a-1").unwrap();
    assert_eq!(back.assignments, std::slice::from_ref(&runs));
    for file in &held {
        let mut read = [0; 4];
        file.read_exact_at(&mut read, 0).unwrap();
        assert_eq!(&read, b"runs");
    }
}

/// Checks a manager while its ledger cannot be written, and afterwards.
fn check_unwritable_ledger(site: &Site, break_it: &dyn Fn(), repair_it: &dyn Fn(), code: Code) {
    let client = site.client(PATIENCE);
    let lease = client.lease("a", "a-1").unwrap();
    let request = |vm: &str| AssignRequest { epoch: lease.epoch, request: vm.to_owned(), vm: vm.to_owned(), slices: Slices(2) };
    let before = client.assign("a", &request("before")).unwrap();
    let held: Vec<File> = before.slices.iter().map(|slice| claim(slice).unwrap()).collect();
    break_it();
    let begin = Instant::now();
    for number in 0.. {
        assert!(begin.elapsed() < PATIENCE, "the ledger can still be written");
        // The file may have space for a few more rows.
        let name = format!("vm-{number}");
        match client.assign("a", &request(&name)) {
            Err(Error::Refused(refusal)) if refusal.code == code => break,
            Ok(_) => drop(client.give_back("a", lease.epoch, &format!("back-{number}"), &name)),
            Err(Error::Refused(refusal)) if matches!(refusal.code, Code::Short | Code::Conflict) => {}
            Err(error) => panic!("{error}"),
        }
    }
    // Reads and renewals still work.
    assert!(client.pool().unwrap().ledger_error.is_some());
    client.renew("a", lease.epoch).unwrap();
    let shown = client.lease("b", "b-1").unwrap_err();
    assert_eq!(shown.code(), Some(code), "{shown}");
    repair_it();
    let begin = Instant::now();
    while client.pool().unwrap().ledger_error.is_some() {
        assert!(begin.elapsed() < PATIENCE, "the manager does not retry");
    }
    client.lease("b", "b-1").unwrap();
    client.renew("a", lease.epoch).unwrap();
    let lease = client.lease("a", "a-2").unwrap();
    assert!(lease.assignments.contains(&before), "{lease:?}");
    for assignment in lease.assignments.iter().filter(|assignment| assignment.vm != "before") {
        client.give_back("a", lease.epoch, &format!("the end of {}", assignment.vm), &assignment.vm).unwrap();
    }
    for work in client.renew("a", lease.epoch).unwrap().work {
        client.offlined("a", lease.epoch, &work.slice).unwrap();
    }
    let begin = Instant::now();
    while client.pool().unwrap().slices.free < SLICES - 2 {
        assert!(begin.elapsed() < PATIENCE, "slices are lost: {:?}", client.pool());
    }
    drop(held);
}

#[test]
fn a_ledger_that_cannot_grow_stops_only_reassignment() {
    let site = Site::start("30s");
    let pid = site.child.id().to_string();
    let limit = |bytes: &str| {
        let done = Command::new("prlimit").args(["--pid", &pid, &format!("--fsize={bytes}:unlimited")]).status().unwrap();
        assert!(done.success());
    };
    check_unwritable_ledger(&site, &|| limit("1"), &|| limit("unlimited"), Code::LedgerFull);
}

#[test]
#[ignore = "mounts a small file system, as root; make test-pool-faults runs it"]
fn a_full_disk_stops_only_reassignment() {
    let mut site = Site::start("30s");
    site.kill();
    let disk = site.directory.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=2M", "tmpfs"]).arg(&disk).status().unwrap();
    assert!(mounted.success(), "needs root");
    let unmount = Unmount(disk.clone());
    let config = site.directory.path().join("pool.toml");
    let text = std::fs::read_to_string(&config).unwrap().replace("ledger.redb", "disk/ledger.redb");
    std::fs::write(&config, text).unwrap();
    std::fs::remove_dir_all(site.directory.path().join("pool")).unwrap();
    site.restart();
    site.wait();
    let filler = disk.join("filler");
    let fill = || {
        let mut file = File::create(&filler).unwrap();
        while file.write_all(&[7; 4096]).is_ok() {}
    };
    check_unwritable_ledger(&site, &fill, &|| std::fs::remove_file(&filler).unwrap(), Code::LedgerFull);
    drop(site);
    drop(unmount);
}

struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

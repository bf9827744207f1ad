//! Ledgers that lie: lost, restored from a backup, of another pool, copied, and with a bit flipped. A manager refuses each, and
//! `recover` makes a ledger under which no slice has two owners and no data is visible to a later one.
//!
//! `make test-ledger-lies` flips more bits, and writes the figures.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fastrand::Rng;
use manager::api::{AssignRequest, Lease, Slice, Slices};
use manager::claim::claim;
use manager::client::Client;
use manager::service::{self, Manager};
use manager::settings::Settings;

const PATIENCE: Duration = Duration::from_secs(60);
/// Where the figures go, and then more bits are flipped.
const RESULT: &str = "LEDGER_LIES_RESULT";
const SLICES: u32 = 8;

struct Site {
    directory: tempfile::TempDir,
}

impl Site {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn settings(&self, ledger: &str, pool: &str) -> Settings {
        let root = self.directory.path().display();
        let text = format!(
            "listen = \"127.0.0.1:0\"\nledger = \"{root}/{ledger}\"\npool_dir = \"{root}/{pool}\"\nslice_size = \"128MiB\"\n\
             emcs = [{{ slices = {SLICES} }}]\nhosts = [\"a\", \"b\"]\n"
        );
        Settings::parse(Path::new("test.toml"), &text).unwrap()
    }

    fn start(&self) -> Result<Pool, String> {
        Pool::start(&self.settings("ledger", "pool"))
    }

    /// Initialises the pool, whatever the size of the file system.
    fn init(&self) -> Pool {
        service::init(&self.settings("ledger", "pool"), true).unwrap();
        self.start().unwrap()
    }
}

struct Pool {
    client: Client,
    _manager: Manager,
}

impl Pool {
    fn start(settings: &Settings) -> Result<Self, String> {
        let manager = service::start(settings, true).map_err(|error| error.to_string())?;
        let client = Client::new(&format!("http://{}", manager.address), None, PATIENCE).unwrap();
        Ok(Self { client, _manager: manager })
    }

    fn lease(&self, host: &str) -> Lease {
        self.client.lease(host, &format!("{host}-1")).unwrap()
    }

    fn assign(&self, host: &str, lease: &Lease, vm: &str, slices: u32) -> Vec<Slice> {
        let request = AssignRequest { epoch: lease.epoch, request: format!("r-{vm}"), vm: vm.to_owned(), slices: Slices(slices) };
        self.client.assign(host, &request).unwrap().slices
    }

    /// The assignments of a host by VM.
    fn assignments(&self, host: &str) -> Result<BTreeMap<String, Vec<Slice>>, String> {
        let lease = self.client.lease(host, &format!("{host}-1")).map_err(|error| error.to_string())?;
        Ok(lease.assignments.into_iter().map(|of| (of.vm, of.slices)).collect())
    }

    fn until_free(&self, slices: u32) {
        let begin = Instant::now();
        while self.client.pool().unwrap().slices.free != slices {
            assert!(begin.elapsed() < PATIENCE, "{:?}", self.client.pool());
            std::thread::yield_now();
        }
    }
}

/// Takes slices into use, and writes what no later owner may read.
fn take(slices: &[Slice]) -> Vec<File> {
    slices.iter().map(|slice| claim(slice).unwrap()).inspect(|file| file.write_all_at(b"secret", 4096).unwrap()).collect()
}

fn is_zero(slice: &Slice) -> bool {
    let mut read = [1; 6];
    claim(slice).unwrap().read_exact_at(&mut read, 4096).unwrap();
    read == [0; 6]
}

/// Recovers a pool of which `held` are in use; the others are assigned again, and these when they are released. Returns how many
/// slices had two owners or showed data.
fn recovered(site: &Site, held: Vec<File>) -> usize {
    let settings = site.settings("ledger", "pool");
    let planned = service::recover(&settings, true, false).unwrap();
    assert_eq!((planned.dry_run, planned.in_use as usize), (true, held.len()));
    let summary = service::recover(&settings, false, false).unwrap();
    assert_eq!((summary.in_use as usize, summary.slices.0), (held.len(), SLICES));
    let pool = site.start().unwrap();
    let free = SLICES - u32::try_from(held.len()).unwrap();
    pool.until_free(free);
    let lease = pool.lease("b");
    let given = pool.assign("b", &lease, "new", free);
    let mut wrong = given.iter().filter(|slice| claim(slice).is_err() || !is_zero(slice)).count();
    drop(held);
    pool.until_free(SLICES - free);
    let rest = pool.assign("b", &lease, "later", SLICES - free);
    wrong += rest.iter().filter(|slice| !is_zero(slice)).count();
    wrong
}

/// A pool in which host `a` uses four slices and has released two others.
fn used(site: &Site) -> Vec<File> {
    let pool = site.init();
    let lease = pool.lease("a");
    let held = take(&pool.assign("a", &lease, "vm", 4));
    drop(take(&pool.assign("a", &lease, "gone", 2)));
    held
}

#[test]
fn a_lost_ledger_is_not_replaced_in_silence() {
    let site = Site::new();
    let held = used(&site);
    std::fs::remove_file(site.path("ledger")).unwrap();
    let error = site.start().err().unwrap();
    assert!(error.contains("it is new") && error.contains("pool manager recover"), "{error}");
    assert!(site.start().is_err(), "and not at the next start either");
    assert_eq!(recovered(&site, held), 0);
}

#[test]
fn a_restored_backup_is_refused_after_a_change() {
    let site = Site::new();
    let held = used(&site);
    std::fs::copy(site.path("ledger"), site.path("backup")).unwrap();
    drop(site.start().unwrap());
    std::fs::copy(site.path("backup"), site.path("ledger")).unwrap();
    assert_eq!(site.start().unwrap().assignments("a").unwrap().len(), 2, "nothing has changed since the backup");
    std::fs::copy(site.path("backup"), site.path("ledger")).unwrap();
    let error = site.start().err().unwrap();
    assert!(error.contains("earlier state"), "{error}");
    assert_eq!(recovered(&site, held), 0);
}

#[test]
fn a_directory_has_one_manager_and_one_ledger() {
    let site = Site::new();
    let pool = site.init();
    let other = site.settings("other", "pool");
    let error = Pool::start(&other).err().unwrap();
    assert!(error.contains("another pool manager serves"), "{error}");
    drop(pool);
    let error = Pool::start(&other).err().unwrap();
    assert!(error.contains("it is new"), "{error}");
    // A copy of the ledger that went on beside other files.
    std::fs::copy(site.path("ledger"), site.path("copy")).unwrap();
    std::fs::create_dir(site.path("elsewhere")).unwrap();
    let copy = Pool::start(&site.settings("copy", "elsewhere")).unwrap();
    let lease = copy.lease("b");
    copy.assign("b", &lease, "vm", 3);
    drop(copy);
    let error = Pool::start(&site.settings("copy", "pool")).err().unwrap();
    assert!(error.contains("other files"), "{error}");
}

#[test]
fn recovery_waits_for_no_running_manager_and_forgets_no_lock() {
    let site = Site::new();
    let pool = site.init();
    let error = service::recover(&site.settings("ledger", "pool"), false, false).unwrap_err().to_string();
    assert!(error.contains("another pool manager serves"), "{error}");
    let lease = pool.lease("a");
    drop(pool);
    service::recover(&site.settings("ledger", "pool"), false, false).unwrap();
    let pool = site.start().unwrap();
    assert!(pool.client.renew("a", lease.epoch).is_err(), "earlier leases are void");
    assert!(pool.lease("a").epoch > lease.epoch);
}

/// What became of a ledger with a flipped bit.
#[derive(Debug, Default)]
struct Flips {
    cases: u32,
    /// The manager did not start, or refused to answer.
    refused: u32,
    /// The manager panicked.
    panicked: u32,
    /// The manager started, and knew all that it had answered.
    unharmed: u32,
    silent_losses: u32,
}

#[test]
fn a_flipped_bit_is_seen_or_harmless() {
    let cases = if std::env::var_os(RESULT).is_some() { 1_212 } else { 120 };
    let site = Site::new();
    let _held = used(&site);
    let (ledger, mark) = (std::fs::read(site.path("ledger")).unwrap(), std::fs::read(site.path("pool/ledger.mark")).unwrap());
    let answered = site.start().unwrap().assignments("a").unwrap();
    assert_eq!(answered.len(), 2);
    let used: Vec<usize> = (0..ledger.len()).filter(|&at| ledger[at] != 0).collect();
    let mut draw = Rng::with_seed(20);
    let mut flips = Flips::default();
    for case in 0..cases {
        // Nine in ten of the flips hit bytes that have contents.
        let at = if case % 10 == 0 { draw.usize(..ledger.len()) } else { used[draw.usize(..used.len())] };
        let mut flipped = ledger.clone();
        flipped[at] ^= 1 << draw.u32(..8);
        std::fs::write(site.path("ledger"), flipped).unwrap();
        std::fs::write(site.path("pool/ledger.mark"), &mark).unwrap();
        flips.cases += 1;
        match catch_unwind(AssertUnwindSafe(|| site.start().and_then(|pool| pool.assignments("a")))) {
            Err(_) => flips.panicked += 1,
            Ok(Err(_)) => flips.refused += 1,
            Ok(Ok(found)) if found == answered => flips.unharmed += 1,
            Ok(Ok(_)) => flips.silent_losses += 1,
        }
    }
    println!("{flips:?}");
    if let Some(path) = std::env::var_os(RESULT) {
        let Flips { cases, refused, panicked, unharmed, silent_losses } = flips;
        let body = format!(
            "{{\"flips\":{cases},\"refused\":{refused},\"panicked\":{panicked},\"unharmed\":{unharmed},\"silent_losses\":{silent_losses},\
             \"double_owned\":{}}}\n",
            double_owned()
        );
        std::fs::write(path, body).unwrap();
    }
    assert_eq!((flips.silent_losses, flips.panicked), (0, 0));
    assert!(flips.refused > 0 && flips.unharmed > 0);
}

/// Slices with two owners, or that showed data of another, after each kind of lie.
fn double_owned() -> usize {
    let lies: [fn(&Site); 3] = [
        |site| std::fs::remove_file(site.path("ledger")).unwrap(),
        |site| std::fs::write(site.path("ledger"), [7; 9_000]).unwrap(),
        |site| std::fs::write(site.path("pool/ledger.mark"), "no mark").unwrap(),
    ];
    lies.iter()
        .map(|lie| {
            let site = Site::new();
            let held = used(&site);
            lie(&site);
            assert!(site.start().is_err());
            recovered(&site, held)
        })
        .sum()
}

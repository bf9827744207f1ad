//! A manager in this process, spoken to over loopback.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use manager::api::{AssignRequest, Assignment, Code, Lease, PoolStatus, Slice, Slices};
use manager::claim::{Unclaimed, claim};
use manager::client::{Client, Error};
use manager::service::{self, Manager};
use manager::settings::Settings;

const PATIENCE: Duration = Duration::from_secs(60);

fn settings(directory: &Path, more: &str) -> Settings {
    let root = directory.display();
    let text = format!(
        "listen = \"127.0.0.1:0\"\nledger = \"{root}/ledger.redb\"\npool_dir = \"{root}/pool\"\nslice_size = \"128MiB\"\n\
         emcs = [{{ slices = 4 }}, {{ slices = 4 }}]\nhosts = [\"a\", \"b\"]\noperators = [\"op\"]\n{more}\n"
    );
    Settings::parse(Path::new("test.toml"), &text).unwrap()
}

fn start(settings: &Settings) -> (Manager, Client) {
    service::init(settings, true).unwrap();
    let manager = service::start(settings, true).unwrap();
    let client = Client::new(&format!("http://{}", manager.address), None, PATIENCE).unwrap();
    (manager, client)
}

fn ask(lease: &Lease, request: &str, vm: &str, slices: u32) -> AssignRequest {
    AssignRequest { epoch: lease.epoch, request: request.to_owned(), vm: vm.to_owned(), slices: Slices(slices) }
}

fn code<T: std::fmt::Debug>(answer: Result<T, Error>) -> Code {
    answer.unwrap_err().code().unwrap()
}

/// Asks until it is so.
fn until(client: &Client, what: &str, so: impl Fn(&PoolStatus) -> bool) -> PoolStatus {
    let began = Instant::now();
    loop {
        let status = client.pool().unwrap();
        if so(&status) {
            return status;
        }
        assert!(began.elapsed() < PATIENCE, "not in time: {what}; {status:?}");
        std::thread::yield_now();
    }
}

/// Writes something that must never be read by anybody else.
fn mark(slice: &Slice) -> std::fs::File {
    let file = claim(slice).unwrap();
    assert!(is_zero(&file), "slice {}/{} is not zero", slice.emc, slice.index);
    file.write_all_at(b"secret", 12_288).unwrap();
    file
}

fn is_zero(file: &std::fs::File) -> bool {
    let mut read = [1; 6];
    file.read_exact_at(&mut read, 12_288).unwrap();
    read == [0; 6]
}

fn offline(client: &Client, lease: &Lease, host: &str) {
    for work in client.renew(host, lease.epoch).unwrap().work {
        client.offlined(host, lease.epoch, &work.slice).unwrap();
    }
}

#[test]
fn slices_go_from_host_to_host() {
    let directory = tempfile::tempdir().unwrap();
    let (manager, client) = start(&settings(directory.path(), ""));
    let (a, b) = (client.lease("a", "a-1").unwrap(), client.lease("b", "b-1").unwrap());
    let first = client.assign("a", &ask(&a, "r1", "vm", 4)).unwrap();
    assert_eq!(first, client.assign("a", &ask(&a, "r1", "vm", 4)).unwrap(), "said again, the same answer");
    // The other EMC's are left; never across EMCs.
    let second = client.assign("b", &ask(&b, "r1", "vm", 4)).unwrap();
    assert!(first.slices.iter().all(|slice| slice.emc != second.slices[0].emc));
    assert_eq!(code(client.assign("b", &ask(&b, "r2", "other", 1))), Code::Short);
    let held: Vec<_> = first.slices.iter().map(mark).collect();
    let tables = client.permissions().unwrap().emcs;
    assert_eq!(tables[usize::from(first.slices[0].emc)].owners, vec![Some("a".to_owned()); 4]);
    // What is given back goes on being locked until the host lets go of it.
    let work = client.give_back("a", a.epoch, "r2", "vm").unwrap().work;
    assert_eq!(work.len(), 4);
    assert_eq!(client.give_back("a", a.epoch, "r2", "vm").unwrap().work.len(), 4, "said again, the same answer");
    assert_eq!(code(client.assign("a", &ask(&a, "r1", "vm", 4))), Code::Over, "a request that comes late brings nothing");
    client.offline_failed("a", a.epoch, &work[0].slice, "guest full").unwrap();
    let status = until(&client, "one is stuck", |status| status.slices.stuck == 1);
    assert_eq!((status.stuck[0].why.as_deref(), status.stuck[0].failures), (Some("guest full"), 1));
    assert_eq!(code(client.offlined("b", b.epoch, &work[0].slice)), Code::Forbidden);
    for work in &work {
        client.offlined("a", a.epoch, &work.slice).unwrap();
    }
    assert_eq!(code(client.offlined("a", a.epoch, &work[0].slice)), Code::Stale);
    // The host lied: it still holds the locks. Nothing is given away.
    until(&client, "all are to be scrubbed", |status| status.slices.scrubbing == 4);
    drop(held);
    until(&client, "all are free", |status| status.slices.free == 4);
    let third = client.assign("b", &ask(&b, "r3", "third", 4)).unwrap();
    let _held: Vec<_> = third.slices.iter().map(mark).collect();
    assert!(matches!(claim(&first.slices[0]), Err(Unclaimed::Fenced { .. })), "who comes late opens nothing");
    manager.stop();
}

#[test]
fn a_host_without_a_lease_keeps_what_it_uses_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let (_manager, client) = start(&settings(directory.path(), "lease = \"5s\""));
    let old = client.lease("a", "a-1").unwrap();
    let used = client.assign("a", &ask(&old, "r1", "runs", 2)).unwrap();
    let unused: Assignment = client.assign("a", &ask(&old, "r2", "never started", 3)).unwrap();
    let held: Vec<_> = used.slices.iter().map(mark).collect();
    let status = until(&client, "the lease runs out, and three come back", |status| status.slices.free == 6);
    assert!(status.hosts[0].lease_left_seconds.is_none() && status.slices.online == 2, "{status:?}");
    assert_eq!(code(client.renew("a", old.epoch)), Code::Fenced);
    assert_eq!(code(client.assign("a", &ask(&old, "r3", "more", 1))), Code::Fenced);
    assert!(matches!(claim(&unused.slices[0]), Err(Unclaimed::Fenced { .. })));
    let new = client.lease("a", "a-2").unwrap();
    assert_eq!(new.assignments, std::slice::from_ref(&used), "what runs is still there");
    assert_eq!(code(client.renew("a", old.epoch)), Code::Fenced);
    drop(held);
    // Its guest has died, and nobody says so: as long as there is a lease, that is the host's affair.
    client.renew("a", new.epoch).unwrap();
    assert_eq!(client.pool().unwrap().slices.online, 2);
    until(&client, "the second lease runs out", |status| status.slices.free == 8);
}

#[test]
fn a_manager_that_comes_back_knows_everything() {
    let directory = tempfile::tempdir().unwrap();
    let settings = settings(directory.path(), "");
    let (manager, client) = start(&settings);
    let lease = client.lease("a", "a-1").unwrap();
    let given = client.assign("a", &ask(&lease, "r1", "vm", 2)).unwrap();
    let gone = client.assign("a", &ask(&lease, "r2", "gone", 1)).unwrap();
    client.give_back("a", lease.epoch, "r3", "gone").unwrap();
    let _held: Vec<_> = given.slices.iter().map(mark).collect();
    let second = service::start(&settings, true).unwrap_err().to_string();
    assert!(second.contains("one manager per pool"), "{second}");
    let slices = client.slices().unwrap();
    manager.stop();
    // Somebody has grown the pool meanwhile.
    let mut settings = settings;
    settings.emcs[1].slices = 5;
    settings.hosts.push("c".to_owned());
    let (_manager, client) = start(&settings);
    assert_eq!(client.slices().unwrap().slices[..8], slices.slices[..]);
    assert_eq!(client.pool().unwrap().slices.free, 6);
    let renewed = client.renew("a", lease.epoch).unwrap();
    assert_eq!(renewed.work.iter().map(|work| &work.slice).collect::<Vec<_>>(), gone.slices.iter().collect::<Vec<_>>());
    assert_eq!(client.assign("a", &ask(&lease, "r1", "vm", 2)).unwrap(), given);
    assert_eq!(code(client.assign("a", &ask(&lease, "r2", "gone", 1))), Code::Over);
    client.lease("c", "c-1").unwrap();
    offline(&client, &lease, "a");
    until(&client, "it comes back", |status| status.slices.free == 7);
}

#[test]
fn an_emc_fails_alone() {
    let directory = tempfile::tempdir().unwrap();
    let (_manager, client) = start(&settings(directory.path(), ""));
    let lease = client.lease("a", "a-1").unwrap();
    let first = client.assign("a", &ask(&lease, "r1", "first", 2)).unwrap();
    client.assign("a", &ask(&lease, "r2", "second", 2)).unwrap();
    let emc = first.slices[0].emc;
    client.emc_failed(emc).unwrap();
    let status = client.pool().unwrap();
    assert_eq!((status.slices.failed, status.slices.online, status.hosts[0].vms), (4, 2, 1));
    client.emc_repaired(emc).unwrap();
    until(&client, "it is scrubbed", |status| status.slices.free == 6);
    assert_eq!(code(client.emc_failed(7)), Code::NotFound);
}

#[test]
fn a_file_that_somebody_removed_is_made_anew() {
    let directory = tempfile::tempdir().unwrap();
    let (_manager, client) = start(&settings(directory.path(), ""));
    let lease = client.lease("a", "a-1").unwrap();
    let given = client.assign("a", &ask(&lease, "r1", "vm", 1)).unwrap();
    std::fs::remove_file(&given.slices[0].path).unwrap();
    assert!(matches!(claim(&given.slices[0]), Err(Unclaimed::Fenced { .. })));
    client.give_back("a", lease.epoch, "r2", "vm").unwrap();
    offline(&client, &lease, "a");
    until(&client, "it comes back", |status| status.slices.free == 8);
    let all: Vec<_> = ["x", "y"].iter().map(|vm| client.assign("a", &ask(&lease, vm, vm, 4)).unwrap()).collect();
    let _held: Vec<_> = all.iter().flat_map(|given| &given.slices).map(mark).collect();
}

#[test]
fn requests_that_make_no_sense_are_told_so() {
    let directory = tempfile::tempdir().unwrap();
    let (_manager, client) = start(&settings(directory.path(), ""));
    assert_eq!(code(client.lease("z", "z-1")), Code::NotFound);
    assert_eq!(code(client.renew("a", 0)), Code::Fenced);
    let lease = client.lease("a", "a-1").unwrap();
    assert_eq!(code(client.assign("a", &ask(&lease, "r1", "vm", 0))), Code::BadRequest);
    assert_eq!(code(client.assign("a", &ask(&lease, "r1", "", 1))), Code::BadRequest);
    assert_eq!(code(client.assign("a", &ask(&lease, &"r".repeat(200), "vm", 1))), Code::BadRequest);
    assert_eq!(code(client.assign("a", &ask(&lease, &"r".repeat(70_000), "vm", 1))), Code::TooLong);
    assert_eq!(code(client.give_back("a", lease.epoch, "r1", "nobody")), Code::NotFound);
    client.assign("a", &ask(&lease, "r1", "vm", 1)).unwrap();
    assert_eq!(code(client.assign("a", &ask(&lease, "r2", "vm", 2))), Code::Conflict);
    assert_eq!(code(client.assign("a", &ask(&lease, "r1", "other", 1))), Code::Conflict);
}

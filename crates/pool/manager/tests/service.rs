//! A manager in this process, used over loopback.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use manager::api::{AssignRequest, Assignment, Code, Lease, PoolStatus, Slice, Slices};
use manager::claim::{ClaimError, claim};
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

fn request(lease: &Lease, request: &str, vm: &str, slices: u32) -> AssignRequest {
    AssignRequest { epoch: lease.epoch, request: request.to_owned(), vm: vm.to_owned(), slices: Slices(slices) }
}

fn code<T: std::fmt::Debug>(answer: Result<T, Error>) -> Code {
    answer.unwrap_err().code().unwrap()
}

/// Polls the status until it matches.
fn until(client: &Client, what: &str, matches: impl Fn(&PoolStatus) -> bool) -> PoolStatus {
    let begin = Instant::now();
    loop {
        let status = client.pool().unwrap();
        if matches(&status) {
            return status;
        }
        assert!(begin.elapsed() < PATIENCE, "not in time: {what}; {status:?}");
        std::thread::yield_now();
    }
}

/// Writes data that no later owner may read.
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
fn slices_are_reassigned_between_hosts() {
    let directory = tempfile::tempdir().unwrap();
    let (manager, client) = start(&settings(directory.path(), ""));
    let (a, b) = (client.lease("a", "a-1").unwrap(), client.lease("b", "b-1").unwrap());
    let first = client.assign("a", &request(&a, "r1", "vm", 4)).unwrap();
    assert_eq!(first, client.assign("a", &request(&a, "r1", "vm", 4)).unwrap(), "a repetition has the same answer");
    // Only slices of the other EMC are free; an assignment never spans EMCs.
    let second = client.assign("b", &request(&b, "r1", "vm", 4)).unwrap();
    assert!(first.slices.iter().all(|slice| slice.emc != second.slices[0].emc));
    assert_eq!(code(client.assign("b", &request(&b, "r2", "other", 1))), Code::Short);
    let held: Vec<_> = first.slices.iter().map(mark).collect();
    let tables = client.permissions().unwrap().emcs;
    assert_eq!(tables[usize::from(first.slices[0].emc)].owners, vec![Some("a".to_owned()); 4]);
    // Returned slices stay locked until the host releases them.
    let work = client.give_back("a", a.epoch, "r2", "vm").unwrap().work;
    assert_eq!(work.len(), 4);
    assert_eq!(client.give_back("a", a.epoch, "r2", "vm").unwrap().work.len(), 4, "a repetition has the same answer");
    assert_eq!(code(client.assign("a", &request(&a, "r1", "vm", 4))), Code::Over, "a late request assigns nothing");
    client.offline_failed("a", a.epoch, &work[0].slice, "guest full").unwrap();
    let status = until(&client, "one is stuck", |status| status.slices.stuck == 1);
    assert_eq!((status.stuck[0].why.as_deref(), status.stuck[0].failures), (Some("guest full"), 1));
    assert_eq!(code(client.offlined("b", b.epoch, &work[0].slice)), Code::Forbidden);
    for work in &work {
        client.offlined("a", a.epoch, &work.slice).unwrap();
    }
    assert_eq!(code(client.offlined("a", a.epoch, &work[0].slice)), Code::Stale);
    // The host reported slices offline that it still has locked. They are not reassigned.
    until(&client, "all are to be scrubbed", |status| status.slices.scrubbing == 4);
    drop(held);
    until(&client, "all are free", |status| status.slices.free == 4);
    let third = client.assign("b", &request(&b, "r3", "third", 4)).unwrap();
    let _held: Vec<_> = third.slices.iter().map(mark).collect();
    assert!(matches!(claim(&first.slices[0]), Err(ClaimError::Fenced { .. })), "a late owner cannot open the slice");
    manager.stop();
}

#[test]
fn a_host_without_a_lease_keeps_only_slices_in_use() {
    let directory = tempfile::tempdir().unwrap();
    let (_manager, client) = start(&settings(directory.path(), "lease = \"5s\""));
    let old = client.lease("a", "a-1").unwrap();
    let used = client.assign("a", &request(&old, "r1", "runs", 2)).unwrap();
    let unused: Assignment = client.assign("a", &request(&old, "r2", "never started", 3)).unwrap();
    let held: Vec<_> = used.slices.iter().map(mark).collect();
    let status = until(&client, "the lease expires, and three slices are reclaimed", |status| status.slices.free == 6);
    assert!(status.hosts[0].lease_left_seconds.is_none() && status.slices.online == 2, "{status:?}");
    assert_eq!(code(client.renew("a", old.epoch)), Code::Fenced);
    assert_eq!(code(client.assign("a", &request(&old, "r3", "more", 1))), Code::Fenced);
    assert!(matches!(claim(&unused.slices[0]), Err(ClaimError::Fenced { .. })));
    let new = client.lease("a", "a-2").unwrap();
    assert_eq!(new.assignments, std::slice::from_ref(&used), "slices in use are still assigned");
    assert_eq!(code(client.renew("a", old.epoch)), Code::Fenced);
    drop(held);
    // The guest has exited, and the host has not reported it: with a lease, the slices stay assigned.
    client.renew("a", new.epoch).unwrap();
    assert_eq!(client.pool().unwrap().slices.online, 2);
    until(&client, "the second lease expires", |status| status.slices.free == 8);
}

#[test]
fn a_restarted_manager_has_its_whole_state() {
    let directory = tempfile::tempdir().unwrap();
    let settings = settings(directory.path(), "");
    let (manager, client) = start(&settings);
    let lease = client.lease("a", "a-1").unwrap();
    let given = client.assign("a", &request(&lease, "r1", "vm", 2)).unwrap();
    let gone = client.assign("a", &request(&lease, "r2", "gone", 1)).unwrap();
    client.give_back("a", lease.epoch, "r3", "gone").unwrap();
    let _held: Vec<_> = given.slices.iter().map(mark).collect();
    let second = service::start(&settings, true).unwrap_err().to_string();
    assert!(second.contains("another pool manager serves"), "{second}");
    let slices = client.slices().unwrap();
    manager.stop();
    // The pool was extended in the meantime.
    let mut settings = settings;
    settings.emcs[1].slices = 5;
    settings.hosts.push("c".to_owned());
    let (_manager, client) = start(&settings);
    assert_eq!(client.slices().unwrap().slices[..8], slices.slices[..]);
    assert_eq!(client.pool().unwrap().slices.free, 6);
    let renewed = client.renew("a", lease.epoch).unwrap();
    assert_eq!(renewed.work.iter().map(|work| &work.slice).collect::<Vec<_>>(), gone.slices.iter().collect::<Vec<_>>());
    assert_eq!(client.assign("a", &request(&lease, "r1", "vm", 2)).unwrap(), given);
    assert_eq!(code(client.assign("a", &request(&lease, "r2", "gone", 1))), Code::Over);
    client.lease("c", "c-1").unwrap();
    offline(&client, &lease, "a");
    until(&client, "it is free again", |status| status.slices.free == 7);
}

#[test]
fn a_failed_emc_does_not_affect_others() {
    let directory = tempfile::tempdir().unwrap();
    let (_manager, client) = start(&settings(directory.path(), ""));
    let lease = client.lease("a", "a-1").unwrap();
    let first = client.assign("a", &request(&lease, "r1", "first", 2)).unwrap();
    client.assign("a", &request(&lease, "r2", "second", 2)).unwrap();
    let emc = first.slices[0].emc;
    client.emc_failed(emc).unwrap();
    let status = client.pool().unwrap();
    assert_eq!((status.slices.failed, status.slices.online, status.hosts[0].vms), (4, 2, 1));
    client.emc_repaired(emc).unwrap();
    until(&client, "it is scrubbed", |status| status.slices.free == 6);
    assert_eq!(code(client.emc_failed(7)), Code::NotFound);
}

#[test]
fn a_removed_file_is_created_again() {
    let directory = tempfile::tempdir().unwrap();
    let (_manager, client) = start(&settings(directory.path(), ""));
    let lease = client.lease("a", "a-1").unwrap();
    let given = client.assign("a", &request(&lease, "r1", "vm", 1)).unwrap();
    std::fs::remove_file(&given.slices[0].path).unwrap();
    assert!(matches!(claim(&given.slices[0]), Err(ClaimError::Fenced { .. })));
    client.give_back("a", lease.epoch, "r2", "vm").unwrap();
    offline(&client, &lease, "a");
    until(&client, "it is free again", |status| status.slices.free == 8);
    let all: Vec<_> = ["x", "y"].iter().map(|vm| client.assign("a", &request(&lease, vm, vm, 4)).unwrap()).collect();
    let _held: Vec<_> = all.iter().flat_map(|given| &given.slices).map(mark).collect();
}

#[test]
fn invalid_requests_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (_manager, client) = start(&settings(directory.path(), ""));
    assert_eq!(code(client.lease("z", "z-1")), Code::NotFound);
    assert_eq!(code(client.renew("a", 0)), Code::Fenced);
    let lease = client.lease("a", "a-1").unwrap();
    assert_eq!(code(client.assign("a", &request(&lease, "r1", "vm", 0))), Code::BadRequest);
    assert_eq!(code(client.assign("a", &request(&lease, "r1", "", 1))), Code::BadRequest);
    assert_eq!(code(client.assign("a", &request(&lease, &"r".repeat(200), "vm", 1))), Code::BadRequest);
    assert_eq!(code(client.assign("a", &request(&lease, &"r".repeat(70_000), "vm", 1))), Code::TooLong);
    assert_eq!(code(client.give_back("a", lease.epoch, "r1", "unknown")), Code::NotFound);
    client.assign("a", &request(&lease, "r1", "vm", 1)).unwrap();
    assert_eq!(code(client.assign("a", &request(&lease, "r2", "vm", 2))), Code::Conflict);
    assert_eq!(code(client.assign("a", &request(&lease, "r1", "other", 1))), Code::Conflict);
}

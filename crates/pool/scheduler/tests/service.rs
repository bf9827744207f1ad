//! A scheduler in this process, used over loopback.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use scheduler::api::{Code, VmRequest};
use scheduler::client::{Client, Error};
use scheduler::replay::WhatIf;
use scheduler::service::{self, Scheduler};
use scheduler::settings::Settings;
use scheduler::{Event, replay};
use units::{Bytes, RatioPpm, Slices};

const PATIENCE: Duration = Duration::from_secs(60);

fn settings(directory: &Path, more: &str, pools: &str) -> Settings {
    let text = format!(
        "listen = \"127.0.0.1:0\"\nlog = \"{}/scheduler.log\"\nnode_cores = 4\nnode_memory = \"16GiB\"\nstrategy = \"best_fit\"\n{more}\n{pools}",
        directory.display()
    );
    Settings::parse(Path::new("test.toml"), &text).unwrap()
}

const POOLS: &str = "[[pools]]\nname = \"p\"\nslices = 8\nhosts = [\"a\", \"b\"]\n";

fn start(settings: &Settings) -> (Scheduler, Client) {
    let scheduler = service::start(settings, true).unwrap();
    let client = Client::new(&[format!("http://{}", scheduler.address)], None, PATIENCE).unwrap();
    (scheduler, client)
}

fn request(vm: &str, cores: u32, gib: u64, pool: u64) -> VmRequest {
    VmRequest { vm: vm.to_owned(), cores, memory_bytes: Bytes::gib(gib), pool_bytes: Bytes::gib(pool), spread: None }
}

fn code<T: std::fmt::Debug>(answer: Result<T, Error>) -> Code {
    match answer.unwrap_err() {
        Error::Refused(refusal) => refusal.error,
        error => panic!("{error}"),
    }
}

/// The metrics, as Prometheus reads them.
fn metrics(url: &str) -> String {
    let address = url.strip_prefix("http://").unwrap();
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn a_restarted_scheduler_knows_every_vm_that_it_answered_for() {
    let directory = tempfile::tempdir().unwrap();
    let settings = settings(directory.path(), "operators = [\"op\"]", POOLS);
    let (scheduler, client) = start(&settings);
    let first = client.place(&request("one", 2, 8, 4)).unwrap();
    assert_eq!((first.host.as_str(), first.pool_slices, first.local_bytes), ("a", Slices(4), Bytes::gib(4)));
    assert_eq!(client.place(&request("one", 2, 8, 4)).unwrap().host, first.host, "a repetition has the same answer");
    assert_eq!(code(client.place(&request("one", 2, 9, 4))), Code::Conflict);
    assert_eq!(client.place(&request("small", 1, 1, 0)).unwrap().host, "a");
    client.place(&request("two", 8, 8, 0)).unwrap();
    assert_eq!(code(client.place(&request("three", 8, 8, 0))), Code::Full);
    assert!(client.drain("a", true).unwrap().drained);
    assert_eq!(code(client.drain("z", true)), Code::NotFound);
    let (vms, status) = (client.vms().unwrap(), client.status().unwrap());
    assert!(service::start(&settings, true).unwrap_err().is_locked());
    scheduler.stop();
    let entries = std::fs::read_to_string(&settings.log).unwrap();
    assert!(entries.contains("\"who\":\"loopback\"") && !entries.contains("\"op\""), "no certificate, no name of an operator");
    // A crash cut the last line short: its request was not answered for.
    let log = settings.log.clone();
    std::fs::OpenOptions::new().append(true).open(&log).unwrap().write_all(b"{\"sequence\":6,\"time").unwrap();
    let (scheduler, restarted) = start(&settings);
    // A client of both finds the one that serves.
    let urls = [client.urls(), restarted.urls()].concat();
    let client = Client::new(&urls, None, PATIENCE).unwrap();
    assert_eq!((client.vms().unwrap(), client.status().unwrap()), (vms, status));
    client.end("one").unwrap();
    assert_eq!(code(client.end("one")), Code::NotFound);
    assert_eq!(code(client.place(&request("three", 1, 8, 0))), Code::Full, "a is drained, and b is full");
    scheduler.stop();
    let checked = replay::check(&log).unwrap();
    assert_eq!((checked.decisions, checked.differ, checked.refused_recorded), (5, 0, 2));
    let other = replay::what_if(&log, WhatIf { strategy: Some("worst_fit".parse().unwrap()), pool_size: None, spread: None }).unwrap();
    assert_eq!((other.decisions, other.differ > 0), (5, true), "{other:?}");
    let smaller = replay::what_if(&log, WhatIf { strategy: None, pool_size: Some(RatioPpm(250_000)), spread: None }).unwrap();
    assert_eq!((smaller.local_recorded, smaller.local_replayed), (0, 1), "two slices are left for a VM that requested four: {smaller:?}");
}

#[test]
fn a_request_that_was_repeated_after_its_refusal_is_one_vm() {
    let directory = tempfile::tempdir().unwrap();
    let settings = settings(directory.path(), "", "[[pools]]\nname = \"p\"\nslices = 2\nhosts = [\"a\"]\n");
    let (scheduler, client) = start(&settings);
    client.place(&request("one", 1, 28, 2)).unwrap();
    let two = request("two", 1, 8, 4);
    assert_eq!(code(client.place(&two)), Code::Full);
    assert_eq!(code(client.place(&two)), Code::Full);
    scheduler.stop();
    let larger = replay::what_if(&settings.log, WhatIf { strategy: None, pool_size: Some(RatioPpm(3_000_000)), spread: None }).unwrap();
    assert_eq!((larger.decisions, larger.refused_recorded, larger.refused_replayed, larger.differ), (3, 2, 0, 2), "{larger:?}");
}

#[test]
fn a_damaged_log_is_reported_with_its_line() {
    let directory = tempfile::tempdir().unwrap();
    let settings = settings(directory.path(), "", POOLS);
    let (scheduler, client) = start(&settings);
    client.place(&request("one", 2, 8, 4)).unwrap();
    scheduler.stop();
    let text = std::fs::read_to_string(&settings.log).unwrap();
    for (damaged, expected) in [
        (text.replace("\"one\"", "\"one"), "line 2: not an event"),
        (text.lines().nth(1).unwrap().to_owned() + "\n", "line 1: a log begins with a topology"),
        (text.clone() + text.lines().nth(1).unwrap() + "\n", "line 3: event 2 follows event 2"),
        (text.clone() + &text.lines().nth(1).unwrap().replace("\"sequence\":2", "\"sequence\":3") + "\n", "line 3: one was placed twice"),
        (text.replace("\"a\",\"nodes\"", "\"z\",\"nodes\""), "line 2: there is no host z"),
    ] {
        std::fs::write(&settings.log, damaged).unwrap();
        let error = service::start(&settings, true).unwrap_err().to_string();
        assert!(error.contains(expected), "{error} lacks {expected}");
    }
}

#[test]
fn a_log_at_its_limit_is_begun_again_with_what_runs() {
    let directory = tempfile::tempdir().unwrap();
    let settings = settings(directory.path(), "log_size = \"1MiB\"", POOLS);
    let (scheduler, client) = start(&settings);
    client.place(&request("stays", 2, 8, 4)).unwrap();
    let earlier = settings.log.with_added_extension("1");
    let mut count = 0;
    while !earlier.exists() {
        let vm = format!("vm-{count:0100}");
        client.place(&request(&vm, 1, 1, 0)).unwrap();
        client.end(&vm).unwrap();
        count += 1;
    }
    client.place(&request("last", 1, 1, 0)).unwrap();
    let vms = client.vms().unwrap();
    scheduler.stop();
    assert!(std::fs::metadata(&settings.log).unwrap().len() < 10_000);
    let (_scheduler, client) = start(&settings);
    assert_eq!(client.vms().unwrap(), vms);
    assert_eq!((replay::check(&settings.log).unwrap().differ, replay::check(&earlier).unwrap().differ), (0, 0));
}

#[test]
fn a_pool_without_a_manager_that_answers_gets_no_vms() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().display();
    let text = format!(
        "listen = \"127.0.0.1:0\"\nledger = \"{root}/ledger.redb\"\npool_dir = \"{root}/pool\"\nslice_size = \"1GiB\"\n\
         emcs = [{{ slices = 8 }}]\nhosts = [\"a\", \"b\"]\noperators = [\"op\"]\n"
    );
    let pool = manager::settings::Settings::parse(Path::new("pool.toml"), &text).unwrap();
    manager::service::init(&pool, true).unwrap();
    let manager = manager::service::start(&pool, true).unwrap();
    let managed = POOLS.replace("slices", &format!("manager = \"http://{}\"\nslices", manager.address));
    let (_scheduler, client) = start(&settings(directory.path(), "", &managed));
    let until = |what: &str, answers: bool| {
        let begin = Instant::now();
        while client.status().unwrap().pools[0].answers != answers {
            assert!(begin.elapsed() < PATIENCE, "not in time: {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    until("the manager answers", true);
    assert_eq!(client.place(&request("one", 2, 8, 4)).unwrap().pool_slices, Slices(4));
    manager.stop();
    until("the manager is gone", false);
    let metrics = metrics(&client.urls()[0]);
    for line in [
        "scheduler_pool_used_slices{pool=\"p\"} 4",
        "scheduler_pool_answers{pool=\"p\"} 0",
        "scheduler_vms 1",
        "scheduler_free_cores{pool=\"p\"} 14",
    ] {
        assert!(metrics.contains(line), "{metrics} lacks {line}");
    }
    let local = client.place(&request("two", 2, 8, 4)).unwrap();
    assert_eq!((local.pool_slices, local.local_bytes), (Slices::ZERO, Bytes::gib(8)));
    assert!(local.reason.contains("could give 4 slices"), "{}", local.reason);
}

#[test]
fn only_operators_use_it_and_only_a_loopback_address_is_open() {
    let directory = tempfile::tempdir().unwrap();
    let mut settings = settings(directory.path(), "", POOLS);
    settings.listen = "0.0.0.0:0".parse().unwrap();
    assert!(service::start(&settings, true).unwrap_err().to_string().contains("can be reached from elsewhere"));
    let certs = directory.path().join("certs");
    let plan = manager::certificates::Plan {
        servers: vec!["localhost".to_owned()],
        hosts: vec!["a".to_owned()],
        operators: vec!["op".to_owned()],
        members: Vec::new(),
        days: 1,
    };
    manager::certificates::create(&certs, &plan).unwrap();
    let tls = "operators = [\"op\"]\n";
    let files = "[tls]\ncert = \"certs/manager.pem\"\nkey = \"certs/manager.key\"\nclient_ca = \"certs/ca.pem\"\n";
    let text = format!("listen = \"127.0.0.1:0\"\nlog = \"tls.log\"\nnode_cores = 4\nnode_memory = \"16GiB\"\n{tls}{POOLS}{files}");
    let settings = Settings::parse(&directory.path().join("test.toml"), &text).unwrap();
    let scheduler = service::start(&settings, false).unwrap();
    let url = format!("https://localhost:{}", scheduler.address.port());
    let client = |name: &str| {
        Client::new(std::slice::from_ref(&url), Some(&manager::connection::Identity::at(&certs.join(name))), PATIENCE).unwrap()
    };
    assert_eq!(code(client("a").status()), Code::Forbidden);
    client("op").place(&request("one", 1, 1, 0)).unwrap();
    let log = std::fs::read_to_string(&settings.log).unwrap();
    let entry: scheduler::Entry = serde_json::from_str(log.lines().last().unwrap()).unwrap();
    assert!(entry.who == "op" && matches!(entry.event, Event::Decided { .. }), "{log}");
}

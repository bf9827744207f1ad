//! A real object store (s3s-fs, a server of the S3 protocol over a directory): traces go there, through outages and kills,
//! and come back. `make test-s3` builds the server and says where it is.
#![cfg(feature = "s3")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use policy::thresholds::Thresholds;
use trace::{Basis, Entry, Figures, JobId, Labels, Merge, Sink, Spool, Store, Trace, Writer};

const BUCKET: &str = "traces";
const KEY: &str = "thermocline";
const SECRET: &str = "a-secret-of-this-test-alone";
/// Set in the run of this program that finds its credentials in the environment, as an agent does.
const ADDRESS: &str = "S3_TEST_ADDRESS";
/// How long a server or a file may take to be there.
const PATIENCE: Duration = Duration::from_secs(60);

/// The server, ended with the test.
struct Server(Child);

impl Server {
    fn start(root: &Path, address: &str) -> Self {
        let program = std::env::var("S3_SERVER").unwrap_or_else(|_| panic!("S3_SERVER does not say where s3s-fs is; run `make test-s3`"));
        let (host, port) = address.split_once(':').unwrap();
        let mut command = Command::new(program);
        command.args(["--host", host, "--port", port, "--access-key", KEY, "--secret-key", SECRET]).arg(root);
        let server = Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        until("the server listens", || TcpStream::connect(address).is_ok());
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "in {PATIENCE:?}, not once: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn basis() -> Basis {
    Basis { thresholds: Thresholds::log_spaced(2).unwrap(), scan_period_ms: 120_000, page_bytes: 4096 }
}

/// An hour of a job.
fn hour(at: u64) -> Vec<Entry> {
    let entry = |minutes: u64| Entry {
        id: JobId::new("c", "m", "/job", "boot", 1),
        labels: Labels::default(),
        figures: Figures { start_unix_ms: 1_795_132_800_000 + (at * 60 + minutes) * 60_000, periods: 5, ..Figures::default() },
        cold_pages: vec![at, minutes, 3],
        promotions_pages: vec![0; 3],
    };
    (0..12).map(|five| entry(five * 5)).collect()
}

fn entries_in(store: &Store) -> Vec<Entry> {
    let files: Vec<_> = store.list().unwrap().iter().map(|object| store.fetch(&object.path).unwrap()).collect();
    let total: u64 = files.iter().map(|file| Trace::open(file.path()).unwrap().entries()).sum();
    let merged: Vec<_> = Merge::of(files.iter().map(|file| file.path().to_owned())).unwrap().map(Result::unwrap).collect();
    assert_eq!(merged.len() as u64, total, "nothing is there twice");
    merged
}

/// Credentials are looked for in the environment of a process, so that the test proper is a run of its own.
#[test]
fn traces_go_to_an_object_store_and_come_back() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let ran = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "with_credentials", "--ignored", "--nocapture"])
        .env(ADDRESS, &address)
        .env("AWS_ENDPOINT", format!("http://{address}"))
        .env("AWS_ALLOW_HTTP", "true")
        .env("AWS_REGION", "us-east-1")
        .env("AWS_ACCESS_KEY_ID", KEY)
        .env("AWS_SECRET_ACCESS_KEY", SECRET)
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && out.contains("1 passed"), "{out}{}", String::from_utf8_lossy(&ran.stderr));
}

#[test]
#[ignore = "run by the test above, with credentials in its environment"]
fn with_credentials() {
    let address = std::env::var(ADDRESS).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let served = dir.path().join("served");
    std::fs::create_dir_all(served.join(BUCKET)).unwrap();
    let url = format!("s3://{BUCKET}/fleet/a");
    let (mut spool, _) = Spool::open(&dir.path().join("spool"), basis(), u64::MAX).unwrap();
    let mut given = Vec::new();
    let mut spend = |spool: &mut Spool, at: u64| {
        spool.append(&hour(at)).unwrap();
        given.extend(hour(at));
        spool.close().unwrap();
    };

    let server = Server::start(&served, &address);
    spend(&mut spool, 0);
    let sink = Sink::start(&spool.ready(), &url).unwrap();
    until("the first file is sent", || sink.status().sent_files == 1);
    assert_eq!(entries_in(&Store::open(&url).unwrap()).len(), 12);

    // Away: files wait, and the sink says why.
    drop(server);
    spend(&mut spool, 1);
    sink.wake();
    until("the outage is noticed", || sink.status().trouble.is_some());
    spend(&mut spool, 2);
    assert_eq!(sink.status().sent_files, 1);

    // Back: all of it arrives by itself.
    let server = Server::start(&served, &address);
    until("what waited is sent", || sink.status().sent_files == 3);
    until("all is well", || sink.status().trouble.is_none());
    sink.stop();
    let store = Store::open(&url).unwrap();
    assert_eq!(entries_in(&store), given);
    let path = &store.list().unwrap()[0].path;
    assert!(path.starts_with("cluster=c/date=2026-11-20/machine=m/"), "{path}");

    // Killed after sending and before removing: sent again, and there once.
    spool.append(&hour(2)).unwrap();
    spool.close().unwrap();
    let sink = Sink::start(&spool.ready(), &url).unwrap();
    until("it is sent again", || sink.status().sent_files == 1);
    sink.stop();
    assert_eq!(entries_in(&store), given);

    // Larger than one part.
    let large = dir.path().join("large.parquet");
    let mut writer = Writer::create(&large, basis()).unwrap();
    let mut random = 1u64;
    for at in 0..400_000u64 {
        let mut entry = hour(0).swap_remove(0);
        entry.figures.start_unix_ms += at;
        for number in entry.cold_pages.iter_mut().chain(&mut entry.promotions_pages) {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *number = random >> 20;
        }
        writer.push(&entry).unwrap();
    }
    let written = writer.finish().unwrap();
    assert!(written.bytes > 8 << 20, "{written:?}");
    store.put("merged/large.parquet", &large).unwrap();
    let fetched = store.fetch("merged/large.parquet").unwrap();
    assert!(std::fs::read(fetched.path()).unwrap() == std::fs::read(&large).unwrap());
    drop(fetched);

    // Small objects.
    let read = |path: &str, most| store.wait(store.read(path, most));
    assert_eq!(read("small", 9).unwrap(), None);
    for (bytes, only_new, done) in [("one", true, true), ("two", true, false), ("three", false, true)] {
        assert_eq!(store.wait(store.write("small", bytes.into(), only_new)).unwrap(), done, "{bytes}");
    }
    assert_eq!(read("small", 5).unwrap().as_deref(), Some("three".as_bytes()));
    assert!(read("small", 4).unwrap_err().to_string().contains("more than 4"));
    drop(server);
}

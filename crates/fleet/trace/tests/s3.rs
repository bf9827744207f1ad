//! Traces in a real object store (s3s-fs, an S3 server over a directory): uploads through outages and kills, and reads.
//! `make test-s3` builds the server and runs this test.
#![cfg(feature = "s3")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "clippy's exemption for tests does not cover helpers in integration tests")]

use policy::thresholds::Thresholds;
use store::Store;
use store::testing::{S3Server, run_with_credentials, until};
use trace::{Basis, Entry, Figures, JobId, Labels, Merge, Sink, Spool, Trace};
use units::{Bytes, Millis, UnixMillis};

const BUCKET: &str = "traces";

fn basis() -> Basis {
    Basis { thresholds: Thresholds::log_spaced(2).unwrap(), scan_period_ms: Millis::seconds(120), page_bytes: Bytes(4096) }
}

/// Returns the entries of one hour of a job.
fn hour(number: u64) -> Vec<Entry> {
    let entry = |minutes: u64| Entry {
        id: JobId::new("c", "m", "/job", "boot", 1),
        labels: Labels::default(),
        figures: Figures {
            start_unix_ms: UnixMillis(1_795_132_800_000 + (number * 60 + minutes) * 60_000),
            periods: 5,
            ..Figures::default()
        },
        cold_pages: vec![number, minutes, 3],
        promotions_pages: vec![0; 3],
    };
    (0..12).map(|index| entry(index * 5)).collect()
}

fn entries_in(store: &Store) -> Vec<Entry> {
    let files: Vec<_> = store.list(trace::EXTENSION).unwrap().iter().map(|object| store.fetch(&object.path).unwrap()).collect();
    let total: u64 = files.iter().map(|file| Trace::open(file.path()).unwrap().entries()).sum();
    let merged: Vec<_> = Merge::of(files.iter().map(|file| file.path().to_owned())).unwrap().map(Result::unwrap).collect();
    assert_eq!(merged.len() as u64, total, "an entry is stored twice");
    merged
}

#[test]
fn traces_survive_outages_of_the_object_store() {
    run_with_credentials("with_credentials");
}

#[test]
#[ignore = "run by the test above, with credentials in its environment"]
fn with_credentials() {
    let dir = tempfile::tempdir().unwrap();
    let served = dir.path().join("served");
    std::fs::create_dir_all(served.join(BUCKET)).unwrap();
    let url = format!("s3://{BUCKET}/fleet/a");
    let (mut spool, _) = Spool::open(&dir.path().join("spool"), basis(), Bytes(u64::MAX)).unwrap();
    let mut recorded = Vec::new();
    let mut record_hour = |spool: &mut Spool, number: u64| {
        spool.append(&hour(number)).unwrap();
        recorded.extend(hour(number));
        spool.close().unwrap();
    };

    let server = S3Server::start(&served);
    record_hour(&mut spool, 0);
    let sink = Sink::start(&spool.ready(), &url, None).unwrap();
    until("the first file is sent", || sink.status().sent_files == 1);
    assert_eq!(entries_in(&Store::open(&url).unwrap()).len(), 12);

    // Outage: files wait in the spool, and the sink reports the error.
    drop(server);
    record_hour(&mut spool, 1);
    sink.wake();
    until("the outage is reported", || sink.status().error.is_some());
    record_hour(&mut spool, 2);
    assert_eq!(sink.status().sent_files, 1);

    // After the outage all files are sent without a further call.
    let _server = S3Server::start(&served);
    until("the waiting files are sent", || sink.status().sent_files == 3);
    until("the error is cleared", || sink.status().error.is_none());
    sink.stop();
    let store = Store::open(&url).unwrap();
    assert_eq!(entries_in(&store), recorded);
    let path = &store.list(trace::EXTENSION).unwrap()[0].path;
    assert!(path.starts_with("cluster=c/date=2026-11-20/machine=m/"), "{path}");

    // A kill between upload and removal: the file is sent again and replaces its first copy.
    spool.append(&hour(2)).unwrap();
    spool.close().unwrap();
    let sink = Sink::start(&spool.ready(), &url, None).unwrap();
    until("the file is sent again", || sink.status().sent_files == 1);
    sink.stop();
    assert_eq!(entries_in(&store), recorded);
}

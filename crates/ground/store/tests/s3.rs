//! Objects in an S3 server: uploads in one part and in several, small objects, limits. Run by `make test-s3`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "clippy's exemption for tests does not cover helpers in integration tests")]

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixListener;
use std::path::Path;

use store::access::Carrier;
use store::testing::{S3Server, run_with_credentials};
use store::{Access, Store};
use units::Bytes;

#[test]
fn objects_are_stored_and_read_back() {
    run_with_credentials("with_credentials");
}

#[test]
#[ignore = "run by the test above, with credentials in its environment"]
fn with_credentials() {
    let dir = tempfile::tempdir().unwrap();
    let served = dir.path().join("served");
    std::fs::create_dir_all(served.join("bucket")).unwrap();
    let _server = S3Server::start(&served);
    let store = Store::open("s3://bucket/some/prefix").unwrap();

    // Uploads in one part and in several.
    let file = dir.path().join("file");
    for (path, size) in [("a/empty.parquet", 0), ("a/small.parquet", 5), ("b/large.parquet", 17 << 20)] {
        let contents: Vec<u8> = (0..size).map(|at| u8::try_from(at % 251).unwrap()).collect();
        std::fs::write(&file, &contents).unwrap();
        store.put(path, &file).unwrap();
        let copy = store.fetch(path).unwrap();
        assert!(std::fs::read(copy.path()).unwrap() == contents, "{path}");
        let local = copy.path().to_owned();
        drop(copy);
        assert!(!local.exists(), "the copy of {path} stays");
    }
    let listed: Vec<_> = store.list("parquet").unwrap().into_iter().map(|object| (object.path, object.size.0)).collect();
    let expected = [("a/empty.parquet", 0), ("a/small.parquet", 5), ("b/large.parquet", 17 << 20)];
    assert_eq!(listed, expected.map(|(path, size)| (path.to_owned(), size)));

    // Small objects.
    let read = |path: &str, size_max| store.block_on(store.read(path, Bytes(size_max)));
    assert_eq!(read("small", 9).unwrap(), None);
    for (bytes, only_new, written) in [("one", true, true), ("two", true, false), ("three", false, true)] {
        assert_eq!(store.block_on(store.write("small", bytes.into(), only_new)).unwrap(), written, "{bytes}");
    }
    assert_eq!(read("small", 5).unwrap().as_deref(), Some("three".as_bytes()));
    assert!(read("small", 4).unwrap_err().to_string().contains("more than the limit of 4"));
    through_another_process(dir.path());
}

/// The same bucket, by the connections of another process.
fn through_another_process(directory: &Path) {
    let socket = directory.join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        let carrier = Carrier::default();
        for stream in listener.incoming() {
            let mut from = BufReader::new(stream.unwrap());
            let mut head = String::new();
            from.read_line(&mut head).unwrap();
            carrier.answer(head.trim_end(), &mut from).unwrap();
        }
    });
    let access = Access::open("s3://bucket/some/prefix", Some(&socket)).unwrap();
    assert!(matches!(access, Access::Through(_)));
    let read = |path: &str, size_max| access.block_on(access.read(path, Bytes(size_max)));
    assert_eq!(read("small", 5).unwrap().as_deref(), Some("three".as_bytes()));
    assert_eq!(read("none", 5).unwrap(), None);
    assert!(read("small", 4).unwrap_err().to_string().contains("limit of 4"));
    let (file, size) = (directory.join("file"), 17 << 20);
    std::fs::write(&file, vec![3; size]).unwrap();
    access.put("c/large.parquet", &file).unwrap();
    assert!(read("c/large.parquet", 32 << 20).unwrap() == Some(vec![3; size]));
    assert!(access.put("../a", &file).unwrap_err().to_string().contains("s3://bucket/some/prefix/../a"));
}

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::thread::JoinHandle;

use super::*;

const GREETING: &str = r#"{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": ""}, "capabilities": ["oob"]}}"#;

/// A stand-in for QEMU. Replies to each command with the next of `replies`, in which `ID` is replaced by the command's
/// id; exits after the last one. Returns the lines that it received.
pub(crate) fn qemu(path: &Path, replies: &'static [&'static str]) -> JoinHandle<Vec<String>> {
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut out = stream.try_clone().unwrap();
        writeln!(out, "{GREETING}").unwrap();
        let mut received = Vec::new();
        let mut replies = replies.iter();
        for line in BufReader::new(stream).lines() {
            let line = line.unwrap();
            let id = serde_json::from_str::<Value>(&line).unwrap()["id"].to_string();
            let reply = if line.contains("qmp_capabilities") { &r#"{"return": {}, "id": ID}"# } else { replies.next().unwrap() };
            received.push(line);
            write!(out, "{}", reply.replace("ID", &id)).unwrap();
            if !reply.ends_with('}') {
                break;
            }
            writeln!(out).unwrap();
        }
        received
    })
}

#[test]
fn replies_events_and_refusals_are_distinguished() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("qmp");
    let server = qemu(
        &path,
        &[
            "{\"event\": \"RESUME\", \"data\": {}}\n{\"return\": {\"status\": \"running\"}, \"id\": ID}",
            r#"{"id": ID, "error": {"class": "GenericError", "desc": "no such device"}}"#,
            "{\"return\": {\"late\": true}, \"id\": 0}\n{\"return\": {}, \"id\": ID}\n{\"event\": \"DEVICE_DELETED\", \"data\": {\"device\": \"d\"}}",
        ],
    );
    let mut qmp = Qmp::connect(&path).unwrap();
    assert_eq!(qmp.execute("query-status", &json!({})).unwrap(), json!({ "status": "running" }));
    let refused = qmp.execute("device_del", &json!({ "id": "d" })).unwrap_err().to_string();
    assert_eq!(refused, "QEMU refuses device_del: no such device");
    // A reply with another id is skipped.
    assert_eq!(qmp.execute("device_del", &json!({ "id": "d" })).unwrap(), json!({}));
    let soon = Instant::now() + Duration::from_secs(10);
    assert_eq!(
        qmp.wait(soon, |event| (event.name == "DEVICE_DELETED").then(|| event.text(&["device"]).unwrap().to_owned())).unwrap(),
        Some("d".to_owned())
    );
    assert_eq!(qmp.wait(Instant::now(), |_| Some(())).unwrap(), None, "events that were not selected are dropped");
    drop(qmp);
    let received = server.join().unwrap();
    assert!(received[1].contains("query-status") && received[3].contains(r#""arguments":{"id":"d"}"#), "{received:?}");
}

#[test]
fn a_truncated_reply_and_a_missing_socket_are_errors() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("qmp");
    assert!(matches!(Qmp::connect(&path), Err(Error::Socket { .. })));
    let server = qemu(&path, &["{\"return\": "]);
    let mut qmp = Qmp::connect(&path).unwrap();
    assert!(matches!(qmp.execute("stop", &json!({})), Err(Error::Closed { .. })));
    server.join().unwrap();
}

#[test]
fn another_protocol_at_the_socket_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("qmp");
    let listener = UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || listener.accept().unwrap().0.write_all(b"SSH-2.0-OpenSSH\r\n").unwrap());
    assert!(matches!(Qmp::connect(&path), Err(Error::Protocol { .. })));
    server.join().unwrap();
}

#[test]
fn a_passed_file_stays_locked_until_its_last_copy_is_closed() {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
    use std::io::IoSliceMut;
    let directory = tempfile::tempdir().unwrap();
    let (path, slice) = (directory.path().join("qmp"), directory.path().join("slice"));
    let listener = UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        writeln!(stream, "{GREETING}").unwrap();
        let mut kept = Vec::new();
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let mut buffer = [0; 1024];
            let read =
                rustix::net::recvmsg(&stream, &mut [IoSliceMut::new(&mut buffer)], &mut ancillary, RecvFlags::empty()).unwrap().bytes;
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(files) = message {
                    kept.extend(files);
                }
            }
            if read == 0 {
                return kept;
            }
            let id = serde_json::from_slice::<Value>(&buffer[..read]).unwrap()["id"].clone();
            writeln!(stream, "{}", json!({ "return": {}, "id": id })).unwrap();
        }
    });
    let file = File::create_new(&slice).unwrap();
    file.try_lock().unwrap();
    let mut qmp = Qmp::connect(&path).unwrap();
    qmp.pass_file("lock", file.as_fd()).unwrap();
    drop((file, qmp));
    let kept = server.join().unwrap();
    assert_eq!(kept.len(), 1);
    assert!(File::open(&slice).unwrap().try_lock().is_err(), "the receiver holds the lock");
    drop(kept);
    assert!(File::open(&slice).unwrap().try_lock().is_ok());
}

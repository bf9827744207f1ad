//! A group of managers in this process, with certificates: who may send messages to its members.
#![allow(clippy::unwrap_used, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use manager::api::{Code, Empty, ErrorResponse};
use manager::certificates::{self, Plan};
use manager::client::{Client, Identity};
use manager::connection::{Connection, Method};
use manager::service::{self, Manager};
use manager::settings::Settings;

const PATIENCE: Duration = Duration::from_secs(60);

/// Three members in one process, and their URLs.
fn start(directory: &Path) -> (Vec<Manager>, Vec<String>) {
    let listeners: Vec<_> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let ports: Vec<u16> = listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
    drop(listeners);
    let urls: Vec<String> = ports.iter().map(|port| format!("https://localhost:{port}")).collect();
    std::fs::File::create(directory.join("device")).unwrap().set_len(2 * (128 << 20)).unwrap();
    let start = |(member, port): (usize, &u16)| {
        let text = format!(
            "listen = \"127.0.0.1:{port}\"\nledger = \"{member}/ledger.redb\"\npool_dir = \"{member}/pool\"\nslice_size = \"128MiB\"\n\
             emcs = [{{ slices = 2, device = \"device\" }}]\nhosts = [\"a\"]\noperators = [\"op\"]\n\
             [tls]\ncert = \"certs/localhost.pem\"\nkey = \"certs/localhost.key\"\nclient_ca = \"certs/ca.pem\"\n\
             [group]\nmembers = {urls:?}\nmember = {member}\n"
        );
        let settings = Settings::parse(&directory.join("pool.toml"), &text).unwrap();
        service::init_member(&settings, false).unwrap();
        service::start(&settings, false).unwrap()
    };
    ((1..).zip(&ports).map(start).collect(), urls)
}

#[test]
fn only_members_send_messages_to_members() {
    let directory = tempfile::tempdir().unwrap();
    let certs = directory.path().join("certs");
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    let plan =
        Plan { servers: names(&["localhost"]), hosts: names(&["a"]), operators: names(&["op"]), members: names(&["localhost"]), days: 2 };
    certificates::create(&certs, &plan).unwrap();
    let (members, urls) = start(directory.path());
    let client = Client::new(&urls.join(","), Some(&Identity::at(&certs.join("a"))), PATIENCE).unwrap();
    let lease = client.lease("a", "a-1").unwrap();
    assert_eq!(client.pool().unwrap().group.unwrap().members.len(), 3);
    let send = |name: &str, path: &str| {
        let connection = Connection::new("member", &urls[0], Some(&Identity::at(&certs.join(name))), PATIENCE).unwrap();
        connection.send::<Empty, ErrorResponse>(Method::POST, path, Some(&Empty {}))
    };
    for path in ["/v1/group/append", "/v1/group/vote", "/v1/group/copy", "/v1/group/idle"] {
        for name in ["a", "op"] {
            assert_eq!(send(name, path).unwrap().unwrap_err().error, Code::Forbidden, "{name} {path}");
        }
        assert_eq!(send("localhost", path).unwrap().unwrap_err().error, Code::BadRequest, "a member's message is read: {path}");
        // The certificate of a manager alone is that of a server, and opens no connection.
        assert!(send("manager", path).is_err(), "{path}");
    }
    assert_eq!(
        Client::new(&urls[0], Some(&Identity::at(&certs.join("localhost"))), PATIENCE).unwrap().lease("a", "x").unwrap_err().code(),
        Some(Code::Forbidden)
    );
    client.renew("a", lease.epoch).unwrap();
    // Two of three members answer.
    let mut members = members;
    members.remove(2).stop();
    client.lease("a", "a-2").unwrap();
    // One alone does not.
    members.remove(1).stop();
    let alone = Client::new(&urls.join(","), Some(&Identity::at(&certs.join("a"))), Duration::from_secs(8)).unwrap();
    assert!(alone.lease("a", "a-3").is_err(), "a change without a majority");
}

#[test]
fn a_member_without_files_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let text = "listen = \"127.0.0.1:0\"\nledger = \"ledger.redb\"\npool_dir = \"pool\"\nslice_size = \"128MiB\"\n\
                emcs = [{ slices = 2, device = \"device\" }]\nhosts = [\"a\"]\n\
                [group]\nmembers = [\"http://127.0.0.1:1\", \"http://127.0.0.1:2\", \"http://127.0.0.1:3\"]\nmember = 1\n";
    let settings = Settings::parse(&directory.path().join("pool.toml"), text).unwrap();
    let error = service::start(&settings, true).unwrap_err().to_string();
    assert!(error.contains("init --join"), "{error}");
    // A ledger of a manager alone does not become that of a member.
    let alone = Settings { group: None, ..settings.clone() };
    std::fs::File::create(directory.path().join("device")).unwrap().set_len(2 * (128 << 20)).unwrap();
    service::init(&alone, true).unwrap();
    let error = service::init_member(&settings, false).unwrap_err().to_string();
    assert!(error.contains("exists"), "{error}");
    std::fs::rename(&settings.ledger, directory.path().join("kept")).unwrap();
    service::init_member(&settings, false).unwrap();
    std::fs::rename(directory.path().join("kept"), &settings.ledger).unwrap();
    let error = service::start(&settings, true).unwrap_err().to_string();
    assert!(error.contains("in no group") || error.contains("does not belong"), "{error}");
    // A log with a damaged entry is refused as well.
    let mut bytes = std::fs::read(settings.group_log()).unwrap();
    let middle = bytes.len() / 2;
    bytes[..middle].fill(0);
    std::fs::write(settings.group_log(), bytes).unwrap();
    std::fs::remove_file(&settings.ledger).unwrap();
    let _ = std::fs::remove_file(settings.pool_dir.join("ledger.mark"));
    let error = service::start(&settings, true).unwrap_err().to_string();
    assert!(error.contains("init --join") && error.contains("ledger.log"), "{error}");
}

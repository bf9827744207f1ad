//! Who is let in, and what he may request, by certificates of our own making.
#![allow(clippy::unwrap_used, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use manager::api::{AssignRequest, Code, Slices};
use manager::certificates::{self, Plan};
use manager::client::{Client, Error, Identity};
use manager::service::{self, Manager};
use manager::settings::Settings;

fn plan(hosts: &[&str]) -> Plan {
    Plan {
        servers: vec!["localhost".to_owned(), "127.0.0.1".to_owned()],
        hosts: hosts.iter().map(|&host| host.to_owned()).collect(),
        operators: vec!["op".to_owned()],
        members: Vec::new(),
        days: 2,
    }
}

fn start(directory: &Path) -> Manager {
    let text = "listen = \"127.0.0.1:0\"\nledger = \"ledger.redb\"\npool_dir = \"pool\"\nslice_size = \"128MiB\"\n\
                emcs = [{ slices = 2 }]\nhosts = [\"a\", \"b\"]\noperators = [\"op\"]\n\
                [tls]\ncert = \"certs/manager.pem\"\nkey = \"certs/manager.key\"\nclient_ca = \"certs/ca.pem\"\n";
    let settings = Settings::parse(&directory.join("pool.toml"), text).unwrap();
    service::start(&settings, false).unwrap()
}

fn client(manager: &Manager, certificates: &Path, name: &str) -> Client {
    let file = |ending: &str| certificates.join(format!("{name}.{ending}"));
    let identity = Identity { ca: certificates.join("ca.pem"), cert: file("pem"), key: file("key") };
    Client::new(&format!("https://localhost:{}", manager.address.port()), Some(&identity), Duration::from_secs(20)).unwrap()
}

#[test]
fn a_host_speaks_for_itself_alone() {
    let directory = tempfile::tempdir().unwrap();
    let certs = directory.path().join("certs");
    certificates::create(&certs, &plan(&["a", "b", "stranger"])).unwrap();
    let manager = start(directory.path());
    let [a, b, op, stranger] = ["a", "b", "op", "stranger"].map(|name| client(&manager, &certs, name));
    let lease = a.lease("a", "a-1").unwrap();
    let forbidden = |answer: Result<(), Error>| assert_eq!(answer.unwrap_err().code(), Some(Code::Forbidden));
    forbidden(a.lease("b", "a-1").map(drop));
    forbidden(b.renew("a", lease.epoch).map(drop));
    forbidden(op.renew("a", lease.epoch).map(drop));
    let request = AssignRequest { epoch: lease.epoch, request: "r".to_owned(), vm: "vm".to_owned(), slices: Slices(1) };
    forbidden(b.assign("a", &request).map(drop));
    a.assign("a", &request).unwrap();
    forbidden(a.emc_failed(0));
    op.emc_failed(0).unwrap();
    assert_eq!(op.pool().unwrap().slices.failed, 2);
    // Signed by the same authority, and no part of this pool.
    forbidden(stranger.pool().map(drop));
    assert_eq!(stranger.lease("stranger", "s-1").unwrap_err().code(), Some(Code::NotFound));
}

#[test]
fn who_is_not_certified_is_not_let_in() {
    let directory = tempfile::tempdir().unwrap();
    let certs = directory.path().join("certs");
    certificates::create(&certs, &plan(&["a"])).unwrap();
    let manager = start(directory.path());
    // Another authority says that this is host a.
    let others = directory.path().join("others");
    certificates::create(&others, &plan(&["a"])).unwrap();
    std::fs::copy(certs.join("ca.pem"), others.join("ca.pem")).unwrap();
    assert!(matches!(client(&manager, &others, "a").pool(), Err(Error::Unreachable { .. })));
    // The manager's own pair is for servers.
    assert!(matches!(client(&manager, &certs, "manager").pool(), Err(Error::Unreachable { .. })));
    // A client does not speak to a manager that another authority has signed.
    std::fs::copy(certs.join("a.pem"), others.join("b.pem")).unwrap();
    std::fs::copy(certs.join("a.key"), others.join("b.key")).unwrap();
    certificates::create(&directory.path().join("third"), &plan(&["a"])).unwrap();
    std::fs::copy(directory.path().join("third/ca.pem"), others.join("ca.pem")).unwrap();
    assert!(matches!(client(&manager, &others, "b").pool(), Err(Error::Unreachable { .. })));
    let plain = Client::new(&format!("http://{}", manager.address), None, Duration::from_secs(20)).unwrap();
    assert!(plain.pool().is_err());
    client(&manager, &certs, "a").pool().unwrap();
}

#[test]
fn a_host_can_be_added_later() {
    let directory = tempfile::tempdir().unwrap();
    let certs = directory.path().join("certs");
    certificates::create(&certs, &plan(&["a"])).unwrap();
    let key = std::fs::read(certs.join("a.key")).unwrap();
    let made = certificates::create(&certs, &plan(&["a", "b"])).unwrap();
    let kept: Vec<_> = made.iter().map(|pair| (pair.name.as_str(), pair.kept)).collect();
    assert_eq!(kept, [("ca", true), ("manager", true), ("a", true), ("b", false), ("op", true)]);
    assert_eq!(std::fs::read(certs.join("a.key")).unwrap(), key);
    let manager = start(directory.path());
    client(&manager, &certs, "b").lease("b", "b-1").unwrap();
    assert_eq!(std::fs::metadata(certs.join("b.key")).unwrap().mode() & 0o777, 0o600);
}

#[test]
fn a_certificate_that_could_replace_another_file_or_role_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let certs = directory.path().join("below/certs");
    let check = |hosts: &[&str], problem: &str| {
        let error = certificates::create(&certs, &plan(hosts)).unwrap_err().to_string();
        assert!(error.contains(problem), "{error}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "{hosts:?}: nothing is created");
    };
    check(&["a", "../../esc"], "\"../../esc\"");
    check(&["/etc/esc"], "\"/etc/esc\"");
    check(&["ca"], "files of the pool itself");
    check(&["Manager"], "files of the pool itself");
    check(&["*.example"], "\"*.example\"");
    check(&[""], "\"\"");
    check(&["op"], "is a host and an operator");
}

#[test]
fn without_certificates_only_this_machine_is_served() {
    let directory = tempfile::tempdir().unwrap();
    let settings = |listen: &str| {
        let text = format!("listen = \"{listen}\"\nledger = \"l\"\npool_dir = \"p\"\nemcs = [{{ slices = 1 }}]\nhosts = [\"a\"]");
        Settings::parse(&directory.path().join("pool.toml"), &text).unwrap()
    };
    let error = service::start(&settings("0.0.0.0:0"), true).unwrap_err().to_string();
    assert!(error.contains("--insecure-loopback"), "{error}");
    assert!(service::start(&settings("127.0.0.1:0"), false).is_err());
}

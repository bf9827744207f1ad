//! The follower and the node's resource against an API server that speaks HTTPS, and fails in the ways that real ones do.
#![allow(clippy::unwrap_used, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

mod server;

use std::path::Path;
use std::time::Duration;

use config::{Class, Config};
use globset::GlobBuilder;
use kubernetes::{ANNOTATION, Api, CgroupRoot, Choice, Credentials, Follower, PODS_MAX, RuleFile, publish, withdraw};
use serde_json::{Value, json};
use server::{Fault, NODE, Server};
use units::Bytes;

/// UIDs as the API server makes them.
fn uid(number: u32) -> String {
    format!("3f1d9c1e-55aa-4b0e-9a4f-{number:012x}")
}

/// A pod with the fields that a kubelet reports.
fn pod(uid: &str, qos: &str, annotations: &[(&str, &str)]) -> Value {
    let annotations: std::collections::BTreeMap<_, _> = annotations.iter().copied().collect();
    let resources = json!({ "requests": { "cpu": "100m", "memory": "128Mi" } });
    json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {
            "name": format!("web-{}", &uid[uid.len() - 4..]), "namespace": "shop", "uid": uid, "annotations": annotations,
            "labels": { "app": "web" }, "creationTimestamp": "2026-11-25T08:00:00Z",
            "managedFields": [{ "manager": "kubelet", "operation": "Update", "fieldsV1": { "f:status": {} } }],
        },
        "spec": { "nodeName": NODE, "containers": [{ "name": "web", "image": "example.com/web:1", "resources": resources }] },
        "status": { "phase": "Running", "qosClass": qos, "podIP": "10.0.0.7", "containerStatuses": [{ "name": "web", "ready": true }] },
    })
}

struct Node {
    server: Server,
    directory: tempfile::TempDir,
}

impl Node {
    fn new() -> Self {
        Self { server: Server::start(), directory: tempfile::tempdir().unwrap() }
    }

    fn api(&self) -> Api {
        Api::new(&self.server.url, Credentials { directory: self.server.credentials.path().to_owned() }).unwrap()
    }

    fn path(&self) -> std::path::PathBuf {
        self.directory.path().join("rules.toml")
    }

    fn follower(&self) -> Follower {
        let choice = Choice { default_class: Class::Observe, static_pods: false, root: CgroupRoot::default() };
        Follower::new(self.api(), NODE, choice, RuleFile::new(&self.path())).unwrap()
    }

    /// Runs a follower; after each of its turns `step` is called with the number of the turn and the pause that it asked for.
    fn run(&self, turns: usize, mut step: impl FnMut(usize, Duration)) {
        let mut turn = 0;
        self.follower().run(&mut |wait| {
            step(turn, wait);
            turn += 1;
            turn < turns
        });
    }

    /// The class of a cgroup under the rules as they were written, as the agent matches them.
    fn class(&self, cgroup: &str) -> Option<Class> {
        let text = std::fs::read_to_string(self.path()).unwrap();
        let rules = Config::rules_from_str("rules.toml", &text).unwrap();
        let matches = |glob: &str| {
            let glob = GlobBuilder::new(glob).literal_separator(true).backslash_escape(true).build().unwrap();
            glob.compile_matcher().is_match(cgroup)
        };
        rules.iter().find(|rule| matches(&rule.cgroup)).map(|rule| rule.class)
    }

    fn check(&self, number: u32, class: Option<Class>) {
        let (uid, escaped) = (uid(number), uid(number).replace('-', "_"));
        let slices = "/kubepods.slice/kubepods-burstable.slice";
        let container = "cri-containerd-9f86d081884c7d659a2feaa0c55ad015.scope";
        assert_eq!(self.class(&format!("{slices}/kubepods-burstable-pod{escaped}.slice/{container}")), class, "systemd, pod {number}");
        assert_eq!(self.class(&format!("/kubepods/burstable/pod{uid}/9f86d081884c")), class, "cgroupfs, pod {number}");
    }
}

#[test]
fn annotations_of_pods_reach_the_rules_of_their_cgroups() {
    let node = Node::new();
    {
        let mut state = node.server.state();
        state.put(pod(&uid(1), "Burstable", &[(ANNOTATION, "aggressive")]));
        state.put(pod(&uid(2), "Burstable", &[]));
        state.put(pod(&uid(3), "Burstable", &[(ANNOTATION, "most aggressive\"]\n[[job]]\ncgroup = \"/**\"")]));
        state.put(pod(&uid(4), "Guaranteed", &[]));
    }
    node.run(3, |turn, _| match turn {
        0 => {
            node.check(1, Some(Class::Aggressive));
            node.check(2, Some(Class::Observe));
            node.check(3, Some(Class::Off));
            let guaranteed = format!("/kubepods.slice/kubepods-pod{}.slice", uid(4).replace('-', "_"));
            assert_eq!(node.class(&guaranteed), Some(Class::Off));
            assert_eq!(node.class(&format!("{guaranteed}/cri-containerd-1.scope")), Some(Class::Off));
            for cgroup in ["/", "/system.slice/sshd.service", "/kubepods.slice", "/kubepods.slice/kubepods-burstable.slice"] {
                assert_eq!(node.class(cgroup), None, "{cgroup}");
            }
            let mut state = node.server.state();
            state.put(pod(&uid(1), "Burstable", &[(ANNOTATION, "off")]));
            state.put(pod(&uid(5), "Burstable", &[(ANNOTATION, "standard")]));
            state.delete(&uid(2));
        }
        1 => {
            node.check(1, Some(Class::Off));
            node.check(2, None);
            node.check(5, Some(Class::Standard));
            node.server.state().delete(&uid(5));
        }
        _ => node.check(5, None),
    });
    let state = node.server.state();
    assert_eq!((state.count("limit="), state.count("watch=true")), (1, 3), "one list, then watches that continue");
    let selector = "fieldSelector=spec.nodeName%3Dnode-1.example.com%2Cstatus.phase!%3DSucceeded%2Cstatus.phase!%3DFailed";
    assert!(state.requests.iter().all(|request| request.path.contains(selector)), "{}", state.requests[0].path);
}

#[test]
fn the_last_rules_stay_while_the_server_fails_and_attempts_become_rarer() {
    let node = Node::new();
    node.server.state().put(pod(&uid(1), "Burstable", &[(ANNOTATION, "standard")]));
    let mut waits = Vec::new();
    let garbage = || "\u{1f}\u{8b} no json at all\n".to_owned();
    let huge = format!("{{\"type\":\"ADDED\",\"object\":{{\"metadata\":{{\"uid\":\"{}\"", "u".repeat(5 << 20));
    let faults = [
        Fault::Close,
        Fault::Answer(500, garbage()),
        Fault::Answer(403, r#"{"kind":"Status","code":403,"message":"pods is forbidden"}"#.to_owned()),
        Fault::Answer(200, garbage()),
        Fault::Answer(200, r#"{"items":null}"#.to_owned()),
        Fault::CutAfter(r#"{"metadata":{"resourceVersion":"1"},"items":[{"meta"#.to_owned()),
        Fault::Answer(302, "Location: https://example.com".to_owned()),
    ];
    let watches = [Fault::CutAfter(garbage()), Fault::CutAfter(huge), Fault::CutAfter(r#"{"type":"ADDED","obj"#.to_owned())];
    let count = faults.len();
    node.run(count + 8, |turn, wait| {
        node.check(1, Some(Class::Standard));
        waits.push(wait);
        let mut state = node.server.state();
        match turn {
            // The first turn listed and watched. The next ones have a watch that fails, and then lists that fail.
            0 => state.faults.push(watches[0].clone()),
            _ if turn <= count => state.faults.push(faults[turn - 1].clone()),
            _ => {}
        }
    });
    // Lists and watches work again in the end: the shortest pause, because this server ends watches at once.
    let shortest = Duration::from_millis(1500);
    assert!(waits.last() <= Some(&shortest), "{waits:?}");
    let failed = &waits[1..=count];
    assert!(failed.windows(2).all(|pair| pair[0] <= pair[1].mul_f64(1.5)) && failed.last() >= Some(&Duration::from_secs(30)), "{waits:?}");
    assert!(waits.iter().all(|wait| *wait <= Duration::from_secs(90)), "{waits:?}");
    for fault in &watches[1..] {
        let mut waits = Vec::new();
        node.run(3, |turn, wait| {
            if turn == 0 {
                node.server.state().faults.push(fault.clone());
            }
            waits.push(wait);
            node.check(1, Some(Class::Standard));
        });
        assert!(waits[1] >= Duration::from_secs(1) && waits[2] <= shortest, "{waits:?}");
    }
}

#[test]
fn a_version_that_is_gone_is_followed_by_a_list() {
    let node = Node::new();
    node.server.state().put(pod(&uid(1), "Burstable", &[]));
    node.run(4, |turn, wait| {
        let mut state = node.server.state();
        match turn {
            0 => {
                state.put(pod(&uid(2), "Burstable", &[(ANNOTATION, "standard")]));
                state.delete(&uid(1));
                state.compacted = 100;
            }
            1 => {
                assert!(wait >= Duration::from_secs(1), "a server that refuses every version is not asked without a pause");
                state.compacted = 0;
                drop(state);
                node.check(1, Some(Class::Observe));
            }
            2 => {
                drop(state);
                node.check(1, None);
                node.check(2, Some(Class::Standard));
            }
            _ => {
                let gone = r#"{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old resource version"}}"#;
                state.faults.push(Fault::CutAfter(format!("{gone}\n")));
            }
        }
    });
    assert_eq!(node.server.state().count("limit="), 2);
}

#[test]
fn pods_and_their_rules_are_bounded() {
    let node = Node::new();
    let long = "x".repeat(200_000);
    {
        let mut state = node.server.state();
        for number in 0..10_000 {
            state.put(pod(&uid(number), "Burstable", &[(ANNOTATION, "off")]));
        }
        state.put(pod(&uid(0), "Burstable", &[(ANNOTATION, &long), ("example.com/note", &long)]));
    }
    let mut follower = node.follower();
    follower.list().unwrap();
    assert_eq!(follower.pods(), PODS_MAX);
    assert_eq!(node.server.state().count("limit="), 100, "in pages");
    let text = std::fs::read_to_string(node.path()).unwrap();
    // The largest rules, two for each pod, fit the limit of the agent's reader.
    assert!(text.len() < 1 << 20, "{} bytes", text.len());
    assert_eq!(Config::rules_from_str("rules.toml", &text).unwrap().len(), 2 * PODS_MAX);
    assert!(!text.contains("xxx"));
}

#[test]
fn a_promise_is_published_and_withdrawn_as_capacity_of_this_node() {
    let node = Node::new();
    let api = node.api();
    publish(&api, NODE, Bytes(3 << 30)).unwrap();
    publish(&api, NODE, Bytes::ZERO).unwrap();
    withdraw(&api, NODE).unwrap();
    let state = node.server.state();
    let expected = [json!("3221225472"), Value::Null, Value::Null];
    assert_eq!(state.requests.len(), expected.len());
    for (request, quantity) in state.requests.iter().zip(expected) {
        assert_eq!((request.method.as_str(), request.path.as_str()), ("PATCH", "/api/v1/nodes/node-1.example.com/status"));
        assert_eq!(request.headers["content-type"], "application/merge-patch+json");
        let body: Value = serde_json::from_str(&request.body).unwrap();
        assert_eq!(body, json!({ "status": { "capacity": { "thermocline.io/promised-memory": quantity } } }));
    }
}

#[test]
fn a_server_of_another_authority_gets_no_token() {
    let (node, other) = (Node::new(), tempfile::tempdir().unwrap());
    drop(server::certificates(other.path()));
    std::fs::write(other.path().join("token"), server::TOKEN).unwrap();
    let list = |directory: &Path| {
        let api = Api::new(&node.server.url, Credentials { directory: directory.to_owned() }).unwrap();
        let choice = Choice { default_class: Class::Observe, static_pods: false, root: CgroupRoot::default() };
        Follower::new(api, NODE, choice, RuleFile::new(&node.path())).unwrap().list().map_err(|error| error.to_string())
    };
    let error = list(other.path()).unwrap_err();
    assert!(error.contains("cannot be reached") && error.contains("certificate"), "{error}");
    assert!(node.server.state().requests.is_empty());
    let own = node.server.credentials.path();
    assert_eq!(list(own), Ok(()));
    std::fs::write(own.join("token"), "expired").unwrap();
    let error = list(own).unwrap_err();
    assert!(error.contains("HTTP 401: Unauthorized; the token is not valid"), "{error}");
    std::fs::write(own.join("token"), "a\r\nX-Other: b").unwrap();
    assert!(list(own).unwrap_err().contains("it is no token"));
    std::fs::remove_file(own.join("ca.crt")).unwrap();
    assert!(list(own).unwrap_err().contains("ca.crt"));
}

#[test]
fn a_name_that_is_no_node_is_refused() {
    let node = Node::new();
    for name in ["", "Node", "a/b", "..", "node,status.phase=Failed", &"a".repeat(254)] {
        let choice = Choice { default_class: Class::Observe, static_pods: false, root: CgroupRoot::default() };
        assert!(Follower::new(node.api(), name, choice, RuleFile::new(&node.path())).is_err(), "{name}");
    }
}

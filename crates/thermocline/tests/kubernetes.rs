//! `thermocline kubernetes` as the chart runs it: its rules under the agent's own matcher, the node's resource, and SIGTERM. The server
//! speaks plain HTTP on loopback, as `kubectl proxy` does.
#![allow(clippy::unwrap_used, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use agent::discover::Rules;
use config::{Class, Config};
use kernel::Roots;
use serde_json::{Value, json};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../node/agent/tests/journal-6.12-idle.jsonl");
const PATIENCE: Duration = Duration::from_secs(60);

/// A server of these pods; each patch of a node arrives on the channel.
fn serve(pods: Value) -> (String, Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (pods, sender) = (pods.clone(), sender.clone());
            std::thread::spawn(move || answer(stream, &pods, &sender));
        }
    });
    (url, receiver)
}

fn answer(stream: TcpStream, pods: &Value, patches: &Sender<Value>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first).ok()?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        if line.trim().is_empty() {
            break;
        }
        assert!(!line.to_lowercase().starts_with("authorization"), "a token in plain text");
        if let Some(text) = line.to_lowercase().strip_prefix("content-length: ") {
            length = text.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let mut stream = reader.into_inner();
    let text = if first.starts_with("PATCH ") {
        patches.send(serde_json::from_slice(&body).ok()?).ok()?;
        "{}".to_owned()
    } else if first.contains("watch=true") {
        // An open watch on which nothing happens.
        std::thread::sleep(PATIENCE);
        return None;
    } else {
        json!({ "kind": "PodList", "metadata": { "resourceVersion": "7" }, "items": pods }).to_string()
    };
    write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{text}", text.len()).ok()
}

fn pod(uid: &str, qos: &str, class: Option<&str>) -> Value {
    let annotations = class.map(|class| json!({ "thermocline.io/class": class }));
    let metadata = json!({ "uid": uid, "name": "web-0", "namespace": "shop", "resourceVersion": "6", "annotations": annotations });
    json!({ "metadata": metadata, "spec": { "nodeName": "node-1" }, "status": { "phase": "Running", "qosClass": qos } })
}

fn command(directory: &Path, url: &str, arguments: &[&str]) -> Command {
    let configuration = directory.join("thermocline.toml");
    std::fs::write(&configuration, format!("agent.state_dir = \"{}\"\n", directory.display())).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline"));
    command.args(["kubernetes", "--node", "node-1", "--api", url, "--config"]).arg(configuration);
    command.arg("--rules").arg(directory.join("rules.toml")).args(arguments).env_remove("THERMOCLINE_LOG");
    command
}

fn once(directory: &Path, url: &str, arguments: &[&str]) -> Output {
    command(directory, url, &[&["--once"], arguments].concat()).output().unwrap()
}

#[test]
fn the_agent_finds_the_containers_of_pods_by_the_rules() {
    const UIDS: [&str; 3] =
        ["3f1d9c1e-55aa-4b0e-9a4f-000000000001", "3f1d9c1e-55aa-4b0e-9a4f-000000000002", "3f1d9c1e-55aa-4b0e-9a4f-000000000003"];
    let (url, _patches) =
        serve(json!([pod(UIDS[0], "Burstable", Some("standard")), pod(UIDS[1], "BestEffort", None), pod(UIDS[2], "Guaranteed", None)]));
    let directory = tempfile::tempdir().unwrap();
    let done = once(directory.path(), &url, &[]);
    assert!(done.status.success(), "{done:?}");
    assert!(String::from_utf8_lossy(&done.stdout).contains("wrote the rules of 3 pods"), "{done:?}");
    let text = std::fs::read_to_string(directory.path().join("rules.toml")).unwrap();
    // A rule of the operator for the containers of all pods comes after those.
    let mut config = Config::from_str("main", "[[job]]\ncgroup = \"/kubepods.slice/**/*.scope\"\nclass = \"aggressive\"\n").unwrap();
    let mut jobs = Config::rules_from_str("rules", &text).unwrap();
    jobs.append(&mut config.jobs);
    config.jobs = jobs;
    let slice = |class: &str, uid: &str| {
        let name = if class.is_empty() { "kubepods".to_owned() } else { format!("kubepods-{class}") };
        let above = if class.is_empty() { String::new() } else { format!("/{name}.slice") };
        format!("/kubepods.slice{above}/{name}-pod{}.slice", uid.replace('-', "_"))
    };
    let pods = [slice("burstable", UIDS[0]), slice("besteffort", UIDS[1]), slice("", UIDS[2])];
    let mut cgroups = vec!["/init.scope".to_owned(), "/kubepods.slice".to_owned()];
    for pod in &pods {
        cgroups.extend([pod.clone(), format!("{pod}/cri-containerd-01.scope"), format!("{pod}/cri-containerd-02.scope")]);
    }
    let mut rules = Rules::new(&config).unwrap();
    let found = rules.find(&Roots::under(directory.path()), &cgroups);
    let found: Vec<_> = found.jobs.iter().map(|job| (job.path.clone(), job.treatment.class)).collect();
    let of = |pod: &str, class| [1, 2].map(|number| (format!("{pod}/cri-containerd-0{number}.scope"), class));
    assert_eq!(found, [of(&pods[0], Class::Standard), of(&pods[1], Class::Observe)].concat());
    assert!(rules.is_off(&pods[2]) && !rules.is_off(&pods[0]));
}

#[test]
fn a_mistake_is_explained() {
    let directory = tempfile::tempdir().unwrap();
    let check = |url: &str, arguments: &[&str], code: i32, piece: &str| {
        let done = once(directory.path(), url, arguments);
        let stderr = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.code() == Some(code) && stderr.contains(piece), "{url} {arguments:?}: {stderr}");
        assert!(!directory.path().join("rules.toml").exists());
    };
    check("http://127.0.0.1:1", &[], 1, "cannot be reached");
    check("http://10.0.0.1", &[], 1, "write https://HOST:PORT");
    check("https://127.0.0.1:1", &["--credentials", "/no/such/directory"], 1, "/no/such/directory/ca.crt");
    check("https://127.0.0.1:1", &["--cgroup-root", "/*"], 2, "is no cgroup");
    check("https://127.0.0.1:1", &["--default-class", "standrad"], 2, "conservative");
    check("https://127.0.0.1:1", &["--risk", "200%"], 2, "out of range");
    let outside = Command::new(env!("CARGO_BIN_EXE_thermocline"))
        .args(["kubernetes", "--node", "a", "--rules", "/dev/null"])
        .env_remove("KUBERNETES_SERVICE_HOST")
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&outside.stderr).contains("this is no pod"), "{outside:?}");
}

fn capacity(patches: &Receiver<Value>) -> Value {
    patches.recv_timeout(PATIENCE).unwrap()["status"]["capacity"]["thermocline.io/promised-memory"].clone()
}

fn terminate(mut child: Child) -> Output {
    Command::new("kill").arg(child.id().to_string()).status().unwrap();
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    let status = child.wait().unwrap();
    Output { status, stdout: vec![], stderr: stderr.into_bytes() }
}

#[test]
fn the_promise_of_the_journal_is_published_and_withdrawn_at_the_end() {
    let (url, patches) = serve(json!([]));
    let directory = tempfile::tempdir().unwrap();
    let start = |risk: &str| command(directory.path(), &url, &["--promise", "1s", "--risk", risk]).stderr(Stdio::piped()).spawn().unwrap();
    // Without a journal, there is nothing to promise.
    let child = start("50%");
    assert_eq!(capacity(&patches), Value::Null);
    std::fs::copy(GOLDEN, agent::journal::Journal::path(directory.path())).unwrap();
    let plan =
        Command::new(env!("CARGO_BIN_EXE_thermocline")).args(["plan", GOLDEN, "--risk", "50%", "--format", "json"]).output().unwrap();
    let plan: Value = serde_json::from_slice(&plan.stdout).unwrap();
    let saved = plan["machine"]["firm_saved_bytes"].as_u64().unwrap();
    assert!(saved > 0 && plan["machine"]["independent_periods"].as_u64() >= plan["periods_min"].as_u64(), "{}", plan["machine"]);
    let mut last = Value::Null;
    while last.is_null() {
        last = capacity(&patches);
    }
    assert_eq!(last, json!(saved.to_string()));
    let done = terminate(child);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    let rest: Vec<Value> = patches.try_iter().collect();
    assert_eq!(rest.last().unwrap()["status"]["capacity"]["thermocline.io/promised-memory"], Value::Null, "{rest:?}");
    // Too few periods for a small risk: nothing is promised.
    let child = start("0.1%");
    assert_eq!(capacity(&patches), Value::Null);
    assert_eq!(terminate(child).status.code(), Some(0));
    // Of an agent that ended an hour ago, nothing is left.
    let journal = std::fs::File::options().append(true).open(agent::journal::Journal::path(directory.path())).unwrap();
    journal.set_modified(std::time::SystemTime::now() - Duration::from_hours(1)).unwrap();
    while patches.try_recv().is_ok() {}
    let child = start("50%");
    assert_eq!(capacity(&patches), Value::Null);
    assert_eq!(terminate(child).status.code(), Some(0));
}

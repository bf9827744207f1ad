//! A small API server over HTTPS: pods with versions, list in pages, watch in chunks, patch of a node's status; and its failures.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

pub(crate) const TOKEN: &str = "a.b.c";
pub(crate) const NODE: &str = "node-1.example.com";

/// What happens to a request instead of its answer.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// The connection closes without an answer.
    Close,
    /// HTTP status and body.
    Answer(u16, String),
    /// A watch sends this text and closes in the middle of the response.
    CutAfter(String),
}

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    version: u64,
    /// Versions up to this one are no longer kept.
    pub(crate) compacted: u64,
    pods: BTreeMap<String, Value>,
    /// Version, type and pod.
    events: Vec<(u64, &'static str, Value)>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) requests: Vec<Request>,
}

impl State {
    /// Adds or changes a pod.
    pub(crate) fn put(&mut self, mut pod: Value) {
        self.version += 1;
        pod["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let uid = pod["metadata"]["uid"].as_str().unwrap().to_owned();
        let kind = if self.pods.insert(uid, pod.clone()).is_some() { "MODIFIED" } else { "ADDED" };
        self.events.push((self.version, kind, pod));
    }

    pub(crate) fn delete(&mut self, uid: &str) {
        self.version += 1;
        let mut pod = self.pods.remove(uid).unwrap();
        pod["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.events.push((self.version, "DELETED", pod));
    }

    pub(crate) fn count(&self, piece: &str) -> usize {
        self.requests.iter().filter(|request| request.path.contains(piece)).count()
    }
}

pub(crate) struct Server {
    pub(crate) url: String,
    pub(crate) credentials: tempfile::TempDir,
    state: Arc<Mutex<State>>,
}

impl Server {
    pub(crate) fn start() -> Self {
        let credentials = tempfile::tempdir().unwrap();
        let tls = certificates(credentials.path());
        std::fs::write(credentials.path().join("token"), format!("{TOKEN}\n")).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(State::default()));
        let served = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (tls, state) = (Arc::clone(&tls), Arc::clone(&served));
                std::thread::spawn(move || serve(StreamOwned::new(ServerConnection::new(tls).unwrap(), stream), &state));
            }
        });
        Self { url, credentials, state }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

/// Makes an authority, `ca.crt` in a directory, and a certificate that it signed.
pub(crate) fn certificates(directory: &Path) -> Arc<ServerConfig> {
    let authority = rcgen::KeyPair::generate().unwrap();
    let mut parameters = rcgen::CertificateParams::new(vec![]).unwrap();
    parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let certificate = parameters.self_signed(&authority).unwrap();
    std::fs::write(directory.join("ca.crt"), certificate.pem()).unwrap();
    let issuer = rcgen::Issuer::new(parameters, authority);
    let key = rcgen::KeyPair::generate().unwrap();
    let own = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    Arc::new(builder.with_no_client_auth().with_single_cert(vec![own.der().clone()], key.into()).unwrap())
}

type Stream = StreamOwned<ServerConnection, TcpStream>;

/// One request per connection.
fn serve(stream: Stream, state: &Mutex<State>) {
    let mut reader = BufReader::new(stream);
    let Some(request) = receive(&mut reader) else { return };
    let mut stream = reader.into_inner();
    let reply = {
        let mut state = state.lock().unwrap();
        state.requests.push(request.clone());
        match state.faults.pop() {
            Some(Fault::Close) => return,
            Some(Fault::Answer(status, body)) => whole(status, &body),
            Some(Fault::CutAfter(text)) => chunks(&[text], false),
            None => answer(&state, &request),
        }
    };
    let _ = stream.write_all(&reply).and_then(|()| stream.flush());
    stream.conn.send_close_notify();
    let _ = stream.flush();
}

fn receive(reader: &mut BufReader<Stream>) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim().split_once(": ") else { break };
        headers.insert(name.to_lowercase(), value.to_owned());
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Request { method, path, headers, body: String::from_utf8(body).ok()? })
}

fn answer(state: &State, request: &Request) -> Vec<u8> {
    if request.headers.get("authorization").map(String::as_str) != Some(&format!("Bearer {TOKEN}")) {
        return whole(401, r#"{"kind":"Status","code":401,"message":"Unauthorized"}"#);
    }
    let query = |key: &str| {
        let query = request.path.split_once('?').map_or("", |(_, query)| query);
        query.split('&').filter_map(|pair| pair.split_once('=')).find(|(name, _)| *name == key).map(|(_, value)| value.to_owned())
    };
    if request.method == "PATCH" {
        return whole(200, "{}");
    }
    if query("watch").is_some() {
        let since: u64 = query("resourceVersion").unwrap().parse().unwrap();
        if since < state.compacted {
            return whole(410, r#"{"kind":"Status","code":410,"message":"too old resource version"}"#);
        }
        let mut lines: Vec<String> = Vec::new();
        for (_, kind, pod) in state.events.iter().filter(|(version, ..)| *version > since) {
            lines.push(format!("{}\n", json!({ "type": kind, "object": pod })));
        }
        let bookmark = json!({ "kind": "Pod", "metadata": { "resourceVersion": state.version.to_string() } });
        lines.push(format!("{}\n", json!({ "type": "BOOKMARK", "object": bookmark })));
        return chunks(&lines, true);
    }
    let (limit, from) = (query("limit").unwrap().parse().unwrap(), query("continue").map_or(0, |from| from.parse().unwrap()));
    let items: Vec<&Value> = state.pods.values().skip(from).take(limit).collect();
    let next = if from + limit < state.pods.len() { (from + limit).to_string() } else { String::new() };
    let metadata = json!({ "resourceVersion": state.version.to_string(), "continue": next });
    whole(200, &json!({ "kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items }).to_string())
}

fn whole(status: u16, body: &str) -> Vec<u8> {
    let length = body.len();
    let head = "Content-Type: application/json\r\nConnection: close";
    format!("HTTP/1.1 {status} X\r\n{head}\r\nContent-Length: {length}\r\n\r\n{body}").into_bytes()
}

fn chunks(lines: &[String], complete: bool) -> Vec<u8> {
    let mut text = "HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned();
    for line in lines {
        text += &format!("{:x}\r\n{line}\r\n", line.len());
    }
    if complete {
        text += "0\r\n\r\n";
    }
    text.into_bytes()
}

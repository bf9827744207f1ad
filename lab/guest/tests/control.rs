//! The control channel over a Unix socket, used like the harness uses its serial port.
#![allow(clippy::unwrap_used, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// A running server and a connection to it.
struct Server {
    process: Child,
    writer: UnixStream,
    reader: BufReader<UnixStream>,
    directory: tempfile::TempDir,
    next_id: u64,
}

impl Server {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("control");
        let process = Command::new(env!("CARGO_BIN_EXE_labguest")).arg("control").arg("--socket").arg(&socket).spawn().unwrap();
        let writer = connect(&socket);
        writer.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let reader = BufReader::new(writer.try_clone().unwrap());
        let mut server = Self { process, writer, reader, directory, next_id: 1 };
        let ready = server.next();
        assert_eq!(ready["event"], "ready");
        assert!(!ready["kernel"].as_str().unwrap().is_empty(), "{ready}");
        server
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns the next message from the server.
    fn next(&mut self) -> Value {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn send(&mut self, line: &str) {
        self.writer.write_all(line.as_bytes()).unwrap();
        self.writer.write_all(b"\n").unwrap();
    }

    /// Sends a request and returns its id.
    fn request(&mut self, mut request: Value) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        request["id"] = id.into();
        self.send(&request.to_string());
        id
    }

    /// Sends a request and checks its reply, which must be the next message: each of `expected`'s fields must be equal,
    /// and an expected `error` must be part of the error. Returns the reply.
    fn check(&mut self, request: Value, expected: &Value) -> Value {
        let shown = request.to_string();
        let id = self.request(request);
        let reply = self.next();
        assert_eq!(reply["id"], id, "{shown} -> {reply}");
        assert_eq!(reply["ok"], expected.get("error").is_none(), "{shown} -> {reply}");
        for (field, value) in expected.as_object().unwrap() {
            match field.as_str() {
                "error" => {
                    let error = reply["error"].as_str().unwrap();
                    assert!(error.contains(value.as_str().unwrap()), "{shown} -> {reply}");
                }
                _ => assert_eq!(&reply[field], value, "{field} of {shown} -> {reply}"),
            }
        }
        reply
    }
}

/// Connects as soon as the server listens, with a time limit.
fn connect(socket: &Path) -> UnixStream {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => return stream,
            Err(error) => assert!(Instant::now() < deadline, "{}: {error}", socket.display()),
        }
        std::thread::yield_now();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.writer.shutdown(std::net::Shutdown::Both);
        let _ = self.process.wait();
    }
}

fn shell(script: &str) -> Value {
    json!({"op": "run", "argv": ["sh", "-c", script], "timeout_s": 60})
}

#[test]
fn programs_run_to_completion() {
    let mut server = Server::start();
    server.check(shell("echo out; echo err >&2; exit 3"), &json!({"status": 3, "signal": null, "stdout": "out\n", "stderr": "err\n"}));
    server.check(shell("kill -9 $$"), &json!({"status": null, "signal": 9}));
    server.check(shell("head -c 300000 /dev/zero | wc -c"), &json!({"stdout": "300000\n"}));
    let reply = server.check(shell("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"), &json!({"status": 0}));
    assert!(reply["cpu_s"].as_f64().unwrap() > 0.0, "{reply}");
    let mut with_env = shell("echo $THAT");
    with_env["env"] = json!({"THAT": "this"});
    server.check(with_env, &json!({"stdout": "this\n"}));
    let text = "line of text\n".repeat(30_000);
    let mut with_stdin = shell("cat");
    with_stdin["stdin"] = text.clone().into();
    server.check(with_stdin, &json!({"stdout": text}));
    let mut unread_stdin = shell("exit 0");
    unread_stdin["stdin"] = text.into();
    server.check(unread_stdin, &json!({"status": 0}));
}

#[test]
fn programs_that_cannot_run_are_errors() {
    let mut server = Server::start();
    let run = |argv: Value| json!({"op": "run", "argv": argv, "timeout_s": 60});
    server.check(run(json!([])), &json!({"error": "\"argv\" is empty"}));
    server.check(run(json!(["/no/such/program"])), &json!({"error": "/no/such/program"}));
    server.check(run(json!(["a\u{0}b"])), &json!({"error": "cannot start"}));
    let mut no_cgroup = run(json!(["true"]));
    no_cgroup["cgroup"] = "/no/such/cgroup".into();
    server.check(no_cgroup, &json!({"error": "/no/such/cgroup/cgroup.procs"}));
    let timed = |timeout: Value| json!({"op": "run", "argv": ["sh", "-c", "echo here >&2; sleep 60"], "timeout_s": timeout});
    server.check(timed(json!(0.3)), &json!({"error": "the end of its output was \"here\\n\""}));
    server.check(timed(json!(-1)), &json!({"error": "timeout_s"}));
    server.check(timed(json!(1e99)), &json!({"error": "timeout_s"}));
    let mut background = shell("sleep 60 & exit 0");
    background["timeout_s"] = json!(0.3);
    server.check(background, &json!({"error": "a process that it started"}));
    server.check(run(json!(["true"])), &json!({"status": 0}));
}

#[test]
fn spawned_programs_report_their_exit() {
    let mut server = Server::start();
    let output = server.path("output");
    let spawn = |script: &str| json!({"op": "spawn", "argv": ["sh", "-c", script], "stdout": output, "stderr": output});
    let pid = server.check(spawn("echo one; exit 5"), &json!({}))["pid"].clone();
    assert_eq!(server.next(), json!({"event": "exit", "pid": pid, "status": 5, "signal": null}));
    let pid = server.check(spawn("echo two >&2; read nothing; sleep 60"), &json!({}))["pid"].clone();
    server.check(json!({"op": "expect", "path": output, "contains": "two", "timeout_s": 60}), &json!({"line": "two"}));
    // Signals the process group, because the shell's `sleep` would live on otherwise.
    server.request(json!({"op": "kill", "pid": -pid.as_i64().unwrap(), "signal": 15}));
    let ended = json!({"event": "exit", "pid": pid, "status": null, "signal": 15});
    let both = [server.next(), server.next()];
    assert!(both.contains(&ended), "{both:?}");
    server.check(json!({"op": "read", "path": output}), &json!({"data": "one\ntwo\n"}));
    server.check(json!({"op": "spawn", "argv": ["/no/such/program"]}), &json!({"error": "/no/such/program"}));
    server
        .check(json!({"op": "spawn", "argv": ["true"], "stdout": "/no/such/directory/file"}), &json!({"error": "/no/such/directory/file"}));
}

#[test]
fn files_and_signals_work() {
    let mut server = Server::start();
    let (directory, file) = (server.path("a/b/c"), server.path("a/b/c/file"));
    server.check(json!({"op": "mkdir", "path": directory}), &json!({}));
    server.check(json!({"op": "mkdir", "path": directory}), &json!({}));
    let write = |data: &str, append: bool| json!({"op": "write", "path": file, "data": data, "append": append});
    for (request, then) in [(write("one\n", false), "one\n"), (write("2\n", true), "one\n2\n"), (write("", false), "")] {
        server.check(request, &json!({}));
        server.check(json!({"op": "read", "path": file}), &json!({"data": then}));
    }
    server.check(json!({"op": "read", "path": directory}), &json!({"error": "Is a directory"}));
    server.check(json!({"op": "read", "path": server.path("none")}), &json!({"error": "none"}));
    server.check(json!({"op": "write", "path": directory, "data": "x"}), &json!({"error": "cannot write \"x\""}));
    server.check(json!({"op": "mkdir", "path": file.join("d")}), &json!({"error": "cannot create directory"}));
    for pid in [-1, 0, 1] {
        server.check(json!({"op": "kill", "pid": pid, "signal": 0}), &json!({"error": "cannot signal"}));
    }
    server.check(json!({"op": "kill", "pid": i32::MAX, "signal": 0}), &json!({"error": "No such process"}));
}

#[test]
fn expect_waits_for_lines() {
    let mut server = Server::start();
    let file = server.path("later/log");
    let expect = |contains: &str, timeout: f64| json!({"op": "expect", "path": file, "contains": contains, "timeout_s": timeout});
    server.check(expect("x", 0.0), &json!({"error": "did not exist"}));
    let waiting = server.request(expect("ready", 60.0));
    // A later request is answered first: the wait does not block others.
    server.check(json!({"op": "mkdir", "path": server.path("later")}), &json!({}));
    let append = |data: &str| json!({"op": "write", "path": file, "data": data, "append": true});
    server.check(append("starting\nnearly rea"), &json!({}));
    server.check(expect("starting", 60.0), &json!({"line": "starting"}));
    server.check(expect("nearly", 0.0), &json!({"line": "nearly rea"}));
    server.request(append("dy\n"));
    let both = [server.next(), server.next()];
    assert!(both.contains(&json!({"id": waiting, "ok": true, "line": "nearly ready"})), "{both:?}");
    server.check(expect("absent", 0.0), &json!({"error": "its last line was \"nearly ready\""}));
    server.check(json!({"op": "write", "path": file, "data": "again\n"}), &json!({}));
    server.check(expect("again", 60.0), &json!({"line": "again"}));
}

#[test]
fn invalid_requests_are_answered() {
    let mut server = Server::start();
    for (line, id, contains) in [
        ("", Value::Null, "not a JSON object"),
        ("\u{7f}\u{0}garbage", Value::Null, "not a JSON object"),
        (r#"{"id":4,"op":"dance"}"#, json!(4), "dance"),
    ] {
        server.send(line);
        let reply = server.next();
        assert_eq!((&reply["id"], &reply["ok"]), (&id, &json!(false)), "{line:?} -> {reply}");
        assert!(reply["error"].as_str().unwrap().contains(contains), "{line:?} -> {reply}");
    }
}

#[test]
fn closing_the_channel_kills_spawned_programs() {
    let mut server = Server::start();
    // The spawned program is a second server: its exit closes the connection to it.
    let labguest = env!("CARGO_BIN_EXE_labguest");
    server.check(json!({"op": "spawn", "argv": [labguest, "control", "--socket", server.path("inner")]}), &json!({}));
    let inner = connect(&server.path("inner"));
    inner.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut inner = BufReader::new(inner);
    let mut ready = String::new();
    inner.read_line(&mut ready).unwrap();
    assert!(ready.contains("ready"), "{ready}");
    server.writer.shutdown(std::net::Shutdown::Both).unwrap();
    assert!(server.process.wait().unwrap().success());
    let mut rest = String::new();
    assert_eq!(inner.read_line(&mut rest).unwrap(), 0, "{rest}");
}

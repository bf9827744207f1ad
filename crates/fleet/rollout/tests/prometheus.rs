//! Queries to a real Prometheus that scrapes two machines.
//!
//! `make test-prometheus` downloads the server and sets `PROMETHEUS` to the path of its program.
#![allow(clippy::unwrap_used, reason = "clippy's exemption for tests does not cover helpers in integration tests")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rollout::prometheus::ask;

/// A server process that is killed on drop.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Serves these metrics to every request; returns the port.
fn exporter(metrics: &'static str) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            // One read receives the whole request of a scrape, which is always the same.
            let _ = stream.read(&mut [0; 4096]);
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nConnection: close";
            let _ = write!(stream, "{head}\r\nContent-Length: {}\r\n\r\n{metrics}", metrics.len());
        }
    });
    port
}

/// Returns a free port.
fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

#[test]
#[ignore = "needs Prometheus: make test-prometheus"]
fn a_real_server_returns_one_value_per_machine() {
    let program = std::env::var("PROMETHEUS").expect("PROMETHEUS does not say where the server is; run `make test-prometheus`");
    let directory = tempfile::tempdir().unwrap();
    let ports = ["errors_total 3\nlatency_seconds 0.25\n", "errors_total 5\nlatency_seconds NaN\n"].map(exporter);
    let targets: String = (1..)
        .zip(ports)
        .map(|(number, port)| format!("  - targets: ['127.0.0.1:{port}']\n    labels: {{machine: 'web-{number}:9100'}}\n"))
        .collect();
    let config = format!("global:\n  scrape_interval: 1s\nscrape_configs:\n- job_name: test\n  static_configs:\n{targets}");
    std::fs::write(directory.path().join("prometheus.yml"), config).unwrap();
    let address = format!("127.0.0.1:{}", free_port());
    let child = Command::new(program)
        .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data", &format!("--web.listen-address={address}")])
        .current_dir(directory.path())
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _server = Server(child);
    let url = format!("http://{address}/");
    let since = Duration::from_secs(60);
    let begins = Instant::now();
    let found = loop {
        match ask(&url, "max by (machine) (latency_seconds)", "machine", since) {
            Ok(found) if found.len() == 2 => break found,
            other => assert!(begins.elapsed() < Duration::from_secs(60), "{other:?}"),
        }
        thread::sleep(Duration::from_millis(500));
    };
    assert_eq!(found["web-1"].to_bits(), 0.25f64.to_bits());
    assert!(found["web-2"].is_nan());
    let errors = ask(&url, "sum by (machine) (max_over_time(errors_total[$since]))", "machine", since).unwrap();
    assert_eq!(errors.into_iter().collect::<Vec<_>>(), [("web-1".to_owned(), 3.0), ("web-2".to_owned(), 5.0)]);
    let refused = |query: &str, piece: &str| {
        let error = ask(&url, query, "machine", since).unwrap_err();
        assert!(error.contains(piece), "{query}: {error}");
    };
    refused("sum by (", "parse error");
    refused("errors_total[1m]", "a matrix instead");
    refused("sum(errors_total)", "without the label machine");
    assert!(ask(&url, "nothing_of_that_name", "machine", since).unwrap().is_empty());
}

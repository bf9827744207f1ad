//! An S3 server for integration tests: `s3s-fs`, which serves the directories below a root as buckets.
//!
//! The object store client reads its credentials from the environment of the process, as in production. A test
//! therefore runs in two steps: the outer test calls [`run_with_credentials`], which runs the ignored inner test in a
//! process of its own; the inner test starts and stops [`S3Server`]s at [`address`]. `make test-s3` builds the server
//! and sets `S3_SERVER`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of tests, which fail by panicking")]

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const ACCESS_KEY: &str = "thermocline";
const SECRET_KEY: &str = "secret-of-this-test-only";
/// Environment variable with the address of the server, set for the inner test.
const ADDRESS: &str = "S3_TEST_ADDRESS";
/// Time limit for [`until`].
const TIMEOUT: Duration = Duration::from_secs(60);

/// A running server. It is killed when this value is dropped.
#[derive(Debug)]
pub struct S3Server(Child);

impl S3Server {
    /// Starts a server of the buckets below `root` and waits until it accepts connections.
    ///
    /// # Panics
    /// If `S3_SERVER` is not set, or the server does not start.
    #[must_use]
    pub fn start(root: &Path) -> Self {
        let program = std::env::var("S3_SERVER").unwrap_or_else(|_| panic!("S3_SERVER must be the path of s3s-fs; run `make test-s3`"));
        let address = address();
        let (host, port) = address.split_once(':').unwrap();
        let mut command = Command::new(program);
        command.args(["--host", host, "--port", port, "--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY]).arg(root);
        let server = Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        until("the server accepts connections", || TcpStream::connect(&address).is_ok());
        server
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the address, as host:port, at which the inner test starts its servers.
///
/// # Panics
/// In a process that [`run_with_credentials`] did not start.
#[must_use]
pub fn address() -> String {
    std::env::var(ADDRESS).unwrap_or_else(|_| panic!("{ADDRESS} is not set; run the outer test"))
}

/// Runs the ignored test `inner` of the current test program in a process with credentials in its environment.
///
/// # Panics
/// If the inner test fails.
pub fn run_with_credentials(inner: &str) {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", inner, "--ignored", "--nocapture"])
        .env(ADDRESS, &address)
        .env("AWS_ENDPOINT", format!("http://{address}"))
        .env("AWS_ALLOW_HTTP", "true")
        .env("AWS_REGION", "us-east-1")
        .env("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        .env("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && stdout.contains("1 passed"), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
}

/// Polls a condition until it holds.
///
/// # Panics
/// If it does not hold within a minute.
pub fn until(condition: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < TIMEOUT, "not within {TIMEOUT:?}: {condition}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

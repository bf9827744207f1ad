//! Clients that stall, flood or never finish, against a server with small limits.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use tokio::net::TcpStream as TokioStream;

use super::*;

const LIMITS: Limits = Limits {
    connections: 8,
    handshakes: 8,
    handshake_timeout: Duration::from_millis(400),
    head_bytes: 8 << 10,
    body_bytes: 1000,
    head_timeout: Duration::from_millis(400),
    request_timeout: Duration::from_millis(400),
    keep_alive: true,
};
const PATIENCE: Duration = Duration::from_secs(20);

/// Answers with the number of bytes of the body; `/never` is never answered.
struct Echo;

impl Service<()> for Echo {
    type Route = ();

    fn route(&self, _peer: &(), head: &Parts) -> Result<(), Answer> {
        if head.uri.path() == "/refused" { Err(Answer::new(403, "text/plain", "refused")) } else { Ok(()) }
    }

    async fn answer(&self, (): (), head: Parts, body: Bytes) -> Answer {
        if head.uri.path() == "/never" {
            std::future::pending::<()>().await;
        }
        Answer::new(200, "text/plain", body.len().to_string())
    }

    fn reject(&self, rejection: Rejection) -> Answer {
        Answer::new(rejection.status(), "text/plain", rejection.to_string())
    }
}

fn start(limits: Limits) -> Server {
    serve("test", TcpListener::bind("127.0.0.1:0").unwrap(), Plain, Echo, limits).unwrap()
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// The answer to one request on a new connection.
fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = connect(address);
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// What the server sends until it closes the connection.
fn rest(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    // A reset closes the connection, too.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// A handshake of one byte.
struct Knock;

impl Accept for Knock {
    type Stream = TokioStream;
    type Peer = ();

    async fn accept(&self, stream: TokioStream) -> io::Result<(TokioStream, ())> {
        loop {
            stream.readable().await?;
            // Readiness may be a false alarm.
            match stream.try_read(&mut [0]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => return Ok((stream, ())),
            }
        }
    }
}

#[test]
fn unknown_clients_do_not_evict_known_ones() {
    let limits = Limits { head_timeout: PATIENCE, handshake_timeout: PATIENCE, request_timeout: PATIENCE, ..LIMITS };
    let server = serve("test", TcpListener::bind("127.0.0.1:0").unwrap(), Knock, Echo, limits).unwrap();
    let known: Vec<_> = (0..limits.connections)
        .map(|_| {
            let mut stream = connect(server.address());
            write!(stream, "!GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            assert!(stream.read(&mut [0; 1024]).unwrap() > 0);
            stream
        })
        .collect();
    let unknown: Vec<_> = (0..10 * limits.handshakes).map(|_| connect(server.address())).collect();
    // The last of the unknown ones is served, and so its forerunners have been evicted.
    let mut last = unknown.last().unwrap();
    write!(last, "!GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert!(last.read(&mut [0; 1024]).unwrap() > 0);
    // It took the place of one known client.
    let alive = known.into_iter().filter_map(|mut stream| {
        write!(stream, "GET / HTTP/1.1\r\nHost: x\r\n\r\n").ok()?;
        stream.read(&mut [0; 1024]).ok().filter(|&read| read > 0)
    });
    assert_eq!(alive.count(), limits.connections - 1);
    server.stop();
}

#[test]
fn idle_connections_do_not_block_a_request() {
    let server = start(Limits { head_timeout: PATIENCE, ..LIMITS });
    let idle: Vec<_> = (0..10 * LIMITS.connections).map(|_| connect(server.address())).collect();
    let begin = Instant::now();
    assert!(get(server.address(), "/").starts_with("HTTP/1.1 200"));
    assert!(begin.elapsed() < PATIENCE / 4, "{:?}", begin.elapsed());
    drop(idle);
    server.stop();
}

#[test]
fn idle_connections_are_closed_after_the_timeout() {
    let server = start(LIMITS);
    let idle = connect(server.address());
    let begin = Instant::now();
    assert_eq!(rest(idle), "");
    assert!(begin.elapsed() >= LIMITS.head_timeout && begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
    let mut kept = connect(server.address());
    kept.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let answer = rest(kept);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn a_client_that_does_not_read_its_answers_is_disconnected() {
    let server = start(LIMITS);
    let mut stream = connect(server.address());
    let begin = Instant::now();
    // The answers fill the buffers of both sockets; then the server stops reading requests, and at last closes the connection.
    while stream.write_all(&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".repeat(1000)).is_ok() {
        assert!(begin.elapsed() < PATIENCE, "the connection stays open");
    }
}

#[test]
fn an_endless_header_is_cut_off_after_few_bytes_or_at_the_deadline() {
    let server = start(LIMITS);
    let mut flood = connect(server.address());
    flood.write_all(b"GET / HTTP/1.1\r\nX: ").unwrap();
    let mut sent = 0;
    while flood.write_all(&[b'x'; 4096]).is_ok() {
        sent += 4096;
        assert!(sent < 64 << 20, "the server still reads after {sent} bytes");
    }
    let mut slow = connect(server.address());
    let begin = Instant::now();
    slow.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    while slow.write_all(b"X: x\r\n").is_ok() {
        assert!(begin.elapsed() < PATIENCE, "a header line every 20 ms keeps the connection open");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(get(server.address(), "/").starts_with("HTTP/1.1 200"));
}

#[test]
fn an_unfinished_body_is_rejected_at_the_deadline() {
    let server = start(LIMITS);
    let mut stream = connect(server.address());
    stream.write_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nfive.").unwrap();
    let answer = rest(stream);
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
}

#[test]
fn a_body_over_the_limit_is_rejected_and_a_shorter_one_is_read() {
    let server = start(LIMITS);
    for (length, status) in [(1000, "200"), (1001, "413")] {
        let mut stream = connect(server.address());
        write!(stream, "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n").unwrap();
        stream.write_all(&vec![b'x'; length]).unwrap();
        let answer = rest(stream);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{length}: {answer}");
    }
}

#[test]
fn a_refused_request_is_answered_without_its_body() {
    let server = start(LIMITS);
    let mut stream = connect(server.address());
    stream.write_all(b"POST /refused HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n").unwrap();
    let answer = rest(stream);
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
}

#[test]
fn a_request_that_is_not_answered_in_time_closes_its_connection() {
    let server = start(LIMITS);
    assert_eq!(get(server.address(), "/never"), "");
    assert!(get(server.address(), "/").starts_with("HTTP/1.1 200"));
}

#[test]
fn a_stopped_server_completes_open_requests() {
    let server = start(Limits { request_timeout: PATIENCE, ..LIMITS });
    let address = server.address();
    let mut open = connect(address);
    open.write_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n1").unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let stop = std::thread::spawn(move || server.stop());
    std::thread::sleep(Duration::from_millis(100));
    open.write_all(b"23").unwrap();
    let answer = rest(open);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with('3'), "{answer}");
    stop.join().unwrap();
    assert!(TcpStream::connect(address).is_err());
}

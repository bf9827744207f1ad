//! The metrics listener: `/metrics` over HTTP, for Prometheus.

use std::fmt;
use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use hyper::body::Bytes;
use hyper::http::request::Parts;

use crate::http::{self, Answer, Limits, Plain, Rejection, Service};

/// The content type of the OpenMetrics text format.
pub const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const TEXT: &str = "text/plain; charset=utf-8";

/// Limits of the listener. A scrape is one small request, and Prometheus reconnects for the next one.
const LIMITS: Limits = Limits {
    connections: 64,
    handshakes: 64,
    handshake_timeout: Duration::from_secs(5),
    head_bytes: 16 << 10,
    body_bytes: 0,
    head_timeout: Duration::from_secs(5),
    request_timeout: Duration::from_secs(10),
    keep_alive: false,
};

/// Serves `/metrics` at `address` in a thread of its own until the process exits, and returns the bound address. `render`
/// returns the text of one scrape.
///
/// # Errors
/// The I/O error if the address cannot be bound or the thread not be started.
pub fn serve(address: SocketAddr, render: impl Fn() -> Result<String, fmt::Error> + Send + Sync + 'static) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind(address)?;
    Ok(http::serve("metrics", listener, Plain, Scrape(render), LIMITS)?.address())
}

struct Scrape<R>(R);

impl<R: Fn() -> Result<String, fmt::Error> + Send + Sync + 'static> Service<()> for Scrape<R> {
    type Route = ();

    fn route(&self, _peer: &(), head: &Parts) -> Result<(), Answer> {
        match (head.uri.path(), head.method.as_str()) {
            ("/metrics", "GET" | "HEAD") => Ok(()),
            ("/metrics", _) => Err(Answer::new(405, TEXT, "use GET\n")),
            _ => Err(Answer::new(404, TEXT, "metrics are at /metrics\n")),
        }
    }

    fn answer(&self, (): (), _head: Parts, _body: Bytes) -> impl Future<Output = Answer> + Send {
        let answer = match (self.0)() {
            Ok(text) => Answer::new(200, OPENMETRICS, text),
            Err(error) => Answer::new(500, TEXT, format!("cannot render the metrics: {error}\n")),
        };
        std::future::ready(answer)
    }

    fn reject(&self, rejection: Rejection) -> Answer {
        Answer::new(rejection.status(), TEXT, format!("{rejection}\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::time::Instant;

    fn get(address: SocketAddr, path: &str, headers: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n").unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    }

    fn start() -> SocketAddr {
        serve("127.0.0.1:0".parse().unwrap(), || Ok("up 1\n# EOF\n".to_owned())).unwrap()
    }

    #[test]
    fn only_metrics_are_served() {
        let address = start();
        let scrape = get(address, "/metrics", "");
        assert!(scrape.starts_with("HTTP/1.1 200") && scrape.ends_with("up 1\n# EOF\n") && scrape.contains(OPENMETRICS), "{scrape}");
        assert!(get(address, "/", "").starts_with("HTTP/1.1 404"));
    }

    #[test]
    fn stalled_clients_do_not_block_a_scrape() {
        let address = start();
        let stalled: Vec<_> = (0..4 * LIMITS.connections)
            .map(|i| {
                let mut stream = TcpStream::connect(address).unwrap();
                match i % 3 {
                    0 => {}
                    1 => stream.write_all(b"GET /metrics HTTP/1.1\r\nX: unfinished").unwrap(),
                    _ => stream.write_all(b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nunfinished").unwrap(),
                }
                stream
            })
            .collect();
        let begin = Instant::now();
        assert!(get(address, "/metrics", "").starts_with("HTTP/1.1 200"));
        assert!(begin.elapsed() < LIMITS.head_timeout / 2, "{:?}", begin.elapsed());
        drop(stalled);
    }

    #[test]
    fn a_body_is_not_read() {
        assert!(get(start(), "/metrics", "Content-Length: 100000000\r\n").starts_with("HTTP/1.1 200"));
    }
}

//! Metrics of a process that has no network, served by one that has: `thermocline network`.
//!
//! They talk over a Unix socket. The process with the metrics connects and sends `metrics ADDRESS`; the answer is `serving ADDRESS` or
//! `failed REASON`. For each scrape it is then sent the line `scrape`, and answers with a line that has the size of the text, and the
//! text. A size of 0 means that there is none.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::{metrics, watchdog};

/// How long to wait before the next attempt to connect.
const CONNECT_RETRY: Duration = Duration::from_secs(10);

/// How long the other process may take for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest line, in bytes.
const LINE_MAX: u64 = 512;

/// The longest text of a scrape, in bytes.
const TEXT_MAX: u64 = 64 << 20;

/// Scrapes within this time get the same text, however many clients there are: they cost the process with the metrics nothing.
const KEPT: Duration = Duration::from_secs(1);

/// Has metrics served at `address` by the process that listens at `socket`, from a thread of its own until this process exits.
/// `render` returns the text of one scrape. If the other process ends or is not there yet, it is tried again.
///
/// # Errors
/// The I/O error if the thread cannot be started.
pub fn offer(socket: &Path, address: SocketAddr, render: impl Fn() -> Result<String, fmt::Error> + Send + 'static) -> io::Result<()> {
    let socket = socket.to_owned();
    let run = move || {
        let _member = watchdog::join("metrics", Duration::MAX);
        let mut last = String::new();
        loop {
            let Err(error) = offered(&socket, address, &render);
            let error = error.to_string();
            if error != last {
                log::error!("no metrics on {address} through {}: {error}", socket.display());
                last = error;
            }
            std::thread::sleep(CONNECT_RETRY);
        }
    };
    std::thread::Builder::new().name("metrics".to_owned()).spawn(run).map(drop)
}

/// Answers scrapes until the connection ends.
fn offered(socket: &Path, address: SocketAddr, render: impl Fn() -> Result<String, fmt::Error>) -> io::Result<std::convert::Infallible> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    stream.write_all(format!("metrics {address}\n").as_bytes())?;
    let mut from = BufReader::new(stream.try_clone()?);
    let answer = line(&mut from)?;
    let Some(bound) = answer.strip_prefix("serving ").and_then(|bound| bound.parse::<SocketAddr>().ok()) else {
        let why = answer.strip_prefix("failed ").unwrap_or(&answer);
        return Err(io::Error::other(why.replace(char::is_control, " ")));
    };
    log::info!("metrics on http://{bound}/metrics, through {}", socket.display());
    loop {
        match line(&mut from)?.as_str() {
            "scrape" => {
                let text = render().unwrap_or_default();
                stream.write_all(format!("{}\n{text}", text.len()).as_bytes())?;
            }
            other => return Err(io::Error::other(format!("{other:?} is no request"))),
        }
    }
}

fn line(from: &mut impl BufRead) -> io::Result<String> {
    let mut line = Vec::new();
    from.take(LINE_MAX).read_until(b'\n', &mut line)?;
    if line.pop() != Some(b'\n') {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the other process has ended the connection"));
    }
    String::from_utf8(line).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "a line that is not UTF-8"))
}

/// The process that serves the metrics.
#[derive(Debug, Default)]
pub struct Relay(Arc<Mutex<Metrics>>);

#[derive(Debug, Default)]
struct Metrics {
    /// Where they are served, as it was asked for and as it is.
    served: Option<(SocketAddr, SocketAddr)>,
    from: Option<BufReader<UnixStream>>,
    /// The last text, and when it came.
    last: Option<(Instant, String)>,
}

impl Relay {
    /// Whether metrics are served at another address already, which cannot change while this process runs.
    #[must_use]
    pub fn serves_elsewhere(&self, address: SocketAddr) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).served.is_some_and(|(asked, _)| asked != address)
    }

    /// Serves the metrics of the process at the other end of `from` at `address`, in place of those of an earlier one.
    ///
    /// # Errors
    /// If they cannot be served there. The other process gets the reason as well.
    pub fn accept(&self, address: SocketAddr, from: BufReader<UnixStream>) -> io::Result<()> {
        from.get_ref().set_read_timeout(Some(ANSWER_TIMEOUT))?;
        from.get_ref().set_write_timeout(Some(ANSWER_TIMEOUT))?;
        let mut to = from.get_ref().try_clone()?;
        let mut metrics = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bound = match metrics.served {
            Some((asked, bound)) if asked == address => Ok(bound),
            Some((asked, _)) => Err(io::Error::other(format!("metrics are served at {asked}"))),
            None => {
                let metrics = Arc::clone(&self.0);
                metrics::serve(address, move || metrics.lock().unwrap_or_else(PoisonError::into_inner).text())
            }
        };
        match &bound {
            Ok(bound) => to.write_all(format!("serving {bound}\n").as_bytes())?,
            Err(error) => to.write_all(format!("failed {error}\n").as_bytes())?,
        }
        metrics.served = Some((address, bound?));
        (metrics.from, metrics.last) = (Some(from), None);
        Ok(())
    }
}

impl Metrics {
    /// The text of a scrape.
    fn text(&mut self) -> Result<String, fmt::Error> {
        if let Some((_, text)) = self.last.as_ref().filter(|(at, _)| at.elapsed() < KEPT) {
            return Ok(text.clone());
        }
        let from = self.from.as_mut().ok_or(fmt::Error)?;
        match scrape(from) {
            Ok(text) => {
                self.last = Some((Instant::now(), text.clone()));
                Ok(text)
            }
            Err(error) => {
                log::warn!("the process with the metrics does not answer: {error}");
                // A late answer would be that of the next scrape.
                self.from = None;
                Err(fmt::Error)
            }
        }
    }
}

fn scrape(from: &mut BufReader<UnixStream>) -> io::Result<String> {
    from.get_ref().write_all(b"scrape\n")?;
    let size = line(from)?.parse().ok().filter(|size| (1..=TEXT_MAX).contains(size));
    let size: u64 = size.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no size of a text"))?;
    let mut text = String::new();
    if from.take(size).read_to_string(&mut text)? as u64 != size {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;
    use std::os::unix::net::UnixListener;

    use super::*;

    fn get(address: SocketAddr) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Accepts one process with metrics; returns where they are served.
    fn accept(relay: &Relay, listener: &UnixListener, address: &str) -> io::Result<SocketAddr> {
        let mut from = BufReader::new(listener.accept()?.0);
        assert_eq!(line(&mut from)?, format!("metrics {address}"));
        relay.accept(address.parse().unwrap(), from)?;
        Ok(relay.0.lock().unwrap().served.unwrap().1)
    }

    #[test]
    fn a_process_without_a_network_has_its_metrics_served() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let relay = Relay::default();
        let asked = "127.0.0.1:0";
        offer(&socket, asked.parse().unwrap(), || Ok("up 1\n# EOF\n".to_owned())).unwrap();
        let address = accept(&relay, &listener, asked).unwrap();
        for _ in 0..2 {
            let answer = get(address);
            assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("up 1\n# EOF\n"), "{answer}");
        }
        // It was replaced, by one that fails to render.
        offer(&socket, asked.parse().unwrap(), || Err(fmt::Error)).unwrap();
        assert_eq!(accept(&relay, &listener, asked).unwrap(), address);
        assert!(get(address).starts_with("HTTP/1.1 500"));
    }

    #[test]
    fn an_address_that_is_not_available_is_reported_to_both() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let asked = taken.local_addr().unwrap();
        let offered = std::thread::spawn(move || offered(&socket, asked, || Ok(String::new())).unwrap_err().to_string());
        assert!(accept(&Relay::default(), &listener, &asked.to_string()).is_err());
        let error = offered.join().unwrap();
        assert!(error.contains("in use"), "{error}");
    }
}

//! A store whose connection another process may have.
//!
//! A program with privileges leaves HTTP, TLS and name resolution to a process without them, `thermocline network`. They talk over a
//! Unix socket, one request per connection: three lines (`put SIZE` or `read LIMIT`, the URL of the store, the path in it), and for
//! `put` the contents. The answer is one line, `stored`, `missing`, `failed REASON`, or `found SIZE` and the contents.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Runtime;
use units::Bytes;

use crate::backend::cannot_open;
use crate::error::{Error, FileError, Result};
use crate::object::Store;
use crate::retry::READ_TIMEOUT;

/// The longest line of a request or an answer, in bytes.
const LINE_MAX: u64 = 4 << 10;

/// The largest object that is read, in bytes; the client's own limit may be lower.
const READ_MAX: Bytes = Bytes(64 << 20);

/// The largest file that is put, in bytes: what a trace's spool may hold.
const PUT_MAX: Bytes = Bytes(1 << 40);

/// How long a file may take to be put.
const PUT_TIMEOUT: Duration = Duration::from_mins(10);

/// How long the other process may pause within a request.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Stores that are open at once.
const STORES_MAX: usize = 8;

/// A store that is used by this process itself, or through another one.
#[derive(Debug)]
pub enum Access {
    /// Its connections are this process's.
    Own(Arc<Store>),
    /// Another process has them.
    Through(Through),
}

impl Access {
    /// Opens a store. A store on the network is used through the process that listens at `socket`, if there is one; a directory never
    /// is.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open(url: &str, socket: Option<&Path>) -> Result<Self> {
        match socket.filter(|_| url.starts_with("s3://")) {
            Some(socket) => Through::new(url, socket).map(Self::Through),
            None => Store::open(url).map(|store| Self::Own(Arc::new(store))),
        }
    }

    /// As [`Store::put`].
    ///
    /// # Errors
    /// As [`Store::put`].
    pub fn put(&self, path: &str, file: &Path) -> Result<()> {
        match self {
            Self::Own(store) => store.put(path, file),
            Self::Through(through) => through.put(path, file),
        }
    }

    /// As [`Store::read`]. Blocks, if the store is used through another process.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn read(&self, path: &str, size_max: Bytes) -> Result<Option<Vec<u8>>> {
        match self {
            Self::Own(store) => store.read(path, size_max).await,
            Self::Through(through) => through.read(path, size_max),
        }
    }

    /// As [`Store::block_on`].
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        match self {
            Self::Own(store) => store.block_on(future),
            Self::Through(through) => through.runtime.block_on(future),
        }
    }
}

/// A store that another process has connections to.
#[derive(Debug)]
pub struct Through {
    url: String,
    socket: PathBuf,
    /// Runs what callers await beside the store.
    runtime: Runtime,
}

impl Through {
    fn new(url: &str, socket: &Path) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| cannot_open(url, format!("no asynchronous runtime: {error}")))?;
        Ok(Self { url: url.to_owned(), socket: socket.to_owned(), runtime })
    }

    fn put(&self, path: &str, file: &Path) -> Result<()> {
        let from = File::open(file).map_err(FileError::at(file, "open"))?;
        let size = from.metadata().map_err(FileError::at(file, "read the size of"))?.len();
        let talk = || {
            let stream = self.request(&format!("put {size}"), path, PUT_TIMEOUT)?;
            let sent = io::copy(&mut from.take(size), &mut &stream)?;
            if sent != size {
                return Err(io::Error::other("the file became shorter while it was sent"));
            }
            Answer::read(&mut BufReader::new(stream), 0)
        };
        match self.talk("write", path, talk)? {
            Answer::Stored => Ok(()),
            other => Err(self.error("write", path, format!("the answer is {other:?}"))),
        }
    }

    fn read(&self, path: &str, size_max: Bytes) -> Result<Option<Vec<u8>>> {
        let talk = || {
            let stream = self.request(&format!("read {}", size_max.0), path, READ_TIMEOUT + PAUSE_MAX)?;
            Answer::read(&mut BufReader::new(stream), size_max.0)
        };
        match self.talk("read", path, talk)? {
            Answer::Found(bytes) => Ok(Some(bytes)),
            Answer::Missing => Ok(None),
            other => Err(self.error("read", path, format!("the answer is {other:?}"))),
        }
    }

    /// Connects and sends the lines of a request.
    fn request(&self, head: &str, path: &str, answered_within: Duration) -> io::Result<UnixStream> {
        if self.url.contains('\n') || path.contains('\n') {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a URL or a path has a line break"));
        }
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_write_timeout(Some(PAUSE_MAX))?;
        stream.set_read_timeout(Some(answered_within))?;
        stream.write_all(format!("{head}\n{}\n{path}\n", self.url).as_bytes())?;
        Ok(stream)
    }

    fn talk(&self, operation: &'static str, path: &str, talk: impl FnOnce() -> io::Result<Answer>) -> Result<Answer> {
        match talk() {
            Ok(Answer::Failed(why)) => Err(self.error(operation, path, why)),
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.error(operation, path, format!("through {}: {error}", self.socket.display()))),
        }
    }

    fn error(&self, operation: &'static str, path: &str, cause: String) -> Error {
        Error::Object { url: format!("{}/{path}", self.url.trim_end_matches('/')), operation, cause }
    }
}

/// What the other process answers.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Stored,
    Missing,
    Found(Vec<u8>),
    Failed(String),
}

impl Answer {
    /// Reads an answer with contents of `size_max` bytes at most.
    fn read(from: &mut impl BufRead, size_max: u64) -> io::Result<Self> {
        let line = line(from)?;
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("stored", "") => Ok(Self::Stored),
            ("missing", "") => Ok(Self::Missing),
            // It is shown on terminals.
            ("failed", why) => Ok(Self::Failed(why.replace(char::is_control, " "))),
            ("found", size) => {
                let size = size.parse().ok().filter(|size| *size <= size_max);
                let size: u64 = size.ok_or_else(|| io::Error::other(format!("more bytes than the limit of {size_max}")))?;
                let mut bytes = Vec::new();
                if from.take(size).read_to_end(&mut bytes)? as u64 != size {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                Ok(Self::Found(bytes))
            }
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, format!("{line:?} is no answer"))),
        }
    }

    fn write(&self, mut to: impl Write) -> io::Result<()> {
        match self {
            Self::Stored => to.write_all(b"stored\n"),
            Self::Missing => to.write_all(b"missing\n"),
            Self::Found(bytes) => {
                to.write_all(format!("found {}\n", bytes.len()).as_bytes())?;
                to.write_all(bytes)
            }
            Self::Failed(why) => {
                let mut why = why.replace('\n', " ");
                why.truncate(why.floor_char_boundary(usize::try_from(LINE_MAX / 2).unwrap_or(0)));
                to.write_all(format!("failed {why}\n").as_bytes())
            }
        }
    }
}

/// Reads a line, without its end.
fn line(from: &mut impl BufRead) -> io::Result<String> {
    let mut line = Vec::new();
    from.take(LINE_MAX).read_until(b'\n', &mut line)?;
    if line.pop() != Some(b'\n') {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a line without an end, or a longer one than any"));
    }
    String::from_utf8(line).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "a line that is not UTF-8"))
}

/// The process that has the connections: answers requests of [`Access::Through`].
#[derive(Debug, Default)]
pub struct Carrier {
    stores: Mutex<BTreeMap<String, Arc<Store>>>,
}

impl Carrier {
    /// Answers the request that follows the line `head`, which was read from `from` already.
    ///
    /// # Errors
    /// If the request cannot be read or the answer not be written. What fails at the store is an answer.
    pub fn answer(&self, head: &str, from: &mut BufReader<UnixStream>) -> io::Result<()> {
        let (verb, number) = head.split_once(' ').unwrap_or((head, ""));
        let Ok(number) = number.parse::<u64>() else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{head:?} is no request")));
        };
        let (url, path) = (line(from)?, line(from)?);
        let answer = match verb {
            "put" if number <= PUT_MAX.0 => {
                let mut copy = tempfile::NamedTempFile::new()?;
                if io::copy(&mut from.take(number), &mut copy)? != number {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                self.store(&url).and_then(|store| store.put(&path, copy.path())).map(|()| Answer::Stored)
            }
            "read" => {
                let limit = Bytes(number.min(READ_MAX.0));
                let read = self.store(&url).and_then(|store| store.block_on(store.read(&path, limit)));
                read.map(|found| found.map_or(Answer::Missing, Answer::Found))
            }
            _ => return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{head:?} is no request"))),
        };
        answer.unwrap_or_else(|error| Answer::Failed(error.to_string())).write(from.get_ref())
    }

    /// The store with this URL. All connections share it.
    fn store(&self, url: &str) -> Result<Arc<Store>> {
        let mut stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = stores.get(url) {
            return Ok(Arc::clone(store));
        }
        let store = Arc::new(Store::open(url)?);
        if stores.len() >= STORES_MAX {
            stores.clear();
        }
        stores.insert(url.to_owned(), Arc::clone(&store));
        Ok(store)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// A carrier that answers at a socket in `directory`, as long as the test runs.
    fn carrier(directory: &Path) -> PathBuf {
        let socket = directory.join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        std::thread::spawn(move || {
            let carrier = Carrier::default();
            for stream in listener.incoming() {
                let mut from = BufReader::new(stream.unwrap());
                let head = line(&mut from).unwrap();
                // A client that breaks off ends its own request only.
                let _ = carrier.answer(&head, &mut from);
            }
        });
        socket
    }

    #[test]
    fn another_process_puts_and_reads() {
        let dir = tempfile::tempdir().unwrap();
        let (store, socket, given) = (dir.path().join("store"), carrier(dir.path()), dir.path().join("given"));
        let through = Access::Through(Through::new(store.to_str().unwrap(), &socket).unwrap());
        let read = |path: &str, size_max| through.block_on(through.read(path, Bytes(size_max)));
        assert_eq!(read("a/1", 9).unwrap(), None);
        for bytes in [0, 5, 10 << 20] {
            let content = vec![7; bytes];
            std::fs::write(&given, &content).unwrap();
            through.put("a/1", &given).unwrap();
            assert!(read("a/1", 16 << 20).unwrap() == Some(content), "{bytes}");
        }
        let error = read("a/1", 4).unwrap_err().to_string();
        assert!(error.contains("a/1") && error.contains("limit of 4"), "{error}");
        assert!(read("../x", 4).is_err() && read("a\nb", 4).is_err());
        let missing = through.put("a/2", &dir.path().join("none")).unwrap_err();
        assert!(missing.is_missing_file(), "{missing}");
    }

    #[test]
    fn only_a_store_on_the_network_is_used_through_another_process() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("none");
        assert!(matches!(Access::open(dir.path().to_str().unwrap(), Some(&socket)).unwrap(), Access::Own(_)));
        let bucket = Access::open("s3://bucket", Some(&socket)).unwrap();
        let error = bucket.block_on(bucket.read("a", Bytes(1))).unwrap_err().to_string();
        assert!(error.contains("s3://bucket/a") && error.contains(socket.to_str().unwrap()), "{error}");
    }

    #[test]
    fn an_answer_stays_within_its_limits() {
        for (text, expected) in [
            ("stored\n", Some(Answer::Stored)),
            ("missing\n", Some(Answer::Missing)),
            ("found 2\nab", Some(Answer::Found(b"ab".to_vec()))),
            ("failed x y\n", Some(Answer::Failed("x y".to_owned()))),
            ("failed \x1b[2Jx\n", Some(Answer::Failed(" [2Jx".to_owned()))),
            ("found 3\nab", None),
            ("found 9\nabcdefghi", None),
            ("found -1\n", None),
            ("stored", None),
            ("hello\n", None),
        ] {
            assert_eq!(Answer::read(&mut BufReader::new(text.as_bytes()), 8).ok(), expected, "{text:?}");
        }
        let long = "failed ".to_owned() + &"x".repeat(5_000) + "\n";
        assert!(Answer::read(&mut BufReader::new(long.as_bytes()), 8).is_err());
        let mut written = Vec::new();
        Answer::Failed("é\n".repeat(5_000)).write(&mut written).unwrap();
        assert!(matches!(Answer::read(&mut BufReader::new(&*written), 0), Ok(Answer::Failed(_))));
    }

    #[test]
    fn a_request_that_is_none_ends_its_connection_only() {
        let dir = tempfile::tempdir().unwrap();
        let socket = carrier(dir.path());
        for request in ["hello\n", "put 5\nx\ny\nab", "put 99999999999999\nx\ny\n", "read x\na\nb\n"] {
            let mut stream = UnixStream::connect(&socket).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert_eq!(answer, "", "{request:?}");
        }
    }
}

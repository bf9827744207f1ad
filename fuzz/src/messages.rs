//! What other processes send to the agent.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{LazyLock, Mutex, PoisonError};

use agent::Message;
use agent::socket::answer;
use agent::view::{JobView, Published, View};
use store::access::Access;
use tempfile::TempDir;
use units::Bytes;

/// Contents that an agent accepts of a store: as many as a bundle may have.
const SIZE_MAX: Bytes = Bytes(1 << 20);

/// An agent that watches the job `/a b`.
static AGENT: LazyLock<Published> = LazyLock::new(|| {
    let published = Published::default();
    let job = JobView { job: "/a b".to_owned(), policy: "auto", ..JobView::default() };
    published.set(View { jobs: vec![job], ..View::default() });
    published
});

/// A request on the control socket.
pub(crate) fn control(bytes: &[u8]) -> bool {
    let Some(request) = crate::text(bytes) else { return false };
    let (sender, receiver): (SyncSender<Message>, Receiver<Message>) = sync_channel(1);
    let answer: serde_json::Value = serde_json::from_str(&answer(request, &AGENT, &sender)).unwrap_or_default();
    let is_order = answer["ok"] == true;
    assert!(is_order == receiver.try_recv().is_ok(), "the answer to {request:?} is {answer}");
    answer.is_object() && answer.get("error").is_none()
}

/// The process that has the agent's connections: a thread that answers each request with the next bytes of `answers`.
struct Process {
    socket: PathBuf,
    answers: SyncSender<Vec<u8>>,
    _directory: TempDir,
}

static PROCESS: LazyLock<Option<Mutex<Process>>> = LazyLock::new(|| {
    let directory = tempfile::tempdir().ok()?;
    let socket = directory.path().join("socket");
    let listener = UnixListener::bind(&socket).ok()?;
    let (sender, receiver) = sync_channel::<Vec<u8>>(1);
    std::thread::spawn(move || {
        for (stream, bytes) in listener.incoming().zip(receiver) {
            let Ok(mut stream) = stream else { continue };
            // The agent may have read enough before the end.
            let _ = stream.write_all(&bytes).and_then(|()| stream.shutdown(std::net::Shutdown::Write));
            // With a part of the request unread, the agent would read an error in place of the answer.
            let _ = stream.read_to_end(&mut Vec::new());
        }
    });
    Some(Mutex::new(Process { socket, answers: sender, _directory: directory }))
});

/// The answer of the process that has the agent's connections, to a request for an object.
pub(crate) fn store_answer(bytes: &[u8]) -> bool {
    let Some(process) = &*PROCESS else { return false };
    let process = process.lock().unwrap_or_else(PoisonError::into_inner);
    let Ok(access) = Access::open("s3://bucket", Some(&process.socket)) else { return false };
    if process.answers.send(bytes.to_vec()).is_err() {
        return false;
    }
    match access.block_on(access.read("bundle", SIZE_MAX)) {
        Ok(found) => {
            assert!(found.is_none_or(|found| found.len() as u64 <= SIZE_MAX.0), "more than the limit");
            true
        }
        Err(error) => {
            let error = error.to_string();
            assert!(error.len() < 16 << 10 && !error.contains(char::is_control), "{error}");
            false
        }
    }
}

//! The control socket: `status` and `explain` of a running agent, one JSON line each way.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::view::Published;

/// The name of the socket in the runtime directory.
const NAME: &str = "agent.sock";

/// The longest request, and the longest time one client may take.
const REQUEST_MAX: u64 = 4096;
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long nobody is let in after the kernel could not.
const RETRY_WAIT: Duration = Duration::from_secs(1);

/// Answers in a thread of its own for the life of the process. Only the agent's user can connect.
///
/// # Errors
/// When the socket cannot be made.
pub fn serve(runtime_dir: &Path, view: Published) -> std::io::Result<()> {
    let path = runtime_dir.join(NAME);
    // The caller holds the agent's lock: a socket that stands here is a dead agent's.
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    thread::Builder::new().name("control".to_owned()).spawn(move || {
        for stream in listener.incoming() {
            match stream {
                // One client at a time, and none for long: a stuck one delays others, never the loop.
                Ok(stream) => drop(answer(&stream, &view)),
                // Out of descriptors or memory: trying again at once would keep a core busy.
                Err(_) => thread::sleep(RETRY_WAIT),
            }
        }
    })?;
    Ok(())
}

fn answer(stream: &UnixStream, view: &Published) -> std::io::Result<()> {
    stream.set_read_timeout(Some(CLIENT_TIMEOUT))?;
    stream.set_write_timeout(Some(CLIENT_TIMEOUT))?;
    let mut line = String::new();
    BufReader::new(stream.take(REQUEST_MAX)).read_line(&mut line)?;
    let view = view.get();
    let mut out = stream;
    match line.trim() {
        "explain" => serde_json::to_writer(&mut out, &*view)?,
        _ => serde_json::to_writer(&mut out, &view.brief())?,
    }
    out.write_all(b"\n")
}

/// Why a running agent cannot be asked.
#[derive(Debug, thiserror::Error)]
#[error("no agent answers at {path}: {source}; start one with `thermocline agent`, or look at a journal with `thermocline replay`")]
pub struct NoAgent {
    path: PathBuf,
    source: std::io::Error,
}

/// Asks the agent of a runtime directory; `request` is `status` or `explain`.
///
/// # Errors
/// [`NoAgent`] when none answers, or what it answers is not JSON.
pub fn ask(runtime_dir: &Path, request: &str) -> Result<serde_json::Value, NoAgent> {
    let path = runtime_dir.join(NAME);
    let talk = || {
        let mut stream = UnixStream::connect(&path)?;
        stream.set_read_timeout(Some(CLIENT_TIMEOUT))?;
        writeln!(stream, "{request}")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(serde_json::from_str(&answer)?)
    };
    talk().map_err(|source| NoAgent { path: path.clone(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::View;

    #[test]
    fn an_agent_answers_and_its_absence_is_explained() {
        let dir = tempfile::tempdir().unwrap();
        let nobody = ask(dir.path(), "status").unwrap_err().to_string();
        assert!(nobody.contains("agent.sock") && nobody.contains("thermocline agent"), "{nobody}");
        let view = Published::default();
        view.set(View { kernel: "6.12".to_owned(), ..View::default() });
        serve(dir.path(), view.clone()).unwrap();
        assert_eq!(ask(dir.path(), "status").unwrap()["kernel"], "6.12");
        // A dead agent's socket is no obstacle.
        serve(dir.path(), view).unwrap();
        assert_eq!(ask(dir.path(), "explain").unwrap()["jobs"], serde_json::json!([]));
    }
}

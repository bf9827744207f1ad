//! The `run` operation: a program from start to end, with its output.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::linux::child;
use crate::linux::poll::{interest, poll};

use super::processes::{Processes, Started};
use super::protocol::{DATA_BYTES_MAX, Fields, Run};
use super::seconds;

/// `PIPE_BUF`: a pipe that is ready takes this much without blocking.
const PIPE_CHUNK: usize = 4096;
/// How much of its last words the error about a killed program repeats.
const LAST_WORDS_BYTES: usize = 400;

/// Runs a program to its end, and until every holder of its output has closed it.
///
/// # Errors
/// When it cannot be started, takes longer than allowed, or says more than a reply holds; then it was killed.
pub(super) fn run(processes: &Processes, request: &Run) -> Result<Fields> {
    let timeout = seconds("timeout_s", request.timeout_s)?;
    let deadline = Instant::now() + timeout;
    let (started, ended) = processes.start_piped(request)?;
    let pid = started.pid;
    let mut talk = Talk { started, stdin: request.stdin.as_bytes(), stdout: Vec::new(), stderr: Vec::new() };
    if let Err(error) = talk.until_ended(deadline) {
        // The group may be gone already: then a process that left it holds the output open.
        let _ = child::kill(-pid, libc::SIGKILL);
        let said = last_words(if talk.stderr.is_empty() { &talk.stdout } else { &talk.stderr });
        return Err(error.context(format!("{:?} was killed; its last words were {said:?}", request.argv[0])));
    }
    let exit = ended.recv().context("the reaper is gone")?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Fields::from_iter([
        ("status".to_owned(), exit.status.into()),
        ("signal".to_owned(), exit.signal.into()),
        ("stdout".to_owned(), text(&talk.stdout).into()),
        ("stderr".to_owned(), text(&talk.stderr).into()),
        ("cpu_s".to_owned(), exit.cpu.as_secs_f64().into()),
    ]))
}

fn last_words(output: &[u8]) -> String {
    String::from_utf8_lossy(&output[output.len().saturating_sub(LAST_WORDS_BYTES)..]).into_owned()
}

/// A conversation with a child over its pipes; a pipe that has ended is dropped.
struct Talk<'a> {
    started: Started,
    /// What is still to be said to it.
    stdin: &'a [u8],
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Talk<'_> {
    fn until_ended(&mut self, deadline: Instant) -> Result<()> {
        let mut ended = false;
        while !ended || self.started.stdout.is_some() || self.started.stderr.is_some() {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else {
                if ended {
                    bail!("timed out: the program ended in time, but a process it left behind holds its output open");
                }
                bail!("timed out: it was still running after \"timeout_s\"");
            };
            // A descriptor below zero is ignored by poll.
            let mut ready = [-1; 4].map(|fd| libc::pollfd { fd, events: 0, revents: 0 });
            if !ended {
                ready[0] = interest(self.started.ended.as_fd(), libc::POLLIN);
            }
            if let Some(pipe) = &self.started.stdin {
                ready[1] = interest(pipe.as_fd(), libc::POLLOUT);
            }
            if let Some(pipe) = &self.started.stdout {
                ready[2] = interest(pipe.as_fd(), libc::POLLIN);
            }
            if let Some(pipe) = &self.started.stderr {
                ready[3] = interest(pipe.as_fd(), libc::POLLIN);
            }
            poll(&mut ready, Some(left)).context("cannot wait for the program")?;
            ended |= ready[0].revents != 0;
            if ready[1].revents != 0 {
                say(&mut self.started.stdin, &mut self.stdin).context("cannot write its standard input")?;
            }
            if ready[2].revents != 0 {
                hear(&mut self.started.stdout, &mut self.stdout).context("cannot read its standard output")?;
            }
            if ready[3].revents != 0 {
                hear(&mut self.started.stderr, &mut self.stderr).context("cannot read its standard error")?;
            }
        }
        Ok(())
    }
}

/// Writes what fits without blocking; closes the pipe when all is said or nobody listens.
fn say(pipe: &mut Option<impl Write>, text: &mut &[u8]) -> io::Result<()> {
    let Some(writer) = pipe else { return Ok(()) };
    match writer.write(&text[..text.len().min(PIPE_CHUNK)]) {
        Ok(written) => *text = &text[written..],
        Err(error) if error.kind() == ErrorKind::BrokenPipe => *text = &[],
        Err(error) => return Err(error),
    }
    if text.is_empty() {
        *pipe = None;
    }
    Ok(())
}

/// Reads what is there; closes the pipe at its end.
fn hear(pipe: &mut Option<impl Read>, heard: &mut Vec<u8>) -> Result<()> {
    let Some(reader) = pipe else { return Ok(()) };
    let mut chunk = [0; 1 << 16];
    let got = reader.read(&mut chunk)?;
    heard.extend_from_slice(&chunk[..got]);
    if got == 0 {
        *pipe = None;
    }
    if heard.len() > DATA_BYTES_MAX {
        bail!("more than {DATA_BYTES_MAX} bytes came; let it write to a file");
    }
    Ok(())
}

//! The `run` operation: runs a program to completion and returns its output.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::linux::child;
use crate::linux::poll::{interest, poll};

use super::processes::{Processes, Started};
use super::protocol::{DATA_BYTES_MAX, Fields, Run};
use super::seconds;

/// `PIPE_BUF`: a writable pipe accepts this many bytes without blocking.
const PIPE_CHUNK: usize = 4096;
/// Bytes of a killed program's output that the error message quotes.
const QUOTED_BYTES: usize = 400;

/// Runs a program until it has exited and every holder of its output has closed it.
///
/// # Errors It cannot be started, exceeds its time limit, or prints more than a reply can hold; in the latter cases it
/// was killed.
pub(super) fn run(processes: &Processes, request: &Run) -> Result<Fields> {
    let timeout = seconds("timeout_s", request.timeout_s)?;
    let deadline = Instant::now() + timeout;
    let (started, ended) = processes.start_piped(request)?;
    let pid = started.pid;
    let mut pipes = Pipes { started, stdin: request.stdin.as_bytes(), stdout: Vec::new(), stderr: Vec::new() };
    if let Err(error) = pipes.until_ended(deadline) {
        // The group may have exited already: then a process that left the group holds the output open.
        let _ = child::kill(-pid, libc::SIGKILL);
        let output = tail(if pipes.stderr.is_empty() { &pipes.stdout } else { &pipes.stderr });
        return Err(error.context(format!("{:?} was killed; the end of its output was {output:?}", request.argv[0])));
    }
    let exit = ended.recv().context("the reaper is gone")?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Fields::from_iter([
        ("status".to_owned(), exit.status.into()),
        ("signal".to_owned(), exit.signal.into()),
        ("stdout".to_owned(), text(&pipes.stdout).into()),
        ("stderr".to_owned(), text(&pipes.stderr).into()),
        ("cpu_s".to_owned(), exit.cpu.as_secs_f64().into()),
    ]))
}

fn tail(output: &[u8]) -> String {
    String::from_utf8_lossy(&output[output.len().saturating_sub(QUOTED_BYTES)..]).into_owned()
}

/// A child and the data of its pipes; a closed pipe is dropped.
struct Pipes<'a> {
    started: Started,
    /// Input not yet written.
    stdin: &'a [u8],
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Pipes<'_> {
    fn until_ended(&mut self, deadline: Instant) -> Result<()> {
        let mut ended = false;
        while !ended || self.started.stdout.is_some() || self.started.stderr.is_some() {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else {
                if ended {
                    bail!("timed out: the program exited in time, but a process that it started holds its output open");
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
                feed(&mut self.started.stdin, &mut self.stdin).context("cannot write its standard input")?;
            }
            if ready[2].revents != 0 {
                drain(&mut self.started.stdout, &mut self.stdout).context("cannot read its standard output")?;
            }
            if ready[3].revents != 0 {
                drain(&mut self.started.stderr, &mut self.stderr).context("cannot read its standard error")?;
            }
        }
        Ok(())
    }
}

/// Writes what fits without blocking; closes the pipe when everything is written or the reader has closed it.
fn feed(pipe: &mut Option<impl Write>, text: &mut &[u8]) -> io::Result<()> {
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

/// Reads available data; closes the pipe at its end.
fn drain(pipe: &mut Option<impl Read>, data: &mut Vec<u8>) -> Result<()> {
    let Some(reader) = pipe else { return Ok(()) };
    let mut chunk = [0; 1 << 16];
    let got = reader.read(&mut chunk)?;
    data.extend_from_slice(&chunk[..got]);
    if got == 0 {
        *pipe = None;
    }
    if data.len() > DATA_BYTES_MAX {
        bail!("it printed more than {DATA_BYTES_MAX} bytes; redirect its output to a file");
    }
    Ok(())
}

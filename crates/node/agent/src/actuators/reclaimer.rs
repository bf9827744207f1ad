//! The child process that asks `memory.reclaim`. In a hot cgroup the kernel may search for more than a minute, and only killing the
//! process that made the request stops that. One child serves all requests: to start one for each would cost more than most of them.
//!
//! They talk over a pair of sockets, a line each: the child reads `BYTES SWAPPINESS ID CGROUP`, and answers with the microseconds of CPU
//! that it has used so far. Names of cgroups have no newlines: the kernel refuses them (`cgroup_mkdir`, `kernel/cgroup/cgroup.c`).

use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kernel::{Roots, process};
use units::Bytes;

/// How long one request may take before the child is killed.
const REQUEST_MAX: Duration = Duration::from_secs(2);

/// The name of the binary's hidden command that the child runs.
pub const CHILD_COMMAND: &str = "reclaim-child";

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The cgroup, relative to the cgroup root.
    pub cgroup: &'a str,
    /// The kernel's id of the cgroup. Nothing is asked of another one that was made with the same path since: what was found idle
    /// was not found in it.
    pub id: u64,
    /// How much to reclaim.
    pub amount: Bytes,
    /// 0: only page cache; 200: anonymous memory first.
    pub swappiness: u8,
}

/// Carries out a request, in place of the child.
pub type Ask = Box<dyn FnMut(Request<'_>) -> io::Result<()> + Send>;

/// The child process, started at the first request and killed when this is dropped.
pub struct Reclaimer {
    command: fn() -> io::Result<Command>,
    request_max: Duration,
    running: Option<Running>,
    /// What is asked instead of a child.
    instead: Option<Ask>,
}

impl std::fmt::Debug for Reclaimer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reclaimer").field("running", &self.running).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Running {
    child: Child,
    answers: BufReader<UnixStream>,
    /// CPU time by its last answer.
    cpu: Duration,
}

impl Default for Reclaimer {
    fn default() -> Self {
        Self { command: own_child, request_max: REQUEST_MAX, running: None, instead: None }
    }
}

fn own_child() -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(CHILD_COMMAND).arg(std::process::id().to_string());
    Ok(command)
}

impl Reclaimer {
    /// A reclaimer without a child: `ask` carries out its requests.
    #[must_use]
    pub fn by(ask: Ask) -> Self {
        Self { instead: Some(ask), ..Self::default() }
    }

    /// Has the kernel reclaim. The cgroup's counters show how much it was: the kernel may reclaim more or less. A request
    /// that takes too long is stopped.
    ///
    /// # Errors
    /// If the child cannot be started, or ends without an answer.
    pub fn ask(&mut self, request: Request<'_>) -> io::Result<()> {
        if let Some(ask) = &mut self.instead {
            return ask(request);
        }
        let running = match &mut self.running {
            Some(running) => running,
            None => self.running.insert(Running::start((self.command)()?, self.request_max)?),
        };
        match running.ask(request) {
            Ok(cpu) => running.cpu = cpu,
            Err(error) => {
                // Its CPU time counts as that of a child that was waited for.
                self.running = None;
                if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// CPU time of the child that is running.
    #[must_use]
    pub fn cpu_time(&self) -> Duration {
        self.running.as_ref().map_or(Duration::ZERO, |running| running.cpu)
    }
}

impl Running {
    fn start(mut command: Command, request_max: Duration) -> io::Result<Self> {
        let (own, childs) = UnixStream::pair()?;
        own.set_read_timeout(Some(request_max))?;
        own.set_write_timeout(Some(request_max))?;
        let child = command.stdin(Stdio::from(OwnedFd::from(childs))).stdout(Stdio::null()).spawn()?;
        Ok(Self { child, answers: BufReader::new(own), cpu: Duration::ZERO })
    }

    fn ask(&mut self, request: Request<'_>) -> io::Result<Duration> {
        let mut answer = String::new();
        self.answers.get_ref().write_all(format!("{request}\n").as_bytes())?;
        self.answers.read_line(&mut answer)?;
        let cpu = answer.trim_end().parse().map(Duration::from_micros);
        cpu.map_err(|_| io::Error::new(io::ErrorKind::UnexpectedEof, format!("the process that asks for reclaim answered {answer:?}")))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have exited already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl std::fmt::Display for Request<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {} {}", self.amount.0, self.swappiness, self.id, self.cgroup)
    }
}

impl<'a> Request<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.splitn(4, ' ');
        let amount = Bytes(words.next()?.parse().ok()?);
        let swappiness = words.next()?.parse().ok()?;
        let id = words.next()?.parse().ok()?;
        Some(Self { cgroup: words.next()?, id, amount, swappiness })
    }
}

/// The child: answers requests on its standard input until `parent`, the only process that would kill it in time, ends.
///
/// # Errors
/// If the requests cannot be read or answered.
pub fn child(roots: &Roots, parent: u32) -> kernel::Result<()> {
    if !process::end_with(parent)? {
        return Ok(());
    }
    let failed = |source| kernel::Error::Io { path: "standard input".into(), op: "answer requests on", source };
    let stdin = io::stdin();
    let mut answers = UnixStream::from(stdin.as_fd().try_clone_to_owned().map_err(failed)?);
    for line in stdin.lines() {
        let line = line.map_err(failed)?;
        let Some(request) = Request::parse(&line) else { return Err(failed(io::ErrorKind::InvalidData.into())) };
        let outcome = super::lru::reclaim(roots, request.cgroup, request.id, request.amount, request.swappiness);
        // The cgroup may have ended: nothing is left to reclaim, and the agent will notice.
        if let Err(error) = outcome
            && !error.is_gone()
        {
            eprintln!("{error}");
        }
        let cpu = process::own_cpu_time()?.as_micros();
        answers.write_all(format!("{cpu}\n").as_bytes()).map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: Request<'_> = Request { cgroup: "/a b", id: 7, amount: Bytes(4096), swappiness: 200 };

    fn reclaimer(command: fn() -> io::Result<Command>, request_max: Duration) -> Reclaimer {
        Reclaimer { command, request_max, running: None, instead: None }
    }

    fn script(text: &str) -> io::Result<Command> {
        let mut command = Command::new("sh");
        command.arg("-c").arg(text);
        Ok(command)
    }

    #[test]
    fn requests_are_read_as_they_were_written() {
        assert_eq!(REQUEST.to_string(), "4096 200 7 /a b");
        assert_eq!(Request::parse(&REQUEST.to_string()), Some(REQUEST));
        for bad in ["", "1", "1 2", "1 2 /a", "x 2 7 /a", "1 300 7 /a", "1 2 x /a"] {
            assert_eq!(Request::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn one_child_serves_all_requests() {
        let mut reclaimer = reclaimer(|| script("n=0; while read line; do n=$((n+5)); echo $n >&0; done"), Duration::from_secs(60));
        for cpu_us in [5, 10, 15] {
            reclaimer.ask(REQUEST).unwrap();
            assert_eq!(reclaimer.cpu_time(), Duration::from_micros(cpu_us));
        }
    }

    #[test]
    fn a_request_that_takes_too_long_is_stopped_and_the_next_one_gets_a_new_child() {
        let mut reclaimer = reclaimer(|| script("read line; exec sleep 600"), Duration::from_millis(50));
        for _ in 0..2 {
            reclaimer.ask(REQUEST).unwrap();
            assert!(reclaimer.running.is_none());
        }
    }

    #[test]
    fn a_child_that_ends_without_an_answer_is_an_error() {
        let mut reclaimer = reclaimer(|| script("read line; echo nonsense >&0"), Duration::from_secs(60));
        assert!(reclaimer.ask(REQUEST).unwrap_err().to_string().contains("nonsense"));
        assert!(reclaimer.running.is_none());
    }
}

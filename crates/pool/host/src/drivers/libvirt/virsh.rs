//! Commands to libvirt: one `virsh` process each.
//!
//! A library would require libvirt's headers wherever this program is built, and its wire protocol is not a stable
//! interface. The commands and exit statuses of `virsh` are stable, it is installed wherever libvirt is, it reaches
//! whatever its URI names, and a process that hangs can be killed without harm.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use serde_json::Value;
use units::Bytes;

use crate::driver::{self, GuestMemory};
use crate::drivers::sampling::is_recent;

/// How long libvirt may take to answer. When it first starts a hypervisor it probes its capabilities for about ten
/// seconds.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);
/// Most bytes of output that are read.
const OUTPUT_MAX: u64 = 4 << 20;

/// A command that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("libvirt refuses {command}: {message}")]
pub(super) struct Error {
    /// The command.
    pub(super) command: String,
    /// libvirt's or QEMU's message.
    pub(super) message: String,
}

impl Error {
    /// Whether there is no domain of that name.
    pub(super) fn is_unknown_domain(&self) -> bool {
        self.message.contains("failed to get domain")
    }
}

impl From<Error> for driver::Error {
    fn from(error: Error) -> Self {
        Self::Hypervisor(Box::new(error))
    }
}

/// The `virsh` program and the URI it connects to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Virsh {
    pub(super) program: PathBuf,
    pub(super) uri: String,
}

impl Virsh {
    /// Runs a command and returns its output.
    ///
    /// # Errors
    /// libvirt's message, or that there was no answer.
    pub(super) fn run(&self, words: &[&str]) -> Result<String, Error> {
        self.run_with(words, None)
    }

    /// As [`Virsh::run`], with a file as standard input.
    pub(super) fn run_with(&self, words: &[&str], input: Option<File>) -> Result<String, Error> {
        let failed = |message: String| Error { command: words.first().copied().unwrap_or_default().to_owned(), message };
        let (status, output, errors) =
            self.spawn(words, input).map_err(|error| failed(format!("{}: {error}; install libvirt", self.program.display())))?;
        match status {
            Some(status) if status.success() => Ok(output),
            Some(_) => Err(failed(errors.trim().trim_start_matches("error: ").to_owned())),
            None => {
                let seconds = REPLY_TIMEOUT.as_secs();
                Err(failed(format!("no answer within {seconds} s; check that libvirtd runs at {}", self.uri)))
            }
        }
    }

    /// Runs a command; its status (`None` after a timeout), output and errors.
    fn spawn(&self, words: &[&str], input: Option<File>) -> std::io::Result<(Option<ExitStatus>, String, String)> {
        // Files instead of pipes: a process with much output does not block while this function waits for its exit.
        let (output, errors) = (tempfile::tempfile()?, tempfile::tempfile()?);
        let argv = [OsString::from("-q"), "-c".into(), self.uri.as_str().into()];
        let child = Command::new(&self.program)
            .args(argv)
            .args(words)
            .env("LC_ALL", "C")
            .stdin(input.map_or_else(Stdio::null, Stdio::from))
            .stdout(output.try_clone()?)
            .stderr(errors.try_clone()?)
            .spawn()?;
        let status = kernel::process::wait_within(child, REPLY_TIMEOUT)?;
        Ok((status, read(output)?, read(errors)?))
    }

    /// Sends a command to QEMU's monitor. libvirt has no other interface that passes files.
    pub(super) fn monitor(&self, domain: &str, command: &Value, file: Option<File>) -> Result<(), Error> {
        let command = command.to_string();
        let pass: &[&str] = if file.is_some() { &["--pass-fds", "0"] } else { &[] };
        let words = [&["qemu-monitor-command", domain], pass, &[command.as_str()]].concat();
        let reply = self.run_with(&words, file)?;
        refusal(&reply).map_or(Ok(()), |message| Err(Error { command: "qemu-monitor-command".to_owned(), message }))
    }
}

/// Reads a file from its start.
fn read(mut file: File) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.take(OUTPUT_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Why QEMU refused a command; `None` if it did not.
fn refusal(reply: &str) -> Option<String> {
    let reply: Value = match serde_json::from_str(reply) {
        Ok(reply) => reply,
        Err(error) => return Some(format!("the reply is not from QEMU's monitor: {error}")),
    };
    match reply.get("error") {
        Some(error) => Some(error.get("desc").and_then(Value::as_str).unwrap_or("no reason given").to_owned()),
        None => reply.get("return").is_none().then(|| "the reply is not from QEMU's monitor".to_owned()),
    }
}

/// Parses the output of `virsh dommemstat`, in KiB; `None` if it is too old or incomplete.
pub(super) fn guest_memory(text: &str, now: u64) -> Option<GuestMemory> {
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse::<u64>().ok());
    if !is_recent(value("last_update")?, now) {
        return None;
    }
    // libvirt's `available` is what the guest's kernel manages; its `usable` is MemAvailable.
    let bytes = |name| value(name)?.checked_mul(1024).map(Bytes);
    Some(GuestMemory { total_bytes: bytes("available")?, available_bytes: bytes("usable")? })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const STATS: &str = include_str!("../../../testdata/dommemstat");

    fn virsh(directory: &Path, script: &str) -> Virsh {
        let program = crate::testing::script(directory, "virsh", script);
        Virsh { program, uri: "test:///default".to_owned() }
    }

    #[test]
    fn output_and_errors_are_returned() {
        let directory = tempfile::tempdir().unwrap();
        let output = virsh(directory.path(), "echo \"$@\" $LC_ALL").run(&["domstate", "a"]).unwrap();
        assert_eq!(output, "-q -c test:///default domstate a C\n");
        let refused = virsh(directory.path(), "echo 'error: failed to get domain' >&2; exit 1").run(&["dumpxml", "a"]).unwrap_err();
        assert_eq!(refused.to_string(), "libvirt refuses dumpxml: failed to get domain");
        assert!(refused.is_unknown_domain());
        let missing = Virsh { program: "/nowhere/virsh".into(), uri: String::new() }.run(&["list"]).unwrap_err();
        assert!(missing.to_string().contains("install libvirt") && !missing.is_unknown_domain(), "{missing}");
    }

    #[test]
    fn a_file_is_passed_with_a_monitor_command() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        std::fs::write(&path, "held").unwrap();
        let script =
            "shift 3; [ \"$*\" = 'qemu-monitor-command a --pass-fds 0 {\"execute\":\"getfd\"}' ] && [ \"$(cat)\" = held ] || exit 1
            echo '{\"return\":{},\"id\":\"libvirt-7\"}'";
        let command = serde_json::json!({ "execute": "getfd" });
        virsh(directory.path(), script).monitor("a", &command, Some(File::open(&path).unwrap())).unwrap();
        let check = |reply: &str, why: &str| {
            let error = virsh(directory.path(), &format!("echo '{reply}'")).monitor("a", &command, None).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        };
        check("{\"id\":\"libvirt-7\",\"error\":{\"class\":\"GenericError\",\"desc\":\"no fd\"}}", "no fd");
        check("{}", "not from QEMU's monitor");
        check("hello", "not from QEMU's monitor");
    }

    #[test]
    fn old_balloon_statistics_are_ignored() {
        let reported_at: u64 = STATS.lines().find_map(|line| line.strip_prefix("last_update ")).unwrap().parse().unwrap();
        let found = guest_memory(STATS, reported_at + 2).unwrap();
        assert!(found.available_bytes > Bytes::ZERO && found.available_bytes < found.total_bytes, "{found:?}");
        assert_eq!(guest_memory(STATS, reported_at + 31), None);
        // Before the guest has reported.
        assert_eq!(guest_memory("actual 524288\nlast_update 0\nrss 38512\n", 1000), None);
        assert_eq!(guest_memory("actual 524288\nlast_update 1000\nrss 38512\n", 1000), None);
        assert_eq!(guest_memory("", 1000), None);
    }
}

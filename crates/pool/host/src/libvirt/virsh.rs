//! Talking to libvirt: `virsh`, a process for each thing that is said.
//!
//! A library would need libvirt's headers wherever this is built, and its protocol on the wire is no interface that it promises to
//! keep. The words and exit statuses of `virsh` are one, it is there wherever libvirt is, it goes over whatever way its URI names,
//! and one that hangs is ended without harm.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::driver::{Error, Inside};

/// How long libvirt may take to answer. Its first start of a hypervisor takes ten seconds for a look at what that can do.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How much of what is said is read.
const SAID_MAX: u64 = 4 << 20;

/// One way to a libvirt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Virsh {
    pub(super) program: PathBuf,
    pub(super) uri: String,
}

impl Virsh {
    /// Says something, and returns what comes back.
    ///
    /// # Errors
    /// libvirt's own words, or that there are none.
    pub(super) fn ask(&self, words: &[&str]) -> Result<String, Error> {
        self.ask_with(words, None)
    }

    /// As [`Virsh::ask`], with a file as the standard input.
    pub(super) fn ask_with(&self, words: &[&str], input: Option<File>) -> Result<String, Error> {
        let failed = |said: String| Error::Libvirt { asked: words.first().copied().unwrap_or_default().to_owned(), said };
        let run = || -> std::io::Result<(Option<ExitStatus>, String, String)> {
            // Files and no pipes: whoever says much is not kept waiting by us, who wait for the end.
            let (out, errors) = (tempfile::tempfile()?, tempfile::tempfile()?);
            let argv = [OsString::from("-q"), "-c".into(), self.uri.as_str().into()];
            let mut child = Command::new(&self.program)
                .args(argv)
                .args(words)
                .env("LC_ALL", "C")
                .stdin(input.map_or_else(Stdio::null, Stdio::from))
                .stdout(out.try_clone()?)
                .stderr(errors.try_clone()?)
                .spawn()?;
            let deadline = Instant::now() + ANSWER_WITHIN;
            let status = loop {
                match child.try_wait()? {
                    Some(status) => break Some(status),
                    None if Instant::now() < deadline => std::thread::sleep(LOOK_EVERY),
                    None => {
                        child.kill()?;
                        child.wait()?;
                        break None;
                    }
                }
            };
            Ok((status, all(out)?, all(errors)?))
        };
        let (status, out, errors) = run().map_err(|error| failed(format!("{}: {error}; install libvirt", self.program.display())))?;
        match status {
            Some(status) if status.success() => Ok(out),
            Some(_) => Err(failed(errors.trim().trim_start_matches("error: ").to_owned())),
            None => Err(failed(format!("no answer within {} s; does libvirtd run at {}?", ANSWER_WITHIN.as_secs(), self.uri))),
        }
    }

    /// Gives QEMU itself a command: handing over files has no other way through libvirt.
    pub(super) fn monitor(&self, domain: &str, command: &Value, file: Option<File>) -> Result<(), Error> {
        let command = command.to_string();
        let pass: &[&str] = if file.is_some() { &["--pass-fds", "0"] } else { &[] };
        let words = [&["qemu-monitor-command", domain], pass, &[command.as_str()]].concat();
        let said = self.ask_with(&words, file)?;
        refused(&said).map_or(Ok(()), |said| Err(Error::Libvirt { asked: "qemu-monitor-command".to_owned(), said }))
    }
}

/// All of a file.
fn all(mut file: File) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.take(SAID_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Why QEMU did not follow a command, by its answer.
fn refused(answer: &str) -> Option<String> {
    let told: Value = match serde_json::from_str(answer) {
        Ok(told) => told,
        Err(error) => return Some(format!("what came is no answer of QEMU's: {error}")),
    };
    match told.get("error") {
        Some(error) => Some(error.get("desc").and_then(Value::as_str).unwrap_or("it gives no reason").to_owned()),
        None => told.get("return").is_none().then(|| "what came is no answer of QEMU's".to_owned()),
    }
}

/// Whether libvirt says that there is no such domain.
pub(super) fn is_unknown(error: &Error) -> bool {
    matches!(error, Error::Libvirt { said, .. } if said.contains("failed to get domain"))
}

/// Reads the output of `virsh dommemstat`: the balloon driver's word, in KiB, if it is no older than `old` seconds.
pub(super) fn inside(text: &str, now: u64, old: u64) -> Option<Inside> {
    let figure = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse::<u64>().ok());
    let said_at = figure("last_update")?;
    if said_at == 0 || now.saturating_sub(said_at) > old {
        return None;
    }
    // libvirt's `available` is what the guest's kernel manages, `usable` what it could give away.
    let bytes = |name| figure(name)?.checked_mul(1024);
    Some(Inside { total_bytes: bytes("available")?, available_bytes: bytes("usable")? })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const STATS: &str = include_str!("../../testdata/dommemstat");

    fn virsh(directory: &Path, script: &str) -> Virsh {
        use std::os::unix::fs::PermissionsExt;
        let program = directory.join("virsh");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        Virsh { program, uri: "test:///default".to_owned() }
    }

    #[test]
    fn libvirts_words_come_through() {
        let directory = tempfile::tempdir().unwrap();
        let said = virsh(directory.path(), "echo \"$@\" $LC_ALL").ask(&["domstate", "a"]).unwrap();
        assert_eq!(said, "-q -c test:///default domstate a C\n");
        let refused = virsh(directory.path(), "echo 'error: failed to get domain' >&2; exit 1").ask(&["dumpxml", "a"]).unwrap_err();
        assert_eq!(refused.to_string(), "libvirt refuses dumpxml: failed to get domain");
        assert!(is_unknown(&refused));
        let nobody = Virsh { program: "/nowhere/virsh".into(), uri: String::new() }.ask(&["list"]).unwrap_err();
        assert!(nobody.to_string().contains("install libvirt") && !is_unknown(&nobody), "{nobody}");
    }

    #[test]
    fn a_file_goes_along_with_a_command() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        std::fs::write(&path, "held").unwrap();
        let script =
            "shift 3; [ \"$*\" = 'qemu-monitor-command a --pass-fds 0 {\"execute\":\"getfd\"}' ] && [ \"$(cat)\" = held ] || exit 1
            echo '{\"return\":{},\"id\":\"libvirt-7\"}'";
        let command = serde_json::json!({ "execute": "getfd" });
        virsh(directory.path(), script).monitor("a", &command, Some(File::open(&path).unwrap())).unwrap();
        let check = |answer: &str, why: &str| {
            let told = virsh(directory.path(), &format!("echo '{answer}'")).monitor("a", &command, None).unwrap_err().to_string();
            assert!(told.contains(why), "{told}");
        };
        check("{\"id\":\"libvirt-7\",\"error\":{\"class\":\"GenericError\",\"desc\":\"no fd\"}}", "no fd");
        check("{}", "no answer of QEMU");
        check("hello", "no answer of QEMU");
    }

    #[test]
    fn a_balloon_is_believed_while_it_speaks() {
        let said_at: u64 = STATS.lines().find_map(|line| line.strip_prefix("last_update ")).unwrap().parse().unwrap();
        let found = inside(STATS, said_at + 2, 30).unwrap();
        assert!(found.available_bytes > 0 && found.available_bytes < found.total_bytes, "{found:?}");
        assert_eq!(inside(STATS, said_at + 31, 30), None);
        // Before any guest has spoken.
        assert_eq!(inside("actual 524288\nlast_update 0\nrss 38512\n", 1000, 30), None);
        assert_eq!(inside("actual 524288\nlast_update 1000\nrss 38512\n", 1000, 30), None);
        assert_eq!(inside("", 1000, 30), None);
    }
}

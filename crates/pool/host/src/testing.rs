//! What several tests need.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Makes an executable shell script.
///
/// A child writes it. The kernel executes no file that is open for writing (`ETXTBSY`), and a process that another test starts at
/// that moment has a copy of each descriptor of this one.
pub(crate) fn script(directory: &Path, name: &str, text: &str) -> PathBuf {
    let path = directory.join(name);
    let mut shell = Command::new("sh");
    shell.args(["-c", "cat > \"$0\" && chmod 755 \"$0\""]).arg(&path).stdin(Stdio::piped());
    let mut child = shell.spawn().unwrap();
    child.stdin.take().unwrap().write_all(format!("#!/bin/sh\n{text}\n").as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    path
}

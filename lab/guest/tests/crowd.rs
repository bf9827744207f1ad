//! A small crowd, with plain directories instead of cgroups.
#![allow(clippy::unwrap_used, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

#[test]
fn each_process_enters_its_cgroup_and_all_exit_together() {
    let directory = tempfile::tempdir().unwrap();
    let mut crowd = Command::new(env!("CARGO_BIN_EXE_labguest"))
        .args(["crowd", "--count", "5", "--kib", "64", "--hot-kib", "8", "--cgroup"])
        .arg(directory.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(crowd.stdout.take().unwrap());
    let mut text = String::new();
    output.read_line(&mut text).unwrap();
    assert_eq!(text, "ready\n");
    for number in 0..5 {
        // "0" stands for the writing process.
        assert_eq!(std::fs::read_to_string(directory.path().join(format!("{number:04}/cgroup.procs"))).unwrap(), "0");
    }
    let pid = crowd.id().to_string();
    assert!(Command::new("kill").arg(pid).status().unwrap().success());
    assert!(crowd.wait().unwrap().success());
    // The children hold the write end of the pipe, which ends when the last of them has exited.
    assert_eq!(output.read_line(&mut text).unwrap(), 0);
}

#[test]
fn invalid_arguments_are_rejected_before_the_start() {
    let check = |arguments: &[&str], part: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_labguest")).arg("crowd").args(arguments).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(part), "{error}");
    };
    check(&["--cgroup", "/nowhere", "--count", "0", "--kib", "1"], "--count is 0");
    check(&["--cgroup", "/nowhere", "--count", "1", "--kib", "1", "--hot-kib", "2"], "--hot-kib 2");
    check(&["--cgroup", "/proc/nowhere", "--count", "1", "--kib", "1"], "/proc/nowhere/0000");
}

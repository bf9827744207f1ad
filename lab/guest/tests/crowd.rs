//! A crowd in small, with plain directories in place of cgroups.
#![allow(clippy::unwrap_used, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

#[test]
fn each_process_enters_a_cgroup_of_its_own_and_all_end_together() {
    let directory = tempfile::tempdir().unwrap();
    let mut crowd = Command::new(env!("CARGO_BIN_EXE_labguest"))
        .args(["crowd", "--count", "5", "--kib", "64", "--hot-kib", "8", "--cgroup"])
        .arg(directory.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(crowd.stdout.take().unwrap());
    let mut said = String::new();
    output.read_line(&mut said).unwrap();
    assert_eq!(said, "ready\n");
    for number in 0..5 {
        // "0" stands for the writer itself.
        assert_eq!(std::fs::read_to_string(directory.path().join(format!("{number:04}/cgroup.procs"))).unwrap(), "0");
    }
    let pid = crowd.id().to_string();
    assert!(Command::new("kill").arg(pid).status().unwrap().success());
    assert!(crowd.wait().unwrap().success());
    // The children hold the other end of the pipe: it ends when the last of them has.
    assert_eq!(output.read_line(&mut said).unwrap(), 0);
}

#[test]
fn what_is_wrong_is_told_before_anything_starts() {
    let check = |arguments: &[&str], part: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_labguest")).arg("crowd").args(arguments).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(part), "{said}");
    };
    check(&["--cgroup", "/nowhere", "--count", "0", "--kib", "1"], "--count is 0");
    check(&["--cgroup", "/nowhere", "--count", "1", "--kib", "1", "--hot-kib", "2"], "--hot-kib 2");
    check(&["--cgroup", "/proc/nowhere", "--count", "1", "--kib", "1"], "/proc/nowhere/0000");
}

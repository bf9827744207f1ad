//! `thermocline-emulator` with a real program: memory keeps its content whatever the program does and whichever process
//! is killed.
//!
//! Skipped, with a message, if `userfaultfd(2)` or `ptrace(2)` is not permitted or there is no Python.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test; clippy's own exemption does not cover the functions beside the tests")]

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Serialises the tests: each keeps a processor busy, and the floor is measured at each start.
static SERIAL: Mutex<()> = Mutex::new(());

/// Returns an interpreter that does not replace itself by another one.
fn python() -> Result<String, String> {
    let output = Command::new("python3").args(["-c", "import os, sys; print(os.path.realpath(sys.executable))"]).output();
    let output = output.map_err(|error| format!("no python3: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn emulator(options: &[&str], python: &str, mode: &str) -> Command {
    let program = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/program.py");
    let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline-emulator"));
    command.args(options).arg("--").arg(python).arg(program).arg(mode).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Returns an interpreter, if programs can be emulated on this machine.
fn able() -> Option<(String, MutexGuard<'static, ()>)> {
    let guard = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
    let able = python().and_then(|python| {
        let probe = Command::new(env!("CARGO_BIN_EXE_thermocline-emulator")).args(["--latency", "1ms", "true"]).output();
        let probe = probe.map_err(|error| error.to_string())?;
        if probe.status.success() { Ok(python) } else { Err(String::from_utf8_lossy(&probe.stderr).into_owned()) }
    });
    able.map_err(|why| println!("SKIPPED: {why}")).ok().map(|python| (python, guard))
}

/// Starts a program that prints a line when it is ready. Returns the emulator, the program's output, and that line.
fn started(python: &str, mode: &str) -> (Child, BufReader<std::process::ChildStdout>, String) {
    let mut child = emulator(&["--latency", "20us", "--slow", "100%"], python, mode).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert!(line.starts_with("ready"), "{line:?}");
    (child, output, line)
}

#[test]
fn memory_keeps_its_content() {
    let Some((python, _guard)) = able() else { return };
    let check = |options: &[&str]| {
        let output = emulator(&[&["--format", "json"], options].concat(), &python, "all").output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(7), "{options:?}: the program's exit status: {out}{err}");
        assert!(!out.contains("corrupt"), "{options:?}: {out}");
        let report: Value = serde_json::from_str(err.lines().last().unwrap()).unwrap();
        assert!(report["faults"].as_u64() > Some(1000) && report["forks"] == 3, "{options:?}: {report}");
        assert!(report["slowdown_ratio"].as_f64() > Some(0.0) && report["replaced"] == false, "{options:?}: {report}");
    };
    check(&["--latency", "100us", "--slow", "100%", "--open", "16"]);
    check(&["--latency", "10us", "--slow", "60%", "--seed", "7"]);
}

#[test]
fn unused_memory_becomes_slow_within_a_tolerable_slowdown() {
    let Some((python, _guard)) = able() else { return };
    let directory = tempfile::tempdir().unwrap();
    let filled = directory.path().join("filled");
    let filled = filled.to_str().unwrap();
    // The slowdown is so high that a short period suffices for unused memory; the eighth that is used exceeds it
    // tenfold.
    let options =
        ["--format", "json", "--latency", "100us", "--slowdown", "50%", "--period", "3s", "--alternate", "2s", "--wait-for", filled];
    let output = emulator(&options, &python, "uneven").arg(filled).output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{}{err}", String::from_utf8_lossy(&output.stdout));
    let report: Value = serde_json::from_str(err.lines().last().unwrap()).unwrap();
    let policy = &report["policy"];
    assert_eq!(policy["budget_per_second"], 5000.0, "{report}");
    let periods = policy["periods"].as_array().unwrap();
    // On a slow machine a period ends while the program already frees its 16 MiB: what is left then shows nothing.
    let last = periods.iter().rfind(|period| period["known_bytes"].as_u64() >= Some(16 << 20)).unwrap();
    let share = last["slow_bytes"].as_f64().unwrap() / last["known_bytes"].as_f64().unwrap();
    assert!((0.5..0.95).contains(&share), "{share}: {report}");
    assert!(last["upper_per_second"].as_f64().unwrap() <= 5000.0, "{report}");
    let phases = report["phases"].as_array().unwrap();
    let slow: Vec<bool> = phases.iter().map(|phase| phase["slow"].as_bool().unwrap()).collect();
    assert!(slow.len() >= 3 && slow.iter().zip(0..).all(|(slow, at)| *slow == (at % 2 == 0)), "{report}");
}

#[test]
fn the_program_is_killed_with_the_emulator() {
    let Some((python, _guard)) = able() else { return };
    let (mut emulator, output, line) = started(&python, "wait");
    let pid = line.split_whitespace().nth(1).unwrap();
    // The first survey parks pages, and each survey parks more, while the program checks its memory.
    let any = wait_for(|| (parked(pid) > 0).then_some(()));
    assert!(any.is_some(), "no page was ever parked");
    let cmdline = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap();
    assert_eq!(helpers(&cmdline), 1);
    emulator.kill().unwrap();
    emulator.wait().unwrap();
    let output: Vec<String> = output.lines().map_while(Result::ok).collect();
    assert!(output.is_empty(), "the program found an error while it was killed: {output:?}");
    let gone = wait_for(|| (!PathBuf::from(format!("/proc/{pid}")).exists()).then_some(()));
    assert!(gone.is_some(), "process {pid} survives its emulator");
    let gone = wait_for(|| (helpers(&cmdline) == 0).then_some(()));
    assert!(gone.is_some(), "the helper of process {pid} survives both");
}

#[test]
fn signals_and_exit_statuses_are_forwarded() {
    let Some((python, _guard)) = able() else { return };
    let (mut emulator, _output, _) = started(&python, "term");
    let sent = Command::new("kill").args(["-TERM", &emulator.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let ended = wait_for(|| emulator.try_wait().unwrap());
    if ended.is_none() {
        emulator.kill().unwrap();
    }
    assert_eq!(ended.and_then(|status| status.code()), Some(9));
}

/// Returns the number of helper processes with this command line.
fn helpers(cmdline: &[u8]) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let is = |process: &std::fs::DirEntry| {
        let read = |name: &str| std::fs::read(process.path().join(name)).unwrap_or_default();
        read("comm") == b"slow-memory\n" && read("cmdline") == cmdline
    };
    processes.filter(is).count()
}

/// Returns the resident bytes of a process at parking addresses, which are far below its other mappings.
fn parked(pid: &str) -> u64 {
    let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
    let mut inside = false;
    let mut bytes = 0;
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some(word) if word.contains('-') && !word.ends_with(':') => inside = word.starts_with("5ff") || word.starts_with("75"),
            Some("Rss:") if inside => bytes += words.next().and_then(|kb| kb.parse::<u64>().ok()).unwrap_or(0),
            _ => {}
        }
    }
    bytes
}

/// Polls until there is a result, for up to a minute.
fn wait_for<T>(mut poll: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + Duration::from_secs(60);
    while Instant::now() < end {
        if let Some(found) = poll() {
            return Some(found);
        }
        std::thread::yield_now();
    }
    None
}

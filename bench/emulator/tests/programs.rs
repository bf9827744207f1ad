//! `thermocline-emulator` on a real program: its memory holds what it wrote, whatever it does and whoever is killed.
//!
//! Runs where `userfaultfd(2)` and `ptrace(2)` are allowed and there is a Python; says so where not.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

/// One at a time: each keeps a processor busy, and the floor is measured at each start.
static TURN: Mutex<()> = Mutex::new(());

/// An interpreter that does not replace itself by another, or why there is none.
fn python() -> Result<String, String> {
    let asked = Command::new("python3").args(["-c", "import os, sys; print(os.path.realpath(sys.executable))"]).output();
    let output = asked.map_err(|error| format!("no python3: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn emulator(options: &[&str], python: &str, mode: &str) -> Command {
    let program = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/program.py");
    let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline-emulator"));
    command.args(options).arg("--").arg(python).arg(program).arg(mode).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A Python and the right to run, if programs can be emulated here at all.
fn able() -> Option<(String, MutexGuard<'static, ()>)> {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let able = python().and_then(|python| {
        let probe = Command::new(env!("CARGO_BIN_EXE_thermocline-emulator")).args(["--latency", "1ms", "true"]).output();
        let probe = probe.map_err(|error| error.to_string())?;
        if probe.status.success() { Ok(python) } else { Err(String::from_utf8_lossy(&probe.stderr).into_owned()) }
    });
    able.map_err(|why| println!("SKIPPED: {why}")).ok().map(|python| (python, turn))
}

/// Starts a program that speaks when it is ready; the emulator, what the program says, and its first line.
fn started(python: &str, mode: &str) -> (Child, BufReader<std::process::ChildStdout>, String) {
    let mut child = emulator(&["--latency", "20us", "--slow", "100%"], python, mode).spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.starts_with("ready"), "{line:?}");
    (child, said, line)
}

#[test]
fn memory_holds_what_was_written_to_it() {
    let Some((python, _turn)) = able() else { return };
    let check = |options: &[&str]| {
        let output = emulator(&[&["--format", "json"], options].concat(), &python, "all").output().unwrap();
        let (said, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(7), "{options:?}: the program's own exit code: {said}{told}");
        assert!(!said.contains("corrupt"), "{options:?}: {said}");
        let report: Value = serde_json::from_str(told.lines().last().unwrap()).unwrap();
        assert!(report["faults"].as_u64() > Some(1000) && report["forks"] == 3, "{options:?}: {report}");
        assert!(report["slowdown_ratio"].as_f64() > Some(0.0) && report["replaced"] == false, "{options:?}: {report}");
    };
    check(&["--latency", "100us", "--slow", "100%", "--open", "16"]);
    check(&["--latency", "10us", "--slow", "60%", "--seed", "7"]);
}

#[test]
fn a_tolerable_slowdown_makes_slow_what_is_not_used() {
    let Some((python, _turn)) = able() else { return };
    let directory = tempfile::tempdir().unwrap();
    let filled = directory.path().join("filled");
    let filled = filled.to_str().unwrap();
    // So much is allowed that a short look suffices for what is not used; the eighth that is used has ten times as many accesses.
    let options =
        ["--format", "json", "--latency", "100us", "--slowdown", "50%", "--period", "3s", "--alternate", "2s", "--wait-for", filled];
    let output = emulator(&options, &python, "uneven").arg(filled).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{}{told}", String::from_utf8_lossy(&output.stdout));
    let report: Value = serde_json::from_str(told.lines().last().unwrap()).unwrap();
    let policy = &report["policy"];
    assert_eq!(policy["budget_per_second"], 5000.0, "{report}");
    let periods = policy["periods"].as_array().unwrap();
    let last = periods.last().unwrap();
    let share = last["slow_bytes"].as_f64().unwrap() / last["known_bytes"].as_f64().unwrap();
    assert!((0.5..0.95).contains(&share), "{share}: {report}");
    assert!(last["upper_per_second"].as_f64().unwrap() <= 5000.0, "{report}");
    let turns = report["turns"].as_array().unwrap();
    let slow: Vec<bool> = turns.iter().map(|turn| turn["slow"].as_bool().unwrap()).collect();
    assert!(slow.len() >= 3 && slow.iter().zip(0..).all(|(slow, at)| *slow == (at % 2 == 0)), "{report}");
}

#[test]
fn the_program_dies_with_its_emulator() {
    let Some((python, _turn)) = able() else { return };
    let (mut emulator, said, line) = started(&python, "wait");
    let pid = line.split_whitespace().nth(1).unwrap();
    // What is parked comes with the first survey, and more with each; the program's checks go on meanwhile.
    let resident = wait_for(|| (parked(pid) > 0).then_some(()));
    assert!(resident.is_some(), "nothing was ever parked");
    let cmdline = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap();
    assert_eq!(residents(&cmdline), 1);
    emulator.kill().unwrap();
    emulator.wait().unwrap();
    let said: Vec<String> = said.lines().map_while(Result::ok).collect();
    assert!(said.is_empty(), "it saw something wrong while it died: {said:?}");
    let gone = wait_for(|| (!PathBuf::from(format!("/proc/{pid}")).exists()).then_some(()));
    assert!(gone.is_some(), "{pid} has outlived its emulator");
    let gone = wait_for(|| (residents(&cmdline) == 0).then_some(()));
    assert!(gone.is_some(), "the resident of {pid} has outlived both");
}

#[test]
fn signals_and_exit_codes_are_passed_on() {
    let Some((python, _turn)) = able() else { return };
    let (mut emulator, _said, _) = started(&python, "term");
    let sent = Command::new("kill").args(["-TERM", &emulator.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let ended = wait_for(|| emulator.try_wait().unwrap());
    if ended.is_none() {
        emulator.kill().unwrap();
    }
    assert_eq!(ended.and_then(|status| status.code()), Some(9));
}

/// The emulator's helpers in programs of this command line.
fn residents(cmdline: &[u8]) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let is = |process: &std::fs::DirEntry| {
        let read = |name: &str| std::fs::read(process.path().join(name)).unwrap_or_default();
        read("comm") == b"slow-memory\n" && read("cmdline") == cmdline
    };
    processes.filter(is).count()
}

/// Bytes of a process in mappings far below its others, which is where pages are parked.
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

fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + Duration::from_secs(60);
    while Instant::now() < end {
        if let Some(found) = look() {
            return Some(found);
        }
        std::thread::yield_now();
    }
    None
}

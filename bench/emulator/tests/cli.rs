//! The command line of `thermocline-emulator`: errors and exit statuses that need no privileges.
#![allow(clippy::unwrap_used, reason = "a test; clippy's own exemption does not cover the functions beside the tests")]

use std::process::Command;

/// Runs the emulator; checks its exit status and pieces of its output, standard error included.
fn check(arguments: &[&str], status: i32, pieces: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_thermocline-emulator")).args(arguments).output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {text}");
    for piece in pieces {
        assert!(text.contains(piece), "{arguments:?} does not print {piece:?}: {text}");
    }
}

#[test]
fn help_documents_the_exit_statuses() {
    check(&["--help"], 0, &["Usage: thermocline-emulator", "Exit status", "125", "126", "127"]);
    check(&["--version"], 0, &[env!("CARGO_PKG_VERSION")]);
}

#[test]
fn invalid_arguments_exit_with_125() {
    check(&[], 125, &["CMD"]);
    check(&["--latency", "0ns", "true"], 125, &["1ns to 1000ms"]);
    check(&["--latency", "1", "true"], 125, &["1ns to 1000ms"]);
    check(&["--slow", "101%", "true"], 125, &["at most 100%"]);
    check(&["--open", "0", "true"], 125, &["1..=65535"]);
    check(&["--period", "1s", "--slowdown", "3%", "true"], 125, &["2s or more"]);
    check(&["--calibrate", "true"], 125, &["cannot be used with"]);
}

//! The program as an operator runs it, in a directory.

use std::path::Path;
use std::process::Command;

/// Runs the program in a directory; what it says, and whether it was content.
pub(crate) fn thermocline(directory: &Path, arguments: &str) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_thermocline"))
        .args(arguments.split(' '))
        .current_dir(directory)
        .env_remove("THERMOCLINE_LOG")
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    (output.status.success(), text)
}

/// It does, and says all of these.
pub(crate) fn check(directory: &Path, arguments: &str, pieces: &[&str]) -> String {
    let (done, text) = thermocline(directory, arguments);
    assert!(done && pieces.iter().all(|piece| text.contains(piece)), "{arguments}: {text}");
    text
}

/// It refuses, and says all of these.
pub(crate) fn refused(directory: &Path, arguments: &str, pieces: &[&str]) {
    let (done, text) = thermocline(directory, arguments);
    assert!(!done && pieces.iter().all(|piece| text.contains(piece)), "{arguments}: {text}");
}

//! Files that are generated from the table of knobs are what the table says.

#![expect(clippy::panic, clippy::unwrap_used, reason = "a test's way to fail")]

use std::fs;
use std::path::Path;

/// `path`, from the top of the workspace, holds `expected`; with `UPDATE_DOCS` set, it does from now on.
fn check(path: &str, expected: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").join(path);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, expected).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(found == expected, "{} has drifted; run UPDATE_DOCS=1 cargo test -p thermocline-config", path.display());
}

#[test]
fn the_manual() {
    check("docs/configuration.md", &config::manual());
}

#[test]
fn the_example() {
    check("deploy/thermocline.toml", &config::example_toml());
}

//! Rules that keep the layout as ARCHITECTURE.md describes it: dependencies between packages point down, no two files import each
//! other, `unsafe` stays in two folders, and files and functions stay short.
#![allow(clippy::unwrap_used, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

mod imports;
mod packages;
mod sources;

use std::path::{Path, PathBuf};

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

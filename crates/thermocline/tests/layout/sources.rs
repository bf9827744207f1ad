//! Limits on source files: length, length of functions, and where `unsafe` may be allowed.

use std::path::{Path, PathBuf};

use crate::root;

/// Folders whose packages may contain `unsafe`.
///
/// bench/emulator: `ptrace(2)`, `userfaultfd(2)` and code copied into another process, which nothing in the product uses.
const UNSAFE_ALLOWED: &[&str] = &["crates/node/kernel", "lab/guest", "bench/emulator"];

/// The most lines of a source file.
const LINES_MAX: usize = 500;

#[test]
fn unsafe_is_allowed_in_named_folders_only() {
    // Concatenated, so that this file does not contain the lint's name.
    let lint = concat!("unsafe", "_code");
    let root = root();
    let mut found = false;
    for (path, text) in sources(&root, &["rs"]) {
        let allowed = UNSAFE_ALLOWED.iter().any(|folder| path.starts_with(root.join(folder)));
        found |= allowed && text.contains(lint);
        assert!(allowed || !text.contains(lint), "{} overrides the lint {lint}; move unsafe code to crates/node/kernel", path.display());
    }
    assert!(found, "no file overrides {lint}: the folders in UNSAFE_ALLOWED are wrong");
}

#[test]
fn source_files_are_short() {
    let long: Vec<_> = sources(&root(), &["rs", "py"])
        .into_iter()
        .map(|(path, text)| (path, text.lines().count()))
        .filter(|&(_, lines)| lines > LINES_MAX)
        .collect();
    assert!(long.is_empty(), "over {LINES_MAX} lines, split by content: {long:?}");
}

/// The repository's source files with these extensions, and their text. Built and fetched files are left out.
pub(crate) fn sources(root: &Path, extensions: &[&str]) -> Vec<(PathBuf, String)> {
    let mut folders = vec![root.to_owned()];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let (path, kind) = entry.map(|entry| (entry.path(), entry.file_type().unwrap())).unwrap();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if kind.is_dir() && !name.starts_with('.') && name != "target" && name != "node_modules" {
                folders.push(path);
            } else if kind.is_file() && path.extension().is_some_and(|e| extensions.iter().any(|&want| e == want)) {
                // An editor may replace the file between the listing and this read.
                if let Ok(text) = std::fs::read_to_string(&path) {
                    found.push((path, text));
                }
            }
        }
    }
    assert!(found.len() > 10, "few sources under {}", root.display());
    found
}

//! What the tests of this crate share.

use std::path::Path;

use tempfile::TempDir;

use crate::{Malformed, Roots};

/// A fake machine: a temporary directory with the given files in it.
pub(crate) fn tree(files: &[(&str, &str)]) -> (TempDir, Roots) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for (path, text) in files {
        put(directory.path(), path, text);
    }
    let roots = Roots::under(directory.path());
    (directory, roots)
}

/// Writes one file of a fake machine, with the directories above it.
pub(crate) fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
    std::fs::write(path, text).expect("a file");
}

/// What a fake machine's file holds.
pub(crate) fn get(root: &Path, path: &str) -> String {
    std::fs::read_to_string(root.join(path)).expect("a file")
}

/// Cuts `text` at every character, and damages every one in turn: the parser must answer each with a value or with
/// an error that names a line of the text, and some of the damage must be found.
pub(crate) fn cut_everywhere<T>(text: &str, parse: impl Fn(&str) -> Result<T, Malformed>) {
    assert!(parse(text).is_ok(), "the whole text must parse");
    let lines = text.lines().count();
    let mut refused = 0;
    let mut judge = |damaged: &str| {
        if let Err(malformed) = parse(damaged) {
            refused += 1;
            assert!(malformed.line <= lines, "line {} of {lines}", malformed.line);
            assert!(malformed.value.chars().count() <= 80);
        }
    };
    for (at, letter) in text.char_indices() {
        judge(&text[..at]);
        for junk in ["\0", "-", "\n", "9", " ", "é"] {
            judge(&[&text[..at], junk, &text[at + letter.len_utf8()..]].concat());
        }
    }
    assert!(refused > 0, "no damage was ever noticed");
}

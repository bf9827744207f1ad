//! docs/trace.md describes every column with the text of the code.
#![allow(clippy::unwrap_used, reason = "a test")]

#[test]
fn every_column_is_in_the_manual() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/trace.md");
    let manual = std::fs::read_to_string(path).unwrap();
    for figure in trace::FIGURES {
        let row = format!("| `{}` | {} |\n", figure.name, figure.meaning);
        assert!(manual.contains(&row), "docs/trace.md lacks the row {row}");
    }
}

//! The generated files match the tables of knobs.

use std::path::Path;

#[track_caller]
fn check(path: &str, expected: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").join(path);
    assert_eq!(settings::generated::check(&path, expected), Ok(()));
}

#[test]
fn the_reference_page_is_up_to_date() {
    check("docs/configuration.md", &config::manual());
}

#[test]
fn the_example_file_is_up_to_date() {
    check("deploy/thermocline.toml", &config::example_toml());
}

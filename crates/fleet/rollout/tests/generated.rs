//! The generated files match the declaration of plans.

use std::path::Path;

#[track_caller]
fn check(path: &str, expected: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").join(path);
    assert_eq!(settings::generated::check(&path, expected), Ok(()));
}

#[test]
fn the_reference_page_is_up_to_date() {
    check("docs/reference/rollout-plan.md", &rollout::plan::reference());
}

#[test]
fn the_example_file_is_up_to_date() {
    check("deploy/rollout-plan.toml", &rollout::plan::example());
}

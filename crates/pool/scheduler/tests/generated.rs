//! The generated files match the declaration of the settings.

use std::path::Path;

#[track_caller]
fn check(path: &str, expected: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").join(path);
    assert_eq!(settings::generated::check(&path, expected), Ok(()));
}

#[test]
fn the_reference_page_is_up_to_date() {
    check("docs/reference/pool-scheduler.md", &scheduler::settings::reference());
}

#[test]
fn the_example_file_is_up_to_date_and_valid() {
    let example = scheduler::settings::example();
    check("deploy/pool-scheduler.toml", &example);
    let settings = scheduler::settings::Settings::parse(Path::new("pool-scheduler.toml"), &example);
    assert!(settings.is_ok_and(|settings| settings.tls.is_some() && settings.topology.pools.len() == 1));
}

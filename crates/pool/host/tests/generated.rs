//! The generated files match the declaration of the settings.

use std::path::Path;

#[track_caller]
fn check(path: &str, expected: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").join(path);
    assert_eq!(settings::generated::check(&path, expected), Ok(()));
}

#[test]
fn the_reference_page_is_up_to_date() {
    check("docs/reference/pool-host.md", &pool_host::settings::reference());
}

#[test]
fn the_example_file_is_up_to_date_and_valid() {
    let example = pool_host::settings::example();
    check("deploy/pool-host.toml", &example);
    let settings = pool_host::settings::Settings::parse(Path::new("pool-host.toml"), &example);
    assert!(settings.is_ok_and(|settings| settings.predict.is_some()));
}

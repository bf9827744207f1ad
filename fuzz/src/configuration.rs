//! Texts that operators and tools write.

use std::path::Path;

use config::{Bundle, Config};
use units::quantity::{parse_bytes, parse_duration, parse_rate, parse_ratio, print_bytes, print_duration, print_ratio};

use crate::text;

/// Sizes, times, rates and ratios.
pub(crate) fn quantities(bytes: &[u8]) -> bool {
    let Some(text) = text(bytes) else { return false };
    let valid = [parse_bytes(text).is_ok(), parse_duration(text).is_ok(), parse_rate(text).is_ok(), parse_ratio(text).is_ok()];
    // What is printed is read as the same: settings are shown and stored in this form.
    if let Ok(read) = parse_bytes(text) {
        assert_eq!(parse_bytes(&print_bytes(read)).ok(), Some(read), "{text:?} is printed as {}", print_bytes(read));
    }
    if let Ok(read) = parse_duration(text) {
        assert_eq!(parse_duration(&print_duration(read)).ok(), Some(read), "{text:?} is printed as {}", print_duration(read));
    }
    if let Ok(read) = parse_ratio(text) {
        assert_eq!(parse_ratio(&print_ratio(read)).ok(), Some(read), "{text:?} is printed as {}", print_ratio(read));
    }
    valid.contains(&true)
}

/// The agent's configuration.
pub(crate) fn agent(bytes: &[u8]) -> bool {
    text(bytes).is_some_and(|text| Config::from_str("fuzz", text).is_ok())
}

/// A bundle.
pub(crate) fn bundle(bytes: &[u8]) -> bool {
    text(bytes).is_some_and(|text| Bundle::parse("fuzz", text).is_ok())
}

/// The other files of settings, by the first byte.
pub(crate) fn others(bytes: &[u8]) -> bool {
    let Some((which, text)) = bytes.split_first().and_then(|(which, rest)| Some((which, text(rest)?))) else { return false };
    // The files that a text may name beside itself do not exist.
    let path = Path::new("/nonexistent/fuzz");
    match which % 6 {
        0 => pool_host::settings::Settings::parse(path, text).is_ok(),
        1 => manager::settings::Settings::parse(path, text).is_ok(),
        2 => pool_host::guest_file::parse(path, text, 1_800_000_000).is_ok(),
        3 => rollout::plan::Plan::parse(path, text).is_ok(),
        5 => scheduler::settings::Settings::parse(path, text).is_ok(),
        _ => rollout::experiment::Group::parse(text).is_ok(),
    }
}

/// Settings of another program.
pub(crate) fn import(bytes: &[u8]) -> bool {
    text(bytes).is_some_and(|text| advise::import::import(text).is_ok())
}

/// The assignment of machines to stages.
pub(crate) fn assignment(bytes: &[u8]) -> bool {
    rollout::assignment::Assignment::parse(bytes).is_ok()
}

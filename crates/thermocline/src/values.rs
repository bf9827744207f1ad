//! Parsers of argument values, with an error that shows how to write one.

use std::time::Duration;

use units::{Bytes, RatioPpm};

pub(crate) fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write it as KEY=VALUE, such as agent.scan_period=30s")?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    units::quantity::parse_duration(text).map_err(|invalid| invalid.to_string())
}

pub(crate) fn size(text: &str) -> Result<Bytes, String> {
    units::quantity::parse_bytes(text).map_err(|invalid| invalid.to_string())
}

pub(crate) fn ratio(text: &str) -> Result<RatioPpm, String> {
    units::quantity::parse_ratio(text).map_err(|invalid| invalid.to_string())
}

pub(crate) fn share(text: &str) -> Result<RatioPpm, String> {
    let ratio = units::quantity::parse_ratio(text).map_err(|invalid| invalid.to_string())?;
    if ratio > RatioPpm::ONE {
        return Err("out of range; give at most 100%".to_owned());
    }
    Ok(ratio)
}

pub(crate) fn price(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|price: &f64| price.is_finite() && *price >= 0.0).ok_or_else(|| "write a number, such as 3.50".to_owned())
}

/// A date and time, in milliseconds since the epoch.
pub(crate) fn time(text: &str) -> Result<u64, String> {
    let time: Result<jiff::Timestamp, _> = text.parse();
    time.ok()
        .and_then(|time| u64::try_from(time.as_millisecond()).ok())
        .ok_or_else(|| "write a date and time with its zone, such as 2026-11-20T12:00:00Z".to_owned())
}

/// A latency of at least one nanosecond; other durations are at least one microsecond.
pub(crate) fn latency(text: &str) -> Result<Duration, String> {
    let units = [("ns", 1), ("us", 1_000), ("ms", 1_000_000)];
    let parsed = units.iter().find_map(|(unit, ns)| {
        let number: f64 = text.trim().strip_suffix(unit)?.trim().parse().ok()?;
        Duration::try_from_secs_f64(number * f64::from(*ns) / 1e9).ok()
    });
    parsed
        .filter(|latency| (1..=1_000_000_000).contains(&latency.as_nanos()))
        .ok_or_else(|| "write a latency from 1ns to 1000ms, such as 300ns, 1us or 2.5us".to_owned())
}

//! Dates and times in UTC. Partitions are named after dates.

use jiff::Timestamp;
use units::UnixMillis;

/// Milliseconds per day.
pub const DAY_MS: u64 = 86_400_000;

/// Formats the date of a time, such as `2026-11-20`.
#[must_use]
pub fn date(at: UnixMillis) -> String {
    formatted(at, "%Y-%m-%d")
}

/// Formats a date with its time of day, such as `2026-11-20 19:30:00`.
#[must_use]
pub fn time(at: UnixMillis) -> String {
    formatted(at, "%Y-%m-%d %H:%M:%S")
}

/// Formats a time. A time after the year 9999 is returned as its number of milliseconds.
fn formatted(UnixMillis(unix_ms): UnixMillis, format: &str) -> String {
    let time = i64::try_from(unix_ms).ok().and_then(|unix_ms| Timestamp::from_millisecond(unix_ms).ok());
    time.map_or_else(|| unix_ms.to_string(), |time| time.strftime(format).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_beyond_the_calendar_are_returned_as_milliseconds() {
        for (unix_ms, expected) in
            [(0, "1970-01-01 00:00:00"), (1_795_203_000_999, "2026-11-20 19:30:00"), (u64::MAX, "18446744073709551615")]
        {
            assert_eq!(time(UnixMillis(unix_ms)), expected);
        }
        assert_eq!(date(UnixMillis(951_782_400_000)), "2000-02-29");
    }
}

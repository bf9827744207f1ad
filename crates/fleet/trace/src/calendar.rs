//! Days and times in UTC. Partitions are named after the days.

use chrono::DateTime;

/// Milliseconds of a day.
pub const DAY_MS: u64 = 86_400_000;

/// The date of a time, as `2026-11-20`.
#[must_use]
pub fn date(unix_ms: u64) -> String {
    shown(unix_ms, "%Y-%m-%d")
}

/// A time of day with its date, as `2026-11-20 19:30:00`.
#[must_use]
pub fn time(unix_ms: u64) -> String {
    shown(unix_ms, "%Y-%m-%d %H:%M:%S")
}

/// A time beyond the calendar, 262,000 years from now, shows as its milliseconds.
fn shown(unix_ms: u64, format: &str) -> String {
    let time = i64::try_from(unix_ms).ok().and_then(DateTime::from_timestamp_millis);
    time.map_or_else(|| unix_ms.to_string(), |time| time.format(format).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_beyond_the_calendar_is_shown_all_the_same() {
        for (unix_ms, want) in [(0, "1970-01-01 00:00:00"), (1_795_203_000_999, "2026-11-20 19:30:00"), (u64::MAX, "18446744073709551615")]
        {
            assert_eq!(time(unix_ms), want);
        }
        assert_eq!(date(951_782_400_000), "2000-02-29");
    }
}

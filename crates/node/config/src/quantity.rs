//! Durations, sizes and ratios as people write them: `1m30s`, `32MiB`, `0.2%`.
//!
//! # Invariants
//! - Exact: a text that the type cannot hold to the last digit is refused, never rounded.
//! - What is printed reads back as the same value.
//! - A number without a unit is refused where a unit could be meant, and the refusal shows how to write it.

use std::time::Duration;

use units::{Bytes, RatioPpm};

use crate::problem::Invalid;

/// Nanoseconds by unit, largest first.
const DURATION_UNITS: [(&str, u128); 7] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Bytes by unit, largest first.
const BYTES_UNITS: [(&str, u128); 6] = [("PiB", 1 << 50), ("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Millionths in one percent.
const PPM_PER_PERCENT: u128 = 10_000;

/// A decimal number as written, without sign or exponent: `digits / 10^decimals`.
struct Decimal {
    digits: u128,
    decimals: u32,
}

impl Decimal {
    /// The number at the start of `text`, and the rest; `None` where there is none, or one too long to be sensible.
    fn take(text: &str) -> Option<(Self, &str)> {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, rest) = text.split_at(end);
        let (whole, fraction) = number.split_once('.').map_or((number, None), |(w, f)| (w, Some(f)));
        if whole.is_empty() || fraction == Some("") {
            return None;
        }
        // 20 digits before the point hold every value of every type, 12 behind it the finest unit; more cannot be meant.
        let fraction = fraction.unwrap_or("").trim_end_matches('0');
        if whole.len() > 20 || fraction.len() > 12 {
            return None;
        }
        let digits = format!("{whole}{fraction}").parse().ok()?;
        Some((Self { digits, decimals: u32::try_from(fraction.len()).ok()? }, rest))
    }

    /// This many times `scale`, where that is a whole number and no nonsensical one.
    fn times(&self, scale: u128) -> Result<u128, Invalid> {
        let product = self.digits.checked_mul(scale).ok_or_else(too_large)?;
        let divisor = 10u128.pow(self.decimals);
        if product % divisor == 0 {
            Ok(product / divisor)
        } else {
            Err(Invalid::new("finer than can be held", "leave out the last digits"))
        }
    }
}

/// A span of time: one or more numbers with `d`, `h`, `m`, `s`, `ms`, `us` or `ns`, largest unit first.
///
/// # Errors
/// [`Invalid`] where the text is none, has no unit, or exceeds what [`Duration`] holds in 64-bit seconds.
pub fn parse_duration(text: &str) -> Result<Duration, Invalid> {
    let invalid = || Invalid::new("not a duration", "write a number and d, h, m, s or ms, such as \"90s\" or \"1m30s\"");
    let mut rest = text.trim();
    let mut nanos: u128 = 0;
    let mut units_left = &DURATION_UNITS[..];
    while !rest.is_empty() {
        let (number, after) = Decimal::take(rest).ok_or_else(invalid)?;
        let after = after.trim_start();
        let end = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, next) = after.split_at(end);
        if after.is_empty() {
            return Err(bare_number("a duration", text, ["s", "m"]));
        }
        let place = units_left.iter().position(|(name, _)| *name == unit).ok_or_else(invalid)?;
        let part = number.times(units_left[place].1)?;
        nanos = nanos.checked_add(part).ok_or_else(too_large)?;
        units_left = &units_left[place + 1..];
        rest = next.trim_start();
    }
    if units_left.len() == DURATION_UNITS.len() {
        return Err(invalid());
    }
    let seconds = u64::try_from(nanos / 1_000_000_000).map_err(|_| too_large())?;
    let below = u32::try_from(nanos % 1_000_000_000).unwrap_or_default();
    Ok(Duration::new(seconds, below))
}

/// In whole numbers of as few units as possible: `1m30s`.
#[must_use]
pub fn print_duration(duration: Duration) -> String {
    let mut rest = duration.as_nanos();
    let mut text = String::new();
    for (unit, nanos) in DURATION_UNITS {
        if rest >= nanos {
            text.push_str(&format!("{}{unit}", rest / nanos));
            rest %= nanos;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// A size: one number with `B`, `KiB`, `MiB`, `GiB`, `TiB` or `PiB`.
///
/// # Errors
/// [`Invalid`] where the text is none, has no unit or a decimal one, is no whole number of bytes, or exceeds 64 bits.
pub fn parse_bytes(text: &str) -> Result<Bytes, Invalid> {
    let invalid = || Invalid::new("not a size", "write a number and B, KiB, MiB, GiB or TiB, such as \"32MiB\"");
    let (number, unit) = Decimal::take(text.trim()).ok_or_else(invalid)?;
    let unit = unit.trim_start();
    if unit.is_empty() {
        return Err(bare_number("a size", text, ["MiB", "GiB"]));
    }
    let Some((_, scale)) = BYTES_UNITS.iter().find(|(name, _)| *name == unit) else {
        let first = unit.chars().next().map(|c| c.to_ascii_uppercase());
        let meant = BYTES_UNITS.iter().find(|(name, _)| name.chars().next() == first).map_or("MiB", |(name, _)| name);
        return Err(Invalid::new(
            "not a unit of size",
            format!("units are powers of 1024, written B, KiB, MiB, GiB or TiB: perhaps {meant}"),
        ));
    };
    let bytes = number.times(*scale)?;
    u64::try_from(bytes).map(Bytes).map_err(|_| too_large())
}

/// In the largest unit that holds it as a whole number: `1536KiB`.
#[must_use]
pub fn print_bytes(bytes: Bytes) -> String {
    let size = u128::from(bytes.0);
    let (unit, scale) = BYTES_UNITS.iter().find(|(_, scale)| size > 0 && size % scale == 0).unwrap_or(&("B", 1));
    format!("{}{unit}", size / scale)
}

/// A size with `/s` behind it.
///
/// # Errors
/// As [`parse_bytes`], or [`Invalid`] where the `/s` is missing.
pub fn parse_rate(text: &str) -> Result<Bytes, Invalid> {
    let Some(size) = text.trim().strip_suffix("/s") else {
        return Err(Invalid::new("not a rate", "write a size per second, such as \"32MiB/s\""));
    };
    parse_bytes(size)
}

/// A ratio, in percent (`0.2%`) or as a fraction of one (`0.002`).
///
/// A bare number of one or more is refused: `1` may mean 1 % or 100 %.
///
/// # Errors
/// [`Invalid`] where the text is none, is finer than a millionth, or exceeds [`RatioPpm`].
pub fn parse_ratio(text: &str) -> Result<RatioPpm, Invalid> {
    let invalid = || Invalid::new("not a ratio", "write a percentage such as \"0.2%\", or a fraction of one such as 0.002");
    let (number, unit) = Decimal::take(text.trim()).ok_or_else(invalid)?;
    let scale = match unit.trim_start() {
        "%" => PPM_PER_PERCENT,
        "" if number.digits < 10u128.pow(number.decimals) => 100 * PPM_PER_PERCENT,
        "" => {
            let number = text.trim();
            return Err(Invalid::new(
                "a bare number of one or more may mean a percentage or a factor",
                format!("write \"{number}%\" for percent"),
            ));
        }
        _ => return Err(invalid()),
    };
    let ppm = number.times(scale)?;
    u32::try_from(ppm).map(RatioPpm).map_err(|_| too_large())
}

/// In percent, as short as it is exact: `0.2%`.
#[must_use]
pub fn print_ratio(ratio: RatioPpm) -> String {
    ratio.to_string()
}

fn too_large() -> Invalid {
    Invalid::new("too large", "write a smaller value")
}

fn bare_number(what: &str, text: &str, units: [&str; 2]) -> Invalid {
    let number = crate::Problem::shown(text.trim());
    let [first, second] = units;
    Invalid::new(format!("{what} needs a unit"), format!("write \"{number}{first}\" or \"{number}{second}\", whichever is meant"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `text` reads as `value`, which prints as `printed`, which reads as `value`.
    fn check<T: PartialEq + std::fmt::Debug + Copy>(
        parse: impl Fn(&str) -> Result<T, Invalid>,
        print: impl Fn(T) -> String,
        cases: &[(&str, T, &str)],
    ) {
        for &(text, value, printed) in cases {
            assert_eq!(parse(text), Ok(value), "{text}");
            assert_eq!(print(value), printed, "{text}");
            assert_eq!(parse(printed), Ok(value), "{printed}");
        }
    }

    /// Each text is refused, and the remedy names `hint`.
    fn check_refused<T: std::fmt::Debug>(parse: impl Fn(&str) -> Result<T, Invalid>, cases: &[(&str, &str)]) {
        for &(text, hint) in cases {
            match parse(text) {
                Ok(value) => panic!("{text:?} was read as {value:?}"),
                Err(invalid) => assert!(invalid.remedy.contains(hint), "{text:?}: {invalid:?}"),
            }
        }
    }

    #[test]
    fn durations() {
        let s = Duration::from_secs;
        check(
            parse_duration,
            print_duration,
            &[
                ("0s", s(0), "0s"),
                ("120s", s(120), "2m"),
                ("1m30s", s(90), "1m30s"),
                (" 1 m 30 s ", s(90), "1m30s"),
                ("1.5h", s(5400), "1h30m"),
                ("500ms", Duration::from_millis(500), "500ms"),
                ("0.000000001s", Duration::from_nanos(1), "1ns"),
                ("24h", s(86_400), "1d"),
                ("18446744073709551615s", s(u64::MAX), "213503982334601d7h15s"),
            ],
        );
        check_refused(
            parse_duration,
            &[
                ("", "1m30s"),
                ("120", "\"120s\" or \"120m\""),
                ("-1s", "1m30s"),
                ("30s1m", "1m30s"),
                ("1m1m", "1m30s"),
                ("1min", "1m30s"),
                (".5s", "1m30s"),
                ("5.s", "1m30s"),
                ("1.2.3s", "1m30s"),
                ("1e3s", "1m30s"),
                ("0.0000000001s", "last digits"),
                ("18446744073709551616s", "smaller"),
                ("999999999999999999999d", "1m30s"),
                ("1\u{b5}s", "1m30s"),
                ("1m30", "\"1m30s\""),
            ],
        );
    }

    #[test]
    fn sizes() {
        check(
            parse_bytes,
            print_bytes,
            &[
                ("0B", Bytes(0), "0B"),
                ("64MiB", Bytes::mib(64), "64MiB"),
                ("1.5 GiB", Bytes::mib(1536), "1536MiB"),
                ("1000B", Bytes(1000), "1000B"),
                ("18446744073709551615B", Bytes(u64::MAX), "18446744073709551615B"),
            ],
        );
        check(parse_rate, |rate| print_bytes(rate) + "/s", &[("32MiB/s", Bytes::mib(32), "32MiB/s")]);
        check_refused(
            parse_bytes,
            &[
                ("", "32MiB"),
                ("64", "\"64MiB\""),
                ("64M", "MiB"),
                ("64MB", "MiB"),
                ("64gb", "GiB"),
                ("0.3B", "last digits"),
                ("16384PiB", "smaller"),
            ],
        );
        check_refused(parse_rate, &[("32MiB", "32MiB/s"), ("32MiB/m", "32MiB/s"), ("32/s", "\"32MiB\"")]);
    }

    #[test]
    fn ratios() {
        check(
            parse_ratio,
            print_ratio,
            &[
                ("0.2%", RatioPpm(2000), "0.2%"),
                ("0.002", RatioPpm(2000), "0.2%"),
                ("0", RatioPpm(0), "0%"),
                ("98%", RatioPpm(980_000), "98%"),
                ("99.5 %", RatioPpm(995_000), "99.5%"),
                ("0.0001%", RatioPpm(1), "0.0001%"),
                ("429496.7295%", RatioPpm(u32::MAX), "429496.7295%"),
            ],
        );
        check_refused(
            parse_ratio,
            &[
                ("", "0.2%"),
                ("98", "\"98%\""),
                ("1.0", "\"1.0%\""),
                ("0.00001%", "last digits"),
                ("-1%", "0.2%"),
                ("500000%", "smaller"),
                ("1/5", "0.2%"),
            ],
        );
    }

    #[test]
    fn what_is_printed_reads_back_as_the_same_value() {
        let mut seed = 1u64;
        for bits in (0..64).cycle().take(20_000) {
            // A full-period generator (Knuth's MMIX constants), so that every run tries the same values.
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let n = seed >> bits;
            let duration = Duration::new(n, u32::try_from(seed % 1_000_000_000).unwrap());
            assert_eq!(parse_duration(&print_duration(duration)), Ok(duration));
            assert_eq!(parse_bytes(&print_bytes(Bytes(n))), Ok(Bytes(n)));
            let ratio = RatioPpm(u32::try_from(n & 0xffff_ffff).unwrap());
            assert_eq!(parse_ratio(&print_ratio(ratio)), Ok(ratio));
        }
    }
}

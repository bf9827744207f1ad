//! Parsing and printing of durations, sizes and ratios: `1m30s`, `32MiB`, `0.2%`.
//!
//! # Invariants
//! - Parsing is exact: a text that the type cannot represent to the last digit is rejected, never rounded.
//! - A printed value parses to the same value.
//! - A number without a unit is rejected if the quantity has one, and the error shows the spelling.

use std::fmt;
use std::time::Duration;

use crate::{Bytes, RatioPpm};

/// The longest part of a text that an error shows, in characters.
const EXCERPT_MAX: usize = 80;

/// Nanoseconds per unit, largest unit first.
const DURATION_UNITS: [(&str, u128); 7] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Bytes per unit, largest unit first.
const BYTES_UNITS: [(&str, u128); 6] = [("PiB", 1 << 50), ("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Millionths in one percent.
const PPM_PER_PERCENT: u128 = 10_000;

/// The most digits before the decimal point: enough for every value of every type.
const WHOLE_DIGITS_MAX: usize = 20;

/// The most digits after the decimal point: enough for the finest unit.
const FRACTION_DIGITS_MAX: usize = 12;

/// Why a text is not a value: the problem and its remedy. The caller knows where the text stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// The problem.
    pub message: String,
    /// What to write instead.
    pub remedy: String,
}

impl Invalid {
    /// An error with its remedy.
    pub fn new(message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { message: message.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.message, self.remedy)
    }
}

impl std::error::Error for Invalid {}

/// A text for an error message: one line of bounded length, with control characters escaped.
#[must_use]
pub fn excerpt(text: &str) -> String {
    let mut shown = String::new();
    for c in text.chars().take(EXCERPT_MAX) {
        if "\"'\\".contains(c) { shown.push(c) } else { shown.extend(c.escape_debug()) }
    }
    if text.chars().nth(EXCERPT_MAX).is_some() {
        shown.push_str("...");
    }
    shown
}

/// A decimal number without sign or exponent: `digits / 10^decimals`.
struct Decimal {
    digits: u128,
    decimals: u32,
}

impl Decimal {
    /// Splits `text` into its leading number and the rest; `None` if it starts with no number, or with too many digits.
    fn take(text: &str) -> Option<(Self, &str)> {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, rest) = text.split_at(end);
        let (whole, fraction) = number.split_once('.').map_or((number, None), |(w, f)| (w, Some(f)));
        if whole.is_empty() || fraction == Some("") {
            return None;
        }
        let fraction = fraction.unwrap_or("").trim_end_matches('0');
        if whole.len() > WHOLE_DIGITS_MAX || fraction.len() > FRACTION_DIGITS_MAX {
            return None;
        }
        let digits = format!("{whole}{fraction}").parse().ok()?;
        Some((Self { digits, decimals: u32::try_from(fraction.len()).ok()? }, rest))
    }

    /// The product with `scale`, if it is a whole number.
    fn times(&self, scale: u128) -> Result<u128, Invalid> {
        let product = self.digits.checked_mul(scale).ok_or_else(too_large)?;
        let divisor = 10u128.pow(self.decimals);
        if product % divisor == 0 {
            Ok(product / divisor)
        } else {
            Err(Invalid::new("more digits than the value can hold", "leave out the last digits"))
        }
    }
}

/// Parses a duration: one or more numbers with `d`, `h`, `m`, `s`, `ms`, `us` or `ns`, largest unit first.
///
/// # Errors
/// [`Invalid`] if the text is not a duration, has no unit, or exceeds what [`Duration`] holds in 64-bit seconds.
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

/// Prints a duration in whole numbers of as few units as possible: `1m30s`.
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

/// Parses a size: one number with `B`, `KiB`, `MiB`, `GiB`, `TiB` or `PiB`.
///
/// # Errors
/// [`Invalid`] if the text is not a size, has no unit or a decimal unit, is not a whole number of bytes, or exceeds 64 bits.
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
            format!("units are powers of 1024 (B, KiB, MiB, GiB, TiB, PiB); did you mean {meant}?"),
        ));
    };
    let bytes = number.times(*scale)?;
    u64::try_from(bytes).map(Bytes).map_err(|_| too_large())
}

/// Prints a size in the largest unit that makes it a whole number: `1536KiB`.
#[must_use]
pub fn print_bytes(bytes: Bytes) -> String {
    let size = u128::from(bytes.0);
    let (unit, scale) = BYTES_UNITS.iter().find(|(_, scale)| size > 0 && size % scale == 0).unwrap_or(&("B", 1));
    format!("{}{unit}", size / scale)
}

/// Parses a size per second: a size followed by `/s`.
///
/// # Errors
/// Those of [`parse_bytes`], or [`Invalid`] if the `/s` is missing.
pub fn parse_rate(text: &str) -> Result<Bytes, Invalid> {
    let Some(size) = text.trim().strip_suffix("/s") else {
        return Err(Invalid::new("not a rate", "write a size per second, such as \"32MiB/s\""));
    };
    parse_bytes(size)
}

/// Parses a ratio, in percent (`0.2%`) or as a fraction of one (`0.002`).
///
/// A number of one or more without a percent sign is rejected: `1` may mean 1 % or 100 %.
///
/// # Errors
/// [`Invalid`] if the text is not a ratio, is finer than a millionth, or exceeds [`RatioPpm`].
pub fn parse_ratio(text: &str) -> Result<RatioPpm, Invalid> {
    let invalid = || Invalid::new("not a ratio", "write a percentage such as \"0.2%\", or a fraction of one such as 0.002");
    let (number, unit) = Decimal::take(text.trim()).ok_or_else(invalid)?;
    let scale = match unit.trim_start() {
        "%" => PPM_PER_PERCENT,
        "" if number.digits < 10u128.pow(number.decimals) => 100 * PPM_PER_PERCENT,
        "" => {
            let number = text.trim();
            return Err(Invalid::new(
                "a number of one or more without a percent sign is ambiguous",
                format!("write \"{number}%\" for percent"),
            ));
        }
        _ => return Err(invalid()),
    };
    let ppm = number.times(scale)?;
    u32::try_from(ppm).map(RatioPpm).map_err(|_| too_large())
}

/// Prints a ratio in percent, exactly and without trailing zeros: `0.2%`.
#[must_use]
pub fn print_ratio(ratio: RatioPpm) -> String {
    ratio.to_string()
}

fn too_large() -> Invalid {
    Invalid::new("too large", "write a smaller value")
}

fn bare_number(what: &str, text: &str, units: [&str; 2]) -> Invalid {
    let number = excerpt(text.trim());
    let [first, second] = units;
    Invalid::new(format!("{what} needs a unit"), format!("write \"{number}{first}\" or \"{number}{second}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that `text` parses to `value`, that `value` prints as `printed`, and that `printed` parses to `value`.
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

    /// Checks that each text is rejected with a remedy that contains `hint`.
    fn check_rejected<T: std::fmt::Debug>(parse: impl Fn(&str) -> Result<T, Invalid>, cases: &[(&str, &str)]) {
        for &(text, hint) in cases {
            match parse(text) {
                Ok(value) => panic!("{text:?} was parsed as {value:?}"),
                Err(invalid) => assert!(invalid.remedy.contains(hint), "{text:?}: {invalid:?}"),
            }
        }
    }

    #[test]
    fn durations_parse_and_print() {
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
        check_rejected(
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
    fn sizes_parse_and_print() {
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
        check_rejected(
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
        check_rejected(parse_rate, &[("32MiB", "32MiB/s"), ("32MiB/m", "32MiB/s"), ("32/s", "\"32MiB\"")]);
    }

    #[test]
    fn ratios_parse_and_print() {
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
        check_rejected(
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
    fn printed_values_parse_to_the_same_value() {
        let mut seed = 1u64;
        for bits in (0..64).cycle().take(20_000) {
            // A full-period linear congruential generator (Knuth's MMIX constants): every run tries the same values.
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

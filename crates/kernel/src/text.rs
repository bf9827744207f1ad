//! The few shapes that kernel text comes in: numbered lines, numbers, `key value` tables.

use std::str::FromStr;

use crate::Malformed;

/// Lines with their number from 1.
pub(crate) fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line))
}

/// The number that `field` spells; an absent field is malformed like any other.
pub(crate) fn number<T: FromStr>(field: Option<&str>, line: usize, expected: &'static str) -> Result<T, Malformed> {
    let field = field.unwrap_or("");
    field.trim().parse().map_err(|_| Malformed::new(line, field, expected))
}

/// The number that `field` spells in base 16, without a prefix.
pub(crate) fn hexadecimal(field: Option<&str>, line: usize, expected: &'static str) -> Result<u64, Malformed> {
    let field = field.unwrap_or("");
    u64::from_str_radix(field.trim(), 16).map_err(|_| Malformed::new(line, field, expected))
}

/// The one number of a file that holds nothing else.
pub(crate) fn only_number<T: FromStr>(text: &str, expected: &'static str) -> Result<T, Malformed> {
    number(Some(text), 1, expected)
}

/// Calls `take(key, value)` for each `key value` line; `take` returns the slot of a key that it knows.
///
/// Unknown keys pass, because every kernel adds some; a line without a value does not.
pub(crate) fn flat_keyed<T>(
    text: &str,
    into: &mut T,
    slot: impl for<'t> Fn(&'t mut T, &str) -> Option<&'t mut Option<u64>>,
) -> Result<(), Malformed> {
    for (line, row) in lines(text) {
        let (key, value) = row.split_once(' ').ok_or_else(|| Malformed::new(line, row, "a key and a value"))?;
        if let Some(found) = slot(into, key) {
            *found = Some(number(Some(value), line, "a whole number")?);
        }
    }
    Ok(())
}

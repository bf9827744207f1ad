//! The few shapes that kernel text comes in: numbered lines, numbers, `key value` tables.

use std::collections::HashMap;
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

/// A flat keyed file: one `key value` a line, each value a whole number. Unknown keys are never looked at, because
/// every kernel adds some.
pub(crate) struct FlatKeyed<'a> {
    rows: HashMap<&'a str, (usize, &'a str)>,
}

impl<'a> FlatKeyed<'a> {
    /// Splits the lines; one without a value is malformed.
    pub(crate) fn split(text: &'a str) -> Result<Self, Malformed> {
        let rows = lines(text).map(|(line, row)| {
            let (key, value) = row.split_once(' ').ok_or_else(|| Malformed::new(line, row, "a key and a value"))?;
            Ok((key, (line, value)))
        });
        Ok(Self { rows: rows.collect::<Result<_, Malformed>>()? })
    }

    /// The value of `key`; `None` where the kernel does not print it.
    pub(crate) fn get(&self, key: &str) -> Result<Option<u64>, Malformed> {
        let row = self.rows.get(key);
        row.map(|(line, value)| number(Some(value), *line, "a whole number")).transpose()
    }

    /// The value of a key that every kernel prints.
    pub(crate) fn require(&self, key: &'static str) -> Result<u64, Malformed> {
        self.get(key)?.ok_or_else(|| Malformed::new(0, "end of file", key))
    }
}

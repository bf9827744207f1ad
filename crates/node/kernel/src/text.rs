//! Formats that kernel files share: numbered lines, numbers, `key value` tables.

use std::collections::HashMap;
use std::str::FromStr;

use crate::Malformed;

/// Lines with their numbers, from 1.
pub(crate) fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line))
}

/// Parses `field` as a decimal number; a missing field is malformed.
pub(crate) fn number<T: FromStr>(field: Option<&str>, line: usize, expected: &'static str) -> Result<T, Malformed> {
    let field = field.unwrap_or("");
    field.trim().parse().map_err(|_| Malformed::new(line, field, expected))
}

/// Parses `field` as a hexadecimal number without a prefix.
pub(crate) fn hexadecimal(field: Option<&str>, line: usize, expected: &'static str) -> Result<u64, Malformed> {
    let field = field.unwrap_or("");
    u64::from_str_radix(field.trim(), 16).map_err(|_| Malformed::new(line, field, expected))
}

/// Parses the text of a file that holds a single number.
pub(crate) fn only_number<T: FromStr>(text: &str, expected: &'static str) -> Result<T, Malformed> {
    number(Some(text), 1, expected)
}

/// A flat keyed file: one `key value` per line, each value a whole number. Unknown keys are ignored, because every kernel
/// release adds some.
pub(crate) struct FlatKeyed<'a> {
    rows: HashMap<&'a str, (usize, &'a str)>,
}

impl<'a> FlatKeyed<'a> {
    /// Splits the lines; a line without a value is malformed.
    pub(crate) fn split(text: &'a str) -> Result<Self, Malformed> {
        let rows = lines(text).map(|(line, row)| {
            let (key, value) = row.split_once(' ').ok_or_else(|| Malformed::new(line, row, "a key and a value"))?;
            Ok((key, (line, value)))
        });
        Ok(Self { rows: rows.collect::<Result<_, Malformed>>()? })
    }

    /// The value of `key`; `None` if the kernel does not print it.
    pub(crate) fn get(&self, key: &str) -> Result<Option<u64>, Malformed> {
        let row = self.rows.get(key);
        row.map(|(line, value)| number(Some(value), *line, "a whole number")).transpose()
    }

    /// The value of a key that every supported kernel prints.
    pub(crate) fn require(&self, key: &'static str) -> Result<u64, Malformed> {
        self.get(key)?.ok_or_else(|| Malformed::new(0, "end of file", key))
    }
}

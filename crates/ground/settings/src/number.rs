//! Numbers without a unit that may have decimals.

use serde::Serialize;

/// A finite number.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct Number(f64);

/// Equality is total: a finite number equals itself.
impl Eq for Number {}

impl Number {
    /// Returns the number, or `None` if it is not finite.
    #[must_use]
    pub fn new(number: f64) -> Option<Self> {
        number.is_finite().then_some(Self(number))
    }

    /// Returns the number in single precision, rounded.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "rounds; models calculate in single precision")]
    pub const fn as_f32(self) -> f32 {
        self.0 as f32
    }
}

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use super::Number;
    use crate::{Document, Group as _, Knob, Schema, Unit};

    crate::tables! {
        /// Numbers.
        struct Table = "numbers", Always {
            whole: Option<i64> = Unit::Integer, "" in "-5" ..= "9223372036854775807", "A test.";
            list: Vec<Number> = Unit::Numbers, "", "A test.";
            named: Option<BTreeMap<String, Number>> = Unit::NamedNumbers, "", "A test.";
        }
    }

    static SCHEMA: Schema = Schema { name: "test", tables: &[Table::TABLE], lists: &[], remedy: |_| None };

    fn read(text: &str) -> Result<Table, String> {
        let document = Document::read(&SCHEMA, Path::new("file"), text);
        let table = document.get();
        document.finish(table).map_err(|problems| problems.to_string())
    }

    #[test]
    fn numbers_are_read_as_they_are_written() {
        let table =
            read("[numbers]\nwhole = 9223372036854775807\nlist = [0.5, 1, -1e-3]\n[numbers.named]\na = 1\n\"b=c\" = 0.25\n").unwrap();
        assert_eq!(table.whole, Some(i64::MAX));
        assert_eq!(table.list.iter().map(|number| number.as_f32()).collect::<Vec<_>>(), [0.5, 1.0, -1e-3]);
        let named = table.named.unwrap();
        assert_eq!(named.iter().map(|(name, number)| (name.as_str(), number.as_f32())).collect::<Vec<_>>(), [("a", 1.0), ("b=c", 0.25)]);
        let empty = read("[numbers]\nlist = []\nnamed = {}\n").unwrap();
        assert_eq!((empty.whole, empty.list.len(), empty.named), (None, 0, Some(BTreeMap::new())));
    }

    #[test]
    fn printed_values_are_read_as_the_same_values() {
        let text = "[numbers]\nwhole = -5\nlist = [0.1, 3]\nnamed = { \"a b\" = 0.1 }\n";
        let table = read(text).unwrap();
        let line = |knob: &Knob| format!("{} = {}\n", knob.name(), knob.to_toml(&table.get(knob.name()).unwrap()));
        let printed = format!("[numbers]\n{}", SCHEMA.knobs().map(line).collect::<String>());
        assert_eq!(printed, text);
    }

    #[test]
    fn other_values_are_refused_with_a_remedy() {
        let check = |text: &str, pieces: &[&str]| {
            let problems = read(&format!("[numbers]\n{text}\n")).unwrap_err();
            assert!(pieces.iter().all(|piece| problems.contains(piece)), "{problems}");
        };
        check("whole = 9223372036854775808", &["numbers.whole", "not a whole number"]);
        check("whole = -6", &["out of range", "-5"]);
        check("whole = \"7\"", &["not a whole number", "whole = 1"]);
        check("list = [nan]", &["numbers.list", "not a finite number"]);
        check("list = [\"0.5\"]", &["not a list of numbers", "list = []"]);
        check("list = [0.5, true]", &["not a list of numbers"]);
        check("list = 0.5", &["not a list of numbers"]);
        check("named = { a = \"b\" }", &["numbers.named", "not a table of numbers"]);
        check("named = { a = inf }", &["not a finite number"]);
    }
}

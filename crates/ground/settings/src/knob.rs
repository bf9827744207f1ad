//! A knob: key, unit, default, range and meaning of one setting.

use serde::Serialize;
use units::quantity::Invalid;

use crate::parse;
use crate::unit::Unit;
use crate::value::{Value, toml_string};

/// One setting that a user may change. [`crate::tables!`] declares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knob {
    /// Its table and its name: `agent.scan_period`. A key at the top level of a file has no table.
    pub key: &'static str,
    /// The unit of its values.
    pub unit: Unit,
    /// Whether a file has to set it.
    pub required: bool,
    /// The value if no file sets one, as a user writes it; empty if there is no default. Of a required knob: an example.
    pub default: &'static str,
    /// The smallest and the largest value allowed, as a user writes them.
    pub range: Option<(&'static str, &'static str)>,
    /// The part of the range that a tuner searches; `None` if the knob is not tuned.
    pub search: Option<Search>,
    /// Its effect, in a sentence or two.
    pub meaning: &'static str,
}

/// The part of a knob's range that a tuner searches, as a user writes it, and the scale of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Search {
    /// The smallest value to try.
    pub low: &'static str,
    /// The largest value to try.
    pub high: &'static str,
    /// The scale on which steps are equal.
    pub scale: Scale,
}

/// The scale on which steps between values of a knob are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// Equal differences.
    Linear,
    /// Equal factors.
    Log,
    /// Equal factors of the remainder to 100 %: the step from 90 % to 99 % equals that from 99 % to 99.9 %.
    Tail,
}

/// A value as found in a file or on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Raw {
    /// Its text, without quotes; of a list, its texts.
    pub(crate) text: String,
    /// The texts of a list, or `name=number` for each entry of a table; empty for other forms.
    pub(crate) items: Vec<String>,
    /// How it was written.
    pub(crate) form: Form,
}

/// How a value was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// In quotes.
    Quoted,
    /// A bare integer or fraction.
    Number,
    /// A bare `true` or `false`.
    Bool,
    /// A bare date and time.
    Time,
    /// A list of texts in quotes, or an empty list.
    Texts,
    /// A list of numbers.
    Numbers,
    /// A table of numbers, or an empty table.
    NamedNumbers,
    /// As an argument of a command, where quotes belong to the shell.
    Argument,
    /// Another list or a table, which no knob takes.
    Other,
}

impl Knob {
    /// Returns the last part of the key.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.key.rsplit_once('.').map_or(self.key, |(_, name)| name)
    }

    /// Returns the tables that the key is in: `class.conservative` of `class.conservative.warmup`.
    #[must_use]
    pub fn table(&self) -> &'static str {
        self.key.rsplit_once('.').map_or("", |(table, _)| table)
    }

    /// Parses a value of this knob, as a user writes it but without quotes.
    ///
    /// # Errors
    /// [`Invalid`] if the text is not a value of the unit or is out of range.
    pub fn parse(&self, text: &str) -> Result<Value, Invalid> {
        self.check(&Raw { text: text.to_owned(), items: Vec::new(), form: Form::Argument })
    }

    /// Parses the default without checking its range; of a required knob, the example.
    pub(crate) fn parse_default(&self) -> Result<Value, Invalid> {
        parse::value(self.unit, self.default)
    }

    /// Parses a value of this knob from a file.
    pub(crate) fn check(&self, raw: &Raw) -> Result<Value, Invalid> {
        self.check_form(raw)?;
        if matches!(raw.form, Form::Texts | Form::Numbers | Form::NamedNumbers) {
            return parse::list(self.unit, &raw.items);
        }
        let value = parse::value(self.unit, &raw.text).map_err(|invalid| match self.unit {
            Unit::Count | Unit::Integer if !self.default.is_empty() => {
                Invalid::new(invalid.message, format!("write a number such as {}", self.default))
            }
            _ => invalid,
        })?;
        let Some((low, high)) = self.range.filter(|_| value != Value::Off) else { return Ok(value) };
        if value < parse::value(self.unit, low)? || value > parse::value(self.unit, high)? {
            let default = if self.required || self.default.is_empty() { String::new() } else { format!(" (default {})", self.default) };
            return Err(Invalid::new("out of range", format!("write a value from {low} to {high}{default}")));
        }
        Ok(value)
    }

    /// Returns the value as TOML. The default is written as it was declared (`120s`, not `2m`).
    #[must_use]
    pub fn to_toml(&self, value: &Value) -> String {
        match value {
            Value::Count(_) | Value::Integer(_) | Value::Bool(_) => value.to_string(),
            Value::Texts(texts) => format!("[{}]", texts.iter().map(|text| toml_string(text)).collect::<Vec<_>>().join(", ")),
            Value::Numbers(_) => format!("[{value}]"),
            Value::NamedNumbers(numbers) => {
                let parts: Vec<_> = numbers.iter().map(|(name, number)| format!("{} = {number}", toml_string(name))).collect();
                format!("{{ {} }}", parts.join(", "))
            }
            _ if self.parse_default().as_ref() == Ok(value) => toml_string(self.default),
            _ => toml_string(&value.to_string()),
        }
    }

    /// Returns the default, or of a required knob the example, as TOML; `None` without one.
    #[must_use]
    pub fn default_toml(&self) -> Option<String> {
        match self.unit {
            _ if self.default.is_empty() && !matches!(self.unit, Unit::Word | Unit::Store) => None,
            Unit::Count | Unit::Integer | Unit::Bool => Some(self.default.to_owned()),
            _ => self.parse_default().ok().map(|value| self.to_toml(&value)),
        }
    }

    fn check_form(&self, raw: &Raw) -> Result<(), Invalid> {
        let fits = match (raw.form, self.unit) {
            (Form::Argument, _) => true,
            (Form::Bool, unit) => unit == Unit::Bool,
            (Form::Time, unit) => unit == Unit::Time,
            (Form::Texts, unit) => unit == Unit::Texts || (unit == Unit::Numbers && raw.items.is_empty()),
            (Form::Numbers, unit) => unit == Unit::Numbers,
            (Form::NamedNumbers, unit) => unit == Unit::NamedNumbers,
            // Accepted here because the parser of the unit can name the missing unit.
            (Form::Number, unit) => unit.is_number(),
            (Form::Quoted, Unit::Bool | Unit::Count | Unit::Integer | Unit::Texts | Unit::Numbers | Unit::NamedNumbers) => false,
            (Form::Quoted, _) => true,
            (Form::Other, _) => false,
        };
        if fits {
            return Ok(());
        }
        let default = self.default_toml().filter(|_| !self.default.is_empty());
        let example = default.unwrap_or_else(|| self.unit.placeholder().to_owned());
        Err(Invalid::new(format!("not a {}", self.unit.name()), format!("write it like this: {} = {example}", self.name())))
    }
}

//! What a knob is: a key, a unit, a default, a range and a meaning; and the values that it takes.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Serialize, Serializer};
use units::quantity::{self, Invalid};
use units::{Bytes, RatioPpm};

use crate::choice::{Actuator, AtLimit, Class, Kind, Policy, Tier, Tracker};

/// One setting that a user may change. All of them are in [`crate::KNOBS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knob {
    /// Its tables and its name: `agent.scan_period`.
    pub key: &'static str,
    /// What its values are.
    pub unit: Unit,
    /// The value where no file sets one, as a user writes it; empty where there is none.
    pub default: &'static str,
    /// The smallest and the largest value allowed, as a user writes them.
    pub range: Option<(&'static str, &'static str)>,
    /// Where to look for better values; `None` where that is not for a tuner to decide.
    pub search: Option<Search>,
    /// What it does, in a sentence or two.
    pub meaning: &'static str,
}

/// The part of a knob's range in which better values may lie, as a user writes them, and how to look there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Search {
    /// The smallest value to try.
    pub low: &'static str,
    /// The largest.
    pub high: &'static str,
    /// Which steps are alike.
    pub scale: Scale,
}

/// Which steps between two values of a knob are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// Equal differences.
    Linear,
    /// Equal factors.
    Log,
    /// Equal factors of what is left to the whole: from 90 % to 99 % as from 99 % to 99.9 %.
    Tail,
}

/// What the values of a knob are, and so how they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// `120s`.
    Duration,
    /// `64MiB`.
    Bytes,
    /// `64MiB/s`.
    BytesPerSecond,
    /// `73%`.
    Ratio,
    /// `0.2%`, each minute.
    RatioPerMinute,
    /// `98%`: the share of the past that lies at or below the value chosen.
    Percentile,
    /// `20%`, without decimals, because the kernel's own parameter has none.
    WholePercent,
    /// `1000`.
    Count,
    /// `true`.
    Bool,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// An absolute path.
    Path,
    /// A word of letters, digits, `-` and `_`, or nothing.
    Word,
    /// A loopback address and port, or `off`.
    Address,
    /// An absolute path, or the URL of an object store; or nothing.
    Store,
    /// A pattern for cgroup paths.
    Glob,
    /// A pattern for names.
    NameGlob,
    /// A key, `=`, and a pattern for its value.
    Annotation,
}

impl Unit {
    /// What the unit is called in the documentation.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Duration => "duration",
            Self::Bytes => "size",
            Self::BytesPerSecond => "size per second",
            Self::Ratio => "ratio",
            Self::RatioPerMinute => "ratio per minute",
            Self::Percentile => "percentile",
            Self::WholePercent => "whole percent",
            Self::Count => "number",
            Self::Bool => "true or false",
            Self::Choice(_) => "choice",
            Self::Path => "path",
            Self::Word => "word",
            Self::Address => "address",
            Self::Store => "path or URL",
            Self::Glob => "pattern",
            Self::NameGlob => "name pattern",
            Self::Annotation => "key=pattern",
        }
    }
}

/// A value of a knob.
#[derive(Clone, Debug, PartialEq, PartialOrd)]
pub enum Value {
    /// A [`Unit::Duration`].
    Duration(Duration),
    /// A [`Unit::Bytes`].
    Bytes(Bytes),
    /// A [`Unit::BytesPerSecond`].
    BytesPerSecond(Bytes),
    /// A [`Unit::Ratio`], [`Unit::RatioPerMinute`], [`Unit::Percentile`] or [`Unit::WholePercent`].
    Ratio(RatioPpm),
    /// A [`Unit::Count`].
    Count(u32),
    /// A [`Unit::Bool`].
    Bool(bool),
    /// A [`Unit::Choice`].
    Choice(&'static str),
    /// A [`Unit::Path`].
    Path(PathBuf),
    /// A [`Unit::Word`], [`Unit::Store`], [`Unit::Glob`], [`Unit::NameGlob`] or [`Unit::Annotation`].
    Text(String),
    /// A [`Unit::Address`]; `None` is `off`.
    Address(Option<SocketAddr>),
}

impl Value {
    /// The value as a number, in seconds, bytes, shares of one or whole numbers, 1 for true; `None` where it is no number.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "for searches and people; the value itself stays exact")]
    pub fn as_number(&self) -> Option<f64> {
        match self {
            Self::Duration(duration) => Some(duration.as_secs_f64()),
            Self::Bytes(bytes) | Self::BytesPerSecond(bytes) => Some(bytes.0 as f64),
            Self::Ratio(ratio) => Some(ratio.as_f64()),
            Self::Count(count) => Some(f64::from(*count)),
            Self::Bool(on) => Some(f64::from(u8::from(*on))),
            Self::Choice(_) | Self::Path(_) | Self::Text(_) | Self::Address(_) => None,
        }
    }
}

impl fmt::Display for Value {
    /// As a user writes it, without quotes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Duration(duration) => f.write_str(&quantity::print_duration(*duration)),
            Self::Bytes(bytes) => f.write_str(&quantity::print_bytes(*bytes)),
            Self::BytesPerSecond(bytes) => write!(f, "{}/s", quantity::print_bytes(*bytes)),
            Self::Ratio(ratio) => f.write_str(&quantity::print_ratio(*ratio)),
            Self::Count(count) => write!(f, "{count}"),
            Self::Bool(on) => write!(f, "{on}"),
            Self::Choice(name) => f.write_str(name),
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Text(text) => f.write_str(text),
            Self::Address(Some(address)) => write!(f, "{address}"),
            Self::Address(None) => f.write_str("off"),
        }
    }
}

impl Serialize for Value {
    /// Numbers and booleans as themselves, all else as the text that a user writes, so that what is printed as JSON
    /// can be written into a configuration file.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Count(count) => serializer.serialize_u32(*count),
            Self::Bool(on) => serializer.serialize_bool(*on),
            _ => serializer.collect_str(self),
        }
    }
}

/// A value as found in a file or on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Raw {
    /// Its text, without quotes.
    pub(crate) text: String,
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
    /// As an argument of a command, where quotes are the shell's.
    Argument,
    /// A date, a list or a table: nothing that any knob takes.
    Other,
}

impl Knob {
    /// The last part of the key.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.key.rsplit_once('.').map_or(self.key, |(_, name)| name)
    }

    /// The tables that the key is in: `class.conservative` of `class.conservative.warmup`.
    #[must_use]
    pub fn table(&self) -> &'static str {
        self.key.rsplit_once('.').map_or("", |(table, _)| table)
    }

    /// Reads a value of this knob, as a user writes it but without quotes.
    ///
    /// # Errors
    /// [`Invalid`] where the text is no value of the unit or out of range.
    pub fn parse(&self, text: &str) -> Result<Value, Invalid> {
        self.check(&Raw { text: text.to_owned(), form: Form::Argument })
    }

    /// As [`Self::parse`], for a value that has quotes or lacks them.
    pub(crate) fn check(&self, raw: &Raw) -> Result<Value, Invalid> {
        self.check_form(raw)?;
        let value = self.read(&raw.text)?;
        let Some((low, high)) = self.range else { return Ok(value) };
        if value < self.read(low)? || value > self.read(high)? {
            return Err(Invalid::new("out of range", format!("write a value from {low} to {high} (default {})", self.default)));
        }
        Ok(value)
    }

    /// The value as a TOML file has it. The default is written as the table writes it (`120s`, not `2m`).
    #[must_use]
    pub fn to_toml(&self, value: &Value) -> String {
        match value {
            Value::Count(_) | Value::Bool(_) => value.to_string(),
            _ if self.read(self.default).as_ref() == Ok(value) => toml_string(self.default),
            _ => toml_string(&value.to_string()),
        }
    }

    fn check_form(&self, raw: &Raw) -> Result<(), Invalid> {
        let fits = match (raw.form, self.unit) {
            (Form::Argument, _) => true,
            (Form::Bool, unit) => unit == Unit::Bool,
            // Passed on, because the reader of the unit knows best which unit is missing.
            (
                Form::Number,
                Unit::Word
                | Unit::Choice(_)
                | Unit::Path
                | Unit::Address
                | Unit::Store
                | Unit::Glob
                | Unit::NameGlob
                | Unit::Annotation
                | Unit::Bool,
            ) => false,
            (Form::Number, _) => true,
            (Form::Quoted, unit) => !matches!(unit, Unit::Bool | Unit::Count),
            (Form::Other, _) => false,
        };
        if fits {
            return Ok(());
        }
        let example = if self.default.is_empty() { "a text in quotes".to_owned() } else { self.toml_default() };
        Err(Invalid::new(format!("not a {}", self.unit.name()), format!("write it like this: {} = {example}", self.name())))
    }

    fn toml_default(&self) -> String {
        if matches!(self.unit, Unit::Count | Unit::Bool) { self.default.to_owned() } else { toml_string(self.default) }
    }

    fn read(&self, text: &str) -> Result<Value, Invalid> {
        let text = text.trim();
        match self.unit {
            Unit::Duration => quantity::parse_duration(text).map(Value::Duration),
            Unit::Bytes => quantity::parse_bytes(text).map(Value::Bytes),
            Unit::BytesPerSecond => quantity::parse_rate(text).map(Value::BytesPerSecond),
            Unit::Ratio | Unit::RatioPerMinute | Unit::Percentile => quantity::parse_ratio(text).map(Value::Ratio),
            Unit::WholePercent => match quantity::parse_ratio(text)? {
                RatioPpm(ppm) if ppm % 10_000 == 0 => Ok(Value::Ratio(RatioPpm(ppm))),
                _ => Err(Invalid::new("not a whole number of percent", "leave out the decimals: the kernel's parameter has none")),
            },
            Unit::Count => {
                let count = text.parse();
                count.map(Value::Count).map_err(|_| Invalid::new("not a whole number", format!("write a number such as {}", self.default)))
            }
            Unit::Bool => match text {
                "true" => Ok(Value::Bool(true)),
                "false" => Ok(Value::Bool(false)),
                _ => Err(Invalid::new("neither true nor false", "write true or false")),
            },
            Unit::Choice(names) => match names.iter().find(|name| **name == text) {
                Some(name) => Ok(Value::Choice(name)),
                None => Err(Invalid::new("not a choice", format!("write one of {}", names.join(", ")))),
            },
            Unit::Path => read_path(text),
            Unit::Word => match text.chars().find(|c| !c.is_ascii_alphanumeric() && !"-_".contains(*c)) {
                None => Ok(Value::Text(text.to_owned())),
                Some(_) => Err(Invalid::new("not a word", "write letters, digits, - and _ only")),
            },
            Unit::Address => read_address(text),
            Unit::Store => read_store(text),
            Unit::Glob => crate::job::read_glob(text).map(Value::Text),
            Unit::NameGlob => crate::job::read_name_glob(text).map(Value::Text),
            Unit::Annotation => crate::job::read_annotation(text).map(Value::Text),
        }
    }
}

fn read_path(text: &str) -> Result<Value, Invalid> {
    let path = PathBuf::from(text);
    if !path.is_absolute() {
        return Err(Invalid::new("not an absolute path", "write it from the root, starting with /"));
    }
    if text.contains('\0') || path.components().any(|part| part == std::path::Component::ParentDir) {
        return Err(Invalid::new("a path with .. or a zero byte in it", "write the path that is meant, without detours"));
    }
    Ok(Value::Path(path))
}

fn read_store(text: &str) -> Result<Value, Invalid> {
    match text.split_once("://") {
        None if text.is_empty() => Ok(Value::Text(String::new())),
        None => read_path(text).map(|_| Value::Text(text.to_owned())),
        Some(("s3", bucket)) if !bucket.is_empty() && !bucket.starts_with('/') => Ok(Value::Text(text.to_owned())),
        Some(_) => Err(Invalid::new("no store", "write an absolute path, or s3://bucket/prefix")),
    }
}

/// Metrics tell what runs on a machine and are not encrypted, so they are served to the machine itself only.
fn read_address(text: &str) -> Result<Value, Invalid> {
    if text == "off" {
        return Ok(Value::Address(None));
    }
    let address: SocketAddr = text.parse().map_err(|_| {
        Invalid::new("not an address", "write an address and a port, such as \"127.0.0.1:9180\" or \"[::1]:9180\", or \"off\"")
    })?;
    if !address.ip().is_loopback() {
        return Err(Invalid::new(
            "reachable from other machines",
            "write a loopback address (127.0.0.1 or [::1]) and put a proxy of your own before it",
        ));
    }
    Ok(Value::Address(Some(address)))
}

/// `text` as a basic string of TOML.
pub(crate) fn toml_string(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// A type that a knob's value is kept in.
pub(crate) trait Setting: Sized {
    /// Out of a value; `None` where the table gives the knob a unit that the type does not hold.
    fn from_value(value: Value) -> Option<Self>;
    /// Into a value of `unit`.
    fn to_value(&self, unit: Unit) -> Value;
}

macro_rules! setting {
    ($($type:ty: $variant:ident),* $(,)?) => {$(
        impl Setting for $type {
            fn from_value(value: Value) -> Option<Self> {
                if let Value::$variant(value) = value { Some(value) } else { None }
            }
            fn to_value(&self, _: Unit) -> Value {
                Value::$variant(self.clone())
            }
        }
    )*};
}

setting!(Duration: Duration, RatioPpm: Ratio, u32: Count, bool: Bool, PathBuf: Path, String: Text, Option<SocketAddr>: Address);

impl Setting for Bytes {
    fn from_value(value: Value) -> Option<Self> {
        if let Value::Bytes(bytes) | Value::BytesPerSecond(bytes) = value { Some(bytes) } else { None }
    }
    fn to_value(&self, unit: Unit) -> Value {
        if unit == Unit::BytesPerSecond { Value::BytesPerSecond(*self) } else { Value::Bytes(*self) }
    }
}

macro_rules! choice_setting {
    ($($type:ty),*) => {$(
        impl Setting for $type {
            fn from_value(value: Value) -> Option<Self> {
                if let Value::Choice(name) = value { Self::from_name(name) } else { None }
            }
            fn to_value(&self, _: Unit) -> Value {
                Value::Choice(self.as_str())
            }
        }
    )*};
}

choice_setting!(Tracker, Actuator, AtLimit, Class, Kind, Policy, Tier);

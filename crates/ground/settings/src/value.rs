//! Values of knobs, and the Rust types that hold them.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Serialize, Serializer};
use units::quantity;
use units::{Bytes, RatioPpm};

use crate::number::Number;
use crate::unit::Unit;

/// A value of a knob.
#[derive(Clone, Debug, PartialEq, PartialOrd)]
pub enum Value {
    /// A [`Unit::Duration`], or a [`Unit::DurationOrOff`] that is not off.
    Duration(Duration),
    /// A [`Unit::Bytes`].
    Bytes(Bytes),
    /// A [`Unit::BytesPerSecond`].
    BytesPerSecond(Bytes),
    /// A [`Unit::Ratio`], [`Unit::RatioPerMinute`], [`Unit::Percentile`] or [`Unit::WholePercent`].
    Ratio(RatioPpm),
    /// A [`Unit::Count`].
    Count(u32),
    /// A [`Unit::Integer`].
    Integer(i64),
    /// A [`Unit::Bool`].
    Bool(bool),
    /// A [`Unit::Choice`].
    Choice(&'static str),
    /// A [`Unit::Path`], a [`Unit::PathOrOff`] that is not off, a [`Unit::RelativePath`] or [`Unit::Program`].
    Path(PathBuf),
    /// A [`Unit::Word`], [`Unit::Text`], [`Unit::Store`], [`Unit::Url`], [`Unit::Time`], [`Unit::Mode`], [`Unit::Glob`],
    /// [`Unit::NameGlob`] or [`Unit::Annotation`].
    Text(String),
    /// A [`Unit::Texts`].
    Texts(Vec<String>),
    /// A [`Unit::Numbers`].
    Numbers(Vec<Number>),
    /// A [`Unit::NamedNumbers`].
    NamedNumbers(BTreeMap<String, Number>),
    /// A [`Unit::Address`] that is not off, or a [`Unit::Listen`].
    Address(SocketAddr),
    /// `off`, or a knob without a default that is not set.
    Off,
}

impl Value {
    /// Returns the value as a number in seconds, bytes, shares of one or whole numbers, 1 for true; `None` if it is not a number.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "for searches and people; the value itself stays exact")]
    pub fn as_number(&self) -> Option<f64> {
        match self {
            Self::Duration(duration) => Some(duration.as_secs_f64()),
            Self::Bytes(bytes) | Self::BytesPerSecond(bytes) => Some(bytes.0 as f64),
            Self::Ratio(ratio) => Some(ratio.as_f64()),
            Self::Count(count) => Some(f64::from(*count)),
            Self::Integer(number) => Some(*number as f64),
            Self::Bool(on) => Some(f64::from(u8::from(*on))),
            Self::Choice(_) | Self::Path(_) | Self::Text(_) | Self::Texts(_) => None,
            Self::Numbers(_) | Self::NamedNumbers(_) | Self::Address(_) | Self::Off => None,
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
            Self::Integer(number) => write!(f, "{number}"),
            Self::Bool(on) => write!(f, "{on}"),
            Self::Choice(name) => f.write_str(name),
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Text(text) => f.write_str(text),
            Self::Texts(texts) => f.write_str(&texts.join(", ")),
            Self::Numbers(numbers) => f.write_str(&joined(numbers.iter().map(Number::to_string))),
            Self::NamedNumbers(numbers) => f.write_str(&joined(numbers.iter().map(|(name, number)| format!("{name}={number}")))),
            Self::Address(address) => write!(f, "{address}"),
            Self::Off => f.write_str("off"),
        }
    }
}

/// Returns the parts of a list as a user writes them, without brackets.
fn joined(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(", ")
}

impl Serialize for Value {
    /// Numbers, booleans and lists as themselves, all else as the text that a user writes, so that printed JSON can be copied
    /// into a configuration file.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Count(count) => serializer.serialize_u32(*count),
            Self::Bool(on) => serializer.serialize_bool(*on),
            Self::Integer(number) => serializer.serialize_i64(*number),
            Self::Texts(texts) => texts.serialize(serializer),
            Self::Numbers(numbers) => numbers.serialize(serializer),
            Self::NamedNumbers(numbers) => numbers.serialize(serializer),
            _ => serializer.collect_str(self),
        }
    }
}

/// Returns `text` as a basic string of TOML.
#[must_use]
pub fn toml_string(text: &str) -> String {
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

/// A Rust type that holds a knob's value.
pub trait Setting: Sized {
    /// Converts from a value; `None` if the type does not hold values of this unit or size.
    fn from_value(value: Value) -> Option<Self>;

    /// Converts to a value of `unit`.
    fn to_value(&self, unit: Unit) -> Value;

    /// Returns the value of a knob that has no default and is not set; `None` if the type requires a value.
    #[must_use]
    fn unset() -> Option<Self> {
        None
    }
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

setting!(
    Duration: Duration,
    RatioPpm: Ratio,
    u32: Count,
    i64: Integer,
    bool: Bool,
    PathBuf: Path,
    String: Text,
    Vec<String>: Texts,
    Vec<Number>: Numbers,
    BTreeMap<String, Number>: NamedNumbers,
    SocketAddr: Address,
);

macro_rules! narrower_count {
    ($($type:ty),*) => {$(
        impl Setting for $type {
            fn from_value(value: Value) -> Option<Self> {
                if let Value::Count(value) = value { value.try_into().ok() } else { None }
            }

            fn to_value(&self, _: Unit) -> Value {
                Value::Count(u32::try_from(*self).unwrap_or(u32::MAX))
            }
        }
    )*};
}

narrower_count!(u8, u16, u64, usize);

impl Setting for Bytes {
    fn from_value(value: Value) -> Option<Self> {
        if let Value::Bytes(bytes) | Value::BytesPerSecond(bytes) = value { Some(bytes) } else { None }
    }

    fn to_value(&self, unit: Unit) -> Value {
        if unit == Unit::BytesPerSecond { Value::BytesPerSecond(*self) } else { Value::Bytes(*self) }
    }
}

impl<T: Setting> Setting for Option<T> {
    fn from_value(value: Value) -> Option<Self> {
        if value == Value::Off { Some(None) } else { T::from_value(value).map(Some) }
    }

    fn to_value(&self, unit: Unit) -> Value {
        self.as_ref().map_or(Value::Off, |value| value.to_value(unit))
    }

    fn unset() -> Option<Self> {
        Some(None)
    }
}

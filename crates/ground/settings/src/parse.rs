//! Parses the text of a value by its unit.

use std::net::SocketAddr;
use std::path::{Component, PathBuf};

use units::RatioPpm;
use units::quantity;
use units::quantity::{Invalid, excerpt};

use crate::number::Number;
use crate::patterns;
use crate::unit::Unit;
use crate::value::Value;

/// Millionths in one percent.
const PPM_PER_PERCENT: u32 = 10_000;

/// The longest text, in bytes.
const TEXT_BYTES_MAX: usize = 4096;

/// Parses `text` as a value of `unit`, without regard to a knob's range.
pub(crate) fn value(unit: Unit, text: &str) -> Result<Value, Invalid> {
    let text = text.trim();
    match unit {
        Unit::Duration => quantity::parse_duration(text).map(Value::Duration),
        Unit::DurationOrOff if text == "off" => Ok(Value::Off),
        Unit::DurationOrOff => quantity::parse_duration(text).map(Value::Duration),
        Unit::Bytes => quantity::parse_bytes(text).map(Value::Bytes),
        Unit::BytesPerSecond => quantity::parse_rate(text).map(Value::BytesPerSecond),
        Unit::Ratio | Unit::RatioPerMinute | Unit::Percentile => quantity::parse_ratio(text).map(Value::Ratio),
        Unit::WholePercent => whole_percent(text),
        Unit::Count => text.parse().map(Value::Count).map_err(|_| Invalid::new("not a whole number", "write a number such as 10")),
        Unit::Integer => text.parse().map(Value::Integer).map_err(|_| Invalid::new("not a whole number", "write a number such as 10")),
        Unit::Bool => match text {
            "true" => Ok(Value::Bool(true)),
            "false" => Ok(Value::Bool(false)),
            _ => Err(Invalid::new("neither true nor false", "write true or false")),
        },
        Unit::Choice(names) => match names.iter().find(|name| **name == text) {
            Some(name) => Ok(Value::Choice(name)),
            None => Err(Invalid::new("not a choice", format!("write one of {}", names.join(", ")))),
        },
        Unit::PathOrOff if text == "off" => Ok(Value::Off),
        Unit::Path | Unit::PathOrOff => absolute_path(text),
        Unit::RelativePath | Unit::Program => path(text),
        Unit::Mode => mode(text),
        Unit::Word => match text.chars().find(|c| !c.is_ascii_alphanumeric() && !"-_".contains(*c)) {
            None => Ok(Value::Text(text.to_owned())),
            Some(_) => Err(Invalid::new("not a word", "write letters, digits, - and _ only")),
        },
        Unit::Text | Unit::Time => one_line(text),
        Unit::Texts | Unit::Numbers | Unit::NamedNumbers => {
            let items: Vec<_> = text.split(',').map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect();
            list(unit, &items)
        }
        Unit::Address if text == "off" => Ok(Value::Off),
        Unit::Address => loopback_address(text),
        Unit::Listen => address(text).map(Value::Address),
        Unit::Store => store(text),
        Unit::Url => match text.strip_prefix("http://").or_else(|| text.strip_prefix("https://")) {
            Some(rest) if !rest.is_empty() => one_line(text),
            _ => Err(Invalid::new("not a URL", "start it with http:// or https://")),
        },
        Unit::Glob => patterns::read_glob(text).map(Value::Text),
        Unit::NameGlob => patterns::read_name_glob(text).map(Value::Text),
        Unit::Annotation => patterns::read_annotation(text).map(Value::Text),
    }
}

/// Parses the items of a list or table as a value of `unit`. Those of a table are written `name=number`.
pub(crate) fn list(unit: Unit, items: &[String]) -> Result<Value, Invalid> {
    match unit {
        Unit::Numbers => items.iter().map(|text| number(text)).collect::<Result<_, _>>().map(Value::Numbers),
        Unit::NamedNumbers => {
            let named = |item: &String| match item.rsplit_once('=') {
                Some((name, text)) => Ok((name.to_owned(), number(text)?)),
                None => Err(Invalid::new("not a number with its name", "write name=number")),
            };
            items.iter().map(named).collect::<Result<_, _>>().map(Value::NamedNumbers)
        }
        _ => Ok(Value::Texts(items.to_vec())),
    }
}

fn number(text: &str) -> Result<Number, Invalid> {
    let number = text.trim().parse().ok().and_then(Number::new);
    number.ok_or_else(|| Invalid::new(format!("{} is not a finite number", excerpt(text)), "write numbers such as 0.5"))
}

fn whole_percent(text: &str) -> Result<Value, Invalid> {
    match quantity::parse_ratio(text)? {
        RatioPpm(ppm) if ppm % PPM_PER_PERCENT == 0 => Ok(Value::Ratio(RatioPpm(ppm))),
        _ => Err(Invalid::new("not a whole number of percent", "leave out the decimals: the kernel's parameter has none")),
    }
}

fn one_line(text: &str) -> Result<Value, Invalid> {
    if text.is_empty() || text.len() > TEXT_BYTES_MAX || text.chars().any(char::is_control) {
        return Err(Invalid::new("not a short text", format!("write 1 to {TEXT_BYTES_MAX} bytes on one line")));
    }
    Ok(Value::Text(text.to_owned()))
}

fn path(text: &str) -> Result<Value, Invalid> {
    if text.is_empty() || text.contains('\0') {
        return Err(Invalid::new("not a path", "write the path of a file, such as \"/etc/thermocline/pool.toml\""));
    }
    Ok(Value::Path(PathBuf::from(text)))
}

fn absolute_path(text: &str) -> Result<Value, Invalid> {
    let path = PathBuf::from(text);
    if !path.is_absolute() {
        return Err(Invalid::new("not an absolute path", "write it from the root, starting with /"));
    }
    if text.contains('\0') || path.components().any(|part| part == Component::ParentDir) {
        return Err(Invalid::new("a path that contains .. or a zero byte", "write the path without .."));
    }
    Ok(Value::Path(path))
}

/// Permissions with at least those of the owner, because a file that its owner cannot use serves no purpose.
fn mode(text: &str) -> Result<Value, Invalid> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 && mode & 0o600 == 0o600 => Ok(Value::Text(text.to_owned())),
        _ => Err(Invalid::new("not permissions that let the owner read and write", "write 0600, or 0660 to include the group")),
    }
}

fn store(text: &str) -> Result<Value, Invalid> {
    match text.split_once("://") {
        None if text.is_empty() => Ok(Value::Text(String::new())),
        None => absolute_path(text).map(|_| Value::Text(text.to_owned())),
        Some(("s3", bucket)) if !bucket.is_empty() && !bucket.starts_with('/') => Ok(Value::Text(text.to_owned())),
        Some(_) => Err(Invalid::new("not a store", "write an absolute path, or s3://bucket/prefix")),
    }
}

fn address(text: &str) -> Result<SocketAddr, Invalid> {
    text.parse().map_err(|_| {
        Invalid::new("not an address", "write an address and a port, such as \"127.0.0.1:9180\" or \"[::1]:9180\", or \"off\"")
    })
}

/// Metrics reveal what runs on a machine and are not encrypted, so they are only served to the machine itself.
fn loopback_address(text: &str) -> Result<Value, Invalid> {
    let address = address(text)?;
    if !address.ip().is_loopback() {
        return Err(Invalid::new(
            "reachable from other machines",
            "write a loopback address (127.0.0.1 or [::1]) and use a proxy to publish it",
        ));
    }
    Ok(Value::Address(address))
}

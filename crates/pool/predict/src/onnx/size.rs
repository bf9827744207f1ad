//! The memory that a model takes, by its bytes, before anything of it is decoded.
//!
//! An empty attribute takes two bytes in the file and over a hundred decoded, so that the size of a file does not limit its memory.

use super::{Attribute, Entry, Node};

/// Memory that any file may take.
const ALLOWANCE_BYTES: u64 = 128 << 20;
/// Memory per byte of the file beyond the allowance.
const FACTOR: u64 = 4;
/// A list that grows by doubling: while it is copied, its old and its new place exist.
const GROWTH: u64 = 3;
/// What an allocation takes beyond its size.
const ALLOCATION_BYTES: u64 = 16;
/// Memory of a tree's node while the forest is built: its place by number, its branches, its feature, and the node itself.
const FOREST_NODE_BYTES: u64 = 176;
/// Memory per byte of the metadata's text: short keys of maps.
const METADATA_FACTOR: u64 = 48;

/// Returns the memory that reading a file of this size may take.
#[must_use]
pub(crate) fn allowed(file_bytes: u64) -> u64 {
    ALLOWANCE_BYTES + FACTOR * file_bytes
}

/// Checks the memory that a model takes. The error names the problem.
pub(crate) fn check(bytes: &[u8]) -> Result<(), String> {
    let file = bytes.len() as u64;
    let needed = model(bytes).ok_or("not an ONNX model: its protocol buffer is damaged")?.saturating_add(file);
    let limit = allowed(file);
    if needed > limit {
        return Err(format!("the model takes {needed} bytes of memory; the limit for a file of {file} bytes is {limit}"));
    }
    Ok(())
}

/// Sums up the fields of a message; `None` if it is damaged.
fn sum(mut bytes: &[u8], field: impl Fn(u64, Value<'_>) -> Option<u64>) -> Option<u64> {
    let mut total = 0u64;
    while !bytes.is_empty() {
        let (number, value) = next(&mut bytes)?;
        total = total.saturating_add(field(number, value)?);
    }
    Some(total)
}

fn model(bytes: &[u8]) -> Option<u64> {
    sum(bytes, |field, value| match (field, value) {
        (7, Value::Bytes(graph)) => sum(graph, |field, value| match (field, value) {
            (1, Value::Bytes(node)) => Some(element::<Node>().saturating_add(operator(node)?)),
            _ => Some(0),
        }),
        (14, Value::Bytes(entry)) => Some(element::<Entry>() + METADATA_FACTOR * entry.len() as u64),
        _ => Some(0),
    })
}

fn operator(bytes: &[u8]) -> Option<u64> {
    sum(bytes, |field, value| match (field, value) {
        (4, Value::Bytes(name)) => Some(text(name)),
        (5, Value::Bytes(attribute)) => Some(element::<Attribute>().saturating_add(sum(attribute, of_attribute)?)),
        _ => Some(0),
    })
}

fn of_attribute(field: u64, value: Value<'_>) -> Option<u64> {
    Some(match (field, value) {
        (1 | 4, Value::Bytes(name)) => text(name),
        // Packed numbers: four bytes each, and one of the bytes of each that ends it.
        (7, Value::Bytes(floats)) => GROWTH * floats.len() as u64,
        (8, Value::Bytes(ints)) => element::<i64>() * ints.iter().filter(|&&byte| byte < 0x80).count() as u64,
        (7 | 8, _) => element::<i64>(),
        // One text per node of a tree: its mode.
        (9, Value::Bytes(mode)) => element::<Vec<u8>>() + text(mode) + FOREST_NODE_BYTES,
        _ => 0,
    })
}

fn element<T>() -> u64 {
    GROWTH * size_of::<T>() as u64
}

fn text(bytes: &[u8]) -> u64 {
    bytes.len() as u64 + ALLOCATION_BYTES
}

/// The value of a field.
enum Value<'a> {
    Number,
    Bytes(&'a [u8]),
}

/// Reads the next field: its number and value.
fn next<'a>(bytes: &mut &'a [u8]) -> Option<(u64, Value<'a>)> {
    let key = varint(bytes)?;
    let value = match key & 7 {
        0 => {
            varint(bytes)?;
            Value::Number
        }
        1 => skip(bytes, 8)?,
        2 => {
            let length = usize::try_from(varint(bytes)?).ok()?;
            let (value, rest) = bytes.split_at_checked(length)?;
            *bytes = rest;
            Value::Bytes(value)
        }
        5 => skip(bytes, 4)?,
        // Groups are not part of the format.
        _ => return None,
    };
    Some((key >> 3, value))
}

fn skip<'a>(bytes: &mut &'a [u8], length: usize) -> Option<Value<'a>> {
    *bytes = bytes.split_at_checked(length)?.1;
    Some(Value::Number)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trained_models_of_six_mib_fit() {
        for bytes in [&include_bytes!("../../testdata/untouched.onnx")[..], include_bytes!("../../testdata/insensitive.onnx")] {
            let (file, largest) = (bytes.len() as u64, 6 << 20);
            let needed = model(bytes).unwrap() + file;
            assert!(needed * largest / file <= allowed(largest), "a file of {file} bytes takes {needed} bytes of memory");
        }
    }

    #[test]
    fn a_truncated_message_is_refused() {
        // Metadata, with a length of three, of which two bytes follow.
        assert!(check(&[0x72, 3, 0, 0]).unwrap_err().contains("damaged"));
        assert!(check(&[0x72, 2, 0, 0]).is_ok());
    }
}

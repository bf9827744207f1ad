//! Swap areas: `/proc/swaps`.
//!
//! ```text
//! Filename                                Type            Size            Used            Priority
//! /dev/vdb                                partition       1048572         0               -2
//! ```
//! Sizes are in KiB.

use serde::Serialize;
use units::Bytes;

use crate::{Malformed, Result, Roots, file, text};

/// One active swap area.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SwapArea {
    /// The device or file, unescaped.
    pub name: String,
    /// The type of its storage.
    pub kind: SwapKind,
    /// Total size.
    pub size: Bytes,
    /// Used size. Includes the slots of pages that are stored in zswap.
    pub used: Bytes,
    /// The area with the highest priority is filled first.
    pub priority: i32,
}

/// The storage of a swap area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SwapKind {
    /// A block device.
    Partition,
    /// A file in a file system.
    File,
}

/// Parses `/proc/swaps`.
///
/// # Errors
/// [`Malformed`] if the heading is missing or a row does not have its five fields.
pub fn parse(text: &str) -> Result<Vec<SwapArea>, Malformed> {
    let mut rows = text::lines(text);
    match rows.next() {
        Some((_, heading)) if heading.trim_end().ends_with("Priority") => {}
        other => {
            let found = other.map_or("", |(_, heading)| heading);
            return Err(Malformed::new(1, found, "the heading Filename ... Priority"));
        }
    }
    rows.map(|(line, row)| {
        let mut fields = row.split_ascii_whitespace();
        let name = fields.next().ok_or_else(|| Malformed::new(line, row, "a swap area"))?;
        let kind = match fields.next() {
            Some("partition") => SwapKind::Partition,
            Some("file") => SwapKind::File,
            _ => return Err(Malformed::new(line, row, "partition or file in the second field")),
        };
        let mut size = || {
            let kib: u64 = text::number(fields.next(), line, "a number of KiB")?;
            Ok(Bytes(kib.saturating_mul(1024)))
        };
        let (total, used) = (size()?, size()?);
        let priority = text::number(fields.next(), line, "a priority")?;
        Ok(SwapArea { name: unescape(name), kind, size: total, used, priority })
    })
    .collect()
}

/// Decodes the `\ooo` escapes of spaces and backslashes.
pub(crate) fn unescape(name: &str) -> String {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|_| first == b'\\').and_then(|digits| {
            digits.iter().try_fold(0u8, |value, digit| {
                let digit = digit.checked_sub(b'0').filter(|digit| *digit < 8)?;
                value.checked_mul(8)?.checked_add(digit)
            })
        });
        bytes.push(octal.unwrap_or(first));
        rest = if octal.is_some() { &tail[3..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Reads the active swap areas; empty without swap areas or on a kernel built without swap.
///
/// # Errors
/// [`crate::Error::Parse`], [`crate::Error::Io`].
pub fn read(roots: &Roots) -> Result<Vec<SwapArea>> {
    let path = roots.proc.join("swaps");
    match file::read_optional(&path, file::SMALL)? {
        Some(text) => parse(&text).map_err(|malformed| malformed.at(&path)),
        None => Ok(Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{cut_everywhere, tree};

    const CAPTURED: &str = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
                            /dev/vdb                                partition\t1048572\t\t12\t\t-2\n\
                            /var/a\\040swap\\040file                   file\t\t4\t\t0\t\t100\n";

    #[test]
    fn names_of_areas_are_unescaped() {
        let (_keep, roots) = tree(&[("proc/swaps", CAPTURED)]);
        let area =
            |name: &str, kind, size, used, priority| SwapArea { name: name.into(), kind, size: Bytes(size), used: Bytes(used), priority };
        let expected =
            [area("/dev/vdb", SwapKind::Partition, 1_048_572 << 10, 12 << 10, -2), area("/var/a swap file", SwapKind::File, 4096, 0, 100)];
        assert_eq!(read(&roots).unwrap(), expected);
        cut_everywhere(CAPTURED, parse);
    }

    #[test]
    fn no_swap_is_an_empty_list() {
        let (_keep, roots) = tree(&[("proc/swaps", "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n")]);
        assert_eq!(read(&roots).unwrap(), []);
        let (_keep, roots) = tree(&[("proc/meminfo", "")]);
        assert_eq!(read(&roots).unwrap(), []);
        assert_eq!(parse("").unwrap_err().line, 1);
    }

    #[test]
    fn incomplete_escapes_are_kept() {
        for (escaped, name) in [("a\\040b", "a b"), ("\\134", "\\"), ("\\", "\\"), ("\\04", "\\04"), ("\\089", "\\089"), ("\\777", "\\777")]
        {
            assert_eq!(unescape(escaped), name);
        }
    }
}

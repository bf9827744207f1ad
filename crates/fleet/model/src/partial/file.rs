//! Partials as files: a mark, a version, the value, a checksum.

use std::path::Path;

use store::FileError;
use twox_hash::XxHash64;

use super::{Error, Partial};

/// What such a file begins with.
const MARK: &[u8; 8] = b"TCTALLY\n";

/// Goes up when the layout changes, and when the same traces come to other sums: of neither may two be mixed.
const VERSION: u32 = 1;

/// Bytes around the value: mark, version and checksum.
const FRAME: usize = MARK.len() + size_of::<u32>() + size_of::<u64>();

impl Partial {
    /// As bytes.
    ///
    /// # Errors
    /// [`Error::Damaged`] where it cannot be expressed, with `path` as its name.
    pub fn encode(&self, path: &Path) -> Result<Vec<u8>, Error> {
        let mut bytes = MARK.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        let mut bytes = postcard::to_extend(self, bytes).map_err(|error| damaged(path, format!("cannot be written: {error}")))?;
        let checksum = XxHash64::oneshot(0, &bytes);
        bytes.extend(checksum.to_le_bytes());
        Ok(bytes)
    }

    /// From bytes; `path` is what they are called in errors.
    ///
    /// # Errors
    /// [`Error::Damaged`] and [`Error::Version`].
    pub fn decode(bytes: &[u8], path: &Path) -> Result<Self, Error> {
        let Some(rest) = bytes.strip_prefix(MARK) else {
            return Err(damaged(path, "is no tally; they are made by thermocline model --tally"));
        };
        let truncated = || damaged(path, "ends too early; replay its part again");
        let (version, rest) = rest.split_first_chunk().ok_or_else(truncated)?;
        let found = u32::from_le_bytes(*version);
        if found != VERSION {
            return Err(Error::Version { path: path.to_owned(), found, known: VERSION });
        }
        let (value, checksum) = rest.split_last_chunk().ok_or_else(truncated)?;
        if u64::from_le_bytes(*checksum) != XxHash64::oneshot(0, &bytes[..FRAME - size_of::<u64>() + value.len()]) {
            return Err(damaged(path, "its checksum does not agree; replay its part again"));
        }
        let partial: Self = postcard::from_bytes(value).map_err(|error| damaged(path, format!("is no sound tally: {error}")))?;
        if partial.is_sound() { Ok(partial) } else { Err(damaged(path, "holds sums that no fleet can have; replay its part again")) }
    }

    /// Writes it to a file, which appears whole or not at all.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        Ok(store::file::replace(path, &self.encode(path)?)?)
    }

    /// Reads it from a file.
    ///
    /// # Errors
    /// [`Error`].
    pub fn read(path: &Path) -> Result<Self, Error> {
        let bytes = std::fs::read(path).map_err(FileError::at(path, "read"))?;
        Self::decode(&bytes, path)
    }
}

fn damaged(path: &Path, what: impl Into<String>) -> Error {
    Error::Damaged { path: path.to_owned(), what: what.into() }
}

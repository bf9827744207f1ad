//! The file format of partials: magic bytes, version, value, checksum.

use std::path::Path;

use store::FileError;
use twox_hash::XxHash64;

use super::{Error, Partial};

/// First bytes of a tally file.
const MAGIC: &[u8; 8] = b"TCTALLY\n";

/// Increased when the layout changes, and when the same traces give other sums: such tallies must not be added.
const VERSION: u32 = 2;

/// Size of everything but the value: magic bytes, version and checksum.
const FRAME: usize = MAGIC.len() + size_of::<u32>() + size_of::<u64>();

impl Partial {
    /// Encodes the partial as bytes.
    ///
    /// # Errors
    /// [`Error::Damaged`] if it cannot be encoded; `path` is its name in errors.
    pub fn encode(&self, path: &Path) -> Result<Vec<u8>, Error> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        let mut bytes = postcard::to_extend(self, bytes).map_err(|error| damaged(path, format!("cannot be written: {error}")))?;
        let checksum = XxHash64::oneshot(0, &bytes);
        bytes.extend(checksum.to_le_bytes());
        Ok(bytes)
    }

    /// Decodes a partial; `path` is its name in errors.
    ///
    /// # Errors
    /// [`Error::Damaged`] and [`Error::Version`].
    pub fn decode(bytes: &[u8], path: &Path) -> Result<Self, Error> {
        let Some(rest) = bytes.strip_prefix(MAGIC) else {
            return Err(damaged(path, "is not a tally; `thermocline model --tally` writes them"));
        };
        let truncated = || damaged(path, "is truncated; replay its part again");
        let (version, rest) = rest.split_first_chunk().ok_or_else(truncated)?;
        let found = u32::from_le_bytes(*version);
        if found != VERSION {
            return Err(Error::Version { path: path.to_owned(), found, known: VERSION });
        }
        let (value, checksum) = rest.split_last_chunk().ok_or_else(truncated)?;
        if u64::from_le_bytes(*checksum) != XxHash64::oneshot(0, &bytes[..FRAME - size_of::<u64>() + value.len()]) {
            return Err(damaged(path, "has a wrong checksum; replay its part again"));
        }
        let partial: Self = postcard::from_bytes(value).map_err(|error| damaged(path, format!("is not a valid tally: {error}")))?;
        if partial.is_sound() { Ok(partial) } else { Err(damaged(path, "has inconsistent sums; replay its part again")) }
    }

    /// Writes the partial to a file, atomically.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        Ok(store::file::replace(path, &self.encode(path)?)?)
    }

    /// Reads a partial from a file.
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

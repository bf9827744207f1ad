//! Paths of slices: one directory per EMC, one file per slice and generation.

use std::path::{Path, PathBuf};

use pool::{EmcId, Generation, SliceId};
use units::Bytes;

use crate::api::Slice;

/// The files of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Parent of the EMCs' directories.
    pub directory: PathBuf,
    /// Size of each slice.
    pub slice_bytes: Bytes,
    /// The device of each EMC that has one. Its slices are parts of the device, at their index times their size; their
    /// files are empty, and only distinguish the generations.
    pub devices: Vec<Option<PathBuf>>,
}

impl Layout {
    /// The directory of an EMC.
    #[must_use]
    pub fn emc(&self, emc: EmcId) -> PathBuf {
        self.directory.join(format!("emc-{}", emc.0))
    }

    /// The device of an EMC; `None` if its slices are files.
    #[must_use]
    pub fn device(&self, emc: EmcId) -> Option<&Path> {
        self.devices.get(usize::from(emc.0))?.as_deref()
    }

    /// The file of a slice and generation.
    #[must_use]
    pub fn path(&self, slice: SliceId, generation: Generation) -> PathBuf {
        self.emc(slice.emc).join(format!("slice-{:06}.{}", slice.index, generation.0))
    }

    /// Parses a file name into index and generation; `None` if it is not the name of a slice.
    #[must_use]
    pub fn parse(name: &Path) -> Option<(u32, Generation)> {
        let (index, generation) = name.to_str()?.strip_prefix("slice-")?.split_once('.')?;
        Some((index.parse().ok()?, Generation(generation.parse().ok()?)))
    }

    /// A slice as hosts receive it.
    #[must_use]
    pub fn slice(&self, slice: SliceId, generation: Generation) -> Slice {
        let device = self.device(slice.emc);
        Slice {
            emc: slice.emc.0,
            index: slice.index,
            generation: generation.0,
            path: device.map_or_else(|| self.path(slice, generation), Path::to_owned),
            offset: device.map(|_| self.offset(slice)),
            bytes: self.slice_bytes,
        }
    }

    /// Where a slice begins on its EMC's device.
    pub(crate) fn offset(&self, slice: SliceId) -> Bytes {
        Bytes(u64::from(slice.index).saturating_mul(self.slice_bytes.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_are_parsed_as_written() {
        let layout = Layout {
            directory: PathBuf::from("/pool"),
            slice_bytes: Bytes(1 << 30),
            devices: vec![None, None, Some("/dev/dax0.0".into())],
        };
        let path = layout.path(SliceId { emc: EmcId(1), index: 12 }, Generation(7));
        assert_eq!(path, Path::new("/pool/emc-1/slice-000012.7"));
        assert_eq!(Layout::parse(Path::new(path.file_name().unwrap())), Some((12, Generation(7))));
        let slice = layout.slice(SliceId { emc: EmcId(2), index: 3 }, Generation(7));
        assert_eq!((slice.path.as_path(), slice.offset), (Path::new("/dev/dax0.0"), Some(Bytes(3 << 30))));
        assert_eq!(layout.slice(SliceId { emc: EmcId(1), index: 3 }, Generation(7)).offset, None);
        for other in ["slice-000012", "slice-x.7", "slice-1.y", "lost+found", ".slice-000012.7"] {
            assert_eq!(Layout::parse(Path::new(other)), None, "{other}");
        }
    }
}

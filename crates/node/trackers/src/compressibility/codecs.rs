//! Compressors with the same results as those of the kernel.

use std::time::{Duration, Instant};

use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::CParameter;

use super::family::Family;
use super::lzo;

/// The level at which the kernel's `zstd` compresses (`ZSTD_DEF_LEVEL` in `crypto/zstd.c`).
const ZSTD_LEVEL: i32 = 3;

/// The kernel requests level 3 for data of unknown length, which searches for matches of five bytes. For data known to
/// be short, zstd would search for four and compress machine code by about 2 % more than the kernel does.
const ZSTD_MATCH_MIN: u32 = 5;

/// The result of compressing one page with one compressor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trial {
    /// Compressed size in bytes; the page size if the page is incompressible.
    pub(super) payload: usize,
    /// Time to compress the page.
    pub(super) compress: Duration,
    /// Time to decompress the page; `None` if it is incompressible, because then it is stored uncompressed.
    pub(super) decompress: Option<Duration>,
}

/// One compressor of each family, with buffers to reuse.
pub(super) struct Codecs {
    zstd: Compressor<'static>,
    unzstd: Decompressor<'static>,
    packed: Vec<u8>,
    page: Vec<u8>,
}

impl Codecs {
    /// Creates the compressors.
    ///
    /// # Errors
    /// If there is no memory for zstd's state.
    pub(super) fn new() -> std::io::Result<Self> {
        let mut zstd = Compressor::new(ZSTD_LEVEL)?;
        zstd.set_parameter(CParameter::MinMatch(ZSTD_MATCH_MIN))?;
        Ok(Self { zstd, unzstd: Decompressor::new()?, packed: vec![], page: vec![] })
    }

    /// Compresses and decompresses a page, and measures how long each takes. The page counts as incompressible if the compressor
    /// fails.
    pub(super) fn try_page(&mut self, family: Family, page: &[u8]) -> Trial {
        let start = Instant::now();
        let packed = self.pack(family, page);
        let compress = start.elapsed();
        let whole = Trial { payload: page.len(), compress, decompress: None };
        if packed.is_none() || self.packed.len() >= page.len() {
            return whole;
        }
        let start = Instant::now();
        let unpacked = self.unpack(family, page.len());
        let decompress = Some(start.elapsed());
        match unpacked {
            Some(()) => Trial { payload: self.packed.len(), compress, decompress },
            None => whole,
        }
    }

    /// The compressed size of a page in bytes; the page's own if it is incompressible.
    pub(super) fn payload(&mut self, family: Family, page: &[u8]) -> usize {
        self.pack(family, page).map_or(page.len(), |()| self.packed.len().min(page.len()))
    }

    /// Compresses `page` into `self.packed`.
    fn pack(&mut self, family: Family, page: &[u8]) -> Option<()> {
        self.packed.clear();
        match family {
            Family::Lzo => lzo::compress(page, &mut self.packed),
            Family::Lz4 => {
                self.packed.resize(lz4_flex::block::get_maximum_output_size(page.len()), 0);
                let length = lz4_flex::block::compress_into(page, &mut self.packed).ok()?;
                self.packed.truncate(length);
            }
            Family::Zstd => {
                self.packed.reserve(zstd::zstd_safe::compress_bound(page.len()));
                self.zstd.compress_to_buffer(page, &mut self.packed).ok()?;
            }
        }
        Some(())
    }

    /// Decompresses `self.packed` into `self.page`, whose length is known, as it is in the kernel.
    fn unpack(&mut self, family: Family, length: usize) -> Option<()> {
        match family {
            Family::Lzo => {
                self.page.clear();
                lzo::decompress(&self.packed, &mut self.page)?;
            }
            Family::Lz4 => {
                self.page.resize(length, 0);
                lz4_flex::block::decompress_into(&self.packed, &mut self.page).ok()?;
            }
            Family::Zstd => {
                self.page.resize(length, 0);
                self.unzstd.decompress_to_buffer(&self.packed, &mut self.page[..]).ok()?;
            }
        }
        (self.page.len() == length).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::pages;
    use super::*;

    /// Checks the compressed sizes of a page in bytes, with lzo, lz4 and zstd.
    fn check(name: &str, [lzo, lz4, zstd]: [std::ops::RangeInclusive<usize>; 3]) {
        let (_, page) = pages::all().into_iter().find(|(kind, _)| *kind == name).unwrap();
        let mut codecs = Codecs::new().unwrap();
        for (family, want) in [(Family::Lzo, lzo), (Family::Lz4, lz4), (Family::Zstd, zstd)] {
            let trial = codecs.try_page(family, &page);
            assert!(want.contains(&trial.payload), "{name}, {family:?}: {} bytes, not {want:?}", trial.payload);
            let shrinks = trial.payload < page.len();
            assert_eq!(trial.decompress.is_some(), shrinks, "{name}, {family:?}");
            assert!(!shrinks || codecs.page == page, "{name}, {family:?}: is decompressed to other content");
        }
    }

    #[test]
    fn compressed_sizes_are_those_of_the_family() {
        let whole = || 4096..=4096;
        check("ones", [20..=60, 20..=60, 10..=60]);
        check("text", [1400..=1650, 1950..=2150, 900..=1050]);
        // Three changing bytes in eight: the overhead of the compressor determines whether the ratio is above or below
        // 73 %.
        check("pointers", [2200..=2400, 2700..=2900, 1400..=1700]);
        // No repetitions of four bytes, but an uneven distribution: only entropy coding compresses these.
        check("weights", [whole(), whole(), 2400..=2700]);
        check("noise", [whole(), whole(), whole()]);
    }
}

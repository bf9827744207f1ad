//! The compressors of the kernel, as far as their results go.

use std::time::{Duration, Instant};

use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::CParameter;

use super::{Family, lzo};

/// The level at which the kernel's `zstd` compresses (`ZSTD_DEF_LEVEL` in `crypto/zstd.c`).
const ZSTD_LEVEL: i32 = 3;

/// Level 3 for data of unknown length, which is what the kernel asks for, looks for matches of five bytes; for data
/// known to be short it would look for four and shrink machine code by some 2 % more than the kernel does.
const ZSTD_MATCH_MIN: u32 = 5;

/// One page through one compressor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trial {
    /// Bytes that the page takes, at most a whole page: then it did not shrink.
    pub(super) payload: usize,
    /// Time to decompress it; `None` where it did not shrink, because then it is never decompressed.
    pub(super) decompress: Option<Duration>,
}

/// One of each, with buffers to reuse.
pub(super) struct Codecs {
    zstd: Compressor<'static>,
    unzstd: Decompressor<'static>,
    packed: Vec<u8>,
    page: Vec<u8>,
}

impl Codecs {
    /// # Errors
    /// Without memory for zstd's state.
    pub(super) fn new() -> std::io::Result<Self> {
        let mut zstd = Compressor::new(ZSTD_LEVEL)?;
        zstd.set_parameter(CParameter::MinMatch(ZSTD_MATCH_MIN))?;
        Ok(Self { zstd, unzstd: Decompressor::new()?, packed: vec![], page: vec![] })
    }

    /// Compresses a page, and decompresses it against the clock. A compressor that fails has not shrunk the page.
    pub(super) fn try_page(&mut self, family: Family, page: &[u8]) -> Trial {
        let whole = Trial { payload: page.len(), decompress: None };
        if self.pack(family, page).is_none() || self.packed.len() >= page.len() {
            return whole;
        }
        let start = Instant::now();
        let unpacked = self.unpack(family, page.len());
        let decompress = Some(start.elapsed());
        match unpacked {
            Some(()) => Trial { payload: self.packed.len(), decompress },
            None => whole,
        }
    }

    /// `page` into `packed`.
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

    /// `packed` into `page`, whose length is known, as it is in the kernel.
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

    /// What a page of each kind shrinks to, in bytes, as lzo, lz4 and zstd have it.
    fn check(name: &str, [lzo, lz4, zstd]: [std::ops::RangeInclusive<usize>; 3]) {
        let (_, page) = pages::all().into_iter().find(|(kind, _)| *kind == name).unwrap();
        let mut codecs = Codecs::new().unwrap();
        for (family, want) in [(Family::Lzo, lzo), (Family::Lz4, lz4), (Family::Zstd, zstd)] {
            let trial = codecs.try_page(family, &page);
            assert!(want.contains(&trial.payload), "{name}, {family:?}: {} bytes, not {want:?}", trial.payload);
            let shrinks = trial.payload < page.len();
            assert_eq!(trial.decompress.is_some(), shrinks, "{name}, {family:?}");
            assert!(!shrinks || codecs.page == page, "{name}, {family:?}: comes back changed");
        }
    }

    #[test]
    fn each_family_shrinks_what_it_can() {
        let whole = || 4096..=4096;
        check("ones", [20..=60, 20..=60, 10..=60]);
        check("text", [1400..=1650, 1950..=2150, 900..=1050]);
        // Three changing bytes in eight: over 73 % of its size or under it is a matter of the compressor's overhead.
        check("pointers", [2200..=2400, 2700..=2900, 1400..=1700]);
        // Bytes that never repeat in a row of four but are not evenly frequent: only entropy coding shrinks them.
        check("weights", [whole(), whole(), 2400..=2700]);
        check("noise", [whole(), whole(), whole()]);
    }
}

//! A test of single pages before their offload.

use kernel::pagemap::Entry;
use kernel::{Result, Roots};
use units::RatioPpm;

use super::codecs::Codecs;
use super::{Family, codecs, read_page};
use crate::ages::PageAges;

/// Compresses single pages before they are offloaded, as Google's kernel does (SDFM section 5.1).
pub struct PageTest {
    codecs: Codecs,
    family: Family,
    ratio_max: RatioPpm,
}

impl PageTest {
    /// A test by the compressor of `family`: a page whose compressed size is more than `ratio_max` of its own fails.
    ///
    /// # Errors
    /// If there is no memory for zstd's state.
    pub fn new(family: Family, ratio_max: RatioPpm) -> Result<Self> {
        Ok(Self { codecs: codecs()?, family, ratio_max })
    }

    /// Whether the page that `entry` maps at `address` of process `pid` compresses well enough, or cannot be read any more. The read
    /// is hidden from trackers.
    pub fn passes(&mut self, roots: &Roots, ages: &dyn PageAges, pid: i32, address: u64, entry: Entry) -> bool {
        let mut page = None;
        ages.hide_access(pid, address, entry, &mut || page = read_page(roots, pid, address));
        page.is_none_or(|page| self.codecs.payload(self.family, &page) as u64 <= self.ratio_max.share_of(page.len() as u64))
    }
}

impl std::fmt::Debug for PageTest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageTest").field("family", &self.family).field("ratio_max", &self.ratio_max).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use units::Age;

    use super::super::pages::{SIZE, noise};
    use super::*;

    /// Ages that count the accesses which are hidden from them.
    struct Hidden(std::cell::Cell<u32>);

    impl PageAges for Hidden {
        fn age(&self, _: i32, _: u64, _: Entry) -> Option<Age> {
            None
        }

        fn hide_access(&self, _: i32, _: u64, _: Entry, access: &mut dyn FnMut()) {
            access();
            self.0.set(self.0.get() + 1);
        }
    }

    #[test]
    fn a_page_passes_if_it_compresses_to_the_ratio() {
        let pid = i32::try_from(std::process::id()).unwrap();
        // The first `random` bytes do not compress, and take about as many when compressed.
        let page = |random: usize| noise(random).into_iter().chain(std::iter::repeat_n(7, SIZE - random)).collect::<Vec<u8>>();
        for family in Family::ALL {
            let mut test = PageTest::new(family, RatioPpm(730_000)).unwrap();
            for (random, expected) in [(0, true), (2500, true), (3200, false), (SIZE, false)] {
                let (page, ages) = (page(random), Hidden(std::cell::Cell::new(0)));
                let passes = test.passes(&Roots::host(), &ages, pid, page.as_ptr().addr() as u64, Entry(0));
                assert_eq!((passes, ages.0.get()), (expected, 1), "{random} of {SIZE} bytes are random, {family:?}");
            }
            let gone = Hidden(std::cell::Cell::new(0));
            assert!(test.passes(&Roots::host(), &gone, pid, 0, Entry(0)), "the kernel decides about a page that is gone");
        }
    }
}

//! A random sample of the resident pages of a mapping, and what it says about the whole.

use std::ops::Range;

use fastrand::Rng;
use kernel::pagemap::{Entry, Pagemap};
use kernel::{Result, page_size};
use units::Bytes;

use super::Accessed;

/// Pages that are drawn from a mapping. Resident ones are watched: with 8,192, a part of 1 % is 82 pages, and its standard
/// error is a ninth of it.
const DRAWN: u64 = 8_192;

/// Quantile of the normal distribution at 97.5 %.
const Z: f64 = 1.96;

/// A resident page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) address: u64,
    /// `None` without `CAP_SYS_ADMIN`.
    pub(super) pfn: Option<u64>,
}

/// The sample of one mapping.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sample {
    /// The pages that are watched, by address.
    pub(super) pages: Vec<Page>,
    /// Resident pages among the drawn ones.
    resident: u64,
    drawn: u64,
    /// Size of the mapping.
    bytes: u64,
}

impl Sample {
    /// Draws one page from each of [`DRAWN`] equal parts of the mapping, so that the sample is spread evenly and no page is
    /// drawn twice, and keeps at most `limit` of the resident ones.
    pub(super) fn draw(pagemap: &Pagemap, range: Range<u64>, limit: usize, random: &mut Rng) -> Result<Self> {
        let page = page_size().bytes();
        let count = (range.end - range.start) / page;
        let drawn = count.min(DRAWN);
        let mut pages = Vec::new();
        for part in 0..drawn {
            let (from, to) = (part_start(count, drawn, part), part_start(count, drawn, part + 1));
            let address = range.start + random.u64(from..to) * page;
            let mut entry = [Entry::default()];
            if pagemap.read(address, &mut entry)? == 1 && entry[0].present() {
                pages.push(Page { address, pfn: entry[0].pfn() });
            }
        }
        let resident = pages.len() as u64;
        if pages.len() > limit {
            pages = (0..limit).map(|kept| pages[kept * pages.len() / limit]).collect();
        }
        Ok(Self { pages, resident, drawn, bytes: range.end - range.start })
    }

    /// What was accessed of the mapping, if `accessed` of `watched` pages were.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        clippy::cast_possible_truncation,
        reason = "bytes, and counts of thousands"
    )]
    pub(super) fn accessed(&self, accessed: usize, watched: usize) -> Accessed {
        if watched == 0 || self.drawn == 0 {
            return Accessed::default();
        }
        let resident = self.bytes as f64 * self.resident as f64 / self.drawn as f64;
        let (hits, n) = (accessed as f64, watched as f64);
        let of = |share: f64| Bytes((resident * share) as u64);
        Accessed { estimated: of(hits / n), at_least: of(wilson_lower(hits / n, n)) }
    }
}

/// The first page of a part, if `count` pages are divided into `parts`.
fn part_start(count: u64, parts: u64, part: u64) -> u64 {
    // A mapping has fewer than 2^45 pages, and there are 2^13 parts at most.
    count * part / parts
}

/// The lower bound of a share that was `share` in a sample of `n` (Wilson 1927, "Probable inference, the law of succession, and
/// statistical inference"): the smallest share of which such a sample is within `Z` standard errors. Zero if nothing was found.
fn wilson_lower(share: f64, n: f64) -> f64 {
    let spread = Z * (share * (1.0 - share) / n + Z * Z / (4.0 * n * n)).sqrt();
    ((share + Z * Z / (2.0 * n) - spread) / (1.0 + Z * Z / n)).max(0.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_bound_is_below_the_estimate_and_zero_without_hits() {
        // The formula, computed apart to six digits.
        for (hits, n, expected) in [(0.0, 100.0, 0.0), (1.0, 2_048.0, 0.000_086), (50.0, 100.0, 0.403_8), (100.0, 100.0, 0.963_0)] {
            let lower = wilson_lower(hits / n, n);
            assert!((lower - expected).abs() < 0.000_1, "{hits} of {n}: {lower}");
        }
    }

    #[test]
    fn a_sample_speaks_for_its_mapping() {
        let sample = Sample { pages: Vec::new(), resident: 500, drawn: 1_000, bytes: 1 << 30 };
        let accessed = sample.accessed(25, 250);
        assert_eq!(accessed.estimated, Bytes((1 << 30) / 20));
        assert!(accessed.at_least > Bytes::ZERO && accessed.at_least < accessed.estimated, "{accessed:?}");
        assert_eq!(sample.accessed(0, 0), Accessed::default());
        assert_eq!(sample.accessed(0, 250), Accessed::default());
    }

    proptest! {
        #[test]
        fn parts_cover_each_page_once(count in 1u64..1 << 45, part in 0u64..DRAWN) {
            let parts = count.min(DRAWN);
            let part = part % parts;
            prop_assert!(part_start(count, parts, part) < part_start(count, parts, part + 1));
            prop_assert_eq!(part_start(count, parts, 0), 0);
            prop_assert_eq!(part_start(count, parts, parts), count);
        }
    }
}

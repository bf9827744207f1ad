//! Chooses zswap's compressor.
//!
//! # Problem
//! zswap has one compressor for the whole machine. A stronger one leaves more DRAM free, and each page that returns takes longer: on
//! one processor, lzo needs 3 us for a page and zstd 8 us, where a fault from zswap takes tens of microseconds. Which one suits
//! depends on what the jobs store.
//!
//! # Rule
//! Each compressor is tried on the jobs' own cold pages. The one that stores least replaces the one in use, if that frees at least
//! three percentage points of the pages' size more ([`SAVING_MIN`]), and no page takes longer to decompress than the strictest class
//! of the jobs accepts.
//!
//! What it costs: within the default objective (SDFM section 4.3), 0.2 % of a working set of 1 GiB returns in a minute, 524 pages.
//! With 10 us more for each these are 5 ms in a minute, 0.01 % of the time.
//!
//! This does not hold for a job that returns as a whole, when its user comes back to it (policy `background`): 10 us more for each
//! page are 2.6 s for 1 GiB, and the user waits for them. While there is such a job, a compressor that takes more than
//! [`AT_ONCE_FACTOR`] times as long as the fastest one is not chosen, and is replaced if it is in use.
//!
//! Compressing costs, too, and the kernel compresses while a task waits, once memory is short. What is stored in a second times the
//! time to compress a page is the processor time that a compressor needs; above [`Accepted::compress_max_us`] a compressor is not
//! chosen, and is replaced if it is in use. At 16,384 pages a second, 64 MiB/s, 10 us for each page are 16 % of one processor. What
//! the agent offloads by itself does not count: it has a limit of processor time of its own, and no task waits for it.
//!
//! # Properties
//! Each is a test of this name: a choice is kept until another one saves more; a slow compressor is never chosen; what returns at
//! once returns fast; much that is stored is compressed fast.

use units::{Bytes, Millis, RatioPpm};

/// What another compressor must save, as a share of the pages' size. Samples vary by less.
const SAVING_MIN: RatioPpm = RatioPpm(30_000);

/// How many times as long as the fastest one a compressor may take, where pages return at once. lzo and lz4 differ by less, and
/// zstd takes four times as long as lz4 on one processor, more on others.
const AT_ONCE_FACTOR: u64 = 2;

/// One compressor, with what it would make of the jobs' pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Bytes that the pages would occupy.
    pub stored: Bytes,
    /// Time to decompress a page, in microseconds, of the job whose pages take longest.
    pub decompress_us: u64,
    /// The same to compress one.
    pub compress_us: u64,
}

/// What the jobs accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The longest time to decompress a page that the strictest class accepts, in microseconds.
    pub latency_max_us: u32,
    /// Whether the memory of one of them returns as a whole.
    pub at_once: bool,
    /// The longest time to compress a page, in microseconds, at the rate at which the kernel stores pages by itself now. The
    /// fastest compressor, and those that take up to [`AT_ONCE_FACTOR`] times as long, are accepted at any rate.
    pub compress_max_us: u64,
}

impl Accepted {
    /// The longest time to compress a page at which so many pages in so much time take a share of the time of all processors.
    #[must_use]
    pub fn compress_max_us(pages: u64, time_ms: Millis, processors: u64, share: RatioPpm) -> u64 {
        let time_us = share.share_of(processors.saturating_mul(time_ms.0).saturating_mul(1_000));
        time_us.checked_div(pages).unwrap_or(u64::MAX)
    }
}

/// Returns the index of the compressor to use. `used` is the index of the one in use, `pages` the size of the pages. Deterministic.
#[must_use]
pub fn choose(offers: &[Offer], used: usize, pages: Bytes, accepted: Accepted) -> usize {
    let Some(now) = offers.get(used) else { return used };
    let fastest_us = offers.iter().map(|offer| offer.decompress_us).min().unwrap_or_default();
    let at_once_max_us = if accepted.at_once { fastest_us.saturating_mul(AT_ONCE_FACTOR) } else { u64::MAX };
    let limit_us = at_once_max_us.min(u64::from(accepted.latency_max_us));
    let fastest_to_compress_us = offers.iter().map(|offer| offer.compress_us).min().unwrap_or_default();
    let compress_max_us = accepted.compress_max_us.max(fastest_to_compress_us.saturating_mul(AT_ONCE_FACTOR));
    let is_fast = |offer: &Offer| offer.decompress_us <= limit_us && offer.compress_us <= compress_max_us;
    let fast = offers.iter().enumerate().filter(|(_, offer)| is_fast(offer));
    let best = fast.min_by_key(|(index, offer)| (offer.stored, *index));
    let too_slow = now.decompress_us > at_once_max_us || now.compress_us > compress_max_us;
    let worth_it = |offer: &Offer| too_slow || offer.stored + Bytes(SAVING_MIN.share_of(pages.0)) < now.stored;
    best.filter(|(_, offer)| worth_it(offer)).map_or(used, |(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [usize; 3] = [0, 1, 2];
    const ANY: Accepted = Accepted { latency_max_us: 500, at_once: false, compress_max_us: u64::MAX };

    fn offers(percent: [u64; 3], decompress_us: [u64; 3]) -> [Offer; 3] {
        ALL.map(|index| Offer { stored: Bytes::mib(percent[index]), decompress_us: decompress_us[index], compress_us: 0 })
    }

    #[test]
    fn what_stores_least_is_chosen_if_it_saves_enough() {
        for (percent, used, want) in [
            ([34, 40, 20], 0, 2),
            ([34, 40, 32], 0, 0),
            ([34, 40, 31], 0, 0),
            ([34, 40, 30], 0, 2),
            ([34, 40, 30], 1, 2),
            ([20, 20, 20], 2, 2),
            ([20, 18, 30], 2, 1),
            ([100, 100, 62], 1, 2),
        ] {
            assert_eq!(choose(&offers(percent, [3, 2, 8]), used, Bytes::mib(100), ANY), want, "{percent:?} {used}");
        }
        assert_eq!(choose(&[], 0, Bytes::ZERO, ANY), 0);
    }

    #[test]
    fn a_choice_is_kept_until_another_one_saves_more() {
        for lzo in 0..100 {
            for zstd in 0..100 {
                let offers = offers([lzo, 101, zstd], [3, 2, 8]);
                let first = choose(&offers, 0, Bytes::mib(100), ANY);
                assert_eq!(choose(&offers, first, Bytes::mib(100), ANY), first, "{lzo} {zstd}");
            }
        }
    }

    #[test]
    fn a_slow_compressor_is_never_chosen() {
        let check = |us, latency_max_us, want| {
            let accepted = Accepted { latency_max_us, ..ANY };
            assert_eq!(choose(&offers([34, 40, 20], [3, 2, us]), 0, Bytes::mib(100), accepted), want, "{us} {latency_max_us}");
        };
        check(8, 8, 2);
        check(9, 8, 0);
        // The one in use is too slow, too, and so is every other.
        check(9, 1, 0);
    }
    #[test]
    fn what_returns_at_once_returns_fast() {
        let at_once = Accepted { at_once: true, ..ANY };
        for (percent, us, used, want) in [
            ([34, 40, 20], [3, 2, 8], 0, 0),
            // One that is too slow does not stay, although it stores less.
            ([34, 40, 20], [3, 2, 8], 2, 0),
            ([34, 30, 20], [3, 2, 8], 0, 1),
            ([34, 40, 20], [3, 2, 4], 0, 2),
            // No time was measured.
            ([34, 40, 20], [0, 0, 0], 0, 2),
        ] {
            assert_eq!(choose(&offers(percent, us), used, Bytes::mib(100), at_once), want, "{percent:?} {us:?} {used}");
        }
        let strict = Accepted { latency_max_us: 1, ..at_once };
        assert_eq!(choose(&offers([34, 40, 20], [3, 2, 8]), 2, Bytes::mib(100), strict), 2, "none is accepted");
    }

    #[test]
    fn much_that_is_stored_is_compressed_fast() {
        let check = |compress_us: [u64; 3], compress_max_us, used, want| {
            let mut offers = offers([34, 40, 20], [3, 2, 8]);
            offers.iter_mut().zip(compress_us).for_each(|(offer, us)| offer.compress_us = us);
            let accepted = Accepted { compress_max_us, ..ANY };
            assert_eq!(choose(&offers, used, Bytes::mib(100), accepted), want, "{compress_us:?} {compress_max_us} {used}");
        };
        check([5, 4, 12], 12, 0, 2);
        check([5, 4, 12], 11, 0, 0);
        // One that is too slow now does not stay, although it stores less.
        check([5, 4, 12], 11, 2, 0);
        // No rate is too high for the fastest ones.
        check([5, 4, 12], 0, 0, 0);
        check([5, 4, 12], 0, 2, 0);
        check([9, 4, 12], 0, 0, 1);
    }

    #[test]
    fn compression_may_take_a_share_of_all_processors() {
        let share = RatioPpm(50_000);
        for (pages, time_ms, processors, want) in [(3_072, 1_000, 2, 32), (16_384, 1_000, 64, 195), (0, 1_000, 2, u64::MAX), (1, 0, 2, 0)] {
            assert_eq!(Accepted::compress_max_us(pages, Millis(time_ms), processors, share), want, "{pages} pages");
        }
    }
}

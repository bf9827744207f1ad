//! What zsmalloc, the allocator under zswap, spends on an object.

/// Pages that zsmalloc joins at most to fit a whole number of objects (`CONFIG_ZSMALLOC_CHAIN_SIZE`, default 8).
const CHAIN_MAX: u64 = 8;

/// Bytes before each object that point back to its owner (`ZS_HANDLE_SIZE`).
const HANDLE: u64 = 8;

/// The smallest object (`ZS_MIN_ALLOC_SIZE`).
const OBJECT_MIN: u64 = 32;

/// Bytes that a payload of `payload` bytes costs, of pages of `page` bytes (at least 256).
///
/// Objects lie in classes 1/256 of a page apart; a class takes as many pages at a time as waste the least at their end
/// (`mm/zsmalloc.c`, `calculate_zspage_chain_size`). What the last, partly filled group of pages of every class wastes is
/// not counted: it is shared by all jobs, and about a megabyte on the whole machine. With it, zram on Linux 6.12 took 2 %
/// more for 95 MB of pages than this adds up to. A payload that leaves no room for a second object costs a whole page.
pub(super) fn stored_bytes(payload: u64, page: u64) -> u64 {
    let class = (payload + HANDLE).max(OBJECT_MIN).next_multiple_of(page / 256);
    let Some(pages) = (1..=CHAIN_MAX).min_by_key(|pages| pages * page % class) else { return page };
    (pages * page).checked_div(pages * page / class).map_or(page, |bytes| bytes.min(page))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_cost_their_class_and_its_waste() {
        // Sizes, pages and objects of classes as in /sys/kernel/debug/zsmalloc/*/classes: 32 bytes 128 of a page;
        // 2048 2; 2080 15 of 8 pages; 2720 3 of 2; 3632 9 of 8; above, one page each.
        for (payload, want) in
            [(0, 32), (24, 32), (25, 48), (2040, 2048), (2041, 2184), (2712, 2730), (3624, 3640), (3633, 4096), (4096, 4096), (9999, 4096)]
        {
            assert_eq!(stored_bytes(payload, 4096), want, "{payload}");
        }
        assert!((0..4096).all(|n| stored_bytes(n, 4096) <= stored_bytes(n + 1, 4096) + 40), "about monotonic");
    }
}

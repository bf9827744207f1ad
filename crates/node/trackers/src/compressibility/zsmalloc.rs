//! Memory that zsmalloc, the allocator of zswap, uses for an object.

/// Upper limit of the pages that zsmalloc joins to hold a whole number of objects (`CONFIG_ZSMALLOC_CHAIN_SIZE`,
/// default 8).
const CHAIN_MAX: u64 = 8;

/// Bytes before each object that refer to its owner (`ZS_HANDLE_SIZE`).
const HANDLE: u64 = 8;

/// Lower limit of the size of an object (`ZS_MIN_ALLOC_SIZE`).
const OBJECT_MIN: u64 = 32;

/// Returns the memory for a payload of `payload` bytes, with pages of `page` bytes (at least 256).
///
/// Objects are in size classes 1/256 of a page apart; a class allocates the number of pages that wastes the least at
/// the end (`mm/zsmalloc.c`, `calculate_zspage_chain_size`). The waste in the last, partly filled group of pages of
/// every class is not counted: all jobs share it, and it is about a megabyte on the whole machine. Including it, zram
/// on Linux 6.12 used 2 % more memory for 95 MB of pages than this function returns. If a page holds no second object,
/// the payload costs a whole page.
pub(super) fn stored_bytes(payload: u64, page: u64) -> u64 {
    let class = (payload + HANDLE).max(OBJECT_MIN).next_multiple_of(page / 256);
    let Some(pages) = (1..=CHAIN_MAX).min_by_key(|pages| pages * page % class) else { return page };
    (pages * page).checked_div(pages * page / class).map_or(page, |bytes| bytes.min(page))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_costs_its_size_class_and_the_waste_of_its_pages() {
        // Classes as in /sys/kernel/debug/zsmalloc/*/classes: size 32, 128 objects per page; 2048, 2 per page; 2080, 15
        // in 8 pages; 2720, 3 in 2; 3632, 9 in 8; above that, one page per object.
        for (payload, want) in
            [(0, 32), (24, 32), (25, 48), (2040, 2048), (2041, 2184), (2712, 2730), (3624, 3640), (3633, 4096), (4096, 4096), (9999, 4096)]
        {
            assert_eq!(stored_bytes(payload, 4096), want, "{payload}");
        }
        assert!((0..4096).all(|n| stored_bytes(n, 4096) <= stored_bytes(n + 1, 4096) + 40), "almost monotonic");
    }
}

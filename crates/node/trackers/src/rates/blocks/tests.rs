use super::*;

const MIB: u64 = 1 << 20;

fn vma(range: Range<u64>) -> Vma {
    let text = format!("{:x}-{:x} rw-p 00000000 00:00 0\n", range.start, range.end);
    maps::parse(&text).unwrap().remove(0)
}

/// Cuts ranges of present memory, `true` for huge ones; blocks are (start, end, first, bytes, huge).
fn check(mapped: Range<u64>, present: &[(Range<u64>, bool)], want: &[(u64, u64, u64, u64, bool)]) {
    let categories = |huge| if huge { Categories::HUGE } else { Categories::NONE };
    let ranges: Vec<_> =
        present.iter().map(|(range, huge)| PageRange { start: range.start, end: range.end, categories: categories(*huge) }).collect();
    let got: Vec<_> =
        cut(7, &vma(mapped), &ranges).iter().map(|block| (block.start, block.end, block.first, block.bytes.0, block.huge)).collect();
    assert_eq!(got, want, "{present:?}");
}

/// A process of files, with these mappings and no page: the kernel cannot list what they hold.
fn process(mappings: &[Range<u64>]) -> (tempfile::TempDir, Roots) {
    let directory = tempfile::tempdir().unwrap();
    let roots = Roots::under(directory.path());
    let process = roots.proc.join("7");
    std::fs::create_dir_all(&process).unwrap();
    let maps = mappings.iter().map(|range| format!("{:x}-{:x} rw-p 00000000 00:00 0\n", range.start, range.end));
    std::fs::write(process.join("maps"), maps.collect::<String>()).unwrap();
    std::fs::write(roots.proc.join("kpageflags"), [0; 64]).unwrap();
    let end = mappings.last().unwrap().end;
    std::fs::File::create(process.join("pagemap")).unwrap().set_len(end / kernel::page_size().bytes() * 8).unwrap();
    (directory, roots)
}

/// Searches the process in parts; returns how many there were.
fn search(roots: &Roots, blocks_max: usize) -> (Found, u32) {
    let flags = KPageFlags::open(roots).unwrap();
    let (mut at, mut found, mut parts) = (Position::default(), Found::default(), 1);
    while !Process::open(roots, &flags, 7).unwrap().find(&mut at, blocks_max, &mut found).unwrap() {
        parts += 1;
    }
    (found, parts)
}

#[test]
fn the_search_of_reserved_memory_ends() {
    let (start, length) = (1 << 28, 127_u64 << 40);
    let reserved = start..start + length;
    let (_keep, roots) = process(std::slice::from_ref(&reserved));
    let (found, parts) = search(&roots, 100);
    assert_eq!(found.skipped.sparse_bytes, Bytes(length - u64::from(EMPTY_MAX + 1) * BLOCK_BYTES));
    assert_eq!(parts, EMPTY_MAX / PART_CALLS + 1);
}

#[test]
fn parts_of_a_search_meet() {
    let mappings = [MIB..70 * MIB + 8192, 80 * MIB..201 * MIB];
    let (_keep, roots) = process(&mappings);
    // Present, exclusive, in frame 1.
    let entry = (1_u64 << 63 | 1 << 56 | 1).to_ne_bytes();
    let pages = |range: &Range<u64>| usize::try_from((range.end - range.start) / 4096).unwrap();
    let pagemap = std::fs::OpenOptions::new().write(true).open(roots.proc.join("7/pagemap")).unwrap();
    for range in &mappings {
        std::os::unix::fs::FileExt::write_all_at(&pagemap, &entry.repeat(pages(range)), range.start / 4096 * 8).unwrap();
    }
    let (found, parts) = search(&roots, 1000);
    assert!(parts >= 4, "{parts}");
    assert_eq!((found.blocks.len(), found.skipped), (36 + 61, Skipped::default()));
    assert!(found.blocks.is_sorted_by(|one, next| one.end <= next.start), "{:?}", found.blocks);
    let bytes: u64 = mappings.iter().map(|range| range.end - range.start).sum();
    assert_eq!(found.blocks.iter().map(|block| block.bytes.0).sum::<u64>(), bytes);
    assert_eq!(search(&roots, 50).0.blocks.len(), 50, "at most");
}

#[test]
fn memory_is_cut_where_huge_pages_begin() {
    check(0..8 * MIB, &[], &[]);
    check(
        0..8 * MIB,
        &[(0..4 * MIB, true), (4 * MIB..5 * MIB, false)],
        &[(0, 2 * MIB, 0, 2 * MIB, true), (2 * MIB, 4 * MIB, 2 * MIB, 2 * MIB, true), (4 * MIB, 6 * MIB, 4 * MIB, MIB, false)],
    );
    // A mapping that begins and ends in the middle, with a hole.
    check(
        MIB..5 * MIB,
        &[(MIB + 4096..MIB + 8192, false), (2 * MIB - 4096..2 * MIB + 4096, false), (5 * MIB - 4096..5 * MIB, false)],
        &[
            (MIB, 2 * MIB, MIB + 4096, 8192, false),
            (2 * MIB, 4 * MIB, 2 * MIB, 4096, false),
            (4 * MIB, 5 * MIB, 5 * MIB - 4096, 4096, false),
        ],
    );
}

/// This process, unless page frame numbers are hidden from it.
fn this_process() -> Option<(Roots, KPageFlags, i32)> {
    let roots = Roots::host();
    let flags = KPageFlags::open(&roots).inspect_err(|error| println!("skipped: {error}")).ok()?;
    Some((roots, flags, i32::try_from(std::process::id()).unwrap()))
}

#[test]
fn blocks_of_this_process_agree_with_its_pagemap() {
    let Some((roots, flags, pid)) = this_process() else { return };
    let memory = vec![1u8; usize::try_from(9 * MIB).unwrap()];
    let start = memory.as_ptr().addr() as u64;
    let found = find(&roots, &[pid, i32::MAX], 100_000).unwrap();
    assert_eq!((found.skipped.gone, found.skipped.over_limit), (1, false));
    assert!(found.skipped.file_bytes > Bytes::ZERO && found.skipped.special_bytes > Bytes::ZERO, "{:?}", found.skipped);
    let ours: Vec<_> = found.blocks.iter().filter(|block| block.start < start + 9 * MIB && block.end > start).collect();
    assert!(ours.iter().map(|block| block.bytes.0).sum::<u64>() >= 9 * MIB, "{ours:?}");
    assert!(found.blocks.is_sorted_by(|one, next| one.end <= next.start), "blocks do not overlap");

    let process = Process::open(&roots, &flags, pid).unwrap();
    for block in ours.iter().filter(|block| block.start >= start && block.end <= start + 9 * MIB) {
        let pages = present(&roots, block).unwrap();
        assert_eq!((pages[0], pages.len() as u64 * 4096), (block.first, block.bytes.0));
        let by_entries = process.present_by_entries(block.range()).unwrap().0;
        let bytes: u64 = by_entries.iter().map(|range| range.end - range.start).sum();
        assert_eq!((by_entries[0].start, bytes), (block.first, block.bytes.0));
        assert_eq!(by_entries[0].categories.contains(Categories::HUGE), block.huge);
        assert_eq!(is_huge(&roots, block).unwrap(), block.huge);
    }
    let few = find(&roots, &[pid], 2).unwrap();
    assert!(few.skipped.over_limit && few.blocks.len() <= 2);
}

use super::*;

const PAGE: u64 = 4096;
const BLOCK: u64 = PAGES as u64 * PAGE;

/// The page map of a process with one mapping of blocks from address 0 on.
struct Process {
    directory: tempfile::TempDir,
    roots: Roots,
}

/// A page of the fake page map.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Page {
    None,
    Present,
    Swapped(u64),
}

impl Process {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(directory.path().join("proc/7")).unwrap();
        Self { roots: Roots::under(directory.path()), directory }
    }

    fn put(&self, pages: &[Page]) {
        let end = pages.len() as u64 * PAGE;
        std::fs::write(self.directory.path().join("proc/7/maps"), format!("0-{end:x} rw-p 00000000 00:00 0 \n")).unwrap();
        let word = |page: &Page| match page {
            Page::None => 0,
            Page::Present => 1 << 63 | 1 << 56 | 1,
            Page::Swapped(entry) => 1 << 62 | entry << 5,
        };
        let bytes: Vec<u8> = pages.iter().flat_map(|page| word(page).to_ne_bytes()).collect();
        std::fs::write(self.directory.path().join("proc/7/pagemap"), bytes).unwrap();
    }
}

fn survey(blocks: &mut Blocks, process: &Process, seconds: u64, after: Option<u64>) -> Surveyed {
    let millis = |seconds: u64| Millis(seconds * 1_000);
    blocks.survey(&process.roots, &mut Walker::default(), &[7], millis(seconds), after.map(millis))
}

fn swapped(blocks: u64) -> Vec<Page> {
    (1..=blocks * PAGES as u64).map(Page::Swapped).collect()
}

#[test]
fn a_block_is_as_old_as_its_entries_are_the_same() {
    let process = Process::new();
    let mut blocks = Blocks::default();
    let mut pages = swapped(3);
    process.put(&pages);
    assert_eq!(survey(&mut blocks, &process, 100, None).oldest, Some(Millis(0)));
    // A page of the second block returns, and goes out again to another slot.
    pages[20] = Page::Swapped(999);
    process.put(&pages);
    let found = survey(&mut blocks, &process, 160, Some(50));
    assert_eq!((found.oldest, found.returned), (Some(Millis(60_000)), Pages(1)));
    // 48 pages, each with 1 / 120 s, for 60 s, rounded down by block.
    assert_eq!(found.expected, 3 * 7_999);
    let of = |blocks: &Blocks, after| blocks.oldest(Millis(200_000), Millis(after), Pages(1_000));
    assert_eq!(of(&blocks, 100_000), [(7, 0), (7, 2 * BLOCK)]);
    assert_eq!(of(&blocks, 40_000), [(7, 0), (7, 2 * BLOCK), (7, BLOCK)], "the oldest first");
    assert_eq!(blocks.oldest(Millis(200_000), Millis(0), Pages(31)), [(7, 0)], "whole blocks");
}

#[test]
fn blocks_in_use_and_freed_ones_are_not_watched() {
    let process = Process::new();
    let mut blocks = Blocks::default();
    let mut pages = swapped(3);
    pages[..5].fill(Page::Present);
    process.put(&pages);
    survey(&mut blocks, &process, 0, None);
    assert_eq!(blocks.pages(), (Pages(32), Pages(0)), "five of 16 pages are in use");
    // Four pages of the second block return, the third is freed.
    pages[16..20].fill(Page::Present);
    pages[32..].fill(Page::None);
    process.put(&pages);
    let found = survey(&mut blocks, &process, 100, Some(10));
    assert_eq!((found.returned, blocks.pages()), (Pages(4), (Pages(12), Pages(0))));
    let pagemap = Pagemap::open(&process.roots, 7).unwrap();
    assert_eq!(read_block(&pagemap, BLOCK).unwrap().addresses(BLOCK).first(), Some(&(BLOCK + 4 * PAGE)));
}

#[test]
fn moved_blocks_are_remembered_until_they_return() {
    let process = Process::new();
    let mut blocks = Blocks::default();
    let mut pages = swapped(2);
    process.put(&pages);
    survey(&mut blocks, &process, 0, None);
    blocks.get_mut(7, BLOCK).unwrap().written = true;
    let found = survey(&mut blocks, &process, 100, Some(10));
    // 16 pages, each with 1 / 200 s.
    assert_eq!((found.written_rate, found.oldest), (80_000, Some(Millis(100_000))));
    assert_eq!(blocks.oldest(Millis(100_000), Millis(0), Pages(99)), [(7, 0)]);
    pages[16] = Page::Swapped(500);
    process.put(&pages);
    survey(&mut blocks, &process, 200, Some(10));
    assert_eq!(blocks.pages(), (Pages(32), Pages(0)), "it is in zswap again");
}

#[test]
fn the_number_of_blocks_is_bounded() {
    let process = Process::new();
    let mut blocks = Blocks::default();
    process.put(&swapped(BLOCKS_MAX as u64 + 2));
    survey(&mut blocks, &process, 0, None);
    assert_eq!((blocks.list.len(), blocks.partial), (BLOCKS_MAX, true));
    process.put(&swapped(2));
    survey(&mut blocks, &process, 1, None);
    assert_eq!((blocks.list.len(), blocks.partial), (2, false));
    let exited = Process::new();
    assert_eq!(survey(&mut blocks, &exited, 2, None), Surveyed::default());
}

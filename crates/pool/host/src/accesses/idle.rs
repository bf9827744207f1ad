//! Accesses by idle page tracking: sampled pages are marked idle, and those that are not idle later were accessed.

use fastrand::Rng;
use kernel::page_idle::{IdleBitmap, KPageFlags, PFNS_PER_WORD};
use kernel::pagemap::{Entry, Pagemap};
use kernel::smaps::Mapping;
use kernel::{Result, Roots};

use super::Accessed;
use super::pages::Sample;

/// Pages of a mapping that are watched; each costs three reads and a write of 8 bytes.
const WATCHED_MAX: usize = 8_192;

/// So few pages may by chance all be without an idle bit: those in the lists of a CPU that are not yet on an LRU list.
const FEW: usize = 64;

/// A page that is watched.
struct Watched {
    address: u64,
    pfn: u64,
    /// The frame whose idle bit stands for it.
    frame: u64,
}

/// The kernel's files about page frames.
struct Frames {
    bitmap: IdleBitmap,
    flags: KPageFlags,
}

/// Watches sampled pages of each mapping while `wait` runs. `None` if a mapping has resident pages, and none of them has an idle bit.
///
/// # Errors
/// [`kernel::Error::Unsupported`]; [`kernel::Error::Gone`]; [`kernel::Error::Io`].
pub(super) fn sample(roots: &Roots, pid: i32, mappings: &[Mapping], wait: impl FnOnce()) -> Result<Option<Vec<Accessed>>> {
    let frames = Frames { bitmap: IdleBitmap::open(roots)?, flags: KPageFlags::open(roots)? };
    let pagemap = Pagemap::open(roots, pid)?;
    let mut random = Rng::with_seed(super::seed());
    let mut samples = Vec::with_capacity(mappings.len());
    for mapping in mappings {
        let sample = Sample::draw(&pagemap, mapping.vma.range(), WATCHED_MAX, &mut random)?;
        let mut watched = Vec::with_capacity(sample.pages.len());
        for page in &sample.pages {
            let Some(pfn) = page.pfn else { continue };
            if let Some(frame) = frames.tracked(pfn)? {
                watched.push(Watched { address: page.address, pfn, frame });
            }
        }
        if watched.is_empty() && sample.pages.len() >= FEW {
            return Ok(None);
        }
        samples.push((sample, watched));
    }
    for Watched { frame, .. } in samples.iter().flat_map(|(_, watched)| watched) {
        frames.bitmap.write_chunk(frame - frame % PFNS_PER_WORD, &[1 << (frame % PFNS_PER_WORD)])?;
    }
    wait();
    samples.iter().map(|(sample, watched)| frames.accessed(&pagemap, sample, watched)).collect::<Result<_>>().map(Some)
}

impl Frames {
    /// The frame whose idle bit stands for this one; `None` if it has none.
    fn tracked(&self, pfn: u64) -> Result<Option<u64>> {
        let mut flags = [0];
        if self.flags.read_chunk(pfn, &mut flags)? == 0 {
            return Ok(None);
        }
        self.flags.idle_head(pfn, flags[0])
    }

    fn accessed(&self, pagemap: &Pagemap, sample: &Sample, watched: &[Watched]) -> Result<Accessed> {
        let (mut accessed, mut same) = (0, 0);
        for Watched { address, pfn, frame } in watched {
            // A page that was moved meanwhile has a new frame, whose idle bit was not set.
            let mut entry = [Entry::default()];
            if pagemap.read(*address, &mut entry)? != 1 || entry[0].pfn().is_some_and(|now| now != *pfn) {
                continue;
            }
            same += 1;
            let mut word = [0];
            // One that has been swapped out since was not accessed.
            let is_idle = entry[0].pfn().is_none()
                || (self.bitmap.read_chunk(frame - frame % PFNS_PER_WORD, &mut word)? == 1 && word[0] >> (frame % PFNS_PER_WORD) & 1 == 1);
            accessed += usize::from(!is_idle);
        }
        Ok(sample.accessed(accessed, same))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use kernel::page_idle::KPF_LRU;
    use kernel::page_size;

    use super::*;

    const PAGES: u64 = 256;

    /// A process with one mapping of [`PAGES`] resident pages, each in the first frame of a word of the bitmap.
    fn machine(flags: u64) -> (tempfile::TempDir, Roots, Mapping) {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().to_owned();
        let words = |path: &str, words: &mut dyn Iterator<Item = u64>| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, words.flat_map(u64::to_ne_bytes).collect::<Vec<_>>()).unwrap();
        };
        words("sys/kernel/mm/page_idle/bitmap", &mut (0..=PAGES).map(|_| 0));
        words("proc/kpageflags", &mut (0..=PAGES * PFNS_PER_WORD).map(|_| flags));
        words("proc/7/pagemap", &mut (0..=PAGES).map(|page| if page == 0 { 0 } else { (1 << 63) | (page * PFNS_PER_WORD) }));
        let page = page_size().bytes();
        let text = format!("{page:x}-{:x} rw-s 00000000 00:18 47 /dev/shm/slice\nRss: 0 kB\n", (PAGES + 1) * page);
        let mapping = kernel::smaps::parse(&text).unwrap().remove(0);
        (directory, Roots::under(&root), mapping)
    }

    /// Clears the idle bits of the first `pages` pages, as accesses do.
    fn access(root: &Path, pages: u64) {
        let path = root.join("sys/kernel/mm/page_idle/bitmap");
        let mut words = fs::read(&path).unwrap();
        words[..usize::try_from(pages + 1).unwrap() * 8].fill(0);
        fs::write(path, words).unwrap();
    }

    #[test]
    fn pages_that_are_no_longer_idle_were_accessed() {
        let (directory, roots, mapping) = machine(KPF_LRU);
        let page = page_size().bytes();
        for pages in [0, 64, PAGES] {
            let accessed = sample(&roots, 7, std::slice::from_ref(&mapping), || access(directory.path(), pages)).unwrap().unwrap();
            assert_eq!(accessed[0].estimated.0, pages * page, "{pages} pages");
        }
    }

    #[test]
    fn pages_on_no_list_are_not_innocent() {
        let (_directory, roots, mapping) = machine(0);
        assert_eq!(sample(&roots, 7, &[mapping], || panic!("there is nothing to wait for")).unwrap(), None);
    }
}

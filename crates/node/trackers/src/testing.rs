//! A fake machine for this crate's tests: the files of idle page tracking in a temporary directory.

use std::path::PathBuf;

use kernel::Roots;
use tempfile::TempDir;

/// Page frames of the machine.
pub(crate) const FRAMES: usize = 256;

/// A machine with idle page tracking and no memory in use.
pub(crate) struct Machine {
    directory: TempDir,
    pub(crate) roots: Roots,
}

impl Machine {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let machine = Self { roots: Roots::under(directory.path()), directory };
        let zoneinfo = format!("Node 0, zone Normal\n  spanned {FRAMES}\n  present {FRAMES}\n  start_pfn: 0\n");
        machine.put("proc/zoneinfo", zoneinfo.as_bytes());
        for name in ["proc/kpageflags", "proc/kpagecgroup"] {
            machine.put_words(name, &[0; FRAMES]);
        }
        machine.put_words(BITMAP, &[0; FRAMES / 64]);
        machine
    }

    /// Writes a file of 64-bit words, and the directories above it.
    pub(crate) fn put_words(&self, name: &str, words: &[u64]) {
        self.put(name, &words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>());
    }

    pub(crate) fn put(&self, name: &str, content: &[u8]) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Sets the idle bits as they are after only the first `count` frames were accessed.
    pub(crate) fn access_frames(&self, count: usize) {
        let word = |index: usize| (0..64).filter(|bit| index * 64 + bit >= count).fold(0, |word, bit| word | 1 << bit);
        self.put_words(BITMAP, &(0..FRAMES / 64).map(word).collect::<Vec<_>>());
    }

    /// Whether a frame's idle bit is set.
    pub(crate) fn is_idle(&self, frame: u64) -> bool {
        let bytes = std::fs::read(self.path(BITMAP)).unwrap();
        let (words, _) = bytes.as_chunks::<8>();
        u64::from_ne_bytes(words[usize::try_from(frame / 64).unwrap()]) >> (frame % 64) & 1 == 1
    }
}

/// The idle bitmap, below the machine's root.
const BITMAP: &str = "sys/kernel/mm/page_idle/bitmap";

//! The files of idle page tracking, read together: what a page frame holds, whose it is, and whether it was accessed.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use kernel::page_idle::{IdleBitmap, KPageCgroup, KPageFlags};
use kernel::page_idle::{KPF_COMPOUND_TAIL, KPF_LRU, KPF_MLOCKED, KPF_SWAPBACKED, KPF_UNEVICTABLE, PFNS_PER_WORD};
use kernel::{Result, Roots};

/// Frames of the largest page on an LRU list: a transparent huge page of 2 MiB.
pub(super) const MAX_COMPOUND: usize = 512;

/// `bitmap`, `kpageflags` and `kpagecgroup`.
#[derive(Debug)]
pub(super) struct IdleFiles {
    pub(super) idle: IdleBitmap,
    pub(super) flags: KPageFlags,
    pub(super) cgroups: KPageCgroup,
}

/// A page on an LRU list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    /// The frame whose idle bit is the page's: of a compound page only the head has one.
    pub(super) head: u64,
    /// Whether it is swap-backed; otherwise it is a file's.
    pub(super) swap_backed: bool,
}

impl IdleFiles {
    /// Opens the files.
    ///
    /// # Errors
    /// `Unsupported` if the kernel was built without idle page tracking, like Debian's.
    pub(super) fn open(roots: &Roots) -> Result<Self> {
        Ok(Self { idle: IdleBitmap::open(roots)?, flags: KPageFlags::open(roots)?, cgroups: KPageCgroup::open(roots)? })
    }

    /// Returns one bit of the bitmap; `words` caches the words read so far.
    pub(super) fn is_idle(&self, frame: u64, words: &mut HashMap<u64, u64>) -> Result<bool> {
        let first = frame - frame % PFNS_PER_WORD;
        let word = match words.entry(first) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(unknown) => {
                let mut word = [0];
                self.idle.read_chunk(first, &mut word)?;
                *unknown.insert(word[0])
            }
        };
        Ok(word >> (frame % PFNS_PER_WORD) & 1 == 1)
    }

    /// Marks the pages with these heads as idle.
    pub(super) fn mark(&self, heads: &[u64]) -> Result<()> {
        let mut words: HashMap<u64, u64> = HashMap::new();
        for head in heads {
            *words.entry(head - head % PFNS_PER_WORD).or_default() |= 1 << (head % PFNS_PER_WORD);
        }
        words.into_iter().try_for_each(|(first, word)| self.idle.write_chunk(first, &[word]).map(drop))
    }

    /// The cgroup that a frame is charged to; 0 for none.
    pub(super) fn cgroup(&self, frame: u64) -> Result<u64> {
        let mut cgroup = [0];
        self.cgroups.read_chunk(frame, &mut cgroup)?;
        Ok(cgroup[0])
    }

    /// The flags of a frame; none beyond the end of memory.
    fn flags(&self, frame: u64) -> Result<u64> {
        let mut flags = [0];
        self.flags.read_chunk(frame, &mut flags)?;
        Ok(flags[0])
    }

    /// Whether a frame is a part of a compound page, and not its head.
    pub(super) fn is_tail(&self, frame: u64) -> Result<bool> {
        Ok(self.flags(frame)? & KPF_COMPOUND_TAIL != 0)
    }

    /// The page of a frame, if the kernel could reclaim it.
    pub(super) fn listed(&self, frame: u64) -> Result<Option<Listed>> {
        let own = self.flags(frame)?;
        let (head, flags) = match own & KPF_COMPOUND_TAIL {
            0 => (frame, own),
            _ => match self.head_of(frame)? {
                Some(head) => (head, self.flags(head)?),
                None => return Ok(None),
            },
        };
        let reclaimable = flags & KPF_LRU != 0 && flags & (KPF_UNEVICTABLE | KPF_MLOCKED | KPF_COMPOUND_TAIL) == 0;
        Ok(reclaimable.then_some(Listed { head, swap_backed: flags & KPF_SWAPBACKED != 0 }))
    }

    /// Returns the head of the compound page of which `frame` is a tail; only heads have an idle bit.
    pub(super) fn head_of(&self, frame: u64) -> Result<Option<u64>> {
        let mut flags = [0; MAX_COMPOUND];
        let first = frame - frame % MAX_COMPOUND as u64;
        let at = usize::try_from(frame - first).unwrap_or(usize::MAX);
        let count = self.flags.read_chunk(first, &mut flags[..=at])?;
        if at >= count || flags[at] & KPF_COMPOUND_TAIL == 0 {
            return Ok(None);
        }
        let head = flags[..at].iter().rposition(|flags| flags & KPF_COMPOUND_TAIL == 0);
        Ok(head.map(|head| first + head as u64))
    }
}

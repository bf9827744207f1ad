//! The files of idle page tracking, read together: what a page frame holds, whose it is, and whether it was accessed.

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

/// A word of the idle bitmap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word {
    /// Its first frame.
    first: u64,
    bits: u64,
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

    /// Returns one bit of the bitmap. `last` is the word that was read before, if there is one: frames in ascending order read each
    /// word once.
    pub(super) fn is_idle(&self, frame: u64, last: &mut Option<Word>) -> Result<bool> {
        let first = frame - frame % PFNS_PER_WORD;
        let bits = match *last {
            Some(word) if word.first == first => word.bits,
            _ => {
                let mut bits = [0];
                self.idle.read_chunk(first, &mut bits)?;
                last.insert(Word { first, bits: bits[0] }).bits
            }
        };
        Ok(bits >> (frame % PFNS_PER_WORD) & 1 == 1)
    }

    /// Marks the pages with these heads as idle.
    pub(super) fn mark(&self, mut heads: Vec<u64>) -> Result<()> {
        heads.sort_unstable();
        for same in heads.chunk_by(|one, other| one / PFNS_PER_WORD == other / PFNS_PER_WORD) {
            let bits = same.iter().fold(0, |bits, head| bits | 1 << (head % PFNS_PER_WORD));
            self.idle.write_chunk(same[0] - same[0] % PFNS_PER_WORD, &[bits])?;
        }
        Ok(())
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

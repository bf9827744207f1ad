//! Generations of MGLRU, as Linux 6.12 has them (`mm/vmscan.c`, `Documentation/mm/multigen_lru.rst`).
//!
//! Pages of each kind are in one of at most four generations, numbered from `min_seq` of the kind to the common `max_seq`. Opening a
//! generation moves what was accessed into the youngest one and then makes a new one. Where there are four already, the oldest is
//! merged into the next: the order within them is lost. Two generations are always kept.

use crate::trace::Kind;
use policy::balance::AnonFileBias;

/// The most generations of a kind (`MAX_NR_GENS`).
pub const GENS_MAX: u32 = 4;

/// The fewest (`MIN_NR_GENS`).
pub const GENS_MIN: u32 = 2;

/// Groups that the kernel isolates at once (`MIN_LRU_BATCH`), in pages.
pub const BATCH: u64 = 64;

/// A generation as the debugfs file `lru_gen` lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation {
    /// Its number.
    pub seq: u32,
    /// Time since it was opened, in milliseconds.
    pub age_ms: u64,
    /// Groups of each kind, by [`Kind::index`].
    pub groups: [u64; 2],
}

/// The generations of one cgroup.
#[derive(Clone, Debug)]
pub struct Generations {
    max_seq: u32,
    min_seq: [u32; 2],
    opened_ms: [u64; GENS_MAX as usize],
    groups: [[u64; GENS_MAX as usize]; 2],
    evicted: [u64; 2],
    refaulted: [u64; 2],
}

impl Default for Generations {
    fn default() -> Self {
        // `lru_gen_init_lruvec`: the youngest is MIN_NR_GENS + 1.
        Self { max_seq: GENS_MIN + 1, min_seq: [0; 2], opened_ms: [0; 4], groups: [[0; 4]; 2], evicted: [0; 2], refaulted: [0; 2] }
    }
}

fn slot(seq: u32) -> usize {
    (seq % GENS_MAX) as usize
}

impl Generations {
    /// The youngest generation.
    #[must_use]
    pub fn youngest(&self) -> u32 {
        self.max_seq
    }

    /// The oldest generation of a kind.
    #[must_use]
    pub fn oldest(&self, kind: Kind) -> u32 {
        self.min_seq[kind.index()]
    }

    /// The generations of a kind that there are.
    #[must_use]
    pub fn count(&self, kind: Kind) -> u32 {
        self.max_seq - self.oldest(kind) + 1
    }

    /// Groups in the oldest generation of a kind.
    #[must_use]
    pub fn in_oldest(&self, kind: Kind) -> u64 {
        self.groups[kind.index()][slot(self.oldest(kind))]
    }

    /// The generation that a group with this number is in: merged ones are part of the oldest.
    #[must_use]
    pub fn of(&self, kind: Kind, seq: u32) -> u32 {
        seq.max(self.oldest(kind))
    }

    /// The generation that new page cache is added to: it was read, and is not in use yet (`lru_gen_add_folio`).
    #[must_use]
    pub fn for_new_file(&self) -> u32 {
        let oldest = self.oldest(Kind::File);
        if oldest + GENS_MIN >= self.max_seq { oldest } else { oldest + 1 }
    }

    /// Adds a group, and returns its generation.
    pub fn add(&mut self, kind: Kind, seq: u32) -> u32 {
        let seq = self.of(kind, seq);
        self.groups[kind.index()][slot(seq)] += 1;
        seq
    }

    /// Removes a group.
    pub fn remove(&mut self, kind: Kind, seq: u32) {
        let seq = self.of(kind, seq);
        self.groups[kind.index()][slot(seq)] -= 1;
    }

    /// Opens a generation. The caller has moved accessed groups into the youngest one before.
    pub fn open(&mut self, now_ms: u64) {
        for kind in Kind::ALL {
            if self.count(kind) == GENS_MAX {
                self.merge_oldest(kind);
            }
        }
        self.max_seq += 1;
        self.opened_ms[slot(self.max_seq)] = now_ms;
    }

    fn merge_oldest(&mut self, kind: Kind) {
        let (at, oldest) = (kind.index(), self.oldest(kind));
        let merged = std::mem::take(&mut self.groups[at][slot(oldest)]);
        self.groups[at][slot(oldest + 1)] += merged;
        self.set_oldest(kind, oldest + 1);
    }

    /// Counts of refaults are halved when a generation ends, as the kernel's averages (`reset_ctrl_pos`).
    fn set_oldest(&mut self, kind: Kind, seq: u32) {
        let at = kind.index();
        self.min_seq[at] = seq;
        (self.evicted[at], self.refaulted[at]) = (self.evicted[at] / 2, self.refaulted[at] / 2);
    }

    /// Drops empty oldest generations (`try_to_inc_min_seq`): anonymous memory does not get ahead of page cache, nor the reverse.
    pub fn drop_empty(&mut self, swap: bool) {
        let mut next = self.min_seq;
        for kind in Kind::ALL {
            let at = kind.index();
            while next[at] + GENS_MIN <= self.max_seq && self.groups[at][slot(next[at])] == 0 {
                next[at] += 1;
            }
        }
        if swap {
            next[0] = next[0].min(next[1]);
            next[1] = next[0].max(self.min_seq[1]);
        } else {
            next[0] = self.min_seq[0];
        }
        for kind in Kind::ALL {
            if next[kind.index()] > self.oldest(kind) {
                self.set_oldest(kind, next[kind.index()]);
            }
        }
    }

    /// A group left by reclaim.
    pub fn evicted(&mut self, kind: Kind) {
        self.evicted[kind.index()] += 1;
    }

    /// An evicted group returned while the generation that it left from was still the oldest.
    pub fn refaulted(&mut self, kind: Kind) {
        self.refaulted[kind.index()] += 1;
    }

    /// The kind that is reclaimed next (`isolate_folios`): the one with the older generation; of equal ones by swappiness and the
    /// share of evicted groups that returned.
    #[must_use]
    pub fn next_kind(&self, bias: AnonFileBias, group_pages: u64) -> Kind {
        let AnonFileBias::Swappiness(swappiness) = bias else { return Kind::File };
        match (swappiness, self.min_seq[0], self.min_seq[1]) {
            (0, ..) => Kind::File,
            (_, anon, file) if anon < file => Kind::Anon,
            (_, anon, file) if anon > file => Kind::File,
            (1, ..) => Kind::File,
            (200.., ..) => Kind::Anon,
            (swappiness, ..) => {
                let (anon, file) = (u128::from(swappiness), u128::from(200 - swappiness));
                let pages = |groups: u64| u128::from(groups * group_pages);
                let [anon_refaults, file_refaults] = self.refaulted.map(pages);
                let [anon_evicted, file_evicted] = self.evicted.map(pages);
                // `positive_ctrl_err`: whether page cache refaults less than anonymous memory, weighed by both.
                let fewer = file_refaults * (anon_evicted + u128::from(BATCH)) * anon <= (anon_refaults + 1) * file_evicted * file;
                if file_refaults < u128::from(BATCH) || fewer { Kind::File } else { Kind::Anon }
            }
        }
    }

    /// The generations, oldest first.
    pub fn list(&self, now_ms: u64) -> impl Iterator<Item = Generation> + '_ {
        let first = self.min_seq[0].min(self.min_seq[1]);
        (first..=self.max_seq).map(move |seq| {
            let of = |kind: Kind| if seq < self.oldest(kind) { 0 } else { self.groups[kind.index()][slot(seq)] };
            Generation { seq, age_ms: now_ms - self.opened_ms[slot(seq)].min(now_ms), groups: [of(Kind::Anon), of(Kind::File)] }
        })
    }
}

//! A simulated cgroup: its pages, of which every access is known, and what the kernel counts for it.

use fastrand::Rng;

/// The size of a page, in bytes.
pub const PAGE: u64 = 4096;

/// What the agent may do with a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A rule names it, with a class that the agent acts on.
    Job,
    /// A rule names it with class `observe` or `off`.
    Spared,
    /// No rule names it.
    Stranger,
    /// A cgroup above jobs, without pages of its own: only its `memory.low` and `memory.min` may be set.
    Ancestor,
}

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Not allocated.
    Unused,
    /// In DRAM.
    Resident,
    /// Compressed in zswap.
    Compressed,
    /// On the swap device.
    Device,
    /// Page cache that was reclaimed.
    Evicted,
}

/// One page. Its frame in DRAM is that of its index in the group.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// Where it is.
    pub place: Place,
    /// Whether it is anonymous; otherwise it is page cache.
    pub anon: bool,
    /// Mean time between two accesses, in seconds.
    pub period: f64,
    /// The last access, in seconds since boot.
    pub last: f64,
    /// The next access.
    pub next: f64,
    /// Whether it was not accessed since it was marked idle.
    pub idle: bool,
}

/// What the kernel counts for a cgroup, ever.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Pages loaded from zswap.
    pub zswpin: u64,
    /// Pages stored in zswap.
    pub zswpout: u64,
    /// Pages read from the swap device.
    pub pswpin: u64,
    /// Pages written to it.
    pub pswpout: u64,
    /// Refaults of anonymous pages.
    pub refault_anon: u64,
    /// Refaults of page cache.
    pub refault_file: u64,
    /// Stall for memory, in microseconds.
    pub memory_stall_us: u64,
    /// Stall for I/O, in microseconds.
    pub io_stall_us: u64,
    /// Times that the kernel reclaimed in spite of `memory.low`.
    pub low: u64,
}

/// A cgroup.
#[derive(Clone, Debug)]
pub struct Group {
    /// Its path.
    pub path: String,
    /// What the agent may do with it.
    pub role: Role,
    /// The policy of its rule.
    pub policy: &'static str,
    /// Its class.
    pub class: &'static str,
    /// Whether it exists.
    pub alive: bool,
    /// The number of its directory, which the kernel uses as its id.
    pub id: u64,
    /// The first of its page frames.
    pub frame: usize,
    /// Its pages.
    pub pages: Vec<Page>,
    /// What the operator wrote to the files that the agent sets.
    pub own: [String; 5],
    /// Counters.
    pub counters: Counters,
    /// The largest resident size in the last turns, in pages.
    pub peaks: [u64; 3],
    /// Anonymous pages that were idle before this turn.
    pub idle_before: u64,
    /// The most that were idle before a turn since the last scan.
    pub idle_most: u64,
    /// Those that were idle at the last scan.
    pub cold: u64,
    /// Anonymous pages asked for since the last scan.
    pub asked: u64,
}

/// The files of a cgroup that the agent sets.
pub const SETTINGS: [&str; 5] = ["memory.low", "memory.swap.max", "memory.zswap.max", "memory.zswap.writeback", "memory.min"];

/// Those that protect memory.
pub const PROTECTIONS: [usize; 2] = [0, 4];

/// What they contain in a new cgroup.
pub const DEFAULTS: [&str; 5] = ["0", "max", "max", "1", "0"];

impl Group {
    /// The larger of its protections as the operator set them, in pages.
    #[must_use]
    pub fn own_protection(&self) -> u64 {
        PROTECTIONS.iter().map(|&setting| pages(&self.own[setting])).max().unwrap_or(0)
    }

    /// `memory.min` as the operator set it, in pages.
    #[must_use]
    pub fn own_min(&self) -> u64 {
        pages(&self.own[4])
    }

    /// Pages in a place, of one kind.
    #[must_use]
    pub fn count(&self, place: Place, anon: bool) -> u64 {
        self.pages.iter().filter(|page| page.place == place && page.anon == anon).count() as u64
    }

    /// Pages in DRAM.
    #[must_use]
    pub fn resident(&self) -> u64 {
        self.pages.iter().filter(|page| page.place == Place::Resident).count() as u64
    }

    /// Pages in swap.
    #[must_use]
    pub fn swapped(&self) -> u64 {
        self.pages.iter().filter(|page| matches!(page.place, Place::Compressed | Place::Device)).count() as u64
    }

    /// Anonymous pages in DRAM that are marked idle.
    #[must_use]
    pub fn idle(&self) -> u64 {
        self.pages.iter().filter(|page| page.place == Place::Resident && page.anon && page.idle).count() as u64
    }

    /// Fills the group with pages: hot, warm and cold ones, and some that are not used yet.
    pub fn populate(&mut self, count: usize, rng: &mut Rng, now: f64) {
        let (hot, warm, file) = (0.1 + rng.f64() * 0.5, rng.f64() * 0.3, rng.f64() * 0.5);
        self.pages = (0..count)
            .map(|_| {
                let heat = rng.f64();
                let period = if heat < hot {
                    2.0
                } else if heat < hot + warm {
                    60.0 + rng.f64() * 400.0
                } else {
                    3_000.0 + rng.f64() * 30_000.0
                };
                let place = if rng.f64() < 0.9 { Place::Resident } else { Place::Unused };
                Page { place, anon: rng.f64() >= file, period, last: now, next: now + rng.f64() * period, idle: false }
            })
            .collect();
    }

    /// Changes which pages are hot.
    pub fn shift(&mut self, rng: &mut Rng) {
        let periods: Vec<f64> = self.pages.iter().map(|page| page.period).collect();
        let by = rng.usize(..self.pages.len().max(1));
        for (at, page) in self.pages.iter_mut().enumerate() {
            page.period = periods[(at + by) % periods.len()];
            page.next = page.next.min(page.last + page.period * (0.5 + rng.f64()));
        }
    }

    /// Frees a share of the pages, or allocates what is not used.
    pub fn resize(&mut self, share: f64, grow: bool, rng: &mut Rng, now: f64) {
        for page in &mut self.pages {
            if rng.f64() >= share {
                continue;
            }
            match page.place {
                Place::Unused if grow => (page.place, page.last, page.idle) = (Place::Resident, now, false),
                _ if !grow => (page.place, page.idle) = (Place::Unused, false),
                _ => {}
            }
        }
    }

    /// Lets the job run until `now`.
    pub fn access(&mut self, now: f64, rng: &mut Rng) {
        let counters = &mut self.counters;
        for page in self.pages.iter_mut().filter(|page| page.next <= now) {
            page.last = now;
            page.next = now + page.period * (0.5 + rng.f64());
            match page.place {
                Place::Unused => continue,
                Place::Resident => {}
                Place::Compressed => (counters.zswpin, counters.refault_anon) = (counters.zswpin + 1, counters.refault_anon + 1),
                Place::Device => (counters.pswpin, counters.refault_anon) = (counters.pswpin + 1, counters.refault_anon + 1),
                Place::Evicted => counters.refault_file += 1,
            }
            match page.place {
                Place::Device => {
                    (counters.memory_stall_us, counters.io_stall_us) = (counters.memory_stall_us + 200, counters.io_stall_us + 200)
                }
                Place::Evicted => counters.io_stall_us += 200,
                _ => {}
            }
            (page.place, page.idle) = (Place::Resident, false);
        }
    }

    /// Whether the agent may set this file of the group.
    #[must_use]
    pub fn may_be_set(&self, setting: usize) -> bool {
        match self.role {
            Role::Job => true,
            Role::Ancestor => PROTECTIONS.contains(&setting),
            Role::Spared | Role::Stranger => false,
        }
    }
}

fn pages(bytes: &str) -> u64 {
    bytes.parse::<u64>().map_or(0, |bytes| bytes / PAGE)
}

//! The simulated kernel: page groups in DRAM, in zswap and on a device, reclaim by MGLRU, stalls.
//!
//! What follows Linux 6.12 and is not obvious:
//! - A faulted page is added to the youngest generation, a page of a file that is read to an old one (`lru_gen_add_folio`).
//! - Reclaim moves a page whose accessed bit is set to the youngest generation instead of evicting it (`folio_check_references`);
//!   page cache that was read twice or more since it entered its generation moves to the next one (`sort_folio`).
//! - Every return is counted as a refault. It counts as a memory stall only if the generation that the page left from is still the
//!   oldest (`lru_gen_refault`, `PG_workingset`). A wait for a device is an I/O stall in any case.
//! - Page cache is read ahead: adjacent pages that are read in the same interval are one read for every [`Costs::readahead_pages`] of
//!   them, and one wait (`page_cache_ra_unbounded`). All count as refaults, as the kernel counts pages and not reads. Windows that
//!   grow, and pages that nothing reads behind a window's end, are not simulated.
//! - Within a generation, order is lost: groups are reclaimed in the order of their numbers, from where the last reclaim ended.

use policy::balance::AnonFileBias;
use serde::Serialize;
use units::Bytes;

use crate::generations::{BATCH, GENS_MIN, Generation, Generations};
use crate::request::Request;
use crate::stalls::Stall;
use crate::trace::{Kind, Trace};

/// What a return of one page costs whoever accesses it, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Costs {
    /// From zswap.
    pub zswap_us: u32,
    /// From a swap device, or of one read of a file.
    pub device_us: u32,
    /// Pages of a file that one read brings at most.
    pub readahead_pages: u32,
}

impl Default for Costs {
    /// Those of the guest arena: a fault that decompresses, a slow SSD (TMO section 2.5), and Linux's `read_ahead_kb` of 128.
    fn default() -> Self {
        Self { zswap_us: 120, device_us: 500, readahead_pages: 32 }
    }
}

/// Where a group is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// It does not exist.
    Absent,
    /// In DRAM.
    Resident,
    /// In zswap's pool.
    Zswap,
    /// On a swap device.
    Device,
    /// In its file only.
    Dropped,
}

impl Place {
    /// Whether it has left DRAM, or is compressed.
    #[must_use]
    pub fn is_far(self) -> bool {
        matches!(self, Self::Zswap | Self::Device | Self::Dropped)
    }
}

/// Counters since the job started. They never decrease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// What accesses waited for returns, in microseconds. Linux does not have it: it is the score.
    pub lost_us: u64,
    /// Groups of anonymous memory that returned (`pswpin`, `zswpin`).
    pub promoted: u64,
    /// Groups of page cache that returned (`workingset_refault_file`).
    pub refaulted: u64,
    /// Groups that were reclaimed, of both kinds (`pgsteal`).
    pub reclaimed: u64,
    /// Groups that reclaim went through, whether it reclaimed them or not (`pgscan`).
    pub scanned: u64,
    /// Groups that returned while the generation that they left from was still the oldest (`workingset_activate`).
    pub activated: u64,
    /// Groups that returned from zswap.
    pub zswap_returns: u64,
    /// Groups that returned from a device or a file.
    pub device_returns: u64,
}

/// An access of this interval, as a tracker of accessed bits reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// The group.
    pub group: u32,
    /// The interval of its last access before; `None` if it is new.
    pub before: Option<u32>,
    /// Where it was.
    pub from: Place,
}

/// What the last read of a file in an interval has brought.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    /// The group behind the last access: another one ends the window.
    next: u32,
    /// Pages from there on that the read has brought.
    pages: u64,
}

impl Window {
    /// Moves on past a group. Returns the reads that it takes if its pages must come from the file, else none.
    fn reads(&mut self, group: u32, pages: u64, is_far: bool, readahead_pages: u32) -> u64 {
        let brought = if group == self.next { self.pages } else { 0 };
        let (readahead, missing) = (u64::from(readahead_pages.max(1)), if is_far { pages.saturating_sub(brought) } else { 0 });
        let reads = missing.div_ceil(readahead);
        *self = Self { next: group + 1, pages: (brought + reads * readahead).saturating_sub(pages) };
        reads
    }
}

#[derive(Clone, Copy, Debug)]
struct State {
    place: Place,
    /// Its generation, if it is resident; merged ones count as the oldest.
    seq: u32,
    /// The accessed bit of mapped memory.
    accessed: bool,
    /// Reads of page cache since it entered its generation.
    reads: u8,
    /// The interval of the last access.
    last: u32,
    /// The oldest generation of its kind when it was evicted.
    left_from: u32,
}

/// A kernel with one job.
#[derive(Debug)]
pub struct Kernel<'a> {
    trace: &'a Trace,
    costs: Costs,
    states: Vec<State>,
    lru: Generations,
    hands: [usize; 2],
    resident: [u64; 2],
    far: u64,
    pool: u64,
    zswap: bool,
    now: u32,
    counters: Counters,
    memory_stall: Stall,
    io_stall: Stall,
    touches: Vec<Touch>,
}

impl<'a> Kernel<'a> {
    /// A kernel whose job has not started.
    #[must_use]
    pub fn new(trace: &'a Trace, costs: Costs) -> Self {
        let absent = State { place: Place::Absent, seq: 0, accessed: false, reads: 0, last: 0, left_from: 0 };
        Self {
            trace,
            costs,
            states: vec![absent; trace.groups.len()],
            lru: Generations::default(),
            hands: [0; 2],
            resident: [0; 2],
            far: 0,
            pool: 0,
            zswap: true,
            now: 0,
            counters: Counters::default(),
            memory_stall: Stall::default(),
            io_stall: Stall::default(),
            touches: Vec::new(),
        }
    }

    /// The job's accesses of this interval, and what it frees.
    pub fn access(&mut self) {
        let trace = self.trace;
        self.touches.clear();
        let Some(interval) = trace.intervals.get(self.now as usize) else { return };
        let (mut memory_us, mut io_us, mut window) = (0, 0, Window::default());
        for &group in &interval.accessed {
            let (memory, io) = self.touch(group, &mut window);
            (memory_us, io_us) = (memory_us + memory, io_us + io);
        }
        self.memory_stall.add(memory_us, trace.interval_ms);
        self.io_stall.add(io_us, trace.interval_ms);
        for &group in &interval.freed {
            self.free(group);
        }
    }

    /// One access. Returns its memory stall and its I/O stall, in microseconds.
    fn touch(&mut self, group: u32, window: &mut Window) -> (u64, u64) {
        let kind = self.trace.groups[group as usize].kind;
        let state = self.states[group as usize];
        let before = (state.place != Place::Absent).then_some(state.last);
        self.touches.push(Touch { group, before, from: state.place });
        let waits = self.waits(group, kind, state.place, window);
        let (mut stalls, mut next) = ((0, 0), State { last: self.now, place: Place::Resident, ..state });
        if state.place == Place::Resident {
            next.reads = state.reads.saturating_add(1);
        } else {
            let recent = state.place.is_far() && state.left_from == self.lru.oldest(kind);
            if state.place.is_far() {
                stalls = self.give_back(group, kind, state.place, recent, waits);
            }
            next.reads = 1 + u8::from(recent);
            next.seq = self.lru.add(kind, if kind == Kind::Anon { self.lru.youngest() } else { self.lru.for_new_file() });
            self.resident[kind.index()] += 1;
        }
        next.accessed = kind == Kind::Anon;
        self.states[group as usize] = next;
        stalls
    }

    /// How many waits an access takes: one for each page of anonymous memory, one for each read of a file.
    fn waits(&self, group: u32, kind: Kind, place: Place, window: &mut Window) -> u64 {
        let pages = u64::from(self.trace.group_pages);
        match kind {
            Kind::Anon => pages * u64::from(place.is_far()),
            Kind::File => window.reads(group, pages, place.is_far(), self.costs.readahead_pages),
        }
    }

    fn give_back(&mut self, group: u32, kind: Kind, from: Place, recent: bool, waits: u64) -> (u64, u64) {
        self.leave_far(group, from);
        let us = waits * u64::from(if from == Place::Zswap { self.costs.zswap_us } else { self.costs.device_us });
        self.counters.lost_us += us;
        let returns = if from == Place::Zswap { &mut self.counters.zswap_returns } else { &mut self.counters.device_returns };
        *returns += 1;
        let refaults = if kind == Kind::Anon { &mut self.counters.promoted } else { &mut self.counters.refaulted };
        *refaults += 1;
        if recent {
            self.lru.refaulted(kind);
            self.counters.activated += 1;
        }
        (if recent { us } else { 0 }, if from == Place::Zswap { 0 } else { us })
    }

    fn leave_far(&mut self, group: u32, from: Place) {
        self.far -= 1;
        if from == Place::Zswap {
            self.pool -= self.stored(group);
        }
    }

    /// What a group takes in zswap's pool.
    fn stored(&self, group: u32) -> u64 {
        self.trace.groups[group as usize].compressed.share_of(self.trace.group_bytes().0)
    }

    fn free(&mut self, group: u32) {
        let kind = self.trace.groups[group as usize].kind;
        let state = self.states[group as usize];
        match state.place {
            Place::Absent => return,
            Place::Resident => self.drop_resident(kind, state.seq),
            Place::Zswap | Place::Device | Place::Dropped => self.leave_far(group, state.place),
        }
        self.states[group as usize].place = Place::Absent;
    }

    fn drop_resident(&mut self, kind: Kind, seq: u32) {
        self.lru.remove(kind, seq);
        self.resident[kind.index()] -= 1;
    }

    /// Carries out a request.
    pub fn carry_out(&mut self, request: &Request) {
        match request {
            Request::OpenGeneration => self.open_generation(),
            &Request::Evict { up_to, swappiness, most } => self.evict_generations(up_to, swappiness, self.groups_in(most)),
            &Request::Reclaim { bytes, bias } => self.reclaim(self.groups_in(bytes), bias),
            Request::PageOut(groups) => {
                for &group in groups {
                    if self.place(group) == Place::Resident {
                        self.evict(group);
                    }
                }
            }
            Request::WriteBack(groups) => {
                for &group in groups {
                    if self.place(group) == Place::Zswap {
                        self.pool -= self.stored(group);
                        self.states[group as usize].place = Place::Device;
                    }
                }
            }
            &Request::Zswap(zswap) => self.zswap = zswap,
        }
    }

    /// Groups in so many bytes, rounded down.
    fn groups_in(&self, bytes: Bytes) -> u64 {
        bytes.0 / self.trace.group_bytes().0
    }

    /// Moves mapped memory that was accessed into the youngest generation, and opens the next one (`try_to_inc_max_seq`).
    fn open_generation(&mut self) {
        let youngest = self.lru.youngest();
        for (group, state) in self.trace.groups.iter().zip(&mut self.states) {
            if state.place == Place::Resident && std::mem::take(&mut state.accessed) {
                self.lru.remove(group.kind, state.seq);
                state.seq = self.lru.add(group.kind, youngest);
            }
        }
        self.lru.open(self.now_ms());
    }

    fn evict_generations(&mut self, up_to: u32, swappiness: u8, most: u64) {
        let bias = AnonFileBias::Swappiness(swappiness);
        if up_to + GENS_MIN > self.lru.youngest() {
            return;
        }
        let mut left = most;
        while left > 0 {
            self.lru.drop_empty(true);
            if self.lru.oldest(Kind::Anon).min(self.lru.oldest(Kind::File)) > up_to {
                return;
            }
            let Some(freed) = self.shrink(bias, left) else { return };
            left -= freed;
        }
    }

    /// Reclaims so many groups (`shrink_many`, `try_to_shrink_lruvec`): from the oldest generation, and opens one where only two are
    /// left. It gives up after two turns through all generations.
    fn reclaim(&mut self, groups: u64, bias: AnonFileBias) {
        let swap = bias != AnonFileBias::FileOnly && bias != AnonFileBias::Swappiness(0);
        let (mut left, mut opened) = (groups, 0);
        while left > 0 {
            self.lru.drop_empty(swap);
            let few = self.lru.count(self.lru.next_kind(bias, u64::from(self.trace.group_pages))) <= GENS_MIN;
            match if few { None } else { self.shrink(bias, left) } {
                Some(freed) => left -= freed,
                None if opened < 2 * (GENS_MIN + 2) => {
                    opened += 1;
                    self.open_generation();
                }
                None => return,
            }
        }
    }

    /// Reclaims a batch from the oldest generation of one kind, or of the other one if that is empty. Returns the groups that it
    /// freed; `None` if both are empty.
    fn shrink(&mut self, bias: AnonFileBias, most: u64) -> Option<u64> {
        let kind = self.lru.next_kind(bias, u64::from(self.trace.group_pages));
        let other = match kind {
            Kind::Anon => Kind::File,
            Kind::File => Kind::Anon,
        };
        let both = bias != AnonFileBias::FileOnly && bias != AnonFileBias::Swappiness(0);
        let kind = [kind, other].into_iter().take(1 + usize::from(both)).find(|&kind| self.lru.in_oldest(kind) > 0)?;
        Some(self.scan_oldest(kind, most.min((BATCH / u64::from(self.trace.group_pages)).max(1))))
    }

    /// Goes through the oldest generation of a kind until `most` groups are evicted or none is left. Returns how many were evicted.
    fn scan_oldest(&mut self, kind: Kind, most: u64) -> u64 {
        let oldest = self.lru.oldest(kind);
        let mut evicted = 0;
        for _ in 0..self.states.len() {
            if evicted == most || self.lru.in_oldest(kind) == 0 {
                break;
            }
            let at = self.hands[kind.index()];
            self.hands[kind.index()] = (at + 1) % self.states.len();
            let state = self.states[at];
            if self.trace.groups[at].kind != kind || state.place != Place::Resident || self.lru.of(kind, state.seq) != oldest {
                continue;
            }
            self.counters.scanned += 1;
            let keep = match kind {
                Kind::Anon => state.accessed.then_some(self.lru.youngest()),
                Kind::File => (state.reads > 1).then_some(oldest + 1),
            };
            let Some(seq) = keep else {
                self.evict(u32::try_from(at).unwrap_or(u32::MAX));
                evicted += 1;
                continue;
            };
            self.lru.remove(kind, state.seq);
            self.states[at] = State { seq: self.lru.add(kind, seq), accessed: false, reads: 0, ..state };
        }
        evicted
    }

    /// Evicts a resident group.
    fn evict(&mut self, group: u32) {
        let of = self.trace.groups[group as usize];
        let state = self.states[group as usize];
        self.drop_resident(of.kind, state.seq);
        self.lru.evicted(of.kind);
        self.counters.reclaimed += 1;
        let place = match of.kind {
            Kind::File => Place::Dropped,
            Kind::Anon if self.zswap && of.compresses() => Place::Zswap,
            Kind::Anon => Place::Device,
        };
        self.far += 1;
        if place == Place::Zswap {
            self.pool += self.stored(group);
        }
        self.states[group as usize] = State { place, accessed: false, left_from: self.lru.oldest(of.kind), ..state };
    }

    /// Ends the interval.
    pub fn next_interval(&mut self) {
        self.now += 1;
    }

    /// What the job occupies less than without far memory, net of zswap's pool.
    #[must_use]
    pub fn saved(&self) -> Bytes {
        Bytes(self.far * self.trace.group_bytes().0 - self.pool)
    }

    pub(crate) fn trace(&self) -> &'a Trace {
        self.trace
    }

    pub(crate) fn now(&self) -> u32 {
        self.now
    }

    pub(crate) fn now_ms(&self) -> u64 {
        (u64::from(self.now) + 1) * self.trace.interval_ms
    }

    pub(crate) fn resident(&self, kind: Kind) -> Bytes {
        Bytes(self.resident[kind.index()] * self.trace.group_bytes().0)
    }

    pub(crate) fn pool(&self) -> Bytes {
        Bytes(self.pool)
    }

    pub(crate) fn memory_stall(&self) -> Stall {
        self.memory_stall
    }

    pub(crate) fn io_stall(&self) -> Stall {
        self.io_stall
    }

    /// Counters since the job started.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    pub(crate) fn costs(&self) -> Costs {
        self.costs
    }

    pub(crate) fn generations(&self) -> impl Iterator<Item = Generation> + use<'_> {
        self.lru.list(self.now_ms())
    }

    pub(crate) fn touches(&self) -> &[Touch] {
        &self.touches
    }

    pub(crate) fn last_access(&self, group: u32) -> Option<u32> {
        self.states.get(group as usize).filter(|state| state.place != Place::Absent).map(|state| state.last)
    }

    pub(crate) fn place(&self, group: u32) -> Place {
        self.states.get(group as usize).map_or(Place::Absent, |state| state.place)
    }
}

//! Our policies, by the functions of crate `policy` that the agent calls, arranged as the agent arranges them.
//!
//! `cold_age` and `auto`: at each control period `cold_age::step` decides about anonymous memory and `refaults::step` about page
//! cache. `auto` derives what may return from the stall target and the cost of a promotion, and `pressure::step` observes the stalls.
//! `pressure`: at each of its periods `pressure::step` decides how much is reclaimed and `balance::step` from which kind. The tier of
//! a job is chosen by `tiering::choose`.
//!
//! Left out: the CPU budget, byte rates and the write budget, which no trace here reaches; huge pages; restarts.

use policy::balance::{self, AnonFileBias};
use policy::cold_age::{self, Decision};
use policy::histogram::{AgeCounts, Histogram};
use policy::tiering::row::{Accounting, Medium, Placing, Row};
use policy::tiering::{self, Choice, Tier};
use policy::veto::Veto;
use policy::{page_cache, pressure, refaults};
use units::{Age, Bytes, Millis, PageSize, Pages, RatioPpm};

use super::ages::{Ages, Scan};
use super::pace::Pace;
use super::tuning::{Constants, Policy};
use crate::generations::Generation;
use crate::law::{Law, Request};
use crate::trace::Kind;
use crate::view::View;

/// The swappiness of a request for anonymous memory only.
const ANON_ONLY: AnonFileBias = AnonFileBias::Swappiness(200);

/// With fewer returns than this in a period, the agent learns no cost from its stalls.
const LEARN_PAGES_MIN: u64 = 32;

/// Generations with fewer pages are left alone (`EVICTED_MIN` in `trackers/src/ages/mod.rs`).
const EVICTED_MIN: Pages = Pages(64);

/// The weight of a period in the learned cost is one part in this many.
const LEARN_PARTS: u64 = 4;

/// Counters at the last decision of a law.
#[derive(Clone, Copy, Debug, Default)]
struct Readings {
    at_ms: Option<u64>,
    promoted: u64,
    refaulted: u64,
    /// Waits for devices; of the law of pressure, memory stalls as well.
    stalled_us: u64,
}

/// One of our policies.
#[derive(Debug)]
pub struct Thermocline {
    policy: Policy,
    constants: Constants,
    ages: Ages,
    control: Pace,
    pressure_pace: Pace,
    scan: Option<Scan>,
    tier: Option<Tier>,
    held_by_tier: bool,
    cold_age: cold_age::State,
    refaults: refaults::State,
    pressure: pressure::State,
    balance: balance::State,
    /// The last threshold.
    threshold: Option<Age>,
    /// What the stall target permits in each tier, by the last decision.
    permitted: Option<tiering::Permitted>,
    at_target: bool,
    observed_cost_us: u64,
    refaulted: Pages,
    saved: page_cache::Saved,
    /// Page cache that the last decision reclaimed.
    cache_out: Pages,
    cache_before: Readings,
    pressure_before: Readings,
}

impl Thermocline {
    /// A policy; one in `one_in` groups is tracked, and `seed` chooses which.
    #[must_use]
    pub fn new(policy: Policy, constants: Constants, interval_ms: u64, one_in: u32, seed: u64) -> Self {
        Self {
            policy,
            constants,
            ages: Ages::new(constants.scan_ms, interval_ms, one_in, seed),
            control: Pace::every(constants.control_ms),
            pressure_pace: Pace::every(constants.pressure_ms),
            scan: None,
            tier: None,
            held_by_tier: false,
            cold_age: cold_age::State::default(),
            refaults: refaults::State::default(),
            pressure: pressure::State::default(),
            balance: balance::State::default(),
            threshold: None,
            permitted: None,
            at_target: false,
            observed_cost_us: 0,
            refaulted: Pages::ZERO,
            saved: page_cache::Saved::default(),
            cache_out: Pages::ZERO,
            cache_before: Readings::default(),
            pressure_before: Readings::default(),
        }
    }

    /// The latency of a promotion from the job's tier.
    fn anon_us(&self, view: &View<'_>) -> u32 {
        match self.tier {
            Some(tier) if tier.accounting == Accounting::SwapCost => view.costs().device_us,
            _ => view.costs().zswap_us,
        }
    }

    /// What a page costs that returns: the tier's latency or the observed wait, whichever is longer.
    fn cost_us(&self, view: &View<'_>) -> u32 {
        self.anon_us(view).max(u32::try_from(self.observed_cost_us).unwrap_or(u32::MAX))
    }

    /// The threshold that the last decision by age has left.
    #[must_use]
    pub fn threshold_ms(&self) -> Option<Millis> {
        self.threshold.map(|age| Millis(self.constants.scan_ms.saturating_mul(u64::from(age.0))))
    }

    /// Whether stalls are at their target.
    #[must_use]
    pub fn is_at_target(&self) -> bool {
        self.at_target
    }

    /// What a page costs that returns from zswap and from the device; observed for the job's own tier.
    #[must_use]
    pub fn costs_by_tier(&self, view: &View<'_>) -> [u32; 2] {
        let on_device = self.tier.is_some_and(|tier| tier.accounting == Accounting::SwapCost);
        if on_device { [view.costs().zswap_us, self.cost_us(view)] } else { [self.cost_us(view), view.costs().device_us] }
    }

    /// Chooses the tier after a scan.
    fn place(&mut self, view: &View<'_>, asked: &mut Vec<Request>) {
        let compressed = self.scan.as_ref().and_then(|scan| scan.compressed);
        let rows = rows(view);
        let input =
            tiering::Input { compressed, rows: &rows, previous: self.tier, permitted: self.permitted.filter(|_| self.constants.by_saving) };
        let before = self.tier;
        (self.tier, self.held_by_tier) = match tiering::choose(&self.constants.tiering, &input) {
            Choice::Use { tier, .. } => (Some(tier), false),
            Choice::Hold { .. } => (self.tier, true),
        };
        if self.tier != before {
            asked.push(Request::Zswap(self.tier.is_none_or(|tier| tier.accounting == Accounting::Compressed)));
        }
    }

    fn decide_by_age(&mut self, view: &View<'_>, asked: &mut Vec<Request>) {
        let Some(scan) = &self.scan else { return };
        let window_ms = Millis(self.constants.scan_ms);
        let target = refaults::left_of(self.constants.pressure.stall_target, self.refaults.taken());
        let is_auto = self.policy == Policy::Auto;
        let fold = |counts: &AgeCounts| Histogram::from_counts(counts, &self.constants.thresholds);
        let mut cold = scan.resident.clone();
        cold.merge(&scan.far);
        let veto = if self.held_by_tier { Some(Veto::NoFarMemory) } else { self.at_target.then_some(Veto::Stalled) };
        let input = cold_age::Input {
            job_age_ms: Millis(view.now_ms()),
            window_ms,
            cold: fold(&cold),
            resident: fold(&scan.resident),
            promotions: fold(&scan.accesses),
            returned: (scan.sample.is_some() || self.constants.cold_age.partial || self.constants.cold_age.mean)
                .then(|| fold(&scan.returned)),
            allowance: is_auto.then(|| cold_age::allowance(target, window_ms, self.cost_us(view))),
            trial_max: None,
            sample: scan.sample,
            reach: self.reach(view),
            veto,
        };
        let (state, step) = cold_age::step(&self.constants.cold_age, &self.constants.thresholds, &self.cold_age, &input);
        self.cold_age = state;
        // What was observed is the wait for the tier that the job has.
        let cost_us = |us: u32| if us == self.anon_us(view) { self.cost_us(view) } else { us };
        let at = |us: u32| cold_age::allowance(target, window_ms, cost_us(us));
        let far_max = |us| self.cold_age.far_max(&self.constants.cold_age, &self.constants.thresholds, &input, at(us));
        let far_max = (far_max(view.costs().zswap_us), far_max(view.costs().device_us));
        self.permitted = far_max.0.zip(far_max.1).map(|(compressed, device)| tiering::Permitted { compressed, device });
        self.threshold = step.threshold.or(self.threshold);
        if let Decision::Offload { threshold, pages, .. } = step.decision {
            self.threshold = Some(threshold);
            asked.extend(self.offload(view, threshold, pages));
        }
        self.threshold = step.pace.or(self.threshold);
    }

    /// The idle time of each generation that can be evicted, in scans, the youngest first; none where pages go out one by one.
    fn closed<'a>(&self, view: &View<'a>) -> impl Iterator<Item = (Generation, Age)> + use<'a> {
        let scan_ms = self.constants.scan_ms;
        let generations: Vec<_> = if self.ages.is_exact() { Vec::new() } else { view.generations().collect() };
        let pairs: Vec<_> = generations.windows(2).map(|pair| (pair[0], pair[1].age_ms)).rev().collect();
        // The pages of a generation were accessed before the next one was opened.
        pairs
            .into_iter()
            .map(move |(generation, idle_ms)| (generation, Age(u8::try_from((idle_ms + scan_ms / 2) / scan_ms).unwrap_or(u8::MAX))))
    }

    /// The age of the oldest generation with anonymous memory (`trackers/src/ages/generations.rs`).
    fn reach(&self, view: &View<'_>) -> Option<Age> {
        if self.ages.is_exact() {
            return None;
        }
        let pages = |generation: &Generation| view.pages(generation.groups[Kind::Anon.index()]);
        let oldest = self.closed(view).filter(|(generation, _)| pages(generation) >= EVICTED_MIN).map(|(_, age)| age).max();
        Some(oldest.unwrap_or(Age(0)))
    }

    /// How a decision is carried out: exactly the pages that are old, or the generations that are, by the sample's count.
    fn offload(&self, view: &View<'_>, threshold: Age, pages: Pages) -> Option<Request> {
        if self.ages.is_exact() {
            return Some(Request::PageOut(self.ages.old(view, threshold, pages)));
        }
        let (generation, _) = self.closed(view).find(|&(_, idle)| idle >= threshold)?;
        Some(Request::Evict { up_to: generation.seq, swappiness: 200, most: pages.to_bytes(PageSize::X86_64) })
    }

    /// Tracker `sampled` opens generations at the pace of the threshold (`trackers/src/ages/generations.rs`).
    fn keep_pace(&self, view: &View<'_>) -> Option<Request> {
        let scan_ms = self.constants.scan_ms;
        let pace_ms = match self.threshold {
            Some(threshold) => u64::from(threshold.0) * scan_ms / 2,
            None => (view.now_ms() / 4).max(2 * scan_ms),
        };
        let youngest_ms = view.generations().last().map_or(0, |generation| generation.age_ms);
        (!self.ages.is_exact() && youngest_ms + scan_ms / 4 >= pace_ms).then_some(Request::OpenGeneration)
    }

    fn decide_page_cache(&mut self, view: &View<'_>, asked: &mut Vec<Request>) {
        let counters = view.counters();
        let stalled_us = view.io_stall().total_us;
        let now = Readings { at_ms: Some(view.now_ms()), promoted: counters.promoted, refaulted: counters.refaulted, stalled_us };
        let before = std::mem::replace(&mut self.cache_before, now);
        let elapsed_ms = Millis(before.at_ms.map_or(0, |before| view.now_ms() - before));
        let (anon_us, file_us) = (self.anon_us(view), view.costs().device_us);
        let refault_cost = RatioPpm(u32::try_from(u64::from(file_us) * 1_000_000 / u64::from(anon_us.max(1))).unwrap_or(u32::MAX));
        let target = self.constants.pressure.stall_target;
        let working_set = self.scan.as_ref().map_or(Pages::ZERO, |scan| scan.resident.total() - scan.resident.at_least(Age(1)));
        let old = |scan: &Scan| scan.file.at_least(self.threshold.unwrap_or(Age(1)));
        let input = refaults::Input {
            job_age_ms: Millis(view.now_ms()),
            elapsed_ms,
            cache: view.resident(Kind::File).to_pages(PageSize::X86_64),
            working_set,
            promoted: view.pages(now.promoted - before.promoted),
            refaulted: view.pages(now.refaulted - before.refaulted),
            refault_cost,
            waited: Some(Pages((now.stalled_us - before.stalled_us) / u64::from(anon_us.max(1)))),
            cold: self.scan.as_ref().filter(|_| self.ages.is_exact()).map(old),
            spare: self.spare_cache(view),
            allowance: (self.policy == Policy::Auto).then(|| cold_age::allowance(target, elapsed_ms, anon_us)),
            trial_max: None,
            saved: Some(self.saved_cache(view, now.refaulted - before.refaulted)),
            reclaimed: Some(std::mem::take(&mut self.cache_out)),
            veto: self.at_target.then_some(Veto::Stalled),
        };
        let (state, step) = refaults::step(&self.constants.refaults, &self.refaults, &input);
        self.refaults = state;
        if let refaults::Decision::Reclaim { pages } = step.decision {
            self.saved.reclaimed(pages.to_bytes(PageSize::X86_64));
            self.cache_out = pages;
            asked.push(Request::Reclaim { bytes: pages.to_bytes(PageSize::X86_64), bias: AnonFileBias::FileOnly });
        }
    }

    /// Page cache that is not in the two youngest generations, where those are opened. All of a trace's counts as mapped.
    fn spare_cache(&self, view: &View<'_>) -> Option<Pages> {
        let closed = self.closed(view).skip(1).map(|(generation, _)| generation.groups[Kind::File.index()]).sum();
        (!self.ages.is_exact()).then(|| view.pages(closed))
    }

    /// Reclaimed page cache that is still out, after so many groups of it returned.
    fn saved_cache(&mut self, view: &View<'_>, refaulted: u64) -> Pages {
        self.saved.age(Millis(view.now_ms()));
        self.saved.observe(view.resident(Kind::File), view.pages(refaulted).to_bytes(PageSize::X86_64));
        self.saved.bytes().to_pages(PageSize::X86_64)
    }

    fn decide_by_pressure(&mut self, view: &View<'_>, asked: &mut Vec<Request>) {
        let counters = view.counters();
        let (memory_stall_us, io_stall_us) = (view.memory_stall().total_us, view.io_stall().total_us);
        let stalled_us = memory_stall_us + io_stall_us;
        let now = Readings { at_ms: Some(view.now_ms()), promoted: counters.promoted, refaulted: counters.refaulted, stalled_us };
        let before = std::mem::replace(&mut self.pressure_before, now);
        let (anon_refaults, file_refaults) = (view.pages(now.promoted - before.promoted), view.pages(now.refaulted - before.refaulted));
        self.refaulted += anon_refaults + file_refaults;
        let returned = anon_refaults.0 + file_refaults.0;
        if returned >= LEARN_PAGES_MIN {
            let waited = (now.stalled_us - before.stalled_us) / returned;
            self.observed_cost_us = (self.observed_cost_us * (LEARN_PARTS - 1) + waited) / LEARN_PARTS;
        }
        let (anon, file) = (view.resident(Kind::Anon), view.resident(Kind::File));
        let decides = self.policy == Policy::Pressure;
        let uncharged_us = if self.anon_us(view) == view.costs().zswap_us { view.costs().zswap_us } else { 0 };
        let mean = (u64::from(uncharged_us) * anon_refaults.0).checked_div(returned).unwrap_or(u64::from(uncharged_us));
        let input = pressure::Input {
            job_age_ms: Millis(view.now_ms()),
            elapsed_ms: Millis(before.at_ms.map_or(0, |before| view.now_ms() - before)),
            resident: if decides { anon + file } else { file },
            protected: Bytes::ZERO,
            counters: pressure::Counters { memory_stall_us, io_stall_us, refaults: self.refaulted },
            refault_cost_us: u32::try_from(mean).unwrap_or(u32::MAX),
            veto: (!decides).then_some(Veto::OtherPolicy),
        };
        let (state, step) = pressure::step(&self.constants.pressure, &self.pressure, &input);
        self.pressure = state;
        let is_stall = |reason| matches!(reason, pressure::Hold::MemoryStall | pressure::Hold::IoStall | pressure::Hold::Refaults);
        self.at_target = matches!(step.decision, pressure::Decision::Hold { reason } if is_stall(reason));
        let (anon_cost_us, file_cost_us) = (self.anon_us(view), view.costs().device_us);
        let input = balance::Input { anon_refaults, file_refaults, anon_cost_us, file_cost_us, anon, file, swap: decides };
        let (state, bias) = balance::step(&self.balance, &input);
        self.balance = state;
        if let pressure::Decision::Reclaim { bytes } = step.decision {
            asked.extend(by_kind(bytes, bias, anon, file));
        }
    }
}

impl Law for Thermocline {
    fn step(&mut self, view: &View<'_>) -> Vec<Request> {
        let mut asked = Vec::new();
        if let Some(scan) = self.ages.observe(view) {
            self.scan = Some(scan);
            self.place(view, &mut asked);
            if self.policy != Policy::Pressure {
                asked.extend(self.keep_pace(view));
            }
        }
        if self.policy != Policy::ColdAge && self.pressure_pace.is_due(view.now_ms()) {
            self.decide_by_pressure(view, &mut asked);
        }
        if self.policy != Policy::Pressure && self.control.is_due(view.now_ms()) {
            self.decide_by_age(view, &mut asked);
            self.decide_page_cache(view, &mut asked);
        }
        asked
    }
}

/// What the machine offers: zswap, and a swap device.
fn rows(view: &View<'_>) -> [Row; 2] {
    let row = |name: &str, medium, latency_us, accounting, placing| Row {
        id: name.parse().unwrap_or_else(|_| unreachable!("both names are short")),
        medium,
        latency_us: Some(latency_us),
        free: None,
        endurance: None,
        accounting,
        writes_back: None,
        placing,
    };
    [
        row("zswap", Medium::CompressedDram, view.costs().zswap_us, Accounting::Compressed, Placing::Cgroup),
        row("device", Medium::Device, view.costs().device_us, Accounting::SwapCost, Placing::Priority(0)),
    ]
}

/// Divides an amount by the bias in proportion to the resident memory of each kind, as the agent does: one request for each kind.
fn by_kind(bytes: Bytes, bias: AnonFileBias, anon: Bytes, file: Bytes) -> Vec<Request> {
    let AnonFileBias::Swappiness(swappiness) = bias else { return vec![Request::Reclaim { bytes, bias }] };
    let swappiness = u128::from(swappiness.min(200));
    let (anon, file) = (u128::from(anon.0) * swappiness, u128::from(file.0) * (200 - swappiness));
    let part = (u128::from(bytes.0) * anon).checked_div(anon + file).unwrap_or(0);
    let part = Bytes(u64::try_from(part).unwrap_or(bytes.0));
    let requests = [(part, ANON_ONLY), (bytes - part, AnonFileBias::FileOnly)];
    requests.into_iter().filter(|(bytes, _)| *bytes > Bytes::ZERO).map(|(bytes, bias)| Request::Reclaim { bytes, bias }).collect()
}

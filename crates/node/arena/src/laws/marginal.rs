//! A candidate, which no product is: two tiers, each page group where it saves the most DRAM for each microsecond lost, by its own
//! history.
//!
//! # Rule
//! Anonymous pages are of a class by the time between their last two accesses: a page that was idle for a minute before may be idle for a
//! minute again. Of each class, pages and accesses are counted by age at each scan. Pages of an age or older that are out, in zswap,
//! save `pages * (1 - compressed)` and cost `returns * zswap_us`. On the device they save `pages * compressed` more, and cost
//! `returns * (device_us - zswap_us)` more. From the oldest age to the youngest these are two curves for each class. The steps of their
//! concave hulls are taken in the order of what they save for each microsecond, until the stall target is used up: the last one in
//! part. [The oracle](crate::oracle) does the same with the future. Where the device saves more for each microsecond than zswap does,
//! there is no zswap.
//!
//! - The worst scan of an age counts once more, as in `policy::cold_age::mean`.
//! - Memory that was never accessed again may be. On the device, pages that were idle for t scans count as `1 / (2 t)` returns in the
//!   next one. By that hazard, `1 - 1 / sqrt(2)` or 29 % of them are accessed before they were idle for 2 t.
//! - What returns beyond the target is owed, 64 scans of it at most. It lowers what is permitted in proportion, and at 64 scans nothing
//!   goes out.
//!
//! Page cache is reclaimed as by policy `auto`.
//!
//! # What it needs of Linux
//! Ages by address, and for far pages as well: that a page was swapped out and returned is in `/proc/PID/pagemap`, at any scan. Pages go
//! out by address, one batch for each tier, with `memory.zswap.max` at 0 for the device's. What is in zswap goes on to the device by
//! [`Request::WriteBack`]. The agent has neither histories of pages nor that actuator.

use std::ops::Range;

use policy::thresholds::THRESHOLDS_MAX;
use units::{Age, RatioPpm};

use super::ages::{Ages, mixed};
use super::thermocline::Thermocline;
use super::tuning::Constants;
use crate::kernel::Place;
use crate::law::{Law, Request};
use crate::trace::Kind;
use crate::view::View;

/// What is owed at most, in scans.
const OWED_SCANS: f64 = 64.0;

/// Returns in the next scan of a page that was idle for one, if it was never accessed again.
const UNSEEN: f64 = 0.5;

/// Classes of pages by the time between their last two accesses: none, one scan, two or three, four to seven and so on.
const CLASSES: usize = 9;

/// The class of pages that were accessed only once.
const ONCE: u8 = 8;

/// Buckets of ages, the first below all thresholds.
const BUCKETS: usize = THRESHOLDS_MAX + 1;

/// The part of each class and bucket of ages that is out.
type Parts = [[f64; BUCKETS]; CLASSES];

/// What was counted of a bucket of ages.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    /// Pages, summed over the scans.
    pages: f64,
    /// Pages at the last scan.
    last: f64,
    /// Accesses since the last scan.
    now: f64,
    /// Accesses before it.
    returns: f64,
    /// The most of them in one scan.
    worst: f64,
    /// Scans since pages had reached it.
    scans: f64,
}

/// A tier, as far as it saves and costs more than the one before.
#[derive(Clone, Copy, Debug)]
struct Offer {
    on_device: bool,
    /// Pages of DRAM that a page saves.
    saves: f64,
    /// What a return costs.
    cost_us: f64,
    /// [`UNSEEN`], or nothing.
    unseen: f64,
}

/// A step of a hull: these buckets of a class go out as well.
#[derive(Clone, Debug)]
struct Step {
    on_device: bool,
    class: usize,
    buckets: Range<usize>,
    saves: f64,
    cost_us: f64,
}

impl Step {
    fn worth(&self) -> f64 {
        self.saves / self.cost_us.max(1e-9)
    }
}

/// The law.
#[derive(Debug)]
pub struct Marginal {
    cache: Thermocline,
    constants: Constants,
    ages: Ages,
    sums: Box<[[Sum; BUCKETS]; CLASSES]>,
    /// The class of each group.
    classes: Vec<u8>,
    compressed: RatioPpm,
    /// What the target permits and did not return yet; below zero, what is owed.
    left_us: f64,
    waited_us: u64,
}

impl Marginal {
    /// A law with the constants of a policy, whose page cache `cache` decides about.
    #[must_use]
    pub fn new(cache: Thermocline, constants: Constants, interval_ms: u64) -> Self {
        Self {
            cache,
            constants,
            ages: Ages::new(constants.scan_ms, interval_ms, 1, 0),
            sums: Box::new([[Sum::default(); BUCKETS]; CLASSES]),
            classes: Vec::new(),
            compressed: RatioPpm::ONE,
            left_us: 0.0,
            waited_us: 0,
        }
    }

    /// The class and the bucket of a group of this age.
    fn sum_of(&self, group: u32, age: Age) -> (usize, usize) {
        let class = self.classes.get(group as usize).map_or(ONCE.into(), |&class| usize::from(class));
        (class, self.constants.thresholds.as_slice().partition_point(|&threshold| threshold <= age))
    }

    /// Takes in the accesses of an interval.
    fn observe(&mut self, view: &View<'_>) {
        self.classes.resize(view.groups() as usize, ONCE);
        for touch in view.touches().iter().filter(|touch| view.kind(touch.group) == Kind::Anon) {
            let age = touch.before.map(|before| self.ages.age_before(view, before));
            if let Some(age) = age {
                let (class, bucket) = self.sum_of(touch.group, age);
                self.sums[class][bucket].now += 1.0;
            }
            // Accesses within a scan are one.
            if touch.before.is_none_or(|before| !self.ages.is_same_scan(view, before)) {
                self.classes[touch.group as usize] = age.map_or(ONCE, |age| age.0.checked_ilog2().map_or(0, |log| (log + 1).min(7) as u8));
            }
        }
    }

    /// Takes in a scan.
    fn count(&mut self, view: &View<'_>) {
        self.sums.iter_mut().flatten().for_each(|sum| sum.last = 0.0);
        let (mut compressed, mut groups) = (0, 0);
        for group in (0..view.groups()).filter(|&group| view.kind(group) == Kind::Anon) {
            let Some(age) = self.ages.age_of(view, group).filter(|&age| age > Age(0)) else { continue };
            let (class, bucket) = self.sum_of(group, age);
            self.sums[class][bucket].last += 1.0;
            (compressed, groups) = (compressed + u64::from(view.compressed(group).0), groups + 1);
        }
        for class in self.sums.iter_mut() {
            let mut is_reached = false;
            for sum in class.iter_mut().skip(1).rev() {
                let returns = std::mem::take(&mut sum.now);
                sum.pages += sum.last;
                sum.returns += returns;
                sum.worst = sum.worst.max(returns);
                is_reached |= sum.last > 0.0 || sum.returns > 0.0;
                sum.scans += if is_reached { 1.0 } else { 0.0 };
            }
        }
        let mean = compressed.checked_div(groups).and_then(|mean: u64| u32::try_from(mean).ok());
        self.compressed = mean.map_or(self.compressed, RatioPpm);
    }

    /// What may be lost in a scan, in microseconds; `None` if too much is owed.
    fn permitted_us(&mut self, view: &View<'_>) -> Option<f64> {
        let (counters, costs) = (view.counters(), view.costs());
        let from_zswap_us = counters.zswap_returns * u64::from(costs.zswap_us) * view.group_pages();
        let waited_us = from_zswap_us + view.io_stall().total_us;
        #[expect(clippy::cast_precision_loss, reason = "the waits of one scan, and its length")]
        let (returned_us, scan_us) = ((waited_us - self.waited_us) as f64, (self.constants.scan_ms * 1_000) as f64);
        self.waited_us = waited_us;
        let permitted_us = scan_us * f64::from(self.constants.pressure.stall_target.0) / 1e6;
        let most_us = OWED_SCANS * permitted_us;
        self.left_us = (self.left_us + permitted_us - returned_us).clamp(-most_us, most_us);
        (self.left_us > -most_us).then(|| permitted_us * (1.0 + self.left_us.min(0.0) / most_us))
    }

    /// What the tiers offer.
    fn offers(&self, view: &View<'_>) -> Vec<Offer> {
        let compressed = f64::from(self.compressed.0.min(RatioPpm::ONE.0)) / 1e6;
        let (zswap_us, device_us) = (f64::from(view.costs().zswap_us), f64::from(view.costs().device_us));
        let zswap = Offer { on_device: false, saves: 1.0 - compressed, cost_us: zswap_us, unseen: 0.0 };
        let device = Offer { on_device: true, saves: compressed, cost_us: device_us - zswap_us, unseen: UNSEEN };
        if zswap.saves * device.cost_us <= device.saves * zswap.cost_us {
            // All of a job's memory goes there, as by policy `auto`: there is no tier to be watched in before.
            return vec![Offer { saves: 1.0, cost_us: device_us, unseen: 0.0, ..device }];
        }
        vec![zswap, device]
    }

    /// The steps of the concave hull of what an offer saves and costs for a class, from the oldest age to the youngest.
    fn hull(&self, offer: Offer, class: usize) -> Vec<Step> {
        let (mut saves, mut cost_us, mut worst) = (0.0, 0.0, 0.0f64);
        let ages = self.constants.thresholds.as_slice();
        let mut points = vec![(ages.len() + 1, 0.0, 0.0)];
        for (bucket, (sum, age)) in self.sums[class].iter().skip(1).zip(ages).enumerate().rev().filter(|(_, (sum, _))| sum.scans > 0.0) {
            saves += offer.saves * sum.last.max(sum.pages / sum.scans);
            cost_us += offer.cost_us * (sum.returns / sum.scans + offer.unseen * sum.last / f64::from(age.0));
            worst = worst.max(sum.worst);
            // In the first scan, pages reach the age: none of them could be accessed at it.
            if sum.scans > 1.0 {
                points.push((bucket + 1, saves, cost_us + offer.cost_us * worst / sum.scans));
            }
        }
        let mut steps: Vec<Step> = Vec::new();
        let mut from = 0;
        loop {
            let (end, saves, cost_us) = points[from];
            let step = |&(start, more, dearer): &(usize, f64, f64)| Step {
                on_device: offer.on_device,
                class,
                buckets: start..end,
                saves: more - saves,
                cost_us: (dearer - cost_us).max(0.0),
            };
            let further = points.iter().enumerate().skip(from + 1).map(|(at, point)| (at, step(point)));
            let best = further.filter(|(_, step)| step.saves > 0.0).max_by(|(_, one), (_, other)| one.worth().total_cmp(&other.worth()));
            let Some((at, step)) = best else { return steps };
            from = at;
            steps.push(step);
        }
    }

    /// The parts that are out, and those that are on the device.
    fn parts(&self, view: &View<'_>, permitted_us: f64) -> (Parts, Parts) {
        let steps = self.offers(view).into_iter().flat_map(|offer| (0..CLASSES).flat_map(move |class| self.hull(offer, class)));
        let mut steps: Vec<Step> = steps.collect();
        steps.sort_by(|one, other| other.worth().total_cmp(&one.worth()));
        let (mut out, mut on_device) = ([[0.0; BUCKETS]; CLASSES], [[0.0; BUCKETS]; CLASSES]);
        let mut left_us = permitted_us;
        for step in steps {
            let part = if step.cost_us <= left_us { 1.0 } else { left_us / step.cost_us };
            left_us -= step.cost_us * part;
            let parts = if step.on_device { &mut on_device } else { &mut out };
            parts[step.class][step.buckets.clone()].fill(part);
            if part < 1.0 {
                break;
            }
        }
        (out, on_device)
    }

    /// Moves what is out of its place.
    fn place(&self, view: &View<'_>, (out, on_device): &(Parts, Parts)) -> Vec<Request> {
        let (mut to_zswap, mut to_device, mut on) = (Vec::new(), Vec::new(), Vec::new());
        for group in (0..view.groups()).filter(|&group| view.kind(group) == Kind::Anon) {
            let Some(age) = self.ages.age_of(view, group).filter(|&age| age > Age(0)) else { continue };
            let (class, bucket) = self.sum_of(group, age);
            // The same groups each time: of memory that is used in a loop, the others stay.
            let rank = rank(group);
            match view.place(group) {
                Place::Resident if rank < on_device[class][bucket] => to_device.push(group),
                Place::Resident if rank < out[class][bucket] => to_zswap.push(group),
                Place::Zswap if rank < on_device[class][bucket] => on.push(group),
                _ => {}
            }
        }
        let mut asked = Vec::new();
        if !to_device.is_empty() {
            asked.extend([Request::Zswap(false), Request::PageOut(to_device), Request::Zswap(true)]);
        }
        asked.extend((!to_zswap.is_empty()).then_some(Request::PageOut(to_zswap)));
        asked.extend((!on.is_empty()).then_some(Request::WriteBack(on)));
        asked
    }
}

impl Law for Marginal {
    fn step(&mut self, view: &View<'_>) -> Vec<Request> {
        let mut asked = self.cache.step(view);
        asked.retain(|request| matches!(request, Request::Reclaim { .. }));
        self.observe(view);
        if self.ages.is_scan(view) {
            self.count(view);
            let permitted_us = self.permitted_us(view).filter(|_| view.now_ms() >= self.constants.cold_age.warmup_ms.0);
            asked.extend(permitted_us.map(|permitted_us| self.place(view, &self.parts(view, permitted_us))).unwrap_or_default());
        }
        asked
    }
}

/// A number from 0 to below 1 for a group, evenly spread.
fn rank(group: u32) -> f64 {
    f64::from(u32::try_from(mixed(group, 0) >> 32).unwrap_or(0)) / 4_294_967_296.0
}

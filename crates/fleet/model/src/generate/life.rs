//! The memory of one job over time, in closed form.
//!
//! # Problem
//! Histograms of a million jobs cannot come from simulated pages.
//!
//! # Method
//! A page group that is touched at random, `rate` times a minute under a load of one, has at time `t`
//!
//! ```text
//! cold(a) = pages(t - a) * exp(-rate * (L(t) - L(t - a))) * exp(-(B(t) - B(t - a)))
//! ```
//!
//! pages of age `a` or older: those that existed then, were not touched since under the load that there was (`L` is the
//! load summed up), and were missed by every sweep (`B` sums `-ln(1 - share)` of the sweeps). Of these, a scan of period
//! `s` finds `1 - exp(-rate * load * s)` touched: the promotions. So an entry needs one exponential for each threshold,
//! of the slowest group; the other groups' rates are that one's times a power of two, so theirs follow by squaring.

use fastrand::Rng;
use policy::thresholds::{THRESHOLDS_MAX, Thresholds};

use super::kinds::Kind;
use super::random::{count, log_normal, normal, shifted};

/// Minutes of an entry (000 section 5.3).
pub(crate) const ENTRY_MINUTES: f64 = 5.0;
/// Minutes between scans (000 section 5.1).
pub(crate) const SCAN_MINUTES: f64 = 2.0;
/// Page groups by reuse distance: from one touch a minute down to one in 5.7 days, halving.
const GROUPS: usize = 14;
/// Entries of the past that ages reach back to: 8.5 hours are 102 of them. A power of two.
const MOMENTS: usize = 128;

/// What a moment adds to the sums of all before it.
#[derive(Clone, Copy, Debug, Default)]
struct Moment {
    /// Minutes of load one.
    load: f64,
    /// `-ln` of the share that every sweep has missed.
    swept: f64,
    /// Pages, as a share of the job's size.
    pages: f64,
}

/// What a job is like, once drawn.
#[derive(Clone, Debug)]
pub(crate) struct Traits {
    pub(crate) kind: &'static Kind,
    /// Pages when it is full grown.
    pages: f64,
    /// Shares of them by group, the slowest first.
    groups: [f64; GROUPS],
    /// Share of them that is never touched again.
    dead: f64,
    /// Share of one day by which its load's peak is late.
    late: f64,
}

impl Traits {
    /// Draws a job of a kind; `shift` is what its cluster and machine have in common with their jobs.
    pub(crate) fn draw(kind: &'static Kind, shift: f64, random: &mut Rng) -> Self {
        let cool = shifted(kind.cool, shift + 0.75 * normal(random));
        let dead = cool * shifted(kind.dead, 0.8 * normal(random));
        let octave = kind.octave * libm::exp(0.1 * normal(random));
        // The fastest group is the last.
        let mut groups = [0.0; GROUPS];
        let (mut weight, mut sum) = (1.0, 0.0);
        for group in groups.iter_mut().rev() {
            *group = weight;
            sum += weight;
            weight *= octave;
        }
        groups.iter_mut().for_each(|group| *group *= (cool - dead) / sum);
        // A job below 4 MiB has too few pages to tell anything.
        let pages = log_normal(random, kind.pages).clamp(1_024.0, 1e9);
        // Two in three live where most of the fleet's users do.
        let late = 0.25 * normal(random);
        Self { kind, pages, groups, dead, late }
    }
}

/// A job that lives.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    traits: Traits,
    random: Rng,
    /// How far back each threshold lies, in entries: whole ones, and the rest.
    back: Vec<(usize, f64)>,
    moments: [Moment; MOMENTS],
    /// How many entries there have been, those from before the trace included.
    now: usize,
    /// Slow noise of the load, and the level of the phase.
    wander: f64,
    level: f64,
    /// Suffix sums of the last entry's cold ages, what a sweep can touch.
    touchable: [f64; THRESHOLDS_MAX],
}

/// The suffix sums of an entry: pages, and accesses, at or above each threshold; and all pages.
#[derive(Clone, Debug)]
pub(crate) struct Suffixes {
    pub(crate) pages: f64,
    pub(crate) cold: [f64; THRESHOLDS_MAX],
    pub(crate) promotions: [f64; THRESHOLDS_MAX],
}

impl Life {
    /// A job that starts, or that has run for so many entries when the trace begins at `minute` of the day.
    pub(crate) fn new(traits: Traits, thresholds: &Thresholds, entries_before: usize, minute: f64, random: Rng) -> Self {
        let back = thresholds.as_slice().iter().map(|age| {
            let entries = f64::from(age.0) * SCAN_MINUTES / ENTRY_MINUTES;
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 102")]
            let whole = entries as usize;
            (whole, entries - libm::floor(entries))
        });
        let mut life = Self {
            traits,
            random,
            back: back.collect(),
            moments: [Moment::default(); MOMENTS],
            now: 0,
            wander: 0.0,
            level: 1.0,
            touchable: [0.0; THRESHOLDS_MAX],
        };
        // Older pasts than ages reach back to are all alike.
        let before = entries_before.min(MOMENTS);
        if entries_before > MOMENTS {
            life.moments.fill(Moment { load: 0.0, swept: 0.0, pages: 1.0 });
        }
        for entry in 0..before {
            #[expect(clippy::cast_precision_loss, reason = "small")]
            life.pass(minute - (before - entry) as f64 * ENTRY_MINUTES);
        }
        life
    }

    /// One entry's time passes; returns its load and the share that its sweeps touched.
    fn pass(&mut self, minute: f64) -> (f64, f64) {
        let kind = self.traits.kind;
        let random = &mut self.random;
        let share_of_day = ENTRY_MINUTES / 1_440.0;
        let mut touched = 0.0;
        for _ in 0..count(random, kind.sweeps_per_day * share_of_day) {
            // Over three octaves.
            touched = f64::max(touched, kind.sweep_max * libm::exp2(-3.0 * random.f64()));
        }
        if random.f64() < ENTRY_MINUTES / 60.0 / kind.phase_hours {
            self.level = libm::exp(0.4 * normal(random));
            touched = f64::max(touched, 0.05 + 0.35 * random.f64());
        }
        // Half of the noise's variance wanders, half of that forgotten in an hour; the other half is new at each entry.
        let (kept, half) = (0.944, kind.noise * std::f64::consts::FRAC_1_SQRT_2);
        self.wander = kept * self.wander + half * libm::sqrt(1.0 - kept * kept) * normal(random);
        let noise = self.wander + half * normal(random);
        let day = std::f64::consts::TAU * (minute / 1_440.0 - self.traits.late);
        let load = self.level * libm::exp(noise) * (1.0 + kind.diurnal * libm::cos(day));
        let last = self.moments[(self.now + MOMENTS - 1) % MOMENTS];
        // A job is as large as it gets after about half an hour.
        let pages = last.pages + (1.0 - last.pages) * 0.5;
        self.moments[self.now % MOMENTS] =
            Moment { load: last.load + load * ENTRY_MINUTES, swept: last.swept - libm::log(1.0 - touched), pages };
        self.now += 1;
        (load, touched)
    }

    /// The next entry, which begins at `minute` of the day.
    pub(crate) fn entry(&mut self, minute: f64) -> Suffixes {
        let (load, touched) = self.pass(minute);
        let latest = self.moments[(self.now - 1) % MOMENTS];
        // Each group's share that one scan finds touched, times the scans of an entry.
        let mut found = [0.0; GROUPS];
        let mut missed = libm::exp(-slowest_rate() * load * SCAN_MINUTES);
        for slot in &mut found {
            *slot = (1.0 - missed) * ENTRY_MINUTES / SCAN_MINUTES;
            missed *= missed;
        }
        let mut suffixes =
            Suffixes { pages: latest.pages * self.traits.pages, cold: [0.0; THRESHOLDS_MAX], promotions: [0.0; THRESHOLDS_MAX] };
        for (index, &(whole, rest)) in self.back.iter().enumerate() {
            let at = |entries: usize| self.moments[(self.now + 2 * MOMENTS - 1 - entries) % MOMENTS];
            let (late, early) = (at(whole), at(whole + 1));
            let then = |late: f64, early: f64| late + (early - late) * rest;
            let pages = then(late.pages, early.pages) * self.traits.pages;
            let passed = latest.load - then(late.load, early.load);
            let swept = latest.swept - then(late.swept, early.swept);
            let mut left = libm::exp(-slowest_rate() * passed);
            let (mut cold, mut returning) = (0.0, 0.0);
            for (share, found) in self.traits.groups.iter().zip(&found) {
                cold += share * left;
                returning += share * left * found;
                left *= left;
            }
            let unswept = if swept > 0.0 { libm::exp(-swept) } else { 1.0 };
            let touchable = pages * cold * unswept;
            suffixes.cold[index] = touchable + pages * self.traits.dead;
            suffixes.promotions[index] = pages * returning * unswept + self.touchable[index] * touched;
            self.touchable[index] = touchable;
        }
        suffixes
    }
}

/// Touches a minute of the slowest group.
const fn slowest_rate() -> f64 {
    1.0 / (1 << (GROUPS - 1)) as f64
}

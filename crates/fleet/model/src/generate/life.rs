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
//! pages of age `a` or older: those that existed at `t - a`, were not touched since under the load of that time (`L` is
//! the integral of the load), and were missed by every sweep (`B` sums `-ln(1 - share)` of the sweeps). A scan of
//! period `s` finds `1 - exp(-rate * load * s)` of them touched: the promotions. An entry needs one exponential per
//! threshold, for the slowest group; the rates of the other groups are that rate times a power of two, so theirs follow
//! by squaring.

use fastrand::Rng;
use policy::thresholds::{THRESHOLDS_MAX, Thresholds};

use super::kinds::Kind;
use crate::random::{count, log_normal, normal, shifted};

/// Minutes per entry (SDFM section 5.3).
pub(crate) const ENTRY_MINUTES: f64 = 5.0;
/// Minutes between scans (SDFM section 5.1).
pub(crate) const SCAN_MINUTES: f64 = 2.0;
/// When nightly work begins: 02:00.
const NIGHTLY_MINUTE: f64 = 120.0;
/// Page groups by reuse distance: from one touch per minute down to one in 5.7 days, each half of the one before.
const GROUPS: usize = 14;
/// Past entries that ages refer to: 8.5 hours are 102 entries. A power of two.
const MOMENTS: usize = 128;

/// Cumulative state at the end of an entry.
#[derive(Clone, Copy, Debug, Default)]
struct Moment {
    /// Integral of the load, in minutes of load one.
    load: f64,
    /// `-ln` of the share that all sweeps have missed.
    swept: f64,
    /// Pages, as a share of the job's final size.
    pages: f64,
}

/// The drawn properties of a job.
#[derive(Clone, Debug)]
pub(crate) struct Traits {
    pub(crate) kind: Kind,
    /// Pages at its final size.
    pages: f64,
    /// Shares of the page groups, the slowest first.
    groups: [f64; GROUPS],
    /// Share of pages that are never touched again.
    dead: f64,
    /// Delay of the daily peak of the load, as a share of a day.
    late: f64,
}

impl Traits {
    /// Draws a job of a kind; `shift` is the common shift of its cluster and machine.
    pub(crate) fn draw(kind: Kind, shift: f64, random: &mut Rng) -> Self {
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
        // Histograms of jobs below 4 MiB have too few pages.
        let pages = log_normal(random, kind.pages).clamp(1_024.0, 1e9);
        // Two in three jobs peak within a quarter of a day of the fleet's peak.
        let late = 0.25 * normal(random);
        Self { kind, pages, groups, dead, late }
    }
}

/// The state of a running job.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    traits: Traits,
    random: Rng,
    /// Distance of each threshold in entries: the integer part and the fraction.
    back: Vec<(usize, f64)>,
    moments: [Moment; MOMENTS],
    /// Entries so far, including those before the trace.
    now: usize,
    /// Slow noise of the load, and the load level of the phase.
    wander: f64,
    level: f64,
    /// Suffix sums of the last entry's cold ages that a sweep can touch.
    touchable: [f64; THRESHOLDS_MAX],
}

/// The suffix sums of an entry: pages and accesses at or above each threshold, and all pages.
#[derive(Clone, Debug)]
pub(crate) struct Suffixes {
    pub(crate) pages: f64,
    pub(crate) cold: [f64; THRESHOLDS_MAX],
    pub(crate) promotions: [f64; THRESHOLDS_MAX],
}

impl Life {
    /// Creates a job that starts, or that has run for `entries_before` entries, when the trace begins at `minute` of
    /// the day.
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
        // Entries before the longest age do not differ.
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

    /// Advances by one entry; returns its load and the share that its sweeps touched.
    fn pass(&mut self, minute: f64) -> (f64, f64) {
        let kind = self.traits.kind;
        let random = &mut self.random;
        let share_of_day = ENTRY_MINUTES / 1_440.0;
        let mut touched = 0.0;
        for _ in 0..count(random, kind.sweeps_per_day * share_of_day) {
            // Spread evenly over three octaves.
            touched = f64::max(touched, kind.sweep_max * libm::exp2(-3.0 * random.f64()));
        }
        if random.f64() < ENTRY_MINUTES / 60.0 / kind.phase_hours {
            self.level = libm::exp(0.4 * normal(random));
            touched = f64::max(touched, 0.05 + 0.35 * random.f64());
        }
        if kind.nightly > 0.0 && (minute - NIGHTLY_MINUTE).rem_euclid(1_440.0) < ENTRY_MINUTES {
            touched = f64::max(touched, kind.nightly * (0.5 + 0.5 * random.f64()));
        }
        // Half of the variance of the noise is autocorrelated, with a half-life of an hour; the other half is new in
        // each entry.
        let (kept, half) = (0.944, kind.noise * std::f64::consts::FRAC_1_SQRT_2);
        self.wander = kept * self.wander + half * libm::sqrt(1.0 - kept * kept) * normal(random);
        let noise = self.wander + half * normal(random);
        let day = std::f64::consts::TAU * (minute / 1_440.0 - self.traits.late);
        let load = self.level * libm::exp(noise) * (1.0 + kind.diurnal * libm::cos(day));
        let last = self.moments[(self.now + MOMENTS - 1) % MOMENTS];
        // A job reaches most of its size after about half an hour.
        let pages = last.pages + (1.0 - last.pages) * 0.5;
        self.moments[self.now % MOMENTS] =
            Moment { load: last.load + load * ENTRY_MINUTES, swept: last.swept - libm::log(1.0 - touched), pages };
        self.now += 1;
        (load, touched)
    }

    /// Generates the next entry, which begins at `minute` of the day.
    pub(crate) fn entry(&mut self, minute: f64) -> Suffixes {
        let (load, touched) = self.pass(minute);
        let latest = self.moments[(self.now - 1) % MOMENTS];
        // Share of each group that one scan finds touched, times the scans per entry.
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

/// Returns the touches per minute of the slowest group.
const fn slowest_rate() -> f64 {
    1.0 / (1 << (GROUPS - 1)) as f64
}

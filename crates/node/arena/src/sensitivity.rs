//! How much our constants matter: each times a half and times two, and the best of all combinations on a small grid.
//!
//! The score of a set of constants is what policy `auto` saves at 1 % lost, along the curve of all its intensities, as a multiple of
//! what it saves with its defaults: the geometric mean over workloads.

use serde::Serialize;
use units::{Millis, RatioPpm};

use crate::contenders::Ours;
use crate::contest::{AT_ONE, point};
use crate::curves::{Point, geomean, saved_at};
use crate::kernel::Costs;
use crate::laws::tuning::{Constants, Policy};
use crate::run::run;
use crate::trace::Trace;

/// Savings below this are not distinguished, as in the ranking.
const LEAST_BYTES: f64 = 1_048_576.0;

/// A constant of our laws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knob {
    /// `agent.scan_period`.
    ScanPeriod,
    /// `agent.control_period`.
    ControlPeriod,
    /// `pressure.period`.
    PressurePeriod,
    /// `cold_age.warmup`.
    Warmup,
    /// `1 - cold_age.percentile`.
    PercentileTail,
    /// `pressure.stall_target`.
    StallTarget,
    /// `tier.compressed_max`.
    CompressedMax,
    /// `cold_age.bound`, switched off and on in place of scaled.
    Bound,
    /// `cold_age.partial`, switched off and on in place of scaled.
    Partial,
    /// `cold_age.mean`, switched off and on in place of scaled.
    Mean,
    /// `tier.by_saving`, switched off and on in place of scaled.
    BySaving,
    /// `writeback.after_min`.
    WritebackAfter,
}

impl Knob {
    /// All constants.
    pub const ALL: [Self; 12] = [
        Self::ScanPeriod,
        Self::ControlPeriod,
        Self::PressurePeriod,
        Self::Warmup,
        Self::PercentileTail,
        Self::StallTarget,
        Self::CompressedMax,
        Self::Bound,
        Self::Partial,
        Self::Mean,
        Self::BySaving,
        Self::WritebackAfter,
    ];

    /// Its key in the agent's configuration.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::ScanPeriod => "agent.scan_period",
            Self::ControlPeriod => "agent.control_period",
            Self::PressurePeriod => "pressure.period",
            Self::Warmup => "cold_age.warmup",
            Self::PercentileTail => "1 - cold_age.percentile",
            Self::StallTarget => "pressure.stall_target",
            Self::CompressedMax => "tier.compressed_max",
            Self::Bound => "cold_age.bound",
            Self::Partial => "cold_age.partial",
            Self::Mean => "cold_age.mean",
            Self::BySaving => "tier.by_saving",
            Self::WritebackAfter => "writeback.after_min",
        }
    }

    /// Multiplies the constant by a factor in millionths; a switch is off below one and on above.
    pub fn scale(self, constants: &mut Constants, factor: RatioPpm) {
        let is_on = factor >= RatioPpm::ONE;
        let ratio = |value: RatioPpm| {
            let scaled = u64::from(value.0) * u64::from(factor.0) / u64::from(RatioPpm::ONE.0);
            RatioPpm(u32::try_from(scaled).unwrap_or(u32::MAX).min(RatioPpm::ONE.0))
        };
        match self {
            Self::ScanPeriod => constants.scan_ms = factor.share_of(constants.scan_ms),
            Self::ControlPeriod => constants.control_ms = factor.share_of(constants.control_ms),
            Self::PressurePeriod => constants.pressure_ms = factor.share_of(constants.pressure_ms),
            Self::Warmup => {
                constants.cold_age.warmup_ms = Millis(factor.share_of(constants.cold_age.warmup_ms.0));
                constants.refaults.warmup_ms = constants.cold_age.warmup_ms;
            }
            Self::PercentileTail => {
                let tail = ratio(RatioPpm(RatioPpm::ONE.0 - constants.cold_age.percentile.0));
                constants.cold_age.percentile = RatioPpm(RatioPpm::ONE.0 - tail.0);
                constants.refaults.percentile = constants.cold_age.percentile;
            }
            Self::StallTarget => {
                constants.pressure.stall_target = ratio(constants.pressure.stall_target);
                constants.pressure.io_stall_target = ratio(constants.pressure.io_stall_target);
            }
            Self::CompressedMax => constants.tiering.compressed_max = ratio(constants.tiering.compressed_max),
            Self::Bound => constants.cold_age.bound = is_on,
            Self::Partial => constants.cold_age.partial = is_on,
            Self::Mean => constants.cold_age.mean = is_on,
            Self::BySaving => constants.by_saving = is_on,
            Self::WritebackAfter => constants.writeback.after_min_ms = Millis(factor.share_of(constants.writeback.after_min_ms.0)),
        }
    }
}

/// What changing one constant does.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Effect {
    /// The constant.
    pub key: &'static str,
    /// The score with half of it, or with the switch off.
    pub halved: f64,
    /// The score with twice of it, or with the switch on.
    pub doubled: f64,
}

/// How much our constants matter.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sensitivity {
    /// The policy that is varied.
    pub policy: &'static str,
    /// Each constant alone.
    pub effects: Vec<Effect>,
    /// The score of the best combination on the grid.
    pub tuned: f64,
    /// The constants of that combination, and their factors.
    pub tuned_factors: Vec<(&'static str, f64)>,
    /// Combinations on the grid.
    pub combinations: usize,
    /// How much more than the defaults the best combination saves.
    pub untuned_behind_ratio: f64,
}

/// The grid: factors of the constants whose change alone changes the score most.
const GRID: [(Knob, &[u32]); 5] = [
    (Knob::ScanPeriod, &[1_000_000, 2_000_000]),
    (Knob::Warmup, &[250_000, 1_000_000]),
    (Knob::PercentileTail, &[1_000_000, 5_000_000, 20_000_000]),
    (Knob::CompressedMax, &[500_000, 1_000_000]),
    (Knob::Bound, &[0, 1_000_000]),
];

/// Varies the constants of `auto` on traces.
#[must_use]
pub fn sensitivity(traces: &[Trace], costs: Costs, seed: u64) -> Sensitivity {
    let curve = |trace: &Trace, factors: &[(Knob, RatioPpm)]| -> f64 {
        let points: Vec<Point> = Ours::intensities(Policy::Auto, false)
            .into_iter()
            .map(|ours| {
                let mut constants = ours.constants(trace);
                factors.iter().for_each(|(knob, factor)| knob.scale(&mut constants, *factor));
                constants.scan_ms = constants.scan_ms.max(trace.interval_ms);
                point(&run(trace, costs, ours.law(constants, trace, seed).as_mut()))
            })
            .collect();
        saved_at(&points, AT_ONE).max(LEAST_BYTES)
    };
    let defaults: Vec<f64> = traces.iter().map(|trace| curve(trace, &[])).collect();
    let score = |factors: &[(Knob, RatioPpm)]| {
        let ratios: Vec<f64> = traces.iter().zip(&defaults).map(|(trace, before)| curve(trace, factors) / before).collect();
        geomean(&ratios)
    };
    let effect = |knob: Knob| {
        let [halved, doubled] = [500_000, 2_000_000].map(|factor| score(&[(knob, RatioPpm(factor))]));
        Effect { key: knob.key(), halved, doubled }
    };
    let effects = Knob::ALL.into_iter().map(effect).collect();
    let mut tuned = (1.0, Vec::new());
    let combinations = combinations();
    for factors in &combinations {
        let found = score(factors);
        if found > tuned.0 {
            tuned = (found, factors.clone());
        }
    }
    let tuned_factors = tuned.1.iter().map(|(knob, factor)| (knob.key(), factor.as_f64())).collect();
    let untuned_behind_ratio = tuned.0 - 1.0;
    Sensitivity { policy: "auto", effects, tuned: tuned.0, tuned_factors, combinations: combinations.len(), untuned_behind_ratio }
}

fn combinations() -> Vec<Vec<(Knob, RatioPpm)>> {
    let mut all = vec![Vec::new()];
    for (knob, factors) in GRID {
        let with = |before: &Vec<(Knob, RatioPpm)>| -> Vec<Vec<(Knob, RatioPpm)>> {
            factors.iter().map(|&factor| [before.as_slice(), &[(knob, RatioPpm(factor))]].concat()).collect()
        };
        all = all.iter().flat_map(with).collect();
    }
    all
}

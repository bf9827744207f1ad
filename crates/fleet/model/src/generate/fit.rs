//! Compares a generated fleet with published figures of fleets.
//!
//! G rows are from SDFM, T rows from TMO; the numbers are those of the project's list of published figures. Figures
//! that page ages do not show are in [`NOT_SHOWN`], with the reason.

use policy::thresholds::Thresholds;
use serde::Serialize;
use units::RatioPpm;

use super::KINDS;
use crate::front::Objective;
use crate::survey::{Curve, Survey};
use crate::tally::Total;

/// A published figure and the generated one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Number in the list of published figures.
    pub id: &'static str,
    /// Description of the figure.
    pub what: &'static str,
    /// Lowest and highest published value; equal for a single value.
    pub published: (f64, f64),
    /// Generated value.
    pub generated: f64,
    /// Generated value divided by the published one; by the nearer end of a range, and 1 within it.
    pub ratio: f64,
}

/// Published figures that generated fleets do not show, with the reason.
pub const NOT_SHOWN: &[(&str, &str)] = &[
    ("G08-G11, G14", "parameters of the system, used as given: P, 120 s scans and minimum age, 5-minute entries"),
    ("G12, G21-G24, G32", "processor time of tracking and compression: measured on machines, not part of page ages"),
    ("G13", "the cut-off behind G25, which is drawn as a share"),
    ("G15", "the speed of the model: see `make bench-model`"),
    ("G27, G28", "latency of decompression: measured on machines"),
    ("G30, G31", "a restatement of G18, and evictions, which need a cluster's scheduler"),
    ("T01, T12-T17, T19-T22", "results and parameters of a pressure-driven policy on machines"),
    ("T02, T03, T10, T11", "cost and latency of devices"),
    ("T04", "the same as G26"),
    ("T06, touched within a minute", "finer than a scan"),
    ("T18", "drawn as published: the kind `ads` compresses at a median of 1.35"),
];

/// Input of a fit.
#[derive(Clone, Copy, Debug)]
pub struct FitInput<'a> {
    /// Survey of the fleet.
    pub survey: &'a Survey,
    /// Thresholds of its histograms, in 120 s scans.
    pub thresholds: &'a Thresholds,
    /// Outcome of the hand-tuned parameters.
    pub hand_tuned: &'a Total,
    /// Outcome of the best parameters within the objective; `None` if no pair meets it.
    pub best: Option<&'a Total>,
    /// The objective.
    pub objective: Objective,
}

/// Returns the rows of a fit. Figures of machines and kinds that the fleet lacks are left out.
#[must_use]
pub fn rows(measured: &FitInput<'_>) -> Vec<Row> {
    let mut rows = of_fleet(measured);
    rows.extend(of_machines(measured.survey));
    rows.extend(of_kinds(measured));
    rows.extend(of_model(measured));
    rows
}

fn row(id: &'static str, what: &'static str, published: (f64, f64), generated: f64) -> Row {
    let nearest = generated.clamp(published.0, published.1);
    Row { id, what, published, generated, ratio: if nearest == 0.0 { 1.0 } else { generated / nearest } }
}

fn of_fleet(measured: &FitInput<'_>) -> Vec<Row> {
    let survey = measured.survey;
    let of_jobs = |percentile| survey.cold_ratio_of_jobs(RatioPpm(percentile)).unwrap_or(0.0);
    let compression = |percentile| survey.compression_of_jobs(RatioPpm(percentile)).unwrap_or(0.0);
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    let compressible = survey.compressible_page_ms as f64 / survey.fleet.cold_page_ms[0].max(1) as f64;
    vec![
        row("G01", "cold share of memory at 120 s", (0.32, 0.32), survey.fleet.cold_ratio(0)),
        row("G02", "cold memory accessed per minute at 120 s", (0.15, 0.15), survey.fleet.accessed_per_minute(0)),
        row("G05", "cold share of the 10% coldest jobs, at least", (0.43, 0.43), of_jobs(900_000)),
        row("G06", "cold share of the 10% warmest jobs, at most", (0.09, 0.09), of_jobs(100_000)),
        row("G25", "incompressible share of cold memory", (0.31, 0.31), 1.0 - compressible),
        row("G26", "compression ratio, median of jobs", (3.0, 3.0), compression(500_000)),
        row("G26", "compression ratio, 2% of jobs are below", (2.0, 2.0), compression(20_000)),
        row("G26", "compression ratio, 2% of jobs are above", (6.0, 6.0), compression(980_000)),
    ]
}

fn of_machines(survey: &Survey) -> Vec<Row> {
    let of = |cluster: &str| survey.cold_ratio_of_machines(cluster);
    let clusters = survey.clusters();
    let mut all: Vec<f64> = clusters.iter().flat_map(|cluster| of(cluster)).collect();
    all.sort_by(f64::total_cmp);
    let Some(largest) = clusters.iter().map(|cluster| of(cluster)).max_by_key(Vec::len) else { return Vec::new() };
    let (Some(&low), Some(&high), Some(&least), Some(&most)) = (all.first(), all.last(), largest.first(), largest.last()) else {
        return Vec::new();
    };
    vec![
        row("G03", "cold share, warmest machine of all", (0.01, 0.01), low),
        row("G03", "cold share, coldest machine of all", (0.61, 0.61), high),
        row("G04", "cold share, warmest machine of the largest cluster", (0.01, 0.01), least),
        row("G04", "cold share, coldest machine of the largest cluster", (0.52, 0.52), most),
        row("G07", "cold share beyond 20% on the coldest machine", (0.30, 0.30), (most - 0.2).max(0.0)),
    ]
}

/// Returns the share of memory untouched for five minutes: the geometric mean of the shares at two and three scans.
fn untouched_for_five_minutes(curve: &Curve, thresholds: &Thresholds) -> Option<f64> {
    let at = |scans| Survey::threshold(thresholds, scans).map(|index| curve.cold_ratio(index));
    Some(libm::sqrt(at(2)? * at(3)?))
}

fn of_kinds(measured: &FitInput<'_>) -> Vec<Row> {
    let (survey, thresholds) = (measured.survey, measured.thresholds);
    let of = |kind: &str| survey.classes.get(kind);
    let cold = |kind: &str| of(kind).and_then(|curve| untouched_for_five_minutes(curve, thresholds));
    let mut rows = Vec::new();
    // (TMO figure 2) shows applications: sidecars are its memory tax.
    let applications: Vec<f64> = KINDS.iter().filter(|kind| kind.name != "sidecar").filter_map(|kind| cold(kind.name)).collect();
    if applications.len() == KINDS.len() - 1 {
        #[expect(clippy::cast_precision_loss, reason = "seven")]
        let mean = applications.iter().sum::<f64>() / applications.len() as f64;
        rows.push(row("T05", "untouched for 5 min, mean of applications", (0.35, 0.35), mean));
    }
    if let Some(curve) = of("feed") {
        rows.push(row("T06", "feed: touched within 2 min", (0.58, 0.58), 1.0 - curve.cold_ratio(0)));
    }
    for (id, what, kind, published) in [
        ("T06", "feed: untouched for 5 min", "feed", 0.30),
        ("T07", "cache: untouched for 5 min", "cache", 0.19),
        ("T08", "web: untouched for 5 min", "web", 0.62),
    ] {
        rows.extend(cold(kind).map(|share| row(id, what, (published, published), share)));
    }
    if let Some(curve) = of("sidecar") {
        let share = crate::tally::ratio(curve.used_page_ms, survey.fleet.used_page_ms);
        rows.push(row("T09", "memory tax, share of memory", (0.20, 0.20), share));
    }
    rows
}

/// Range of G20, per minute.
const RATE: (f64, f64) = (0.0, 0.002);

fn of_model(measured: &FitInput<'_>) -> Vec<Row> {
    let FitInput { hand_tuned, best, objective, .. } = measured;
    let mut rows = vec![
        row("G17", "coverage, hand-tuned", (0.15, 0.15), hand_tuned.coverage()),
        row("G20", "promotion rate per minute, 98% of entries, hand-tuned", RATE, objective.rate(hand_tuned)),
    ];
    if let Some(best) = best {
        rows.extend([
            row("G18", "coverage, tuned", (0.20, 0.20), best.coverage()),
            row("G19", "saved share of memory, tuned", (0.04, 0.05), best.saved_ratio()),
            row("G20", "promotion rate per minute, 98% of entries, tuned", RATE, objective.rate(best)),
        ]);
    }
    rows
}

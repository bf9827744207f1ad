//! Compares two groups of machines: which metrics differ, by how much, and how much differs by chance (SDFM figure 10).
//!
//! # Approach
//! A group is the conjunction of its terms: a bundle, clusters, a class of jobs, machines by name, or a share of all by
//! hash. The difference of each metric has a 95 % interval by Student's t over machines ([`crate::contrast`]); that of
//! the 98th percentile of the promotion rate, which has no linearised value, is found by resampling machines (the
//! cluster bootstrap: Field and Welsh,
//! *Bootstrapping clustered data*, JRSS B 2007). The noise is reported beside it: the difference that two random groups
//! of the same sizes, both drawn from the machines of the first group, do not exceed in 95 % of the draws. Draws are
//! seeded: the same traces and seed give the same report.
//!
//! # Limitations
//! Each interval is for a single analysis of a single metric: of nine metrics without a difference, one in three
//! experiments shows a difference in at least one. Groups that were not assigned at random may differ for other
//! reasons.

use std::sync::atomic::{AtomicU64, Ordering};

use fastrand::Rng;
use globset::{Glob, GlobMatcher};
use serde::Serialize;
use store::Store;
use units::{Millis, RatioPpm, UnixMillis};

use crate::assignment::place_ppm;
use crate::contrast::{Contrast, Part, Unit as MachineUnit, contrast, count};
use crate::error::{Error, Result};
use crate::evidence::{EntryRef, Evidence, Reader, Selection, Slot};
use crate::metric::{Better, METRICS, Rates, Unit};
use crate::sequential::{quantile, student};

/// Number of resamples of the bootstrap.
const RESAMPLES: usize = 1_000;
/// Number of random splits of the first group.
const SPLITS: usize = 400;
/// Minimum machines of a group.
const MACHINES_MIN: usize = 3;
/// Reported percentile of promotion rates (SDFM section 4.2).
const PERCENTILE: f64 = 0.98;

/// A group of machines, or of jobs on machines.
#[derive(Clone, Debug)]
pub struct Group {
    text: String,
    terms: Vec<Term>,
}

#[derive(Clone, Debug)]
enum Term {
    Bundle(u64),
    Cluster(GlobMatcher),
    Class(String),
    Machine(GlobMatcher),
    Hash { from_ppm: RatioPpm, until_ppm: RatioPpm, salt: String },
}

impl Group {
    /// Parses terms that must all hold: `bundle=7,cluster=eu-*,class=batch,machine=web-*,hash=0%..50%@salt`.
    ///
    /// # Errors
    /// A message that names the invalid term and the valid ones.
    pub fn parse(text: &str) -> std::result::Result<Self, String> {
        let terms: std::result::Result<Vec<Term>, String> = text.split(',').map(|term| Term::parse(term.trim())).collect();
        Ok(Self { text: text.to_owned(), terms: terms? })
    }

    /// Returns whether an entry belongs to the group.
    #[must_use]
    pub fn holds(&self, entry: &EntryRef) -> bool {
        self.terms.iter().all(|term| match term {
            Term::Bundle(version) => entry.figures.bundle_version == *version,
            Term::Cluster(glob) => glob.is_match(&entry.id.cluster),
            Term::Class(class) => entry.class == class,
            Term::Machine(glob) => glob.is_match(&entry.id.machine),
            Term::Hash { from_ppm, until_ppm, salt } => (*from_ppm..*until_ppm).contains(&place_ppm(salt, &entry.id.machine)),
        })
    }
}

impl std::fmt::Display for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl Term {
    fn parse(text: &str) -> std::result::Result<Self, String> {
        let known = "there are bundle=VERSION, cluster=PATTERN, class=CLASS, machine=PATTERN and hash=FROM..UNTIL[@SALT]";
        let (key, value) = text.split_once('=').ok_or_else(|| format!("{text:?} is not a term of a group; {known}"))?;
        let glob = |pattern: &str| Glob::new(pattern).map(|glob| glob.compile_matcher()).map_err(|error| format!("{text:?}: {error}"));
        match key {
            "bundle" => value.parse().map(Self::Bundle).map_err(|_| format!("{text:?}: give the bundle's version, or 0 for none")),
            "cluster" => glob(value).map(Self::Cluster),
            "class" => Ok(Self::Class(value.to_owned())),
            "machine" => glob(value).map(Self::Machine),
            "hash" => Self::hash(value)
                .ok_or_else(|| format!("{text:?}: give two shares such as 0%..50%, optionally with a salt, such as 0%..50%@june")),
            _ => Err(format!("{key:?} is not known; {known}")),
        }
    }

    fn hash(value: &str) -> Option<Self> {
        let (range, salt) = value.split_once('@').unwrap_or((value, "experiment"));
        let (from, until) = range.split_once("..")?;
        // A bare 0 needs no unit.
        let ppm = |text: &str| if text == "0" { Some(RatioPpm(0)) } else { units::quantity::parse_ratio(text).ok() };
        let (from_ppm, until_ppm) = (ppm(from)?, ppm(until)?);
        (from_ppm < until_ppm && until_ppm <= RatioPpm::ONE).then(|| Self::Hash { from_ppm, until_ppm, salt: salt.to_owned() })
    }
}

/// A comparison to be made.
#[derive(Clone, Debug)]
pub struct Question {
    /// The first group, the reference.
    pub a: Group,
    /// The second group.
    pub b: Group,
    /// Entries that begin at or after this time are compared.
    pub from_unix_ms: UnixMillis,
    /// Entries that begin before this time are compared.
    pub until_unix_ms: UnixMillis,
    /// Length of the period before `from_unix_ms` whose values are adjusted for; 0 for no adjustment.
    pub before_ms: Millis,
    /// The objective of the promotion rate: per minute, as a share of the working set.
    pub objective: f64,
    /// Seed of all draws.
    pub seed: u64,
}

/// Result of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The groups.
    pub groups: [GroupSummary; 2],
    /// Number of machines in both groups, with some of their jobs or time in each.
    pub machines_in_both: usize,
    /// Confidence of the intervals.
    pub confidence_ratio: f64,
    /// Seed of all draws.
    pub seed: u64,
    /// One per metric that both groups have.
    pub rows: Vec<Row>,
    /// Files that could not be read.
    pub unreadable: Vec<String>,
}

/// A group in a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupSummary {
    /// Its terms.
    pub group: String,
    /// Number of machines.
    pub machines: usize,
    /// Number of entries.
    pub entries: u64,
    /// Start of the first entry, in milliseconds of Unix time.
    pub first_unix_ms: UnixMillis,
    /// End of the last entry, in milliseconds of Unix time.
    pub last_unix_ms: UnixMillis,
}

/// Comparison of one metric.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Name of the metric.
    pub metric: &'static str,
    /// Meaning, in a sentence.
    pub meaning: &'static str,
    /// Unit of the values.
    pub unit: Unit,
    /// Which direction is better.
    pub better: Better,
    /// Value of the first group.
    pub a: f64,
    /// Value of the second group.
    pub b: f64,
    /// The second value minus the first; with `before_ms`, adjusted for the values from before.
    pub difference: f64,
    /// Lower bound of the difference.
    pub lower: f64,
    /// Upper bound of the difference.
    pub upper: f64,
    /// The difference that two random groups of these sizes from the first group do not exceed in 95 % of the draws;
    /// `null` if it has too few machines to be split.
    pub noise: Option<f64>,
    /// Conclusion.
    pub finding: Finding,
}

/// Conclusion about a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// The second group is better.
    Better,
    /// The second group is worse.
    Worse,
    /// The interval includes zero.
    WithinNoise,
}

const CONFIDENCE: f64 = 0.95;

/// Compares two groups.
///
/// # Errors
/// [`Error::Store`]; [`Error::Evidence`] if a group has too few machines, or an entry is in both groups.
pub fn compare(store: &Store, question: &Question) -> Result<Report> {
    let in_both = AtomicU64::new(0);
    let slot = |entry: &EntryRef| {
        if entry.figures.start_unix_ms < question.from_unix_ms {
            return Some(2);
        }
        match (question.a.holds(entry), question.b.holds(entry)) {
            (true, true) => {
                in_both.fetch_add(1, Ordering::Relaxed);
                None
            }
            (true, false) => Some(0),
            (false, true) => Some(1),
            (false, false) => None,
        }
    };
    let selection = Selection {
        slots: 3,
        slot: &slot,
        from_unix_ms: question.from_unix_ms - question.before_ms,
        until_unix_ms: question.until_unix_ms,
        objective: question.objective,
    };
    let evidence = Reader::default().read(store, &selection)?;
    let in_both = in_both.into_inner();
    if in_both > 0 {
        let what = format!("{in_both} entries are in both groups; give groups that exclude each other");
        return Err(Error::Evidence { what });
    }
    report(&evidence, question)
}

/// Compares the evidence in the slots A, B and before.
fn report(evidence: &Evidence, question: &Question) -> Result<Report> {
    let machines: Vec<&[Slot]> =
        evidence.machines.values().map(Vec::as_slice).filter(|slots| slots[0].entries + slots[1].entries > 0).collect();
    let groups = [(&question.a, 0), (&question.b, 1)].map(|(group, slot)| {
        let of: Vec<&Slot> = machines.iter().map(|slots| &slots[slot]).filter(|slot| slot.entries > 0).collect();
        GroupSummary {
            group: group.to_string(),
            machines: of.len(),
            entries: of.iter().map(|slot| slot.entries).sum(),
            first_unix_ms: of.iter().map(|slot| slot.first_unix_ms).min().unwrap_or_default(),
            last_unix_ms: of.iter().map(|slot| slot.last_unix_ms).max().unwrap_or_default(),
        }
    });
    for GroupSummary { group, machines, .. } in &groups {
        if *machines < MACHINES_MIN {
            let what = format!(
                "{machines} machines in group {group}; each group needs at least {MACHINES_MIN}, because machines are the observations"
            );
            return Err(Error::Evidence { what });
        }
    }
    let rows = METRICS.iter().filter_map(|metric| {
        let part = |slot: &Slot| Some(metric.part(&slot.sums)).filter(|_| slot.entries > 0);
        let units: Vec<MachineUnit> =
            machines.iter().map(|slots| MachineUnit { groups: [part(&slots[0]), part(&slots[1])], before: part(&slots[2]) }).collect();
        let found = contrast(&units)?;
        let half = student(quantile(0.5 + CONFIDENCE / 2.0), found.degrees_of_freedom) * found.standard_error;
        let [a, b] = found.values;
        let noise = noise(units.iter().filter_map(|unit| unit.groups[0].map(|part| (part, unit.before))).collect(), &found, question.seed);
        let (lower, upper) = (found.difference - half, found.difference + half);
        let finding = finding(metric.better, lower, upper);
        let (metric, meaning, unit, better) = (metric.name, metric.meaning, metric.unit, metric.better);
        Some(Row { metric, meaning, unit, better, a, b, difference: found.difference, lower, upper, noise, finding })
    });
    let rows = rows.chain(percentiles(&machines, question.seed)).collect();
    let machines_in_both = machines.iter().filter(|slots| slots[0].entries > 0 && slots[1].entries > 0).count();
    let unreadable = evidence.unreadable.clone();
    Ok(Report { groups, machines_in_both, confidence_ratio: CONFIDENCE, seed: question.seed, rows, unreadable })
}

fn finding(better: Better, lower: f64, upper: f64) -> Finding {
    if lower <= 0.0 && upper >= 0.0 {
        Finding::WithinNoise
    } else if (lower > 0.0) == (better == Better::Higher) {
        Finding::Better
    } else {
        Finding::Worse
    }
}

/// Returns the 95th percentile of the differences between random halves of a group, scaled to groups of the compared
/// sizes.
fn noise(mut machines: Vec<(Part, Option<Part>)>, found: &Contrast, seed: u64) -> Option<f64> {
    let random = &mut Rng::with_seed(seed);
    let mut differences = Vec::with_capacity(SPLITS);
    for _ in 0..SPLITS {
        random.shuffle(&mut machines);
        let half = machines.len() / 2;
        let units: Vec<MachineUnit> = machines
            .iter()
            .enumerate()
            .map(|(at, &(part, before))| {
                let mut unit = MachineUnit { before, ..MachineUnit::default() };
                unit.groups[usize::from(at >= half)] = Some(part);
                unit
            })
            .collect();
        differences.push(contrast(&units)?.difference);
    }
    Some(at_most(differences) * scale(machines.len(), found.machines))
}

/// Returns the ratio of the standard errors of two groups of these sizes and two halves of `split` machines.
fn scale(split: usize, sizes: [usize; 2]) -> f64 {
    ((1.0 / count(sizes[0]) + 1.0 / count(sizes[1])) / (4.0 / count(split))).sqrt()
}

/// Returns the 95th percentile of the absolute values.
fn at_most(mut differences: Vec<f64>) -> f64 {
    differences.iter_mut().for_each(|difference| *difference = difference.abs());
    quantile_of(&mut differences, CONFIDENCE)
}

fn quantile_of(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place among a thousand")]
    let at = (share * count(values.len().saturating_sub(1))).round() as usize;
    values.get(at).copied().unwrap_or(f64::NAN)
}

/// Compares the 98th percentiles of the promotion rates; `None` if they are not finite in both groups.
fn percentiles(machines: &[&[Slot]], seed: u64) -> Option<Row> {
    let has = |slots: &[Slot], group: usize| slots[group].sums.rates.total() > 0.0;
    let of = |members: &[usize], group: usize| {
        Rates::percentile_of(members.iter().map(|&machine| &machines[machine][group].sums.rates), PERCENTILE)
    };
    // A machine that is in both groups is drawn for both.
    let strata = [(true, false), (false, true), (true, true)]
        .map(|(a, b)| (0..machines.len()).filter(|&at| has(machines[at], 0) == a && has(machines[at], 1) == b).collect::<Vec<_>>());
    let members = |group: usize| (0..machines.len()).filter(|&at| has(machines[at], group)).collect::<Vec<_>>();
    let (firsts, seconds) = (members(0), members(1));
    if firsts.len() < MACHINES_MIN || seconds.len() < MACHINES_MIN {
        return None;
    }
    let [a, b] = [of(&firsts, 0)?, of(&seconds, 1)?];
    let random = &mut Rng::with_seed(seed);
    let mut differences = Vec::with_capacity(RESAMPLES);
    for _ in 0..RESAMPLES {
        let drawn: Vec<usize> = strata
            .iter()
            .flat_map(|stratum| (0..stratum.len()).map(|_| stratum[random.usize(..stratum.len())]).collect::<Vec<_>>())
            .collect();
        if let (Some(a), Some(b)) = (of(&drawn, 0), of(&drawn, 1)) {
            differences.push(b - a);
        }
    }
    let mut splits = Vec::with_capacity(SPLITS);
    let mut halves = firsts.clone();
    for _ in 0..SPLITS {
        random.shuffle(&mut halves);
        let (one, other) = halves.split_at(halves.len() / 2);
        splits.extend(of(one, 0).zip(of(other, 0)).map(|(one, other)| one - other));
    }
    // Rates above one are in an open bin, without a value.
    if !differences.iter().chain(&splits).chain([&a, &b]).all(|value| value.is_finite()) {
        return None;
    }
    let [lower, upper] = [0.5 - CONFIDENCE / 2.0, 0.5 + CONFIDENCE / 2.0].map(|share| quantile_of(&mut differences, share));
    Some(Row {
        metric: "promotion_rate_p98",
        meaning: "the promotion rate that 98% of the entries with far memory on do not exceed",
        unit: Unit::RatioPerMinute,
        better: Better::Lower,
        a,
        b,
        difference: b - a,
        lower,
        upper,
        noise: Some(at_most(splits) * scale(firsts.len(), [firsts.len(), seconds.len()])),
        finding: finding(Better::Lower, lower, upper),
    })
}

#[cfg(test)]
mod tests;

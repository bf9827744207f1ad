//! Two groups of machines, compared: what differs, by how much, and how much would differ by chance (000 figure 10).
//!
//! # Approach
//! A group is what its terms all say: a bundle, clusters, a class of jobs, machines by name, or a share of all by hash. Each
//! metric's difference has a 95 % interval by Student's t over machines ([`crate::contrast`]); the 98th percentile of the
//! promotion rate, of which no linearised value exists, has one by resampling machines (the cluster bootstrap: Field and
//! Welsh, *Bootstrapping clustered data*, JRSS B 2007). Beside it stands the noise: by how much two random groups of the same
//! sizes, both drawn from the first one's machines, differ in 95 % of the draws. Draws are seeded: the same traces and seed
//! give the same report.
//!
//! # What it does not say
//! Intervals are of one look at a time, and each by itself: of nine metrics that do not differ, one in three experiments shows
//! one all the same. Groups that were not drawn by chance may differ for other reasons than what is tried.

use std::sync::atomic::{AtomicU64, Ordering};

use fastrand::Rng;
use globset::{Glob, GlobMatcher};
use serde::Serialize;
use store::Store;

use crate::assignment::{ALL_PPM, place_ppm};
use crate::contrast::{Contrast, Part, Unit as Counted, contrast, count};
use crate::error::{Error, Result};
use crate::evidence::{Evidence, Reader, Sight, Slot, Wanted};
use crate::metric::{Better, METRICS, Rates, Unit};
use crate::sequential::{quantile, student};

/// How often machines are drawn anew.
const RESAMPLES: usize = 1_000;
/// How often the first group is split in two.
const SPLITS: usize = 400;
/// A group must have so many machines.
const MACHINES_MIN: usize = 3;
/// What promotion rates are told by (000 section 4.2).
const PERCENTILE: f64 = 0.98;

/// A group of machines, or of jobs on them.
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
    Hash { from_ppm: u32, until_ppm: u32, salt: String },
}

impl Group {
    /// Out of terms that must all hold: `bundle=7,cluster=eu-*,class=batch,machine=web-*,hash=0%..50%@salt`.
    ///
    /// # Errors
    /// What is no term, and what there is.
    pub fn parse(text: &str) -> std::result::Result<Self, String> {
        let terms: std::result::Result<Vec<Term>, String> = text.split(',').map(|term| Term::parse(term.trim())).collect();
        Ok(Self { text: text.to_owned(), terms: terms? })
    }

    /// Whether an entry belongs to it.
    #[must_use]
    pub fn holds(&self, sight: &Sight) -> bool {
        self.terms.iter().all(|term| match term {
            Term::Bundle(version) => sight.figures.bundle_version == *version,
            Term::Cluster(glob) => glob.is_match(&sight.id.cluster),
            Term::Class(class) => sight.class == class,
            Term::Machine(glob) => glob.is_match(&sight.id.machine),
            Term::Hash { from_ppm, until_ppm, salt } => (*from_ppm..*until_ppm).contains(&place_ppm(salt, &sight.id.machine)),
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
        let (key, value) = text.split_once('=').ok_or_else(|| format!("{text:?} is no term of a group; {known}"))?;
        let glob = |pattern: &str| Glob::new(pattern).map(|glob| glob.compile_matcher()).map_err(|error| format!("{text:?}: {error}"));
        match key {
            "bundle" => value.parse().map(Self::Bundle).map_err(|_| format!("{text:?}: give the bundle's version, or 0 for none")),
            "cluster" => glob(value).map(Self::Cluster),
            "class" => Ok(Self::Class(value.to_owned())),
            "machine" => glob(value).map(Self::Machine),
            "hash" => Self::hash(value)
                .ok_or_else(|| format!("{text:?}: give two shares such as 0%..50%, and a salt if you like, such as 0%..50%@june")),
            _ => Err(format!("{key:?} is not known; {known}")),
        }
    }

    fn hash(value: &str) -> Option<Self> {
        let (range, salt) = value.split_once('@').unwrap_or((value, "experiment"));
        let (from, until) = range.split_once("..")?;
        // A bare zero is no other share, whatever its unit.
        let ppm = |text: &str| if text == "0" { Some(0) } else { units::quantity::parse_ratio(text).ok().map(|ratio| ratio.0) };
        let (from_ppm, until_ppm) = (ppm(from)?, ppm(until)?);
        (from_ppm < until_ppm && until_ppm <= ALL_PPM).then(|| Self::Hash { from_ppm, until_ppm, salt: salt.to_owned() })
    }
}

/// What is to be compared.
#[derive(Clone, Debug)]
pub struct Question {
    /// The first group, with which the other is compared.
    pub a: Group,
    /// The second.
    pub b: Group,
    /// Entries from then on, in milliseconds of Unix time.
    pub from_unix_ms: u64,
    /// Entries before then.
    pub until_unix_ms: u64,
    /// How long before `from_unix_ms` to look at what machines were like, to be taken off; 0 looks at nothing.
    pub before_ms: u64,
    /// The promotion rate that an entry should not exceed.
    pub objective: f64,
    /// Of all draws.
    pub seed: u64,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The groups.
    pub groups: [GroupFound; 2],
    /// Machines that are in both, with some of their jobs or time in each.
    pub machines_in_both: usize,
    /// The share of intervals that hold what they are about.
    pub confidence_ratio: f64,
    /// Of all draws.
    pub seed: u64,
    /// One per metric that both groups have.
    pub rows: Vec<Row>,
    /// Files that could not be read.
    pub unreadable: Vec<String>,
}

/// A group, as it was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupFound {
    /// Its terms.
    pub group: String,
    /// Its machines.
    pub machines: usize,
    /// Their entries.
    pub entries: u64,
    /// When the first of them began.
    pub first_unix_ms: u64,
    /// When the last of them ended.
    pub last_unix_ms: u64,
}

/// A metric of both groups.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Its name.
    pub metric: &'static str,
    /// In a sentence.
    pub meaning: &'static str,
    /// How its values are read.
    pub unit: Unit,
    /// Which way it should go.
    pub better: Better,
    /// The first group's value.
    pub a: f64,
    /// The second's.
    pub b: f64,
    /// The second's less the first's; with `before_ms`, what was so before taken off.
    pub difference: f64,
    /// The difference is above this.
    pub lower: f64,
    /// The difference is below this.
    pub upper: f64,
    /// What two random groups of these sizes out of the first differ by, at most, in 95 % of the draws; `null` where it has too few
    /// machines to be split.
    pub noise: Option<f64>,
    /// What that says.
    pub finding: Finding,
}

/// What a difference says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// The second group does better.
    Better,
    /// It does worse.
    Worse,
    /// No difference is shown.
    WithinNoise,
}

const CONFIDENCE: f64 = 0.95;

/// Compares two groups.
///
/// # Errors
/// [`Error::Store`]; [`Error::Evidence`] where a group has too few machines, or an entry is in both.
pub fn compare(store: &Store, question: &Question) -> Result<Report> {
    let in_both = AtomicU64::new(0);
    let slot = |sight: &Sight| {
        if sight.figures.start_unix_ms < question.from_unix_ms {
            return Some(2);
        }
        match (question.a.holds(sight), question.b.holds(sight)) {
            (true, true) => {
                in_both.fetch_add(1, Ordering::Relaxed);
                None
            }
            (true, false) => Some(0),
            (false, true) => Some(1),
            (false, false) => None,
        }
    };
    let wanted = Wanted {
        slots: 3,
        slot: &slot,
        from_unix_ms: question.from_unix_ms.saturating_sub(question.before_ms),
        until_unix_ms: question.until_unix_ms,
        objective: question.objective,
    };
    let evidence = Reader::default().read(store, &wanted)?;
    let in_both = in_both.into_inner();
    if in_both > 0 {
        let what = format!("{in_both} entries are in both groups; give groups that exclude each other");
        return Err(Error::Evidence { what });
    }
    report(&evidence, question)
}

/// Compares what was found, in slots A, B and before.
fn report(evidence: &Evidence, question: &Question) -> Result<Report> {
    let machines: Vec<&[Slot]> =
        evidence.machines.values().map(Vec::as_slice).filter(|slots| slots[0].entries + slots[1].entries > 0).collect();
    let groups = [(&question.a, 0), (&question.b, 1)].map(|(group, slot)| {
        let of: Vec<&Slot> = machines.iter().map(|slots| &slots[slot]).filter(|slot| slot.entries > 0).collect();
        GroupFound {
            group: group.to_string(),
            machines: of.len(),
            entries: of.iter().map(|slot| slot.entries).sum(),
            first_unix_ms: of.iter().map(|slot| slot.first_unix_ms).min().unwrap_or(0),
            last_unix_ms: of.iter().map(|slot| slot.last_unix_ms).max().unwrap_or(0),
        }
    });
    for GroupFound { group, machines, .. } in &groups {
        if *machines < MACHINES_MIN {
            let what = format!(
                "{machines} machines in group {group}; machines are what is counted, and {MACHINES_MIN} are the fewest that say anything"
            );
            return Err(Error::Evidence { what });
        }
    }
    let rows = METRICS.iter().filter_map(|metric| {
        let part = |slot: &Slot| Some(metric.part(&slot.sums)).filter(|_| slot.entries > 0);
        let units: Vec<Counted> =
            machines.iter().map(|slots| Counted { groups: [part(&slots[0]), part(&slots[1])], before: part(&slots[2]) }).collect();
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

/// What halves of a group differ by in 95 % of the draws, scaled to groups of the sizes in question.
fn noise(mut machines: Vec<(Part, Option<Part>)>, found: &Contrast, seed: u64) -> Option<f64> {
    let random = &mut Rng::with_seed(seed);
    let mut differences = Vec::with_capacity(SPLITS);
    for _ in 0..SPLITS {
        random.shuffle(&mut machines);
        let half = machines.len() / 2;
        let units: Vec<Counted> = machines
            .iter()
            .enumerate()
            .map(|(at, &(part, before))| {
                let mut unit = Counted { before, ..Counted::default() };
                unit.groups[usize::from(at >= half)] = Some(part);
                unit
            })
            .collect();
        differences.push(contrast(&units)?.difference);
    }
    Some(at_most(differences) * scale(machines.len(), found.machines))
}

/// How much less two groups of these sizes differ by chance than two halves of so many machines.
fn scale(split: usize, sizes: [usize; 2]) -> f64 {
    ((1.0 / count(sizes[0]) + 1.0 / count(sizes[1])) / (4.0 / count(split))).sqrt()
}

/// What 95 % of all do not exceed, whatever their sign.
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

/// The 98th percentiles of the promotion rates, where both groups have any below the highest.
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
    // Rates above one have no figure to differ by.
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

//! A larger and longer fleet, resampled from the jobs of a trace. It shows no behaviour that the trace does not show.
//!
//! # Algorithm
//! A circular block bootstrap (Politis and Romano, 1992). Each job of the new fleet follows one job of the trace, drawn
//! uniformly: first from its start, because young jobs differ; then block by block, each from a random position,
//! wrapping around at its end. Within a block, entries keep their order, on which the controller's pool of past bests
//! and the rule for spikes depend. A block is an eighth of a job, so that what happens once in a lifetime stays rare.
//!
//! # Properties
//! The same seed gives the same fleet; every row is a row of the source, with its duration; a longer fleet begins with
//! the shorter one.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::hash::Hasher;

use policy::thresholds::Thresholds;
use twox_hash::XxHash64;
use units::{Millis, UnixMillis};

use super::SLOTS_PER_MACHINE;
use crate::coverage::{Part, fingerprint};
use crate::fleet::{Account, Label, Named, Source};
use crate::random::stream;
use crate::series::{Row, Series};
use crate::tally::ratio;

/// Blocks per job of the trace.
const BLOCKS: usize = 8;

const DAY_MS: u64 = 86_400_000;

/// The jobs of a trace in memory. An account, so that any source can fill it.
#[derive(Debug, Default)]
pub struct Originals(Vec<(Label, Series)>);

impl Account for Originals {
    fn job(&mut self, label: &Label, series: &Series) {
        if !series.is_empty() {
            self.0.push((label.clone(), series.clone()));
        }
    }

    fn merge(&mut self, other: Self) {
        self.0.extend(other.0);
    }
}

impl Originals {
    /// Returns the number of jobs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Keeps the entries of the `count` worst days: those in which most cold memory was accessed each minute, as a share of the
    /// working set. That is what returns from far memory, whatever the parameters. A day with less than half the memory of the
    /// largest one, such as the first or the last of a trace, is none of them. The entries that remain of a job follow each other.
    pub fn keep_worst_days(&mut self, count: usize) {
        let mut days: BTreeMap<u64, DayAccesses> = BTreeMap::new();
        for (_, series) in &self.0 {
            for (day, row) in by_day(series) {
                days.entry(day).or_default().add(&row);
            }
        }
        let largest = days.values().map(|day| day.used_page_ms).max().unwrap_or(0);
        let mut worst: Vec<_> = days.into_iter().filter(|(_, day)| day.used_page_ms.saturating_mul(2) >= largest).collect();
        worst.sort_by(|(_, one), (_, other)| other.rate().total_cmp(&one.rate()));
        let worst: BTreeSet<u64> = worst.into_iter().take(count).map(|(day, _)| day).collect();
        for (_, series) in &mut self.0 {
            *series = of_days(series, &worst);
        }
        self.0.retain(|(_, series)| !series.is_empty());
    }

    /// Returns whether there are no jobs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn fingerprint(&self) -> u64 {
        let mut hasher = XxHash64::with_seed(0);
        for (label, series) in &self.0 {
            for word in [&label.cluster, &label.machine, &label.class] {
                hasher.write(word.as_bytes());
                hasher.write_u8(0);
            }
            for row in series.rows() {
                hasher.write_u64(row.age_ms.0);
                hasher.write_u32(u32::try_from(row.window_ms.0).unwrap_or(u32::MAX));
                row.promotions.iter().chain(row.cold).for_each(|&count| hasher.write_u32(count));
            }
        }
        hasher.finish()
    }
}

/// What the jobs of a day accessed.
#[derive(Clone, Copy, Debug, Default)]
struct DayAccesses {
    used_page_ms: u128,
    working_set_page_ms: u128,
    /// Accesses to pages at or above the first threshold.
    accesses: u128,
}

impl DayAccesses {
    fn add(&mut self, row: &Row<'_>) {
        let window = u128::from(row.window_ms.0);
        self.used_page_ms += u128::from(row.cold[0]) * window;
        self.working_set_page_ms += u128::from(row.cold[0] - row.cold[1]) * window;
        self.accesses += u128::from(row.promotions[1]);
    }

    fn rate(&self) -> f64 {
        ratio(self.accesses * 60_000, self.working_set_page_ms)
    }
}

/// Returns the rows of a job with their day since the Unix epoch: that of their middle.
fn by_day(series: &Series) -> impl Iterator<Item = (u64, Row<'_>)> {
    let begin = series.rows().next().map_or(Millis::ZERO, |row| row.age_ms.saturating_sub(row.window_ms));
    series.rows().map(move |row| {
        let middle = series.start_unix_ms + row.age_ms.saturating_sub(begin).saturating_sub(Millis(row.window_ms.0 / 2));
        (middle.0 / DAY_MS, row)
    })
}

/// Returns the rows of some days, one after the other.
fn of_days(series: &Series, days: &BTreeSet<u64>) -> Series {
    let mut kept = series.clone();
    kept.clear();
    (kept.start_unix_ms, kept.compressibility, kept.assumed) = (series.start_unix_ms, series.compressibility, series.assumed);
    kept.set_trackers(series);
    let (mut lasted, mut before) = (Millis::ZERO, None);
    for (day, row) in by_day(series) {
        let step = before.map_or(row.window_ms, |before| row.age_ms.saturating_sub(before));
        before = Some(row.age_ms);
        if days.contains(&day) {
            // A gap in the trace is no time of the job's: what follows it has its own duration.
            lasted += step.min(Millis(2 * row.window_ms.0)).max(Millis(1));
            let pushed = kept.push_row(lasted, &row);
            debug_assert!(pushed.is_ok(), "rows of the same trace, and time increases");
        }
    }
    kept
}

/// A resampled fleet.
#[derive(Debug)]
pub struct ResampledFleet {
    originals: Originals,
    thresholds: Thresholds,
    seed: u64,
    jobs: u64,
    days: u32,
    /// Start of all its jobs: the start of the trace.
    start_unix_ms: UnixMillis,
    fingerprint: u64,
}

impl ResampledFleet {
    /// Creates a fleet of `jobs` jobs that all run for `days` days; `None` if there are no originals.
    #[must_use]
    pub fn new(mut originals: Originals, thresholds: Thresholds, seed: u64, jobs: u64, days: u32) -> Option<Self> {
        if originals.is_empty() {
            return None;
        }
        // Sorted, because the order depends on the threads that read the jobs.
        originals
            .0
            .sort_by(|one, other| (&one.0, one.1.start_unix_ms, one.1.sums()).cmp(&(&other.0, other.1.start_unix_ms, other.1.sums())));
        let fingerprint = originals.fingerprint();
        let start_unix_ms = originals.0.iter().map(|(_, series)| series.start_unix_ms).min().unwrap_or_default();
        Some(Self { originals, thresholds, seed, jobs, days, start_unix_ms, fingerprint })
    }

    /// Draws the job of one slot into `series`.
    fn draw(&self, slot: u64, series: &mut Series) -> Label {
        let random = &mut stream(self.seed, slot);
        let (label, original) = &self.originals.0[random.usize(0..self.originals.len())];
        series.clear();
        (series.start_unix_ms, series.compressibility, series.assumed) = (self.start_unix_ms, original.compressibility, original.assumed);
        series.set_trackers(original);
        let rows: Vec<Row<'_>> = original.rows().collect();
        let block = rows.len().div_ceil(BLOCKS);
        let (mut at, mut left, mut lasted) = (0, block, Millis::ZERO);
        while lasted < Millis::days(u64::from(self.days)) {
            let row = &rows[at];
            // The first row may belong to a job that ran before the trace: use only its own duration.
            let step = at.checked_sub(1).map_or(row.window_ms, |before| row.age_ms.saturating_sub(rows[before].age_ms));
            lasted += step.max(Millis(1));
            let pushed = series.push_row(lasted, row);
            debug_assert!(pushed.is_ok(), "rows of the same trace, and time increases");
            (at, left) = ((at + 1) % rows.len(), left - 1);
            if left == 0 {
                (at, left) = (random.usize(0..rows.len()), block);
            }
        }
        Label { machine: format!("resampled-{:07}", slot / SLOTS_PER_MACHINE), ..label.clone() }
    }

    fn slots(&self, piece: usize) -> std::ops::Range<u64> {
        let first = (piece as u64).saturating_mul(SLOTS_PER_MACHINE).min(self.jobs);
        first..first.saturating_add(SLOTS_PER_MACHINE).min(self.jobs)
    }
}

impl Source for ResampledFleet {
    type Error = Infallible;

    fn pieces(&self) -> usize {
        usize::try_from(self.jobs.div_ceil(SLOTS_PER_MACHINE)).unwrap_or(usize::MAX)
    }

    fn read(&self, piece: usize, each: &mut dyn FnMut(&Label, &Series)) -> Result<(), Infallible> {
        let mut series = Series::new(&self.thresholds);
        for slot in self.slots(piece) {
            let label = self.draw(slot, &mut series);
            each(&label, &series);
        }
        Ok(())
    }
}

impl Named for ResampledFleet {
    fn part(&self, piece: usize) -> Part {
        let word = |number: u64| number.to_le_bytes();
        let owner = fingerprint([b"resampled".as_slice(), &word(self.seed), &word(piece as u64)]);
        let slots = self.slots(piece).count() as u64;
        let listing = fingerprint([word(slots).as_slice(), &word(u64::from(self.days)), &word(self.fingerprint)]);
        Part { owner, listing, groups: 0..1, of: 1 }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Returns two jobs, of 40 entries of one minute and of 3 entries of ten minutes; all rows differ.
    fn originals(thresholds: &Thresholds) -> Originals {
        let job = |name: &str, entries: u32, minutes: u32, first: u64| {
            let mut series = Series::new(thresholds);
            for entry in 0..entries {
                let age_ms = u64::from((entry + 1) * minutes) * 60_000;
                series
                    .push(Millis(age_ms), Millis(u64::from(minutes) * 60_000), &[0, u64::from(entry), 0], &[first + u64::from(entry), 7, 9])
                    .unwrap();
            }
            (Label { class: name.to_owned(), ..Label::default() }, series)
        };
        Originals(vec![job("long", 40, 1, 1_000), job("short", 3, 10, 2_000)])
    }

    fn drawn(seed: u64, days: u32) -> Vec<(Label, Series)> {
        let thresholds = Thresholds::try_from(vec![1, 4]).unwrap();
        let fleet = ResampledFleet::new(originals(&thresholds), thresholds, seed, 100, days).unwrap();
        let mut jobs = Vec::new();
        for piece in 0..fleet.pieces() {
            fleet.read(piece, &mut |label, series| jobs.push((label.clone(), series.clone()))).unwrap();
        }
        jobs
    }

    #[test]
    fn every_row_is_a_row_of_the_source() {
        let thresholds = Thresholds::try_from(vec![1, 4]).unwrap();
        let sources = originals(&thresholds);
        let jobs = drawn(1, 1);
        assert_eq!(jobs.len(), 100);
        assert_eq!(jobs.iter().map(|(label, _)| &label.class).collect::<BTreeSet<_>>().len(), 2, "both are drawn");
        for (label, series) in &jobs {
            let (_, original) = sources.0.iter().find(|(of, _)| of.class == label.class).unwrap();
            let known: Vec<_> = original.rows().map(|row| (row.window_ms, row.promotions, row.cold)).collect();
            let rows: Vec<_> = series.rows().collect();
            assert!(rows.iter().all(|row| known.contains(&(row.window_ms, row.promotions, row.cold))));
            assert!(rows.windows(2).all(|pair| pair[1].age_ms.saturating_sub(pair[0].age_ms) == pair[1].window_ms));
            let lasted = rows.last().unwrap().age_ms;
            assert!((Millis::days(1)..Millis::days(1) + Millis(600_000)).contains(&lasted), "{lasted:?}");
            // A job starts as its source does, and a row that occurs once in 40 entries occurs about as often.
            assert_eq!(rows[0].cold, known[0].2);
            let found = rows.iter().filter(|row| row.cold == known[1].2).count();
            assert!((rows.len() / known.len() / 3..=3 * rows.len() / known.len()).contains(&found), "{found} of {}", rows.len());
        }
    }

    #[test]
    fn the_seed_determines_the_fleet_and_a_longer_one_begins_with_it() {
        let columns = |jobs: &[(Label, Series)]| jobs.iter().map(|(_, series)| series.sums().to_vec()).collect::<Vec<_>>();
        let (one, again, other, longer) = (drawn(1, 1), drawn(1, 1), drawn(2, 1), drawn(1, 2));
        assert_eq!(columns(&one), columns(&again));
        assert_ne!(columns(&one), columns(&other));
        assert!(columns(&one).iter().zip(&columns(&longer)).all(|(short, long)| long.starts_with(short)));
    }

    #[test]
    fn the_worst_days_are_those_with_most_accesses_to_cold_memory() {
        let thresholds = Thresholds::try_from(vec![1, 4]).unwrap();
        // A job of four days of hours, from noon on: the half days at both ends are too short to count, however bad. Another job of the
        // third day alone.
        let job = |name: &str, hours: std::ops::Range<u64>, accesses: fn(u64) -> u64| {
            let mut series = Series::new(&thresholds);
            series.start_unix_ms = UnixMillis(hours.start * 3_600_000);
            for hour in hours.clone() {
                let age_ms = Millis((hour + 1 - hours.start) * 3_600_000);
                series.push(age_ms, Millis(3_600_000), &[0, accesses(hour), 0], &[1_000 + hour, 50, 0]).unwrap();
            }
            (Label { class: name.to_owned(), ..Label::default() }, series)
        };
        let of_day = |hour: u64| [900, 2, 1, 3, 900][(hour / 24) as usize];
        let kept = |count: usize| {
            let mut originals = Originals(vec![job("long", 12..108, of_day), job("short", 50..60, |_| 1)]);
            originals.keep_worst_days(count);
            let hours = |series: &Series| series.rows().map(|row| row.cold[0] - 1_050).map(u64::from).collect::<Vec<_>>();
            originals.0.iter().map(|(label, series)| (label.class.clone(), hours(series))).collect::<Vec<_>>()
        };
        let hours = |days: &[u64]| days.iter().flat_map(|day| day * 24..(day + 1) * 24).collect::<Vec<_>>();
        let named = |name: &str, hours: Vec<u64>| (name.to_owned(), hours);
        assert_eq!(kept(1), [named("long", hours(&[3]))]);
        assert_eq!(kept(2), [named("long", hours(&[1, 3]))]);
        assert_eq!(kept(9), [named("long", hours(&[1, 2, 3])), named("short", (50..60).collect())]);
        // The gap between two days is no time of the job.
        let (mut originals, empty) = (Originals(vec![job("long", 12..108, of_day)]), Originals::default());
        originals.keep_worst_days(2);
        let ages: Vec<_> = originals.0[0].1.rows().map(|row| row.age_ms).collect();
        assert!(ages.windows(2).all(|pair| pair[1].saturating_sub(pair[0]) <= Millis(2 * 3_600_000)), "{ages:?}");
        let mut none = empty;
        none.keep_worst_days(1);
        assert!(none.is_empty());
    }

    #[test]
    fn no_fleet_is_resampled_from_no_jobs() {
        assert!(ResampledFleet::new(Originals::default(), Thresholds::try_from(vec![1, 4]).unwrap(), 1, 10, 1).is_none());
    }
}

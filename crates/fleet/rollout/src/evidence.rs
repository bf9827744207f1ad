//! Evidence: what machines did, from their traces, as one value per machine and slot. A slot is a period of time or a
//! group.
//!
//! Each file is read once, and its sums are kept: a further read only reads new files. A file that cannot be read is
//! reported and left out; a damaged file of one machine does not stop a fleet.

use std::collections::{BTreeMap, BTreeSet};

use rayon::prelude::*;
use serde::Serialize;
use store::{Object, Store};
use trace::check::{self, Kind};
use trace::{Basis, Figures, JobId, Rows, Trace, calendar};
use units::UnixMillis;

use crate::error::{Error, Result};
use crate::metric::Sums;

/// Maximum starts of an agent that are recorded per machine and slot.
const STARTS_MAX: usize = 1_000;
/// Unreadable files that are reported by name; further ones are only counted.
const UNREADABLE_MAX: usize = 20;

/// Identity of a machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct MachineId {
    /// Its cluster.
    pub cluster: String,
    /// Its name.
    pub machine: String,
}

/// The properties of an entry that determine its slot.
#[derive(Clone, Copy, Debug)]
pub struct EntryRef<'a> {
    /// Its job.
    pub id: &'a JobId,
    /// Class of the job.
    pub class: &'a str,
    /// Its numbers.
    pub figures: &'a Figures,
}

/// Selects and groups the entries of traces.
pub struct Selection<'a> {
    /// Number of slots.
    pub slots: usize,
    /// Returns the slot of an entry, if any.
    pub slot: &'a (dyn Fn(&EntryRef) -> Option<usize> + Sync),
    /// Entries that begin before this time are skipped.
    pub from_unix_ms: UnixMillis,
    /// Entries that begin at or after this time are skipped.
    pub until_unix_ms: UnixMillis,
    /// The objective of the promotion rate: per minute, as a share of the working set.
    pub objective: f64,
}

/// Evidence of one machine in one slot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Slot {
    /// Number of entries.
    pub entries: u64,
    /// Sums of their figures.
    pub sums: Sums,
    /// Start of the first entry.
    pub first_unix_ms: UnixMillis,
    /// End of the last entry.
    pub last_unix_ms: UnixMillis,
    /// Start times of the agents that wrote the entries.
    pub starts_unix_ms: BTreeSet<UnixMillis>,
    /// Bundles in effect at the ends of the entries; 0 is none.
    pub bundles: BTreeSet<u64>,
    /// Start of the latest entry, and the bundle in effect at its end.
    pub latest_bundle: (UnixMillis, u64),
}

impl Slot {
    fn add(&mut self, rows: &Rows, row: usize, figures: &Figures, basis: &Basis, objective: f64) {
        let start = figures.start_unix_ms;
        self.first_unix_ms = if self.entries == 0 { start } else { self.first_unix_ms.min(start) };
        self.last_unix_ms = self.last_unix_ms.max(start + figures.duration_ms);
        self.entries += 1;
        self.sums.add(figures, rows.cold(row), rows.promotions(row), basis, objective);
        if figures.agent_start_unix_ms > UnixMillis::EPOCH && self.starts_unix_ms.len() < STARTS_MAX {
            self.starts_unix_ms.insert(figures.agent_start_unix_ms);
        }
        self.bundles.insert(figures.bundle_version);
        self.latest_bundle = self.latest_bundle.max((start, figures.bundle_version));
    }

    fn merge(&mut self, other: &Self) {
        if other.entries == 0 {
            return;
        }
        self.first_unix_ms = if self.entries == 0 { other.first_unix_ms } else { self.first_unix_ms.min(other.first_unix_ms) };
        self.last_unix_ms = self.last_unix_ms.max(other.last_unix_ms);
        self.entries += other.entries;
        self.sums.merge(&other.sums);
        let capacity = STARTS_MAX.saturating_sub(self.starts_unix_ms.len());
        self.starts_unix_ms.extend(other.starts_unix_ms.iter().take(capacity));
        self.bundles.extend(&other.bundles);
        self.latest_bundle = self.latest_bundle.max(other.latest_bundle);
    }
}

/// A guest of a pool that says something of a model, and has ended. Its host is the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolGuest {
    /// When it started.
    pub start_unix_ms: UnixMillis,
    /// When it ended.
    pub end_unix_ms: UnixMillis,
    /// The bundle with the model; 0 if it is none of those that are compared.
    pub bundle: u64,
    /// Whether the model had no prediction for it, although its customer has a history. `None`: unknown.
    pub unpredicted: Option<bool>,
    /// Whether it touched more of the pool memory that the model gave it than is tolerated. `None`: it got none.
    pub touched: Option<bool>,
    /// Whether its pool memory was moved to local memory.
    pub mitigated: bool,
}

impl Slot {
    /// Adds a guest of a pool as an entry.
    pub fn add_guest(&mut self, guest: &PoolGuest) {
        let PoolGuest { start_unix_ms, end_unix_ms, bundle, unpredicted, touched, mitigated } = *guest;
        let one = |whether: bool| f64::from(u8::from(whether));
        let sums = Sums {
            pool_guests: one(touched.is_some()),
            pool_touched: one(touched == Some(true)),
            pool_mitigated: one(touched.is_some() && mitigated),
            pool_asked: one(unpredicted.is_some()),
            pool_unpredicted: one(unpredicted == Some(true)),
            ..Sums::default()
        };
        let (bundles, latest_bundle) = (BTreeSet::from([bundle]), (start_unix_ms, bundle));
        let starts_unix_ms = BTreeSet::new();
        self.merge(&Self {
            entries: 1,
            sums,
            first_unix_ms: start_unix_ms,
            last_unix_ms: end_unix_ms,
            starts_unix_ms,
            bundles,
            latest_bundle,
        });
    }
}

/// Evidence by machine and slot.
pub type Machines = BTreeMap<MachineId, Vec<Slot>>;

/// Evidence of a fleet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evidence {
    /// By machine.
    pub machines: Machines,
    /// Number of files considered.
    pub files: usize,
    /// The first twenty files that could not be read, with the error.
    pub unreadable: Vec<String>,
    /// Number of all files that could not be read.
    pub unreadable_total: usize,
}

/// Reads evidence and keeps the sums of each file by path and size: files in a store do not change.
#[derive(Debug, Default)]
pub struct Reader {
    read: BTreeMap<Object, std::result::Result<Machines, String>>,
}

impl Reader {
    /// Reads the evidence in a store. Use one reader with one `selection` only.
    ///
    /// # Errors
    /// [`Error::Store`] if the store cannot be listed. Files that cannot be read are in [`Evidence::unreadable`].
    pub fn read(&mut self, store: &Store, selection: &Selection) -> Result<Evidence> {
        let objects: Vec<Object> = store.list(trace::EXTENSION)?.into_iter().filter(|object| may_hold(&object.path, selection)).collect();
        let new: Vec<&Object> = objects.iter().filter(|object| !self.read.contains_key(object)).collect();
        let found = read_all(store, &new, selection);
        self.read.extend(new.into_iter().cloned().zip(found));
        let mut evidence = Evidence { files: objects.len(), ..Evidence::default() };
        for object in &objects {
            match self.read.get(object) {
                Some(Ok(machines)) => merge(&mut evidence.machines, machines, selection.slots),
                Some(Err(error)) => evidence.add_unreadable(error.clone()),
                None => {}
            }
        }
        Ok(evidence)
    }
}

impl Evidence {
    /// Adds a file that could not be read.
    pub fn add_unreadable(&mut self, error: String) {
        self.unreadable_total += 1;
        if self.unreadable.len() < UNREADABLE_MAX {
            self.unreadable.push(error);
        }
    }
}

fn merge(into: &mut Machines, from: &Machines, slots: usize) {
    for (id, found) in from {
        let known = into.entry(id.clone()).or_insert_with(|| vec![Slot::default(); slots]);
        known.iter_mut().zip(found).for_each(|(known, found)| known.merge(found));
    }
}

/// Returns whether a file can contain selected entries, by the date of its partition, which is that of the entries'
/// starts.
fn may_hold(path: &str, selection: &Selection) -> bool {
    let date = path.split('/').find_map(|part| part.strip_prefix("date="));
    let (first, last) = (calendar::date(selection.from_unix_ms), calendar::date(selection.until_unix_ms));
    // Dates after the year 9999 are not sorted as text: they exclude no file.
    date.is_none_or(|date| {
        date.len() != 10 || ((first.len() != 10 || date >= first.as_str()) && (last.len() != 10 || date <= last.as_str()))
    })
}

/// Reads files on all cores; returns the results in the order of `objects`.
fn read_all(store: &Store, objects: &[&Object], selection: &Selection) -> Vec<std::result::Result<Machines, String>> {
    let read = |object: &&Object| read(store, &object.path, selection).map_err(|error| format!("{}: {error}", object.path));
    objects.par_iter().with_max_len(1).map(read).collect()
}

fn read(store: &Store, path: &str, selection: &Selection) -> Result<Machines> {
    let file = store.fetch(path)?;
    let Kind::Trace(trace) = check::open(file.path())? else {
        return Err(Error::Evidence {
            what: "a compacted file, which lacks the columns that groups are selected by; use the traces it was made from".to_owned(),
        });
    };
    sums(&trace, selection)
}

/// Sums the selected entries of a file.
fn sums(trace: &Trace, selection: &Selection) -> Result<Machines> {
    let mut machines = Machines::new();
    for rows in trace.rows() {
        let rows = rows?;
        for run in &rows.runs {
            let machine = MachineId { cluster: run.id.cluster.clone(), machine: run.id.machine.clone() };
            for row in run.rows.clone() {
                let figures = rows.figures(row);
                if !(selection.from_unix_ms..selection.until_unix_ms).contains(&figures.start_unix_ms) {
                    continue;
                }
                let labels = rows.labels(row);
                let entry = EntryRef { id: &run.id, class: &labels.class, figures: &figures };
                let Some(slot) = (selection.slot)(&entry).filter(|&slot| slot < selection.slots) else { continue };
                if !machines.contains_key(&machine) {
                    machines.insert(machine.clone(), vec![Slot::default(); selection.slots]);
                }
                if let Some(slots) = machines.get_mut(&machine) {
                    slots[slot].add(&rows, row, &figures, trace.basis(), selection.objective);
                }
            }
        }
    }
    Ok(machines)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use policy::thresholds::Thresholds;
    use trace::{Entry, Labels, Writer};
    use units::{Bytes, Millis};

    use super::*;

    const DAY: UnixMillis = UnixMillis(1_795_132_800_000);
    const HOUR: Millis = Millis::hours(1);

    fn entry(machine: &str, job: &str, start_unix_ms: UnixMillis, bundle_version: u64, agent: u64) -> Entry {
        let figures = Figures {
            start_unix_ms,
            duration_ms: Millis(300_000),
            periods: 5,
            window_ms: Millis(300_000),
            working_set_bytes: Bytes(10 * 4096),
            memory_bytes: Bytes(20 * 4096),
            bundle_version,
            agent_start_unix_ms: UnixMillis(agent),
            ..Figures::default()
        };
        let labels = Labels { class: "standard".to_owned(), ..Labels::default() };
        Entry { id: JobId::new("c", machine, job, "boot", 1), labels, figures, cold_pages: vec![10, 5, 5], promotions_pages: vec![1, 2, 3] }
    }

    fn write(dir: &Path, path: &str, entries: &[Entry]) {
        let basis = Basis { thresholds: Thresholds::log_spaced(2).unwrap(), scan_period_ms: Millis::seconds(120), page_bytes: Bytes(4096) };
        let mut writer = Writer::create(&dir.join(path), basis).unwrap();
        entries.iter().for_each(|entry| writer.push(entry).unwrap());
        writer.finish().unwrap();
    }

    fn by_time(entry: &EntryRef) -> Option<usize> {
        Some(usize::from(entry.figures.start_unix_ms >= DAY + HOUR))
    }

    fn selection() -> Selection<'static> {
        Selection { slots: 2, slot: &by_time, from_unix_ms: DAY, until_unix_ms: DAY + Millis::hours(3), objective: 0.002 }
    }

    #[test]
    fn entries_are_summed_by_slot_and_files_read_once() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().to_str().unwrap()).unwrap();
        let mut reader = Reader::default();
        write(
            dir.path(),
            "cluster=c/date=2026-11-20/machine=m/1.parquet",
            &[entry("m", "/a", DAY, 0, 9), entry("m", "/a", DAY + HOUR, 0, 9), entry("m", "/b", DAY + HOUR, 7, 10)],
        );
        write(dir.path(), "cluster=c/date=2026-11-19/machine=m/0.parquet", &[entry("m", "/a", DAY - HOUR, 0, 9)]);
        let first = reader.read(&store, &selection()).unwrap();
        assert_eq!((first.files, first.unreadable_total), (1, 0), "the file of the day before is skipped");
        // Files that were read before are not read again.
        std::fs::write(dir.path().join("cluster=c/date=2026-11-20/machine=m/2.parquet"), "rubbish").unwrap();
        write(dir.path(), "cluster=c/date=2026-11-20/machine=n/1.parquet", &[entry("n", "/a", DAY + Millis::hours(3), 0, 9)]);
        write(dir.path(), "cluster=c/date=2026-11-20/machine=m/3.parquet", &[entry("m", "/a", DAY + Millis::hours(2), 8, 9)]);
        let second = reader.read(&store, &selection()).unwrap();
        assert_eq!((second.files, second.unreadable_total, second.machines.len()), (4, 1, 1), "{second:?}");
        assert!(second.unreadable[0].contains("2.parquet"), "{second:?}");
        let slots = second.machines.values().next().unwrap();
        assert_eq!((slots[0].entries, slots[1].entries), (1, 3));
        assert_eq!((slots[1].first_unix_ms, slots[1].last_unix_ms), (DAY + HOUR, DAY + Millis::hours(2) + Millis(300_000)));
        assert_eq!(slots[1].starts_unix_ms, BTreeSet::from([UnixMillis(9), UnixMillis(10)]));
        assert_eq!((&slots[1].bundles, slots[1].latest_bundle.1), (&BTreeSet::from([0, 7, 8]), 8));
        assert_eq!(Reader::default().read(&store, &selection()).unwrap(), second, "a new reader finds the same");
    }
}

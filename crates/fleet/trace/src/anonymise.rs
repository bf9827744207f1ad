//! Traces without names, to be given to others.
//!
//! What names a cluster, machine or job is replaced by random numbers, which are not derived from it: there is no key that could
//! be found or lost. What many jobs have in common is kept, if it is many jobs ([`Anonymiser::new`]); times keep the hour and the
//! weekday, and lose the date.
//!
//! Memory sizes and ages are kept as they are, because they are what a trace is for. Who knows what a job's memory was at some time can
//! find the job. [`COLUMNS`] says of each column what remains of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;

use units::{Millis, UnixMillis};

use crate::entry::{Entry, JobId};

/// Monday, 1 January 2024, UTC: traces begin in its week.
const BEGINS: UnixMillis = UnixMillis(1_704_067_200_000);
const WEEK: u64 = 7 * 24 * 3_600 * 1_000;

/// The class of jobs whose own has too few.
const OTHER: &str = "other";

/// The columns of words and times, and what remains of each.
pub const COLUMNS: [(&str, &str); 9] = [
    ("cluster", "a random number"),
    ("machine", "a random number"),
    ("job", "a random number, another one for the same path on another machine"),
    ("job_key", "a random number"),
    ("class", "the class, if it has enough jobs; \"other\" if not"),
    ("policy, tracker, decision", "kept: words of the program"),
    ("start_unix_ms, agent_start_unix_ms", "hour and weekday; whole weeks are subtracted"),
    ("bundle_version", "0"),
    ("all other figures, histograms", "kept: whoever knows a job's memory at some time can find it"),
];

/// What the first pass over a trace counts.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    /// By path and machine: a job that was restarted counts once.
    jobs_of_class: BTreeMap<String, BTreeSet<(String, String, String)>>,
    first: Option<UnixMillis>,
}

impl Counted {
    /// Counts an entry.
    pub fn count(&mut self, entry: &Entry) {
        let jobs = self.jobs_of_class.entry(entry.labels.class.clone()).or_default();
        let JobId { cluster, machine, job, .. } = entry.id.clone();
        jobs.insert((cluster, machine, job));
        let start = entry.figures.start_unix_ms;
        self.first = Some(self.first.map_or(start, |first| first.min(start)));
    }
}

/// Random numbers instead of names of one kind.
#[derive(Debug)]
struct Numbers<K> {
    by_name: HashMap<K, u64>,
    given: BTreeSet<u64>,
}

impl<K: Eq + Hash> Numbers<K> {
    fn new() -> Self {
        Self { by_name: HashMap::new(), given: BTreeSet::new() }
    }

    /// The number of a name: always the same one, and of no other name.
    fn of(&mut self, name: K, random: &mut impl FnMut() -> u64) -> u64 {
        let Self { by_name, given } = self;
        *by_name.entry(name).or_insert_with(|| {
            loop {
                // 40 bits are ten digits; the sign bit of a column is not used.
                let number = random() >> 24;
                if given.insert(number) {
                    return number;
                }
            }
        })
    }
}

/// Replaces what names a job.
#[derive(Debug)]
pub struct Anonymiser<R> {
    random: R,
    clusters: Numbers<String>,
    machines: Numbers<(String, String)>,
    jobs: Numbers<(String, String, String)>,
    keys: Numbers<JobId>,
    classes: BTreeSet<String>,
    back: Millis,
}

impl<R: FnMut() -> u64> Anonymiser<R> {
    /// An anonymiser for a trace that was counted. A class is kept if at least `jobs_min` jobs have it. `random` returns numbers that
    /// cannot be predicted.
    pub fn new(counted: &Counted, jobs_min: usize, random: R) -> Self {
        let weeks = counted.first.map_or(0, |first| first.since(BEGINS).0 / WEEK);
        let large = counted.jobs_of_class.iter().filter(|(_, jobs)| jobs.len() >= jobs_min);
        Self {
            random,
            clusters: Numbers::new(),
            machines: Numbers::new(),
            jobs: Numbers::new(),
            keys: Numbers::new(),
            classes: large.map(|(class, _)| class.clone()).collect(),
            back: Millis(weeks * WEEK),
        }
    }

    /// Returns the entry without names.
    pub fn entry(&mut self, mut entry: Entry) -> Entry {
        let JobId { cluster, machine, job, .. } = entry.id.clone();
        let key = self.keys.of(entry.id.clone(), &mut self.random);
        let job = self.jobs.of((cluster.clone(), machine.clone(), job), &mut self.random);
        let machine = self.machines.of((cluster.clone(), machine), &mut self.random);
        let cluster = self.clusters.of(cluster, &mut self.random);
        entry.id = JobId {
            cluster: format!("cluster-{cluster:010x}"),
            machine: format!("machine-{machine:010x}"),
            job: format!("/job-{job:010x}"),
            job_key: i64::try_from(key).unwrap_or(i64::MAX),
        };
        if !self.classes.contains(&entry.labels.class) {
            OTHER.clone_into(&mut entry.labels.class);
        }
        let figures = &mut entry.figures;
        figures.start_unix_ms = figures.start_unix_ms - self.back;
        if figures.agent_start_unix_ms != UnixMillis::EPOCH {
            figures.agent_start_unix_ms = figures.agent_start_unix_ms - self.back;
        }
        figures.bundle_version = 0;
        entry
    }

    /// The classes that are kept.
    pub fn classes(&self) -> impl Iterator<Item = &str> {
        self.classes.iter().map(String::as_str)
    }

    /// The weeks by which times are earlier.
    pub fn weeks_back(&self) -> u64 {
        self.back.0 / WEEK
    }

    /// Returns the problem if words of an anonymous entry could name something: each is a random number with its prefix, a class that
    /// is kept, or a word of the program.
    pub fn check(&self, entry: &Entry) -> Option<String> {
        let numbered = |word: &str, prefix: &str| {
            let digits = word.strip_prefix(prefix).unwrap_or_default();
            digits.len() == 10 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
        };
        let JobId { cluster, machine, job, .. } = &entry.id;
        for (word, prefix) in [(cluster, "cluster-"), (machine, "machine-"), (job, "/job-")] {
            if !numbered(word, prefix) {
                return Some(format!("{word:?} is not {prefix} and a number"));
            }
        }
        let labels = &entry.labels;
        let class = &labels.class;
        if class != OTHER && !self.classes.contains(class) {
            return Some(format!("class {class:?} has too few jobs"));
        }
        let words = [&labels.policy, &labels.tracker, &labels.decision];
        let program = |word: &&&String| !word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        words.iter().find(program).map(|word| format!("{word:?} is no word of the program"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{DAY, entries};

    fn anonymised(from: &[Entry], jobs_min: usize) -> (Vec<Entry>, Vec<Option<String>>) {
        let mut counted = Counted::default();
        from.iter().for_each(|entry| counted.count(entry));
        let mut random = fastrand::Rng::with_seed(1);
        let mut anonymiser = Anonymiser::new(&counted, jobs_min, move || random.u64(..));
        let made: Vec<_> = from.iter().map(|entry| anonymiser.entry(entry.clone())).collect();
        let problems = made.iter().map(|entry| anonymiser.check(entry)).collect();
        (made, problems)
    }

    #[test]
    fn names_are_gone_and_figures_are_kept() {
        let from: Vec<_> = ["alpha", "beta"].iter().flat_map(|machine| entries(machine, 3, 4, 33)).collect();
        let (made, problems) = anonymised(&from, 6);
        assert!(problems.iter().all(Option::is_none), "{problems:?}");
        let text = serde_json::to_string(&made).unwrap();
        for name in ["alpha", "beta", "job-00"] {
            assert!(!text.contains(name), "{name}");
        }
        let distinct = |of: fn(&Entry) -> String| made.iter().map(of).collect::<BTreeSet<_>>().len();
        assert_eq!((distinct(|one| one.id.cluster.clone()), distinct(|one| one.id.machine.clone())), (1, 2));
        assert_eq!(distinct(|one| one.id.job.clone()), 6, "the same path on two machines has two numbers");
        for (one, other) in from.iter().zip(&made) {
            assert_eq!(
                (&one.cold_pages, &one.promotions_pages, one.labels.clone()),
                (&other.cold_pages, &other.promotions_pages, other.labels.clone())
            );
            assert_eq!(one.figures.memory_bytes, other.figures.memory_bytes);
            let back = one.figures.start_unix_ms.since(other.figures.start_unix_ms);
            assert_eq!((back.0 % WEEK, back.0 > 0), (0, true));
            assert_eq!(other.figures.bundle_version, 0);
        }
        assert!(made[0].figures.start_unix_ms.since(BEGINS).0 < WEEK && DAY > BEGINS);
    }

    #[test]
    fn a_class_of_few_jobs_is_other() {
        let mut from = entries("alpha", 4, 2, 33);
        from.iter_mut().filter(|entry| entry.id.job == "/job-001").for_each(|entry| entry.labels.class = "merger-talks".to_owned());
        // It was restarted, which makes it no second job.
        let restarts = from.iter_mut().filter(|entry| entry.id.job == "/job-001").skip(1);
        restarts.for_each(|entry| entry.id = JobId::new("c", "alpha", "/job-001", "boot", 99));
        let (made, problems) = anonymised(&from, 2);
        let classes: BTreeSet<_> = made.iter().map(|entry| entry.labels.class.as_str()).collect();
        assert_eq!(classes, BTreeSet::from(["other", "standard"]));
        assert!(problems.iter().all(Option::is_none), "{problems:?}");
    }

    #[test]
    fn what_could_name_something_is_found() {
        let from = entries("alpha", 2, 1, 33);
        let mut counted = Counted::default();
        from.iter().for_each(|entry| counted.count(entry));
        let mut anonymiser = Anonymiser::new(&counted, 1, || 77 << 24);
        let good = anonymiser.entry(from[0].clone());
        assert_eq!(anonymiser.check(&good), None);
        let check = |change: &dyn Fn(&mut Entry), want: &str| {
            let mut bad = good.clone();
            change(&mut bad);
            assert!(anonymiser.check(&bad).is_some_and(|problem| problem.contains(want)), "{want}");
        };
        check(&|entry| "alpha".clone_into(&mut entry.id.machine), "alpha");
        check(&|entry| "/job-0000000zzz".clone_into(&mut entry.id.job), "zzz");
        check(&|entry| "payroll".clone_into(&mut entry.labels.class), "payroll");
        check(&|entry| "cold_age /payroll".clone_into(&mut entry.labels.decision), "payroll");
    }
}

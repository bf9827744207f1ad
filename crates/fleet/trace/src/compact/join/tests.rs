use super::*;
use crate::calendar::DAY_MS;
use crate::entry::Entry;
use crate::testing::{DAY, basis, entries};
use units::Millis;

/// Three machines over five days; a job begins on the third day, another one changes its tracker in the middle of days.
fn fleet() -> Vec<Entry> {
    let mut all: Vec<Entry> = ["a", "b", "c"].iter().flat_map(|machine| entries(machine, 3, 5 * 288, 5)).collect();
    all.retain(|entry| entry.id.machine != "b" || entry.id.job != "/job-001" || entry.figures.start_unix_ms >= DAY + Millis::days(2));
    for entry in all.iter_mut().filter(|entry| entry.id.job == "/job-002" && entry.figures.start_unix_ms.0 % DAY_MS > DAY_MS / 3) {
        entry.labels.tracker = "lru_gen".to_owned();
    }
    all
}

fn write(path: &Path, entries: &[Entry]) -> PathBuf {
    let mut writer = crate::Writer::create(path, basis(4)).unwrap();
    entries.iter().for_each(|entry| writer.push(entry).unwrap());
    writer.finish().unwrap();
    path.to_owned()
}

fn compacted(path: &Path, entries: &[Entry]) -> PathBuf {
    let mut compactor = Compactor::create(path, basis(4)).unwrap();
    entries.iter().for_each(|entry| compactor.push(entry.clone()).unwrap());
    compactor.finish().unwrap();
    path.to_owned()
}

/// The entries of the days in `days`, sorted.
fn of_days(all: &[Entry], days: Range<u64>) -> Vec<Entry> {
    let day = |entry: &Entry| entry.figures.start_unix_ms.since(DAY).0 / DAY_MS;
    all.iter().filter(|entry| days.contains(&day(entry))).cloned().collect()
}

fn extend_quietly(compacted: &[PathBuf], traces: &[PathBuf], out: &Path) -> Result<Compacted> {
    let machines = if traces.is_empty() { Vec::new() } else { vec![traces.to_vec()] };
    extend(compacted, &machines, out, NonZero::new(2).unwrap(), &mut |_| ())
}

#[test]
fn a_file_extended_by_days_is_that_of_all_traces_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let all = fleet();
    let expected = std::fs::read(compacted(&at("once"), &all)).unwrap();
    let mut random = fastrand::Rng::with_seed(5);
    for round in 0..12 {
        // The days are cut at random, and the parts come in a random order.
        let mut cuts: Vec<u64> = (1..5).filter(|_| random.bool()).collect();
        cuts.insert(0, 0);
        cuts.push(5);
        let mut parts: Vec<Range<u64>> = cuts.windows(2).map(|pair| pair[0]..pair[1]).collect();
        random.shuffle(&mut parts);
        let (first, rest) = parts.split_first().unwrap();
        let out = compacted(&at("extended"), &of_days(&all, first.clone()));
        for part in rest {
            extend_quietly(std::slice::from_ref(&out), &[write(&at("added"), &of_days(&all, part.clone()))], &out).unwrap();
        }
        assert!(std::fs::read(&out).unwrap() == expected, "round {round}: {parts:?}");
        // The same parts, each compacted by itself.
        let each = parts.iter().enumerate().map(|(at_part, part)| compacted(&at(&format!("part-{at_part}")), &of_days(&all, part.clone())));
        let joined = extend_quietly(&each.collect::<Vec<_>>(), &[], &at("joined")).unwrap();
        assert_eq!((joined.file.entries, joined.dropped), (all.len() as u64, 0));
        assert!(std::fs::read(at("joined")).unwrap() == expected, "round {round}: {parts:?}");
    }
}

#[test]
fn an_extension_that_is_repeated_counts_once() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let all = fleet();
    let (out, last) = (compacted(&at("out"), &of_days(&all, 0..4)), write(&at("last"), &of_days(&all, 4..5)));
    let first = extend_quietly(std::slice::from_ref(&out), std::slice::from_ref(&last), &out).unwrap();
    let bytes = std::fs::read(&out).unwrap();
    let again = extend_quietly(std::slice::from_ref(&out), &[last], &out).unwrap();
    assert_eq!((first.dropped, again.dropped), (0, of_days(&all, 4..5).len() as u64));
    assert_eq!(again.file, first.file);
    assert!(std::fs::read(&out).unwrap() == bytes);
}

#[test]
fn what_cannot_be_joined_is_refused_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let all = fleet();
    let out = compacted(&at("out"), &of_days(&all, 0..3));
    let bytes = std::fs::read(&out).unwrap();
    let refused = |compacted: &[PathBuf], traces: &[PathBuf], words: &[&str]| {
        let error = extend_quietly(compacted, traces, &out).unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
        assert!(std::fs::read(&out).unwrap() == bytes);
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(left.iter().all(|name| !name.to_string_lossy().starts_with('.')), "{left:?}");
    };
    // The third day is in the file, and goes on in the traces.
    let mut more = of_days(&all, 2..4);
    more.retain(|entry| entry.figures.start_unix_ms.since(DAY).0 > 2 * DAY_MS + DAY_MS / 2);
    let more = write(&at("more"), &more);
    refused(std::slice::from_ref(&out), &[more], &["/job-000 on a on 2025-11-22", "out", "a day is compacted once"]);
    let mut other = Compactor::create(&at("other"), basis(5)).unwrap();
    entries("d", 1, 3, 6).into_iter().for_each(|entry| other.push(entry).unwrap());
    other.finish().unwrap();
    refused(&[out.clone(), at("other")], &[], &["5 thresholds", "4 thresholds"]);
    let old = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compact-v3.parquet");
    refused(&[old], &[], &["compacted in version 3", "compact its traces again"]);
    refused(&vec![out.clone(); FILES_MAX + 1], &[], &["more than 400 compacted files"]);
    refused(&[], &[], &["no files to compact"]);
    let mut damaged = bytes.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    std::fs::write(at("damaged"), damaged).unwrap();
    refused(&[at("damaged")], &[], &["checksum", "damaged"]);
}

#[test]
fn the_file_that_is_extended_stays_until_the_new_one_is_complete() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let all = fleet();
    let (out, last) = (compacted(&at("out"), &of_days(&all, 0..4)), write(&at("last"), &of_days(&all, 4..5)));
    let (before, mut seen) = (std::fs::read(&out).unwrap(), 0);
    let mut progress = |_| {
        seen += 1;
        assert!(std::fs::read(&out).unwrap() == before);
    };
    let compacted = std::slice::from_ref(&out);
    extend(compacted, &[vec![last]], &out, NonZero::new(1).unwrap(), &mut progress).unwrap();
    assert!(seen > 30, "{seen}");
    assert!(std::fs::read(&out).unwrap() != before);
}

#[test]
fn jobs_between_two_are_read_from_the_row_groups_that_may_have_them() {
    let id = |job: u64| JobId { job: job.to_string(), ..JobId::default() };
    let firsts = [id(2), id(4), id(6)];
    let check = |from: Option<u64>, until: Option<u64>, expected: Range<usize>| {
        assert_eq!(Jobs { from: from.map(id), until: until.map(id) }.groups(&firsts), expected, "{from:?} {until:?}");
    };
    check(None, None, 0..3);
    check(Some(1), Some(2), 0..0);
    check(Some(1), Some(3), 0..1);
    check(Some(3), Some(4), 0..1);
    check(Some(4), Some(5), 1..2);
    check(Some(5), None, 1..3);
    check(Some(7), Some(9), 2..3);
    check(Some(7), Some(3), 1..1);
    // The rows of both parts are those of the whole.
    let dir = tempfile::tempdir().unwrap();
    let path = compacted(&dir.path().join("all"), &fleet());
    let file = CompactedTrace::open(&path).unwrap();
    let firsts = file.first_jobs().unwrap();
    let read = |jobs: Jobs| {
        let mut joined = Joined::new([(&file, jobs.groups(&firsts))], jobs).unwrap();
        std::iter::from_fn(|| joined.next_day().unwrap()).flatten().collect::<Vec<_>>()
    };
    let whole = read(Jobs::default());
    let middle = &whole[whole.len() / 2].id;
    let parts = [Jobs { until: Some(middle.clone()), ..Jobs::default() }, Jobs { from: Some(middle.clone()), until: None }].map(read);
    assert!(!parts[0].is_empty() && !parts[1].is_empty());
    assert_eq!(parts.concat(), whole);
}

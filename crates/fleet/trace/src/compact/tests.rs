use units::Millis;

use super::*;
use crate::testing::{DAY, basis, entries};

/// Returns the entries of two jobs over three days; one number does not fit into 32 bits.
fn given(buckets: usize) -> Vec<Entry> {
    let mut given = entries("m", 2, 700, buckets);
    given[800].cold_pages[1] = 5 << 33;
    given
}

fn compact(path: &Path, thresholds: usize) -> Vec<Entry> {
    let given = given(thresholds + 1);
    let mut compactor = Compactor::create(path, basis(thresholds)).unwrap();
    given.iter().for_each(|entry| compactor.push(entry.clone()).unwrap());
    let written = compactor.finish().unwrap();
    assert_eq!((written.entries, written.jobs), (1_400, 2));
    given
}

#[test]
fn compacting_keeps_the_numbers_that_a_replay_reads() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("compacted.parquet");
    let check = |thresholds: usize| {
        let given = compact(&path, thresholds);
        let file = CompactedTrace::open(&path).unwrap();
        assert_eq!((file.basis(), file.groups()), (&basis(thresholds), 1));
        let days: Vec<JobDay> = file.group(0).unwrap().collect::<Result<_>>().unwrap();
        let shown: Vec<_> = days.iter().map(|day| (&*day.id.job, day.day_unix_ms, day.entries, day.page_shift)).collect();
        // 5 << 33 has 36 bits; it is in the first day of the second job.
        let day = |at: u64| DAY + Millis::days(at);
        let expected = [
            ("/job-000", day(0), 288, 0),
            ("/job-000", day(1), 288, 0),
            ("/job-000", day(2), 124, 0),
            ("/job-001", day(0), 288, 4),
            ("/job-001", day(1), 288, 0),
            ("/job-001", day(2), 124, 0),
        ];
        assert_eq!(shown, expected);
        let mut unpacked = DayEntries::default();
        let mut rest = given.iter();
        for day in &days {
            day.unpack(file.path(), file.basis(), &mut unpacked).unwrap();
            assert_eq!(unpacked.len(), day.entries);
            for (at, entry) in rest.by_ref().take(day.entries).enumerate() {
                let (cold, promotions) = unpacked.sums(at).split_at(thresholds + 1);
                let sums = |counts: &[u64]| -> Vec<u64> {
                    (0..counts.len()).map(|bucket| counts[bucket..].iter().sum::<u64>() >> day.page_shift).collect()
                };
                let found = |sums: &[u32]| sums.iter().copied().map(u64::from).collect::<Vec<_>>();
                assert_eq!((found(cold), found(promotions)), (sums(&entry.cold_pages), sums(&entry.promotions_pages)));
                let number = |number| u64::from(unpacked.number(at, number));
                let figures = &entry.figures;
                assert_eq!(day.day_unix_ms + Millis(number(Number::StartMs)), figures.start_unix_ms);
                assert_eq!((Millis(number(Number::WindowMs)), Millis(number(Number::JobAgeMs))), (figures.window_ms, figures.job_age_ms));
                assert_eq!(number(Number::MemoryPages), (figures.memory_bytes.0 / 4096) >> day.page_shift);
                assert_eq!(number(Number::IoStallUs), figures.io_stall_us, "the last number");
            }
        }
        assert_eq!(rest.next(), None);
    };
    check(32);
    check(2);
    check(64);
}

#[test]
fn pages_have_the_size_that_is_read_at_a_time() {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("compacted.parquet");
    let mut compactor = Compactor::create(&path, basis(32)).unwrap();
    let entries = entries("m", 30, 288, 33);
    let one = JobDay::pack(&entries[..288], DAY, &basis(32)).unwrap().tiles.len();
    entries.into_iter().for_each(|entry| compactor.push(entry).unwrap());
    compactor.finish().unwrap();
    let reader = SerializedFileReader::new(std::fs::File::open(&path).unwrap()).unwrap();
    let group = reader.get_row_group(0).unwrap();
    let sizes: Vec<usize> = group.get_column_page_reader(11).unwrap().map(|page| page.unwrap().buffer().len()).collect();
    assert!(sizes.len() > 3, "{sizes:?}");
    // The size of a page is checked once per that many days.
    let most = write::PAGE_BYTES + write::PAGE_CHECK_DAYS * (one + one / 10);
    assert!(sizes.iter().all(|&size| size <= most), "{sizes:?} of at most {most}");
}

#[test]
fn counters_of_version_1_become_suffix_sums_or_an_error() {
    let check = |counts: &[u32], sums: Option<&[u32]>| {
        let mut found = counts.to_vec();
        assert_eq!(sum_up(&mut found).map(|()| &found[..]), sums);
    };
    check(&[1, 2, 3], Some(&[6, 5, 3]));
    check(&[0, 1, u32::MAX - 1], Some(&[u32::MAX, u32::MAX, u32::MAX - 1]));
    check(&[1, 1, u32::MAX - 1], None);
}

#[test]
fn damaged_bytes_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("compacted.parquet");
    compact(&path, 2);
    let file = CompactedTrace::open(&path).unwrap();
    let mut day = file.group(0).unwrap().next().unwrap().unwrap();
    let unpack = |day: &JobDay| day.unpack(file.path(), file.basis(), &mut DayEntries::default()).map_err(|error| error.to_string());
    assert_eq!(unpack(&day), Ok(()));
    for entries in [1_000, usize::MAX] {
        day.entries = entries;
        assert!(unpack(&day).unwrap_err().contains("not as many entries"));
    }
    day.checksum ^= 1;
    let error = unpack(&day).unwrap_err();
    assert!(error.contains("checksum") && error.contains("2025-11-20") && error.contains("compacted.parquet"), "{error}");
    let whole = std::fs::read(&path).unwrap();
    for cut in (0..whole.len()).step_by(997) {
        std::fs::write(&path, &whole[..cut]).unwrap();
        assert!(CompactedTrace::open(&path).is_err(), "cut at {cut}");
    }
    assert!(crate::Trace::open(&path).is_err());
}

fn write_trace(path: &Path, thresholds: usize, entries: &[Entry]) -> PathBuf {
    let mut writer = crate::Writer::create(path, basis(thresholds)).unwrap();
    entries.iter().for_each(|entry| writer.push(entry).unwrap());
    writer.finish().unwrap();
    path.to_owned()
}

#[test]
fn columns_on_any_number_of_threads_compact_to_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let (expected_path, path) = (dir.path().join("expected"), dir.path().join("found"));
    let check = |entries: &[Entry], machines: &[Vec<PathBuf>], duplicates: u64, what: &str| {
        let mut compactor = Compactor::create(&expected_path, basis(4)).unwrap();
        entries.iter().for_each(|entry| compactor.push(entry.clone()).unwrap());
        let expected = compactor.finish().unwrap();
        for threads in [1, 2, 5] {
            let mut last = 0;
            let mut progress = |entries: u64| last = entries;
            let found = super::compact(machines, &path, std::num::NonZero::new(threads).unwrap(), &mut progress).unwrap();
            assert_eq!((found.file, found.dropped), (expected, duplicates), "{what}, {threads} threads");
            assert!(std::fs::read(&path).unwrap() == std::fs::read(&expected_path).unwrap(), "{what}, {threads} threads");
            assert_eq!(last, expected.entries);
        }
    };
    // A machine with files of 100 entries' time, one with a file, and one whose tracker changes.
    let mut changing = entries("c", 3, 700, 5);
    changing.iter_mut().enumerate().filter(|(at, _)| at % 300 > 120).for_each(|(_, entry)| entry.labels.tracker = "damon".to_owned());
    let machines = [entries("a", 5, 700, 5), entries("b", 2, 900, 5), changing];
    let whole: Vec<Entry> = machines.iter().flatten().cloned().collect();
    let part_of = |machine: usize, part: u64| {
        let in_part = |entry: &&Entry| entry.figures.start_unix_ms.since(DAY).0 / 30_000_000 == part;
        machines[machine].iter().filter(in_part).cloned().collect::<Vec<_>>()
    };
    let parts = |machine: usize| -> Vec<PathBuf> {
        (0..7).map(|part| write_trace(&dir.path().join(format!("{machine}-{part}")), 4, &part_of(machine, part))).collect()
    };
    let single = write_trace(&dir.path().join("single"), 4, &machines[1]);
    check(&whole, &[parts(2), vec![single.clone()], parts(0)], 0, "columns");
    // Files in another order, and a file twice, are merged.
    let mut mixed = parts(0);
    mixed.reverse();
    mixed.push(write_trace(&dir.path().join("twice"), 4, &part_of(0, 3)));
    check(&whole, &[mixed, parts(2), vec![single.clone()]], part_of(0, 3).len() as u64, "merged");
    // Machines that are not apart.
    let mut all = parts(0);
    let last = all.pop().unwrap();
    let rest = [parts(2), vec![last, single]].concat();
    check(&whole, &[all, rest], 0, "mixed");
    // Counts beyond 31 bits, and beyond 32.
    let mut large = machines[0].clone();
    (large[900].cold_pages[1], large[1_000].cold_pages[1]) = (1 << 31, 5 << 33);
    large[2_000].figures.memory_bytes = Bytes(1 << 50);
    let file = write_trace(&dir.path().join("large"), 4, &large);
    check(&large, &[vec![file]], 0, "large");
}

use std::num::NonZero;
use std::time::Duration;

use policy::thresholds::Thresholds;
use proptest::prelude::*;
use proptest::sample::Index;
use twox_hash::XxHash64;
use units::Age;

use super::*;
use crate::fleet::{Account, Label, Named, Source, all, run};
use crate::generate::Fleet;
use crate::resume::{self, Counts, Keeper, SavedAccount};
use crate::series::Series;

/// A fleet of four machines over one day.
fn fleet() -> Fleet {
    Fleet::new(3, 40, 1, Thresholds::log_spaced(32).unwrap())
}

fn setting(fleet: &Fleet) -> Setting {
    let grid = Grid::new(vec![RatioPpm(900_000), RatioPpm(990_000)], vec![Millis::ZERO, Millis(3_600_000)]).unwrap();
    let setup = |rate, age| Setup { minimum_cold_age: Age(age), ..Setup::new(RatioPpm(rate)) };
    Setting::new(fleet.basis(), true, &grid, vec![setup(2_000, 1), setup(5_000, 2)], By::Class, true)
}

/// Counts some pieces of the fleet.
fn count(fleet: &Fleet, setting: &Setting, pieces: &[usize]) -> Partial {
    let grid = setting.grid().unwrap();
    let open = || (Some(Survey::default()), Model::new(&grid, &setting.setups, fleet.thresholds(), setting.by).unwrap());
    let Ok((survey, model)) = run(fleet, pieces, NonZero::<usize>::MIN, open, |_| {});
    let mut coverage = Coverage::default();
    pieces.iter().for_each(|&piece| coverage.add(&fleet.part(piece)).unwrap());
    Partial::of(setting.clone(), coverage, survey, model)
}

fn encoded_and_decoded(partial: &Partial) -> Partial {
    let path = Path::new("x.tally");
    Partial::decode(&partial.encode(path).unwrap(), path).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn parts_add_up_to_the_same_bits(workers in proptest::collection::vec(0usize..4, 4), order in any::<[Index; 4]>()) {
        let fleet = fleet();
        let setting = setting(&fleet);
        let of = |worker| -> Vec<usize> { all(&fleet).into_iter().filter(|&piece| workers[piece] == worker).collect() };
        let mut parts: Vec<_> = (0..4).map(|worker| encoded_and_decoded(&count(&fleet, &setting, &of(worker)))).collect();
        let mut sum = Partial::empty(setting.clone());
        for at in order {
            sum.merge(parts.remove(at.index(parts.len()))).unwrap();
        }
        let whole = count(&fleet, &setting, &all(&fleet));
        prop_assert_eq!(&sum, &whole);
        prop_assert_eq!(sum.encode(Path::new("")).unwrap(), whole.encode(Path::new("")).unwrap());
        prop_assert_eq!(sum.coverage.missing(), 0);
    }
}

#[test]
fn partials_of_other_parameters_or_counted_parts_are_rejected() {
    let fleet = fleet();
    let part = |change: fn(&mut Setting), pieces: &[usize]| {
        let mut setting = setting(&fleet);
        change(&mut setting);
        Partial::empty(setting.clone()).merge(count(&fleet, &setting, pieces)).unwrap();
        count(&fleet, &setting, pieces)
    };
    let check = |change: fn(&mut Setting), pieces: &[usize], piece: &str| {
        let error = part(|_| (), &[0, 1]).merge(part(change, pieces)).unwrap_err().to_string();
        assert!(error.contains(piece), "{error}");
    };
    check(|_| (), &[1, 2], "counted already");
    check(|setting| setting.percentiles = vec![RatioPpm(900_000)], &[2], "percentiles: 90%, 99% here, 90% there");
    check(|setting| setting.warmups_ms[1] += units::Millis(1), &[2], "warm-ups, in milliseconds: 0, 3600000 here, 0, 3600001 there");
    check(|setting| setting.setups[1].minimum_cold_age = Age(3), &[2], "minimum age 3 scans");
    check(|setting| setting.basis.scan_period_ms = units::Millis::seconds(60), &[2], "120000 ms, 4096 bytes here, 60000 ms");
    check(|setting| setting.by = By::Cluster, &[2], "class here, cluster there");
    check(|setting| setting.generated = false, &[2], "generated");
    // Another day of the same machines continues their jobs.
    let longer = Fleet::new(3, 40, 2, *fleet.thresholds());
    let error = part(|_| (), &[0]).merge(count(&longer, &setting(&longer), &[0])).unwrap_err();
    assert_eq!(error, MergeError::Coverage(Conflict::Changed));
}

/// Replaces the checksum of altered bytes.
fn with_checksum(mut bytes: Vec<u8>) -> Vec<u8> {
    let value = bytes.len() - size_of::<u64>();
    let checksum = XxHash64::oneshot(0, &bytes[..value]);
    bytes[value..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

#[test]
fn invalid_files_are_rejected_without_a_panic() {
    let fleet = fleet();
    let bytes = count(&fleet, &setting(&fleet), &[0]).encode(Path::new("")).unwrap();
    let check = |bytes: &[u8], piece: &str| {
        let error = Partial::decode(bytes, Path::new("x.tally")).unwrap_err().to_string();
        assert!(error.contains(piece) && error.contains("x.tally"), "{error}");
    };
    check(b"", "is not a tally");
    check(b"PAR1....PAR1", "is not a tally");
    let mut newer = bytes.clone();
    newer[8] = 9;
    check(&newer, "is a tally of version 9; this program has version 2");
    // Every cut in the frame, and some in the value.
    for end in (8..40).chain((40..bytes.len()).step_by(997)) {
        check(&bytes[..end], if end < 20 { "is truncated" } else { "checksum" });
    }
    let (mut tried, mut sound) = (0, 0);
    for at in (12..100).chain((100..bytes.len() - 8).step_by(997)) {
        let mut changed = bytes.clone();
        changed[at] ^= 0x55;
        check(&changed, "checksum");
        tried += 1;
        // With a matching checksum it may be accepted; its use must not panic.
        if let Ok(mut partial) = Partial::decode(&with_checksum(changed), Path::new("x.tally")) {
            sound += 1;
            let grid = partial.setting.grid().unwrap();
            let totals = partial.whole().unwrap().into_iter().flat_map(|tally| tally.finish(&grid, RatioPpm(980_000))).collect::<Vec<_>>();
            assert!(totals.iter().all(|total| total.coverage() >= 0.0 && total.saved_ratio() <= 1.0));
            let _ = partial.merge(count(&fleet, &setting(&fleet), &[1]));
        }
    }
    assert!(0 < sound && sound < tried, "{sound} of {tried}: some changes only alter numbers to other valid ones");
}

/// A fleet with one piece that cannot be read.
struct Broken<'a>(&'a Fleet, usize);

impl Source for Broken<'_> {
    type Error = usize;

    fn pieces(&self) -> usize {
        self.0.pieces()
    }

    fn read(&self, piece: usize, each: &mut dyn FnMut(&Label, &Series)) -> Result<(), usize> {
        let Ok(()) = self.0.read(piece, each);
        if piece == self.1 { Err(piece) } else { Ok(()) }
    }
}

#[test]
fn a_resumed_replay_counts_only_the_missing_pieces() {
    let (fleet, directory) = (fleet(), tempfile::tempdir().unwrap());
    let setting = setting(&fleet);
    let grid = setting.grid().unwrap();
    let parts = || all(&fleet).into_iter().map(|piece| fleet.part(piece)).collect();
    let keeper = |every| Keeper { directory: Some(directory.path()), publish: None, setting: &setting, parts: parts(), every };
    let counts =
        || -> Counts<'_> { (Some(Survey::default()), Model::new(&grid, &setting.setups, fleet.thresholds(), setting.by).unwrap()) };
    let find = |fleet: &Fleet| resume::find(directory.path(), fleet, &setting).unwrap();
    assert_eq!((find(&fleet).pieces, find(&fleet).partial), (vec![0, 1, 2, 3], Partial::empty(setting.clone())));

    // The third of four pieces fails after its jobs were counted: the two before it are on disk.
    let keep = keeper(Duration::ZERO);
    let broken = run(&Broken(&fleet, 2), &all(&fleet), NonZero::<usize>::MIN, || SavedAccount::new(&keep, counts), |_| {});
    assert_eq!(broken.err(), Some(2));
    let found = find(&fleet);
    assert_eq!((found.pieces.clone(), found.partial.clone()), (vec![2, 3], count(&fleet, &setting, &[0, 1])));

    // The second run counts the rest, on two threads that save only at the end.
    let keep = keeper(Duration::MAX);
    let Ok(kept) = run(&fleet, &found.pieces, NonZero::new(2).unwrap(), || SavedAccount::new(&keep, counts), |_| {});
    let ((survey, model), failed) = kept.finish();
    assert!(failed.is_none());
    let mut rest = Coverage::default();
    found.pieces.iter().for_each(|&piece| rest.add(&fleet.part(piece)).unwrap());
    let mut whole = found.partial;
    whole.merge(Partial::of(setting.clone(), rest, survey, model)).unwrap();
    assert_eq!(whole, count(&fleet, &setting, &all(&fleet)));
    let found = find(&fleet);
    assert_eq!((found.pieces.len(), found.stale.len(), found.partial), (0, 0, whole));

    // A larger last machine invalidates the file it shares with another; a further day invalidates all files.
    assert_eq!(find(&Fleet::new(3, 52, 1, *fleet.thresholds())).pieces, [2, 3, 4]);
    let longer = find(&Fleet::new(3, 40, 2, *fleet.thresholds()));
    assert_eq!((longer.pieces.len(), longer.stale.len()), (4, 3));
    let mut other = setting.clone();
    other.survey = false;
    let error = resume::find(directory.path(), &fleet, &other).unwrap_err().to_string();
    assert!(error.contains("a survey: false here, true there") && error.contains(".tally"), "{error}");
}

#[test]
fn an_unwritable_directory_loses_no_sums() {
    let (fleet, directory) = (fleet(), tempfile::tempdir().unwrap());
    let setting = setting(&fleet);
    let grid = setting.grid().unwrap();
    let gone = directory.path().join("gone");
    let parts = all(&fleet).into_iter().map(|piece| fleet.part(piece)).collect();
    let keep = Keeper { directory: Some(&gone), publish: None, setting: &setting, parts, every: Duration::ZERO };
    let counts = || (Some(Survey::default()), Model::new(&grid, &setting.setups, fleet.thresholds(), setting.by).unwrap());
    let Ok(kept) = run(&fleet, &all(&fleet), NonZero::<usize>::MIN, || SavedAccount::new(&keep, counts), |_| {});
    let ((_, model), failed) = kept.finish();
    assert!(failed.unwrap().to_string().contains("cannot create a file in"));
    assert_eq!(model.groups, count(&fleet, &setting, &all(&fleet)).groups);
}

#[test]
fn published_sums_are_those_of_the_pieces_so_far() {
    let fleet = fleet();
    let setting = setting(&fleet);
    let grid = setting.grid().unwrap();
    let so_far = std::sync::Mutex::new((Partial::empty(setting.clone()), Vec::new()));
    let publish = |(survey, model): &Counts<'_>, pieces: &[usize]| {
        let mut so_far = so_far.lock().unwrap();
        so_far.1.extend_from_slice(pieces);
        so_far.0.merge(Partial::of(setting.clone(), Coverage::default(), survey.clone(), model.clone())).unwrap();
        let expected = count(&fleet, &setting, &so_far.1);
        assert_eq!((&so_far.0.groups, &so_far.0.survey), (&expected.groups, &expected.survey));
    };
    let parts: Vec<_> = all(&fleet).into_iter().map(|piece| fleet.part(piece)).collect();
    let keep = Keeper { directory: None, publish: Some(&publish), setting: &setting, parts, every: Duration::ZERO };
    let counts = || (Some(Survey::default()), Model::new(&grid, &setting.setups, fleet.thresholds(), setting.by).unwrap());
    let Ok(kept) = run(&fleet, &all(&fleet), NonZero::new(2).unwrap(), || SavedAccount::new(&keep, counts), |_| {});
    let ((_, model), failed) = kept.finish();
    assert!(failed.is_none());
    assert_eq!(model.groups, count(&fleet, &setting, &all(&fleet)).groups);
    let (_, mut pieces) = so_far.into_inner().unwrap();
    pieces.sort_unstable();
    assert_eq!(pieces, all(&fleet));
}

#[test]
fn accounts_are_notified_of_completed_pieces() {
    #[derive(Default)]
    struct Pieces(Vec<usize>);
    impl Account for Pieces {
        fn job(&mut self, _: &Label, _: &Series) {}

        fn merge(&mut self, other: Self) {
            self.0.extend(other.0);
        }

        fn piece_done(&mut self, piece: usize) {
            self.0.push(piece);
        }
    }
    let fleet = fleet();
    let Ok((first, second)) = run(&fleet, &[3, 1], NonZero::<usize>::MIN, || (Pieces::default(), Some(Pieces::default())), |_| {});
    assert_eq!((first.0, second.map(|pieces| pieces.0)), (vec![3, 1], Some(vec![3, 1])));
}

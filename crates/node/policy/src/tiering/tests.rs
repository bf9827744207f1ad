use super::row::{Medium, Placing, RowId};
use super::*;

const PARAMS: Params = Params { compressed_max: RatioPpm(500_000), latency_max_us: 1_000, swap_cost: RatioPpm(30_000) };

/// What a test's machine has; the rows follow from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Offer {
    zswap: bool,
    swap: bool,
    writeback: bool,
    swap_latency_us: Option<u32>,
    zswap_latency_us: Option<u32>,
    writes_left: bool,
}

impl Offer {
    fn rows(&self) -> Vec<Row> {
        let zswap = Row { latency_us: self.zswap_latency_us, writes_back: self.writeback.then(|| id("vdb")), ..zswap() };
        let endurance = Some(Bytes::mib(if self.writes_left { 1 } else { 0 }));
        let device = Row { latency_us: self.swap_latency_us, endurance, ..device("vdb", -2) };
        [self.zswap.then_some(zswap), self.swap.then_some(device)].into_iter().flatten().collect()
    }
}

fn id(name: &str) -> RowId {
    name.parse().unwrap()
}

fn zswap() -> Row {
    Row {
        id: id("zswap"),
        medium: Medium::CompressedDram,
        latency_us: Some(30),
        free: None,
        endurance: None,
        accounting: Accounting::Compressed,
        writes_back: None,
        placing: Placing::Cgroup,
    }
}

fn zram(priority: i32) -> Row {
    Row { id: id("zram0"), free: Some(Bytes::mib(100)), placing: Placing::Priority(priority), ..zswap() }
}

fn device(name: &str, priority: i32) -> Row {
    Row {
        id: id(name),
        medium: Medium::Device,
        latency_us: Some(100),
        free: Some(Bytes::mib(100)),
        endurance: Some(Bytes::mib(100)),
        accounting: Accounting::SwapCost,
        writes_back: None,
        placing: Placing::Priority(priority),
    }
}

fn only_zswap() -> Tier {
    Tier::of(&zswap())
}

fn only_swap() -> Tier {
    Tier::of(&device("vdb", -2))
}

fn both() -> Tier {
    Tier::written_back(&zswap(), &device("vdb", -2))
}

/// Everything there, measured, and fast.
const ALL: Offer =
    Offer { zswap: true, swap: true, writeback: true, swap_latency_us: Some(100), zswap_latency_us: Some(30), writes_left: true };
const ZSWAP_ONLY: Offer = Offer { swap: false, ..ALL };
const SWAP_ONLY: Offer = Offer { zswap: false, ..ALL };
const NEITHER: Offer = Offer { zswap: false, swap: false, ..ALL };
const SLOW_DISK: Offer = Offer { swap_latency_us: Some(1_001), ..ALL };
const SLOW_ZSWAP: Offer = Offer { zswap_latency_us: Some(1_001), ..ALL };
const NEW_DISK: Offer = Offer { swap_latency_us: None, ..ALL };
const SPENT: Offer = Offer { writes_left: false, ..ALL };

const THIRD: Option<u32> = Some(333_333);
const WEIGHTS: Option<u32> = Some(750_000);

fn uses(tier: Tier, why: Why) -> Choice {
    Choice::Use { tier, why }
}

fn held(why: Why) -> Choice {
    Choice::Hold { why }
}

fn chosen(compressed: Option<u32>, offer: Offer, previous: Option<Tier>) -> Choice {
    choose(&PARAMS, &Input { compressed: compressed.map(RatioPpm), rows: &offer.rows(), previous, permitted: None })
}

/// The one place that states a choice for a job that has no tier yet.
fn check(compressed: Option<u32>, offer: Offer, want: Choice) {
    assert_eq!(chosen(compressed, offer, None), want, "{compressed:?} {offer:?}");
}

#[test]
fn a_job_that_compresses_goes_to_zswap_and_its_coldest_pages_to_the_device() {
    check(THIRD, ALL, uses(both(), Why::WarmerCompressedColderWritten));
    check(THIRD, NEW_DISK, uses(both(), Why::NotSampled));
    check(THIRD, Offer { writeback: false, ..ALL }, uses(only_zswap(), Why::Compresses));
    for offer in [ZSWAP_ONLY, SLOW_DISK, SPENT] {
        check(THIRD, offer, uses(only_zswap(), Why::Compresses));
    }
    check(Some(30_000), ALL, uses(only_zswap(), Why::Compresses));
    check(THIRD, SWAP_ONLY, uses(only_swap(), Why::OnlyTier));
    check(THIRD, SLOW_ZSWAP, uses(only_swap(), Why::TooSlow));
    check(THIRD, NEITHER, held(Why::NoTier));
}

#[test]
fn a_job_that_does_not_compress_goes_to_the_device_or_is_left_alone() {
    check(WEIGHTS, ALL, uses(only_swap(), Why::DoesNotCompress));
    check(WEIGHTS, NEW_DISK, uses(only_swap(), Why::NotSampled));
    check(WEIGHTS, SWAP_ONLY, uses(only_swap(), Why::DoesNotCompress));
    check(WEIGHTS, ZSWAP_ONLY, held(Why::DoesNotCompress));
    check(WEIGHTS, SLOW_DISK, held(Why::TooSlow));
    check(WEIGHTS, SPENT, held(Why::WritesSpent));
    check(WEIGHTS, Offer { zswap: false, ..SPENT }, held(Why::WritesSpent));
    check(WEIGHTS, NEITHER, held(Why::NoTier));
}

#[test]
fn a_job_that_is_not_sampled_yet_begins_with_what_wears_nothing_out() {
    for offer in [ALL, ZSWAP_ONLY, SLOW_DISK, SPENT, NEW_DISK] {
        check(None, offer, uses(only_zswap(), Why::NotSampled));
    }
    check(None, SWAP_ONLY, uses(only_swap(), Why::OnlyTier));
    check(None, SLOW_ZSWAP, uses(only_swap(), Why::TooSlow));
    check(None, Offer { writes_left: false, ..SLOW_ZSWAP }, held(Why::TooSlow));
    check(None, Offer { zswap: false, ..SPENT }, held(Why::WritesSpent));
    check(None, NEITHER, held(Why::NoTier));
}

#[test]
fn a_device_that_saves_nothing_more_is_not_used() {
    let at = |swap_cost, compressed: Option<u32>, offer| {
        let params = Params { swap_cost: RatioPpm(swap_cost), ..PARAMS };
        choose(&params, &Input { compressed: compressed.map(RatioPpm), rows: &Offer::rows(&offer), previous: None, permitted: None })
    };
    assert_eq!(at(333_332, THIRD, ALL), uses(both(), Why::WarmerCompressedColderWritten));
    assert_eq!(at(333_333, THIRD, ALL), uses(only_zswap(), Why::Compresses));
    assert_eq!(at(750_000, WEIGHTS, ALL), held(Why::DoesNotCompress));
    assert_eq!(at(999_999, None, SWAP_ONLY), uses(only_swap(), Why::OnlyTier));
    assert_eq!(at(1_000_000, None, SWAP_ONLY), held(Why::NoTier));
}

#[test]
fn a_ratio_near_the_limit_does_not_oscillate() {
    // The ratio wanders about the border by less than its width; the tier of the first choice stays.
    for (first, tier) in [(490_000, both()), (510_000, only_swap())] {
        let mut previous = None;
        for ratio in [first, 501_000, 499_000, 549_000, 451_000, 550_000, 450_001] {
            let Choice::Use { tier: now, .. } = chosen(Some(ratio), ALL, previous) else { panic!("{ratio}") };
            assert_eq!(now, tier, "at {ratio} ppm, begun at {first}");
            previous = Some(now);
        }
    }
    assert_eq!(chosen(Some(550_001), ALL, Some(both())), uses(only_swap(), Why::DoesNotCompress));
    assert_eq!(chosen(Some(450_000), ALL, Some(only_swap())), uses(both(), Why::WarmerCompressedColderWritten));
    assert_eq!(chosen(Some(550_001), ZSWAP_ONLY, Some(only_zswap())), held(Why::DoesNotCompress));
}

/// A machine, a job's compressed share, and its tier before.
type Case = (Offer, Option<RatioPpm>, Option<Tier>);

/// Every offer with latencies unmeasured, at the limit, and over it; every job; every tier before.
fn every_case() -> Vec<Case> {
    let (flags, latencies) = ([false, true], [None, Some(1_000), Some(1_001)]);
    let mut cases = Vec::new();
    for bits in 0..16u8 {
        let flag = |n: u8| flags[usize::from(bits >> n & 1)];
        for (swap_latency_us, zswap_latency_us) in latencies.iter().flat_map(|&a| latencies.iter().map(move |&b| (a, b))) {
            let (zswap, swap, writeback, writes_left) = (flag(0), flag(1), flag(2), flag(3));
            let offer = Offer { zswap, swap, writeback, swap_latency_us, zswap_latency_us, writes_left };
            for compressed in [None, Some(0), THIRD, Some(500_000), WEIGHTS, Some(u32::MAX)].map(|ratio| ratio.map(RatioPpm)) {
                for previous in [None, Some(only_zswap()), Some(only_swap()), Some(both())] {
                    cases.push((offer, compressed, previous));
                }
            }
        }
    }
    cases
}

fn choice((offer, compressed, previous): Case) -> Choice {
    choose(&PARAMS, &Input { compressed, rows: &offer.rows(), previous, permitted: None })
}

#[test]
fn a_row_that_is_not_offered_too_slow_or_spent_is_never_used() {
    for case in every_case() {
        let Choice::Use { tier, .. } = choice(case) else { continue };
        let fast_enough = |latency_us: Option<u32>| latency_us.is_none_or(|us| us <= PARAMS.latency_max_us);
        let offer = case.0;
        if tier.has(id("zswap")) {
            assert!(offer.zswap && fast_enough(offer.zswap_latency_us), "{case:?}");
        }
        if tier.has(id("vdb")) {
            assert!(offer.swap && offer.writes_left && fast_enough(offer.swap_latency_us), "{case:?}");
        }
        assert!(tier.second.is_none() || offer.writeback, "{case:?}");
    }
}

#[test]
fn the_choice_has_a_reason_that_fits() {
    for case in every_case() {
        let (offer, compressed, _) = case;
        let too_slow = [offer.swap_latency_us, offer.zswap_latency_us].contains(&Some(1_001));
        let (Choice::Use { why, .. } | Choice::Hold { why }) = choice(case);
        let fits = match why {
            Why::Compresses | Why::WarmerCompressedColderWritten => compressed.is_some_and(|ratio| ratio.0 <= 550_000),
            Why::DoesNotCompress => compressed.is_some_and(|ratio| ratio.0 > 450_000),
            Why::OnlyTier => !offer.zswap,
            Why::TooSlow => too_slow,
            Why::WritesSpent => !offer.writes_left,
            Why::NotSampled => compressed.is_none() || offer.swap_latency_us.is_none(),
            Why::NoTier => !offer.zswap && !offer.swap,
            // Without a stall target.
            Why::SavesMore => false,
            // For an operator's choice alone.
            Why::NoDevice | Why::NoShrinker => false,
        };
        assert!(fits, "{why:?} for {case:?}");
    }
}

/// The choice for a job without a tier on a machine with these rows.
fn check_rows(compressed: Option<u32>, rows: &[Row], want: Choice) {
    let found = choose(&PARAMS, &Input { compressed: compressed.map(RatioPpm), rows, previous: None, permitted: None });
    assert_eq!(found, want, "{compressed:?} {rows:?}");
}

#[test]
fn a_compressed_ram_disk_takes_what_compresses_and_nothing_else() {
    let tier = Tier::of(&zram(100));
    check_rows(THIRD, &[zram(100)], uses(tier, Why::Compresses));
    check_rows(None, &[zram(100)], uses(tier, Why::NotSampled));
    check_rows(WEIGHTS, &[zram(100)], held(Why::DoesNotCompress));
    check_rows(THIRD, &[Row { latency_us: Some(1_001), ..zram(100) }], held(Why::TooSlow));
    // In front of it, zswap compresses first, and writing back to it saves nothing.
    let front = Row { writes_back: Some(id("zram0")), ..zswap() };
    check_rows(THIRD, &[front, zram(100)], uses(only_zswap(), Why::Compresses));
    check_rows(WEIGHTS, &[front, zram(100)], held(Why::DoesNotCompress));
}

#[test]
fn the_kernel_fills_the_area_of_the_highest_priority_that_has_space() {
    let full = |row: Row| Row { free: Some(Bytes::mib(1) - Bytes(1)), ..row };
    let (ram, disk) = (zram(100), device("vdb", -2));
    let on = |row: &Row, why| uses(Tier::of(row), why);
    for rows in [[ram, disk], [disk, ram]] {
        check_rows(THIRD, &rows, on(&ram, Why::Compresses));
        check_rows(WEIGHTS, &rows, held(Why::DoesNotCompress));
    }
    check_rows(THIRD, &[full(ram), disk], on(&disk, Why::OnlyTier));
    check_rows(WEIGHTS, &[full(ram), disk], on(&disk, Why::DoesNotCompress));
    let second = device("vdc", 5);
    check_rows(WEIGHTS, &[disk, second], on(&second, Why::DoesNotCompress));
    check_rows(WEIGHTS, &[disk, full(second)], on(&disk, Why::DoesNotCompress));
    // The slower device has the higher priority: the kernel would write to it.
    let slow = Row { latency_us: Some(1_001), ..second };
    check_rows(WEIGHTS, &[disk, slow], held(Why::TooSlow));
    check_rows(WEIGHTS, &[full(disk), full(slow)], held(Why::NoTier));
}

#[test]
fn the_order_of_the_areas_of_one_priority_does_not_matter() {
    let held_by = |one: Row, other: Row| {
        for rows in [[one, other], [other, one]] {
            let Choice::Hold { why } =
                choose(&PARAMS, &Input { compressed: Some(RatioPpm(750_000)), rows: &rows, previous: None, permitted: None })
            else {
                panic!("{rows:?}")
            };
            assert!(matches!(why, Why::TooSlow | Why::WritesSpent | Why::DoesNotCompress), "{why:?} {rows:?}");
        }
    };
    let disk = device("vdb", 5);
    held_by(disk, Row { latency_us: Some(1_001), ..device("vdc", 5) });
    held_by(disk, Row { endurance: Some(Bytes::ZERO), ..device("vdc", 5) });
    held_by(disk, zram(5));
}

#[test]
fn a_choice_survives_the_journal() {
    let text = serde_json::to_string(&uses(both(), Why::WarmerCompressedColderWritten)).unwrap();
    let expected =
        r#"{"action":"use","tier":{"first":"zswap","accounting":"compressed","second":"vdb"},"why":"warmer_compressed_colder_written"}"#;
    assert_eq!(text, expected);
    for case in every_case() {
        let record = (PARAMS, case.0.rows(), case.2, choice(case));
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<(Params, Vec<Row>, Option<Tier>, Choice)>(&text).unwrap(), record);
    }
}

#[test]
fn the_former_names_are_tiers_of_the_former_rows() {
    let swap = Row { id: id("swap"), ..device("vdb", 0) };
    for (name, tier) in [("zswap", only_zswap()), ("swap", Tier::of(&swap)), ("both", Tier::written_back(&zswap(), &swap))] {
        let text = format!(r#"{{"action":"use","tier":"{name}","why":"compresses"}}"#);
        assert_eq!(serde_json::from_str::<Choice>(&text).unwrap(), uses(tier, Why::Compresses));
    }
    assert!(serde_json::from_str::<Tier>(r#""zram""#).is_err());
    assert_eq!("a".repeat(33).parse::<RowId>().unwrap_err().to_string().find("longer than 32 bytes").map(|_| ()), Some(()));
}

/// A job that shrinks to 40 %: a page saves 0.6 of itself in zswap and 0.97 on the device.
fn with_permitted(compressed: u64, device: u64, previous: Option<Tier>, offer: Offer) -> Choice {
    let permitted = Some(Permitted { compressed: Pages(compressed), device: Pages(device) });
    choose(&PARAMS, &Input { compressed: Some(RatioPpm(400_000)), rows: &offer.rows(), previous, permitted })
}

#[test]
fn a_stall_target_chooses_the_tier_that_saves_more() {
    let alone = Offer { writeback: false, ..ALL };
    let (in_zswap, on_device) = (uses(only_zswap(), Why::Compresses), uses(only_swap(), Why::SavesMore));
    // Nothing returns: all pages may be far in either.
    assert_eq!(with_permitted(10_000, 10_000, None, alone), on_device);
    // As the device is slower, a quarter of the pages.
    assert_eq!(with_permitted(10_000, 2_500, None, alone), in_zswap);
    assert_eq!(with_permitted(0, 0, None, alone), in_zswap);
    // 6,180 pages on the device save as much as 10,000 in zswap; a tenth more or less is left where it is.
    for (device, previous, want) in
        [(6_500, only_zswap(), in_zswap), (6_900, only_zswap(), on_device), (5_900, only_swap(), on_device), (5_500, only_swap(), in_zswap)]
    {
        assert_eq!(with_permitted(10_000, device, Some(previous), alone), want, "{device}");
    }
}

#[test]
fn a_device_that_may_not_be_written_to_or_is_too_slow_is_not_chosen_for_what_it_saves() {
    let alone = Offer { writeback: false, ..ALL };
    let in_zswap = uses(only_zswap(), Why::Compresses);
    assert_eq!(with_permitted(10_000, 10_000, None, Offer { writes_left: false, ..alone }), in_zswap);
    assert_eq!(with_permitted(10_000, 10_000, None, Offer { swap_latency_us: Some(1_001), ..alone }), in_zswap);
    assert_eq!(with_permitted(10_000, 10_000, None, ZSWAP_ONLY), in_zswap);
    let without_zswap = Offer { zswap: false, ..alone };
    assert_eq!(with_permitted(10_000, 10_000, None, without_zswap), uses(only_swap(), Why::OnlyTier));
}

use super::*;

const PARAMS: Params = Params { compressed_max: RatioPpm(500_000), latency_max_us: 1_000, swap_cost: RatioPpm(30_000) };

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
    choose(&PARAMS, &Input { compressed: compressed.map(RatioPpm), offer, previous })
}

/// The one place that states a choice for a job that has no tier yet.
fn check(compressed: Option<u32>, offer: Offer, want: Choice) {
    assert_eq!(chosen(compressed, offer, None), want, "{compressed:?} {offer:?}");
}

#[test]
fn a_job_that_compresses_goes_to_zswap_and_its_coldest_pages_to_the_device() {
    check(THIRD, ALL, uses(Tier::Both, Why::WarmerCompressedColderWritten));
    check(THIRD, NEW_DISK, uses(Tier::Both, Why::NotSampled));
    check(THIRD, Offer { writeback: false, ..ALL }, uses(Tier::Zswap, Why::Compresses));
    for offer in [ZSWAP_ONLY, SLOW_DISK, SPENT] {
        check(THIRD, offer, uses(Tier::Zswap, Why::Compresses));
    }
    check(Some(30_000), ALL, uses(Tier::Zswap, Why::Compresses));
    check(THIRD, SWAP_ONLY, uses(Tier::Swap, Why::OnlyTier));
    check(THIRD, SLOW_ZSWAP, uses(Tier::Swap, Why::TooSlow));
    check(THIRD, NEITHER, held(Why::NoTier));
}

#[test]
fn a_job_that_does_not_compress_goes_to_the_device_or_is_left_alone() {
    check(WEIGHTS, ALL, uses(Tier::Swap, Why::DoesNotCompress));
    check(WEIGHTS, NEW_DISK, uses(Tier::Swap, Why::NotSampled));
    check(WEIGHTS, SWAP_ONLY, uses(Tier::Swap, Why::DoesNotCompress));
    check(WEIGHTS, ZSWAP_ONLY, held(Why::DoesNotCompress));
    check(WEIGHTS, SLOW_DISK, held(Why::TooSlow));
    check(WEIGHTS, SPENT, held(Why::WritesSpent));
    check(WEIGHTS, Offer { zswap: false, ..SPENT }, held(Why::WritesSpent));
    check(WEIGHTS, NEITHER, held(Why::NoTier));
}

#[test]
fn a_job_that_is_not_sampled_yet_begins_with_what_wears_nothing_out() {
    for offer in [ALL, ZSWAP_ONLY, SLOW_DISK, SPENT, NEW_DISK] {
        check(None, offer, uses(Tier::Zswap, Why::NotSampled));
    }
    check(None, SWAP_ONLY, uses(Tier::Swap, Why::OnlyTier));
    check(None, SLOW_ZSWAP, uses(Tier::Swap, Why::TooSlow));
    check(None, Offer { writes_left: false, ..SLOW_ZSWAP }, held(Why::TooSlow));
    check(None, Offer { zswap: false, ..SPENT }, held(Why::WritesSpent));
    check(None, NEITHER, held(Why::NoTier));
}

#[test]
fn a_device_that_saves_nothing_more_is_not_used() {
    let at = |swap_cost, compressed: Option<u32>, offer| {
        let params = Params { swap_cost: RatioPpm(swap_cost), ..PARAMS };
        choose(&params, &Input { compressed: compressed.map(RatioPpm), offer, previous: None })
    };
    assert_eq!(at(333_332, THIRD, ALL), uses(Tier::Both, Why::WarmerCompressedColderWritten));
    assert_eq!(at(333_333, THIRD, ALL), uses(Tier::Zswap, Why::Compresses));
    assert_eq!(at(750_000, WEIGHTS, ALL), held(Why::DoesNotCompress));
    assert_eq!(at(999_999, None, SWAP_ONLY), uses(Tier::Swap, Why::OnlyTier));
    assert_eq!(at(1_000_000, None, SWAP_ONLY), held(Why::NoTier));
}

#[test]
fn a_ratio_at_the_border_does_not_flap() {
    // The ratio wanders about the border by less than its width; the tier of the first choice stays.
    for (first, tier) in [(490_000, Tier::Both), (510_000, Tier::Swap)] {
        let mut previous = None;
        for ratio in [first, 501_000, 499_000, 549_000, 451_000, 550_000, 450_001] {
            let Choice::Use { tier: now, .. } = chosen(Some(ratio), ALL, previous) else { panic!("{ratio}") };
            assert_eq!(now, tier, "at {ratio} ppm, begun at {first}");
            previous = Some(now);
        }
    }
    assert_eq!(chosen(Some(550_001), ALL, Some(Tier::Both)), uses(Tier::Swap, Why::DoesNotCompress));
    assert_eq!(chosen(Some(450_000), ALL, Some(Tier::Swap)), uses(Tier::Both, Why::WarmerCompressedColderWritten));
    assert_eq!(chosen(Some(550_001), ZSWAP_ONLY, Some(Tier::Zswap)), held(Why::DoesNotCompress));
}

/// Every offer with latencies unmeasured, at the limit, and over it; every job; every tier before.
fn every_input() -> Vec<Input> {
    let (flags, latencies) = ([false, true], [None, Some(1_000), Some(1_001)]);
    let mut inputs = Vec::new();
    for bits in 0..16u8 {
        let flag = |n: u8| flags[usize::from(bits >> n & 1)];
        for (swap_latency_us, zswap_latency_us) in latencies.iter().flat_map(|&a| latencies.iter().map(move |&b| (a, b))) {
            let (zswap, swap, writeback, writes_left) = (flag(0), flag(1), flag(2), flag(3));
            let offer = Offer { zswap, swap, writeback, swap_latency_us, zswap_latency_us, writes_left };
            for compressed in [None, Some(0), THIRD, Some(500_000), WEIGHTS, Some(u32::MAX)].map(|ratio| ratio.map(RatioPpm)) {
                for previous in [None, Some(Tier::Zswap), Some(Tier::Swap), Some(Tier::Both)] {
                    inputs.push(Input { compressed, offer, previous });
                }
            }
        }
    }
    inputs
}

#[test]
fn a_tier_that_is_not_offered_too_slow_or_spent_is_never_used() {
    for input in every_input() {
        let Choice::Use { tier, .. } = choose(&PARAMS, &input) else { continue };
        let fast_enough = |latency_us: Option<u32>| latency_us.is_none_or(|us| us <= PARAMS.latency_max_us);
        let offer = input.offer;
        if matches!(tier, Tier::Zswap | Tier::Both) {
            assert!(offer.zswap && fast_enough(offer.zswap_latency_us), "{input:?}");
        }
        if matches!(tier, Tier::Swap | Tier::Both) {
            assert!(offer.swap && offer.writes_left && fast_enough(offer.swap_latency_us), "{input:?}");
        }
        assert!(tier != Tier::Both || offer.writeback, "{input:?}");
    }
}

#[test]
fn the_choice_has_a_reason_that_fits() {
    for input in every_input() {
        let offer = input.offer;
        let too_slow = [offer.swap_latency_us, offer.zswap_latency_us].contains(&Some(1_001));
        let (Choice::Use { why, .. } | Choice::Hold { why }) = choose(&PARAMS, &input);
        let fits = match why {
            Why::Compresses | Why::WarmerCompressedColderWritten => input.compressed.is_some_and(|ratio| ratio.0 <= 550_000),
            Why::DoesNotCompress => input.compressed.is_some_and(|ratio| ratio.0 > 450_000),
            Why::OnlyTier => !offer.zswap,
            Why::TooSlow => too_slow,
            Why::WritesSpent => !offer.writes_left,
            Why::NotSampled => input.compressed.is_none() || offer.swap_latency_us.is_none(),
            Why::NoTier => !offer.zswap && !offer.swap,
            // For an operator's choice alone.
            Why::NoDevice | Why::NoShrinker => false,
        };
        assert!(fits, "{why:?} for {input:?}");
    }
}

#[test]
fn a_choice_survives_the_journal() {
    let text = serde_json::to_string(&uses(Tier::Both, Why::WarmerCompressedColderWritten)).unwrap();
    assert_eq!(text, r#"{"action":"use","tier":"both","why":"warmer_compressed_colder_written"}"#);
    for input in every_input() {
        let text = serde_json::to_string(&(PARAMS, input)).unwrap();
        assert_eq!(serde_json::from_str::<(Params, Input)>(&text).unwrap(), (PARAMS, input));
    }
}

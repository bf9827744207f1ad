//! Each law's documented rule, on programs that are made for it.

use arena::kernel::{Costs, Kernel, Place};
use arena::law::{Law, Request};
use arena::laws::damon::DamonReclaim;
use arena::laws::high::MemoryHigh;
use arena::laws::idle::IdleThreshold;
use arena::laws::katalyst::{KatalystPsi, KatalystRefault};
use arena::laws::marginal::Marginal;
use arena::laws::mglru_script::MglruScript;
use arena::laws::senpai::Senpai;
use arena::laws::thermocline::Thermocline;
use arena::laws::tuning::{Constants, Policy};
use arena::laws::twice_cold::TwiceCold;
use arena::laws::writeback::Writeback;
use arena::trace::{Group, Interval, Kind, Trace};
use arena::view::View;
use config::Class;
use policy::balance::AnonFileBias;
use units::{Bytes, RatioPpm};

/// `hot` groups are accessed in each interval of a second, `cold` ones in the first only.
fn program(hot: u32, cold: u32, kind: Kind, compressed: RatioPpm, intervals: usize) -> Trace {
    let mut trace = vec![Interval { accessed: (0..hot).collect(), freed: Vec::new() }; intervals];
    trace[0].accessed.extend(hot..hot + cold);
    let groups = vec![Group { kind, compressed }; (hot + cold) as usize];
    Trace { name: "made".to_owned(), interval_ms: 1_000, group_pages: 1, compression: 60, settle: 0, groups, intervals: trace }
}

const THIRD: RatioPpm = RatioPpm(330_000);

/// Runs a law and returns its requests by interval, and for each group in which interval it first was out of DRAM.
fn drive(trace: &Trace, law: &mut dyn Law) -> (Vec<Vec<Request>>, Vec<Option<usize>>) {
    let mut kernel = Kernel::new(trace, Costs::default());
    let (mut requests, mut out) = (Vec::new(), vec![None; trace.groups.len()]);
    for at in 0..trace.intervals.len() {
        kernel.access();
        let asked = law.step(&View::new(&kernel));
        asked.iter().for_each(|request| kernel.carry_out(request));
        for (group, out) in (0..).zip(&mut out) {
            if out.is_none() && View::new(&kernel).place(group).is_far() {
                *out = Some(at);
            }
        }
        requests.push(asked);
        kernel.next_interval();
    }
    (requests, out)
}

fn bytes_of(requests: &[Request]) -> Option<Bytes> {
    match requests {
        [Request::Reclaim { bytes, bias: AnonFileBias::Swappiness(60) }] => Some(*bytes),
        _ => None,
    }
}

#[test]
fn the_script_evicts_what_was_idle_for_a_to_one_and_a_half_a() {
    let trace = program(10, 100, Kind::Anon, THIRD, 20);
    let (requests, out) = drive(&trace, &mut MglruScript::new(4_000));
    // Every two seconds: what there is to evict, then a new generation.
    assert_eq!(requests[1], [Request::OpenGeneration]);
    assert!(requests[0].is_empty() && requests[2].is_empty());
    assert_eq!(requests[5], [Request::Evict { up_to: 3, swappiness: 100, most: Bytes(u64::MAX) }, Request::OpenGeneration]);
    assert!(out[..10].iter().all(Option::is_none), "hot groups stay");
    assert!(out[10..].iter().all(|out| *out == Some(5)), "after 6 s: {out:?}");
}

#[test]
fn senpai_takes_one_percent_while_both_averages_are_below_the_target() {
    let trace = program(0, 10_000, Kind::Anon, THIRD, 3);
    let (requests, _) = drive(&trace, &mut Senpai::new(0.001, 1_000));
    let above = 10_000 * 4_096 - (1 << 20);
    assert_eq!(bytes_of(&requests[0]), Some(Bytes(above / 100)));
    // Memory that only a device stores: each return is an I/O stall.
    let trace = program(2_000, 0, Kind::Anon, RatioPpm(1_100_000), 60);
    let (requests, out) = drive(&trace, &mut Senpai::new(0.001, 1_000));
    assert!(bytes_of(&requests[0]).is_some());
    assert!(out.iter().any(Option::is_some), "reclaim takes pages in use if there are no others");
    let held = requests.iter().filter(|requests| requests.is_empty()).count();
    assert!(held > 40, "{held} of 60");
}

#[test]
fn katalyst_takes_a_hundredth_while_reclaim_is_accurate_and_less_when_it_is_not() {
    // All is used every 20 s, so that what goes out returns.
    let mut trace = program(0, 20_000, Kind::Anon, THIRD, 61);
    for (at, interval) in trace.intervals.iter_mut().enumerate() {
        interval.accessed = if at % 20 == 0 { (0..20_000).collect() } else { Vec::new() };
    }
    let (requests, _) = drive(&trace, &mut KatalystRefault::new(0.99, 1_000));
    let asked: Vec<u64> = requests.iter().map(|asked| bytes_of(asked).unwrap().0 / 4_096).collect();
    assert_eq!(asked[0], 200, "a hundredth of 20,000");
    assert!(asked[1..20].iter().all(|&pages| (175..200).contains(&pages)), "a hundredth of what is left: {asked:?}");
    assert_eq!(asked[20..22], [0, 200], "all returned, many times what the interval before took: {asked:?}");
}

#[test]
fn katalyst_takes_less_as_the_stall_approaches_the_threshold() {
    let trace = program(0, 10_000, Kind::Anon, THIRD, 3);
    let (requests, _) = drive(&trace, &mut KatalystPsi::new(0.001, 1_000));
    assert_eq!(bytes_of(&requests[0]), Some(Bytes(10_000 * 4_096 / 100)));
    assert!(bytes_of(&requests[1]) < bytes_of(&requests[0]), "of what is left");
}

#[test]
fn memory_high_reclaims_the_excess() {
    let trace = program(10, 990, Kind::Anon, THIRD, 10);
    let (requests, out) = drive(&trace, &mut MemoryHigh::new(Bytes(800 * 4_096)));
    assert_eq!(bytes_of(&requests[0]), Some(Bytes(200 * 4_096)));
    // 200 pages take a third of themselves in zswap, which counts: 67 more, then 22, 7, 2.
    assert!(bytes_of(&requests[2]) < bytes_of(&requests[1]) && bytes_of(&requests[9]) < Some(Bytes(4_096)), "{requests:?}");
    let out = out.iter().flatten().count();
    assert!((298..=315).contains(&out), "{out} pages were out: 800 = 1000 - n + n / 3, and hot ones that returned");
}

#[test]
fn an_idle_threshold_takes_what_was_idle_for_it_of_both_kinds() {
    for kind in Kind::ALL {
        let trace = program(10, 20, kind, THIRD, 12);
        let (_, out) = drive(&trace, &mut IdleThreshold::new(5_000, 1_000));
        assert!(out[..10].iter().all(Option::is_none));
        assert!(out[10..].iter().all(|out| *out == Some(5)), "{kind:?}: {out:?}");
    }
}

#[test]
fn damon_takes_cold_regions_once_they_are_old() {
    let trace = program(2_000, 4_000, Kind::Anon, THIRD, 40);
    let (_, out) = drive(&trace, &mut DamonReclaim::new(10_000, 3));
    let cold = out[2_000..].iter().filter(|out| out.is_some()).count();
    assert!(cold > 3_600, "{cold} of 4000");
    assert!(out.iter().flatten().all(|&at| at >= 9), "before min_age");
    let hot = out[..2_000].iter().filter(|out| out.is_some()).count();
    assert!(hot < 400, "a region on the border: {hot}");
}

#[test]
fn our_policies_wait_for_their_warm_up_and_leave_hot_groups() {
    let trace = program(4_000, 8_000, Kind::Anon, THIRD, 120);
    for policy in [Policy::ColdAge, Policy::Auto] {
        let constants = Constants::of(Class::Standard, &trace);
        assert_eq!((constants.scan_ms, constants.control_ms, constants.cold_age.warmup_ms.0), (2_000, 1_000, 10_000));
        let (_, out) = drive(&trace, &mut Thermocline::new(policy, constants, 1_000, 1, 1));
        assert!(out[..4_000].iter().all(Option::is_none), "{policy:?}");
        let cold: Vec<usize> = out[4_000..].iter().flatten().copied().collect();
        assert_eq!(cold.len(), 8_000, "{policy:?}");
        assert!(cold.iter().all(|&at| at >= 9), "{policy:?}: before the warm-up");
    }
}

#[test]
fn memory_that_does_not_compress_goes_to_the_device_and_costs_more() {
    let mut trace = program(0, 1_000, Kind::Anon, RatioPpm(600_000), 60);
    trace.intervals[59].accessed = (0..1_000).collect();
    let constants = Constants::of(Class::Standard, &trace);
    let mut law = Thermocline::new(Policy::Auto, constants, 1_000, 1, 1);
    let mut kernel = Kernel::new(&trace, Costs::default());
    for _ in 0..59 {
        kernel.access();
        law.step(&View::new(&kernel)).iter().for_each(|request| kernel.carry_out(request));
        kernel.next_interval();
    }
    assert_eq!(View::new(&kernel).place(0), Place::Device, "60 % is above tier.compressed_max");
    assert_eq!(kernel.saved(), Bytes(1_000 * 4_096));
    kernel.access();
    assert_eq!((kernel.counters().lost_us, kernel.saved()), (500_000, Bytes::ZERO));
}

#[test]
fn what_is_twice_cold_leaves_the_pool_for_the_device() {
    let trace = program(4_000, 8_000, Kind::Anon, THIRD, 120);
    // Policy `auto` uses the device at once: nothing returns.
    let first = Thermocline::new(Policy::ColdAge, Constants::of(Class::Standard, &trace), 1_000, 1, 1);
    let mut law = TwiceCold::new(first, 60_000, 2_000);
    let mut kernel = Kernel::new(&trace, Costs::default());
    for at in 0..120 {
        kernel.access();
        law.step(&View::new(&kernel)).iter().for_each(|request| kernel.carry_out(request));
        let view = View::new(&kernel);
        let far = if at < 61 { Place::Zswap } else { Place::Device };
        assert!((4_000..12_000).all(|group| view.place(group) == Place::Resident || view.place(group) == far), "{at}");
        kernel.next_interval();
    }
    assert_eq!(kernel.saved(), Bytes(8_000 * 4_096));
}

/// Policy `cold_age`, which permits any promotions and uses no device, with the writeback of a stall target of a half.
fn with_writeback(trace: &Trace) -> Writeback {
    let mut constants = Constants::of(Class::Standard, trace).with_stall_target(RatioPpm(500_000));
    constants.cold_age.promotion_rate_max = RatioPpm::ONE;
    Writeback::new(Thermocline::new(Policy::ColdAge, constants, 1_000, 1, 1), constants)
}

/// The number of groups on the device, by interval.
fn on_device(trace: &Trace, law: &mut dyn Law) -> Vec<usize> {
    let mut kernel = Kernel::new(trace, Costs::default());
    let step = |_| {
        kernel.access();
        law.step(&View::new(&kernel)).iter().for_each(|request| kernel.carry_out(request));
        let view = View::new(&kernel);
        let count = (0..view.groups()).filter(|&group| view.place(group) == Place::Device).count();
        kernel.next_interval();
        count
    };
    (0..trace.intervals.len()).map(step).collect()
}

#[test]
fn writeback_moves_what_stays_in_zswap_for_the_second_threshold() {
    let trace = program(4_000, 8_000, Kind::Anon, THIRD, 120);
    let constants = Constants::of(Class::Standard, &trace);
    assert_eq!((constants.writeback.after_min_ms.0, constants.writeback.pages_max.0), (30_000, 16_384));
    let (_, out) = drive(&trace, &mut with_writeback(&trace));
    let first = *out[4_000..].iter().flatten().min().unwrap();
    let moved = on_device(&trace, &mut with_writeback(&trace));
    // The first threshold is 2 s, the second 2 s * 380 / 120 * 67 / 33 or 12.9 s, and `writeback.after_min` is longer.
    assert!(moved[..first + 30].iter().all(|&count| count == 0), "{first}: {moved:?}");
    assert!(moved[80..].iter().all(|&count| count == 8_000), "{moved:?}");
    let held = Writeback::new(Thermocline::new(Policy::ColdAge, constants, 1_000, 1, 1), constants);
    let few = on_device(&trace, &mut { held });
    assert!(few[50] < 2_000 && few[119] < 5_000, "half of a stall target of 0.1 % permits less: {few:?}");
}

#[test]
fn what_returns_from_the_device_raises_the_second_threshold() {
    // Used every 45 s, which is beyond `writeback.after_min`.
    let mut trace = program(4_000, 2_000, Kind::Anon, THIRD, 600);
    (0..600).step_by(45).for_each(|at| trace.intervals[at].accessed = (0..6_000).collect());
    let moved = on_device(&trace, &mut with_writeback(&trace));
    assert!(moved[..135].iter().any(|&count| count > 1_900), "{moved:?}");
    assert!(moved[400..].iter().all(|&count| count == 0), "{moved:?}");
}

/// Two tiers at a stall target, on a trace.
fn two_tiers(trace: &Trace, target: RatioPpm) -> Marginal {
    let constants = Constants::of(Class::Standard, trace).with_stall_target(target);
    Marginal::new(Thermocline::new(Policy::Auto, constants, 1_000, 1, 1), constants, 1_000)
}

#[test]
fn what_does_not_return_is_compressed_first_and_on_the_device_once_it_is_old() {
    let trace = program(4_000, 8_000, Kind::Anon, THIRD, 120);
    let mut law = two_tiers(&trace, RatioPpm(50_000));
    let mut kernel = Kernel::new(&trace, Costs::default());
    let mut on_device = Vec::new();
    for at in 0..120 {
        kernel.access();
        law.step(&View::new(&kernel)).iter().for_each(|request| kernel.carry_out(request));
        let view = View::new(&kernel);
        assert!((0..4_000).all(|group| view.place(group) == Place::Resident), "{at}");
        let (far, device) = (4_000..12_000)
            .map(|group| view.place(group))
            .fold((0, 0), |(far, device), place| (far + u32::from(place.is_far()), device + u32::from(place == Place::Device)));
        assert_eq!(far, if at < 9 { 0 } else { 8_000 }, "{at}: after the warm-up");
        on_device.push(device);
        kernel.next_interval();
    }
    // Idle for t scans, 8,000 pages count as 4,000 / t returns of 380 us more each, and 100 ms are permitted: t is 15.2 scans.
    assert!(on_device[15] < 4_000 && on_device[25] < 8_000 && on_device[45..].iter().all(|&device| device == 8_000), "{on_device:?}");
    assert!(on_device.windows(2).all(|pair| pair[0] <= pair[1]), "none comes back");
    assert_eq!(kernel.saved(), Bytes(8_000 * 4_096));
}

#[test]
fn two_tiers_separate_periods_by_the_history_of_each_page() {
    // Used every 6 s and every 40 s. A threshold that takes the second after 2 s takes the first as well.
    let mut trace = program(0, 4_000, Kind::Anon, THIRD, 1_200);
    for (at, interval) in trace.intervals.iter_mut().enumerate() {
        let often = if at % 6 == 0 { 0..2_000 } else { 0..0 };
        let rarely = if at % 40 == 0 { 2_000..4_000 } else { 0..0 };
        interval.accessed = often.chain(rarely).collect();
    }
    let mut law = two_tiers(&trace, RatioPpm(10_000));
    let mut kernel = Kernel::new(&trace, Costs::default());
    let (mut far, mut lost_us) = ([0, 0], 0);
    for at in 0..1_200 {
        let before = kernel.counters().lost_us;
        kernel.access();
        law.step(&View::new(&kernel)).iter().for_each(|request| kernel.carry_out(request));
        if at >= 400 {
            lost_us += kernel.counters().lost_us - before;
            let view = View::new(&kernel);
            (0..4_000).filter(|&group| view.place(group).is_far()).for_each(|group| far[group as usize / 2_000] += 1);
        }
        kernel.next_interval();
    }
    // The second costs 240 ms in 40 s, 0.6 % of the time; the first 4 %.
    let [often, rarely] = far.map(|far| far / 800);
    assert!(rarely > 1_700 && often < 300, "{often} of 2,000 used often, {rarely} of 2,000 used rarely");
    let owed_us = 64 * 20_000;
    assert!(lost_us <= 8_000_000 + owed_us, "{lost_us} us of 800 s: the target is 1 %");
}

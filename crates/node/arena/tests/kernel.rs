//! The simulated kernel: no group is lost, and what Linux documents holds.

use arena::kernel::{Costs, Kernel, Place};
use arena::law::Request;
use arena::trace::{Group, Interval, Kind, Trace};
use arena::view::View;
use policy::balance::AnonFileBias;
use proptest::prelude::*;
use units::{Bytes, RatioPpm};

fn trace(groups: Vec<Group>, intervals: Vec<Vec<u32>>) -> Trace {
    let intervals = intervals.into_iter().map(|accessed| Interval { accessed, freed: Vec::new() }).collect();
    Trace { name: "made".to_owned(), interval_ms: 1_000, group_pages: 1, compression: 1, settle: 0, groups, intervals }
}

fn group(kind: Kind) -> Group {
    Group { kind, compressed: RatioPpm(250_000) }
}

fn request(number: u8, groups: u32, random: &mut fastrand::Rng) -> Request {
    let bytes = Bytes(random.u64(0..u64::from(groups) * 8_192));
    match number {
        0 => Request::OpenGeneration,
        1 => Request::Evict { up_to: random.u32(0..12), swappiness: random.u8(1..=200), most: bytes },
        2 => Request::Reclaim { bytes, bias: AnonFileBias::Swappiness(random.u8(0..=200)) },
        3 => Request::Reclaim { bytes, bias: AnonFileBias::FileOnly },
        4 => Request::Zswap(random.bool()),
        5 => Request::WriteBack((0..random.u32(0..20)).map(|_| random.u32(0..groups)).collect()),
        _ => Request::PageOut((0..random.u32(0..20)).map(|_| random.u32(0..groups)).collect()),
    }
}

proptest! {
    #[test]
    fn no_group_is_lost(seed in any::<u64>(), requests in prop::collection::vec(0u8..7, 1..60)) {
        let mut random = fastrand::Rng::with_seed(seed);
        let kinds = (0..200).map(|at| Group { compressed: RatioPpm(random.u32(1..1_300_000)), ..group(Kind::ALL[at % 2]) }).collect();
        let mut trace = trace(kinds, (0..requests.len()).map(|_| Vec::new()).collect());
        for interval in &mut trace.intervals {
            for list in [&mut interval.accessed, &mut interval.freed] {
                list.extend((0..random.u32(0..40)).map(|_| random.u32(0..200)));
                list.sort_unstable();
                list.dedup();
            }
        }
        let mut kernel = Kernel::new(&trace, Costs::default());
        for &number in &requests {
            kernel.access();
            kernel.carry_out(&request(number, 200, &mut random));
            let view = View::new(&kernel);
            let at = |places: &[Place]| (0..200u32).filter(|&group| places.contains(&view.place(group))).count() as u64;
            let resident = (view.resident(Kind::Anon) + view.resident(Kind::File)).0 / 4_096;
            prop_assert_eq!(resident, at(&[Place::Resident]));
            let stored = (0..200u32).filter(|&group| view.place(group) == Place::Zswap).map(|group| view.compressed(group).share_of(4_096));
            prop_assert_eq!(view.pool().0, stored.sum::<u64>());
            let far = at(&[Place::Zswap, Place::Device, Place::Dropped]);
            prop_assert_eq!(kernel.saved().0, far * 4_096 - view.pool().0);
            let listed = view.generations().map(|generation| generation.groups[0] + generation.groups[1]).sum::<u64>();
            prop_assert_eq!(listed, resident);
            prop_assert!((2..=4).contains(&view.generations().count()));
            kernel.next_interval();
        }
    }
}

#[test]
fn a_fifth_generation_merges_the_two_oldest() {
    let intervals = (0..6).map(|at| vec![at]).collect();
    let trace = trace(vec![group(Kind::Anon); 6], intervals);
    let mut kernel = Kernel::new(&trace, Costs::default());
    for _ in 0..6 {
        kernel.access();
        kernel.carry_out(&Request::OpenGeneration);
        kernel.next_interval();
    }
    let groups: Vec<u64> = View::new(&kernel).generations().map(|generation| generation.groups[0]).collect();
    assert_eq!(groups, [4, 1, 1, 0], "four generations, the oldest with all that are older than two openings");
}

#[test]
fn a_return_is_a_memory_stall_only_while_its_generation_is_the_oldest() {
    let stall_after = |openings: u32| {
        let mut intervals: Vec<Vec<u32>> = vec![vec![0, 1]; 12];
        intervals[1..11].iter_mut().for_each(|accessed| *accessed = vec![1]);
        let trace = trace(vec![group(Kind::Anon); 2], intervals);
        let mut kernel = Kernel::new(&trace, Costs::default());
        for at in 0..12 {
            kernel.access();
            match at {
                0 => kernel.carry_out(&Request::PageOut(vec![0])),
                _ if at <= openings => kernel.carry_out(&Request::OpenGeneration),
                _ => {}
            }
            kernel.next_interval();
        }
        assert_eq!((kernel.counters().lost_us, kernel.counters().promoted), (120, 1));
        let view = View::new(&kernel);
        (view.memory_stall().total_us, view.io_stall().total_us)
    };
    assert_eq!(stall_after(0), (120, 0));
    assert_eq!(stall_after(10), (0, 0), "zswap is no I/O, and the generation is gone");
}

#[test]
fn a_wait_for_a_device_is_an_io_stall() {
    let trace = trace(vec![group(Kind::File)], vec![vec![0], vec![], vec![0]]);
    let mut kernel = Kernel::new(&trace, Costs::default());
    kernel.access();
    kernel.carry_out(&Request::PageOut(vec![0]));
    kernel.next_interval();
    kernel.next_interval();
    kernel.access();
    assert_eq!((View::new(&kernel).io_stall().total_us, kernel.counters().refaulted), (500, 1));
}

#[test]
fn adjacent_pages_of_a_file_are_one_wait_and_as_many_refaults() {
    // Of 0 to 99 all but 40 to 49 return; 120 and 122 are not adjacent, and anonymous memory is not read ahead.
    let groups = [vec![group(Kind::File); 123], vec![group(Kind::Anon); 2]].concat();
    let returning: Vec<u32> = (0..100).chain([120, 122, 123, 124]).collect();
    let trace = trace(groups, vec![(0..125).collect(), vec![], returning.clone()]);
    let after = |readahead_pages| {
        let mut kernel = Kernel::new(&trace, Costs { readahead_pages, ..Costs::default() });
        kernel.access();
        kernel.carry_out(&Request::PageOut(returning.iter().copied().filter(|group| !(40..50).contains(group)).collect()));
        kernel.next_interval();
        kernel.next_interval();
        kernel.access();
        let counters = kernel.counters();
        (counters.lost_us, counters.refaulted, View::new(&kernel).io_stall().total_us)
    };
    // Windows of 32 pages begin at 0, 32, 64 and 96.
    assert_eq!(after(32), (6 * 500 + 2 * 120, 92, 6 * 500));
    assert_eq!(after(1), (92 * 500 + 2 * 120, 92, 92 * 500));
}

#[test]
fn reclaim_keeps_what_was_accessed_since_the_last_opening() {
    // Groups 0 to 99 are accessed again after a generation was opened, 100 to 199 are not.
    let trace = trace(vec![group(Kind::Anon); 200], vec![(0..200).collect(), (0..100).collect(), (0..100).collect()]);
    let mut kernel = Kernel::new(&trace, Costs::default());
    for _ in 0..3 {
        kernel.access();
        kernel.carry_out(&Request::OpenGeneration);
        kernel.next_interval();
    }
    kernel.carry_out(&Request::Reclaim { bytes: Bytes(100 * 4_096), bias: AnonFileBias::Swappiness(200) });
    let view = View::new(&kernel);
    assert!((0..100).all(|group| view.place(group) == Place::Resident));
    assert!((100..200).all(|group| view.place(group) == Place::Zswap));
}

#[test]
fn the_two_youngest_generations_are_never_evicted() {
    let trace = trace(vec![group(Kind::Anon); 10], vec![(0..10).collect(); 3]);
    let mut kernel = Kernel::new(&trace, Costs::default());
    kernel.access();
    kernel.carry_out(&Request::Evict { up_to: 2, swappiness: 200, most: Bytes(u64::MAX) });
    assert_eq!(kernel.counters().reclaimed, 0);
}

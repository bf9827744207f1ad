use fastrand::Rng;
use proptest::prelude::*;

use pool::{Ns, SLICE, Slices};
use units::{Bytes, RatioPpm};
use vmtrace::Vm;

use super::state::SECOND;
use super::*;
use crate::faults::Faults;
use crate::memory::{Predict, Prediction};
use crate::oracle::{Accuracy, Oracle};
use crate::pod::Pod;
use crate::provision::{local_only_mib, provision};
use crate::service_level::{Rule, ServiceLevel};
use crate::study::{self, ClusterAssignment, ExtraRuns, Servers};
use crate::tally::saved;

const GIB: u64 = SLICE.0;

/// VMs with random arrivals and departures, all of which leave.
fn vms(seed: u64, count: u64, seconds: i64) -> Vec<Vm> {
    let mut random = Rng::with_seed(seed);
    let mut vms: Vec<Vm> = (0..count)
        .map(|id| {
            let arrival = random.i64(0..seconds);
            let cores = 1 << random.u32(0..4);
            Vm {
                id,
                arrival,
                departure: Some(arrival + random.i64(0..seconds)),
                cores,
                memory_bytes: Bytes(u64::from(cores) * random.u64(1..9) * GIB / 2),
                untouched_ratio: Some(random.f64()),
                slowdown_64ns: Some(random.f64() * 0.12),
                slowdown_140ns: Some(random.f64() * 0.25),
                ..Vm::default()
            }
        })
        .collect();
    vms.sort_by_key(Vm::order);
    vms
}

fn cluster(vms: Vec<Vm>, site: &Site) -> Cluster {
    let ends = vms.iter().filter_map(|vm| vm.departure).max().unwrap_or(0);
    study::clusters(vms, ends, ClusterAssignment::AsTraced, Servers::PeakFill(RatioPpm(800_000)), site).remove(0)
}

fn setup(pool_sockets: u32, memory: MemoryPolicy<'_>) -> Setup<'_> {
    Setup { pool_sockets, memory, added_ns: 64 }
}

const CONFIRM: ExtraRuns = ExtraRuns { confirm: true, provision: false };

const HALF: MemoryPolicy<'static> = MemoryPolicy::Static { share: RatioPpm(500_000), seed: 1 };

/// A site with several faults per hour.
fn faulty(seed: u64) -> Site {
    let second = |n: u64| Some(Ns(n * SECOND));
    let faults = Faults {
        emc_every: second(20_000),
        host_every: second(40_000),
        manager_every: second(10_000),
        back_after: Ns(600 * SECOND),
        stuck_ppm: RatioPpm(50_000),
    };
    Site { seed, emcs: 2, buffer_slices: Slices(3), faults, ..Site::default() }
}

#[test]
fn a_pool_of_one_server_saves_nothing_and_larger_ones_more() {
    // Slices are released at once; otherwise slices in release add to the required memory.
    let site = Site { offline: (Ns(0), Ns(0)), scrub: Ns(0), ..Site::default() };
    let cluster = cluster(vms(1, 6_000, 100_000), &site);
    let without = baseline(&site, &cluster).unwrap();
    assert_eq!(without.tally.rejected, 0);
    let savings = |pool_sockets, memory| {
        let tally = simulate(&site, setup(pool_sockets, memory), &cluster, &without, Capacity::Ample).unwrap();
        assert_eq!((tally.started, tally.rejected, tally.moved, tally.fell_back), (6_000, 0, 0, 0));
        saved(tally.required.bytes(), without.tally.required.bytes())
    };
    assert_eq!(savings(16, MemoryPolicy::AllLocal).to_bits(), 0f64.to_bits());
    let by_size = [2, 8, 32].map(|pool_sockets| savings(pool_sockets, HALF));
    assert!(by_size[0].abs() < 0.02, "{by_size:?}: rounding to whole slices costs or gains little");
    assert!(by_size[1] > by_size[0] + 0.02 && by_size[2] > by_size[1], "{by_size:?}");
    let some = savings(32, MemoryPolicy::Static { share: RatioPpm(100_000), seed: 1 });
    assert!(some > 0.0 && some < by_size[2] / 2.0, "{some} of {by_size:?}");
}

#[test]
fn a_pod_whose_devices_all_servers_reach_is_a_pool_with_several_controllers() {
    let mut site = faulty(3);
    site.faults = Faults { emc_every: site.faults.emc_every, manager_every: site.faults.manager_every, ..site.faults };
    (site.faults.host_every, site.faults.stuck_ppm, site.buffer_slices) = (None, RatioPpm(0), Slices::ZERO);
    let cluster = cluster(vms(9, 3_000, 100_000), &site);
    let without = baseline(&site, &cluster).unwrap();
    let capacity = Capacity::Uniform(UniformCapacity { node_mib: 40 << 10, pool_slices: Slices(200) });
    let of = |site: &Site| simulate(site, setup(16, HALF), &cluster, &without, capacity).unwrap();
    let pool = of(&Site { emcs: 4, ..site.clone() });
    let pod = of(&Site { pod: Some(Pod { ports: 8, per_server: 4, per_vm: 1 }), ..site.clone() });
    assert!(pool.fell_back + pool.moved > 100 && pool.lost_with_emc > 10 && pool.emc_failures == pod.emc_failures, "{pool:?}");
    // Counters without what is counted for each ledger: a message that a manager lacks is one for each of them.
    let comparable =
        |tally: &Tally| Tally { required: pool.required, pool_peaks: Vec::new(), events: 0, faults: 0, deferred: 0, ..tally.clone() };
    assert_eq!(comparable(&pod), comparable(&pool));
}

#[test]
fn sparse_pods_save_more_than_pools_of_as_many_servers_as_a_device_has_ports() {
    let site = Site { offline: (Ns(0), Ns(0)), scrub: Ns(0), ..Site::default() };
    let cluster = cluster(vms(1, 6_000, 100_000), &site);
    let without = baseline(&site, &cluster).unwrap();
    let saved = |pod: Option<Pod>, pool_sockets| {
        let site = Site { pod, ..site.clone() };
        let tally = simulate(&site, setup(pool_sockets, HALF), &cluster, &without, Capacity::Ample).unwrap();
        assert_eq!((tally.started, tally.rejected, tally.fell_back), (6_000, 0, 0));
        saved(tally.required.bytes(), without.tally.required.bytes())
    };
    let pod = |per_server, per_vm| Some(Pod { ports: 4, per_server, per_vm });
    let (of_4_servers, of_16_servers) = (saved(None, 8), saved(None, 32));
    let sparse = [saved(pod(8, 8), 32), saved(pod(4, 4), 32), saved(pod(4, 1), 32)];
    assert!(of_4_servers < sparse[0] && sparse[0] < of_16_servers, "{of_4_servers} {sparse:?} {of_16_servers}");
    assert!(sparse.is_sorted_by(|a, b| a > b), "{sparse:?}: the fewer devices share a peak, the higher it is");
}

#[test]
fn the_failure_of_a_device_costs_fewer_vms_if_each_has_memory_of_few_devices() {
    let mut site = faulty(5);
    site.faults = Faults { emc_every: Some(Ns(400_000 * SECOND)), back_after: site.faults.back_after, ..Faults::default() };
    let cluster = cluster(vms(8, 4_000, 100_000), &site);
    let without = baseline(&site, &cluster).unwrap();
    let lost = |per_vm| {
        let site = Site { pod: Some(Pod { ports: 4, per_server: 8, per_vm }), ..site.clone() };
        let tally = simulate(&site, setup(32, HALF), &cluster, &without, Capacity::Ample).unwrap();
        assert!(tally.emc_failures > 10 && tally.emc_failures == tally.faults && tally.lost_with_emc_max > 0, "{tally:?}");
        tally.lost_with_emc
    };
    let [one, all] = [1, 8].map(lost);
    assert!(one > 0 && one * 2 < all, "{one} {all}");
}

#[test]
fn pools_of_the_measured_size_are_sufficient() {
    let site = Site { buffer_slices: Slices(2), ..Site::default() };
    let cluster = cluster(vms(2, 3_000, 100_000), &site);
    let without = baseline(&site, &cluster).unwrap();
    let measured = simulate(&site, setup(16, HALF), &cluster, &without, Capacity::Ample).unwrap();
    let peaks: Vec<Slices> = measured.pool_peaks.iter().map(|peak| peak.in_use + Slices(2)).collect();
    let again = simulate(&site, setup(16, HALF), &cluster, &without, Capacity::Slices(&peaks)).unwrap();
    assert_eq!((again.rejected, again.moved, again.fell_back, again.pool_peaks), (0, 0, 0, measured.pool_peaks.clone()));
    assert!(again.release_gib_per_s_max > 0.0 && again.starts_above_1_gib_per_s < again.started / 20);
    // Half of it is not sufficient: VMs are placed on other servers, but all of them run.
    let half: Vec<Slices> = measured.pool_peaks.iter().map(|peak| Slices(peak.in_use.0 / 2)).collect();
    let short = simulate(&site, setup(16, HALF), &cluster, &without, Capacity::Slices(&half)).unwrap();
    assert!(short.moved + short.fell_back > 0 && short.started == again.started, "{short:?}");
}

#[test]
fn provisioned_memory_is_sufficient_and_minimal() {
    // Each VM fills the cores of a NUMA node. One in four has ten times the memory of the others, so that most of the memory that
    // every server must have for such a VM is stranded.
    let mut vms = vms(5, 1_000, 100_000);
    for vm in &mut vms {
        (vm.cores, vm.memory_bytes) = (24, Bytes::gib(if vm.id % 4 == 0 { 320 } else { 32 }));
    }
    let site = Site::default();
    let cluster = cluster(vms, &site);
    let without = baseline(&site, &cluster).unwrap();
    for rule in [Rule::Replayed, Rule::Scheduled] {
        let site = Site { service_level: ServiceLevel { rule, ..ServiceLevel::default() }, ..site.clone() };
        let node_mib = local_only_mib(&site, &cluster, &without).unwrap();
        let found = |memory| provision(&site, setup(16, memory), &cluster, &without, node_mib).unwrap();
        let local = found(MemoryPolicy::AllLocal);
        assert_eq!((local.bytes, local.pool_bytes, local.pools), (local.local_only_bytes, Bytes::ZERO, 0));
        assert_eq!(
            local.local_only_bytes,
            Bytes::gib(u64::from(cluster.servers) * 320),
            "every server must be able to hold the largest VM"
        );
        let pooled = found(HALF);
        assert_eq!(pooled.local_only_bytes, local.local_only_bytes);
        assert!(pooled.rented_at_peak_bytes > Bytes::ZERO && pooled.rented_at_peak_bytes < pooled.bytes);
        assert!(pooled.pool_bytes > Bytes::ZERO && pooled.bytes.0 < pooled.local_only_bytes.0 * 9 / 10, "{pooled:?}");
        // What the search says is kept, is kept by the whole run with that memory.
        assert!(pooled.tally.rejected * 1_000 <= without.tally.started, "{pooled:?}");
        assert_eq!(
            (pooled.tally.moved == 0, pooled.tally.started + pooled.tally.rejected),
            (rule == Rule::Scheduled, without.tally.started)
        );
    }
}

#[test]
fn a_stricter_service_level_requires_more_memory() {
    let cluster = cluster(vms(6, 2_000, 100_000), &Site::default());
    let without = baseline(&Site::default(), &cluster).unwrap();
    let node_mib = |rule, ppm| {
        let site = Site { service_level: ServiceLevel { rule, share: RatioPpm(ppm) }, ..Site::default() };
        local_only_mib(&site, &cluster, &without).unwrap()
    };
    let [strict, usual, lax] = [0, 1_000, 100_000].map(|ppm| node_mib(Rule::Replayed, ppm));
    assert!(strict >= usual && usual > lax, "{strict} {usual} {lax}");
    let moved = node_mib(Rule::RarelyMoved, 1_000);
    assert!(moved > usual, "{moved} {usual}: a VM that is moved counts too");
    // By this rule with no moves at all, the largest peak of a server is necessary and enough.
    let nodes = u64::from(Site::default().shape.nodes);
    let peak = without.tally.server_peaks_mib.iter().max().unwrap().div_ceil(nodes);
    assert!(u64::from(node_mib(Rule::RarelyMoved, 0)) >= peak);
}

#[test]
fn an_unreachable_service_level_is_an_error() {
    // Two VMs that fill a server's cores, at the same time, on one server: one is refused whatever the memory. The baseline is one of
    // two servers.
    let site = Site { service_level: ServiceLevel { rule: Rule::Scheduled, share: RatioPpm(0) }, ..Site::default() };
    let vm = |id| Vm { id, arrival: 0, departure: Some(10), cores: 48, memory_bytes: Bytes(GIB), ..Vm::default() };
    let two = Cluster { vms: vec![vm(0), vm(1)], servers: 2, ends: 10 };
    let without = baseline(&site, &two).unwrap();
    let one = Cluster { servers: 1, ..two };
    let error = local_only_mib(&site, &one, &without).unwrap_err();
    assert_eq!(error, study::Error::ServiceLevel { servers: 1, vms: 2, share: RatioPpm(0) });
    assert!(error.to_string().contains("peak fill"), "{error}");
}

#[test]
fn slow_vms_are_mitigated_up_to_the_limit() {
    struct Pooled;
    impl Predict for Pooled {
        fn predict(&self, _: &Vm) -> Prediction {
            Prediction { insensitive: true, untouched_ratio: 0.0 }
        }
    }
    let check = |mitigated_ppm: u32, noticed_after: u64, want: &dyn Fn(&Tally) -> bool| {
        let site = Site { mitigated_ppm: RatioPpm(mitigated_ppm), noticed_after: Ns(noticed_after * SECOND), ..Site::default() };
        let cluster = cluster(vms(3, 2_000, 100_000), &site);
        let without = baseline(&site, &cluster).unwrap();
        let tally = simulate(&site, setup(16, MemoryPolicy::Pond(&Pooled)), &cluster, &without, Capacity::Ample).unwrap();
        assert!(tally.mispredicted > 1_000 && want(&tally), "{tally:?}");
    };
    check(0, 60, &|tally| tally.mitigated == 0 && tally.left_slow > 1_000);
    check(1_000_000, 60, &|tally| tally.mitigated > 1_000 && tally.left_slow < 10 && tally.pool_ratio() < 0.6);
    check(10_000, 60, &|tally| tally.mitigated == 20);
    check(1_000_000, 1 << 30, &|tally| tally.mitigated == 0 && tally.left_slow == 0);
}

#[test]
fn the_same_seed_gives_the_same_outcome_on_any_number_of_threads() {
    let site = faulty(7);
    let vms = vms(4, 3_000, 60_000);
    let ends = vms.iter().filter_map(|vm| vm.departure).max().unwrap();
    let oracle = Oracle::new(&vms, &Accuracy::AT_182, 64, 0.05, 3);
    let assignment = ClusterAssignment::Hashed(std::num::NonZero::new(3).unwrap());
    let clusters = study::clusters(vms, ends, assignment, Servers::PeakFill(RatioPpm(800_000)), &site);
    assert_eq!(clusters.len(), 3);
    let setups: Vec<_> = [2, 16].into_iter().flat_map(|size| [setup(size, HALF), setup(size, MemoryPolicy::Pond(&oracle))]).collect();
    let outcome = |threads: usize| {
        let threads = std::num::NonZero::new(threads).unwrap();
        let without = study::baselines(&site, &clusters, threads, |_| {}).unwrap();
        format!("{:?}", study::run(&site, &clusters, &without, &setups, CONFIRM, threads, |_| {}).unwrap())
    };
    assert_eq!(outcome(1), outcome(3));
    let others = Site { seed: 8, ..site.clone() };
    let threads = std::num::NonZero::new(2).unwrap();
    let without = study::baselines(&others, &clusters, threads, |_| {}).unwrap();
    assert_ne!(format!("{:?}", study::run(&others, &clusters, &without, &setups, CONFIRM, threads, |_| {}).unwrap()), outcome(2));
}

#[test]
fn an_invalid_server_shape_is_refused() {
    let site = Site { shape: placement::Shape { nodes: 5, ..Site::default().shape }, ..Site::default() };
    let clusters = [Cluster { vms: vec![], servers: 1, ends: 0 }];
    assert_eq!(study::baselines(&site, &clusters, std::num::NonZero::<usize>::MIN, |_| {}).err(), Some(study::Error::Servers));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    // Conservation of memory holds after every event, with every component failing.
    #[test]
    fn no_memory_is_lost_under_any_faults(
        seed in 0u64..1_000_000,
        pool_sockets in 1u32..40,
        bounded in any::<bool>(),
        pod in proptest::option::of((2u16..5, 1u16..5, 1u16..3)),
    ) {
        let pod = pod.map(|(ports, per_server, per_vm)| Pod { ports, per_server, per_vm });
        let site = Site { pod, ..faulty(seed) };
        let cluster = cluster(vms(seed, 250, 40_000), &site);
        let without = baseline(&site, &cluster).unwrap();
        let small = vec![Slices(40); 4 * cluster.servers as usize];
        let capacity = if bounded { Capacity::Slices(&small) } else { Capacity::Ample };
        let mut run = Run::new(&site, setup(pool_sockets, HALF), &cluster, Some(&without), capacity).unwrap();
        while run.step().is_some() {
            let of_vms: Slices = run.running.iter().flatten().map(|vm| vm.slices).sum();
            let works = run.pools().iter().all(pool::Pool::manager_works);
            prop_assert!(!works || of_vms == run.slices_in_use().into_iter().sum::<Slices>());
            for (pool, running) in run.pools().iter().zip(run.slices_in_use()) {
                prop_assert_eq!(pool.audit(), Ok(()));
                // A failed manager counts slices of departed VMs as in use until it is notified; VMs never have more than that.
                prop_assert!(running <= Slices(pool.counts().online));
                prop_assert!(!pool.manager_works() || running == Slices(pool.counts().online));
            }
        }
        for pool in run.pools() {
            prop_assert_eq!(Slices(pool.counts().free), pool.counts().total(), "every VM that left returned its slices");
        }
        let tally = run.finish();
        prop_assert!(tally.started + tally.rejected == without.tally.started);
        prop_assert!(tally.faults > 0);
    }
}

//! Packing of small traces, and properties of any packing.

use placement::Strategy as Named;
use proptest::prelude::*;

use super::*;
use crate::about::About;
use crate::write::Writer;

fn vm(id: u64, hours: (i64, Option<i64>), cores: u32, gib: u64) -> Vm {
    let (arrival, departure) = (hours.0 * 3_600, hours.1.map(|hour| hour * 3_600));
    Vm { id, arrival, departure, cores, memory_bytes: Bytes::gib(gib), ..Vm::default() }
}

fn trace(vms: &[Vm], ends_hours: i64) -> (tempfile::TempDir, Trace) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.parquet");
    let mut writer = Writer::create(&path).unwrap();
    vms.iter().for_each(|vm| writer.push(vm).unwrap());
    writer.finish(&About { ends: ends_hours * 3_600, ..About::default() }).unwrap();
    let trace = Trace::open(&path).unwrap();
    (dir, trace)
}

fn shape(cores: u32, gib_per_core: u64) -> Shape {
    Shape { cores, dram_per_core_bytes: Bytes::gib(gib_per_core), peak_fill: 1.0, strategy: Named::BestFit }
}

fn packed(vms: &[Vm], ends_hours: i64, shape: Shape) -> (Demand, Stranding) {
    let (_dir, trace) = trace(vms, ends_hours);
    let demand = Demand::of(&trace, &mut || ()).unwrap();
    let stranding = stranding(&trace, &demand, shape, &mut || ()).unwrap();
    (demand, stranding)
}

#[test]
fn memory_behind_rented_cores_is_stranded() {
    // One server of 4 cores and 16 GiB. All cores are rented from hour 0 to 2, with 6 GiB free. After that half of the cores are
    // rented, and VMs of this trace, of at most 4 GiB per core, cannot rent all of the free memory.
    let vms = [vm(0, (0, Some(3)), 2, 8), vm(1, (0, None), 2, 2)];
    let (demand, of) = packed(&vms, 5, shape(4, 4));
    assert_eq!((demand.vms, demand.least_cores, demand.most_cores, demand.most_bytes_per_core), (2, 2, 2, Bytes::gib(4)));
    assert_eq!(demand.peaks, BTreeMap::from([(0, (4, Bytes::gib(10)))]));
    assert_eq!((of.clusters, of.servers, of.samples), (1, 1, 5));
    let bins: Vec<_> = of.bins.iter().map(|bin| (bin.scheduled_ratio, bin.samples, bin.stranded_median)).collect();
    // 14 GiB are free, of which 2 cores can rent 8: 6 of 16 GiB are stranded.
    assert_eq!(bins, [(0.5, 3, 0.375), (1.0, 2, 0.375)]);
    // With a VM of more memory per core in the trace, nothing is stranded before the last core is rented.
    let hungry = [vm(0, (0, Some(3)), 2, 8), vm(1, (0, None), 2, 2), vm(2, (4, Some(4)), 1, 14)];
    let (_, of) = packed(&hungry, 5, shape(4, 4));
    assert_eq!(of.bins.iter().map(|bin| (bin.samples, bin.stranded_median)).collect::<Vec<_>>(), [(3, 0.0), (2, 0.375)]);
}

#[test]
fn a_vm_is_placed_on_the_fullest_server_that_fits() {
    let mut servers = Servers::new(3, 8, Bytes::gib(32), Named::BestFit).unwrap();
    let first = servers.place(0, 6, Bytes::gib(8)).unwrap();
    // Two cores are left on that server: a VM of two cores is placed there, one of three is not.
    servers.place(0, 2, Bytes::gib(8)).unwrap();
    assert_eq!(servers.place(0, 3, Bytes::gib(24)).map(|placed| placed.server), Ok(1));
    // The server with the fewest free cores is chosen if it has enough memory, otherwise the next.
    assert_eq!(servers.place(0, 1, Bytes::gib(9)).map(|placed| placed.server), Ok(2));
    assert_eq!(servers.place(0, 1, Bytes::gib(8)).map(|placed| placed.server), Ok(1));
    assert_eq!(servers.place(0, 9, Bytes::gib(1)), Err(Refused::Cores));
    assert_eq!(servers.place(0, 1, Bytes::gib(33)), Err(Refused::Memory));
    servers.free(first);
    assert_eq!(servers.place(0, 6, Bytes::gib(24)).map(|placed| placed.server), Ok(0));
}

#[test]
fn refused_vms_are_counted() {
    // Three servers for a peak of 9 cores. The last VM finds free cores but not enough free memory.
    let vms = [vm(0, (0, None), 4, 8), vm(1, (0, None), 2, 5), vm(2, (1, None), 2, 2), vm(3, (2, None), 1, 9)];
    let (_, of) = packed(&vms, 9, Shape { peak_fill: 0.9, ..shape(4, 2) });
    assert_eq!((of.servers, of.refused_for_cores, of.refused_for_memory), (3, 0, 1));
    let (_dir, trace) = trace(&vms, 9);
    let demand = Demand::of(&trace, &mut || ()).unwrap();
    let error = stranding(&trace, &demand, shape(3, 4), &mut || ()).unwrap_err().to_string();
    assert!(error.contains("has 4 cores and does not fit on servers of 3"), "{error}");
}

#[test]
fn clusters_do_not_share_servers() {
    let vms = [vm(0, (0, None), 4, 1), Vm { cluster: 9, ..vm(1, (0, None), 2, 8) }];
    let (demand, of) = packed(&vms, 2, shape(4, 4));
    assert_eq!(demand.peaks.len(), 2);
    assert_eq!((of.clusters, of.servers, of.samples), (2, 2, 4));
    assert_eq!(of.bins.iter().map(|bin| bin.samples).collect::<Vec<_>>(), [2, 2]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// For any sequence of arrivals and departures, no server is oversubscribed, and at the end everything is free.
    #[test]
    fn no_resource_is_rented_twice(requests in prop::collection::vec((1_u32..9, 1_u64..40, any::<bool>()), 1..60)) {
        let mut servers = Servers::new(3, 8, Bytes::gib(32), Named::BestFit).unwrap();
        let mut placed = Vec::new();
        for (cores, gib, leave) in requests {
            if leave && !placed.is_empty() {
                servers.free(placed.remove(0));
            }
            placed.extend(servers.place(0, cores, Bytes::gib(gib)));
            let rented: u32 = placed.iter().map(|placed| placed.cores).sum();
            prop_assert!((servers.scheduled_ratio() - f64::from(rented) / 24.0).abs() < 1e-9);
            for server in 0..3 {
                let here = || placed.iter().filter(|placed| placed.server == server);
                prop_assert!(here().map(|placed| placed.cores).sum::<u32>() <= 8);
                prop_assert!(here().map(|placed| u64::from(placed.mib)).sum::<u64>() <= 32 * 1024);
            }
            let all_stranded = servers.stranded_ratio(Bytes::ZERO);
            prop_assert!((0.0..=1.0).contains(&all_stranded) && servers.stranded_ratio(Bytes::gib(1)) <= all_stranded);
        }
        placed.into_iter().for_each(|placed| servers.free(placed));
        prop_assert_eq!((servers.scheduled_ratio(), servers.stranded_ratio(Bytes::gib(4))), (0.0, 0.0));
    }
}

//! What groups cost: the VMs of a generated trace with several limits. A group is all VMs of a customer, or twelve that follow each
//! other, as of one service.

use std::collections::BTreeMap;

use placement::{Limit, Mode, Shape};
use units::{Bytes, Slices};
use vmtrace::{Trace, Vm, generate};

use super::State;
use crate::api::{Spread, VmRequest};
use crate::event::{Domain, Event, PoolOfHosts, Topology};

const SHAPE: Shape = Shape { nodes: 2, node_cores: 24, node_mib: 84 << 10 };
const LIMITS: [u32; 4] = [8, 4, 2, 1];
const POOL_HOSTS: u64 = 8;
/// Slices of a pool for each of its hosts.
const HOST_SLICES: u64 = 24;
/// Pools of a rack.
const RACK_POOLS: usize = 2;

/// Hosts of which the trace's VMs fill nine tenths of the cores at their peak.
fn topology(vms: &[Vm]) -> Topology {
    let mut changes: Vec<(i64, i64)> = vms.iter().map(|vm| (vm.arrival, i64::from(vm.cores))).collect();
    changes.extend(vms.iter().filter_map(|vm| Some((vm.departure?, -i64::from(vm.cores)))));
    changes.sort_unstable();
    let peak = changes
        .iter()
        .scan(0i64, |cores, (_, change)| {
            *cores += change;
            Some(*cores)
        })
        .max()
        .unwrap();
    let hosts = (peak.unsigned_abs() * 10).div_ceil(9 * SHAPE.cores());
    let pools: Vec<PoolOfHosts> = (0..hosts.div_ceil(POOL_HOSTS))
        .map(|pool| {
            let hosts = (pool * POOL_HOSTS..hosts.min((pool + 1) * POOL_HOSTS)).map(|host| format!("host-{host}")).collect::<Vec<_>>();
            let slices = Slices(u32::try_from(hosts.len() as u64 * HOST_SLICES).unwrap());
            PoolOfHosts { name: format!("pool-{pool}"), slices, managed: false, hosts }
        })
        .collect();
    let rack = |(number, pools): (usize, &[PoolOfHosts])| Domain {
        name: format!("rack-{number}"),
        hosts: pools.iter().flat_map(|pool| pool.hosts.clone()).collect(),
    };
    let domains = pools.chunks(RACK_POOLS).enumerate().map(rack).collect();
    Topology { shape: SHAPE, slice_bytes: Bytes::gib(1), strategy: placement::Strategy::PoolBalance, pools, domains }
}

#[derive(Debug, Default)]
struct Cost {
    refused: u64,
    /// All local although slices were requested.
    local: u64,
    slice_hours: f64,
    memory_gib_hours: f64,
    /// VMs that started where more of their group fail together than each of [`LIMITS`].
    over: [u64; 4],
    /// The most of a group that one domain's failure took along at the start of a VM.
    most: u32,
}

/// The group of each VM: those of a customer by so many in the order of their arrival.
fn groups(vms: &[Vm], size: u64) -> Vec<String> {
    let mut arrived: BTreeMap<u64, u64> = BTreeMap::new();
    let group = |vm: &Vm| {
        let count = arrived.entry(vm.customer.unwrap()).or_default();
        *count += 1;
        format!("{}/{}", vm.customer.unwrap(), (*count - 1) / size)
    };
    vms.iter().map(group).collect()
}

/// Places all VMs with this limit.
fn run(topology: &Topology, vms: &[Vm], groups: &[String], limit: Limit) -> Cost {
    let mut events: Vec<(i64, bool, usize)> = (0..).zip(vms).map(|(at, vm)| (vm.arrival, true, at)).collect();
    events.extend((0..).zip(vms).filter_map(|(at, vm)| Some((vm.departure?.max(vm.arrival + 1), false, at))));
    // Departures of a second before its arrivals.
    events.sort_unstable();
    let ends = events.last().unwrap().0;
    let (mut state, mut cost) = (State::new(topology.clone()).unwrap(), Cost::default());
    for (_, arrives, at) in events {
        let (vm, name) = (&vms[at], format!("vm-{at}"));
        if !arrives {
            if state.vm(&name).is_ok() {
                state.apply(&Event::Ended { vm: name }).unwrap();
            }
            continue;
        }
        let spread = Spread { group: groups[at].clone(), limit: limit.most, mode: limit.mode };
        // A quarter of each VM's memory, in whole slices.
        let pool_bytes = Bytes(vm.memory_bytes.0 / 4);
        let request = VmRequest { vm: name, cores: vm.cores, memory_bytes: vm.memory_bytes, pool_bytes, spread: Some(spread) };
        let event = state.decide(&request).unwrap();
        state.apply(&event).unwrap();
        let Event::Decided { on: Some(on), .. } = event else {
            cost.refused += 1;
            continue;
        };
        cost.local += u64::from(on.slices < state.slices(&request));
        #[expect(clippy::cast_precision_loss, reason = "for people")]
        let hours = (vm.departure.unwrap_or(ends) - vm.arrival) as f64 / 3_600.0;
        cost.slice_hours += hours * f64::from(on.slices.0);
        cost.memory_gib_hours += hours * f64::from(u32::try_from(vm.memory_bytes.0 >> 20).unwrap()) / 1_024.0;
        let together = state.placed(state.known(&request).unwrap()).spread.unwrap();
        let most = together.with_domain.max(together.with_pool);
        cost.most = cost.most.max(most);
        for (over, limit) in cost.over.iter_mut().zip(LIMITS) {
            *over += u64::from(most > limit);
        }
    }
    cost
}

#[test]
#[ignore = "takes three minutes; its figures are in docs/measurements.md"]
fn what_groups_cost() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("vms.parquet");
    generate::generate(&generate::Settings { seed: 1, vms: 6_000, clusters: 1, days: 7 }, &path, &mut || ()).unwrap();
    let vms: Vec<Vm> = Trace::open(&path).unwrap().vms().map(Result::unwrap).collect();
    let topology = topology(&vms);
    let hosts: usize = topology.pools.iter().map(|pool| pool.hosts.len()).sum();
    println!("{} VMs, {hosts} hosts, {} pools, {} racks", vms.len(), topology.pools.len(), topology.domains.len());
    for size in [u64::MAX, 12] {
        let groups = groups(&vms, size);
        println!("{} groups", groups.iter().collect::<std::collections::BTreeSet<_>>().len());
        let run = |most, mode| {
            let cost = run(&topology, &vms, &groups, Limit { most, mode });
            println!("{most} {mode:?}: {cost:?}, {:.2} % of memory", 100.0 * cost.slice_hours / cost.memory_gib_hours);
            cost
        };
        let free = run(u32::MAX, Mode::Soft);
        for (at, most) in LIMITS.into_iter().enumerate() {
            // A soft limit refuses no VM by itself; a hard one is never exceeded.
            let soft = run(most, Mode::Soft);
            assert!(soft.over[at] <= free.over[at] && soft.refused < free.refused + 100);
            assert_eq!(run(most, Mode::Hard).over[at], 0);
        }
    }
}

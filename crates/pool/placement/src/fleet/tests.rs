use proptest::prelude::*;
use units::Slices;

use super::*;
use crate::policy::Strategy as Named;

const SHAPE: Shape = Shape { nodes: 2, node_cores: 8, node_mib: 16_384 };
const GIB: u32 = 1_024;

fn vm(id: u64, cores: u32, local_gib: u32, pool_slices: u32) -> Request {
    Request { id, cores, local_mib: local_gib * GIB, pool_slices: Slices(pool_slices) }
}

fn spaces(grantable: &[u32]) -> Vec<PoolSpace> {
    grantable.iter().map(|&grantable| PoolSpace { grantable: Slices(grantable), capacity: Slices(16) }).collect()
}

#[test]
fn each_policy_chooses_its_preferred_server() {
    // Four servers in two pools: one nearly full, one short of memory, one short of cores, one empty.
    let mut fleet = Fleet::new(SHAPE, 4, 2).unwrap();
    for (server, cores, gib) in [(0, 5, 12), (0, 5, 12), (1, 1, 12), (2, 6, 2)] {
        let placement = fleet.fit_on(server, &vm(0, cores, gib, 0)).unwrap();
        assert!(fleet.reserve(&placement));
    }
    let check = |policy: Named, request: Request, pools: &[u32], want: Option<u32>| {
        let got = fleet.choose(&request, &spaces(pools), &policy);
        assert_eq!(got.map(|placement| placement.server), want, "{policy} {request:?}");
    };
    check(Named::FirstFit, vm(1, 2, 2, 0), &[16, 16], Some(0));
    check(Named::BestFit, vm(1, 2, 2, 0), &[16, 16], Some(0));
    check(Named::WorstFit, vm(1, 2, 2, 0), &[16, 16], Some(3));
    check(Named::Alignment, vm(1, 8, 1, 0), &[16, 16], Some(3));
    // Server 2 has cores to spare against its memory, server 1 the reverse.
    check(Named::Balance, vm(1, 1, 10, 0), &[16, 16], Some(2));
    check(Named::Balance, vm(1, 6, 1, 0), &[16, 16], Some(1));
    // Without slices the pool does not matter. With them, a server comes first whose free cores are in proportion
    // to what is left of its pool.
    check(Named::PoolBalance, vm(1, 1, 10, 0), &[0, 16], Some(2));
    check(Named::PoolBalance, vm(1, 2, 2, 2), &[16, 4], Some(1));
    check(Named::PoolBalance, vm(1, 2, 2, 2), &[4, 16], Some(3));
    // A pool without enough slices rules out its servers.
    check(Named::FirstFit, vm(1, 2, 2, 3), &[2, 16], Some(2));
    check(Named::FirstFit, vm(1, 2, 2, 3), &[2, 2], None);
    check(Named::FirstFit, vm(1, 2, 2, 3), &[], None);
    // A server without spanning comes before every preference.
    check(Named::FirstFit, vm(1, 4, 2, 0), &[16, 16], Some(1));
    check(Named::FirstFit, vm(1, 17, 2, 0), &[16, 16], None);
    let chosen: std::collections::BTreeSet<_> =
        (0..64).filter_map(|id| fleet.choose(&vm(id, 1, 1, 0), &spaces(&[16, 16]), &Named::Random { seed: 7 })).map(|p| p.server).collect();
    assert_eq!(chosen.len(), 4, "every server is chosen for some VM");
}

#[test]
fn a_vm_is_placed_on_one_node_if_possible() {
    let check = |taken: &[(u32, u32)], request: Request, want: &[(u32, u32)]| {
        let mut fleet = Fleet::new(SHAPE, 1, 1).unwrap();
        let mut nodes = [Node::default(); NODES_MAX];
        for (node, &(cores, gib)) in nodes.iter_mut().zip(taken) {
            *node = Node { cores, mib: gib * GIB };
        }
        assert!(fleet.reserve(&Placement { server: 0, nodes }));
        let got = fleet.fit_on(0, &request).map(|placement| placement.nodes.map(|node| (node.cores, node.mib / GIB)));
        assert_eq!(got.as_ref().map(|nodes| &nodes[..2]), (!want.is_empty()).then_some(want), "{taken:?} {request:?}");
    };
    check(&[], vm(1, 4, 8, 0), &[(4, 8), (0, 0)]);
    check(&[(0, 0), (2, 0)], vm(1, 4, 8, 0), &[(0, 0), (4, 8)]);
    check(&[(0, 12), (6, 0)], vm(1, 2, 8, 0), &[(0, 0), (2, 8)]);
    // All cores on one node, part of the memory on the other.
    check(&[(0, 12), (6, 0)], vm(1, 4, 8, 0), &[(4, 4), (0, 4)]);
    // More cores than a node has.
    check(&[(0, 0), (2, 0)], vm(1, 12, 20, 0), &[(8, 16), (4, 4)]);
    check(&[(8, 0), (1, 0)], vm(1, 8, 1, 0), &[]);
    check(&[(0, 16), (0, 9)], vm(1, 1, 8, 0), &[]);
}

#[test]
fn a_vm_grows_on_the_node_of_its_cores_first() {
    let check = |taken_gib: u32, grows_gib: u32, want: Option<(u32, u32)>| {
        let mut fleet = Fleet::new(SHAPE, 1, 1).unwrap();
        let mut nodes = [Node::default(); NODES_MAX];
        nodes[1] = Node { cores: 4, mib: taken_gib * GIB };
        let mut placement = Placement { server: 0, nodes };
        assert!(fleet.reserve(&placement));
        let before = (fleet.clone(), placement);
        let grew = fleet.grow(&mut placement, grows_gib * GIB);
        assert_eq!(grew.then_some((placement.nodes[0].mib / GIB, placement.nodes[1].mib / GIB)), want);
        assert!(grew || (fleet.clone(), placement) == before);
        fleet.release(&placement);
        assert_eq!(fleet, Fleet::new(SHAPE, 1, 1).unwrap());
    };
    check(4, 8, Some((0, 12)));
    check(12, 8, Some((4, 16)));
    check(12, 20, Some((16, 16)));
    check(12, 21, None);
}

#[test]
fn invalid_shapes_are_refused_and_servers_that_are_down_are_skipped() {
    for (nodes, pool_servers) in [(0, 1), (5, 1), (2, 0)] {
        assert_eq!(Fleet::new(Shape { nodes, ..SHAPE }, 1, pool_servers), None);
    }
    let mut fleet = Fleet::new(SHAPE, 3, 2).unwrap();
    assert_eq!((fleet.pools(), fleet.pool_of(2)), (2, (1, 0)));
    fleet.set_up(0, false);
    assert_eq!(fleet.choose(&vm(1, 1, 1, 0), &spaces(&[0, 0]), &Named::FirstFit).map(|p| p.server), Some(1));
    assert_eq!((fleet.free(0), fleet.free(1)), ((0, 0), (16, 32_768)));
    fleet.set_up(0, true);
    assert_eq!(fleet.choose(&vm(1, 1, 1, 0), &spaces(&[0, 0]), &Named::FirstFit).map(|p| p.server), Some(0));
}

#[test]
fn policies_are_found_by_name() {
    for name in Named::NAMES {
        assert_eq!(Named::named(name, 1).unwrap().to_string(), name);
    }
    assert!(Named::named("tetris", 1).unwrap_err().to_string().contains("best_fit"));
}

fn any_request() -> impl Strategy<Value = (Request, bool)> {
    let request = (0u64..1000, 1u32..20, 0u32..40_000, 0u32..6);
    (
        request.prop_map(|(id, cores, local_mib, pool_slices)| Request { id, cores, local_mib, pool_slices: Slices(pool_slices) }),
        any::<bool>(),
    )
}

fn any_policy() -> impl Strategy<Value = Named> {
    proptest::sample::select(&Named::NAMES[..]).prop_map(|name| Named::named(name, 3).unwrap())
}

proptest! {
    #[test]
    fn no_node_is_oversubscribed_and_releasing_all_restores_the_empty_fleet(
        requests in proptest::collection::vec(any_request(), 0..60), policy in any_policy(),
    ) {
        let empty = Fleet::new(SHAPE, 4, 2).unwrap();
        let (mut fleet, mut placed) = (empty.clone(), Vec::<Placement>::new());
        let pools = spaces(&[4, 2]);
        for (request, leaves) in requests {
            let chosen = fleet.choose(&request, &pools, &policy);
            prop_assert_eq!(chosen, fleet.clone().choose(&request, &pools, &policy), "the choice is deterministic");
            if let Some(placement) = chosen {
                let nodes = placement.nodes.iter().fold((0, 0), |sum, node| (sum.0 + node.cores, sum.1 + node.mib));
                prop_assert_eq!(nodes, (request.cores, request.local_mib), "all requested resources are placed");
                prop_assert!(pools[fleet.pool_of(placement.server).0 as usize].grantable >= request.pool_slices);
                prop_assert!(fleet.reserve(&placement), "the chosen server fits");
                placed.push(placement);
            } else {
                let fits = |server| {
                    let (cores, mib) = fleet.free(server);
                    cores >= request.cores && mib >= u64::from(request.local_mib)
                        && pools[fleet.pool_of(server).0 as usize].grantable >= request.pool_slices
                };
                prop_assert!(!(0..4).any(fits), "refused although a server fits");
            }
            if leaves && let Some(placement) = placed.pop() {
                fleet.release(&placement);
            }
        }
        placed.iter().for_each(|placement| fleet.release(placement));
        prop_assert_eq!(fleet, empty);
    }

    /// The shortcuts of the search never skip the best server.
    #[test]
    fn the_first_server_of_lowest_cost_is_chosen(
        requests in proptest::collection::vec(any_request(), 1..40), policy in any_policy(), empty in 1_u32..200, admitted in 1_u32..4,
    ) {
        let mut fleet = Fleet::new(SHAPE, 6 + empty, 100).unwrap();
        let pools = spaces(&[4, 2, 16]);
        for (request, _) in requests {
            // For some VMs all servers are admitted, for the others all but every first to third one.
            let admits = |server: u32| u64::from(server % admitted) != request.id % u64::from(admitted + 1);
            let candidates = (0..fleet.servers()).filter(|&server| admits(server)).filter_map(|server| {
                let (free, space) = (fleet.free(server), pools[fleet.pool_of(server).0 as usize]);
                let placement = fleet.fit_on(server, &request).filter(|_| space.grantable >= request.pool_slices)?;
                let spans = fleet.servers[server as usize].one_node(&request).is_none();
                let cost = policy.cost(&Candidate { request: &request, shape: &SHAPE, server, free, space, spans });
                Some(((spans, cost, server), placement))
            });
            let want = candidates.min_by_key(|(order, _)| *order).map(|(_, placement)| placement);
            let chosen = fleet.choose_among(&request, &pools, &policy, &admits);
            prop_assert_eq!(chosen, want);
            if let Some(placement) = chosen {
                fleet.reserve(&placement);
            }
        }
    }

    #[test]
    fn no_vm_spans_unnecessarily(requests in proptest::collection::vec(any_request(), 0..40), policy in any_policy()) {
        let mut fleet = Fleet::new(SHAPE, 3, 1).unwrap();
        let pools = spaces(&[16, 16, 16]);
        for (request, _) in requests {
            let Some(placement) = fleet.choose(&request, &pools, &policy) else { continue };
            if placement.spans() {
                prop_assert!(!fleet.servers.iter().any(|server| server.fits(&request) && server.one_node(&request).is_some()));
            } else {
                prop_assert_eq!(placement.remote_mib(), 0);
            }
            fleet.reserve(&placement);
        }
    }
}

//! Moves with a simulated kernel, and recovery of unfinished moves from files of a process.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::Path;

use kernel::maps::{Kind, Perms};
use manager::api::Slice;
use proptest::prelude::*;
use units::Bytes;

use super::*;
use crate::drivers::libvirt::virsh::Virsh;

const MIB: u64 = 1 << 20;
const POOL: u32 = 2;

fn module(index: u64, mib: u64, pool_mib: u64) -> Module {
    let start = 0x7f00_0000_0000 + index * (1 << 32);
    let perms = Perms { read: true, write: true, execute: false, shared: true };
    let path = "/memfd:memory-backend-memfd (deleted)".to_owned();
    let vma = Vma { start, end: start + mib * MIB, perms, offset: 0, inode: 1 + index, path, kind: Kind::Shared };
    Module { vma, moved: false, in_pool: Bytes::mib(pool_mib), elsewhere: Bytes::ZERO }
}

fn node(id: u32, cpus: &[u32], total_mib: u64, free_mib: u64, files_mib: u64) -> Node {
    let [total, free, files] = [total_mib, free_mib, files_mib].map(Bytes::mib);
    Node { id, cpus: cpus.to_vec(), total, free, files, distances: Vec::new(), access: None }
}

/// A guest's memory and the state of the simulated kernel.
#[derive(Debug, Default)]
struct World {
    modules: Vec<Module>,
    /// Free memory of the nodes, which may differ from what they report.
    free: BTreeMap<u32, u64>,
    /// Bytes of each module that cannot be moved.
    pinned: u64,
    /// Index of a module whose policy cannot be set.
    refuses: Option<usize>,
    migrated_to: Vec<u32>,
}

struct Simulated(Vec<Node>, RefCell<World>);

impl Simulated {
    fn new(nodes: Vec<Node>, modules: Vec<Module>) -> Self {
        let free = nodes.iter().map(|node| (node.id, node.free.0)).collect();
        Self(nodes, RefCell::new(World { modules, free, ..World::default() }))
    }

    fn move_modules(&self, local: Option<&str>) -> Result<Bytes, String> {
        move_modules(self, POOL, local, Instant::now())
    }

    fn moved(&self) -> Vec<bool> {
        self.1.borrow().modules.iter().map(|module| module.moved).collect()
    }
}

impl Kernel for Simulated {
    fn nodes(&self) -> Result<Vec<Node>, kernel::Error> {
        Ok(self.0.clone())
    }

    fn modules(&self) -> Result<Vec<Module>, kernel::Error> {
        Ok(self.1.borrow().modules.clone())
    }

    fn set(&self, module: &Module, policy: &Policy) -> Result<(), kernel::Error> {
        let mut world = self.1.borrow_mut();
        let at = world.modules.iter().position(|known| known.vma == module.vma).unwrap();
        assert_eq!(policy.is_static, !policy.nodes.contains(&POOL), "{policy:?}");
        if policy.is_static && world.refuses == Some(at) {
            return Err(kernel::Error::Unsupported { what: "no such mode".to_owned(), remedy: "boot another".to_owned() });
        }
        world.modules[at].moved = policy.is_static;
        Ok(())
    }

    fn migrate(&self, to: u32) -> Result<(), kernel::Error> {
        let mut world = self.1.borrow_mut();
        assert!(world.modules.iter().all(|module| module.moved), "pages touched during the move must not come from the pool");
        world.migrated_to.push(to);
        let World { modules, free, pinned, .. } = &mut *world;
        let free = free.entry(to).or_default();
        let mut is_full = false;
        for module in modules {
            let movable = module.in_pool.0.saturating_sub(*pinned);
            let moves = movable.min(*free);
            is_full |= moves < movable;
            *free -= moves;
            module.in_pool = module.in_pool - Bytes(moves);
            module.elsewhere += Bytes(moves);
        }
        let source = std::io::Error::from_raw_os_error(rustix::io::Errno::NOMEM.raw_os_error());
        if is_full { Err(kernel::Error::Io { path: "/proc/7".into(), op: "move pages of", source }) } else { Ok(()) }
    }
}

/// Two nodes with processors, the pool, and another node without processors.
fn host(first_mib: u64, second_mib: u64) -> Vec<Node> {
    vec![node(0, &[0], 1000, first_mib, 0), node(1, &[1], 1000, second_mib, 0), node(POOL, &[], 1000, 900, 0), node(3, &[], 1000, 900, 0)]
}

#[test]
fn pages_move_to_the_node_with_most_free_memory_then_to_the_next() {
    let simulated = Simulated::new(host(100, 300), vec![module(0, 128, 100), module(1, 128, 0)]);
    assert_eq!(simulated.move_modules(None), Ok(Bytes::mib(100)));
    assert_eq!((simulated.moved(), &simulated.1.borrow().migrated_to[..]), (vec![true, true], &[1][..]));
    // A node that reported 300 MiB may have 50 left by then.
    let simulated = Simulated::new(host(200, 300), vec![module(0, 128, 100)]);
    simulated.1.borrow_mut().free.insert(1, 50 * MIB);
    assert_eq!(simulated.move_modules(Some("0-1")), Ok(Bytes::mib(100)));
    assert_eq!(simulated.1.borrow().migrated_to, [1, 0]);
}

#[test]
fn a_part_moves_to_nodes_that_can_hold_it() {
    let nodes = |bytes| nodes_for(&host(100, 300), POOL, None, bytes);
    assert_eq!(nodes(Bytes::mib(300)), Ok(vec![1, 0]));
    let refused = nodes(Bytes::mib(400)).unwrap_err();
    assert!(refused.contains("has 419430400 bytes, and nodes [1, 0] have"), "{refused}");
}

#[test]
fn a_move_that_fails_restores_the_policies() {
    let check = |simulated: &Simulated, why: &str| {
        let error = simulated.move_modules(None).unwrap_err();
        assert!(error.contains(why), "{error}");
        assert!(!simulated.moved().contains(&true), "{why}");
    };
    let one = || vec![module(0, 128, 100), module(1, 128, 10)];
    let simulated = Simulated::new(host(200, 200), one());
    simulated.1.borrow_mut().pinned = MIB;
    check(&simulated, "2097152 bytes could not be moved from node 2 in time: the pages are pinned");
    let simulated = Simulated::new(host(200, 200), one());
    simulated.1.borrow_mut().free = BTreeMap::from([(0, MIB), (1, MIB)]);
    check(&simulated, "nodes [0, 1] are full");
    let simulated = Simulated::new(host(200, 200), one());
    simulated.1.borrow_mut().refuses = Some(1);
    check(&simulated, "no such mode");
    assert!(simulated.1.borrow().migrated_to.is_empty());
    check(&Simulated::new(host(200, 200), Vec::new()), "none of its memory is bound to node 2");
    check(&Simulated::new(host(100, 100), one()), "need 268435456 bytes of local memory, and nodes [0, 1] have 167795200 bytes available");
    check(&Simulated::new(vec![node(POOL, &[0], 1000, 900, 0)], one()), "no local memory");
}

#[test]
fn modules_moved_by_an_earlier_attempt_stay_local() {
    let mut modules = vec![module(0, 128, 0), module(1, 128, 100)];
    (modules[0].moved, modules[0].elsewhere) = (true, Bytes::mib(100));
    // The first module needs no more memory: its 100 MiB are local.
    let simulated = Simulated::new(host(90, 110), modules);
    simulated.1.borrow_mut().pinned = MIB;
    assert!(simulated.move_modules(None).is_err());
    assert_eq!(simulated.moved(), [true, false]);
}

#[test]
fn targets_are_the_configured_nodes_or_those_with_processors() {
    let check = |local, mode, ids: &[u32], first_bytes: u64| {
        let (policy, targets) = targets(&host(100, 300), POOL, local).unwrap();
        assert_eq!((policy.mode, &policy.nodes[..], policy.is_static), (mode, ids, true), "{local:?}");
        assert_eq!(targets[0].available.0, first_bytes);
    };
    let margin = 1000 * MIB / 1_000_000 * 20_000;
    check(None, Mode::PreferMany, &[0, 1], 300 * MIB - margin);
    check(Some("0"), Mode::Bind, &[0], 100 * MIB - margin);
    check(Some("0,3"), Mode::Bind, &[0, 3], 900 * MIB - margin);
    assert!(targets(&host(1, 1), POOL, Some("2,7")).is_err());
    let cached = targets(&[node(0, &[0], 1000, 0, 500)], POOL, None).unwrap().1;
    assert_eq!(cached[0].available.0, 250 * MIB - margin, "half of the page cache counts as available");
}

#[test]
fn modules_are_memory_bound_to_the_pool_or_moved_from_it() {
    let policy = |start, bound: &[u32], is_static, resident: &[(u32, u64)]| numa_maps::Policy {
        start,
        bound: bound.to_vec(),
        is_static,
        resident: resident.to_vec(),
    };
    let vmas: Vec<_> = (0..5).map(|index| module(index, 128, 0).vma).collect();
    let at = |index: usize| vmas[index].start;
    let policies = [
        policy(at(0), &[POOL], false, &[(0, 1), (POOL, 2)]),
        policy(at(1), &[], true, &[(0, 3)]),
        policy(at(2), &[], false, &[(0, 4)]),
        policy(at(3), &[0, POOL], false, &[]),
        policy(at(4), &[POOL], false, &[]),
    ];
    let mut vmas = vmas;
    vmas[4].path = "/dev/shm/other".to_owned();
    let found: Vec<_> = modules(&policies, vmas, POOL).iter().map(|m| (m.vma.inode, m.moved, m.in_pool.0, m.elsewhere.0)).collect();
    assert_eq!(found, [(1, false, 2, 1), (2, true, 0, 3)]);
}

/// A guest with two modules as files of a process, with the policies `first` and `second`. `locks` of its slices are
/// locked.
fn unfinished(directory: &Path, first: &str, second: &str, locks: usize) -> (Connection, Machine, Process) {
    let of_process = directory.join("proc/7");
    std::fs::create_dir_all(of_process.join("fd")).unwrap();
    std::fs::create_dir_all(of_process.join("map_files")).unwrap();
    let (one, two) = ("7f0000000000-7f0000010000", "7f0000020000-7f0000030000");
    let row = |range: &str| format!("{range} rw-s 00000000 00:01 5 /memfd:memory-backend-memfd (deleted)\n");
    std::fs::write(of_process.join("maps"), row(one) + &row(two)).unwrap();
    let line = |range: &str, rest: &str| format!("{} {rest}\n", range.split('-').next().unwrap());
    std::fs::write(of_process.join("numa_maps"), line(one, first) + &line(two, second)).unwrap();
    for range in [one, two] {
        std::fs::File::create(of_process.join("map_files").join(range)).unwrap().set_len(1 << 16).unwrap();
    }
    let slice = |index: u32| Slice {
        emc: 0,
        index,
        generation: 1,
        path: directory.join(format!("slice-{index}")),
        offset: None,
        bytes: Bytes(1 << 16),
    };
    let slices: Vec<_> = (0..2).map(slice).collect();
    for slice in &slices[..locks] {
        symlink(&slice.path, of_process.join(format!("fd/{}", slice.index))).unwrap();
    }
    let program = crate::testing::script(directory, "virsh", r#"echo "$*" >>"$0.log"; echo '{"return":{}}'"#);
    let virsh = Virsh { program, uri: String::new() };
    let settings = Settings { pool_node: 0, ..Settings::example() };
    let connection = Connection { settings, virsh, roots: Roots::under(directory) };
    let machine = Machine { name: "a".to_owned(), cores: 1, local_bytes: Bytes(1 << 28), slices, description: None };
    (connection, machine, Process { pid: 7, starttime: 1, generation: 1 })
}

#[test]
fn an_unfinished_move_is_finished_or_undone() {
    // Expected: the generation of the adopted process, and the number of locks that were released.
    let check = |first: &str, second: &str, locks: usize, generation: u32, closed: usize| {
        let directory = tempfile::tempdir().unwrap();
        let (connection, machine, process) = unfinished(directory.path(), first, second, locks);
        let found = settle(&connection, &machine, process).unwrap();
        let commands = std::fs::read_to_string(directory.path().join("virsh.log")).unwrap_or_default();
        assert_eq!(
            (found.generation, commands.matches("closefd").count()),
            (generation, closed),
            "{first}, {second}, {locks} locks: {commands}"
        );
        let again = Process { generation: 2, ..process };
        assert_eq!(settle(&connection, &machine, again).unwrap(), again, "a guest that was moved is not changed");
    };
    let (pool, moved) = ("bind:0 N0=3 kernelpagesize_kB=4", "prefer (many)=static:1 N1=3 kernelpagesize_kB=4");
    check(pool, pool, 2, 1, 0);
    // Stopped between the policies, between pages, and after the last page.
    check(moved, pool, 2, 1, 0);
    check(moved, "bind=static:1 N0=1 N1=2 kernelpagesize_kB=4", 2, 1, 0);
    check(moved, moved, 2, 2, 2);
    // After a lock was released, the move can no longer be undone.
    check(moved, moved, 1, 2, 2);
    check(moved, "prefer (many)=static:1 N0=1 N1=2 kernelpagesize_kB=4", 1, 2, 2);
}

#[test]
fn a_process_that_has_exited_is_returned_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let (connection, machine, process) = unfinished(directory.path(), "default", "default", 0);
    let gone = Process { pid: 8, ..process };
    assert_eq!(settle(&connection, &machine, gone).unwrap(), gone);
    let error = move_to_local(&connection, &machine, &Process { generation: 2, ..process }, Duration::ZERO).unwrap_err().to_string();
    assert!(error.contains("was moved before") && error.contains("continues to run"), "{error}");
}

proptest! {
    #[test]
    fn all_memory_moves_or_all_policies_are_restored(
        modules in prop::collection::vec((1_u64..200, 0_u64..200), 1..4),
        free in prop::collection::vec(0_u64..500, 2),
        actual in prop::collection::vec(0_u64..500, 2),
        pinned in 0_u64..2,
    ) {
        let modules: Vec<_> = (0..).zip(modules).map(|(index, (mib, pool))| module(index, mib, pool.min(mib))).collect();
        let all: Bytes = modules.iter().map(|module| module.in_pool).sum();
        let simulated = Simulated::new(host(free[0], free[1]), modules);
        simulated.1.borrow_mut().free = (0..).zip(actual).map(|(node, mib)| (node, mib * MIB)).collect();
        simulated.1.borrow_mut().pinned = pinned * MIB;
        let moved = simulated.move_modules(None);
        let left: Bytes = simulated.1.borrow().modules.iter().map(|module| module.in_pool).sum();
        prop_assert_eq!(moved.is_ok(), left == Bytes::ZERO && !simulated.moved().contains(&false));
        prop_assert!(moved.is_ok() || !simulated.moved().contains(&true));
        prop_assert!(moved.is_err() || moved == Ok(all));
    }
}

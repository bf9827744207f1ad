//! Moves on a kernel of paper, and what is left of them in the files of a process.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use kernel::maps::{Kind, Perms};
use manager::api::Slice;
use proptest::prelude::*;
use units::Bytes;

use super::*;

const MIB: u64 = 1 << 20;
const POOL: u32 = 2;

fn module(index: u64, mib: u64, pool_mib: u64) -> Module {
    let start = 0x7f00_0000_0000 + index * (1 << 32);
    let perms = Perms { read: true, write: true, execute: false, shared: true };
    let path = "/memfd:memory-backend-memfd (deleted)".to_owned();
    let vma = Vma { start, end: start + mib * MIB, perms, offset: 0, inode: 1 + index, path, kind: Kind::Shared };
    Module { vma, moved: false, pool_bytes: pool_mib * MIB, other_bytes: 0 }
}

fn node(id: u32, cpus: &[u32], total_mib: u64, free_mib: u64, files_mib: u64) -> Node {
    let [total, free, files] = [total_mib, free_mib, files_mib].map(Bytes::mib);
    Node { id, cpus: cpus.to_vec(), total, free, files, distances: Vec::new(), access: None }
}

/// A guest's memory, and what the kernel can do for it.
#[derive(Debug, Default)]
struct World {
    modules: Vec<Module>,
    /// Room that the nodes really have.
    room: BTreeMap<u32, u64>,
    /// Bytes of each module that cannot be moved.
    pinned: u64,
    /// Of which module, by its place, the policy cannot be set.
    refuses: Option<usize>,
    migrated_to: Vec<u32>,
}

struct Paper(Vec<Node>, RefCell<World>);

impl Paper {
    fn new(nodes: Vec<Node>, modules: Vec<Module>) -> Self {
        let room = nodes.iter().map(|node| (node.id, node.free.0)).collect();
        Self(nodes, RefCell::new(World { modules, room, ..World::default() }))
    }

    fn bring(&self, local: Option<&str>) -> Result<u64, String> {
        bring(self, POOL, local, Instant::now())
    }

    fn moved(&self) -> Vec<bool> {
        self.1.borrow().modules.iter().map(|module| module.moved).collect()
    }
}

impl Kernel for Paper {
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
        assert!(world.modules.iter().all(|module| module.moved), "what is touched meanwhile must not come from the pool");
        world.migrated_to.push(to);
        let World { modules, room, pinned, .. } = &mut *world;
        let room = room.entry(to).or_default();
        let mut lacks = false;
        for module in modules {
            let movable = module.pool_bytes.saturating_sub(*pinned);
            let moves = movable.min(*room);
            lacks |= moves < movable;
            *room -= moves;
            module.pool_bytes -= moves;
            module.other_bytes += moves;
        }
        let source = std::io::Error::from_raw_os_error(rustix::io::Errno::NOMEM.raw_os_error());
        if lacks { Err(kernel::Error::Io { path: "/proc/7".into(), op: "move pages of", source }) } else { Ok(()) }
    }
}

/// Two nodes with processors, the pool, and memory of another kind.
fn host(first_mib: u64, second_mib: u64) -> Vec<Node> {
    vec![node(0, &[0], 1000, first_mib, 0), node(1, &[1], 1000, second_mib, 0), node(POOL, &[], 1000, 900, 0), node(3, &[], 1000, 900, 0)]
}

#[test]
fn pages_move_to_the_roomiest_node_and_on_to_the_next() {
    let paper = Paper::new(host(100, 300), vec![module(0, 128, 100), module(1, 128, 0)]);
    assert_eq!(paper.bring(None), Ok(100 * MIB));
    assert_eq!((paper.moved(), &paper.1.borrow().migrated_to[..]), (vec![true, true], &[1][..]));
    // Whoever is told 300 MiB may find 50: somebody else was faster.
    let paper = Paper::new(host(200, 300), vec![module(0, 128, 100)]);
    paper.1.borrow_mut().room.insert(1, 50 * MIB);
    assert_eq!(paper.bring(Some("0-1")), Ok(100 * MIB));
    assert_eq!(paper.1.borrow().migrated_to, [1, 0]);
}

#[test]
fn what_cannot_be_moved_is_left_as_it_was() {
    let check = |paper: &Paper, why: &str| {
        let told = paper.bring(None).unwrap_err();
        assert!(told.contains(why), "{told}");
        assert!(!paper.moved().contains(&true), "{why}");
    };
    let one = || vec![module(0, 128, 100), module(1, 128, 10)];
    let paper = Paper::new(host(200, 200), one());
    paper.1.borrow_mut().pinned = MIB;
    check(&paper, "2097152 bytes could not be moved from node 2 in time: something holds them");
    let paper = Paper::new(host(200, 200), one());
    paper.1.borrow_mut().room = BTreeMap::from([(0, MIB), (1, MIB)]);
    check(&paper, "nodes [0, 1] are full");
    let paper = Paper::new(host(200, 200), one());
    paper.1.borrow_mut().refuses = Some(1);
    check(&paper, "no such mode");
    assert!(paper.1.borrow().migrated_to.is_empty());
    check(&Paper::new(host(200, 200), Vec::new()), "none of its memory is bound to node 2");
    check(&Paper::new(host(100, 100), one()), "need 268435456 bytes of local memory, and nodes [0, 1] have room for 167795200");
    check(&Paper::new(vec![node(POOL, &[0], 1000, 900, 0)], one()), "no local memory");
}

#[test]
fn what_an_earlier_attempt_has_moved_stays_moved() {
    let mut modules = vec![module(0, 128, 0), module(1, 128, 100)];
    (modules[0].moved, modules[0].other_bytes) = (true, 100 * MIB);
    // The first finds its 100 MiB in place.
    let paper = Paper::new(host(90, 110), modules);
    paper.1.borrow_mut().pinned = MIB;
    assert!(paper.bring(None).is_err());
    assert_eq!(paper.moved(), [true, false]);
}

#[test]
fn local_memory_is_what_was_named_or_has_processors() {
    let check = |local, mode, ids: &[u32], first_bytes: u64| {
        let (policy, homes) = homes(&host(100, 300), POOL, local).unwrap();
        assert_eq!((policy.mode, &policy.nodes[..], policy.is_static), (mode, ids, true), "{local:?}");
        assert_eq!(homes[0].room_bytes, first_bytes);
    };
    let margin = 1000 * MIB / 1_000_000 * 20_000;
    check(None, Mode::PreferMany, &[0, 1], 300 * MIB - margin);
    check(Some("0"), Mode::Bind, &[0], 100 * MIB - margin);
    check(Some("0,3"), Mode::Bind, &[0, 3], 900 * MIB - margin);
    assert!(homes(&host(1, 1), POOL, Some("2,7")).is_err());
    let cached = homes(&[node(0, &[0], 1000, 0, 500)], POOL, None).unwrap().1;
    assert_eq!(cached[0].room_bytes, 250 * MIB - margin, "pages of files are room, half of them");
}

#[test]
fn modules_are_the_memory_that_is_bound_to_the_pool_or_was() {
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
    let found: Vec<_> = modules(&policies, vmas, POOL).iter().map(|m| (m.vma.inode, m.moved, m.pool_bytes, m.other_bytes)).collect();
    assert_eq!(found, [(1, false, 2, 1), (2, true, 0, 3)]);
}

/// A guest of two modules in files of a process, whose policies are `first` and `second`, and as many of whose locks are held.
fn left_behind(directory: &Path, first: &str, second: &str, locks: usize) -> (Libvirt, Machine, Process) {
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
    let slice = |index: u32| Slice { emc: 0, index, turn: 1, path: directory.join(format!("slice-{index}")), bytes: 1 << 16 };
    let slices: Vec<_> = (0..2).map(slice).collect();
    for slice in &slices[..locks] {
        symlink(&slice.path, of_process.join(format!("fd/{}", slice.index))).unwrap();
    }
    let program = directory.join("virsh");
    std::fs::write(&program, "#!/bin/sh\necho \"$*\" >>\"$0.said\"; echo '{\"return\":{}}'\n").unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut libvirt = Libvirt::new(Settings { program, pool_node: 0, ..Settings::example() });
    libvirt.roots = Roots::under(directory);
    let machine =
        Machine { name: "a".to_owned(), cores: 1, local_bytes: 1 << 28, slices, arguments: Vec::new(), domain: Some(String::new()) };
    (libvirt, machine, Process { pid: 7, starttime: 1, generation: 1 })
}

#[test]
fn a_move_that_somebody_left_is_finished_or_undone() {
    // With which generation the guest is taken over, and how many slices libvirt was told to let go of.
    let check = |first: &str, second: &str, locks: usize, generation: u32, closed: usize| {
        let directory = tempfile::tempdir().unwrap();
        let (libvirt, machine, process) = left_behind(directory.path(), first, second, locks);
        let found = settle(&libvirt, &machine, process).unwrap();
        let said = std::fs::read_to_string(directory.path().join("virsh.said")).unwrap_or_default();
        assert_eq!((found.generation, said.matches("closefd").count()), (generation, closed), "{first}, {second}, {locks} locks: {said}");
        let again = Process { generation: 2, ..process };
        assert_eq!(settle(&libvirt, &machine, again).unwrap(), again, "one that was moved is left alone");
    };
    let (pool, moved) = ("bind:0 N0=3 kernelpagesize_kB=4", "prefer (many)=static:1 N1=3 kernelpagesize_kB=4");
    check(pool, pool, 2, 1, 0);
    // Between the policies; between pages; after the last.
    check(moved, pool, 2, 1, 0);
    check(moved, "bind=static:1 N0=1 N1=2 kernelpagesize_kB=4", 2, 1, 0);
    check(moved, moved, 2, 2, 2);
    // After a lock was let go of, there is no way back.
    check(moved, moved, 1, 2, 2);
    check(moved, "prefer (many)=static:1 N0=1 N1=2 kernelpagesize_kB=4", 1, 2, 2);
}

#[test]
fn a_process_that_has_ended_is_for_others_to_notice() {
    let directory = tempfile::tempdir().unwrap();
    let (libvirt, machine, process) = left_behind(directory.path(), "default", "default", 0);
    let gone = Process { pid: 8, ..process };
    assert_eq!(settle(&libvirt, &machine, gone).unwrap(), gone);
    let told = to_local(&libvirt, &machine, &Process { generation: 2, ..process }, Duration::ZERO).unwrap_err().to_string();
    assert!(told.contains("was moved before") && told.contains("runs on as before"), "{told}");
}

proptest! {
    #[test]
    fn all_of_it_moves_or_its_policies_are_as_they_were(
        modules in prop::collection::vec((1_u64..200, 0_u64..200), 1..4),
        free in prop::collection::vec(0_u64..500, 2),
        really in prop::collection::vec(0_u64..500, 2),
        pinned in 0_u64..2,
    ) {
        let modules: Vec<_> = (0..).zip(modules).map(|(index, (mib, pool))| module(index, mib, pool.min(mib))).collect();
        let all: u64 = modules.iter().map(|module| module.pool_bytes).sum();
        let paper = Paper::new(host(free[0], free[1]), modules);
        paper.1.borrow_mut().room = (0..).zip(really).map(|(node, mib)| (node, mib * MIB)).collect();
        paper.1.borrow_mut().pinned = pinned * MIB;
        let brought = paper.bring(None);
        let left: u64 = paper.1.borrow().modules.iter().map(|module| module.pool_bytes).sum();
        prop_assert_eq!(brought.is_ok(), left == 0 && !paper.moved().contains(&false));
        prop_assert!(brought.is_ok() || !paper.moved().contains(&true));
        prop_assert!(brought.is_err() || brought == Ok(all));
    }
}

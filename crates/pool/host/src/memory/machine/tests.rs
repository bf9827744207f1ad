//! A machine on a fake kernel, and a pool that is a list.
#![cfg(not(shuttle))]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use manager::api::{Action, Assignment, Code};
use manager::client::Error;

use super::fixture::{BLOCK, FIRST, SLICE, kernel, online, put, refused, slice};
use super::*;
use crate::capacity::Renewal;
use crate::memory::regions;

/// What the pool answers, and what was reported to it.
#[derive(Debug, Default)]
struct Pool {
    assignments: Option<Vec<Assignment>>,
    work: Vec<Work>,
    free: Vec<Slice>,
    reports: Vec<String>,
    requests: BTreeSet<String>,
    away: bool,
    /// Whether the manager has returned everything already.
    returned_before: bool,
}

#[derive(Clone, Debug, Default)]
struct Fake(Arc<Mutex<Pool>>);

impl Fake {
    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.0.lock().unwrap()
    }
}

impl Capacity for Fake {
    fn renew(&self) -> Result<Renewal, Error> {
        let mut pool = self.pool();
        if pool.away {
            return Err(refused(Code::Busy));
        }
        let assignments = pool.assignments.take();
        Ok(Renewal { lease: Duration::from_secs(3), assignments, work: pool.work.clone() })
    }

    fn slice_size(&self) -> Option<Bytes> {
        Some(SLICE)
    }

    fn assign(&self, _: &str, _: &str, slices: Slices) -> Result<Vec<Slice>, Error> {
        let mut pool = self.pool();
        let count = slices.0 as usize;
        if pool.free.len() < count { Err(refused(Code::Short)) } else { Ok(pool.free.drain(..count).collect()) }
    }

    fn give_back(&self, request: &str, vm: &str) -> Result<Vec<Work>, Error> {
        let mut pool = self.pool();
        assert!(!pool.requests.contains(request), "the manager would take it as a repetition");
        pool.requests.insert(request.to_owned());
        if pool.returned_before {
            return Err(refused(Code::NotFound));
        }
        pool.reports.push(format!("returned {vm}"));
        Ok(pool.work.clone())
    }

    fn offlined(&self, slice: &Slice) -> Result<(), Error> {
        self.pool().reports.push(format!("offline {}", slice.index));
        self.pool().work.retain(|work| work.slice != *slice);
        Ok(())
    }

    fn offline_failed(&self, slice: &Slice, why: &str) -> Result<(), Error> {
        self.pool().reports.push(format!("not offline {}: {why}", slice.index));
        Ok(())
    }
}

fn work(index: u32) -> Work {
    Work { slice: slice(index), action: Action::Offline, since_seconds: 0.0 }
}

fn machine(roots: &Roots, pool: &Fake) -> Machine {
    let regions = regions(roots, &["dax0.0".to_owned()]).unwrap();
    Machine::new("a".to_owned(), roots.clone(), regions, Box::new(pool.clone()), Duration::from_secs(30))
}

#[test]
fn memory_is_added_and_removed() {
    let (_keep, roots) = kernel(0);
    let pool = Fake::default();
    pool.pool().assignments = Some(Vec::new());
    pool.pool().free = vec![slice(1), slice(3)];
    let machine = machine(&roots, &pool);
    machine.begin();
    assert_eq!(machine.slices_of(Bytes(4 * BLOCK)).unwrap(), Slices(2));
    assert!(machine.slices_of(Bytes(3 * BLOCK)).is_err() && machine.slices_of(Bytes::ZERO).is_err());
    let added = machine.add("build", Slices(2)).unwrap();
    assert_eq!((added.bytes, online(&roots)), (Bytes(4 * BLOCK), vec![2, 3, 6, 7]));
    assert!(added.slices.iter().all(|slice| slice.online_bytes == Some(SLICE)));
    assert!(machine.add("build", Slices(1)).unwrap_err().0.contains("already"));
    assert!(machine.add("more", Slices(1)).unwrap_err().0.contains("Short"));
    assert!(machine.remove("other").unwrap_err().0.contains("build"));
    // Work for a slice of other memory is in the answer as well; it is done when the lease is renewed.
    pool.pool().work = vec![work(0), work(1), work(3)];
    machine.remove("build").unwrap();
    assert_eq!((online(&roots), &pool.pool().reports[..]), (vec![], &["returned build", "offline 1", "offline 3"].map(str::to_owned)[..]));
    assert!(machine.list().memory.is_empty());
    // Again, by the same name. The manager's answer to the first try is lost: the work comes with the lease.
    pool.pool().free = vec![slice(2)];
    machine.add("build", Slices(1)).unwrap();
    pool.pool().returned_before = true;
    machine.remove("build").unwrap();
    assert_eq!((machine.list().memory.len(), online(&roots)), (0, vec![4, 5]));
    pool.pool().work = vec![work(2)];
    machine.begin();
    assert!(online(&roots).is_empty());
}

#[test]
fn after_a_new_lease_only_assigned_slices_are_online() {
    // The machine has slices 0 and 1 of an earlier life; 1 is another machine's now, 0 must be returned, and 2 is its own.
    let (_keep, roots) = kernel(4);
    let pool = Fake::default();
    pool.pool().assignments = Some(vec![Assignment { vm: "db".to_owned(), asked: Slices(1), slices: vec![slice(2)] }]);
    pool.pool().work = vec![work(0)];
    let machine = machine(&roots, &pool);
    machine.begin();
    assert_eq!((online(&roots), &pool.pool().reports[..]), (vec![4, 5], &["offline 0".to_owned()][..]));
    assert_eq!(machine.list().memory[0].name, "db");
    // Without a manager nothing changes.
    pool.pool().away = true;
    machine.begin();
    assert_eq!(online(&roots), [4, 5]);
    assert!(machine.list().pool_error.is_some());
}

/// A memory block whose state file cannot be written, and says that it is online.
struct Stubborn {
    directory: PathBuf,
    kept: PathBuf,
}

impl Stubborn {
    fn block(root: &Path, number: u64) -> Self {
        let directory = root.join(format!("sys/devices/system/memory/memory{number}"));
        let kept = root.join("kept");
        std::fs::rename(&directory, &kept).unwrap();
        std::fs::create_dir(&directory).unwrap();
        std::os::unix::fs::symlink("/proc/version", directory.join("state")).unwrap();
        Self { directory, kept }
    }

    fn give_in(self) {
        std::fs::remove_dir_all(&self.directory).unwrap();
        std::fs::rename(&self.kept, &self.directory).unwrap();
    }
}

#[test]
fn a_slice_that_stays_online_is_reported_and_tried_again() {
    let (keep, roots) = kernel(2);
    let pool = Fake::default();
    pool.pool().work = vec![work(0)];
    let machine = machine(&roots, &pool);
    let stubborn = Stubborn::block(keep.path(), FIRST);
    machine.begin();
    assert!(pool.pool().reports[0].starts_with("not offline 0: memory block 64 does not go offline"), "{:?}", pool.pool().reports);
    assert_eq!(machine.list().stuck.len(), 1);
    stubborn.give_in();
    machine.begin();
    assert_eq!((online(&roots), pool.pool().reports.last().unwrap().as_str()), (vec![], "offline 0"));
    assert!(machine.list().stuck.is_empty());
}

#[test]
fn a_slice_of_another_machine_that_stays_online_is_tried_again() {
    let (keep, roots) = kernel(2);
    let pool = Fake::default();
    pool.pool().assignments = Some(Vec::new());
    let machine = machine(&roots, &pool);
    let stubborn = Stubborn::block(keep.path(), FIRST);
    machine.begin();
    let stuck = machine.list().stuck;
    assert!(stuck.len() == 1 && stuck[0].contains("slice 0/0") && stuck[0].contains("does not go offline"), "{stuck:?}");
    stubborn.give_in();
    machine.begin();
    assert!(online(&roots).is_empty() && machine.list().stuck.is_empty() && pool.pool().reports.is_empty());
}

#[test]
fn a_slice_that_was_assigned_again_stays_online() {
    let (_keep, roots) = kernel(0);
    let pool = Fake::default();
    pool.pool().free = vec![Slice { generation: 2, ..slice(1) }];
    let machine = machine(&roots, &pool);
    machine.add("build", Slices(1)).unwrap();
    // An answer from before: the slice of generation 1 was to be returned.
    machine.follow(&[work(1)]);
    assert_eq!((online(&roots), pool.pool().reports.len()), (vec![2, 3], 0));
}

#[test]
fn a_slice_that_cannot_be_used_is_returned() {
    let (_keep, roots) = kernel(0);
    let pool = Fake::default();
    let beyond = Slice { offset: Some(Bytes(8 * BLOCK)), ..slice(4) };
    let in_a_file = Slice { offset: None, ..slice(0) };
    let of_another = Slice { emc: 1, ..slice(0) };
    for (unusable, why) in [(beyond, "it ends at"), (in_a_file, "a file of"), (of_another, "no device for EMC 1")] {
        pool.pool().free = vec![unusable];
        let machine = machine(&roots, &pool);
        let refused = machine.add("x", Slices(1)).unwrap_err().0;
        assert!(refused.contains(why), "{refused}");
        assert_eq!(pool.pool().reports.pop().as_deref(), Some("returned x"));
        assert!(machine.list().memory.is_empty());
    }
}

#[test]
fn a_kernel_that_would_use_others_memory_is_refused() {
    let (keep, roots) = kernel(0);
    let devices = ["dax0.0".to_owned()];
    let check = |path: &str, text: &str, why: &str| {
        let before = std::fs::read(keep.path().join(path)).ok();
        put(keep.path(), path, text);
        let error = regions(&roots, &devices).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
        match before {
            Some(before) => std::fs::write(keep.path().join(path), before).unwrap(),
            None => std::fs::remove_file(keep.path().join(path)).unwrap(),
        }
    };
    check("sys/devices/system/memory/auto_online_blocks", "online_movable\n", "memhp_default_state=offline");
    check("sys/module/memory_hotplug/parameters/memmap_on_memory", "Y\n", "memmap_on_memory");
    check("sys/bus/dax/devices/dax0.0/resource", "0x1000\n", "within a memory block");
    assert!(regions(&roots, &["dax1.0".to_owned()]).unwrap_err().to_string().contains("there are: dax0.0"));
    std::fs::remove_file(keep.path().join("sys/bus/dax/devices/dax0.0/driver")).unwrap();
    assert!(regions(&roots, &devices).unwrap_err().to_string().contains("--no-online"));
}

//! Two machines and one pool, with the threads of each in many orders: no slice is ever online on both, and what was added stays
//! online until it is removed. `make test-schedules`.
#![cfg(shuttle)]

use std::sync::{Arc, PoisonError};

use manager::api::{Action, Assignment, Code};
use manager::client::Error;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::mpsc::sync_channel;
use shuttle::thread;

use super::fixture::{SLICE, kernel, online, refused, slice};
use super::*;
use crate::capacity::Renewal;
use crate::memory::regions;

/// Orders of one test.
const ORDERS: usize = 1_500;
/// How many switches between threads a rare order has at most ("A randomized scheduler with probabilistic guarantees of finding bugs",
/// ASPLOS 2010).
const DEPTH: usize = 4;
/// One answer in so many is lost.
const LOST: u32 = 6;
const SLICES: usize = 4;
const HOSTS: usize = 2;

/// Who has a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Owner {
    Free,
    Host(usize, String),
    /// It must be taken offline by its former owner.
    Former(usize),
}

/// A manager, by its rules: a slice has its next owner when its former one has reported it offline.
#[derive(Debug)]
struct Pool {
    owners: Vec<(Owner, u32)>,
    roots: Vec<Roots>,
    may_lose: bool,
}

impl Pool {
    fn slice(&self, index: usize) -> Slice {
        Slice { generation: self.owners[index].1, ..slice(u32::try_from(index).unwrap()) }
    }

    fn of(&self, owner: impl Fn(&Owner) -> bool) -> Vec<Slice> {
        (0..SLICES).filter(|&index| owner(&self.owners[index].0)).map(|index| self.slice(index)).collect()
    }

    fn work(&self, host: usize) -> Vec<Work> {
        let slices = self.of(|owner| *owner == Owner::Former(host));
        slices.into_iter().map(|slice| Work { slice, action: Action::Offline, since_seconds: 0.0 }).collect()
    }

    /// The slices with memory online on a host.
    fn online(&self, host: usize) -> BTreeSet<u64> {
        online(&self.roots[host]).into_iter().map(|block| block / 2).collect()
    }

    fn check(&self) {
        let both: Vec<u64> = self.online(0).intersection(&self.online(1)).copied().collect();
        assert!(both.is_empty(), "online on both machines: {both:?}; {:?}", self.owners);
    }

    /// The answer, or none that arrives.
    fn answer<T>(&self, answer: T) -> Result<T, Error> {
        if self.may_lose && thread_rng().gen_range(0..LOST) == 0 { Err(refused(Code::Busy)) } else { Ok(answer) }
    }
}

/// The pool as one host sees it. The lock is the standard library's: no other thread runs while it is held.
#[derive(Clone, Debug)]
struct Host {
    pool: Arc<std::sync::Mutex<Pool>>,
    host: usize,
}

impl Host {
    /// A request: other threads run before it and after it.
    fn request<T>(&self, request: impl FnOnce(&mut Pool) -> Result<T, Error>) -> Result<T, Error> {
        thread::yield_now();
        let answer = {
            let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
            pool.check();
            let answer = request(&mut pool);
            answer.and_then(|answer| pool.answer(answer))
        };
        thread::yield_now();
        answer
    }
}

impl Capacity for Host {
    fn renew(&self) -> Result<Renewal, Error> {
        self.request(|pool| {
            let is_new = !pool.may_lose || thread_rng().gen_range(0..3) == 0;
            let mut assigned: BTreeMap<&str, Vec<Slice>> = BTreeMap::new();
            for (index, (owner, _)) in pool.owners.iter().enumerate() {
                if let Owner::Host(host, name) = owner
                    && *host == self.host
                {
                    assigned.entry(name).or_default().push(pool.slice(index));
                }
            }
            let assignment = |(vm, slices): (&str, Vec<Slice>)| Assignment { vm: vm.to_owned(), asked: Slices(1), slices };
            let assignments = is_new.then(|| assigned.into_iter().map(assignment).collect());
            Ok(Renewal { lease: Duration::from_secs(3), assignments, work: pool.work(self.host) })
        })
    }

    fn slice_size(&self) -> Option<Bytes> {
        Some(SLICE)
    }

    fn assign(&self, _: &str, vm: &str, slices: Slices) -> Result<Vec<Slice>, Error> {
        self.request(|pool| {
            let free: Vec<usize> = (0..SLICES).filter(|&index| pool.owners[index].0 == Owner::Free).take(slices.0 as usize).collect();
            if free.len() < slices.0 as usize {
                return Err(refused(Code::Short));
            }
            for &index in &free {
                for host in 0..HOSTS {
                    assert!(!pool.online(host).contains(&(index as u64)), "slice {index} is free, and online on host {host}");
                }
                let (owner, generation) = &mut pool.owners[index];
                (*owner, *generation) = (Owner::Host(self.host, vm.to_owned()), *generation + 1);
            }
            Ok(free.into_iter().map(|index| pool.slice(index)).collect())
        })
    }

    fn give_back(&self, _: &str, vm: &str) -> Result<Vec<Work>, Error> {
        self.request(|pool| {
            let mut known = false;
            for (owner, _) in &mut pool.owners {
                if *owner == Owner::Host(self.host, vm.to_owned()) {
                    (*owner, known) = (Owner::Former(self.host), true);
                }
            }
            if known { Ok(pool.work(self.host)) } else { Err(refused(Code::NotFound)) }
        })
    }

    fn offlined(&self, slice: &Slice) -> Result<(), Error> {
        self.request(|pool| {
            let (owner, generation) = &mut pool.owners[slice.index as usize];
            if *owner != Owner::Former(self.host) || *generation != slice.generation {
                return Err(refused(Code::Stale));
            }
            *owner = Owner::Free;
            assert!(!pool.online(self.host).contains(&u64::from(slice.index)), "slice {} is reported offline", slice.index);
            Ok(())
        })
    }

    fn offline_failed(&self, slice: &Slice, why: &str) -> Result<(), Error> {
        panic!("slice {}: {why}", slice.index)
    }
}

/// The threads of one machine: its lease, what the manager requires, and two clients of its socket.
fn threads(machine: &Arc<Machine>) -> Vec<thread::JoinHandle<()>> {
    let (send, received) = sync_channel::<Vec<Work>>(1);
    let spawn = |run: Box<dyn FnOnce(&Machine) + Send>| {
        let machine = Arc::clone(machine);
        thread::spawn(move || run(&machine))
    };
    let client = |name: &'static str, slices: u32| {
        spawn(Box::new(move |machine| {
            for _ in 0..2 {
                if let Ok(added) = machine.add(name, Slices(slices)) {
                    thread::yield_now();
                    // Others of its slices may come from an answer that was lost.
                    let listed: Vec<_> = machine.list().memory.into_iter().flat_map(|memory| memory.slices).collect();
                    assert!(added.slices.iter().all(|slice| listed.contains(slice)), "{added:?}: {listed:?}");
                    assert!(added.slices.iter().all(|slice| slice.online_bytes == Some(SLICE)), "{added:?}");
                }
                let _ = machine.remove(name);
            }
        }))
    };
    let lease = spawn(Box::new(move |machine| {
        for _ in 0..4 {
            let _ = send.try_send(machine.renew().1);
            thread::yield_now();
        }
    }));
    let follow = spawn(Box::new(move |machine| {
        while let Ok(work) = received.recv() {
            machine.follow(&work);
        }
    }));
    vec![lease, follow, client("x", 1), client("y", 2)]
}

fn two_machines() {
    let kernels = [kernel(0), kernel(0)];
    let roots: Vec<Roots> = kernels.iter().map(|(_, roots)| roots.clone()).collect();
    let pool = Pool { owners: vec![(Owner::Free, 0); SLICES], roots: roots.clone(), may_lose: true };
    let pool = Arc::new(std::sync::Mutex::new(pool));
    let machine = |host: usize| {
        let regions = regions(&roots[host], &["dax0.0".to_owned()]).unwrap();
        let capacity = Host { pool: Arc::clone(&pool), host };
        Arc::new(Machine::new(host.to_string(), roots[host].clone(), regions, Box::new(capacity), Duration::from_secs(30)))
    };
    let machines: Vec<Arc<Machine>> = (0..HOSTS).map(machine).collect();
    let running: Vec<_> = machines.iter().flat_map(threads).collect();
    running.into_iter().for_each(|thread| thread.join().unwrap());
    // With a manager that answers, each machine ends with what it is assigned.
    pool.lock().unwrap().may_lose = false;
    for (host, machine) in machines.iter().enumerate() {
        machine.begin();
        let pool = pool.lock().unwrap();
        let assigned: BTreeSet<u64> =
            pool.of(|owner| matches!(owner, Owner::Host(at, _) if *at == host)).iter().map(|slice| u64::from(slice.index)).collect();
        assert_eq!((pool.online(host), pool.work(host)), (assigned, Vec::new()), "host {host}: {:?}", pool.owners);
    }
    assert!(machines.iter().all(|machine| machine.list().stuck.is_empty()));
}

#[test]
fn schedules_at_random() {
    shuttle::check_random(two_machines, ORDERS);
}

#[test]
fn schedules_with_rare_orders() {
    shuttle::check_pct(two_machines, ORDERS, DEPTH);
}

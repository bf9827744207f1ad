//! Arrivals and departures, against the running cluster.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use manager::api::{AssignRequest, Assignment};
use manager::client::Error as ManagerError;
use pool::{SLICE, Slices};
use scheduler::api::{Code, Placed, VmRequest};
use scheduler::client::{Client, Error};
use scheduler::{replay, simulated};

use super::Size;
use super::cluster::{Cluster, Process, host, until};
use super::simulated::Planned;

/// Time in which a request must be answered, with repetitions.
const RETRY: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(crate) struct Outcome {
    /// VMs with the host and the slices of the simulation, or refused as there.
    pub(crate) as_simulated: u64,
    pub(crate) refused: u64,
    /// Slices that were assigned while another VM still had them.
    pub(crate) double_owned: u64,
    /// What was answered for and is not so any more.
    pub(crate) lost: Vec<String>,
    /// Seconds from each kill of the scheduler to its next answer.
    pub(crate) failovers: Vec<f64>,
    pub(crate) replay_differs: u64,
    /// Decisions of the log that the simulator does not make again.
    pub(crate) simulation_differs: u64,
}

struct Drive<'a> {
    plan: &'a [Planned],
    client: Client,
    managers: Vec<manager::client::Client>,
    epochs: Vec<u64>,
    per_pool: u32,
    placed: HashMap<usize, Placed>,
    /// The VM of each slice: pool, controller and index.
    owners: HashMap<(usize, u16, u32), usize>,
    outcome: Outcome,
}

/// Places and ends all VMs in the order of the simulation.
pub(crate) fn drive(plan: &[Planned], cluster: Cluster, size: &Size) -> Outcome {
    let Cluster { schedulers, client, managers, log, directory: _directory } = cluster;
    let (processes, clients): (Vec<Process>, Vec<_>) = managers.into_iter().unzip();
    let leases = (0..size.hosts).map(|number| clients[(number / size.per_pool) as usize].lease(&host(number), "test").unwrap().epoch);
    let epochs: Vec<u64> = leases.collect();
    let (kill, kills) = channel();
    let killer = std::thread::spawn({
        let client = client.clone();
        move || killed(schedulers, &client, &kills)
    });
    let mut drive = Drive {
        plan,
        client,
        managers: clients,
        epochs,
        per_pool: size.per_pool,
        placed: HashMap::new(),
        owners: HashMap::new(),
        outcome: Outcome::default(),
    };
    let every = 2 * plan.len() / (size.kills as usize + 1);
    let mut events = BinaryHeap::new();
    for (at, planned) in plan.iter().enumerate() {
        events.push(Reverse((planned.vm.arrival, at, true)));
        events.push(Reverse((planned.vm.departure.unwrap(), at, false)));
    }
    for count in 1.. {
        let Some(Reverse((_, at, arrives))) = events.pop() else { break };
        if count % every == 0 && count / every <= size.kills as usize {
            kill.send(()).unwrap();
        }
        if arrives { drive.arrive(at) } else { drive.leave(at) }
    }
    drop(kill);
    let mut outcome = drive.finish();
    let (failovers, schedulers) = killer.join().unwrap();
    outcome.failovers = failovers;
    drop((schedulers, processes));
    outcome.replay_differs = replay::check(&log).unwrap().differ;
    outcome.simulation_differs = simulated::check(&log).unwrap().decisions.differ;
    outcome
}

/// Kills the scheduler that serves at each message, and starts it again as the standby of the other one. Returns the seconds to
/// the next answer each time.
fn killed(mut schedulers: [Process; 2], client: &Client, kills: &Receiver<()>) -> (Vec<f64>, [Process; 2]) {
    let mut failovers = Vec::new();
    while kills.recv().is_ok() {
        let begin = Instant::now();
        schedulers[failovers.len() % 2].kill();
        until("the standby answers", || client.status().is_ok());
        schedulers[failovers.len() % 2].start_again();
        failovers.push(begin.elapsed().as_secs_f64());
    }
    (failovers, schedulers)
}

/// Repeats a request until it is answered. Returns also whether it was repeated.
fn answered<T>(mut request: impl FnMut() -> Result<T, Error>) -> (Result<T, Code>, bool) {
    let begin = Instant::now();
    let mut repeated = false;
    loop {
        match request() {
            Ok(answer) => return (Ok(answer), repeated),
            Err(Error::Refused(refusal)) if refusal.error != Code::Busy => return (Err(refusal.error), repeated),
            Err(error) => assert!(begin.elapsed() < RETRY, "{error}"),
        }
        repeated = true;
        std::thread::sleep(Duration::from_millis(2));
    }
}

impl Drive<'_> {
    fn arrive(&mut self, at: usize) {
        let Planned { vm, wanted, server, slices } = &self.plan[at];
        let request =
            VmRequest { vm: name(at), cores: vm.cores, memory_bytes: vm.memory_bytes, pool_bytes: wanted.bytes(SLICE), spread: None };
        let (answer, _) = answered(|| self.client.place(&request));
        let now = answer.as_ref().ok().map(|placed| (placed.host.clone(), placed.pool_slices));
        let expected = server.map(|server| (host(server), *slices));
        self.outcome.as_simulated += u64::from(now == expected);
        match answer {
            Ok(placed) => {
                self.assign(at, &placed);
                self.placed.insert(at, placed);
            }
            Err(Code::Full) => self.outcome.refused += 1,
            Err(code) => panic!("{}: {code:?}", name(at)),
        }
    }

    /// The host requests the slices of a VM from its manager.
    fn assign(&mut self, at: usize, placed: &Placed) {
        if placed.pool_slices == Slices::ZERO {
            return;
        }
        let (pool, epoch) = self.pool_of(&placed.host);
        let request = AssignRequest { epoch, request: name(at), vm: name(at), slices: placed.pool_slices };
        let Assignment { slices, .. } = self.managers[pool].assign(&placed.host, &request).unwrap();
        for slice in slices {
            let before = self.owners.insert((pool, slice.emc, slice.index), at);
            self.outcome.double_owned += u64::from(before.is_some());
        }
    }

    fn leave(&mut self, at: usize) {
        let Some(placed) = self.placed.remove(&at) else { return };
        if placed.pool_slices > Slices::ZERO {
            let (pool, epoch) = self.pool_of(&placed.host);
            let manager = &self.managers[pool];
            match manager.give_back(&placed.host, epoch, &format!("{}-end", name(at)), &name(at)) {
                Ok(list) => {
                    for work in list.work {
                        self.owners.remove(&(pool, work.slice.emc, work.slice.index));
                        manager.offlined(&placed.host, epoch, &work.slice).unwrap();
                    }
                }
                Err(ManagerError::Refused(refusal)) => self.outcome.lost.push(format!("{}: {refusal}", name(at))),
                Err(error) => panic!("{error}"),
            }
        }
        match answered(|| self.client.end(&name(at))) {
            // Repeated: the first one was applied before the kill, and its answer was lost.
            (Ok(()), _) | (Err(Code::NotFound), true) => {}
            (Err(code), _) => self.outcome.lost.push(format!("{}: {code:?} at its end", name(at))),
        }
    }

    /// Compares what runs with what was answered.
    fn finish(mut self) -> Outcome {
        let (running, _) = answered(|| self.client.vms());
        let mut running: HashMap<String, String> = running.unwrap().vms.into_iter().map(|vm| (vm.vm, vm.host)).collect();
        for (at, placed) in &self.placed {
            if running.remove(&name(*at)).as_ref() != Some(&placed.host) {
                self.outcome.lost.push(format!("{} is not on {}", name(*at), placed.host));
            }
        }
        self.outcome.lost.extend(running.into_keys().map(|vm| format!("{vm} runs, and was not placed")));
        self.outcome
    }

    /// The pool of a host, and the epoch of its lease.
    fn pool_of(&self, host: &str) -> (usize, u64) {
        let number: u32 = host.rsplit('-').next().unwrap().parse().unwrap();
        ((number / self.per_pool) as usize, self.epochs[number as usize])
    }
}

fn name(at: usize) -> String {
    format!("vm-{at}")
}

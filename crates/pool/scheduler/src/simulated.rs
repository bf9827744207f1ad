//! Replay of a log by the simulator: whether it makes the same decisions, so that its answers hold for the cluster of the log.
//!
//! The log is imported as a VM trace, as for `thermocline pool simulate`, and a run of the simulator has the servers, pools, and
//! policy of the log. What the trace does not have is added: requests that were refused, hosts that were drained, what managers
//! could assign, and the groups of VMs with the fault domains of hosts. Slices are released at once; in the log, those in release are missing from what a manager can assign.

use std::collections::BTreeMap;
use std::path::Path;

use pool::{Ns, SLICE};
use serde::Serialize;
use simulator::memory::MemoryPolicy;
use simulator::run::{Capacity, Change, Member, Run, Started};
use simulator::site::{Cluster, Setup, Site};
use units::Slices;
use vmtrace::{Recorded, Trace, Vm, import};

use crate::api::{Spread, VmRequest};
use crate::event::{Entry, Event, Host};
use crate::log_file::{self, Error, follow};
use crate::replay::{Decision, Replayed};
use crate::state::{Inconsistent, Running, State};

/// The result of a simulation of a log.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Simulated {
    /// Servers.
    pub hosts: u64,
    /// Pools.
    pub pools: u64,
    /// Simulated VMs: those that ran at the beginning, and one for each decision.
    pub vms: u64,
    /// VMs that ran at the beginning: they are where they were.
    pub kept: u64,
    /// Number of the entry with which the simulation begins: the last change of the configuration.
    pub begins: u64,
    /// Share of the decisions that are the same: host, NUMA nodes and slices, or refused.
    pub placed_as_simulated_ratio: f64,
    /// The decisions; "replayed" are those of the simulator.
    #[serde(flatten)]
    pub decisions: Replayed,
}

/// A recorded decision.
struct Decided {
    sequence: u64,
    /// Second of the trace.
    at: i64,
    request: VmRequest,
    on: Option<Host>,
}

/// A log since its last topology.
struct Log {
    begins: u64,
    /// The state just after the topology, with the VMs that ran.
    state: State,
    kept: BTreeMap<u64, Running>,
    /// By the number of the request.
    decided: BTreeMap<u64, Decided>,
    /// Second of the trace, number of the entry, and the change.
    changes: Vec<(i64, u64, Change)>,
}

/// Simulates the VMs of a log on its servers, and compares each decision.
///
/// # Errors
/// [`enum@Error`]; also for slices of another size than the simulator's, and for a log without VMs.
pub fn check(path: &Path) -> Result<Simulated, Error> {
    let failed = |why: String| Error::Simulation { path: path.to_owned(), why };
    let log = Log::read(path)?.ok_or_else(|| failed("it has no topology".to_owned()))?;
    let slice = log.state.topology().slice_bytes;
    if slice != SLICE {
        return Err(failed(format!("its slices have {slice}, and the simulator's {SLICE}; `replay` without --simulate repeats it")));
    }
    let vms = imported(path).and_then(|vms| log.vms(vms)).map_err(&failed)?;
    let simulated = log.simulate(vms, MemoryPolicy::Requested).map_err(&failed)?;
    Ok(log.compare(&simulated))
}

/// The VMs of a log as a trace has them.
fn imported(path: &Path) -> Result<Vec<Vm>, String> {
    let directory = tempfile::tempdir().map_err(|error| format!("cannot create a directory for its trace: {error}"))?;
    let to = directory.path().join("vms.parquet");
    let read = || {
        import::import(&[path.to_owned()], &to, &import::Options::default(), &mut |_, _| ())?;
        Trace::open(&to)?.vms().collect::<vmtrace::Result<Vec<Vm>>>()
    };
    read().map_err(|error| format!("it cannot be imported: {error}"))
}

impl Log {
    /// Reads a log; `None` if it is empty.
    fn read(path: &Path) -> Result<Option<Self>, Error> {
        let (mut state, mut log, mut at) = (None::<State>, None::<Self>, 0);
        log_file::read(path, |Entry { sequence, time_ms, event, .. }| {
            // As in a trace, where a clock that is set back does not change the order.
            at = at.max(i64::try_from(time_ms / 1_000).unwrap_or(i64::MAX));
            follow(&mut state, &event)?;
            let Some(state) = &state else { return Ok(()) };
            if matches!(event, Event::Topology(_)) {
                log = Some(Self::begin(sequence, state));
            } else if let Some(log) = &mut log {
                log.record(sequence, at, event, state)?;
            }
            Ok(())
        })?;
        Ok(log)
    }

    fn begin(sequence: u64, state: &State) -> Self {
        let kept = state.running_vms().map(|vm| (vm.id, vm)).collect();
        Self { begins: sequence, state: state.clone(), kept, decided: BTreeMap::new(), changes: Vec::new() }
    }

    fn record(&mut self, sequence: u64, at: i64, event: Event, state: &State) -> Result<(), Inconsistent> {
        if let Some(change) = state.change(&event)? {
            self.changes.push((at, sequence, change));
        }
        match event {
            Event::Kept { id, request, .. } => {
                self.kept.extend(state.running_vm(&request.vm).map(|vm| (id, vm)));
            }
            Event::Decided { id, request, on } => {
                self.decided.insert(id, Decided { sequence, at, request, on });
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns those of the imported VMs that ran since the topology, and those that were refused. A refused VM leaves at once, if it is
    /// placed: nothing is known of its life.
    fn vms(&self, imported: Vec<Vm>) -> Result<Vec<Vm>, String> {
        let known = |vm: &Vm| self.kept.contains_key(&vm.id) || self.decided.contains_key(&vm.id);
        let mut vms: Vec<Vm> = imported.into_iter().filter(known).collect();
        let placed = self.kept.len() + self.decided.values().filter(|decided| decided.on.is_some()).count();
        if vms.len() != placed {
            return Err(format!("its trace has {} of {placed} VMs; `pool import` lists rows that are invalid", vms.len()));
        }
        let refused = self.decided.iter().filter(|(_, decided)| decided.on.is_none());
        vms.extend(refused.map(|(&id, Decided { sequence, at, request, .. })| {
            let VmRequest { cores, memory_bytes, pool_bytes, .. } = *request;
            let recorded =
                Recorded { requested_bytes: pool_bytes, arrival_event: *sequence, departure_event: Some(*sequence), ..Recorded::default() };
            Vm { id, arrival: *at, departure: Some(*at), cores, memory_bytes, recorded: Some(Box::new(recorded)), ..Vm::default() }
        }));
        vms.sort_by_key(Vm::order);
        Ok(vms)
    }

    /// Runs the simulator. Returns each VM at its start, by the number of its request; `None` for those that were refused or kept.
    fn simulate(&self, vms: Vec<Vm>, memory: MemoryPolicy<'_>) -> Result<BTreeMap<u64, Option<Started>>, String> {
        let topology = self.state.topology();
        let site = Site { shape: topology.shape, strategy: topology.strategy, offline: (Ns(0), Ns(0)), scrub: Ns(0), ..Site::default() };
        let servers = self.state.servers();
        let pools = u32::try_from(topology.pools.len()).unwrap_or(u32::MAX);
        let pool_sockets = servers / pools.max(1) * u32::from(site.shape.nodes);
        let ends = vms.iter().filter_map(|vm| vm.departure).max().unwrap_or(0);
        let cluster = Cluster { vms, servers, ends };
        let slices: Vec<Slices> = topology.pools.iter().map(|pool| pool.slices).collect();
        let run = Run::new(&site, Setup { pool_sockets, memory, added_ns: 0 }, &cluster, None, Capacity::Slices(&slices));
        let mut run = run.ok_or("the simulator has no such servers")?;
        run.set_groups(self.state.server_domains().to_vec(), self.members(&cluster.vms));
        self.state.changes().into_iter().for_each(|change| run.change(change));
        for (index, vm) in (0..).zip(&cluster.vms) {
            if let Some(kept) = self.kept.get(&vm.id)
                && !run.keep(index, kept.placement, kept.slices)
            {
                return Err(format!("the VM of request {} ran on a host or pool that is too small for it now", vm.id));
            }
        }
        for &(at, sequence, change) in &self.changes {
            run.schedule_change(at, sequence, change);
        }
        Ok(cluster.vms.iter().map(|vm| vm.id).zip(run.placements()).collect())
    }

    /// The group of each VM, by their order.
    fn members(&self, vms: &[Vm]) -> Vec<Option<Member>> {
        let mut numbers: BTreeMap<&str, u32> = BTreeMap::new();
        let member = |vm: &Vm| {
            let kept = self.kept.get(&vm.id).map(|kept| &kept.spread);
            let spread: &Spread = kept.or_else(|| self.decided.get(&vm.id).map(|decided| &decided.request.spread))?.as_ref()?;
            let next = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
            Some(Member { group: *numbers.entry(&spread.group).or_insert(next), limit: spread.limit() })
        };
        vms.iter().map(member).collect()
    }

    fn compare(&self, simulated: &BTreeMap<u64, Option<Started>>) -> Simulated {
        let mut decisions = Replayed::default();
        for (id, Decided { sequence, request, on, .. }) in &self.decided {
            let now = simulated.get(id).copied().flatten().map(|started| self.state.on(&started.placement, started.slices));
            let wanted = self.state.slices(request);
            decisions.count(&Decision { sequence: *sequence, vm: &request.vm, wanted, recorded: on.as_ref() }, now.as_ref());
        }
        let pools = &self.state.topology().pools;
        let kept = self.kept.len() as u64;
        #[expect(clippy::cast_precision_loss, reason = "a ratio")]
        let placed_as_simulated_ratio = (decisions.decisions - decisions.differ) as f64 / decisions.decisions.max(1) as f64;
        Simulated {
            hosts: pools.iter().map(|pool| pool.hosts.len() as u64).sum(),
            pools: pools.len() as u64,
            vms: kept + decisions.decisions,
            kept,
            begins: self.begins,
            placed_as_simulated_ratio,
            decisions,
        }
    }
}

#[cfg(test)]
mod tests;

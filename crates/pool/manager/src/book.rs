//! What the manager knows, and how requests change it: the pool's core, and round it hosts by name, their leases, and VMs
//! by the names that their hosts give them. Pure: time is an argument, and nothing is written here.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use pool::{Command, Effect, Generation, HostId, Ns, Pool, Refusal, SliceId, State, VmId};
use serde::{Deserialize, Serialize};

use crate::api::{Action, Assignment, Code, Lease, Refused, Renewed, Work, WorkList};
use crate::layout::Layout;

mod ask;
mod look;

pub use ask::{Answer, Ask};

/// Ended requests that are remembered for each lease: how many later ones a request may come late by.
const ENDED_MAX: usize = 256;
/// The longest name of a VM, request or instance.
const NAME_MAX: usize = 128;
/// How much of a host's reason is kept.
const WHY_MAX: usize = 1024;

/// A host, as the ledger has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Its name, which its certificate bears.
    pub name: String,
    /// Of its last lease.
    pub epoch: u64,
    /// Which run of its driver took that lease.
    pub instance: String,
    /// Whether that lease goes on.
    pub leased: bool,
    /// Requests of this lease that are done with: those that gave back, and those whose slices were given back.
    pub ended: VecDeque<String>,
}

/// A VM with pool memory, as the ledger has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vm {
    /// Where it runs.
    pub host: HostId,
    /// Its name there.
    pub name: String,
    /// How many slices it wanted.
    pub asked: u32,
    /// By which request.
    pub request: String,
}

/// What a host said about a slice that it cannot take offline.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Trouble {
    failures: u32,
    why: String,
}

/// How long leases last, and who may have one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How long a lease lasts without being renewed.
    pub lease: Ns,
    /// The hosts that may have one.
    pub hosts: Vec<String>,
}

/// All that the manager knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Book {
    pub(crate) pool: Pool,
    /// By number; whoever was once known keeps its number.
    pub(crate) hosts: Vec<Arc<Host>>,
    pub(crate) vms: BTreeMap<VmId, Arc<Vm>>,
    pub(crate) next_vm: u64,
    /// When the leases run out. Not kept on disk: who had one when the manager ended gets a whole one when it is back.
    until: Vec<Ns>,
    troubles: BTreeMap<SliceId, Trouble>,
    terms: Arc<Terms>,
    layout: Arc<Layout>,
}

impl Book {
    /// A book from its parts. Leases that go on last from `now`.
    #[must_use]
    pub fn new(pool: Pool, hosts: Vec<Host>, vms: BTreeMap<VmId, Vm>, next_vm: u64, terms: Terms, layout: Layout, now: Ns) -> Self {
        let until = vec![Ns(now.0.saturating_add(terms.lease.0)); hosts.len()];
        Self {
            pool,
            hosts: hosts.into_iter().map(Arc::new).collect(),
            vms: vms.into_iter().map(|(id, vm)| (id, Arc::new(vm))).collect(),
            next_vm,
            until,
            troubles: BTreeMap::new(),
            terms: Arc::new(terms),
            layout: Arc::new(layout),
        }
    }

    /// Whether the disk must hear of the difference to `before`.
    #[must_use]
    pub fn differs(&self, before: &Self) -> bool {
        (&self.pool, &self.hosts, &self.vms, self.next_vm) != (&before.pool, &before.hosts, &before.vms, before.next_vm)
    }

    /// This book with what `before` knew and did not write down: when leases run out, and what hosts said.
    #[must_use]
    pub fn with_memory_of(mut self, before: &Self) -> Self {
        if before.until.len() == self.until.len() {
            self.until.clone_from(&before.until);
        }
        self.troubles.clone_from(&before.troubles);
        self
    }

    /// The core.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Where the slices are.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Follows a request.
    ///
    /// # Errors
    /// Why not; nothing has changed then.
    pub fn follow(&mut self, now: Ns, ask: &Ask) -> Result<Answer, Refused> {
        match ask {
            Ask::Lease { host, instance } => self.lease(now, host, instance).map(Answer::Lease),
            Ask::Renew { host, epoch } => self.renew(now, host, *epoch).map(Answer::Renewed),
            Ask::Assign { host, epoch, request, vm, slices } => {
                let host = self.fence(now, host, *epoch)?;
                self.assign(now, host, request, vm, *slices).map(Answer::Assignment)
            }
            Ask::Return { host, epoch, request, vm } => {
                let host = self.fence(now, host, *epoch)?;
                self.give_back(now, host, request, vm).map(Answer::WorkList)
            }
            Ask::Offlined { host, epoch, slice, generation } => {
                let host = self.fence(now, host, *epoch)?;
                self.its_own(host, *slice)?;
                self.tell(now, Command::Offlined { slice: *slice, generation: *generation })?;
                self.troubles.remove(slice);
                Ok(Answer::Done)
            }
            Ask::OfflineFailed { host, epoch, slice, generation, why } => {
                let host = self.fence(now, host, *epoch)?;
                self.its_own(host, *slice)?;
                self.tell(now, Command::OfflineFailed { slice: *slice, generation: *generation })?;
                let trouble = self.troubles.entry(*slice).or_default();
                trouble.failures += 1;
                trouble.why = why.chars().take(WHY_MAX).collect();
                Ok(Answer::Done)
            }
            Ask::EmcFailed(emc) => self.tell(now, Command::EmcFailed(*emc)).map(|()| Answer::Done),
            Ask::EmcRepaired(emc) => self.tell(now, Command::EmcRepaired(*emc)).map(|()| Answer::Done),
            Ask::Abandoned { slice, generation } => {
                self.unleased(now, *slice)?;
                self.tell(now, Command::Abandoned { slice: *slice, generation: *generation })?;
                self.troubles.remove(slice);
                Ok(Answer::Done)
            }
            Ask::Scrubbed { slice, generation } => {
                self.tell(now, Command::Scrubbed { slice: *slice, generation: *generation }).map(|()| Answer::Done)
            }
            Ask::Tick => {
                for (host, until) in self.hosts.iter_mut().zip(&self.until) {
                    if host.leased && now >= *until {
                        Arc::make_mut(host).leased = false;
                    }
                }
                self.tell(now, Command::Tick).map(|()| Answer::Done)
            }
        }
    }

    /// Passes a command on to the core, and forgets VMs that it has forgotten.
    fn tell(&mut self, now: Ns, command: Command) -> Result<(), Refused> {
        let mut effects: Vec<Effect> = Vec::new();
        self.pool.apply(now, command, &mut effects).map_err(refused)?;
        if self.pool.leases().len() < self.vms.len() {
            let gone: Vec<VmId> = self.vms.keys().copied().filter(|vm| !self.pool.leases().contains_key(vm)).collect();
            for vm in gone {
                if let Some(vm) = self.vms.remove(&vm) {
                    self.end(vm.host, &vm.request);
                }
            }
        }
        Ok(())
    }

    fn host(&self, name: &str) -> Result<HostId, Refused> {
        let known = || (0u16..).zip(&self.hosts).find(|(_, host)| host.name == name);
        let allowed = self.terms.hosts.iter().any(|host| host == name);
        known().filter(|_| allowed).map(|(id, _)| HostId(id)).ok_or_else(|| {
            let message = format!("no host {name} may use this pool; it may be used by {}", self.terms.hosts.join(", "));
            Refused { error: Code::NotFound, message }
        })
    }

    fn end(&mut self, host: HostId, request: &str) {
        let Some(host) = self.hosts.get_mut(usize::from(host.0)) else { return };
        let ended = &mut Arc::make_mut(host).ended;
        if ended.len() >= ENDED_MAX {
            ended.pop_front();
        }
        ended.push_back(request.to_owned());
    }

    /// The host, if its lease goes on and this is it.
    fn fence(&self, now: Ns, host: &str, epoch: u64) -> Result<HostId, Refused> {
        let id = self.host(host)?;
        let fenced = |message| Err(Refused { error: Code::Fenced, message });
        let (Some(of), Some(until)) = (self.hosts.get(usize::from(id.0)), self.until.get(usize::from(id.0))) else {
            return fenced(format!("{host} has no lease"));
        };
        if epoch != of.epoch {
            let message =
                format!("epoch {epoch} of {host} is void: the lease of epoch {} was taken by its instance {:?}", of.epoch, of.instance);
            return fenced(message);
        }
        if !of.leased || now >= *until {
            return fenced(format!("the lease of epoch {epoch} of {host} has run out; take a new one, and see what is still there"));
        }
        Ok(id)
    }

    fn lease(&mut self, now: Ns, name: &str, instance: &str) -> Result<Lease, Refused> {
        check_name("instance", instance)?;
        let id = self.host(name)?;
        let terms = Arc::clone(&self.terms);
        let nobody = || bad(format!("no host {name}"));
        let host = Arc::make_mut(self.hosts.get_mut(usize::from(id.0)).ok_or_else(nobody)?);
        host.epoch += 1;
        instance.clone_into(&mut host.instance);
        host.leased = true;
        // What was asked under an earlier lease is fenced by its epoch.
        host.ended.clear();
        let epoch = host.epoch;
        *self.until.get_mut(usize::from(id.0)).ok_or_else(nobody)? = Ns(now.0.saturating_add(terms.lease.0));
        let vms = self.vms.iter().filter(|(_, vm)| vm.host == id);
        let assignments = vms.map(|(&vm, of)| self.assignment(vm, of)).collect();
        Ok(Lease { epoch, lease_seconds: seconds(terms.lease), assignments, work: self.work(now, id) })
    }

    fn renew(&mut self, now: Ns, name: &str, epoch: u64) -> Result<Renewed, Refused> {
        let id = self.fence(now, name, epoch)?;
        if let Some(until) = self.until.get_mut(usize::from(id.0)) {
            *until = Ns(now.0.saturating_add(self.terms.lease.0));
        }
        Ok(Renewed { lease_seconds: seconds(self.terms.lease), work: self.work(now, id) })
    }

    fn assign(&mut self, now: Ns, host: HostId, request: &str, name: &str, slices: u32) -> Result<Assignment, Refused> {
        check_name("vm", name)?;
        check_name("request", request)?;
        let of_host = || self.vms.iter().filter(|(_, vm)| vm.host == host);
        if let Some((&id, vm)) = of_host().find(|(_, vm)| vm.name == name) {
            return self.again(id, vm, slices);
        }
        if let Some((_, other)) = of_host().find(|(_, vm)| vm.request == request) {
            let message = format!("request {request} was for VM {} and is now for {name}; give each request its own name", other.name);
            return Err(Refused { error: Code::Conflict, message });
        }
        if self.has_ended(host, request) {
            let message = format!("what request {request} brought VM {name} was given back since; ask by a new request");
            return Err(Refused { error: Code::Over, message });
        }
        let id = VmId(self.next_vm);
        self.tell(now, Command::Assign { vm: id, host, slices })?;
        self.next_vm += 1;
        let vm = Arc::new(Vm { host, name: name.to_owned(), asked: slices, request: request.to_owned() });
        let assignment = self.assignment(id, &vm);
        self.vms.insert(id, vm);
        Ok(assignment)
    }

    /// The answer to a request for a VM that has slices already.
    fn again(&self, id: VmId, vm: &Vm, slices: u32) -> Result<Assignment, Refused> {
        let name = &vm.name;
        if vm.asked != slices {
            let message =
                format!("VM {name} has an assignment of {} slices; one is for its whole life, so {slices} cannot be had", vm.asked);
            return Err(Refused { error: Code::Conflict, message });
        }
        let assignment = self.assignment(id, vm);
        if assignment.slices.len() < slices as usize {
            let (left, host) = (assignment.slices.len(), self.host_name(vm.host));
            let message = format!(
                "{left} of {slices} slices of VM {name} are left: nobody used the others when {host} had no lease; give it back and ask by a new request"
            );
            return Err(Refused { error: Code::Over, message });
        }
        Ok(assignment)
    }

    fn has_ended(&self, host: HostId, request: &str) -> bool {
        self.hosts.get(usize::from(host.0)).is_some_and(|host| host.ended.iter().any(|ended| ended == request))
    }

    fn give_back(&mut self, now: Ns, host: HostId, request: &str, name: &str) -> Result<WorkList, Refused> {
        check_name("request", request)?;
        // A request that comes twice must not give back what was assigned in between.
        if !self.has_ended(host, request) {
            let found = self.vms.iter().find(|(_, vm)| vm.host == host && vm.name == name).map(|(&id, _)| id);
            let Some(id) = found else {
                let message = format!("VM {name} of {} has no slices", self.host_name(host));
                return Err(Refused { error: Code::NotFound, message });
            };
            self.tell(now, Command::Return { vm: id })?;
            self.end(host, request);
        }
        Ok(WorkList { work: self.work(now, host) })
    }

    /// Refuses to hear of slices of others.
    fn its_own(&self, host: HostId, slice: SliceId) -> Result<(), Refused> {
        let (emc, index) = (slice.emc.0, slice.index);
        let Some(state) = self.pool.state(slice) else {
            return Err(Refused { error: Code::NotFound, message: format!("there is no slice {emc}/{index}") });
        };
        match state.owner() {
            Some(owner) if owner != host => {
                let message = format!("slice {emc}/{index} is {}'s, not {}'s", self.host_name(owner), self.host_name(host));
                Err(Refused { error: Code::Forbidden, message })
            }
            _ => Ok(()),
        }
    }

    /// Refuses to take a slice from a host with a lease.
    fn unleased(&self, now: Ns, slice: SliceId) -> Result<(), Refused> {
        let owner = self.pool.state(slice).and_then(|state| state.owner());
        if owner.is_some_and(|owner| self.has_lease(now, owner)) {
            let message = format!("the host of slice {}/{} has a lease again", slice.emc.0, slice.index);
            return Err(Refused { error: Code::Stale, message });
        }
        Ok(())
    }

    /// Whether a host's lease goes on.
    fn has_lease(&self, now: Ns, host: HostId) -> bool {
        let host = usize::from(host.0);
        self.hosts.get(host).is_some_and(|host| host.leased) && self.until.get(host).is_some_and(|until| now < *until)
    }

    /// Slices that a host without a lease may access: whoever finds them unlocked may take them back.
    pub fn unguarded(&self, now: Ns) -> impl Iterator<Item = (SliceId, Generation)> {
        let gone: Vec<bool> = (0u16..).zip(&self.hosts).map(|(host, _)| !self.has_lease(now, HostId(host))).collect();
        self.pool.slices().filter_map(move |(slice, record)| {
            let owner = record.state.owner()?;
            gone.get(usize::from(owner.0)).copied().unwrap_or(true).then_some((slice, record.generation))
        })
    }

    /// Slices that are to be zeroed.
    pub fn to_scrub(&self) -> impl Iterator<Item = (SliceId, Generation)> {
        self.pool
            .slices()
            .filter(|(_, record)| matches!(record.state, State::Scrubbing { .. }))
            .map(|(slice, record)| (slice, record.generation))
    }

    fn assignment(&self, id: VmId, vm: &Vm) -> Assignment {
        let lease = self.pool.leases().get(&id);
        let slices = lease.map(|lease| lease.slices.iter().map(|&index| self.slice(SliceId { emc: lease.emc, index })).collect());
        Assignment { vm: vm.name.clone(), asked: vm.asked, slices: slices.unwrap_or_default() }
    }

    fn slice(&self, slice: SliceId) -> crate::api::Slice {
        self.layout.slice(slice, self.pool.generation(slice).unwrap_or_default())
    }

    /// What a host is to do.
    fn work(&self, now: Ns, host: HostId) -> Vec<Work> {
        let asked = self.pool.slices().filter_map(|(slice, record)| match record.state {
            State::Offlining { host: owner, since } if owner == host => Some(Work {
                slice: self.layout.slice(slice, record.generation),
                action: Action::Offline,
                since_seconds: seconds(Ns(now.0.saturating_sub(since.0))),
            }),
            _ => None,
        });
        asked.collect()
    }

    fn host_name(&self, host: HostId) -> &str {
        self.hosts.get(usize::from(host.0)).map_or("an unknown host", |host| &host.name)
    }
}

/// For people and JSON.
#[expect(clippy::cast_precision_loss, reason = "seconds for people")]
pub(crate) fn seconds(span: Ns) -> f64 {
    span.0 as f64 / 1e9
}

fn bad(message: String) -> Refused {
    Refused { error: Code::BadRequest, message }
}

fn check_name(what: &str, name: &str) -> Result<(), Refused> {
    if name.is_empty() || name.len() > NAME_MAX || name.chars().any(char::is_control) {
        return Err(bad(format!("{what} {name:?} cannot be: 1 to {NAME_MAX} bytes, no control characters")));
    }
    Ok(())
}

fn refused(refusal: Refusal) -> Refused {
    let error = match refusal {
        Refusal::Short { .. } => Code::Short,
        Refusal::Nothing => Code::BadRequest,
        Refusal::VmKnown(_) => Code::Conflict,
        Refusal::VmUnknown(_) | Refusal::NoHost(_) | Refusal::NoEmc(_) => Code::NotFound,
        Refusal::Stale(_) => Code::Stale,
        Refusal::ManagerAway => Code::Busy,
    };
    Refused { error, message: refusal.to_string() }
}

#[cfg(test)]
mod tests;

//! The ledger: the pool's state machine, hosts by name with their leases, and VMs by the names that their hosts give
//! them; and how requests change it. Pure: time is an argument, and storage is separate.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use pool::{Command, Effect, EmcId, Generation, HostId, Ns, Pool, Refusal, SliceId, Slices, State, VmId};
use serde::{Deserialize, Serialize};

use crate::api::{Action, Assignment, Code, ErrorResponse, Lease, RenewResponse, Work, WorkList};
use crate::layout::Layout;

mod request;
mod status;

pub use request::{Request, Response};

/// The outcome of a request.
pub(crate) type Outcome = Result<Response, ErrorResponse>;

/// Completed requests that are kept for each lease. A request that is repeated after more than this many others is not
/// recognised.
const ENDED_MAX: usize = 256;
/// Longest name of a VM, request or instance, in bytes.
const NAME_MAX: usize = 128;
/// Characters of a host's reason that are kept.
const WHY_MAX: usize = 1024;

/// A host in the ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Host name, as in its certificate.
    pub name: String,
    /// Epoch of its last lease.
    pub epoch: u64,
    /// Run of the host's daemon that took that lease.
    pub instance: String,
    /// Whether that lease is valid.
    pub leased: bool,
    /// Completed requests of this lease: returns, and assignments whose slices were returned.
    pub ended: VecDeque<String>,
}

/// A VM with pool memory in the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vm {
    /// Host that it runs on.
    pub host: HostId,
    /// Name of the VM on its host.
    pub name: String,
    /// Number of slices requested.
    pub asked: Slices,
    /// The request that assigned them.
    pub request: String,
}

/// Failures of a host to take a slice offline.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct OfflineFailures {
    count: u32,
    why: String,
}

/// Terms of leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Duration of a lease that is not renewed.
    pub lease: Ns,
    /// Hosts that may take a lease.
    pub hosts: Vec<String>,
    /// The most slices that one host may have; `None` is no limit.
    pub host_slices: Option<Slices>,
}

/// The manager's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    pub(crate) pool: Pool,
    /// Hosts by number. A host keeps its number.
    pub(crate) hosts: Vec<Arc<Host>>,
    pub(crate) vms: BTreeMap<VmId, Arc<Vm>>,
    pub(crate) next_vm: u64,
    /// When leases expire, by host. Not on disk: after a restart of the manager, valid leases last a full term again.
    until: Vec<Ns>,
    failures: BTreeMap<SliceId, OfflineFailures>,
    terms: Arc<Terms>,
    layout: Arc<Layout>,
}

impl Ledger {
    /// A ledger from its parts. Valid leases last a full term from `now`.
    #[must_use]
    pub fn new(pool: Pool, hosts: Vec<Host>, vms: BTreeMap<VmId, Vm>, next_vm: u64, terms: Terms, layout: Layout, now: Ns) -> Self {
        let until = vec![Ns(now.0.saturating_add(terms.lease.0)); hosts.len()];
        Self {
            pool,
            hosts: hosts.into_iter().map(Arc::new).collect(),
            vms: vms.into_iter().map(|(id, vm)| (id, Arc::new(vm))).collect(),
            next_vm,
            until,
            failures: BTreeMap::new(),
            terms: Arc::new(terms),
            layout: Arc::new(layout),
        }
    }

    /// Whether the difference to `before` must be written to disk.
    #[must_use]
    pub fn differs(&self, before: &Self) -> bool {
        (&self.pool, &self.hosts, &self.vms, self.next_vm) != (&before.pool, &before.hosts, &before.vms, before.next_vm)
    }

    /// This ledger with the state of `before` that is not on disk: expiry of leases, and failures.
    #[must_use]
    pub fn with_memory_of(mut self, before: &Self) -> Self {
        if before.until.len() == self.until.len() {
            self.until.clone_from(&before.until);
        }
        self.failures.clone_from(&before.failures);
        self
    }

    /// When the leases expire, by host.
    pub(crate) fn leases_until(&self) -> &[Ns] {
        &self.until
    }

    /// This ledger with leases that expire at these times, by host.
    #[must_use]
    pub(crate) fn with_leases_until(mut self, until: &[Ns]) -> Self {
        if until.len() == self.until.len() {
            self.until.copy_from_slice(until);
        }
        self
    }

    /// The pool's state machine.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Paths of the slices' files.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Applies a request.
    ///
    /// # Errors
    /// Why it was refused; nothing has changed then.
    pub fn apply(&mut self, now: Ns, request: &Request) -> Result<Response, ErrorResponse> {
        match request {
            Request::Lease { host, instance } => self.lease(now, host, instance).map(Response::Lease),
            Request::Renew { host, epoch } => self.renew(now, host, *epoch).map(Response::Renewed),
            Request::Assign { host, epoch, request, vm, slices } => {
                let host = self.fence(now, host, *epoch)?;
                self.assign(now, host, request, vm, *slices).map(Response::Assignment)
            }
            Request::Return { host, epoch, request, vm } => {
                let host = self.fence(now, host, *epoch)?;
                self.give_back(now, host, request, vm).map(Response::WorkList)
            }
            Request::Offlined { host, epoch, slice, generation } => {
                let host = self.fence(now, host, *epoch)?;
                self.check_owner(host, *slice)?;
                self.command(now, Command::Offlined { slice: *slice, generation: *generation })?;
                self.failures.remove(slice);
                Ok(Response::Done)
            }
            Request::OfflineFailed { host, epoch, slice, generation, why } => {
                let host = self.fence(now, host, *epoch)?;
                self.check_owner(host, *slice)?;
                self.command(now, Command::OfflineFailed { slice: *slice, generation: *generation })?;
                let failures = self.failures.entry(*slice).or_default();
                failures.count += 1;
                failures.why = why.chars().take(WHY_MAX).collect();
                Ok(Response::Done)
            }
            Request::EmcFailed(emc) => self.command(now, Command::EmcFailed(*emc)).map(|()| Response::Done),
            Request::EmcRepaired(emc) => {
                self.check_unused(now, *emc)?;
                self.command(now, Command::EmcRepaired(*emc)).map(|()| Response::Done)
            }
            Request::HostFenced(host) => self.host_fenced(now, host).map(|()| Response::Done),
            Request::Abandoned { slice, generation } => {
                self.check_unleased(now, *slice)?;
                self.command(now, Command::Abandoned { slice: *slice, generation: *generation })?;
                self.failures.remove(slice);
                Ok(Response::Done)
            }
            Request::Scrubbed { slice, generation } => {
                self.command(now, Command::Scrubbed { slice: *slice, generation: *generation }).map(|()| Response::Done)
            }
            Request::Tick => {
                for (host, until) in self.hosts.iter_mut().zip(&self.until) {
                    if host.leased && now >= *until {
                        Arc::make_mut(host).leased = false;
                    }
                }
                self.command(now, Command::Tick).map(|()| Response::Done)
            }
        }
    }

    /// Passes a command to the state machine, and removes VMs that it has removed.
    fn command(&mut self, now: Ns, command: Command) -> Result<(), ErrorResponse> {
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

    fn host(&self, name: &str) -> Result<HostId, ErrorResponse> {
        let known = || (0u16..).zip(&self.hosts).find(|(_, host)| host.name == name);
        let allowed = self.terms.hosts.iter().any(|host| host == name);
        known().filter(|_| allowed).map(|(id, _)| HostId(id)).ok_or_else(|| {
            let message = format!("host {name} may not use this pool; hosts in its configuration: {}", self.terms.hosts.join(", "));
            ErrorResponse { error: Code::NotFound, message }
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

    /// The host's number, if `epoch` is that of its valid lease.
    fn fence(&self, now: Ns, host: &str, epoch: u64) -> Result<HostId, ErrorResponse> {
        let id = self.host(host)?;
        let fenced = |message| Err(ErrorResponse { error: Code::Fenced, message });
        let (Some(of), Some(until)) = (self.hosts.get(usize::from(id.0)), self.until.get(usize::from(id.0))) else {
            return fenced(format!("{host} has no lease"));
        };
        if epoch != of.epoch {
            let message =
                format!("epoch {epoch} of {host} is void: the lease of epoch {} was taken by its instance {:?}", of.epoch, of.instance);
            return fenced(message);
        }
        if !of.leased || now >= *until {
            return fenced(format!(
                "the lease of epoch {epoch} of {host} has expired; take a new lease, and check which slices it still has"
            ));
        }
        Ok(id)
    }

    fn lease(&mut self, now: Ns, name: &str, instance: &str) -> Result<Lease, ErrorResponse> {
        check_name("instance", instance)?;
        let id = self.host(name)?;
        let terms = Arc::clone(&self.terms);
        let unknown = || bad(format!("no host {name}"));
        let host = Arc::make_mut(self.hosts.get_mut(usize::from(id.0)).ok_or_else(unknown)?);
        host.epoch += 1;
        instance.clone_into(&mut host.instance);
        host.leased = true;
        // Requests of earlier leases are refused by their epoch.
        host.ended.clear();
        let epoch = host.epoch;
        *self.until.get_mut(usize::from(id.0)).ok_or_else(unknown)? = Ns(now.0.saturating_add(terms.lease.0));
        let vms = self.vms.iter().filter(|(_, vm)| vm.host == id);
        let assignments = vms.map(|(&vm, of)| self.assignment(vm, of)).collect();
        Ok(Lease { epoch, lease_seconds: seconds(terms.lease), assignments, work: self.work(now, id) })
    }

    fn renew(&mut self, now: Ns, name: &str, epoch: u64) -> Result<RenewResponse, ErrorResponse> {
        let id = self.fence(now, name, epoch)?;
        if let Some(until) = self.until.get_mut(usize::from(id.0)) {
            *until = Ns(now.0.saturating_add(self.terms.lease.0));
        }
        Ok(RenewResponse { lease_seconds: seconds(self.terms.lease), work: self.work(now, id) })
    }

    fn assign(&mut self, now: Ns, host: HostId, request: &str, name: &str, slices: Slices) -> Result<Assignment, ErrorResponse> {
        check_name("vm", name)?;
        check_name("request", request)?;
        let of_host = || self.vms.iter().filter(|(_, vm)| vm.host == host);
        if let Some((&id, vm)) = of_host().find(|(_, vm)| vm.name == name) {
            return self.repeated(id, vm, slices);
        }
        if let Some((_, other)) = of_host().find(|(_, vm)| vm.request == request) {
            let message = format!("request {request} was for VM {} and is now for {name}; use a new name for each request", other.name);
            return Err(ErrorResponse { error: Code::Conflict, message });
        }
        if self.has_ended(host, request) {
            let message = format!("the slices that request {request} assigned to VM {name} were returned since; use a new request");
            return Err(ErrorResponse { error: Code::Over, message });
        }
        self.check_quota(host, slices)?;
        let id = VmId(self.next_vm);
        self.command(now, Command::Assign { vm: id, host, slices })?;
        self.next_vm += 1;
        let vm = Arc::new(Vm { host, name: name.to_owned(), asked: slices, request: request.to_owned() });
        let assignment = self.assignment(id, &vm);
        self.vms.insert(id, vm);
        Ok(assignment)
    }

    /// Refuses more than a host may have. Slices that it is taking offline count: it may still access them.
    fn check_quota(&self, host: HostId, slices: Slices) -> Result<(), ErrorResponse> {
        let Some(most) = self.terms.host_slices else { return Ok(()) };
        let has = Slices::count(self.pool.slices().filter(|(_, record)| record.state.owner() == Some(host)).count());
        if has + slices <= most {
            return Ok(());
        }
        let name = self.host_name(host);
        let message = format!("{name} has {has} slices and may have {most} (host_slices); {slices} more cannot be assigned");
        Err(ErrorResponse { error: Code::Short, message })
    }

    /// The answer to a request for a VM that already has slices.
    fn repeated(&self, id: VmId, vm: &Vm, slices: Slices) -> Result<Assignment, ErrorResponse> {
        let name = &vm.name;
        if vm.asked != slices {
            let message =
                format!("VM {name} has an assignment of {} slices for its whole life; {slices} slices cannot be assigned", vm.asked);
            return Err(ErrorResponse { error: Code::Conflict, message });
        }
        let assignment = self.assignment(id, vm);
        if Slices::count(assignment.slices.len()) < slices {
            let (left, host) = (assignment.slices.len(), self.host_name(vm.host));
            let message = format!(
                "{left} of {slices} slices of VM {name} are left: the others were not in use while {host} had no lease, and were reclaimed; return the assignment, and use a new request"
            );
            return Err(ErrorResponse { error: Code::Over, message });
        }
        Ok(assignment)
    }

    fn has_ended(&self, host: HostId, request: &str) -> bool {
        self.hosts.get(usize::from(host.0)).is_some_and(|host| host.ended.iter().any(|ended| ended == request))
    }

    fn give_back(&mut self, now: Ns, host: HostId, request: &str, name: &str) -> Result<WorkList, ErrorResponse> {
        check_name("request", request)?;
        // A repeated request must not return slices that were assigned in between.
        if !self.has_ended(host, request) {
            let found = self.vms.iter().find(|(_, vm)| vm.host == host && vm.name == name).map(|(&id, _)| id);
            let Some(id) = found else {
                let message = format!("VM {name} of {} has no slices", self.host_name(host));
                return Err(ErrorResponse { error: Code::NotFound, message });
            };
            self.command(now, Command::Return { vm: id })?;
            self.end(host, request);
        }
        Ok(WorkList { work: self.work(now, host) })
    }

    /// Refuses reports about slices of other hosts.
    fn check_owner(&self, host: HostId, slice: SliceId) -> Result<(), ErrorResponse> {
        let (emc, index) = (slice.emc.0, slice.index);
        let Some(state) = self.pool.state(slice) else {
            return Err(ErrorResponse { error: Code::NotFound, message: format!("there is no slice {emc}/{index}") });
        };
        match state.owner() {
            Some(owner) if owner != host => {
                let message = format!("slice {emc}/{index} belongs to {}, not to {}", self.host_name(owner), self.host_name(host));
                Err(ErrorResponse { error: Code::Forbidden, message })
            }
            _ => Ok(()),
        }
    }

    /// Refuses to reclaim a slice from a host with a lease.
    fn check_unleased(&self, now: Ns, slice: SliceId) -> Result<(), ErrorResponse> {
        let owner = self.pool.state(slice).and_then(|state| state.owner());
        if owner.is_some_and(|owner| self.has_lease(now, owner)) {
            let message = format!("the host of slice {}/{} has a lease again", slice.emc.0, slice.index);
            return Err(ErrorResponse { error: Code::Stale, message });
        }
        Ok(())
    }

    /// Reclaims a host's slices of devices. No lock shows whether its machine still uses them: only an operator knows.
    fn host_fenced(&mut self, now: Ns, name: &str) -> Result<(), ErrorResponse> {
        let host = self.host(name)?;
        if self.has_lease(now, host) {
            let message = format!(
                "{name} has a lease: its machine runs. Turn it off, or remove its access to the devices, and wait for its lease to expire"
            );
            return Err(ErrorResponse { error: Code::Conflict, message });
        }
        let on_device = |slice: &SliceId| self.layout.device(slice.emc).is_some();
        let owned = self.pool.slices().filter(|(slice, record)| record.state.owner() == Some(host) && on_device(slice));
        let owned: Vec<_> = owned.map(|(slice, record)| (slice, record.generation)).collect();
        for (slice, generation) in owned {
            self.command(now, Command::Abandoned { slice, generation })?;
            self.failures.remove(&slice);
        }
        Ok(())
    }

    /// Refuses to free the slices of a device while a machine runs that may have had some: a failure took them from it without
    /// its report, and it still has them online. No lock shows that, as for files.
    fn check_unused(&self, now: Ns, emc: EmcId) -> Result<(), ErrorResponse> {
        let with_lease = || (0u16..).zip(&self.hosts).find(|(id, _)| self.has_lease(now, HostId(*id)));
        let Some((_, host)) = with_lease().filter(|_| self.layout.device(emc).is_some()) else { return Ok(()) };
        let message = format!(
            "{} has a lease, and may still have memory of EMC {} online; turn all machines of the pool off, or take their memory offline \
             and stop `thermocline pool memory`, and wait for their leases to expire",
            host.name, emc.0
        );
        Err(ErrorResponse { error: Code::Conflict, message })
    }

    /// Whether a host's lease is valid.
    fn has_lease(&self, now: Ns, host: HostId) -> bool {
        let host = usize::from(host.0);
        self.hosts.get(host).is_some_and(|host| host.leased) && self.until.get(host).is_some_and(|until| now < *until)
    }

    /// Slices in files whose hosts have no lease. They may be reclaimed if no process has locked them.
    pub fn unguarded(&self, now: Ns) -> impl Iterator<Item = (SliceId, Generation)> {
        let gone: Vec<bool> = (0u16..).zip(&self.hosts).map(|(host, _)| !self.has_lease(now, HostId(host))).collect();
        self.pool.slices().filter_map(move |(slice, record)| {
            let owner = record.state.owner().filter(|_| self.layout.device(slice.emc).is_none())?;
            gone.get(usize::from(owner.0)).copied().unwrap_or(true).then_some((slice, record.generation))
        })
    }

    /// Slices that must be zeroed.
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

    /// Actions that a host must perform.
    fn work(&self, now: Ns, host: HostId) -> Vec<Work> {
        let required = self.pool.slices().filter_map(|(slice, record)| match record.state {
            State::Offlining { host: owner, since } if owner == host => Some(Work {
                slice: self.layout.slice(slice, record.generation),
                action: Action::Offline,
                since_seconds: seconds(Ns(now.0.saturating_sub(since.0))),
            }),
            _ => None,
        });
        required.collect()
    }

    fn host_name(&self, host: HostId) -> &str {
        self.hosts.get(usize::from(host.0)).map_or("an unknown host", |host| &host.name)
    }
}

/// Converts to seconds, for messages.
#[expect(clippy::cast_precision_loss, reason = "seconds for display")]
pub(crate) fn seconds(span: Ns) -> f64 {
    span.0 as f64 / 1e9
}

fn bad(message: String) -> ErrorResponse {
    ErrorResponse { error: Code::BadRequest, message }
}

fn check_name(what: &str, name: &str) -> Result<(), ErrorResponse> {
    if name.is_empty() || name.len() > NAME_MAX || name.chars().any(char::is_control) {
        return Err(bad(format!("{what} {name:?}: give 1 to {NAME_MAX} bytes without control characters")));
    }
    Ok(())
}

fn refused(refusal: Refusal) -> ErrorResponse {
    let error = match refusal {
        Refusal::Short { .. } => Code::Short,
        Refusal::Nothing => Code::BadRequest,
        Refusal::VmKnown(_) => Code::Conflict,
        Refusal::VmUnknown(_) | Refusal::NoHost(_) | Refusal::NoEmc(_) => Code::NotFound,
        Refusal::Stale(_) => Code::Stale,
        Refusal::ManagerAway => Code::Busy,
    };
    ErrorResponse { error, message: refusal.to_string() }
}

#[cfg(test)]
mod tests;

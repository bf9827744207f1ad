//! The state in the simulator's terms: servers by number, and what changes of them.

use placement::Placement;
use simulator::run::Change;
use units::Slices;

use super::{Inconsistent, State, Vm};
use crate::api::Spread;
use crate::event::{Event, Host};

/// A VM that runs, as the simulator needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Running {
    /// Number of its request.
    pub(crate) id: u64,
    pub(crate) placement: Placement,
    pub(crate) slices: Slices,
    pub(crate) spread: Option<Spread>,
}

impl Running {
    fn of(vm: &Vm) -> Self {
        Self { id: vm.id, placement: vm.placement, slices: vm.slices, spread: vm.request.spread.clone() }
    }
}

impl State {
    /// The number of servers, with the places of pools that have fewer hosts than the largest.
    pub(crate) fn servers(&self) -> u32 {
        self.fleet.servers()
    }

    /// The VMs that run.
    pub(crate) fn running_vms(&self) -> impl Iterator<Item = Running> {
        self.vms.values().map(Running::of)
    }

    /// A VM by its name.
    pub(crate) fn running_vm(&self, name: &str) -> Option<Running> {
        self.vms.get(name).map(Running::of)
    }

    /// What distinguishes the servers and pools from new ones: places without a host, drained hosts, and managers.
    pub(crate) fn changes(&self) -> Vec<Change> {
        let down = |name: &Option<String>| name.as_ref().is_none_or(|name| self.drained.contains(name));
        let servers = (0..).zip(&self.names).filter(|(_, name)| down(name)).map(|(server, _)| Change::Server { server, up: false });
        let pools = (0..).zip(self.topology.pools.iter().zip(&self.pools)).filter(|(_, (of, _))| of.managed);
        servers.chain(pools.map(|(pool, (_, known))| Change::Grantable { pool, slices: known.grantable.unwrap_or(Slices::ZERO) })).collect()
    }

    /// The change that an event is for servers and pools; `None` if it is none.
    ///
    /// # Errors
    /// The host or pool is unknown.
    pub(crate) fn change(&self, event: &Event) -> Result<Option<Change>, Inconsistent> {
        Ok(match event {
            Event::Drained { host, drained } => Some(Change::Server { server: self.number(host)?, up: !drained }),
            Event::Grantable { pool, slices } => {
                let number = self.pool_number(pool).ok_or_else(|| Inconsistent(format!("there is no pool {pool}")))?;
                // Of a pool without a manager only what VMs use counts.
                let managed = self.topology.pools[number].managed;
                let pool = u32::try_from(number).unwrap_or(u32::MAX);
                managed.then_some(Change::Grantable { pool, slices: slices.unwrap_or(Slices::ZERO) })
            }
            Event::Topology(_) | Event::Kept { .. } | Event::Decided { .. } | Event::Ended { .. } => None,
        })
    }

    /// The host of a placement.
    pub(crate) fn on(&self, placement: &Placement, slices: Slices) -> Host {
        let nodes = placement.nodes[..usize::from(self.topology.shape.nodes)].to_vec();
        Host { host: self.name(placement.server).to_owned(), nodes, slices }
    }
}

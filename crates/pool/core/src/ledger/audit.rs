//! Whether a ledger is true to itself, recounted from its slices.

use thiserror::Error;

use super::{Counts, Pool};
use crate::slice::{EmcId, SliceId, State, VmId};

/// What a ledger must never be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Broken {
    /// Slices were lost or made up.
    #[error("the slices are {found:?}, the ledger says {said:?}")]
    Counts {
        /// As recounted.
        found: Counts,
        /// As kept.
        said: Counts,
    },
    /// A VM has a slice that is not its own.
    #[error("VM {} has slice {slice:?}, which is {state:?}", vm.0)]
    NotItsOwn {
        /// The VM.
        vm: VmId,
        /// The slice.
        slice: SliceId,
        /// What the slice does.
        state: State,
    },
    /// As many slices are online as no VMs have.
    #[error("VMs have {leased} slices, and {online} are online")]
    Unowned {
        /// What VMs have.
        leased: u32,
        /// What is online.
        online: u32,
    },
    /// What was kept is of another pool.
    #[error("EMC {} has {found} slices in what was kept, and {wanted} by the configuration; a pool can grow, and nothing else", emc.0)]
    Shape {
        /// The EMC.
        emc: EmcId,
        /// As kept.
        found: usize,
        /// As configured.
        wanted: u32,
    },
    /// The free slices are not those that are free.
    #[error("the free list of EMC {} is wrong", .0.0)]
    FreeList(EmcId),
}

impl Pool {
    /// Recounts everything: for tests, simulations, and a manager that starts from a ledger on disk.
    ///
    /// # Errors
    /// The first thing that cannot be.
    pub fn audit(&self) -> Result<(), Broken> {
        let mut found = Counts::default();
        for (_, state) in self.all() {
            *found.of(state) += 1;
        }
        if found != self.counts || found.total() != self.config.emc_slices.iter().sum::<u32>() {
            return Err(Broken::Counts { found, said: self.counts });
        }
        // Each leased slice names its VM, so none is in two leases; and no more are online than are leased.
        let mut leased = 0;
        for (&vm, lease) in &self.leases {
            for &index in &lease.slices {
                let slice = SliceId { emc: lease.emc, index };
                let state = self.state(slice).unwrap_or(State::Failed);
                if state != (State::Online { host: lease.host, vm }) {
                    return Err(Broken::NotItsOwn { vm, slice, state });
                }
                leased += 1;
            }
        }
        if leased != found.online {
            return Err(Broken::Unowned { leased, online: found.online });
        }
        for (emc, of) in (0u16..).zip(&self.emcs) {
            let mut listed: Vec<u32> = of.free.iter().copied().collect();
            listed.sort_unstable();
            let free = (0u32..).zip(&of.slices).filter(|(_, record)| record.state == State::Free).map(|(index, _)| index);
            if !free.eq(listed) {
                return Err(Broken::FreeList(EmcId(emc)));
            }
        }
        Ok(())
    }
}

//! Consistency check of a pool, by a recount of its slices.

use thiserror::Error;
use units::Slices;

use super::{Counts, Pool};
use crate::slice::{EmcId, SliceId, State, VmId};

/// An inconsistency of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Broken {
    /// The counts do not match the slices.
    #[error("the slices add up to {found:?}, the counts are {counted:?}")]
    Counts {
        /// Recounted from the slices.
        found: Counts,
        /// Maintained by the pool.
        counted: Counts,
    },
    /// A VM's slice is in a state that does not belong to it.
    #[error("VM {} has slice {slice:?}, which is {state:?}", vm.0)]
    WrongOwner {
        /// The VM.
        vm: VmId,
        /// The slice.
        slice: SliceId,
        /// State of the slice.
        state: State,
    },
    /// The number of online slices differs from the number of slices of VMs.
    #[error("VMs have {leased} slices, and {online} are online")]
    Unowned {
        /// Slices of VMs.
        leased: u32,
        /// Online slices.
        online: u32,
    },
    /// The restored state has more slices than the configuration.
    #[error("EMC {} has {found} slices in the ledger, and {configured} in the configuration; a pool cannot shrink", emc.0)]
    Shape {
        /// The EMC.
        emc: EmcId,
        /// Slices in the restored state.
        found: usize,
        /// Slices in the configuration.
        configured: Slices,
    },
    /// The free list does not match the slices' records.
    #[error("the free list of EMC {} is wrong", .0.0)]
    FreeList(EmcId),
}

impl Pool {
    /// Recounts everything: in tests and simulations, and when a manager restores its ledger.
    ///
    /// # Errors
    /// The first inconsistency.
    pub fn audit(&self) -> Result<(), Broken> {
        let mut found = Counts::default();
        for (_, state) in self.all() {
            *found.of(state) += 1;
        }
        if found != self.counts || found.total() != self.config.emc_slices.iter().copied().sum() {
            return Err(Broken::Counts { found, counted: self.counts });
        }
        // Each slice of a VM names that VM, so that no slice belongs to two; and all online slices belong to a VM.
        let mut leased = 0;
        for (&vm, lease) in &self.leases {
            for &index in &lease.slices {
                let slice = SliceId { emc: lease.emc, index };
                let state = self.state(slice).unwrap_or(State::Failed);
                if state != (State::Online { host: lease.host, vm }) {
                    return Err(Broken::WrongOwner { vm, slice, state });
                }
                leased += 1;
            }
        }
        if leased != found.online {
            return Err(Broken::Unowned { leased, online: found.online });
        }
        for (emc, of) in (0u16..).zip(&self.emcs) {
            if of.free != of.free_by_records() {
                return Err(Broken::FreeList(EmcId(emc)));
            }
        }
        Ok(())
    }
}

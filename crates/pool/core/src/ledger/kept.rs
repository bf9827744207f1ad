//! Saving and restoring a pool across processes.

use std::collections::BTreeMap;

use units::Slices;

use super::{Broken, Config, Counts, Lease, Pool, Record};
use crate::slice::{EmcId, State, VmId};

/// State of a pool that persists across processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Whether each EMC works.
    pub works: Vec<bool>,
    /// The slices of each EMC.
    pub slices: Vec<Vec<Record>>,
    /// The slices of each VM.
    pub leases: BTreeMap<VmId, Lease>,
}

impl Pool {
    /// The persistent state of this pool.
    #[must_use]
    pub fn kept(&self) -> Kept {
        Kept {
            works: self.emcs.iter().map(|emc| emc.works).collect(),
            slices: self.emcs.iter().map(|emc| emc.slices.clone()).collect(),
            leases: self.leases.clone(),
        }
    }

    /// Restores a pool. The configuration may have more EMCs and slices than before, but not fewer; new slices are
    /// free. Free slices are ordered by the time of their release.
    ///
    /// # Errors
    /// The first inconsistency.
    pub fn restore(config: Config, kept: Kept) -> Result<Self, Broken> {
        let configured = |emc: usize| config.emc_slices.get(emc).copied().unwrap_or_default();
        for (index, slices) in (0u16..).zip(&kept.slices) {
            let configured = configured(usize::from(index));
            if Slices::count(slices.len()) > configured {
                return Err(Broken::Shape { emc: EmcId(index), found: slices.len(), configured });
            }
        }
        let mut pool = Self::new(config);
        for (index, (emc, slices)) in pool.emcs.iter_mut().zip(kept.slices).enumerate() {
            emc.works = kept.works.get(index).copied().unwrap_or(true);
            for (record, was) in emc.slices.iter_mut().zip(slices) {
                *record = was;
            }
            if !emc.works {
                // New slices of a failed EMC are failed, too.
                let new = emc.slices.iter_mut().filter(|record| record.state == State::Free);
                new.for_each(|record| record.state = State::Failed);
            }
            emc.free = emc.free_by_records();
        }
        pool.leases = kept.leases;
        let mut counts = Counts::default();
        for (_, state) in pool.all() {
            *counts.of(state) += 1;
        }
        pool.counts = counts;
        pool.audit().map(|()| pool)
    }
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use crate::slice::{Generation, HostId, SliceId};

    fn config(emc_slices: &[u32]) -> Config {
        Config {
            emc_slices: emc_slices.iter().copied().map(Slices).collect(),
            hosts: 2,
            buffer_slices: Slices::ZERO,
            answer_within: Ns(1),
            ask_again_after: Ns(1),
        }
    }

    fn used() -> Pool {
        let mut pool = Pool::new(config(&[4, 2]));
        let mut effects = Vec::new();
        let slice = |index| SliceId { emc: EmcId(0), index };
        for command in [
            Command::Assign { vm: VmId(1), host: HostId(0), slices: Slices(2) },
            Command::Assign { vm: VmId(2), host: HostId(1), slices: Slices(1) },
            Command::Return { vm: VmId(1) },
            Command::Offlined { slice: slice(0), generation: Generation(1) },
            Command::Scrubbed { slice: slice(0), generation: Generation(1) },
            Command::EmcFailed(EmcId(1)),
        ] {
            pool.apply(Ns(5), command, &mut effects).unwrap();
        }
        pool
    }

    #[test]
    fn a_restored_pool_is_equal() {
        let pool = used();
        let restored = Pool::restore(config(&[4, 2]), pool.kept()).unwrap();
        assert_eq!(restored.kept(), pool.kept());
        assert_eq!(restored, pool, "also the free list: slice 3 was never used, slice 0 was released last");
    }

    #[test]
    fn a_restored_pool_assigns_the_same_slices() {
        let mut pool = Pool::new(config(&[2]));
        let mut effects = Vec::new();
        let of = |index| (SliceId { emc: EmcId(0), index }, Generation(1));
        let assign = |vm, slices| Command::Assign { vm: VmId(vm), host: HostId(0), slices: Slices(slices) };
        let (first, second) = (of(0), of(1));
        // The slice that is returned first is zeroed last.
        for (now, command) in [
            (1, assign(1, 1)),
            (1, assign(2, 1)),
            (2, Command::Return { vm: VmId(1) }),
            (3, Command::Return { vm: VmId(2) }),
            (4, Command::Offlined { slice: second.0, generation: second.1 }),
            (4, Command::Scrubbed { slice: second.0, generation: second.1 }),
            (5, Command::Offlined { slice: first.0, generation: first.1 }),
            (5, Command::Scrubbed { slice: first.0, generation: first.1 }),
        ] {
            pool.apply(Ns(now), command, &mut effects).unwrap();
        }
        let mut restored = Pool::restore(config(&[2]), pool.kept()).unwrap();
        for pool in [&mut pool, &mut restored] {
            pool.apply(Ns(6), assign(3, 1), &mut effects).unwrap();
        }
        assert_eq!(restored.leases(), pool.leases(), "members of a group, one of which was restarted");
    }

    #[test]
    fn a_pool_may_grow_and_not_shrink() {
        let kept = used().kept();
        let grown = Pool::restore(config(&[5, 3, 2]), kept.clone()).unwrap();
        assert_eq!((grown.counts().free, grown.counts().failed), (5, 3), "{:?}", grown.counts());
        assert_eq!(Pool::restore(config(&[3, 2]), kept.clone()), Err(Broken::Shape { emc: EmcId(0), found: 4, configured: Slices(3) }));
        assert_eq!(Pool::restore(config(&[4]), kept), Err(Broken::Shape { emc: EmcId(1), found: 2, configured: Slices::ZERO }));
    }

    #[test]
    fn inconsistent_state_is_refused() {
        let mut kept = used().kept();
        kept.leases.clear();
        assert_eq!(Pool::restore(config(&[4, 2]), kept), Err(Broken::Unowned { leased: 0, online: 1 }));
    }
}

//! The machine's ledger of savings: DRAM that jobs no longer occupy, by kind, minus what saving it occupies.
//!
//! # Sources
//! Far memory is what the kernel charges to swap, without the swap cache. It does not distinguish anonymous from shared memory there;
//! the ledger divides it as the requests of the agent reclaimed it. Page cache is an estimate ([`policy::page_cache`]). The cost is
//! the pool with its allocator's pages, zram devices, the agent, and its kdamonds.
//!
//! # Reconciliation
//! Two counters of the kernel do not come from the agent's own accounts. `memory.current`, read before and after each request, shows
//! what the request freed; [`Ledger::request_gap_ratio`] is the difference to what was accounted. `MemAvailable` shows what of the
//! saving is not in use; [`Ledger::in_use_bytes`] is the rest, which other programs use, or which was not saved.

use serde::{Deserialize, Serialize};
use units::{Bytes, RatioPpm};

use crate::machine::Machine;
use crate::memory::JobMemory;

/// Requests that free less in a period are not reconciled: a job allocates as much meanwhile.
const RECONCILED_MIN: Bytes = Bytes(1 << 20);

/// What requests of the agent moved out of DRAM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// Anonymous memory, since the job was first observed.
    pub anonymous: Bytes,
    /// Shared memory, since the job was first observed.
    pub shared: Bytes,
    /// DRAM that was accounted as freed, since the last period.
    pub accounted: Bytes,
    /// DRAM by which `memory.current` decreased, since the last period.
    pub freed: Bytes,
}

impl Requests {
    /// This part of far memory is shared memory: the share of it in what was requested.
    fn shared_of(&self, far: Bytes) -> Bytes {
        let share = RatioPpm::of(self.shared.0, self.anonymous.0.saturating_add(self.shared.0)).unwrap_or_default();
        Bytes(share.share_of(far.0))
    }

    /// Ends a period. Returns what was accounted and what was freed in it.
    pub fn close(&mut self) -> (Bytes, Bytes) {
        (std::mem::take(&mut self.accounted), std::mem::take(&mut self.freed))
    }
}

/// DRAM saved on the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ledger {
    /// Anonymous memory that left DRAM, uncompressed.
    pub anonymous_bytes: Bytes,
    /// Shared memory that left DRAM, uncompressed.
    pub shared_bytes: Bytes,
    /// Page cache that was reclaimed and that the kernel would still hold.
    pub file_bytes: Bytes,
    /// Memory in a slow node.
    pub slow_bytes: Bytes,
    /// DRAM that far memory of the jobs occupies in zswap and on zram devices, with the pages of the allocator.
    pub pool_bytes: Bytes,
    /// Resident memory of the agent.
    pub agent_bytes: Bytes,
    /// Memory of the agent's kdamonds, by an upper bound.
    pub kdamond_bytes: Bytes,
    /// The sum: what was saved minus what that occupies; negative while it costs more.
    pub net_bytes: i64,
    /// `MemAvailable`.
    pub available_bytes: Bytes,
    /// Part of the net saving that `MemAvailable` does not show: other programs use it.
    pub in_use_bytes: Bytes,
    /// Difference between what the requests of the last period freed by `memory.current` and what was accounted, as a share of the
    /// larger; `None` if they freed too little to compare.
    pub request_gap_ratio: Option<f64>,
}

impl Ledger {
    /// The ledger of these jobs, with what the agent and its kdamonds occupy.
    #[must_use]
    pub fn of<'a>(jobs: impl Iterator<Item = (&'a JobMemory, &'a Requests)>, machine: &Machine, agent: Bytes, kdamonds: Bytes) -> Self {
        let mut sum = Self { agent_bytes: agent, kdamond_bytes: kdamonds, available_bytes: machine.available_bytes, ..Self::default() };
        for (memory, requests) in jobs {
            let shared = requests.shared_of(memory.far);
            sum.shared_bytes += shared;
            sum.anonymous_bytes += memory.far - shared;
            sum.file_bytes += memory.file;
            sum.slow_bytes += memory.slow;
            sum.pool_bytes += memory.compressed_dram();
        }
        let out = sum.anonymous_bytes + sum.shared_bytes + sum.file_bytes + sum.slow_bytes;
        sum.net_bytes = signed(out) - signed(sum.pool_bytes + agent + kdamonds);
        sum.in_use_bytes = Bytes(u64::try_from(sum.net_bytes).unwrap_or(0)) - sum.available_bytes;
        sum
    }

    /// The same, with the difference between what requests were accounted with and what they freed.
    #[must_use]
    pub fn reconciled(self, (accounted, freed): (Bytes, Bytes)) -> Self {
        let larger = accounted.max(freed);
        let gap = (larger >= RECONCILED_MIN).then(|| RatioPpm::of(accounted.0.abs_diff(freed.0), larger.0)).flatten();
        Self { request_gap_ratio: gap.map(RatioPpm::as_f64), ..self }
    }
}

fn signed(bytes: Bytes) -> i64 {
    i64::try_from(bytes.0).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_saving_is_net_of_all_costs_and_divided_by_kind() {
        let memory = JobMemory {
            far: Bytes(1000),
            pool: Bytes(300),
            pool_overhead: Bytes(40),
            zram: Bytes(10),
            file: Bytes(40),
            ..JobMemory::default()
        };
        let requests = Requests { anonymous: Bytes(300), shared: Bytes(100), ..Requests::default() };
        let of = |available: u64| {
            let machine = Machine { available_bytes: Bytes(available), ..Machine::default() };
            Ledger::of([(&memory, &requests)].into_iter(), &machine, Bytes(100), Bytes(10))
        };
        let ledger = of(500);
        assert_eq!((ledger.anonymous_bytes, ledger.shared_bytes, ledger.file_bytes), (Bytes(750), Bytes(250), Bytes(40)));
        assert_eq!((ledger.net_bytes, ledger.in_use_bytes), (1040 - 350 - 110, Bytes(80)));
        assert_eq!(of(5_000).in_use_bytes, Bytes::ZERO);
        let costly = Ledger::of([].into_iter(), &Machine::default(), Bytes(100), Bytes(10));
        assert_eq!((costly.net_bytes, costly.in_use_bytes), (-110, Bytes::ZERO));
    }

    #[test]
    fn a_request_that_frees_less_than_accounted_is_a_gap() {
        let gap = |accounted, freed| Ledger::default().reconciled((Bytes::mib(accounted), Bytes::mib(freed))).request_gap_ratio;
        assert_eq!((gap(10, 10), gap(10, 8), gap(8, 10)), (Some(0.0), Some(0.2), Some(0.2)));
        assert_eq!(gap(0, 0), None);
    }
}
